/** Keys: each view adds its own, and `?` lists all that work now. A key never acts while text is being typed. */

import { html, signal, useEffect } from "./lib.js";
import { Dialog } from "./parts.js";

/** @typedef {{ keys: string, about: string, run: () => void }} Key */

const added = signal(/** @type {readonly { group: string, keys: readonly Key[] }[]} */ ([]));
export const helpShown = signal(false);
let before = "";
let timer = 0;

/**
 * Let keys work while a view is shown. `keys` is the key, or two that are pressed one after the other: "g t".
 * @param {string} group
 * @param {readonly Key[]} keys
 */
export function useKeys(group, keys) {
  useEffect(() => {
    const own = { group, keys };
    added.value = [...added.value, own];
    return () => {
      added.value = added.value.filter((each) => each !== own);
    };
  });
}

/** @param {EventTarget | null} target */
const isTyping = (target) => target instanceof HTMLElement && (target.isContentEditable || /^(INPUT|TEXTAREA|SELECT)$/.test(target.tagName));

addEventListener("keydown", (event) => {
  if (event.ctrlKey || event.metaKey || event.altKey || event.defaultPrevented) return;
  if (isTyping(event.target)) {
    if (event.key === "Escape") /** @type {HTMLElement} */ (event.target).blur();
    return;
  }
  if (event.key === "?") {
    helpShown.value = !helpShown.value;
    event.preventDefault();
    return;
  }
  if (document.querySelector("dialog[open]")) return;
  const both = before ? `${before} ${event.key}` : event.key;
  before = "";
  clearTimeout(timer);
  const all = added.value.flatMap((each) => each.keys);
  const found = all.findLast((each) => each.keys === both) ?? all.findLast((each) => each.keys === event.key);
  if (found) {
    event.preventDefault();
    found.run();
  } else if (all.some((each) => each.keys.startsWith(`${event.key} `))) {
    before = event.key;
    timer = setTimeout(() => (before = ""), 900);
  }
});

const NAMES = /** @type {Record<string, string>} */ ({ ArrowDown: "↓", ArrowUp: "↑", ArrowLeft: "←", ArrowRight: "→", " ": "space" });

export function Help() {
  if (!helpShown.value) return null;
  const groups = [...new Set(added.value.map((each) => each.group))];
  return html`<${Dialog} title="Keys" name="help" onClose=${() => (helpShown.value = false)}>
    <div class="help">${groups.map((group) => html`<section key=${group}><h3>${group}</h3><dl>
      ${added.value.filter((each) => each.group === group).flatMap((each) => each.keys).filter((key) => key.about).map((key) => html`
        <dt key=${key.keys}>${key.keys.split(" ").map((each) => html`<kbd>${NAMES[each] ?? (each || "space")}</kbd>`)}</dt><dd>${key.about}</dd>`)}
    </dl></section>`)}
    <section><h3>Everywhere</h3><dl><dt><kbd>?</kbd></dt><dd>show or hide this list</dd><dt><kbd>Esc</kbd></dt><dd>close, or leave a field</dd></dl></section></div>
  <//>`;
}
