"""Recent: the latest messages outside of threads that have an id of their own, so that the same gets the same answer."""

from __future__ import annotations

from collections import OrderedDict
from typing import TYPE_CHECKING

from antiphon.errors import AntiphonError

if TYPE_CHECKING:
    from antiphon.messages import Message
    from antiphon.runtime._envelope import Envelope

__all__ = ["Recent"]


class Recent:
    """Messages by their id, in hand or answered. What failed in a way that may pass is not held against a second try."""

    def __init__(self, limit: int = 10_000) -> None:
        self._limit = limit
        self._kept: OrderedDict[str, Envelope] = OrderedDict()
        self._stored: OrderedDict[tuple[str, str], str] = OrderedDict()
        """By thread and the id that its sender knows, the id that a message has in the thread."""

    def knows(self, envelope: Envelope) -> bool:
        """Whether the same message came before; if so, its outcome is shared. If not, it is kept."""
        known = self._kept.get(envelope.id)
        if known is not None and not _may_pass(known):
            known.share(envelope)
            return True
        self._kept[envelope.id] = envelope
        if len(self._kept) > self._limit:
            self._kept.popitem(last=False)
        return False

    def message(self, id: str) -> Message | None:
        """Return a message by its id."""
        known = self._kept.get(id)
        return None if known is None else known.message

    def note_stored(self, thread_id: str, id: str, stored_id: str) -> None:
        """Keep the id that a message has in a thread, where its sender knows it by another."""
        self._stored[thread_id, id] = stored_id
        self._stored.move_to_end((thread_id, id))
        if len(self._stored) > self._limit:
            self._stored.popitem(last=False)

    def stored_id(self, thread_id: str, id: str) -> str | None:
        """Return the id that a message has in a thread; None if it is not kept, or has no other."""
        return self._stored.get((thread_id, id))


def _may_pass(envelope: Envelope) -> bool:
    error = None if envelope.outcome is None else envelope.outcome[1]
    return isinstance(error, AntiphonError) and error.retryable
