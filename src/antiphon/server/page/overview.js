/** The ledger as a whole: threads by state, throughput, errors, latency and cost over time and by model, the cluster, actors, dead letters. */

import { get } from "./api.js";
import { Cluster } from "./cluster.js";
import { follow } from "./live.js";
import { html, useEffect, useSignal } from "./lib.js";
import { Empty, Figure, now, Problem, StatusMark } from "./parts.js";
import { href } from "./route.js";
import { ago, count, dollars, plural, Said, seconds, short, visible } from "./text.js";

/** @typedef {{ messages: number, errors: number, requests: number, input_tokens: number, output_tokens: number, cost: number,
 *   answered: number, seconds: number, p50: number | null, p95: number | null }} Sums */

/**
 * A state with its threads behind it. Threads without a status cannot be filtered for.
 * @param {{ status: string, children: unknown }} props
 */
const State = ({ status, children }) => (["", "open"].includes(status) ? html`<span>${children}</span>` : html`<a href=${href([], { status })}>${children}</a>`);

export function OverviewView() {
  const data = useSignal(/** @type {any} */ (null));
  const error = useSignal(/** @type {string | null} */ (null));
  useEffect(() => {
    let timer = 0;
    let ended = false;
    const load = async () => {
      timer = 0;
      try {
        const [overview, cluster, actors, letters, health] = await Promise.all(["overview", "cluster", "actors", "dead-letters", "health"].map((name) => get([name])));
        if (!ended) {
          data.value = { overview, cluster, ...actors, ...letters, health };
          error.value = null;
        }
      } catch (problem) {
        if (!ended) error.value = problem instanceof Error ? problem.message : String(problem);
      }
    };
    // A host that dies writes nothing, so the cluster is read again without a record.
    const look = async () => {
      const cluster = await get(["cluster"]).catch(() => null); // the next load says what is wrong
      if (!ended && cluster && data.value) data.value = { ...data.value, cluster };
    };
    const soon = () => (timer ||= setTimeout(load, 1000));
    void load();
    const stop = follow({ onRecord: soon, onOpen: soon });
    const slow = setInterval(load, 15_000);
    const quick = setInterval(look, 3_000);
    return () => {
      ended = true;
      stop();
      clearTimeout(timer);
      clearInterval(slow);
      clearInterval(quick);
    };
  }, []);
  if (!data.value) return html`<div class="page" aria-busy="true"><h1>Overview</h1><${Problem} error=${error.value} /></div>`;
  const { overview, cluster, actors, letters, health } = data.value;
  const states = Object.entries(overview.threads).sort((a, b) => Number(b[1]) - Number(a[1]));
  const total = /** @type {Sums} */ (overview.total);
  return html`<div class="page wide overview" data-testid="overview">
    <h1>Overview</h1>
    <${Problem} error=${error.value} />
    <section aria-label="Totals" class="figures">
      <${Figure} name="Messages" value=${short(total.messages)} />
      <${Figure} name="Model requests" value=${short(total.requests)} />
      <${Figure} name="Errors" value=${short(total.errors)} tone=${total.errors ? "bad" : ""} />
      <${Figure} name="Tokens" value=${short(total.input_tokens + total.output_tokens)} />
      <${Figure} name="Cost" value=${dollars(total.cost)} />
    </section>
    <section aria-label="Threads by state"><h2>Threads by state</h2>
      ${states.length ? html`<ul class="states" data-testid="states">${states.map(([status, number]) => html`<li key=${status}>
        <${State} status=${status}><${StatusMark} status=${status || null} open=${status === "open" ? 1 : 0} /> <b>${count(Number(number))}</b><//></li>`)}</ul>`
      : html`<${Empty} title="No threads yet"><p>Run one: <code>antiphon run "Why is the sky blue?"</code></p><//>`}
    </section>
    <${Cluster} cluster=${cluster} />
    <section aria-label="Over time"><h2>Last 48 hours</h2><div class="charts">
      <${Chart} name="Messages an hour" hours=${overview.by_hour} of=${(/** @type {Sums} */ sums) => sums.messages} show=${short} />
      <${Chart} name="Errors an hour" hours=${overview.by_hour} of=${(/** @type {Sums} */ sums) => sums.errors} show=${short} tone="bad" />
      <${Chart} name="Answer time" hours=${overview.by_hour} of=${(/** @type {Sums} */ sums) => (sums.answered ? sums.seconds / sums.answered : 0)} show=${seconds} />
      <${Chart} name="Cost an hour" hours=${overview.by_hour} of=${(/** @type {Sums} */ sums) => sums.cost} show=${dollars} />
    </div></section>
    <section aria-label="Models"><h2>Models</h2><${Models} models=${overview.by_model} /></section>
    <section aria-label="Actors"><h2>Actors of this server</h2><${Actors} actors=${actors} /></section>
    <section aria-label="Dead letters"><h2>Dead letters</h2><${DeadLetters} letters=${letters} /></section>
    <p class="note">antiphon ${health.version}; ${plural(health.streams, "event stream")}, ${plural(health.runs, "thread")} at work here.</p>
  </div>`;
}

const HOURS = 48;
const WIDE = 480;
const HIGH = 72;

/**
 * Bars of the last hours.
 * @param {{ name: string, hours: Record<string, Sums>, of: (sums: Sums) => number, show: (value: number) => string, tone?: string }} props
 */
function Chart({ name, hours, of, show, tone = "" }) {
  const byHour = new Map(Object.entries(hours).map(([at, sums]) => [Date.parse(at), of(sums)]));
  const last = Math.floor(now.value / 3_600_000) * 3_600_000;
  const values = Array.from({ length: HOURS }, (_, place) => byHour.get(last - (HOURS - 1 - place) * 3_600_000) ?? 0);
  const most = Math.max(...values);
  const step = WIDE / HOURS;
  return html`<figure class="chart" data-tone=${tone}>
    <figcaption>${name}<b>${most ? `${values[HOURS - 1] ? show(values[HOURS - 1]) : 0} now, ${show(most)} at most` : "none"}</b></figcaption>
    <svg viewBox=${`0 0 ${WIDE} ${HIGH}`} preserveAspectRatio="none" role="img" aria-label=${`${name}: ${show(values[HOURS - 1])} in this hour, ${show(most)} at most`}>
      <line x1="0" x2=${WIDE} y1=${HIGH - 0.5} y2=${HIGH - 0.5} />
      ${values.map((value, place) => value > 0 && html`<rect key=${place} x=${place * step + 1} width=${step - 2} y=${HIGH - Math.max(2, (value / most) * (HIGH - 4))} height=${Math.max(2, (value / most) * (HIGH - 4))} />`)}
    </svg>
    <div class="chart-axis" aria-hidden="true"><span>48 h ago</span><span>24 h</span><span>now</span></div>
  </figure>`;
}

/** @param {{ models: Record<string, Sums> }} props */
function Models({ models }) {
  const rows = Object.entries(models).sort((a, b) => Number(b[1].cost) - Number(a[1].cost) || b[1].requests - a[1].requests);
  if (!rows.length) return html`<p class="note">No model was asked yet.</p>`;
  return html`<div class="table-box"><table class="numbers" data-testid="models"><thead><tr><th scope="col">Model</th><th scope="col">Requests</th><th scope="col">Errors</th><th scope="col">Median</th><th scope="col">95 %</th><th scope="col">Tokens in</th><th scope="col">Tokens out</th><th scope="col">Cost</th></tr></thead>
    <tbody>${rows.map(([name, sums]) => html`<tr key=${name}><th scope="row"><a href=${href([], { model: name })}><${Said}>${name}<//></a></th><td>${count(sums.requests)}</td><td data-tone=${sums.errors ? "bad" : ""}>${count(sums.errors)}</td>
      <td>${seconds(sums.p50)}</td><td>${seconds(sums.p95)}</td><td>${short(sums.input_tokens)}</td><td>${short(sums.output_tokens)}</td><td>${dollars(sums.cost)}</td></tr>`)}</tbody></table></div>`;
}

/** @param {{ actors: { address: string, supervisor: string | null, state: string, restarts: number, waiting: number }[] }} props */
function Actors({ actors }) {
  if (!actors.length) return html`<p class="note">No thread runs in this server now. The actors of a host are in its own process.</p>`;
  return html`<div class="table-box"><table data-testid="actors"><thead><tr><th scope="col">Actor</th><th scope="col">State</th><th scope="col">Restarts</th><th scope="col">Waiting</th><th scope="col">Supervisor</th></tr></thead>
    <tbody>${actors.map((each) => html`<tr key=${each.address}><th scope="row"><${Said}>${each.address}<//></th><td>${each.state}</td><td data-tone=${each.restarts ? "waits" : ""}>${count(each.restarts)}</td><td>${count(each.waiting)}</td><td>${each.supervisor ?? ""}</td></tr>`)}</tbody></table></div>`;
}

/** @param {{ letters: { thread_id: string | null, message_id: string, to: string, code: string, reason: string, at: string }[] }} props */
function DeadLetters({ letters }) {
  if (!letters.length) return html`<p class="note">Every message of the threads that ran here has reached its receiver.</p>`;
  return html`<ul class="letters" data-testid="letters">${letters.map((each) => html`<li key=${each.message_id}><${Said} class="mono">${each.to}<//> <span class="note">${each.code}, ${ago(each.at, now.value)}${
    each.thread_id ? html`, <a href=${href(["thread", each.thread_id])}>${each.thread_id}</a>` : null}</span> ${visible(each.reason)}</li>`)}</ul>`;
}
