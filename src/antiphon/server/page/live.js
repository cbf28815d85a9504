/**
 * What happens in the ledger, as it happens: the event stream of the server.
 *
 * The browser reconnects by itself behind the last event. When the server refuses (the token ended, too many streams) or the
 * thread is gone, the stream ends; then it is tried again, more and more rarely, from the last event on.
 */

import { endSession, whoAmI } from "./api.js";
import { signal } from "./lib.js";

/** @typedef {import("./api.js").StoredRecord} StoredRecord */
/** @typedef {{ speaker: string, text: string, missed: number, thread_id?: string }} Words */

/** The state of the stream that is open: "off", "connecting", "live" or "cut". */
export const connection = signal("off");

const LONGEST_WAIT = 15_000;

/**
 * Follow the ledger, or one thread of it. Return a function that ends it.
 * @param {{ thread?: string, after?: string, onRecord: (record: StoredRecord) => void, onWords?: (words: Words) => void,
 *   onOpen?: () => void, onGone?: () => void }} given
 */
export function follow({ thread, after = "now", onRecord, onWords, onOpen, onGone }) {
  /** @type {EventSource | null} */
  let source = null;
  let last = after;
  let wait = 500;
  let ended = false;
  let timer = 0;

  const open = () => {
    const query = new URLSearchParams({ after: last });
    if (thread !== undefined) query.set("thread_id", thread);
    connection.value = "connecting";
    source = new EventSource(`/api/events?${query}`);
    source.onopen = () => {
      wait = 500;
      connection.value = "live";
      onOpen?.();
    };
    source.addEventListener("record", (event) => {
      last = event.lastEventId || last;
      onRecord(JSON.parse(event.data));
    });
    source.addEventListener("words", (event) => onWords?.(JSON.parse(event.data)));
    source.addEventListener("end", (event) => {
      const { code } = JSON.parse(event.data);
      close();
      if (code === "unauthorized") endSession();
      else if (code === "unknown_thread" && onGone) onGone();
      else again();
    });
    source.onerror = () => {
      connection.value = "cut";
      if (source?.readyState === EventSource.CLOSED) {
        void whoAmI(); // the server may have ended the session
        again();
      }
    };
  };
  const close = () => {
    source?.close();
    source = null;
  };
  const again = () => {
    if (ended) return;
    connection.value = "cut";
    clearTimeout(timer);
    timer = setTimeout(open, wait);
    wait = Math.min(wait * 2, LONGEST_WAIT);
  };

  open();
  return () => {
    ended = true;
    clearTimeout(timer);
    close();
    connection.value = "off";
  };
}
