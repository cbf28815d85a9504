/** The replay: a scrubber over the messages of a thread. All views show the thread as it was at that moment; nothing is written. */

import { html, useEffect, useSignal } from "./lib.js";
import { clock, plural } from "./text.js";

const SPEEDS = [1, 4, 16, 64];
const LONGEST = 1500;
const SHORTEST = 60;

/** @param {{ store: import("./store.js").ThreadStore, onEnd: () => void, onMove: () => void }} props */
export function ReplayBar({ store, onEnd, onMove }) {
  const playing = useSignal(false);
  const speed = useSignal(4);
  const end = store.head.value;
  const at = store.upto.value || end;

  useEffect(() => {
    store.upto.value = 1;
    playing.value = !matchMedia("(prefers-reduced-motion: reduce)").matches;
    onMove();
    return () => {
      store.upto.value = 0;
    };
  }, []);

  useEffect(() => {
    if (!playing.value) return undefined;
    const { columns } = store;
    const here = columns.at[at];
    const next = columns.at[at + 1];
    const apart = here && next ? (next - here) / speed.value : 0;
    const timer = setTimeout(() => {
      if (at >= store.head.value) playing.value = false;
      else move(at + 1);
    }, Math.min(LONGEST, Math.max(SHORTEST / Math.sqrt(speed.value), apart)));
    return () => clearTimeout(timer);
  }, [playing.value, at, speed.value, end]);

  const move = (/** @type {number} */ seq) => {
    store.upto.value = Math.max(1, Math.min(seq, store.head.value));
    onMove();
  };
  const scrub = (/** @type {Event} */ event) => {
    playing.value = false;
    move(Number(/** @type {HTMLInputElement} */ (event.target).value));
  };
  const time = store.columns.at[at] ? clock(store.columns.at[at]) : "";
  return html`<section class="replay" aria-label="Replay" data-testid="replay">
    <button type="button" data-testid="play" aria-label=${playing.value ? "Stop" : "Play"} onClick=${() => { if (at >= end) move(1); playing.value = !playing.value; }}>${playing.value ? "❚❚" : "▶"}</button>
    <button type="button" aria-label="One message back" onClick=${() => { playing.value = false; move(at - 1); }}>‹</button>
    <button type="button" aria-label="One message on" onClick=${() => { playing.value = false; move(at + 1); }}>›</button>
    <input type="range" min="1" max=${end} value=${at} onInput=${scrub} aria-label="Moment of the replay" aria-valuetext=${`Message ${at} of ${end}, ${time}`} data-testid="scrubber" />
    <output data-testid="replay-at">#${at} <span class="note">of ${plural(end, "message")}${time && `, ${time}`}</span></output>
    <label class="speed">Speed <select value=${speed.value} onChange=${(/** @type {Event} */ event) => (speed.value = Number(/** @type {HTMLSelectElement} */ (event.target).value))}>
      ${SPEEDS.map((each) => html`<option key=${each} value=${each}>${each}×</option>`)}</select></label>
    <button type="button" onClick=${onEnd}>End the replay</button>
  </section>`;
}
