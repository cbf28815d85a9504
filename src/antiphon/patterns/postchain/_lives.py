"""Lives: where threads are that were begun here just now, known from what was written without reading it again.

Most threads are created, started and run by one process in one go. Until their run begins, their life is folded row by row as
the system writes them; whoever needs it then does not ask the ledger. Of all other threads, and of all later moments, the
ledger is asked.
"""

from __future__ import annotations

from typing import Final, NamedTuple

from antiphon.ledger import Record
from antiphon.messages import Message, OptionCallPayload
from antiphon.patterns.postchain._life import LIFE, ThreadLife
from antiphon.protocol import CreateThread

__all__ = ["Lives"]

_MOST: Final = 10_000
"""How many are kept: threads may be created and never started."""


class _Known(NamedTuple):
    seq: int
    """Up to where it is known."""
    changed: int
    """The last row that has changed it."""
    life: ThreadLife


_NEW: Final = _Known(0, 0, LIFE.initial)


class Lives:
    """The lives of threads that have begun here and do not run yet."""

    def __init__(self) -> None:
        self._known: dict[str, _Known] = {}

    def seen(self, record: Record) -> None:
        """Take a record that was written just now. Where one was missed, by another process, the ledger knows better."""
        thread_id = record.message.thread_id or ""
        known = _NEW if record.seq == 1 and _creates(record.message) else self._known.get(thread_id)
        if known is None or record.seq <= known.seq:
            return
        if record.seq > known.seq + 1:
            del self._known[thread_id]
            return
        life = known.life.after(record.message)
        self._known[thread_id] = _Known(record.seq, known.changed if life is known.life else record.seq, life)
        if len(self._known) > _MOST:
            del self._known[next(iter(self._known))]

    def at(self, thread_id: str, seq: int) -> ThreadLife | None:
        """Return where a thread was after a row; None if that is not known here."""
        known = self._known.get(thread_id)
        return known.life if known is not None and known.changed <= seq <= known.seq else None

    def latest(self, thread_id: str) -> ThreadLife | None:
        """Return where a thread is; None if that is not known here."""
        known = self._known.get(thread_id)
        return None if known is None else known.life

    def forget(self, thread_id: str) -> None:
        """Keep a thread in mind no longer: it runs, and its actor knows where it is."""
        self._known.pop(thread_id, None)


def _creates(message: Message) -> bool:
    payload = message.payload
    return isinstance(payload, OptionCallPayload) and payload.option_name == CreateThread.message_type
