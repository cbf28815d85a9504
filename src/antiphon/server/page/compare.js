/** Two threads side by side: what they share, the answer of each phase, and how each continues. */

import { get } from "./api.js";
import { follow } from "./live.js";
import { html, useEffect, useSignal } from "./lib.js";
import { Empty, LongText, PartView, Problem } from "./parts.js";
import { href } from "./route.js";
import { asJson, clock, plural, Said, visible } from "./text.js";

/** @typedef {import("./api.js").StoredRecord} StoredRecord */
/** @typedef {{ common: number, left: StoredRecord[], right: StoredRecord[], left_count: number, right_count: number,
 *   phases: { phase: string, left: string | null, left_model: string | null, right: string | null, right_model: string | null }[] | null }} Diff */

/** @param {{ left: string, right: string }} props */
export function CompareView({ left, right }) {
  const diff = useSignal(/** @type {Diff | null} */ (null));
  const error = useSignal(/** @type {string | null} */ (null));
  const all = useSignal(false);
  useEffect(() => {
    let timer = 0;
    let ended = false;
    const load = () => get(["threads", left, "diff", right])
      .then((value) => { if (!ended) { diff.value = value; error.value = null; } })
      .catch((problem) => { if (!ended) error.value = problem.message; });
    void load();
    const stop = follow({ onRecord: (record) => {
      if (record.thread_id !== left && record.thread_id !== right) return;
      timer ||= setTimeout(() => { timer = 0; void load(); }, 400);
    } });
    return () => { ended = true; clearTimeout(timer); stop(); };
  }, [left, right]);
  const found = diff.value;
  const shown = (/** @type {StoredRecord[]} */ rows) => (all.value ? rows : rows.filter((each) => (each.message.lane ?? "talk") === "talk"));
  return html`<div class="page wide" data-testid="compare">
    <h1>Compare</h1>
    <${Problem} error=${error.value} />
    <div class="sides heads"><h2><a href=${href(["thread", left])}><${Said}>${left}<//></a></h2><h2><a href=${href(["thread", right])}><${Said}>${right}<//></a></h2></div>
    ${!found ? null : html`
      <p class="note" data-testid="common">${plural(found.common, "message")} shared; then ${count2(found)}.</p>
      ${found.phases?.length ? html`<section aria-label="Phases"><h2>Phase by phase</h2>${found.phases.map((each) => html`<${PhasePair} key=${each.phase} pair=${each} />`)}</section>` : null}
      <section aria-label="Messages"><h2>Message by message</h2>
        <label class="check"><input type="checkbox" checked=${all.value} onChange=${() => (all.value = !all.value)} /> with the control and effect lanes</label>
        ${found.left.length + found.right.length === 0 ? html`<${Empty} title="The threads are the same so far"><p>What either adds appears here.</p><//>` : null}
        <div class="sides">${[["left", left, found.left], ["right", right, found.right]].map(([name, id, rows]) => html`<ol key=${name} aria-label=${`Messages of ${id}`} data-testid=${`side-${name}`}>
          ${shown(/** @type {StoredRecord[]} */ (rows)).slice(0, 300).map((each) => html`<${Item} key=${each.seq} id=${id} record=${each} />`)}</ol>`)}</div>
      </section>`}
  </div>`;
}

/** @param {Diff} found */
const count2 = (found) => `${plural(found.left_count, "message")} on the left, ${plural(found.right_count, "message")} on the right`;

/** @param {{ pair: { phase: string, left: string | null, left_model: string | null, right: string | null, right_model: string | null } }} props */
function PhasePair({ pair }) {
  const same = pair.left === pair.right;
  const [left, right] = same ? [pair.left, pair.right] : [marked(pair.left ?? "", pair.right ?? ""), marked(pair.right ?? "", pair.left ?? "")];
  const side = (/** @type {unknown} */ text, /** @type {string | null} */ model) => html`<div class="side"><p class="note">${model ?? "no model"}</p>${
    text === null ? html`<p class="note">not reached</p>` : typeof text === "string" ? html`<${LongText} text=${text} />` : html`<div class="prose" dir="auto">${text}</div>`}</div>`;
  return html`<details class="pair" open=${!same} data-same=${same}><summary>${pair.phase}${same ? html`<span class="note">the same</span>` : null}</summary>
    <div class="sides">${side(pair.left === null ? null : left, pair.left_model)}${side(pair.right === null ? null : right, pair.right_model)}</div></details>`;
}

/**
 * Return a text with the words marked that another text does not have at that place (the longest common subsequence of words).
 * @param {string} text
 * @param {string} other
 */
function marked(text, other) {
  const [ours, theirs] = [text.split(/(\s+)/), other.split(/(\s+)/)];
  if (ours.length * theirs.length > 1_000_000) return text;
  const width = theirs.length + 1;
  const longest = new Uint16Array((ours.length + 1) * width);
  for (let a = ours.length - 1; a >= 0; a--) {
    for (let b = theirs.length - 1; b >= 0; b--) {
      longest[a * width + b] = ours[a] === theirs[b] ? longest[(a + 1) * width + b + 1] + 1 : Math.max(longest[(a + 1) * width + b], longest[a * width + b + 1]);
    }
  }
  /** @type {unknown[]} */
  const nodes = [];
  let b = 0;
  for (let a = 0; a < ours.length; a++) {
    while (b < theirs.length && ours[a] !== theirs[b] && longest[a * width + b + 1] >= longest[(a + 1) * width + b]) b++;
    if (b < theirs.length && ours[a] === theirs[b]) {
      nodes.push(visible(ours[a]));
      b++;
    } else nodes.push(ours[a].trim() ? html`<mark>${visible(ours[a])}</mark>` : ours[a]);
  }
  return nodes;
}

/** @param {{ id: string, record: StoredRecord }} props */
function Item({ id, record }) {
  const { payload } = record.message;
  const text = payload.kind === "option_call" ? `${payload.option_name} ${JSON.stringify(payload.arguments)}`
    : payload.kind === "option_result" ? `${payload.option_name}: ${payload.is_error ? payload.error_message : typeof payload.result === "string" ? payload.result : asJson(payload.result)}` : null;
  return html`<li class="side-item"><p class="note"><a href=${href(["thread", id], { seq: record.seq })}>#${record.seq}</a> <${Said} class="who">${record.message.policy}<//> ${clock(record.recorded_at)}</p>
    ${payload.kind === "parts" ? payload.parts.map((part, place) => html`<${PartView} key=${place} part=${part} />`) : html`<${LongText} text=${(text ?? "").slice(0, 2000)} class="result" />`}</li>`;
}
