"""ActorState: the state of an actor as a fold over its thread, with versioned snapshots.

State is never stored by itself. It is computed from the messages of a thread, so a new actor, in this process or the next, has
the state of the old one. A snapshot only saves time; one of an older version is migrated step by step.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from antiphon.errors import AppendConflictError
from antiphon.ledger import Fold
from antiphon.messages import Json, Message, thaw

if TYPE_CHECKING:
    from antiphon.runtime._journal import Journal

StateT = TypeVar("StateT")


def _no_migrations() -> Mapping[int, Callable[[Any], Any]]:
    return {}


@dataclass(frozen=True)  # without slots, which `ActorState[int](...)` cannot be made with before Python 3.13
class ActorState(Generic[StateT]):
    """A fold over the messages of a thread."""

    name: str
    initial: StateT
    step: Callable[[StateT, Message], StateT]
    """Returns the state after one more message; must be pure."""
    dump: Callable[[StateT], Json]
    load: Callable[[Any], StateT]
    version: int = 1
    """Of the output of `dump`: increase it when that changes."""
    migrations: Mapping[int, Callable[[Any], Any]] = field(default_factory=_no_migrations)
    """By version, the function that migrates a dump to the next version."""
    every: int = 100
    """A snapshot is made after so many messages."""

    def fold(self) -> Fold[StateT]:
        """Return it as a `Fold`, which a ledger replays."""
        return Fold(self.name, self.initial, self.step, self._dump, self._load)

    def _dump(self, state: StateT) -> Json:
        return {"version": self.version, "state": self.dump(state)}

    def _load(self, stored: Json) -> StateT:
        """Read a snapshot.

        Raises:
            ValueError: it is of a later version, or there is no way from its version to this one.
        """
        form: Any = thaw(stored)
        version, state = form["version"], form["state"]
        if version > self.version:
            raise ValueError(f"the snapshot of {self.name!r} is of version {version}, later than {self.version}")
        for number in range(version, self.version):
            if number not in self.migrations:
                raise ValueError(f"there is no migration of {self.name!r} from version {number} to {number + 1}")
            state = self.migrations[number](state)
        return self.load(state)


class States:
    """A cache of the states of threads, so that each message is folded once."""

    def __init__(self, journal: Journal, limit: int = 1000) -> None:
        self._journal = journal
        self._limit = limit
        self._known: dict[tuple[str, str], tuple[int, Any]] = {}

    async def get(self, thread_id: str, upto: int, state: ActorState[StateT]) -> StateT:
        """Return the state of a thread, up to and including a message.

        Raises:
            LedgerError: it cannot be read.
        """
        key = (thread_id, state.name)
        # Taken out and put back: two reads at once then fold twice, but never store a half-folded state.
        known: tuple[int, StateT] = self._known.pop(key, (0, state.initial))
        seq, value = known
        if not 0 < seq <= upto:
            value = await self._journal.ledger.replay(thread_id, state.fold(), upto=upto)
        else:
            async for record in self._journal.ledger.read(thread_id, seq, upto + 1):
                value = state.step(value, record.message)
        self._known[key] = (upto, value)
        if len(self._known) > self._limit:
            del self._known[next(iter(self._known))]
        if upto // state.every > seq // state.every:
            await self._keep(thread_id, upto, state, value)
        return value

    def forget(self, thread_id: str) -> None:
        """Drop the states of a thread that another host has."""
        for key in [key for key in self._known if key[0] == thread_id]:
            del self._known[key]

    async def _keep(self, thread_id: str, upto: int, state: ActorState[StateT], value: StateT) -> None:
        """Make a snapshot, unless the thread has grown meanwhile: then the next one is early enough."""
        with suppress(AppendConflictError):
            await self._journal.write(thread_id, (), expected_version=upto, snapshot=state.fold().snapshot(value))
