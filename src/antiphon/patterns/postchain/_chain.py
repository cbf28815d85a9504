"""Chain: the shared state of the actors of one chain: settings, agents, gates, events, and the threads that run here.

A run knows the talk of its thread with models. The agent of the first phase reads it. Reading it again for each phase would
cost more the longer the thread is. So `TalkCache` passes it from the agent of one phase to the next, and keeps the talk of a
limited number of long threads between turns. After an error, or if another process has written, the next agent reads it again.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Mapping
from typing import Final, Unpack

from antiphon.agents import LedgerRun
from antiphon.agents.extending import Amount, ThreadTalk
from antiphon.ledger import Ledger, Record
from antiphon.patterns.cast import CastOptions
from antiphon.patterns.postchain._cast import ChainCast, OwnAgent
from antiphon.patterns.postchain._config import ChainConfig
from antiphon.patterns.postchain._events import ChainEvents, log_flow
from antiphon.patterns.postchain._lifecycle import LIFE, RecentLives, ThreadLife
from antiphon.protocol import PHASES, Phase
from antiphon.runtime.extending import Gates, GateState

_LONG: Final = 200
"""Rows from which a thread counts as long. Reading a shorter one is cheaper than caching it."""
_MOST: Final = 1_000
"""Long threads that stay cached between their turns."""

_NO_RUN: Final = "/"
"""An id that no run has."""


class TalkCache:
    """By thread, the talk as known to its last agent; the latest entry is last."""

    def __init__(self) -> None:
        self._known: dict[str, ThreadTalk] = {}

    def seen(self, record: Record) -> None:
        """Read a new record."""
        talk = self._known.get(record.message.thread_id or "")
        if talk is None:
            return
        if record.seq > talk.seq + 1:
            del self._known[record.message.thread_id or ""]  # there are rows that it has not read
        else:
            talk.reach(record.seq)
            talk.guards.heard(record.message, _NO_RUN)

    def give(self, run: LedgerRun, *, is_first: bool) -> None:
        """Pass the talk of the previous run to a run; `is_first`: it is the first attempt."""
        talk = self._known.pop(run.thread_id, None)
        if talk is not None and is_first:
            talk.spending.run = Amount(began=run.opened.began)
            run.opened.shared[ThreadTalk] = talk

    def take(self, run: LedgerRun) -> None:
        """Keep the talk of a successful run for the next one."""
        self._known[run.thread_id] = ThreadTalk.of(run)

    def forget(self, thread_id: str) -> None:
        """Drop a thread."""
        self._known.pop(thread_id, None)

    def rest(self, thread_id: str) -> None:
        """Keep a thread cached after its turn only if it is long."""
        talk = self._known.pop(thread_id, None)
        if talk is not None and talk.seq >= _LONG:
            self._known[thread_id] = talk
            if len(self._known) > _MOST:
                del self._known[next(iter(self._known))]


class Chain:
    """The shared state of all actors of a chain."""

    gates: Gates
    """The gates of the system that hosts the chain."""

    def __init__(
        self,
        ledger: Ledger,
        config: ChainConfig,
        agents: Mapping[Phase, OwnAgent] | None = None,
        **cast: Unpack[CastOptions],
    ) -> None:
        self.ledger = ledger
        self.config = config
        self.cast = ChainCast(ledger, config, agents, **cast)
        self.order: tuple[str, ...] = PHASES
        """The names of the phases, in their order."""
        self.events = ChainEvents(ledger)
        self.lives = RecentLives()
        self.talks = TalkCache()
        self.at_work: dict[str, asyncio.Event] = {}
        """The threads that run here, each with an event that is set when its run has ended."""
        self.delegated: Counter[str] = Counter()
        """By thread of another pattern, how many runs of the phases are active in it."""

    def waits_for(self, run: LedgerRun | None) -> bool:
        """Whether the phases wait for a run: a request to them from that run would wait for itself."""
        if run is None:
            return False
        is_inside = run.agent in self.order and self.delegated[run.thread_id] > 0
        return is_inside or run.thread_id in self.at_work

    def seen(self, record: Record) -> None:
        """Read a new record."""
        self.cast.seen(record)
        self.lives.seen(record)
        self.talks.seen(record)
        self.events.seen(record)
        log_flow(record)

    def lacks_phase(self, life: ThreadLife) -> str | None:
        """Return the reason why the phases of a thread cannot run here; None: they can."""
        missing = [phase for phase in life.order if phase not in self.order]
        named = ", ".join(repr(phase) for phase in missing)
        return f"its phases are those of the program that the thread is of: {named}" if missing else None

    def forget(self, thread_id: str) -> None:
        """Drop the cached state of a thread that another host may own now."""
        self.lives.forget(thread_id)
        self.talks.forget(thread_id)

    async def look(self, thread_id: str) -> GateState | None:
        """Return the state of the gate of a thread; None if it is not one of this pattern."""
        life = self.lives.latest(thread_id)
        if life is None:
            life = await self.ledger.replay(thread_id, LIFE.fold())
        if life.status == "none":
            return None
        return "closed" if life.status == "paused" else "over" if life.status == "terminated" else "open"
