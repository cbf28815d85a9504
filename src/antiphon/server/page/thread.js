/** A thread: its head and acts, three views of the same messages, the selected message, and the replay. */

import { address, may } from "./api.js";
import { acting, again, erase, fork, pause, rerun, resume, terminate } from "./acts.js";
import { CONVERSATION_ROW, ConversationRow } from "./conversation.js";
import { Inspector } from "./inspector.js";
import { useKeys } from "./keys.js";
import { html, useEffect, useLayoutEffect, useMemo, useRef, useSignal } from "./lib.js";
import { announce, Command, copied, Dialog, Empty, StatusMark } from "./parts.js";
import { ReplayBar } from "./replay.js";
import { Rows } from "./rows.js";
import { href, replace, route } from "./route.js";
import { layout, participants, SEQUENCE_ROW, SequenceHead, SequenceRow } from "./sequence.js";
import { KINDS, LANES, ThreadStore } from "./store.js";
import { dollars, plural, Said, short, visible } from "./text.js";
import { TIMELINE_ROW, TimelineCanvas, TimelineRow } from "./timeline.js";

const VIEWS = /** @type {const} */ (["conversation", "sequence", "timeline"]);
const OVER = ["completed", "failed", "terminated"];
const VIEW_NAMES = { conversation: "Conversation", sequence: "Sequence", timeline: "Timeline" };

/**
 * The view that an address names.
 * @param {import("./route.js").Route} place
 */
function viewOf(place) {
  return VIEWS.find((name) => name === place.query.get("view")) ?? "conversation";
}

/** @param {{ id: string }} props */
export function ThreadView({ id }) {
  const store = useMemo(() => new ThreadStore(id), [id]);
  useEffect(() => {
    const seq = Number(route.value.query.get("seq")) || 0;
    const kept = localStorage.getItem("hidden");
    store.hidden.value = new Set(kept === null ? ["control", "effect"] : kept.split(" ").filter(Boolean));
    store.selected.value = seq;
    void store.start(seq);
    return () => store.close();
  }, [store]);
  if (store.problem.value) {
    return html`<${Empty} title="There is no such thread here" name="no-thread"><p>${visible(store.problem.value)}</p><p><a href="#/">All threads</a></p><//>`;
  }
  if (!store.thread.value) return html`<div class="thread" aria-busy="true"></div>`;
  return html`<${Loaded} store=${store} />`;
}

/** @param {{ store: ThreadStore }} props */
function Loaded({ store }) {
  const list = useMemo(() => ({ current: /** @type {Rows | null} */ (null) }), []);
  const room = useSignal(innerWidth);
  const area = useRef(/** @type {HTMLElement | null} */ (null));
  // A thread that has ended is read from its beginning, another from its end.
  const first = useMemo(() => store.selected.value || (OVER.includes(store.thread.value?.status ?? "") ? 1 : undefined), []);
  const following = useSignal(first === undefined);
  const seenBefore = useSignal(0);
  const replaying = useSignal(false);
  const view = viewOf(route.value);
  const revision = store.revision.value;
  const order = store.rows.value;

  useEffect(() => {
    const observer = new ResizeObserver(([entry]) => (room.value = Math.floor(entry.contentRect.width)));
    if (area.current) observer.observe(area.current);
    return () => observer.disconnect();
  }, []);
  useLayoutEffect(() => {
    const seq = Number(route.value.query.get("seq")) || 0;
    if (seq && seq !== store.selected.value) {
      store.jump(seq);
      list.current?.show(seq, "middle");
    }
  }, [route.value]);
  useEffect(() => {
    if (store.arrived.value) announce(plural(store.arrived.value - seenBefore.value, "new message"));
    if (following.value) seenBefore.value = store.arrived.value;
  }, [store.arrived.value]);

  // The view of the address, not of the last render: a key may be pressed before the page is drawn anew.
  const at = (/** @type {{ seq?: number | null, view?: string }} */ { seq = store.selected.value || null, view = viewOf(route.value) }) =>
    href(["thread", store.id], { seq, view: view === "conversation" ? null : view });
  const pick = (/** @type {number} */ seq, /** @type {"nearest" | "middle"} */ how = "nearest") => {
    store.jump(seq);
    replace(at({ seq }));
    list.current?.show(seq, how);
    const step = store.steps.peek(seq);
    if (step) announce(`${seq}: ${step.sender}: ${step.text.slice(0, 200)}`);
  };
  const move = (/** @type {number} */ by) => {
    if (!order.count) return;
    const from = store.selected.value ? order.placeOf(store.selected.value) : by > 0 ? -1 : order.count;
    pick(order.seqAt(Math.max(0, Math.min(order.count - 1, from + by))));
  };
  const jump = (/** @type {1 | -1} */ direction, /** @type {(seq: number) => boolean} */ holds, /** @type {string} */ what) => {
    const found = store.find(store.selected.value || (direction > 0 ? 0 : store.head.value + 1), direction, (seq) => holds(seq) && store.isShown(seq));
    if (found) pick(found, "middle");
    else announce(`No further ${what}.`);
  };
  const leave = () => {
    store.selected.value = 0;
    replace(at({ seq: null }));
  };
  const show = (/** @type {string} */ name) => replace(at({ view: name }));
  const forkAt = (/** @type {number} */ seq) => (acting.value = fork(store.id, { at: seq, chain: !!store.status.value?.is_chain }));
  const isFailure = (/** @type {number} */ seq) => KINDS[store.columns.kind[seq]] === "failed" || store.columns.mark[seq] > 0;

  useKeys("Thread", [
    { keys: "j", about: "next message", run: () => move(1) },
    { keys: "ArrowDown", about: "", run: () => move(1) },
    { keys: "k", about: "previous message", run: () => move(-1) },
    { keys: "ArrowUp", about: "", run: () => move(-1) },
    { keys: "Home", about: "first message", run: () => order.count && pick(order.seqAt(0)) },
    { keys: "End", about: "last message, and stay there", run: () => { leave(); list.current?.follow(); } },
    { keys: "e", about: "next failure or mark", run: () => jump(1, isFailure, "failure") },
    { keys: "E", about: "previous failure or mark", run: () => jump(-1, isFailure, "failure") },
    { keys: "p", about: "the other half of a call", run: () => store.columns.pair[store.selected.value] && pick(store.columns.pair[store.selected.value], "middle") },
    { keys: "1", about: "conversation", run: () => show("conversation") },
    { keys: "2", about: "sequence diagram", run: () => show("sequence") },
    { keys: "3", about: "timeline", run: () => show("timeline") },
    ...LANES.map((lane) => ({ keys: `l ${lane[0]}`, about: `show or hide the lane ${lane}`, run: () => keep(store, lane) })),
    { keys: "#", about: "go to a message by its number", run: () => /** @type {HTMLElement | null} */ (document.getElementById("go-to"))?.focus() },
    { keys: "r", about: "replay", run: () => (replaying.value = !replaying.value) },
    { keys: "f", about: "fork at the selected message", run: () => may("send") && forkAt(store.selected.value) },
    { keys: "c", about: "continue the thread", run: () => may("send") && (acting.value = again(store.id)) },
    { keys: "y", about: "copy the link to the selected message", run: () => void copied(location.href) },
    { keys: "Escape", about: "leave the selection", run: leave },
  ]);

  const names = view === "sequence" ? participants(store) : [];
  const shape = layout(names, room.value);
  const shared = { order, label: `${VIEW_NAMES[view]} of the thread`, name: "rows", handle: list, start: store.selected.value || first, revision,
    onRange: (/** @type {number} */ first) => (store.near = first), onFollow: (/** @type {boolean} */ is) => { if (is || following.value) seenBefore.value = store.arrived.value; following.value = is; },
    empty: html`<${NoMessages} store=${store} />` };
  const missed = store.arrived.value - seenBefore.value;

  return html`<div class="thread" data-inspecting=${!!store.selected.value} data-testid="thread">
    <${Head} store=${store} onReplay=${() => (replaying.value = !replaying.value)} />
    <div class="thread-tools">
      <div class="segments" role="tablist" aria-label="View">${VIEWS.map((each) => html`<button type="button" role="tab" key=${each} id=${`tab-${each}`}
        aria-selected=${view === each} aria-controls="view" data-testid=${`view-${each}`} onClick=${() => show(each)}>${VIEW_NAMES[each]}</button>`)}</div>
      <div class="segments" role="group" aria-label="Lanes">${LANES.map((lane) => html`<button type="button" key=${lane} data-testid=${`lane-${lane}`}
        aria-pressed=${!store.hidden.value.has(lane)} onClick=${() => keep(store, lane)}>${lane}</button>`)}</div>
      <${GoTo} store=${store} pick=${pick} />
    </div>
    <div class="thread-body">
      <section class="view" id="view" role="tabpanel" aria-labelledby=${`tab-${view}`} ref=${area} data-view=${view}>
        ${view === "conversation" ? html`<${Rows} key="conversation" ...${shared} estimate=${CONVERSATION_ROW}
          row=${(/** @type {number} */ seq) => html`<${ConversationRow} store=${store} seq=${seq} pick=${pick} />`} foot=${html`<${SpokenWords} store=${store} />`} />` : null}
        ${view === "sequence" ? html`<${Rows} key="sequence" ...${shared} estimate=${SEQUENCE_ROW} fixed width=${shape.width}
          head=${html`<${SequenceHead} names=${names} shape=${shape} />`}
          row=${(/** @type {number} */ seq) => html`<${SequenceRow} store=${store} seq=${seq} shape=${shape} pick=${pick} />`} />` : null}
        ${view === "timeline" ? html`<${TimelineCanvas} store=${store} pick=${(/** @type {number} */ seq) => pick(seq, "middle")} /><${Rows} key="timeline" ...${shared} estimate=${TIMELINE_ROW} fixed
          row=${(/** @type {number} */ seq) => html`<${TimelineRow} store=${store} seq=${seq} pick=${pick} />`} />` : null}
        ${!following.value && missed > 0 ? html`<button type="button" class="newer" data-testid="newer" onClick=${() => list.current?.follow()}>${plural(missed, "new message")} ↓</button>` : null}
      </section>
      <${Inspector} store=${store} pick=${(/** @type {number} */ seq) => pick(seq, "middle")} onFork=${forkAt} onClose=${leave} />
    </div>
    ${replaying.value ? html`<${ReplayBar} store=${store} onEnd=${() => (replaying.value = false)} onMove=${() => list.current?.follow()} />` : null}
  </div>`;
}

/** @param {ThreadStore} store @param {string} lane */
function keep(store, lane) {
  store.toggle(lane);
  localStorage.setItem("hidden", [...store.hidden.value].join(" "));
  announce(`${lane} ${store.hidden.value.has(lane) ? "hidden" : "shown"}`);
}

/** @param {{ store: ThreadStore, pick: (seq: number, how?: "nearest" | "middle") => void }} props */
function GoTo({ store, pick }) {
  const typed = (/** @type {KeyboardEvent} */ event) => {
    const field = /** @type {HTMLInputElement} */ (event.target);
    const seq = Number(field.value);
    if (event.key === "Enter" && seq >= 1) {
      pick(Math.min(seq, store.head.value), "middle");
      field.blur();
    }
  };
  return html`<label class="go-to"><span>#</span><input id="go-to" type="number" min="1" max=${store.head.value} placeholder=${String(store.head.value)}
    aria-label="Go to the message with this number" data-testid="go-to" onKeyDown=${typed} /></label>`;
}

/** @param {{ store: ThreadStore }} props */
function NoMessages({ store }) {
  return store.head.value
    ? html`<${Empty} title="All messages are in hidden lanes"><p>Show a lane above the messages.</p><//>`
    : html`<${Empty} title="No messages yet"><p>They appear here as they are written.</p><//>`;
}

/** @param {{ store: ThreadStore }} props */
function SpokenWords({ store }) {
  const words = [...store.words.value];
  if (!words.length || store.upto.value) return null;
  return html`<div class="speaking" data-testid="speaking">${words.map(([speaker, text]) => html`<article key=${speaker} class="say" data-live="true">
    <span class="seq">…</span><header><${Said} class="who">${speaker}<//><span class="note">is saying; not recorded yet</span></header>
    <div class="body"><div class="prose" dir="auto">${visible(text)}</div></div></article>`)}</div>`;
}

/** @param {{ store: ThreadStore, onReplay: () => void }} props */
function Head({ store, onReplay }) {
  const thread = /** @type {import("./api.js").Thread} */ (store.thread.value);
  const status = store.status.value;
  const exporting = useSignal(false);
  const isMoved = thread.moved_to !== null; // it is written to in the other ledger only
  const isOver = isMoved || OVER.includes(thread.status ?? "");
  const isPaused = !isMoved && ["paused", "stopped"].includes(status?.status ?? "");
  const act = (/** @type {import("./acts.js").Act} */ given) => (acting.value = given);
  const done = status?.phases_completed ?? [];
  return html`<header class="thread-head">
    <div class="thread-title">
      <h1 dir="auto">${visible(status?.question ?? thread.thread_id)}</h1>
      <p class="facts-line">
        <${StatusMark} status=${isMoved ? "moved" : (status?.status ?? thread.status)} open=${thread.open_calls} />
        <${Said} class="mono">${thread.thread_id}<//>
        ${thread.pattern ? html`<span>${thread.pattern}</span>` : null}
        <span>${plural(thread.messages, "message")}</span>
        ${thread.open_calls ? html`<span>${plural(thread.open_calls, "open call")}</span>` : null}
        <span>${short(thread.input_tokens + thread.output_tokens)} tokens</span>
        <span>${dollars(thread.cost)}</span>
        ${status?.owner ? html`<span>on <${Said}>${status.owner}<//></span>` : null}
        ${thread.forked_from ? html`<span>branch of <a href=${href(["thread", thread.forked_from], { seq: thread.forked_at })}>${thread.forked_from}</a> at #${thread.forked_at},
          <a href=${href(["compare", thread.forked_from, thread.thread_id])}>compare</a></span>` : null}
      </p>
      ${status?.is_chain ? html`<ol class="phases" aria-label="Phases">${[...done, ...status.phases_remaining].map((phase, place) => html`<li key=${`${phase}${place}`}
        data-state=${place < done.length ? "done" : phase === status.current_phase && !isOver ? "now" : "later"}>${phase}</li>`)}</ol>` : null}
      ${isMoved ? html`<p class="waits" role="status" data-testid="moved">This thread was moved to <${Said} class="mono">${thread.moved_to}<//>, and continues there. Here it can only be read, forked and deleted.</p>` : null}
      ${status?.waits_for && !isMoved ? html`<p class="waits" role="status">${visible(status.waits_for)} <a href="#/waiting">Waiting</a></p>` : null}
    </div>
    <div class="acts" role="toolbar" aria-label="Acts">
      ${may("send") && status?.is_chain && !isMoved ? html`<button type="button" class="primary" data-testid="act-continue" onClick=${() => act(again(thread.thread_id))}>Continue…</button>` : null}
      ${may("control") && !isOver && !isPaused ? html`<button type="button" data-testid="act-pause" onClick=${() => act(pause(thread.thread_id))}>Pause…</button>` : null}
      ${may("control") && (isPaused || (!isOver && thread.open_calls > 0)) ? html`<button type="button" data-testid="act-resume" onClick=${() => act(resume(thread.thread_id))}>Resume…</button>` : null}
      ${may("send") ? html`<button type="button" data-testid="act-fork" onClick=${() => act(fork(thread.thread_id, { at: store.selected.value, chain: !!status?.is_chain }))}>Fork…</button>` : null}
      <button type="button" data-testid="act-replay" onClick=${onReplay}>Replay</button>
      <button type="button" data-testid="act-export" onClick=${() => (exporting.value = true)}>Export…</button>
      ${may("control") && status?.is_chain && isOver && !isMoved ? html`<button type="button" data-testid="act-rerun" onClick=${() => act(rerun(thread.thread_id))}>Rerun…</button>` : null}
      ${may("control") && !isOver ? html`<button type="button" class="danger" data-testid="act-terminate" onClick=${() => act(terminate(thread.thread_id))}>Terminate…</button>` : null}
      ${may("admin") ? html`<button type="button" class="danger" data-testid="act-delete" onClick=${() => act(erase(thread.thread_id, thread.messages))}>Delete…</button>` : null}
    </div>
    ${exporting.value ? html`<${Export} id=${thread.thread_id} onClose=${() => (exporting.value = false)} />` : null}
  </header>`;
}

/** @param {{ id: string, onClose: () => void }} props */
function Export({ id, onClose }) {
  const dialect = useSignal("house");
  const names = ["house", "openai-chat", "openai-responses", "anthropic-messages", "gemini", "pydantic-ai"];
  const url = address(["threads", id, "export"], { as: dialect.value });
  return html`<${Dialog} title="Export the thread" name="act-export" onClose=${onClose}>
    <p class="about">A file with one JSON value a line. Only <code>house</code> keeps everything; a header line of another format lists what is lost.</p>
    <label class="field">Format<select value=${dialect.value} onChange=${(/** @type {Event} */ event) => (dialect.value = /** @type {HTMLSelectElement} */ (event.target).value)}>
      ${names.map((name) => html`<option key=${name}>${name}</option>`)}</select></label>
    <section class="writes" aria-label="What will be written" data-testid="writes"><h3>Nothing is written to the ledger</h3>
      <p class="note">The same on the command line:</p><${Command}>${`antiphon export ${id} --as ${dialect.value}`}<//></section>
    <footer><button type="button" onClick=${onClose}>Cancel</button>
      <a class="button primary" href=${url} download=${`${id.replace(/[^\w.-]+/g, "_")}.${dialect.value}.jsonl`} data-testid="confirm" onClick=${onClose}>Download</a></footer>
  <//>`;
}
