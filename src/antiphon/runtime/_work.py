"""Work: what one attempt at a message or a run has done, and what it has open. The next attempt has another one."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from enum import StrEnum
from types import MappingProxyType
from typing import TYPE_CHECKING

from antiphon.messages import _keys

if TYPE_CHECKING:
    import asyncio

    from antiphon.errors import ParkedError
    from antiphon.messages import Message


class OpenWork:
    """What one attempt at a course has open, and why it starts nothing more."""

    open_effects: tuple[Message, ...] = ()
    """The rows of effects that it has started and not ended."""
    parked: ParkedError | None = None
    """Why it starts nothing more: an effect waits for a person."""
    parked_in: frozenset[str] = frozenset()
    """The effects in which that effect is. They get no outcome, whatever their functions make of the error."""
    doubt: ParkedError | None = None
    """Why it changes nothing more: an effect that must not be done twice has no outcome."""

    def note_parked(self, error: ParkedError, inside: Iterable[str] = ()) -> None:
        """Note that one of its effects waits for a person; `inside` are the effects and parts of its course around it."""
        self.parked, self.parked_in = self.parked or error, self.parked_in.union(inside)

    def note_doubt(self, error: ParkedError) -> None:
        """Note that one of its effects may have been done."""
        self.doubt = self.doubt or error


class Halt(StrEnum):
    """Why a handler is stopped that is not to end."""

    INTERRUPTED = "interrupted"
    """Its actor restarts or stops. A part of REDELIVER and LEAVE: it runs again, here or in the next system."""
    LEFT_TO_NEXT = "left to next"
    """The system closes, and the answer that it waits for will not come. A part of LEAVE, whatever it returns."""


class Work(OpenWork):
    """One attempt of the handler: its task, and what it has done. A parked effect is a part of LEAVE, whatever it returns."""

    task: asyncio.Task[None] | None = None
    """The task that runs it, and that may be cancelled; None: it does not run, or its outcome is being written."""
    halt: Halt | None = None
    cancellations: int = 0
    """How often the task was cancelled because the answer is not wanted or the thread was lost. A part of END and EVICT: the
    task goes on with the next message, and does not count them (`Task.uncancel`)."""
    keys: tuple[str, ...] = ()
    """The keys that it has used."""
    unnamed_count: int = 0
    """How many messages and effects it has started without a key."""
    deferred_rows: tuple[Message, ...] = ()
    """Rows that are written together with its next one."""
    marks: Mapping[str, str] = MappingProxyType({})
    """The listing fields of the thread, written with its next row."""
    is_unsure: bool = False
    """Whether the ledger may have open rows of it that are not in `open_effects`. A part of END, which reads them then."""

    def next_key(self, name: str | None = None) -> str:
        """Return the key of its next message or effect: the same in every attempt."""
        if name is None:
            self.unnamed_count += 1
            return str(self.unnamed_count)
        if not _keys.is_key(name):
            raise ValueError(f"a key is a name that is no number and has none of / # ~ =, not {name!r}")
        self.keys += (name,)
        count = self.keys.count(name)
        return _keys.counted(name, count)

    def resume_parked(self, error: ParkedError) -> None:
        """Let it start more: it waits for the person itself. After another parked effect, it still may not."""
        if self.parked is error:
            self.parked, self.parked_in = None, frozenset()
