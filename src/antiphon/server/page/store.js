/**
 * A thread in the browser: one index by `seq`, and the steps and messages near what is shown.
 *
 * The index has a few numbers for each message, in typed arrays: lane, kind, sender, time, the other half of a call. It is
 * loaded in pieces, those near the reader first. Steps and messages are loaded by pages, when they are shown, and the pages
 * that were shown longest ago are dropped. So a thread of 50,000 messages takes two megabytes here.
 *
 * All views read the same index, the same selection and the same hidden lanes.
 */

import { get } from "./api.js";
import { follow } from "./live.js";
import { batch, computed, signal } from "./lib.js";

/** @typedef {import("./api.js").Step} Step */
/** @typedef {import("./api.js").StoredRecord} StoredRecord */
/** @typedef {{ count: number, seqAt: (place: number) => number, placeOf: (seq: number) => number }} RowOrder */

export const PAGE = 32;
const MOST_PAGES = 60;
const PIECE = 500;
const SETTLE = 40;

export const LANES = ["talk", "control", "effect"];
export const KINDS = ["said", "called", "answered", "failed"];
export const MARKS = ["", "approval", "parked", "retried", "restarted", "taken_over"];
/** From this one on, a mark is about the runtime itself: a row with it is a note, and has no participants. */
export const NOTE = MARKS.indexOf("retried");
/** From this one on, a mark says that work begins again in a process. */
export const RESTARTED = MARKS.indexOf("restarted");
/** Up to this one, a mark says that something waits for a person. */
export const WAITS = MARKS.indexOf("parked");
const UNKNOWN = 255;

/** Columns with room to grow. */
class Columns {
  constructor() {
    this.room = 0;
    this.lane = new Uint8Array(0);
    this.kind = new Uint8Array(0);
    this.mark = new Uint8Array(0);
    this.sender = new Uint16Array(0);
    this.receiver = new Int16Array(0);
    this.at = new Float64Array(0);
    this.pair = new Uint32Array(0);
  }

  /** @param {number} seq */
  reserve(seq) {
    if (seq < this.room) return;
    const room = Math.max(1024, seq + 1, this.room * 2);
    /**
     * @template {Uint8Array | Uint16Array | Int16Array | Float64Array | Uint32Array} T
     * @param {T} old
     * @param {number} [fill]
     */
    const grown = (old, fill = 0) => {
      const made = /** @type {T} */ (new /** @type {any} */ (old.constructor)(room));
      if (fill) made.fill(fill);
      made.set(/** @type {any} */ (old));
      return made;
    };
    this.lane = grown(this.lane, UNKNOWN);
    this.kind = grown(this.kind);
    this.mark = grown(this.mark);
    this.sender = grown(this.sender);
    this.receiver = grown(this.receiver, -1);
    this.at = grown(this.at);
    this.pair = grown(this.pair);
    this.room = room;
  }
}

/**
 * Pages of something, loaded when they are asked for.
 * @template T
 */
class Pages {
  /** @param {(after: number, limit: number) => Promise<T[]>} load @param {() => void} changed */
  constructor(load, changed) {
    this.load = load;
    this.changed = changed;
    /** @type {Map<number, (T | undefined)[]>} */
    this.kept = new Map();
    /** @type {Set<number>} */
    this.wanted = new Set();
    /** @type {Set<number>} */
    this.loading = new Set();
    this.timer = 0;
  }

  /** @param {number} seq @returns {T | undefined} */
  peek(seq) {
    return this.kept.get(Math.floor((seq - 1) / PAGE))?.[(seq - 1) % PAGE];
  }

  /**
   * Return it, or have its page loaded soon: a page that is only scrolled past is not.
   * @param {number} seq
   * @returns {T | undefined}
   */
  at(seq) {
    const page = Math.floor((seq - 1) / PAGE);
    const found = this.kept.get(page);
    if (found) {
      this.kept.delete(page); // the latest is last
      this.kept.set(page, found);
      if (found[(seq - 1) % PAGE] !== undefined) return found[(seq - 1) % PAGE];
    }
    this.want(page);
    return undefined;
  }

  /** @param {number} page */
  want(page) {
    if (this.loading.has(page)) return;
    this.wanted.add(page);
    this.timer ||= setTimeout(() => this.flush(), this.kept.size ? SETTLE : 0);
  }

  /**
   * Load the page of a message at once, and forget what was wanted before: the reader has jumped there.
   * @param {number} seq
   */
  jump(seq) {
    this.wanted.clear();
    if (this.peek(seq) === undefined) void this.fetch(Math.floor((seq - 1) / PAGE));
  }

  /** Load nothing more. */
  close() {
    clearTimeout(this.timer);
    this.wanted.clear();
  }

  flush() {
    this.timer = 0;
    const pages = [...this.wanted].slice(-4);
    this.wanted.clear();
    for (const page of pages) void this.fetch(page);
  }

  /** @param {number} page */
  async fetch(page) {
    if (this.loading.has(page)) return;
    this.loading.add(page);
    try {
      const rows = await this.load(page * PAGE, PAGE);
      this.put(page * PAGE + 1, rows);
    } catch {
      // the next look at it asks again
    } finally {
      this.loading.delete(page);
      this.changed();
    }
  }

  /** @param {number} first @param {T[]} rows */
  put(first, rows) {
    rows.forEach((row, place) => {
      const seq = first + place;
      const page = Math.floor((seq - 1) / PAGE);
      let kept = this.kept.get(page);
      if (!kept) this.kept.set(page, (kept = new Array(PAGE)));
      kept[(seq - 1) % PAGE] = row;
    });
    while (this.kept.size > MOST_PAGES) this.kept.delete(/** @type {number} */ (this.kept.keys().next().value));
  }
}

export class ThreadStore {
  /** @param {string} id */
  constructor(id) {
    this.id = id;
    /** The last message that is known to exist. */
    this.head = signal(0);
    /** Changes when anything that is shown may have changed. */
    this.revision = signal(0);
    /** The number of the last request for the thread and its status, and of the one whose answer is shown. */
    this.asked = 0;
    this.answered = 0;
    this.status = signal(/** @type {import("./api.js").Status | null} */ (null));
    this.thread = signal(/** @type {import("./api.js").Thread | null} */ (null));
    this.problem = signal(/** @type {string | null} */ (null));
    this.selected = signal(0);
    /** Lanes that are not shown. */
    this.hidden = signal(/** @type {ReadonlySet<string>} */ (new Set()));
    /** In a replay, the last message that is shown; 0: all. */
    this.upto = signal(0);
    /** Words that are being said, by speaker. They are not recorded. */
    this.words = signal(/** @type {ReadonlyMap<string, string>} */ (new Map()));
    this.arrived = signal(0);
    this.columns = new Columns();
    /** @type {string[]} */
    this.names = [];
    /** @type {Map<string, number>} */
    this.nameAt = new Map();
    /** @type {Map<string, number>} */
    this.alone = new Map();
    /** @type {Set<number>} */
    this.indexed = new Set();
    this.indexing = false;
    this.near = 0;
    /** @type {Pages<Step>} */
    this.steps = new Pages((after, limit) => this.loadSteps(after, limit), () => this.touch());
    /** @type {Pages<StoredRecord>} */
    this.messages = new Pages((after, limit) => this.loadMessages(after, limit), () => this.touch());
    this.seen = 0;
    this.catching = false;
    this.stop = () => {};
    /** Ends the requests of a thread that is not shown any more: a browser has few connections. */
    this.ends = new AbortController();
    this.timer = 0;
    this.rows = computed(() => this.order());
    /** Lanes that the thread has; known when its index is. */
    this.laneCounts = new Uint32Array(LANES.length);
  }

  get ended() {
    return this.ends.signal.aborted;
  }

  /** @param {string[]} steps @param {import("./api.js").Query} [query] */
  get(steps, query) {
    return get(["threads", this.id, ...steps], query, this.ends.signal);
  }

  touch() {
    if (!this.ended) this.revision.value += 1;
  }

  // ---------------------------------------------------------------- beginning and end

  /** @param {number} near The message that is shown first; 0: the end. */
  async start(near) {
    try {
      const thread = await this.get([]);
      if (this.ended) return; // the reader has left: nobody would close the stream
      this.thread.value = thread;
      void this.refresh().catch(() => null); // the status takes longer, and the messages need not wait for it
      const total = this.thread.value?.messages ?? 0;
      this.seen = Math.max(this.seen, total);
      this.near = near || total;
      this.columns.reserve(total);
      this.head.value = Math.max(this.head.value, total);
      this.stop = follow({
        thread: this.id,
        onRecord: (record) => this.take(record),
        onWords: (words) => this.hear(words),
        onOpen: () => void this.look(),
        onGone: () => (this.problem.value = "The thread was deleted."),
      });
      this.jump(near);
      void this.index();
    } catch (error) {
      if (!this.ended) this.problem.value = error instanceof Error ? error.message : String(error);
    }
  }

  close() {
    this.ends.abort();
    this.stop();
    clearTimeout(this.timer);
    this.steps.close();
    this.messages.close();
  }

  /** Read the thread and its status anew. */
  async refresh() {
    const number = ++this.asked;
    const [thread, status] = await Promise.all([this.get([]), this.get(["status"])]);
    if (number < this.answered) return; // a later one was answered before it, and knows more
    this.answered = number;
    batch(() => {
      this.thread.value = thread;
      this.status.value = status;
    });
  }

  refreshSoon() {
    this.timer ||= setTimeout(() => {
      this.timer = 0;
      if (!this.ended) void this.refresh().catch(() => null);
    }, 250);
  }

  // ---------------------------------------------------------------- what arrives

  /** @param {StoredRecord} record */
  take(record) {
    this.messages.put(record.seq, [record]);
    this.seen = Math.max(this.seen, record.seq);
    const spoken = new Map(this.words.value);
    if (spoken.delete(record.message.policy) || (record.message.lane ?? "talk") === "talk") {
      if (spoken.size !== this.words.value.size) this.words.value = spoken;
    }
    void this.catchUp();
    this.refreshSoon();
  }

  /** @param {{ speaker: string, text: string, missed: number }} words */
  hear({ speaker, text, missed }) {
    const before = text ? (this.words.value.get(speaker) ?? "") : ""; // an empty text: it is begun anew
    this.words.value = new Map(this.words.value).set(speaker, `${before}${missed ? " … " : ""}${text}`.slice(-20_000));
  }

  /** Read the thread, its status, and the steps that are missing: a stream that opens may have missed some. */
  async look() {
    this.refreshSoon();
    const { messages } = await this.get([]).catch(() => ({ messages: 0 }));
    this.seen = Math.max(this.seen, messages);
    await this.catchUp();
  }

  /** Read the steps of what has arrived, one request at a time. */
  async catchUp() {
    if (this.catching) return;
    this.catching = true;
    try {
      while (!this.ended && this.head.value < this.seen) {
        const before = this.head.value;
        const behind = this.seen - before;
        if (behind > 2 * PIECE) this.head.value = this.seen; // too much to read now: it is loaded when it is shown
        else {
          const steps = await this.loadSteps(before, 200);
          if (!steps.length) break;
          this.steps.put(before + 1, steps);
          batch(() => {
            this.head.value = before + steps.length;
            this.arrived.value += steps.length;
          });
        }
        this.touch();
      }
    } catch {
      // the stream says whether the server is there; the next event tries again
    } finally {
      this.catching = false;
    }
  }

  // ---------------------------------------------------------------- loading

  /** @param {number} after @param {number} limit */
  async loadSteps(after, limit) {
    const { window } = await this.get(["sequence"], { after, limit });
    for (const step of /** @type {Step[]} */ (window.steps)) this.learn(step);
    return /** @type {Step[]} */ (window.steps);
  }

  /** @param {number} after @param {number} limit */
  async loadMessages(after, limit) {
    const found = await this.get(["messages"], { after, limit });
    return /** @type {StoredRecord[]} */ (found.messages);
  }

  /**
   * Put a step into the index.
   * @param {Step} step
   */
  learn(step) {
    const { columns } = this;
    columns.reserve(step.seq);
    columns.lane[step.seq] = LANES.indexOf(step.lane);
    columns.kind[step.seq] = KINDS.indexOf(step.kind);
    columns.mark[step.seq] = MARKS.indexOf(step.mark ?? "");
    columns.sender[step.seq] = this.name(step.sender);
    columns.receiver[step.seq] = step.receivers.length ? this.name(step.receivers[0]) : -1;
    columns.at[step.seq] = Date.parse(step.at);
    if (step.pair) {
      columns.reserve(step.pair);
      columns.pair[step.seq] = step.pair;
      if (columns.pair[step.pair] !== step.seq) {
        columns.pair[step.pair] = step.seq;
        const other = this.steps.peek(step.pair);
        if (other && !other.pair) {
          other.pair = step.seq;
          other.seconds = step.seconds;
        }
      }
    }
  }

  /** @param {string} name */
  name(name) {
    let at = this.nameAt.get(name);
    if (at === undefined) {
      at = this.names.push(name) - 1;
      this.nameAt.set(name, at);
    }
    return at;
  }

  /**
   * Return the text of a step on one line.
   * @param {Step} step
   */
  static line(step) {
    return step.text.replace(/(^| )│ /g, "$1");
  }

  /** Load the index, the pieces near the reader first. */
  async index() {
    if (this.indexing) return;
    this.indexing = true;
    try {
      for (let piece = this.nextPiece(); piece >= 0 && !this.ended; piece = this.nextPiece()) {
        const found = await this.get(["index"], { after: piece * PIECE, limit: PIECE });
        this.indexed.add(piece);
        this.addPiece(found);
        this.reveal(this.selected.value);
        this.touch();
        // What the reader looks at goes before what may be looked at later.
        while (this.steps.loading.size || this.messages.loading.size) await new Promise((done) => setTimeout(done, 50));
      }
    } catch {
      if (!this.ended) setTimeout(() => void this.index(), 2000);
    } finally {
      this.indexing = false;
    }
  }

  nextPiece() {
    const pieces = Math.ceil(this.head.value / PIECE);
    const here = Math.min(pieces - 1, Math.max(0, Math.floor((this.near - 1) / PIECE)));
    for (let away = 0; away < pieces; away++) {
      for (const piece of [here - away, here + away]) {
        if (piece >= 0 && piece < pieces && !this.indexed.has(piece)) return piece;
      }
    }
    return -1;
  }

  get isIndexed() {
    return this.indexed.size >= Math.ceil(this.head.value / PIECE);
  }

  /** @param {any} found */
  addPiece(found) {
    const { columns } = this;
    const last = found.first + found.lane.length - 1;
    columns.reserve(last);
    /** @type {number[]} */
    const names = found.names.map((/** @type {string} */ name) => this.name(name));
    const began = Date.parse(found.began_at);
    for (let place = 0; place < found.lane.length; place++) {
      const seq = found.first + place;
      columns.lane[seq] = found.lane[place];
      this.laneCounts[found.lane[place]] += 1;
      columns.kind[seq] = found.kind[place];
      columns.mark[seq] = found.mark[place];
      columns.sender[seq] = names[found.sender[place]];
      columns.receiver[seq] = found.receiver[place] < 0 ? -1 : names[found.receiver[place]];
      columns.at[seq] = began + found.millis[place];
      if (found.pair[place]) columns.pair[seq] = found.pair[place];
    }
    for (const [seq, invocation] of found.open) {
      const other = this.alone.get(invocation);
      if (other === undefined) this.alone.set(invocation, seq);
      else if (!columns.pair[seq]) {
        this.alone.delete(invocation);
        columns.pair[seq] = other;
        columns.pair[other] = seq;
      }
    }
  }

  // ---------------------------------------------------------------- what is shown

  /**
   * Whether a row is a note of the runtime: that something is tried again, restarted or taken over.
   * @param {number} seq
   */
  isNote(seq) {
    return this.columns.mark[seq] >= NOTE;
  }

  /**
   * Whether a message is shown: its lane is not hidden, or it has a mark.
   * @param {number} seq
   */
  isShown(seq) {
    const lane = this.columns.lane[seq];
    return lane === UNKNOWN || this.columns.mark[seq] > 0 || !this.hidden.value.has(LANES[lane]);
  }

  /** @returns {RowOrder} */
  order() {
    const end = this.upto.value ? Math.min(this.upto.value, this.head.value) : this.head.value;
    if (!this.hidden.value.size) {
      return { count: end, seqAt: (place) => place + 1, placeOf: (seq) => Math.min(end, Math.max(1, seq)) - 1 };
    }
    void this.revision.value; // the lanes of more messages may be known
    const seqs = new Uint32Array(end);
    let count = 0;
    for (let seq = 1; seq <= end; seq++) if (this.isShown(seq)) seqs[count++] = seq;
    return {
      count,
      seqAt: (place) => seqs[place],
      placeOf: (seq) => {
        let low = 0;
        let high = count;
        while (low < high) {
          const middle = (low + high) >> 1;
          if (seqs[middle] < seq) low = middle + 1;
          else high = middle;
        }
        return Math.min(low, Math.max(0, count - 1));
      },
    };
  }

  /**
   * Return the next message in a direction for which something holds; 0 if there is none.
   * @param {number} from
   * @param {1 | -1} direction
   * @param {(seq: number) => boolean} holds
   */
  find(from, direction, holds) {
    for (let seq = from + direction; seq >= 1 && seq <= this.head.value; seq += direction) if (holds(seq)) return seq;
    return 0;
  }

  /**
   * Go to a message: load it now, and show its lane if that is hidden.
   * @param {number} seq
   */
  jump(seq) {
    this.selected.value = seq;
    this.near = seq;
    if (!seq) return;
    this.steps.jump(seq);
    this.messages.jump(seq);
    this.reveal(seq);
  }

  /**
   * Show the lane of a message.
   * @param {number} seq
   */
  reveal(seq) {
    if (seq && !this.isShown(seq)) this.toggle(LANES[this.columns.lane[seq]]);
  }

  /** @param {string} lane */
  toggle(lane) {
    const hidden = new Set(this.hidden.value);
    if (!hidden.delete(lane)) hidden.add(lane);
    this.hidden.value = hidden;
  }
}
