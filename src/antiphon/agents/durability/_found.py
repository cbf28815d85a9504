"""What was found, such as the tools of a server: the same again is stored as where it was found before."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from antiphon.messages import Json, OptionResultPayload, thaw
from antiphon.runtime import FailedError, is_too_large

if TYPE_CHECKING:
    from antiphon.agents._run import LedgerRun

__all__ = ["Found"]


class Found:
    """What the operations of a run have found, by their names."""

    def __init__(self) -> None:
        self._last: dict[str, tuple[str, Json]] = {}
        self._known: dict[str, Json] = {}

    @classmethod
    def of(cls, run: LedgerRun) -> Found:
        """Return the one of a run and all its parts."""
        return run.opened.share(cls)

    def write(self, name: str, id: str, value: Json) -> Json:
        """Return what the journal says of something that was found.

        Raises:
            FailedError: it is too large to be written down. It is not cut: nobody could use half of it.
        """
        before = self._last.get(name)
        if before is not None and before[1] == value:
            return {"same_as": before[0]}
        if is_too_large(value):
            raise FailedError(f"what {name!r} found is too large to be written down", "TOO_LARGE")
        self._last[name] = (id, value)
        self._known[id] = value
        return {"found": value}

    async def read(self, run: LedgerRun, said: Any) -> Any:
        """Return what was found, as the journal says."""
        if "found" in said:
            return said["found"]
        first = said["same_as"]
        if first not in self._known:
            records = await run.ledger.by_invocation(first, thread_id=run.thread_id)
            rows = [row.message for row in records if row.message.lane == "effect"]
            (payload,) = [row.payload for row in rows if isinstance(row.payload, OptionResultPayload)]
            self._known[first] = thaw(payload.result)["found"]
        return self._known[first]
