/** Small pieces that every view uses: status, buttons, empty states, text that can be long, media on demand, announcements. */

import { html, signal, useLayoutEffect, useRef, useSignal } from "./lib.js";
import { asJson, Said, visible } from "./text.js";

/** @typedef {import("./api.js").Part} Part */

const LONG = 4000;

/** What a screen reader is told next. */
export const announced = signal("");

/** @param {string} text */
export function announce(text) {
  announced.value = announced.value === text ? `${text}\u00a0` : text;
}

/** The time, for "3 s ago"; it changes twice a minute. */
export const now = signal(Date.now());
setInterval(() => {
  now.value = Date.now();
}, 15_000);

const TONES = /** @type {Record<string, string>} */ ({
  running: "active",
  processing: "active",
  created: "active",
  completed: "done",
  failed: "bad",
  terminated: "bad",
  stopped: "bad",
  paused: "waits",
  waiting: "waits",
  parked: "waits",
});

/** @param {{ status: string | null, open?: number }} props */
export function StatusMark({ status, open = 0 }) {
  const name = status || (open ? "open" : "at rest");
  return html`<span class="status" data-tone=${TONES[name] ?? (open ? "active" : "rest")}><i aria-hidden="true"></i>${name}</span>`;
}

/** @param {{ tone: string, children: unknown }} props */
export const Tag = ({ tone, children }) => html`<span class="tag" data-tone=${tone}>${children}</span>`;

/** @param {{ title: string, children?: unknown, name?: string }} props */
export function Empty({ title, children, name = "empty" }) {
  return html`<div class="empty" data-testid=${name}><h2>${title}</h2>${children}</div>`;
}

/**
 * A number with its name, and what it says.
 * @param {{ name: string, value: string, note?: string, tone?: string }} props
 */
export const Figure = ({ name, value, note = "", tone = "" }) =>
  html`<div class="figure" data-tone=${tone}><span>${name}</span><b>${value}</b>${note && html`<small>${note}</small>`}</div>`;

/**
 * A command that can be copied.
 * @param {{ children: string }} props
 */
export function Command({ children }) {
  return html`<div class="command"><code>${children}</code><${Copy} text=${children} /></div>`;
}

/**
 * Copy a text, and say whether the browser allows it.
 * @param {string} text
 */
export async function copied(text) {
  try {
    await navigator.clipboard.writeText(text);
    announce("Copied.");
    return true;
  } catch {
    announce("The browser does not allow copying here.");
    return false;
  }
}

/** @param {{ text: string, label?: string }} props */
export function Copy({ text, label = "Copy" }) {
  const done = useSignal(false);
  const copy = async () => {
    if (!(await copied(text))) return;
    done.value = true;
    setTimeout(() => (done.value = false), 1500);
  };
  return html`<button type="button" class="quiet small" onClick=${copy}>${done.value ? "Copied" : label}</button>`;
}

/** @param {{ error: string | null | undefined }} props */
export const Problem = ({ error }) => (error ? html`<p class="problem" role="alert">${visible(error)}</p>` : null);

/**
 * A text of others; a long one is cut, and whole on demand.
 * @param {{ text: string, class?: string }} props
 */
export function LongText({ text, class: name = "prose" }) {
  const whole = useSignal(false);
  const cut = text.length > LONG && !whole.value;
  const scrolls = name !== "prose" && (text.length > 300 || text.split("\n", 10).length > 8); // then keys must be able to
  return html`<div class=${name} dir="auto" tabindex=${scrolls ? 0 : undefined}>${visible(cut ? text.slice(0, LONG) : text)}${
    cut && html`<button type="button" class="quiet small" onClick=${() => (whole.value = true)}>… Show all ${Math.ceil(text.length / 1000)} KB</button>`
  }</div>`;
}

/** @param {{ value: unknown, label?: string }} props */
export function JsonText({ value, label = "JSON" }) {
  return html`<div role="group" aria-label=${label}><${LongText} text=${typeof value === "string" ? value : asJson(value)} class="code" /></div>`;
}

/** @param {{ part: Part }} props */
export function PartView({ part }) {
  switch (part.kind) {
    case "text":
      return html`<${LongText} text=${part.text} />${
        part.citations?.length ? html`<p class="note">${part.citations.length} cited</p>` : null
      }`;
    case "reasoning":
      return html`<details class="reasoning"><summary>Reasoning${part.text ? "" : ", encrypted"}</summary>${
        part.text ? html`<${LongText} text=${part.text} />` : html`<p class="note">The provider keeps its text.</p>`
      }</details>`;
    case "media":
      return html`<${Media} part=${part} />`;
    case "data":
      return html`<${JsonText} value=${part.data} label="Data" />`;
    default:
      return html`<p class="note">Only ${"dialect" in part ? part.dialect : "another format"} has a word for this part.</p>
        <${JsonText} value=${"value" in part ? part.value : part} label="Foreign part" />`;
  }
}

/**
 * A medium, on demand. Only one whose bytes are in the message is ever shown; an address is text, and nothing is fetched from it.
 * @param {{ part: Extract<Part, { kind: "media" }> }} props
 */
function Media({ part }) {
  const shown = useSignal(false);
  const inside = part.url.startsWith("data:");
  const isImage = inside && /^data:image\/(png|jpeg|gif|webp|avif)[;,]/.test(part.url);
  const size = inside ? `${Math.ceil((part.url.length * 0.75) / 1024)} KB` : "";
  return html`<div class="media">
    <span>${part.modality}${part.mime ? `, ${part.mime}` : ""}${size && `, ${size}`}</span>
    ${part.prompt_hint ? html` <${Said}>${part.prompt_hint}<//>` : null}
    ${isImage && !shown.value ? html`<button type="button" onClick=${() => (shown.value = true)}>Show the image</button>` : null}
    ${isImage && shown.value ? html`<img src=${part.url} alt=${part.prompt_hint ?? "An image of this message"} />` : null}
    ${inside ? null : html`<code class="address">${visible(part.url.slice(0, 500))}</code>`}
  </div>`;
}

/**
 * A modal dialog. It opens when it is rendered.
 * @param {{ title: string, onClose: () => void, children: unknown, name?: string, wide?: boolean }} props
 */
export function Dialog({ title, onClose, children, name, wide }) {
  const ref = useRef(/** @type {HTMLDialogElement | null} */ (null));
  useLayoutEffect(() => {
    const dialog = ref.current;
    const before = document.activeElement;
    if (dialog && !dialog.open) dialog.showModal();
    return () => {
      dialog?.close();
      if (before instanceof HTMLElement && before.isConnected) before.focus(); // it is gone before the browser can do it
    };
  }, []);
  const outside = (/** @type {MouseEvent} */ event) => event.target === ref.current && onClose();
  const closed = () => ref.current && onClose(); // a browser may close it without asking
  return html`<dialog ref=${ref} class=${wide ? "wide" : ""} aria-labelledby="dialog-title" data-testid=${name}
    onCancel=${(/** @type {Event} */ event) => (event.preventDefault(), onClose())} onClose=${closed} onMouseDown=${outside}>
    <header><h2 id="dialog-title">${title}</h2>
      <button type="button" class="quiet" aria-label="Close" onClick=${onClose}>✕</button></header>
    ${children}
  </dialog>`;
}
