/**
 * Text that others wrote, and numbers and times, as a reader sees them.
 *
 * Characters that cannot be seen, or that change the order in which others are shown, are replaced by their names: so what is
 * approved is what is seen. Everything becomes text nodes.
 */

import { html } from "./lib.js";

/** Controls, format characters, invisible letters, and spaces that are not what they seem. */
const HIDDEN =
  // eslint-disable-next-line no-control-regex, no-misleading-character-class
  /[\u0000-\u0008\u000b-\u001f\u007f-\u009f\u00ad\u034f\u061c\u115f\u1160\u17b4\u17b5\u180b-\u180f\u200b-\u200f\u2028-\u202e\u2060-\u206f\u3164\ufe00-\ufe0f\ufeff\uffa0\ufff0-\ufffb]|[\u{e0000}-\u{e0fff}]|\u{1d173}|[\u{1d174}-\u{1d17a}]|[\ud800-\udfff]/gu;

/** @type {Record<number, string>} */
const NAMES = {
  0x00: "NUL",
  0x07: "BEL",
  0x08: "BS",
  0x0d: "CR",
  0x1b: "ESC",
  0x7f: "DEL",
  0xad: "soft hyphen",
  0x61c: "ALM",
  0x200b: "ZWSP",
  0x200c: "ZWNJ",
  0x200d: "ZWJ",
  0x200e: "LRM",
  0x200f: "RLM",
  0x2028: "line separator",
  0x2029: "paragraph separator",
  0x202a: "LRE",
  0x202b: "RLE",
  0x202c: "PDF",
  0x202d: "LRO",
  0x202e: "RLO",
  0x2060: "WJ",
  0x2066: "LRI",
  0x2067: "RLI",
  0x2068: "FSI",
  0x2069: "PDI",
  0x3164: "Hangul filler",
  0xfe0f: "VS16",
  0xfeff: "BOM",
};

const EMOJI = /\p{Extended_Pictographic}/u;

/**
 * Whether a joiner or a variation selector only holds an emoji together.
 * @param {string} text
 * @param {number} at
 * @param {number} code
 */
function inEmoji(text, at, code) {
  if (code !== 0xfe0f && code !== 0x200d) return false;
  return EMOJI.test(text.slice(Math.max(0, at - 2), at));
}

/**
 * Return a text as nodes, in which hidden characters are named.
 * @param {string} text
 */
export function visible(text) {
  /** @type {unknown[]} */
  const nodes = [];
  let end = 0;
  for (const found of text.matchAll(HIDDEN)) {
    const code = /** @type {number} */ (found[0].codePointAt(0));
    if (inEmoji(text, found.index, code)) continue;
    if (found.index > end) nodes.push(text.slice(end, found.index));
    const hex = code.toString(16).toUpperCase().padStart(4, "0");
    nodes.push(html`<span class="hidden-char" title=${`Invisible character U+${hex}`}>${NAMES[code] ?? `U+${hex}`}</span>`);
    end = found.index + found[0].length;
  }
  if (end === 0) return text;
  nodes.push(text.slice(end));
  return nodes;
}

/**
 * A name or another short text of others, kept apart from the direction of what is around it.
 * @param {{ children: string, class?: string }} props
 */
export function Said({ children, class: name }) {
  return html`<bdi class=${name}>${visible(String(children ?? ""))}</bdi>`;
}

/**
 * Return a value as JSON text with indentation.
 * @param {unknown} value
 */
export const asJson = (value) => JSON.stringify(value, null, 2) ?? "";

// ---------------------------------------------------------------- numbers and times

const WHOLE = new Intl.NumberFormat("en");

/** @param {number} value */
export const count = (value) => WHOLE.format(value);

/**
 * @param {number} value
 * @param {string} one
 * @param {string} [many]
 */
export const plural = (value, one, many = `${one}s`) => `${count(value)} ${value === 1 ? one : many}`;

/**
 * Return a large number in few characters: 12.3k.
 * @param {number} value
 */
export function short(value) {
  if (value < 10_000) return count(value);
  const [divided, unit] = value < 1e6 ? [value / 1e3, "k"] : value < 1e9 ? [value / 1e6, "M"] : [value / 1e9, "G"];
  return `${divided < 100 ? divided.toFixed(1) : Math.round(divided)}${unit}`;
}

/**
 * Return dollars with as many digits as say something.
 * @param {number | string} value
 */
export function dollars(value) {
  const given = Number(value);
  if (given === 0) return "$0";
  return `$${given < 0.01 ? given.toPrecision(2) : given < 100 ? given.toFixed(2) : count(Math.round(given))}`;
}

/**
 * Return a time span in few characters.
 * @param {number | null | undefined} value
 */
export function seconds(value) {
  if (value === null || value === undefined || Number.isNaN(value)) return "";
  if (value < 0.0095) return `${(value * 1000).toFixed(1)} ms`;
  if (value < 1) return `${Math.round(value * 1000)} ms`;
  if (value < 60) return `${value.toFixed(1)} s`;
  if (value < 3600) return `${Math.floor(value / 60)} min ${Math.floor(value % 60)} s`;
  if (value < 86400) return `${Math.floor(value / 3600)} h ${Math.floor((value % 3600) / 60)} min`;
  return `${Math.floor(value / 86400)} d ${Math.floor((value % 86400) / 3600)} h`;
}

const CLOCK = new Intl.DateTimeFormat("en-GB", { hour: "2-digit", minute: "2-digit", second: "2-digit" });
const DAY = new Intl.DateTimeFormat("en-GB", { day: "numeric", month: "short" });
const WHOLE_TIME = new Intl.DateTimeFormat("en-GB", { dateStyle: "medium", timeStyle: "long" });

/** @param {string | number} at */
export const clock = (at) => CLOCK.format(new Date(at));

/** @param {string | number} at */
export const wholeTime = (at) => WHOLE_TIME.format(new Date(at));

/**
 * Return how long ago something was.
 * @param {string} at
 * @param {number} now
 */
export function ago(at, now) {
  const passed = (now - new Date(at).getTime()) / 1000;
  if (passed < 5) return "now";
  if (passed < 60) return `${Math.floor(passed)} s ago`;
  if (passed < 3600) return `${Math.floor(passed / 60)} min ago`;
  if (passed < 86400) return `${Math.floor(passed / 3600)} h ago`;
  return DAY.format(new Date(at));
}
