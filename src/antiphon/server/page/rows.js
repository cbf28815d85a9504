/**
 * The virtualiser: a list of any length of which only the visible rows exist.
 *
 * Heights are estimated until a row was seen, then measured. The offset of a row is a sum over the rows before it; a Fenwick tree
 * has the differences from the estimate, so an offset and a place are found in the logarithm of the count.
 *
 * What the reader looks at does not move: the row at the upper edge is the anchor. When rows above it become taller, or appear,
 * the list is scrolled by as much. A reader at the end stays at the end.
 */

import { Component, createRef, html } from "./lib.js";

const BEYOND = 400;
const AT_END = 4;

/** Heights of rows, by place. */
class Heights {
  /** @param {number} estimate */
  constructor(estimate) {
    this.estimate = estimate;
    this.count = 0;
    this.tree = new Float64Array(1);
    this.own = new Float64Array(0);
  }

  /**
   * @param {number} count
   * @param {(place: number) => number | undefined} known The measured height of a row.
   */
  reset(count, known) {
    this.count = count;
    const room = Math.ceil(count * 1.25) + 64;
    this.own = new Float64Array(room);
    this.tree = new Float64Array(room + 1);
    for (let place = 0; place < count; place++) {
      const height = known(place);
      if (height !== undefined) this.own[place] = height - this.estimate;
    }
    for (let at = 1; at <= room; at++) {
      this.tree[at] += this.own[at - 1];
      const above = at + (at & -at);
      if (above <= room) this.tree[above] += this.tree[at];
    }
  }

  /** @param {number} count @returns {boolean} Whether there was room. */
  grow(count) {
    if (count > this.own.length || count < this.count) return false;
    this.count = count;
    return true;
  }

  /** @param {number} place @param {number} height */
  set(place, height) {
    const change = height - this.estimate - this.own[place];
    if (Math.abs(change) < 0.5) return false;
    this.own[place] += change;
    for (let at = place + 1; at < this.tree.length; at += at & -at) this.tree[at] += change;
    return true;
  }

  /** @param {number} place */
  offset(place) {
    let sum = place * this.estimate;
    for (let at = place; at > 0; at -= at & -at) sum += this.tree[at];
    return sum;
  }

  get total() {
    return this.offset(this.count);
  }

  /** @param {number} y @returns {number} The place of the row at this offset. */
  at(y) {
    let low = 0;
    let high = this.count;
    while (low < high) {
      const middle = (low + high) >> 1;
      if (this.offset(middle + 1) <= y) low = middle + 1;
      else high = middle;
    }
    return Math.min(low, Math.max(0, this.count - 1));
  }
}

/**
 * @typedef {{
 *   order: import("./store.js").RowOrder,
 *   row: (key: number, place: number) => unknown,
 *   estimate: number,
 *   fixed?: boolean,
 *   label: string,
 *   role?: string,
 *   name?: string,
 *   head?: unknown,
 *   foot?: unknown,
 *   empty?: unknown,
 *   start?: number,
 *   revision?: unknown,
 *   width?: number,
 *   handle?: { current: Rows | null },
 *   onRange?: (first: number, last: number) => void,
 *   onFollow?: (following: boolean) => void,
 *   onKeyDown?: (event: KeyboardEvent) => void,
 * }} RowsProps
 */

/** A scrolling list of rows. `start` is the key to show first; without it, the end is shown. */
export class Rows extends Component {
  /** @param {RowsProps} props */
  constructor(props) {
    super(props);
    /** @type {RowsProps} */
    this.props = props;
    /** @type {{ current: HTMLElement | null }} */
    this.box = createRef();
    /** @type {{ current: HTMLElement | null }} */
    this.body = createRef();
    this.heights = new Heights(props.estimate);
    /** @type {Map<number, number>} */
    this.measured = new Map();
    /** @type {{ key: number, inside: number } | null} */
    this.anchor = props.start === undefined ? null : { key: props.start, inside: -8 };
    this.following = props.start === undefined;
    this.own = -1;
    this.state = { first: 0, last: -1 };
    /** @type {import("./store.js").RowOrder | null} */
    this.known = null;
    this.observer = new ResizeObserver((entries) => this.measure(entries));
    this.take(props.order);
  }

  /** @param {import("./store.js").RowOrder} order */
  take(order) {
    if (order === this.known) return;
    const appended =
      this.known && order.count >= this.known.count && this.sameStart(this.known, order) && this.heights.grow(order.count);
    if (!appended) {
      this.heights.reset(order.count, this.props.fixed ? () => undefined : (place) => this.measured.get(order.seqAt(place)));
    }
    this.known = order;
  }

  /**
   * Whether the rows that were known are where they were: compared at a few places, the last one among them.
   * @param {import("./store.js").RowOrder} before
   * @param {import("./store.js").RowOrder} after
   */
  sameStart(before, after) {
    if (!before.count) return false;
    const places = [0, before.count >> 2, before.count >> 1, before.count - 1];
    return places.every((place) => before.seqAt(place) === after.seqAt(place));
  }

  componentDidMount() {
    this.observer.observe(/** @type {HTMLElement} */ (this.box.current));
    if (this.props.handle) this.props.handle.current = this;
    this.place();
  }

  componentWillUnmount() {
    if (this.props.handle?.current === this) this.props.handle.current = null;
    this.observer.disconnect();
  }

  /** @param {RowsProps} next */
  componentWillUpdate(next) {
    this.take(next.order);
  }

  componentDidUpdate() {
    for (const row of this.body.current?.children ?? []) this.observer.observe(row);
    this.place();
  }

  /** @param {ResizeObserverEntry[]} entries */
  measure(entries) {
    if (!this.box.current) return;
    let changed = false;
    for (const { target, borderBoxSize } of entries) {
      if (target === this.box.current) changed = true;
      else if (target instanceof HTMLElement && target.isConnected && !this.props.fixed) {
        const key = Number(target.dataset.key);
        const height = borderBoxSize[0].blockSize;
        this.measured.set(key, height);
        const place = this.props.order.placeOf(key);
        if (this.props.order.seqAt(place) === key) changed = this.heights.set(place, height) || changed;
      }
    }
    if (changed) {
      this.place();
      this.forceUpdate();
    }
  }

  /** Scroll to where the reader was, and find the rows that are visible there. */
  place() {
    const box = this.box.current;
    if (!box) return;
    const { order } = this.props;
    if (this.following) this.scrollTo(this.heights.total + 10_000);
    else if (this.anchor && order.count) {
      this.scrollTo(this.heights.offset(order.placeOf(this.anchor.key)) + this.anchor.inside);
    }
    this.range();
  }

  /** @param {number} y */
  scrollTo(y) {
    const box = this.box.current;
    const body = this.body.current;
    if (!box || !body) return;
    const wanted = Math.max(0, Math.min(Math.round(y), this.limit()));
    if (Math.abs(box.scrollTop - wanted) >= 1) {
      // The body must be tall enough before it can be scrolled there; the next render only confirms it.
      body.style.height = `${this.heights.total}px`;
      box.scrollTop = wanted;
    }
    this.own = box.scrollTop; // the event of it, which comes later, is not the reader's
  }

  limit() {
    const box = this.box.current;
    const body = this.body.current;
    if (!box || !body) return 0;
    const around = box.scrollHeight - body.offsetHeight;
    return Math.max(0, this.heights.total + around - box.clientHeight);
  }

  scrolled = () => {
    const box = this.box.current;
    if (!box) return; // the event of a list that is gone: the browser sends it with the next frame
    if (Math.abs(box.scrollTop - this.own) >= 1) {
      this.own = -1;
      const following = box.scrollTop >= this.limit() - AT_END;
      if (following !== this.following) this.props.onFollow?.(following);
      this.following = following;
      const { order } = this.props;
      if (order.count) {
        const place = this.heights.at(box.scrollTop);
        this.anchor = { key: order.seqAt(place), inside: box.scrollTop - this.heights.offset(place) };
      }
    }
    this.range();
  };

  range() {
    const box = this.box.current;
    if (!box) return;
    const { order, onRange } = this.props;
    const first = order.count ? this.heights.at(Math.max(0, box.scrollTop - BEYOND)) : 0;
    const last = order.count ? this.heights.at(box.scrollTop + box.clientHeight + BEYOND) : -1;
    if (first !== this.state.first || last !== this.state.last) this.setState({ first, last });
    if (order.count) {
      onRange?.(order.seqAt(this.heights.at(box.scrollTop)), order.seqAt(this.heights.at(box.scrollTop + box.clientHeight)));
    }
  }

  /**
   * Scroll so that a row is visible; as little as possible, or to the middle.
   * @param {number} key
   * @param {"nearest" | "middle"} [where]
   */
  show(key, where = "nearest") {
    const box = this.box.current;
    const { order } = this.props;
    if (!box || !order.count) return;
    const place = order.placeOf(key);
    const top = this.heights.offset(place);
    const height = this.heights.offset(place + 1) - top;
    const head = this.headHeight();
    if (where === "nearest" && top >= box.scrollTop && top + height <= box.scrollTop + box.clientHeight - head) return;
    const above = where === "nearest" && top < box.scrollTop;
    const inside = where === "middle" ? (box.clientHeight - head - Math.min(height, 200)) / 2 : above ? 8 : box.clientHeight - head - height - 8;
    this.following = false;
    this.anchor = { key: order.seqAt(place), inside: -Math.max(0, inside) };
    this.props.onFollow?.(false);
    this.place();
  }

  headHeight() {
    const first = this.box.current?.firstElementChild;
    return first instanceof HTMLElement && first !== this.body.current ? first.offsetHeight : 0;
  }

  /** Go to the end and stay there. */
  follow() {
    this.following = true;
    this.props.onFollow?.(true);
    this.place();
  }

  /** @param {RowsProps} props @param {{ first: number, last: number }} state */
  render(props, { first, last }) {
    const { order } = props;
    const rows = [];
    for (let place = first; place <= Math.min(last, order.count - 1); place++) {
      const key = order.seqAt(place);
      const style = { transform: `translateY(${this.heights.offset(place)}px)`, ...(props.fixed && { height: `${props.estimate}px` }) };
      const item = { role: "listitem", "aria-setsize": order.count, "aria-posinset": place + 1 };
      rows.push(html`<div class="row-place" key=${key} data-key=${key} style=${style} ...${item}>${props.row(key, place)}</div>`);
    }
    const bodyStyle = { height: `${this.heights.total}px`, ...(props.width && { minWidth: `${props.width}px` }) };
    return html`<div
      class="rows"
      ref=${this.box}
      role=${props.role ?? "list"}
      aria-label=${props.label}
      data-testid=${props.name}
      tabindex="0"
      onScroll=${this.scrolled}
      onKeyDown=${props.onKeyDown}
    >
      ${props.head}
      <div class="rows-body" role="presentation" ref=${this.body} style=${bodyStyle}>${order.count ? rows : props.empty}</div>
      ${props.foot}
    </div>`;
  }
}
