/**
 * Where the reader is: the fragment of the address, as a path and parameters. So a link leads to any message, and the server
 * never sees the id of a thread in a log of addresses.
 *
 * `#code=CODE` is no place: it is a one-time code, which `takeCode` removes from the address before anything else happens.
 */

import { signal } from "./lib.js";

/** @typedef {{ steps: string[], query: URLSearchParams }} Route */

/** @returns {Route} */
function read() {
  const [path, query] = location.hash.replace(/^#\/?/, "").split("?", 2);
  let steps;
  try {
    steps = path.split("/").filter(Boolean).map(decodeURIComponent);
  } catch {
    steps = ["not-found"]; // a per cent sign without its digits
  }
  return { steps, query: new URLSearchParams(query ?? "") };
}

export const route = signal(read());

addEventListener("hashchange", () => {
  route.value = read();
});

/**
 * Return the address of a place; parameters without a value are left out.
 * @param {string[]} steps
 * @param {Record<string, string | number | null | undefined>} [query]
 */
export function href(steps, query = {}) {
  const given = Object.entries(query).filter(([, value]) => value !== null && value !== undefined && value !== "");
  const text = new URLSearchParams(given.map(([name, value]) => [name, String(value)])).toString();
  return `#/${steps.map(encodeURIComponent).join("/")}${text && `?${text}`}`;
}

/**
 * Go to a place, so that the browser's back button returns.
 * @param {string} to
 */
export function go(to) {
  location.hash = to;
}

/**
 * Change the address without a new entry in the history: a selection is not a place to go back to.
 * @param {string} to
 */
export function replace(to) {
  if (location.hash === to) return;
  history.replaceState(null, "", to);
  route.value = read();
}

/**
 * Take a one-time code out of the address, and leave the place that it leads to.
 * @returns {string | null}
 */
export function takeCode() {
  const given = new URLSearchParams(location.hash.slice(1));
  const code = location.hash.startsWith("#/") ? null : given.get("code");
  if (code !== null) {
    const thread = given.get("thread");
    history.replaceState(null, "", thread === null ? "#/" : href(["thread", thread]));
    route.value = read();
  }
  return code;
}
