"""Talks: what the thread of a run has of the talk with models, handed from the agent of one phase to that of the next.

Each agent must know what the thread has said to models already. The first one of a turn reads it; to have the others read it
again would cost more the longer the thread is. Where anything went wrong, the next one reads.
"""

from __future__ import annotations

from antiphon.agents import LedgerRun
from antiphon.agents._budget import Amount
from antiphon.agents.durability._talk import Talk
from antiphon.ledger import Record

__all__ = ["Talks"]


class Talks:
    """By thread that runs here, what its last agent knew."""

    def __init__(self) -> None:
        self._known: dict[str, Talk] = {}

    def seen(self, record: Record) -> None:
        """Take a record that was written just now."""
        talk = self._known.get(record.message.thread_id or "")
        if talk is not None:
            talk.reach(record.seq)

    def give(self, run: LedgerRun, *, is_first: bool) -> None:
        """Let a run know what the one before it knew; `is_first`: it was not tried before."""
        talk = self._known.pop(run.thread_id, None)
        if talk is not None and is_first:
            talk.spending.run = Amount(began=run.opened.began)
            run.opened.shared[Talk] = talk

    def take(self, run: LedgerRun) -> None:
        """Keep what a run knows that has ended well, for the next one."""
        self._known[run.thread_id] = Talk.of(run)

    def forget(self, thread_id: str) -> None:
        """Keep a thread in mind no longer: its turn is over."""
        self._known.pop(thread_id, None)
