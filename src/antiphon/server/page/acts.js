/**
 * Acts: what a person does to a thread. Each is a dialog that says what will be written before anything is.
 *
 * An act is a value: what it does, what it writes, its fields, and the request. So every act is shown in the same way.
 */

import { ApiProblem, choices, loadChoices, post, remove } from "./api.js";
import { html, signal, useEffect, useSignal } from "./lib.js";
import { announce, Dialog, JsonText, Problem } from "./parts.js";
import { go, href } from "./route.js";
import { Said } from "./text.js";

/**
 * @typedef {{ name: string, label: string, kind?: "text" | "long" | "model" | "check" | "dialect", value?: string | boolean,
 *   hint?: string, needed?: boolean }} ActField
 * @typedef {Record<string, string | boolean>} Given
 * @typedef {{
 *   id: string, title: string, about: unknown, writes: (given: Given) => string[], verb: string, danger?: boolean,
 *   fields?: ActField[], shown?: { label: string, value: unknown }, request: (given: Given) => { method: string, steps: string[], body?: unknown },
 *   done?: (answer: any, given: Given) => string | void,
 * }} Act
 */

/** The act whose dialog is open. */
export const acting = signal(/** @type {Act | null} */ (null));
/** What was just done. */
export const toast = signal(/** @type {{ text: string, undo?: Act } | null} */ (null));
let timer = 0;

/** @param {string} text @param {Act} [undo] */
function say(text, undo) {
  toast.value = undo ? { text, undo } : { text };
  announce(text);
  clearTimeout(timer);
  timer = setTimeout(() => (toast.value = null), 8000);
}

export function ActDialog() {
  const act = acting.value;
  return act && html`<${Form} key=${act.id} act=${act} />`;
}

/** @param {{ act: Act }} props */
function Form({ act }) {
  const given = useSignal(/** @type {Given} */ (Object.fromEntries((act.fields ?? []).map((each) => [each.name, each.value ?? ""]))));
  const error = useSignal(/** @type {string | null} */ (null));
  const busy = useSignal(false);
  useEffect(() => void loadChoices(), []);
  const close = () => {
    if (acting.value === act) acting.value = null; // an answer that comes late does not close another dialog
  };
  const request = act.request(given.value);
  const send = async (/** @type {Event} */ event) => {
    event.preventDefault();
    busy.value = true;
    error.value = null;
    try {
      const answer = request.method === "DELETE" ? await remove(request.steps, /** @type {any} */ (request.body)) : await post(request.steps, request.body);
      close();
      say(act.done?.(answer, given.value) ?? "Done.", undoOf(act));
    } catch (problem) {
      error.value = problem instanceof ApiProblem ? `${problem.message} (${problem.code})` : String(problem);
    } finally {
      busy.value = false;
    }
  };
  const lines = act.writes(given.value);
  return html`<${Dialog} title=${act.title} name=${`act-${act.id}`} onClose=${close}>
    <form onSubmit=${send}>
      <div class="about">${act.about}</div>
      ${act.shown ? html`<section aria-label=${act.shown.label}><h3>${act.shown.label}</h3><${JsonText} value=${act.shown.value} label=${act.shown.label} /></section>` : null}
      ${(act.fields ?? []).map((each, place) => html`<${FieldView} key=${each.name} field=${each} first=${place === 0} given=${given} />`)}
      <section class="writes" aria-label="What will be written" data-testid="writes">
        <h3>${lines.length ? "This will be written" : "Nothing is written"}</h3>
        ${lines.length ? html`<ul>${lines.map((line) => html`<li key=${line}>${line}</li>`)}</ul>` : null}
        <details><summary>Request</summary><pre class="code">${request.method} /api/${request.steps.map(encodeURIComponent).join("/")}${
          request.body === undefined ? "" : `\n${JSON.stringify(request.body, null, 2)}`}</pre></details>
      </section>
      <${Problem} error=${error.value} />
      <footer><button type="button" onClick=${close}>Cancel</button>
        <button type="submit" class=${act.danger ? "danger" : "primary"} disabled=${busy.value} data-testid="confirm">${act.verb}</button></footer>
    </form>
  <//>`;
}

/** @param {{ field: ActField, given: { value: Given }, first: boolean }} props */
function FieldView({ field, given, first }) {
  const set = (/** @type {string | boolean} */ value) => (given.value = { ...given.value, [field.name]: value });
  const typed = (/** @type {Event} */ event) => set(/** @type {HTMLInputElement} */ (event.target).value);
  const value = given.value[field.name];
  if (field.kind === "check") {
    return html`<label class="check"><input type="checkbox" name=${field.name} checked=${!!value}
      onChange=${(/** @type {Event} */ event) => set(/** @type {HTMLInputElement} */ (event.target).checked)} /> ${field.label}</label>`;
  }
  const hint = field.hint ? html`<span class="note">${field.hint}</span>` : null;
  if (field.kind === "long") {
    return html`<label class="field">${field.label}<textarea name=${field.name} rows="4" required=${field.needed} autofocus=${first} onInput=${typed} value=${value}></textarea>${hint}</label>`;
  }
  const list = field.kind === "model" ? choices.value.models : [];
  return html`<label class="field">${field.label}<input name=${field.name} value=${value} required=${field.needed} autofocus=${first} onInput=${typed}
      list=${list.length ? `choices-${field.name}` : undefined} autocomplete="off" spellcheck=${false} />
    ${list.length ? html`<datalist id=${`choices-${field.name}`}>${list.map((each) => html`<option key=${each} value=${each}></option>`)}</datalist>` : null}${hint}</label>`;
}

export function Toast() {
  const shown = toast.value;
  return html`<div class="toast-place">${shown && html`<div class="toast" data-testid="toast">${shown.text}${
    shown.undo && html`<button type="button" onClick=${() => { acting.value = /** @type {Act} */ (shown.undo); toast.value = null; }}>${shown.undo.verb}</button>`
  }</div>`}</div>`;
}

// ---------------------------------------------------------------- the acts

const id = (/** @type {string} */ thread) => html`<${Said} class="mono">${thread}<//>`;
const MODEL_HINT = "Empty: the model that the thread has used, or the server's.";

/** @param {Act} act */
function undoOf(act) {
  const thread = act.request({}).steps[1];
  return act.id === "pause" ? resume(thread) : act.id === "resume" ? pause(thread) : undefined;
}

/** @returns {Act} */
export const ask = () => ({
  id: "ask",
  title: "New thread",
  about: html`<p>Asks a question in a new thread. This server runs it; it goes on if this page is closed.</p>`,
  fields: [
    { name: "question", label: "Question", kind: "long", needed: true },
    { name: "model", label: "Model", kind: "model", hint: "Empty: the server's own." },
  ],
  writes: () => ["A new thread with the call START_THREAD, which has your question and your name.", "Then what its agents say and do."],
  verb: "Ask",
  request: ({ question, model }) => ({ method: "POST", steps: ["threads"], body: { question, ...(model && { model }) } }),
  done: (answer) => {
    go(href(["thread", answer.thread_id]));
    return "Asked.";
  },
});

/** @param {string} thread @param {string} [question] @returns {Act} */
export const again = (thread, question = "") => ({
  id: "continue",
  title: "Continue the thread",
  about: html`<p>Asks a further question in ${id(thread)}.</p>`,
  fields: [
    { name: "question", label: "Question", kind: "long", needed: true, value: question },
    { name: "model", label: "Model", kind: "model", hint: MODEL_HINT },
  ],
  writes: () => ["The call START_THREAD in the control lane, with your question and your name: the next turn of this thread.", "Then what its agents say and do."],
  verb: "Ask",
  request: (given) => ({ method: "POST", steps: ["threads", thread, "turns"], body: { question: given.question, ...(given.model && { model: given.model }) } }),
  done: () => "Asked.",
});

/** @param {string} thread @returns {Act} */
export const pause = (thread) => ({
  id: "pause",
  title: "Pause the thread",
  about: html`<p>No new model or tool call starts in ${id(thread)}. Calls that run finish. Resume undoes it.</p>`,
  writes: () => ["The call PAUSE_THREAD in the control lane, and its result."],
  verb: "Pause",
  request: () => ({ method: "POST", steps: ["threads", thread, "pause"], body: {} }),
  done: () => "Paused.",
});

/** @param {string} thread @returns {Act} */
export const resume = (thread) => ({
  id: "resume",
  title: "Resume the thread",
  about: html`<p>${id(thread)} continues where it stopped. Calls that have an answer are not made again.</p>`,
  fields: [{ name: "model", label: "Model", kind: "model", hint: MODEL_HINT }],
  writes: () => ["The call RESUME_THREAD in the control lane, and its result.", "Then what its agents say and do."],
  verb: "Resume",
  request: ({ model }) => ({ method: "POST", steps: ["threads", thread, "resume"], body: model ? { model } : {} }),
  done: () => "Resumed.",
});

/** @param {string} thread @returns {Act} */
export const terminate = (thread) => ({
  id: "terminate",
  title: "Terminate the thread",
  about: html`<p>Ends ${id(thread)} permanently: calls that run are cancelled, none starts again. This cannot be undone. A fork can continue from any of its messages.</p>`,
  fields: [{ name: "reason", label: "Reason", value: "user_request", needed: true }],
  writes: ({ reason }) => [`The call TERMINATE_THREAD with the reason “${reason ?? ""}” in the control lane, and its result.`, "An error result for each call that is open."],
  verb: "Terminate",
  danger: true,
  request: ({ reason }) => ({ method: "POST", steps: ["threads", thread, "terminate"], body: { reason } }),
  done: () => "Terminated.",
});

/** @param {string} thread @param {{ at?: number, chain: boolean }} place @returns {Act} */
export const fork = (thread, { at, chain }) => ({
  id: "fork",
  title: at ? `Fork after #${at}` : "Fork at the end",
  about: html`<p>Makes a branch that shares the messages of ${id(thread)} up to this place. The thread itself does not change.</p>`,
  fields: [
    { name: "at", label: "Last shared message", value: at ? String(at) : "", hint: chain ? "A number, or a phase: its messages and later ones are not shared. Empty: all." : "A number. Empty: all." },
    { name: "into", label: "Name of the branch", hint: "Empty: a new one." },
    ...(chain ? /** @type {ActField[]} */ ([
      { name: "go_on", label: "Continue the branch at once", kind: "check", value: true },
      { name: "model", label: "Model of the branch", kind: "model", hint: MODEL_HINT },
    ]) : []),
  ],
  writes: (given) => [
    `A new thread${given.into ? ` “${given.into}”` : ""} with a reference to the shared messages; they are not copied.`,
    "In the branch, an error result for each call that is open at this place.",
    ...(given.go_on ? [`Then what its agents say and do${given.model ? `, with ${given.model}` : ""}.`] : []),
  ],
  verb: "Fork",
  request: (given) => ({ method: "POST", steps: ["threads", thread, "fork"], body: {
    ...(given.at && { at: given.at }), ...(given.into && { into: given.into }),
    ...(given.go_on && { go_on: true, ...(given.model && { model: given.model }) }) } }),
  done: (answer) => {
    go(href(["compare", thread, answer.thread_id]));
    return "The branch is made.";
  },
});

/** @param {string} thread @param {number} messages @returns {Act} */
export const erase = (thread, messages) => ({
  id: "delete",
  title: "Delete the thread",
  about: html`<p>Deletes ${id(thread)} and its ${messages} messages permanently. This cannot be undone. An export keeps a copy.</p>`,
  fields: [
    { name: "with_branches", label: "Delete its branches too", kind: "check", value: false },
  ],
  writes: () => ["Nothing is added: the rows of the thread are removed from the ledger."],
  verb: "Delete permanently",
  danger: true,
  request: ({ with_branches: all }) => ({ method: "DELETE", steps: ["threads", thread], body: all ? { with_branches: true } : undefined }),
  done: (answer) => {
    go("#/");
    return `${answer.deleted.length} deleted.`;
  },
});

/** @param {string} thread @returns {Act} */
export const rerun = (thread) => ({
  id: "rerun",
  title: "Run again on this code",
  about: html`<p>Runs ${id(thread)} again in memory, with the recorded answers of models and tools, and says where the installed code behaves differently.</p>`,
  writes: () => [],
  verb: "Run again",
  request: () => ({ method: "POST", steps: ["threads", thread, "rerun"], body: {} }),
  done: (answer) => (answer.parts_at === null ? "The same on the installed code." : `Different from #${answer.parts_at} on: ${answer.what}; ${answer.reason}`),
});

/** @param {import("./api.js").Approval} approval @param {boolean} approved @param {string} principal @returns {Act} */
export const answer = (approval, approved, principal) => ({
  id: approved ? "approve" : "deny",
  title: approved ? `Approve ${approval.tool}` : `Deny ${approval.tool}`,
  about: html`<p><${Said}>${approval.agent}<//> wants to call <${Said} class="option">${approval.tool}<//> in ${id(approval.thread_id)}. ${
    approved ? "Exactly this call is approved, no other." : "The agent is told that a person denied it."}</p>`,
  shown: { label: "Arguments of the call", value: approval.arguments },
  fields: [{ name: "reason", label: "Reason", hint: approved ? "Optional; stored with the answer." : "Optional; the agent reads it." }],
  writes: ({ reason }) => [
    `In the thread: the result of the approval, ${approved ? "approved" : "denied"} by ${principal}${reason ? `, with the reason “${reason}”` : ""}.`,
    `It is bound to the digest ${approval.digest.slice(0, 16)}… of this call.`,
  ],
  verb: approved ? "Approve" : "Deny",
  danger: !approved,
  request: ({ reason }) => ({ method: "POST", steps: ["approvals", approval.id], body: { approved, digest: approval.digest, ...(reason && { reason }) } }),
  done: () => (approved ? "Approved." : "Denied."),
});

/** @param {import("./api.js").Parked} parked @param {"result" | "error" | "retry"} outcome @returns {Act} */
export const settle = (parked, outcome) => ({
  id: "settle",
  title: { result: "It ran: record its result", error: "It failed: record the error", retry: "It did not run: let it run again" }[outcome],
  about: html`<p>The call <${Said} class="option">${parked.option || parked.invocation_id}<//> in ${id(parked.thread_id)} started, and its outcome is unknown. Look at the other side first.</p>`,
  shown: { label: "Arguments of the call", value: parked.arguments },
  fields: outcome === "retry" ? [] : [{ name: "said", label: outcome === "result" ? "Result, as JSON or text" : "Error", kind: "long", needed: true }],
  writes: ({ said }) => [
    outcome === "retry" ? "In the thread: that the call did not run. Then it runs again." : `In the thread: the ${outcome} of the call${said ? `, ${String(said).slice(0, 80)}` : ""}. It does not run again.`,
  ],
  verb: outcome === "retry" ? "Run again" : "Record",
  danger: outcome === "retry",
  request: ({ said }) => ({ method: "POST", steps: ["parked", parked.thread_id, parked.invocation_id],
    body: outcome === "retry" ? { retry: true } : outcome === "error" ? { error: String(said ?? "") } : { result: asValue(String(said ?? "")) } }),
  done: () => "Recorded.",
});

/** @param {string} text */
function asValue(text) {
  try {
    return JSON.parse(text);
  } catch {
    return text;
  }
}
