/** One message with everything that is stored about it: its content, its bytes, and the message in another format. */

import { choices, get, loadChoices, may } from "./api.js";
import { html, useEffect, useSignal } from "./lib.js";
import { Marks } from "./conversation.js";
import { Copy, JsonText, PartView, Problem } from "./parts.js";
import { href } from "./route.js";
import { dollars, Said, seconds, short, visible, wholeTime } from "./text.js";

/** @typedef {import("./store.js").ThreadStore} ThreadStore */

const NEAR = 50;

/** @param {{ store: ThreadStore, pick: (seq: number) => void, onFork: (seq: number) => void, onClose: () => void }} props */
export function Inspector({ store, pick, onFork, onClose }) {
  const tab = useSignal("content");
  const seq = store.selected.value;
  void store.revision.value;
  const record = seq ? store.messages.at(seq) : undefined;
  const step = seq ? store.steps.at(seq) : undefined;
  if (!seq) {
    return html`<aside class="inspector" aria-label="Message" data-testid="inspector">
      <p class="note">Select a message to see everything that is stored about it. <kbd>j</kbd> and <kbd>k</kbd> move.</p></aside>`;
  }
  const link = `${location.origin}/${href(["thread", store.id], { seq })}`;
  const names = /** @type {const} */ ({ content: "Content", raw: "Raw", dialect: "As…" });
  return html`<aside class="inspector" aria-label="Message" data-testid="inspector" data-open="true">
    <header>
      <h2>#${seq}</h2>
      <${Copy} text=${link} label="Copy link" />
      ${may("send") && store.status.value ? html`<button type="button" class="quiet small" onClick=${() => onFork(seq)} data-testid="fork-here">Fork here</button>` : null}
      <button type="button" class="quiet" aria-label="Close the message" onClick=${onClose}>✕</button>
    </header>
    <div class="segments" role="tablist" aria-label="Form of the message">
      ${Object.entries(names).map(([id, name]) => html`<button type="button" key=${id} role="tab" aria-selected=${tab.value === id}
        data-testid=${`form-${id}`} onClick=${() => (tab.value = id)}>${name}</button>`)}
    </div>
    ${!record || !step ? html`<p class="note" aria-busy="true">Loading…</p>` : null}
    ${record && step && tab.value === "content" ? html`<${Content} record=${record} step=${step} pick=${pick} />` : null}
    ${record && tab.value === "raw" ? html`<${JsonText} value=${record} label="The message as it is stored" />` : null}
    ${record && tab.value === "dialect" ? html`<${AsDialect} store=${store} seq=${seq} />` : null}
  </aside>`;
}

/** @param {{ record: import("./api.js").StoredRecord, step: import("./api.js").Step, pick: (seq: number) => void }} props */
function Content({ record, step, pick }) {
  const { message } = record;
  const payload = message.payload;
  const jump = (/** @type {number} */ seq) => html`<button type="button" class="link" onClick=${() => pick(seq)}>#${seq}</button>`;
  return html`<dl class="facts">
      <dt>From</dt><dd><${Said}>${step.sender}<//></dd>
      <dt>To</dt><dd>${step.receivers.length ? html`<${Said}>${step.receivers.join(", ")}<//>` : "everybody in the thread"}</dd>
      <dt>Lane</dt><dd>${step.lane}</dd>
      <dt>Stored</dt><dd><time datetime=${record.recorded_at}>${wholeTime(record.recorded_at)}</time></dd>
      ${step.option ? html`<dt>${step.kind === "called" ? "Calls" : "Result of"}</dt><dd><${Said} class="option">${step.option}<//></dd>` : null}
      ${step.pair ? html`<dt>${step.kind === "called" ? "Result" : "Call"}</dt><dd>${jump(step.pair)}${step.seconds === null ? "" : `, ${seconds(step.seconds)}`}</dd>` : null}
      ${step.parent ? html`<dt>During</dt><dd>${jump(step.parent)}</dd>` : null}
      ${step.usage ? html`<dt>Usage</dt><dd>${short(step.usage.input_tokens ?? 0)} in, ${short(step.usage.output_tokens ?? 0)} out${
        step.usage.cost ? `, ${dollars(step.usage.cost)}` : ""}</dd>` : null}
      <dt>Id</dt><dd class="mono"><${Said}>${message.id}<//></dd>
      <dt>Hash</dt><dd class="mono">${record.hash.slice(0, 16)}</dd>
    </dl>
    <p class="marks"><${Marks} step=${step} /></p>
    ${payload.kind === "parts" ? payload.parts.map((part, place) => html`<${PartView} key=${place} part=${part} />`) : null}
    ${payload.kind === "option_call" ? html`<h3>Arguments</h3><${JsonText} value=${payload.arguments_text ?? payload.arguments} label="Arguments" />` : null}
    ${payload.kind === "option_result" && payload.is_error
      ? html`<p class="problem">${visible(`${payload.error_type}: ${payload.error_message}`)}</p>
          <p class="note">${payload.retryable ? "Calling again may help." : "Calling again does not help."}</p>` : null}
    ${payload.kind === "option_result" && payload.result !== undefined ? html`<h3>Result</h3><${JsonText} value=${payload.result} label="Result" />` : null}
    ${payload.kind === "option_result" ? (payload.parts ?? []).map((part, place) => html`<${PartView} key=${place} part=${part} />`) : null}`;
}

/** @param {{ store: ThreadStore, seq: number }} props */
function AsDialect({ store, seq }) {
  // A result without its call is refused by most formats: so its call comes along if it is near.
  const step = store.steps.peek(seq);
  const call = step?.pair && step.kind !== "called" && seq - step.pair < NEAR ? step.pair : seq;
  const dialect = useSignal(localStorage.getItem("dialect") ?? "openai-chat");
  const found = useSignal(/** @type {{ value: unknown, losses: { what: string, reason: string }[] } | null} */ (null));
  const error = useSignal(/** @type {string | null} */ (null));
  useEffect(() => void loadChoices(), []);
  useEffect(() => {
    const ends = new AbortController();
    error.value = null;
    get(["threads", store.id, "messages"], { after: call - 1, before: seq + 1, limit: NEAR, as: dialect.value }, ends.signal)
      .then((value) => {
        if (!ends.signal.aborted) found.value = value;
      })
      .catch((problem) => {
        if (ends.signal.aborted) return;
        found.value = null;
        error.value = problem.message;
      });
    return () => ends.abort();
  }, [seq, call, dialect.value]);
  const choose = (/** @type {Event} */ event) => {
    dialect.value = /** @type {HTMLSelectElement} */ (event.target).value;
    localStorage.setItem("dialect", dialect.value);
  };
  const names = choices.value.dialects.length ? choices.value.dialects : [dialect.value];
  return html`<label class="field">Format
      <select value=${dialect.value} onChange=${choose} data-testid="dialect">${names.map((name) => html`<option key=${name} value=${name}>${name}</option>`)}</select></label>
    ${call < seq ? html`<p class="note">#${call} to #${seq}: the result with its call.</p>` : null}
    <${Problem} error=${error.value} />
    ${found.value ? html`<section aria-label="Losses" data-testid="losses">${found.value.losses.length
      ? html`<h3>${found.value.losses.length} lost in this format</h3>
          <ul class="losses">${found.value.losses.map((loss, place) => html`<li key=${place}><code>${visible(loss.what)}</code> ${visible(loss.reason)}</li>`)}</ul>`
      : html`<p class="note">Nothing is lost in this format.</p>`}</section>
      <${JsonText} value=${found.value.value} label=${`The message as ${dialect.value}`} />` : null}`;
}
