/**
 * A thread on a time axis: a canvas with a bar for each call and a tick for each message, and below it the same as rows of text.
 *
 * The canvas is drawn from the index alone, so it shows the whole thread before its messages are read.
 */

import { html, useEffect, useRef, useSignal } from "./lib.js";
import { Marks } from "./conversation.js";
import { MARKS, RESTARTED, ThreadStore, WAITS } from "./store.js";
import { clock, Said, seconds, visible } from "./text.js";

export const TIMELINE_ROW = 32;
const LANE = 22;
const AXIS = 24;
const RESTARTS = 14;
const NAMES = 148;
const NARROW_NAMES = 84;
const MOST_LANES = 14;

/**
 * The workers of the shown messages, busiest first if there are too many for the canvas.
 * @param {ThreadStore} store
 */
function workers(store) {
  const { columns } = store;
  /** @type {Map<number, number>} */
  const found = new Map();
  for (let seq = 1; seq <= store.head.value; seq++) {
    if (!columns.at[seq] || !store.isShown(seq) || columns.kind[seq] >= 2 || store.isNote(seq)) continue;
    const who = columns.kind[seq] === 1 && columns.receiver[seq] >= 0 ? columns.receiver[seq] : columns.sender[seq];
    found.set(who, (found.get(who) ?? 0) + 1);
  }
  const order = [...found.keys()];
  if (order.length <= MOST_LANES) return order;
  const kept = new Set([...found].sort((a, b) => b[1] - a[1]).slice(0, MOST_LANES).map(([who]) => who));
  return order.filter((who) => kept.has(who));
}

/** @param {ThreadStore} store */
function hasRestarts(store) {
  for (let seq = 1; seq <= store.head.value; seq++) if (store.columns.mark[seq] >= RESTARTED) return true;
  return false;
}

/** @param {Element} element */
function inks(element) {
  const style = getComputedStyle(element);
  const ink = (/** @type {string} */ name) => style.getPropertyValue(name).trim();
  return { text: ink("--ink-2"), line: ink("--line"), done: ink("--bar"), bad: ink("--bad"), open: ink("--active"), waits: ink("--waits"),
    chosen: ink("--focus"), font: `12px ${style.fontFamily}` };
}

/** @param {{ store: ThreadStore, pick: (seq: number) => void }} props */
export function TimelineCanvas({ store, pick }) {
  const ref = useRef(/** @type {HTMLCanvasElement | null} */ (null));
  const byOrder = useSignal(false);
  const zoom = useSignal(/** @type {[number, number]} */ ([0, 1]));
  const hits = useRef(/** @type {{ x: number, width: number, y: number, seq: number }[]} */ ([]));
  const width = useSignal(0);
  const shown = workers(store);
  const top = AXIS + (hasRestarts(store) ? RESTARTS : 0);
  const height = top + shown.length * LANE + 8;
  const how = { width: width.value, top, height, byOrder: byOrder.value, zoom: zoom.value };

  useEffect(() => {
    const observer = new ResizeObserver(([entry]) => (width.value = Math.floor(entry.contentRect.width)));
    if (ref.current?.parentElement) observer.observe(ref.current.parentElement);
    return () => observer.disconnect();
  }, []);

  useEffect(() => {
    const canvas = ref.current;
    if (canvas && how.width) hits.current = draw(canvas, store, shown, how);
  });

  const at = (/** @type {MouseEvent} */ event) => {
    const box = /** @type {HTMLCanvasElement} */ (event.currentTarget).getBoundingClientRect();
    const [x, y] = [event.clientX - box.left, event.clientY - box.top];
    const near = hits.current.filter((hit) => y >= hit.y && y < hit.y + LANE && x >= hit.x - 4 && x <= hit.x + hit.width + 4);
    return near.sort((a, b) => a.width - b.width)[0]?.seq ?? 0;
  };
  const wheel = (/** @type {WheelEvent} */ event) => {
    if (!event.ctrlKey && !event.shiftKey) return;
    event.preventDefault();
    const box = /** @type {HTMLCanvasElement} */ (event.currentTarget).getBoundingClientRect();
    const names = box.width < 640 ? NARROW_NAMES : NAMES;
    const place = Math.min(1, Math.max(0, (event.clientX - box.left - names) / (box.width - names)));
    zoomBy(event.deltaY > 0 ? 1.25 : 0.8, place);
  };
  const zoomBy = (/** @type {number} */ factor, place = 0.5) => {
    const [from, to] = zoom.value;
    const span = Math.min(1, (to - from) * factor);
    const middle = from + (to - from) * place;
    const start = Math.min(1 - span, Math.max(0, middle - span * place));
    zoom.value = [start, start + span];
  };
  const key = (/** @type {KeyboardEvent} */ event) => {
    if (event.key === "+" || event.key === "=") zoomBy(0.6);
    else if (event.key === "-") zoomBy(1.7);
    else if (event.key === "0") zoom.value = [0, 1];
    else return;
    event.preventDefault();
  };
  return html`<section class="timeline" aria-label="Timeline">
    <div class="timeline-tools">
      <div class="segments" role="group" aria-label="Axis">
        <button type="button" aria-pressed=${!byOrder.value} onClick=${() => (byOrder.value = false)}>by time</button>
        <button type="button" aria-pressed=${byOrder.value} onClick=${() => (byOrder.value = true)}>by order</button>
      </div>
      <span class="segments" role="group" aria-label="Zoom">
        <button type="button" aria-label="Zoom out" onClick=${() => zoomBy(1.7)}>−</button>
        <button type="button" aria-label="Zoom in" onClick=${() => zoomBy(0.6)}>+</button>
        <button type="button" onClick=${() => (zoom.value = [0, 1])}>all</button>
      </span>
      <span class="legend"><i data-tone="done"></i>completed <i data-tone="bad"></i>failed <i data-tone="active"></i>open <i data-tone="waits"></i>waits for a person <i data-tone="restart"></i>restarted or taken over</span>
    </div>
    <div class="timeline-box">
      <canvas ref=${ref} role="img" tabindex="0" data-testid="timeline-canvas"
        aria-label=${`Timeline of ${store.head.value} messages by ${shown.length} participants. The rows below have the same in words.`}
        onClick=${(/** @type {MouseEvent} */ event) => { const seq = at(event); if (seq) pick(seq); }}
        onKeyDown=${key} onWheel=${wheel}></canvas>
    </div>
  </section>`;
}

/**
 * @param {HTMLCanvasElement} canvas
 * @param {ThreadStore} store
 * @param {number[]} shown
 * @param {{ width: number, top: number, height: number, byOrder: boolean, zoom: [number, number] }} how
 */
function draw(canvas, store, shown, { width, top, height, byOrder, zoom }) {
  const ratio = devicePixelRatio || 1;
  if (canvas.width !== width * ratio || canvas.height !== height * ratio) {
    canvas.width = width * ratio;
    canvas.height = height * ratio;
    canvas.style.width = `${width}px`;
    canvas.style.height = `${height}px`;
  }
  const pen = /** @type {CanvasRenderingContext2D} */ (canvas.getContext("2d"));
  const ink = inks(canvas);
  const { columns } = store;
  const end = store.upto.value || store.head.value;
  const names = width < 640 ? NARROW_NAMES : NAMES;
  const room = width - names - 12;
  pen.setTransform(ratio, 0, 0, ratio, 0, 0);
  pen.clearRect(0, 0, width, height);
  pen.font = ink.font;
  pen.textBaseline = "middle";
  let first = Infinity;
  let last = -Infinity;
  for (let seq = 1; seq <= end; seq++) {
    if (!columns.at[seq]) continue;
    first = Math.min(first, columns.at[seq]);
    last = Math.max(last, columns.at[seq]);
  }
  if (first === Infinity) return [];
  const scaled = (/** @type {number} */ seq) => (byOrder ? (seq - 1) / Math.max(1, end - 1) : (columns.at[seq] - first) / Math.max(1, last - first));
  const x = (/** @type {number} */ seq) => names + ((scaled(seq) - zoom[0]) / (zoom[1] - zoom[0])) * room;
  axis(pen, ink, { names, room, width, top, height, span: (last - first) / 1000, zoom, byOrder, end });
  const row = new Map(shown.map((who, place) => [who, place]));
  shown.forEach((who, place) => {
    const y = top + place * LANE + LANE / 2;
    pen.fillStyle = ink.text;
    pen.fillText(fit(pen, store.names[who], names - 12), 0, y);
    pen.fillStyle = ink.line;
    pen.fillRect(names, y + LANE / 2 - 1, room, 1);
  });
  /** @type {{ x: number, width: number, y: number, seq: number }[]} */
  const hits = [];
  pen.save();
  pen.beginPath();
  pen.rect(names, 0, room + 12, height);
  pen.clip();
  for (let seq = 1; seq <= end; seq++) {
    const kind = columns.kind[seq];
    if (!columns.at[seq] || !store.isShown(seq) || kind >= 2) continue;
    const isCall = kind === 1;
    const place = row.get(isCall && columns.receiver[seq] >= 0 ? columns.receiver[seq] : columns.sender[seq]);
    if (place === undefined) continue;
    const pair = columns.pair[seq] && columns.pair[seq] <= end ? columns.pair[seq] : 0;
    const from = x(seq);
    const to = isCall ? (pair ? x(pair) : x(end)) : from;
    if (to < names - 4 || from > width) continue;
    const long = Math.max(isCall ? 3 : 2, to - from);
    const y = top + place * LANE;
    pen.fillStyle = !isCall ? ink.text : columns.mark[seq] && columns.mark[seq] <= WAITS ? ink.waits : !pair ? ink.open : columns.kind[pair] === 3 ? ink.bad : ink.done;
    if (isCall) pen.fillRect(from, y + 5, long, LANE - 10);
    else pen.fillRect(from, y + 7, 2, LANE - 14);
    hits.push({ x: from, width: long, y, seq });
    if (store.selected.value === seq || (pair && store.selected.value === pair)) {
      pen.strokeStyle = ink.chosen;
      pen.lineWidth = 2;
      pen.strokeRect(from - 3, y + 2, long + 6, LANE - 4);
    }
  }
  restarts(pen, ink, store, { end, x, top, height });
  if (store.selected.value && store.selected.value <= end) {
    pen.fillStyle = ink.chosen;
    pen.fillRect(x(store.selected.value) - 0.5, top - 4, 1, height);
  }
  pen.restore();
  return hits;
}

/**
 * Draw a line through all participants where work began again: in a process that was started again, or on another host.
 * @param {CanvasRenderingContext2D} pen
 * @param {ReturnType<typeof inks>} ink
 * @param {ThreadStore} store
 * @param {{ end: number, x: (seq: number) => number, top: number, height: number }} how
 */
function restarts(pen, ink, store, { end, x, top, height }) {
  let free = -Infinity;
  pen.fillStyle = pen.strokeStyle = ink.text;
  pen.lineWidth = 1;
  pen.setLineDash([4, 3]);
  for (let seq = 1; seq <= end; seq++) {
    if (store.columns.mark[seq] < RESTARTED) continue;
    const at = Math.round(x(seq)) + 0.5;
    pen.beginPath();
    pen.moveTo(at, top - RESTARTS - 6);
    pen.lineTo(at, height);
    pen.stroke();
    const words = MARKS[store.columns.mark[seq]].replace("_", " ");
    if (at < free) continue; // the words of the one before are there
    pen.fillText(words, at + 4, top - RESTARTS);
    free = at + pen.measureText(words).width + 12;
  }
  pen.setLineDash([]);
}

/**
 * @param {CanvasRenderingContext2D} pen
 * @param {ReturnType<typeof inks>} ink
 * @param {{ names: number, room: number, width: number, height: number, top: number, span: number, zoom: [number, number], byOrder: boolean, end: number }} how
 */
function axis(pen, ink, { names, room, top, height, span, zoom, byOrder, end }) {
  const count = Math.max(2, Math.floor(room / 110));
  pen.textAlign = "left";
  for (let at = 0; at <= count; at++) {
    const part = zoom[0] + ((zoom[1] - zoom[0]) * at) / count;
    const left = names + (room * at) / count;
    pen.fillStyle = ink.line;
    pen.fillRect(left, top - 6, 1, height - top);
    pen.fillStyle = ink.text;
    pen.textAlign = at === count ? "right" : "left";
    pen.fillText(byOrder ? `#${Math.round(1 + part * (end - 1))}` : part ? seconds(part * span) : "0", at === count ? left : left + 4, 8);
  }
  pen.textAlign = "left";
}

/** @param {CanvasRenderingContext2D} pen @param {string} text @param {number} room */
function fit(pen, text, room) {
  if (pen.measureText(text).width <= room) return text;
  let cut = text;
  while (cut.length > 1 && pen.measureText(`${cut}…`).width > room) cut = cut.slice(0, -1);
  return `${cut}…`;
}

/** @param {{ store: ThreadStore, seq: number, pick: (seq: number) => void }} props */
export function TimelineRow({ store, seq, pick }) {
  const step = store.steps.at(seq);
  if (!step) return html`<div class="span-row loading" aria-busy="true"><span class="seq">${seq}</span></div>`;
  const selected = store.selected.value === seq;
  return html`<div class="span-row" data-kind=${step.kind} data-mark=${step.mark} data-selected=${selected} aria-current=${selected ? "true" : undefined}
    data-testid="span" data-seq=${seq} onClick=${() => pick(seq)}>
    <span class="seq">${seq}</span><time>${clock(step.at)}</time>
    <${Said} class="who">${step.sender}<//>
    <span class="took">${step.kind === "called" ? (step.pair ? seconds(step.seconds) : "open") : ""}</span>
    <span class="text"><${Marks} step=${step} /><bdi>${visible(ThreadStore.line(step).slice(0, 300))}</bdi></span>
  </div>`;
}
