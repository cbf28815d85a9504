/**
 * The threads of the ledger: a live list with filters, and a search over all messages.
 *
 * A row changes in its place; rows do not change places while someone looks. New threads wait behind a button unless the reader
 * is at the top.
 */

import { acting, ask } from "./acts.js";
import { get, may } from "./api.js";
import { useKeys } from "./keys.js";
import { follow } from "./live.js";
import { html, signal, useEffect, useMemo, useRef, useSignal } from "./lib.js";
import { announce, Command, Empty, now, Problem, StatusMark } from "./parts.js";
import { Rows } from "./rows.js";
import { go, href, replace, route } from "./route.js";
import { ago, dollars, plural, Said, short, visible, wholeTime } from "./text.js";

/** @typedef {import("./api.js").Thread} Thread */

const ROW = 56;
const PAGE = 100;
const FILTERS = ["status", "pattern", "model", "owner", "since", "min_cost"];
const STATUSES = ["created", "running", "paused", "stopped", "completed", "failed", "terminated"];
const SINCE = /** @type {Record<string, [string, number]>} */ ({ hour: ["last hour", 3600], day: ["last day", 86400], week: ["last 7 days", 604800] });

/** Whether the field of the search is to have the focus: now, or as soon as it is there. */
export const searching = signal(false);

/** What there is to filter by; kept, so that it is there at once when a reader comes back. */
const filterChoices = signal(/** @type {{ patterns: string[], models: string[], hosts: string[] }} */ ({ patterns: [], models: [], hosts: [] }));

/** Read what there is to filter by: after the list, because the sums over all threads take longer than it. */
async function loadFilterChoices() {
  const [overview, { hosts }] = await Promise.all([get(["overview"]), get(["hosts"])]);
  filterChoices.value = {
    patterns: Object.keys(overview.patterns).filter(Boolean),
    models: Object.keys(overview.by_model),
    hosts: [...new Set(/** @type {string[]} */ (hosts.map((/** @type {{ name: string }} */ each) => each.name)))],
  };
}

/** The first page of the list without filters, if it was asked for before there was a list. */
let early = /** @type {Promise<any> | null} */ (null);

/** Ask for the first page of the list while the page is still being built. A reader without a session gets no answer. */
export function beginList() {
  early = get(["threads"], { limit: PAGE, titles: true });
  early.catch(() => (early = null));
}

/** The list, with what is loaded of it. */
class ThreadList {
  /** @param {Record<string, string>} filters */
  constructor(filters) {
    this.filters = filters;
    this.rows = signal(/** @type {readonly Thread[]} */ ([]));
    this.newer = signal(/** @type {readonly Thread[]} */ ([]));
    this.loaded = signal(false);
    this.problem = signal(/** @type {string | null} */ (null));
    this.next = /** @type {string | null} */ (null);
    this.loading = false;
    this.ended = false;
    this.timer = 0;
    this.refreshing = false;
    this.again = false;
  }

  get query() {
    const { since, ...rest } = this.filters;
    const after = since && SINCE[since] ? new Date(Date.now() - SINCE[since][1] * 1000).toISOString() : null;
    return { ...rest, updated_after: after, limit: PAGE, titles: true };
  }

  async more() {
    if (this.loading || this.ended || (this.loaded.value && !this.next)) return;
    this.loading = true;
    try {
      const begun = Object.values(this.filters).some(Boolean) ? null : early;
      early = null;
      const page = await (begun ?? get(["threads"], { ...this.query, page: this.next }));
      if (this.ended) return;
      const known = new Set(this.rows.value.map((each) => each.thread_id));
      this.rows.value = [...this.rows.value, ...page.threads.filter((/** @type {Thread} */ each) => !known.has(each.thread_id))];
      this.next = page.next;
      this.problem.value = null;
    } catch (error) {
      this.problem.value = error instanceof Error ? error.message : String(error);
    } finally {
      this.loading = false;
      this.loaded.value = true;
      this.touchAgain();
    }
  }

  /** Something has changed: read what changed last, soon. */
  touch() {
    if (this.refreshing || !this.loaded.value) this.again = true;
    else if (!this.ended) this.timer ||= setTimeout(() => void this.refresh(), 200);
  }

  /** Read what changed last. What changes while it is read, the answer may not have: it is read once more afterwards. */
  async refresh() {
    this.timer = 0;
    this.refreshing = true;
    try {
      const { threads } = await get(["threads"], this.query);
      if (this.ended) return;
      const fresh = new Map(threads.map((/** @type {Thread} */ each) => [each.thread_id, each]));
      this.rows.value = this.rows.value.map((each) => fresh.get(each.thread_id) ?? each);
      const known = new Set(this.rows.value.map((each) => each.thread_id));
      const newer = threads.filter((/** @type {Thread} */ each) => !known.has(each.thread_id));
      this.newer.value = newer;
    } catch {
      // the stream says whether the server is there
    } finally {
      this.refreshing = false;
      this.touchAgain();
    }
  }

  touchAgain() {
    if (!this.again) return;
    this.again = false;
    this.touch();
  }

  showNewer() {
    this.rows.value = [...this.newer.value, ...this.rows.value];
    this.newer.value = [];
  }

  /** @param {string} id */
  drop(id) {
    this.rows.value = this.rows.value.filter((each) => each.thread_id !== id);
  }
}

export function ThreadsView() {
  const { query } = route.value;
  const words = query.get("q") ?? "";
  return html`<div class="threads">
    <h1 class="unseen">Threads</h1>
    <${Tools} />
    ${words ? html`<${Hits} words=${words} />` : html`<${List} key=${FILTERS.map((name) => query.get(name) ?? "").join("|")} />`}
  </div>`;
}

function Tools() {
  const { query } = route.value;
  const { patterns, models, hosts } = filterChoices.value;
  const set = (/** @type {string} */ name, /** @type {string} */ value) => {
    const next = Object.fromEntries([...query].filter(([each]) => each !== name));
    replace(href([], { ...next, [name]: value }));
  };
  const choose = (/** @type {string} */ name) => (/** @type {Event} */ event) => set(name, /** @type {HTMLSelectElement} */ (event.target).value);
  const options = (/** @type {string} */ name, /** @type {string} */ label, /** @type {(string | [string, string])[]} */ values) => html`<select
    aria-label=${label} data-testid=${`filter-${name}`} data-set=${query.has(name)} value=${query.get(name) ?? ""} onChange=${choose(name)}>
    <option value="">${label}</option>${withOwn(values, query.get(name)).map((each) => {
      const [value, text] = Array.isArray(each) ? each : [each, each];
      return html`<option key=${value} value=${value}>${text}</option>`;
    })}</select>`;
  // What is typed is kept apart: the list beside it is rendered anew meanwhile, and must not take it away.
  const typed = useSignal(query.get("q") ?? "");
  useEffect(() => {
    typed.value = query.get("q") ?? "";
  }, [query.get("q")]);
  const field = useRef(/** @type {HTMLInputElement | null} */ (null));
  useEffect(() => {
    if (!searching.value) return;
    searching.value = false;
    field.current?.focus();
  }, [searching.value]);
  const search = (/** @type {Event} */ event) => {
    event.preventDefault();
    set("q", typed.value.trim());
  };
  const isFiltered = FILTERS.some((name) => query.has(name));
  return html`<div class="threads-tools">
    <form role="search" onSubmit=${search}><input id="search" ref=${field} name="q" type="search" placeholder="Search all messages" aria-label="Search all messages"
      value=${typed.value} data-testid="search" onInput=${(/** @type {Event} */ event) => (typed.value = /** @type {HTMLInputElement} */ (event.target).value)} onSearch=${search} /></form>
    <div class="filters" role="group" aria-label="Filters">
      ${options("status", "any status", STATUSES)}
      ${options("pattern", "any pattern", patterns)}
      ${options("model", "any model", models)}
      ${options("owner", "any host", hosts)}
      ${options("since", "any time", Object.entries(SINCE).map(([name, [text]]) => [name, text]))}
      ${options("min_cost", "any cost", [["0.01", "from $0.01"], ["0.1", "from $0.10"], ["1", "from $1"], ["10", "from $10"]])}
      ${isFiltered ? html`<button type="button" class="quiet" data-testid="no-filters" onClick=${() => replace(href([], { q: query.get("q") }))}>Clear</button>` : null}
    </div>
    ${may("send") ? html`<button type="button" class="primary" data-testid="act-new" onClick=${() => (acting.value = ask())}>New thread…</button>` : null}
  </div>`;
}

/** @param {(string | [string, string])[]} values @param {string | null} own */
const withOwn = (values, own) => (own && !values.some((each) => (Array.isArray(each) ? each[0] : each) === own) ? [...values, own] : values);

function List() {
  const { query } = route.value;
  const list = useMemo(() => new ThreadList(Object.fromEntries(FILTERS.map((name) => [name, query.get(name) ?? ""]))), []);
  const box = useMemo(() => ({ current: /** @type {Rows | null} */ (null) }), []);
  const chosen = useSignal(/** @type {string | null} */ (null)); // by its id: its place changes when newer threads are shown
  useEffect(() => {
    void list.more().then(() => (list.ended ? undefined : loadFilterChoices())).catch(() => null);
    const stop = follow({ onRecord: () => list.touch(), onOpen: () => list.touch() });
    return () => {
      list.ended = true;
      clearTimeout(list.timer);
      stop();
    };
  }, []);
  const rows = list.rows.value;
  const placeOfChosen = () => list.rows.value.findIndex((each) => each.thread_id === chosen.value);
  const place = placeOfChosen();
  useEffect(() => {
    if (list.newer.value.length && (box.current?.box.current?.scrollTop ?? 0) < 8) list.showNewer();
  }, [list.newer.value]);
  const move = (/** @type {number} */ by) => {
    const next = Math.max(0, Math.min(list.rows.value.length - 1, placeOfChosen() + by));
    const row = list.rows.value[next];
    if (!row) return;
    chosen.value = row.thread_id;
    box.current?.show(next);
    announce(`${row.title ?? row.thread_id}, ${row.status ?? ""}, ${plural(row.messages, "message")}`);
  };
  const open = () => placeOfChosen() >= 0 && chosen.value && go(href(["thread", chosen.value]));
  useKeys("Threads", [
    { keys: "j", about: "next thread", run: () => move(1) },
    { keys: "ArrowDown", about: "", run: () => move(1) },
    { keys: "k", about: "previous thread", run: () => move(-1) },
    { keys: "ArrowUp", about: "", run: () => move(-1) },
    { keys: "Enter", about: "open it", run: open },
    { keys: "o", about: "", run: open },
    { keys: "n", about: "new thread", run: () => may("send") && (acting.value = ask()) },
  ]);
  const order = useMemo(() => ({ count: rows.length, seqAt: (/** @type {number} */ place) => place, placeOf: (/** @type {number} */ key) => key }), [rows.length]);
  const range = (/** @type {number} */ _, /** @type {number} */ last) => {
    if (last >= list.rows.value.length - 30) void list.more();
  };
  if (list.problem.value) return html`<${Problem} error=${list.problem.value} />`;
  if (list.loaded.value && !rows.length) return html`<${NoThreads} filtered=${FILTERS.some((name) => query.has(name))} />`;
  return html`<div class="list-place">
    <div class="list-head" aria-hidden="true"><span>Status</span><span>Thread</span><span>Pattern</span><span>Messages</span><span>Tokens</span><span>Cost</span><span>Host</span><span>Updated</span></div>
    ${list.newer.value.length ? html`<button type="button" class="newer top" data-testid="newer" onClick=${() => { list.showNewer(); box.current?.show(0); }}>${plural(list.newer.value.length, "newer thread")} ↑</button>` : null}
    <${Rows} handle=${box} order=${order} label="Threads" name="threads" estimate=${innerWidth < 720 ? 72 : ROW} fixed start=${0} onRange=${range}
      row=${(/** @type {number} */ at) => html`<${Row} thread=${rows[at]} selected=${at === place} />`}
      empty=${html`<div aria-busy="true"></div>`} revision=${rows} />
  </div>`;
}

/** @param {{ thread: Thread, selected: boolean }} props */
function Row({ thread, selected }) {
  if (!thread) return null;
  return html`<a class="thread-row" href=${href(["thread", thread.thread_id])} data-selected=${selected} aria-current=${selected ? "true" : undefined}
    data-testid="thread-row" data-thread=${thread.thread_id}>
    <span class="cell-status">${thread.moved_to ? html`<${StatusMark} status="moved" />` : html`<${StatusMark} status=${thread.status} open=${thread.open_calls} />`}</span>
    <span class="cell-title"><b dir="auto">${visible(thread.title ?? thread.thread_id)}</b><${Said} class="mono">${thread.thread_id}<//></span>
    <span class="cell-pattern">${thread.pattern ?? ""}</span>
    <span class="cell-number">${short(thread.messages)}${thread.open_calls ? html`<small>${thread.open_calls} open</small>` : null}</span>
    <span class="cell-number">${thread.input_tokens + thread.output_tokens ? short(thread.input_tokens + thread.output_tokens) : "–"}</span>
    <span class="cell-number">${thread.cost ? dollars(thread.cost) : "–"}</span>
    <span class="cell-host">${thread.owner ?? ""}</span>
    <time class="cell-time" datetime=${thread.updated_at} title=${wholeTime(thread.updated_at)}>${ago(thread.updated_at, now.value)}</time>
  </a>`;
}

/** @param {{ filtered: boolean }} props */
function NoThreads({ filtered }) {
  if (filtered) return html`<${Empty} title="No thread fits these filters" name="no-match"><p><a href="#/">Show all threads</a></p><//>`;
  return html`<${Empty} title="This ledger has no threads yet" name="empty-ledger">
    <p>A thread is one piece of work with all its messages. Ask a question, and watch it here while it runs:</p>
    <${Command}>antiphon run "Why is the sky blue?"<//>
    <p>It needs no key and no network: without a model, a script answers. With documents to answer from:</p>
    <${Command}>antiphon run "What does a host do?" --add docs/workers.md<//>
    ${may("send") ? html`<p><button type="button" class="primary" data-testid="act-new-empty" onClick=${() => (acting.value = ask())}>Or ask here…</button></p>` : null}
  <//>`;
}

/** @param {{ words: string }} props */
function Hits({ words }) {
  const found = useSignal(/** @type {{ record: import("./api.js").StoredRecord, snippet: string }[] | null} */ (null));
  const error = useSignal(/** @type {string | null} */ (null));
  const unsearched = useSignal(0);
  useEffect(() => {
    const ends = new AbortController();
    error.value = null;
    get(["search"], { q: words, limit: 100 }, ends.signal)
      .then((value) => {
        if (ends.signal.aborted) return;
        found.value = value.hits;
        unsearched.value = value.unsearched;
        announce(plural(value.hits.length, "message") + " found");
      })
      .catch((problem) => !ends.signal.aborted && (error.value = problem.message));
    return () => ends.abort();
  }, [words]);
  if (error.value) return html`<${Problem} error=${error.value} />`;
  if (!found.value) return html`<p class="note" aria-busy="true">Searching…</p>`;
  const hidden = unsearched.value ? html`<p class="note" data-testid="unsearched">Not searched, because encrypted: ${plural(unsearched.value, "thread")}. Open a thread to read it.</p>` : null;
  if (!found.value.length) return html`<${Empty} title="No message has these words" name="no-hits"><p>All the words must be in one message. <a href="#/">Show all threads</a></p>${hidden}<//>`;
  return html`<div class="hits-place">${hidden}<ol class="hits" aria-label="Messages found" data-testid="hits">${found.value.map(({ record, snippet }) => html`<li key=${`${record.thread_id}${record.seq}`}>
    <a href=${href(["thread", record.thread_id], { seq: record.seq })}>
      <span class="note"><${Said}>${record.thread_id}<//> #${record.seq}, <${Said}>${record.message.policy}<//>, ${ago(record.recorded_at, now.value)}</span>
      <span dir="auto">${visible(snippet)}</span></a></li>`)}</ol></div>`;
}
