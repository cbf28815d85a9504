/** A thread as a conversation: each message as it was said, a call with its outcome, a result with its call. */

import { html } from "./lib.js";
import { LongText, PartView, Tag } from "./parts.js";
import { asJson, clock, dollars, Said, seconds, short, visible } from "./text.js";

/** @typedef {import("./api.js").Step} Step */
/** @typedef {import("./api.js").StoredRecord} StoredRecord */
/** @typedef {import("./store.js").ThreadStore} ThreadStore */

export const CONVERSATION_ROW = 84;
const BRIEF = 600;

const MARK_WORDS = /** @type {Record<string, { tone: string, words: (step: Step) => string }>} */ ({
  approval: { tone: "waits", words: () => "asks a person" },
  parked: { tone: "waits", words: () => "parked: a person must settle it" },
  retried: { tone: "rest", words: () => "tried again" },
  restarted: { tone: "rest", words: (step) => (step.host ? `restarted on ${step.host}` : "restarted") },
  taken_over: { tone: "rest", words: (step) => `taken over from ${step.taken_from} by ${step.host}` },
});

/**
 * What is unusual about a step, in words.
 * @param {Step} step
 * @returns {{ tone: string, text: string }[]}
 */
export function marksOf(step) {
  const marks = [];
  if (step.kind === "failed") marks.push({ tone: "bad", text: "failed" });
  const mark = step.mark && MARK_WORDS[step.mark];
  if (step.kind === "called" && !step.pair && !(mark && mark.tone === "rest")) marks.push({ tone: "active", text: "open" });
  if (mark) marks.push({ tone: mark.tone, text: mark.words(step) });
  return marks;
}

/** @param {{ step: Step }} props */
export const Marks = ({ step }) => marksOf(step).map(({ tone, text }) => html`<${Tag} key=${text} tone=${tone}>${visible(text)}<//>`);

/** @param {{ store: ThreadStore, seq: number, pick: (seq: number) => void }} props */
export function ConversationRow({ store, seq, pick }) {
  const step = store.steps.at(seq);
  const record = store.messages.at(seq);
  const selected = store.selected.value === seq;
  const pairOfSelected = store.columns.pair[store.selected.value] === seq;
  if (!step || !record) return html`<div class="say loading" aria-busy="true"><span class="seq">${seq}</span><div class="bar"></div></div>`;
  return html`<article
    class="say"
    data-lane=${step.lane}
    data-kind=${step.kind}
    data-mark=${step.mark}
    data-selected=${selected}
    data-pair=${pairOfSelected}
    aria-current=${selected ? "true" : undefined}
    data-testid="message"
    data-seq=${seq}
    onClick=${() => pick(seq)}
  >
    <span class="seq">${seq}</span>
    <header>
      <${Said} class="who">${step.sender}<//>
      ${step.receivers.length && step.kind !== "called" ? html`<span class="to">to <${Said}>${step.receivers.join(", ")}<//></span>` : null}
      ${step.lane === "talk" ? null : html`<span class="lane">${step.lane}</span>`}
      <${Marks} step=${step} />
      <${Cost} step=${step} />
      <time datetime=${step.at}>${clock(step.at)}</time>
    </header>
    <div class="body" style=${{ marginInlineStart: `${Math.min(step.depth, 6) * 12}px` }}><${Body} step=${step} record=${record} pick=${pick} /></div>
  </article>`;
}

/** @param {{ step: Step }} props */
function Cost({ step }) {
  const usage = step.usage;
  if (!usage) return null;
  const tokens = (usage.input_tokens ?? 0) + (usage.output_tokens ?? 0);
  return html`<span class="note">${short(tokens)} tokens${usage.cost && Number(usage.cost) ? `, ${dollars(usage.cost)}` : ""}</span>`;
}

/** @param {{ step: Step, record: StoredRecord, pick: (seq: number) => void }} props */
function Body({ step, record, pick }) {
  const payload = record.message.payload;
  if (payload.kind === "parts") return payload.parts.map((part, place) => html`<${PartView} key=${place} part=${part} />`);
  const other = (/** @type {string} */ text) =>
    html`<button type="button" class="link" onClick=${(/** @type {Event} */ event) => (event.stopPropagation(), step.pair && pick(step.pair))}>${text}</button>`;
  if (payload.kind === "option_call") {
    return html`<p class="call"><${Said} class="option">${payload.option_name}<//><span class="args">${visible(brief(payload.arguments))}</span></p>
      ${step.pair ? html`<p class="note">answered in ${seconds(step.seconds)}, ${other(`#${step.pair}`)}</p>` : null}`;
  }
  const text = payload.is_error ? `${payload.error_type}: ${payload.error_message}` : plain(payload.result);
  return html`<p class="note">${payload.is_error ? "error" : "result"} of <${Said} class="option">${payload.option_name}<//>
      ${step.pair ? html` ${other(`#${step.pair}`)}, ${seconds(step.seconds)}` : ", whose call is not here"}</p>
    <${LongText} text=${text} class="result" />
    ${(payload.parts ?? []).map((part, place) => html`<${PartView} key=${place} part=${part} />`)}`;
}

/** @param {unknown} value */
const plain = (value) => (typeof value === "string" ? value : (asJson(value).length > 200 ? asJson(value) : JSON.stringify(value) ?? "null"));

/** @param {unknown} value */
function brief(value) {
  const text = JSON.stringify(value) ?? "";
  return text.length > BRIEF ? `${text.slice(0, BRIEF)}…` : text;
}
