/** A thread as a sequence diagram: a column for each participant, a row with an arrow for each message. */

import { html } from "./lib.js";
import { Marks } from "./conversation.js";
import { ThreadStore } from "./store.js";
import { clock, Said, seconds, visible } from "./text.js";

export const SEQUENCE_ROW = 44;
const GUTTER = 112;
const NARROW_GUTTER = 48;
const LEAST = 104;

/**
 * The columns: participants of the messages whose lanes are shown, in the order in which they appear.
 * @param {ThreadStore} store
 */
export function participants(store) {
  void store.revision.value;
  const { columns } = store;
  /** @type {Set<number>} */
  const found = new Set();
  for (let seq = 1; seq <= store.head.value; seq++) {
    if (columns.at[seq] && store.isShown(seq) && !store.isNote(seq)) {
      found.add(columns.sender[seq]);
      if (columns.receiver[seq] >= 0) found.add(columns.receiver[seq]);
    }
  }
  return [...found].map((at) => store.names[at]);
}

/**
 * @param {string[]} names
 * @param {number} room The width of the view.
 */
export function layout(names, room) {
  const gutter = room < 640 ? NARROW_GUTTER : GUTTER;
  const column = Math.max(LEAST, Math.floor((room - gutter) / Math.max(1, names.length)));
  return { gutter, column, width: gutter + column * names.length, at: new Map(names.map((name, place) => [name, place])) };
}

/** @typedef {ReturnType<typeof layout>} Layout */

/** @param {{ names: string[], shape: Layout }} props */
export function SequenceHead({ names, shape }) {
  return html`<div class="lifelines-head" style=${{ width: `${shape.width}px`, paddingInlineStart: `${shape.gutter}px` }} role="listitem" aria-label="Participants">
    ${names.map((name) => html`<div key=${name} style=${{ width: `${shape.column}px` }} title=${name}><${Said}>${name}<//></div>`)}
  </div>`;
}

/** @param {{ store: ThreadStore, seq: number, shape: Layout, pick: (seq: number) => void }} props */
export function SequenceRow({ store, seq, shape, pick }) {
  const step = store.steps.at(seq);
  if (!step) return html`<div class="arrow-row loading" aria-busy="true"><span class="seq">${seq}</span></div>`;
  const middle = (/** @type {string} */ name) => shape.gutter + ((shape.at.get(name) ?? 0) + 0.5) * shape.column;
  const from = middle(step.sender);
  const to = step.receivers.length ? middle(step.receivers[0]) : from;
  const selected = store.selected.value === seq;
  const chosen = store.selected.value;
  const pair = store.columns.pair[chosen];
  const inside = pair && seq > Math.min(chosen, pair) && seq < Math.max(chosen, pair);
  const isNote = store.isNote(seq);
  const left = Math.min(from, to);
  const span = Math.abs(to - from);
  const self = span < 1;
  const isLate = self && from > shape.gutter + (shape.width - shape.gutter) / 2;
  const labelRoom = isNote ? shape.width - shape.gutter - 24 : !self ? Math.max(span - 16, Math.min(320, shape.width - left - 24)) : isLate ? from - shape.gutter - 20 : shape.width - from - 20;
  const label = isNote ? { left: `${shape.gutter + 8}px` } : isLate ? { right: `${shape.width - from + 10}px` } : { left: `${self ? from + 10 : left + 8}px` };
  const to_ = step.receivers.length ? `to ${step.receivers.join(", ")}` : "to all";
  return html`<div
    class="arrow-row"
    style=${{ width: `${shape.width}px`, backgroundSize: `${shape.column}px 100%`, backgroundPositionX: `${shape.gutter + shape.column / 2}px` }}
    data-kind=${step.kind}
    data-mark=${step.mark}
    data-lane=${step.lane}
    data-selected=${selected}
    data-pair=${pair === seq}
    data-inside=${!!inside}
    aria-current=${selected ? "true" : undefined}
    aria-label=${`${seq}: ${step.sender} ${to_}, ${step.kind}: ${step.text}`}
    data-testid="arrow"
    data-seq=${seq}
    onClick=${() => pick(seq)}
  >
    <span class="gutter" style=${{ width: `${shape.gutter}px` }}><span class="seq">${seq}</span><time>${clock(step.at)}</time></span>
    ${isNote ? null : html`<span class="arrow" data-self=${self} data-back=${to < from}
      style=${{ left: `${self ? from : left}px`, width: `${self ? 12 : span}px` }}></span>`}
    <span class="arrow-text" style=${{ ...label, maxWidth: `${labelRoom}px` }}>
      <${Marks} step=${step} />${isNote ? null : html`<bdi>${visible(ThreadStore.line(step).slice(0, 300))}</bdi>`}
      ${step.seconds !== null && step.kind !== "called" ? html`<span class="note">${seconds(step.seconds)}</span>` : null}
    </span>
  </div>`;
}
