"""Invocations: a call of a tool is executed once, however often its run makes it under the same id.

What was executed is in the ledger, and a further call gets its result from there. Kept here is only what the ledger cannot
say: which calls are at work now, so that a second one waits, and what each id of this run stands for.
"""

from __future__ import annotations

from asyncio import Lock
from weakref import WeakValueDictionary

from antiphon.agents._run import LedgerRun
from antiphon.agents.durability._talk import guards_of
from antiphon.agents.toolkit._call import Call
from antiphon.agents.toolkit._errors import INVOCATION_REUSED, ToolRefusal
from antiphon.errors import HistoryMismatchError

__all__ = ["Invocations"]


class Invocations:
    """The calls of a run and all its parts, by their ids."""

    def __init__(self) -> None:
        self._digests: dict[tuple[str, str], str] = {}
        """By course and id: the digest of the call that was started under it."""
        self._at_work: WeakValueDictionary[tuple[str, str], Lock] = WeakValueDictionary()

    @classmethod
    def of(cls, run: LedgerRun) -> Invocations:
        """Return the one of a run and all its parts."""
        return run.opened.share(cls)

    def turn(self, run: LedgerRun, id: str) -> Lock:
        """Return what a call holds while it is at work."""
        return self._at_work.setdefault(_place(run, id), Lock())

    async def check(self, run: LedgerRun, id: str, call: Call) -> None:
        """Refuse an id that stands for another call: other arguments, another tool or another agent.

        Raises:
            ToolRefusal: it does, in this program.
            HistoryMismatchError: it does in the thread, and this program has not made that call again.
        """
        place = _place(run, id)
        if (known := self._digests.get(place)) is not None:
            if known != call.digest:
                raise ToolRefusal(INVOCATION_REUSED, f"{id!r} is the id of another call: give this one an id of its own")
        elif run.is_again and (await guards_of(run)).calls.get(place, call.digest) != call.digest:
            reason = f"the program calls {call.tool!r} under the id {id!r}, which is another call in thread {run.thread_id!r}"
            raise HistoryMismatchError(reason, run.course.to)

    def keep(self, run: LedgerRun, id: str, call: Call) -> None:
        """Know that a call is started under its id."""
        self._digests[_place(run, id)] = call.digest


def _place(run: LedgerRun, id: str) -> tuple[str, str]:
    return run.course.invocation_id, id
