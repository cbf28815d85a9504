"""Talks: what the thread of a run has of the talk with models, handed from the agent of one phase to that of the next.

Each agent must know what the thread has said to models already. The first one reads it; to have the others read it again
would cost more the longer the thread is. So of long threads it is kept from turn to turn, of a limited number of them. Where
anything went wrong, or somebody else has written, the next one reads.
"""

from __future__ import annotations

from typing import Final

from antiphon.agents import LedgerRun
from antiphon.agents._budget import Amount
from antiphon.agents.durability._talk import Talk
from antiphon.ledger import Record

__all__ = ["Talks"]


_LONG: Final = 200
"""Rows from which on a thread is long: to read fewer takes less than keeping them in mind."""
_MOST: Final = 1_000
"""Long threads that are kept in mind between their turns."""

_NO_RUN: Final = "/"
"""What no run is called."""


class Talks:
    """By thread, what its last agent knew; the one that was kept last is the last."""

    def __init__(self) -> None:
        self._known: dict[str, Talk] = {}

    def seen(self, record: Record) -> None:
        """Take a record that was written just now."""
        talk = self._known.get(record.message.thread_id or "")
        if talk is None:
            return
        if record.seq > talk.seq + 1:
            del self._known[record.message.thread_id or ""]  # there are rows that it does not know
        else:
            talk.reach(record.seq)
            talk.guards.heard(record.message, _NO_RUN)

    def give(self, run: LedgerRun, *, is_first: bool) -> None:
        """Let a run know what the one before it knew; `is_first`: it was not tried before."""
        talk = self._known.pop(run.thread_id, None)
        if talk is not None and is_first:
            talk.spending.run = Amount(began=run.opened.began)
            run.opened.shared[Talk] = talk

    def take(self, run: LedgerRun) -> None:
        """Keep what a run knows that has ended well, for the next one."""
        self._known[run.thread_id] = Talk.of(run)

    def rest(self, thread_id: str) -> None:
        """Keep a thread in mind only if it is long: its turn is over."""
        talk = self._known.pop(thread_id, None)
        if talk is not None and talk.seq >= _LONG:
            self._known[thread_id] = talk
            if len(self._known) > _MOST:
                del self._known[next(iter(self._known))]
