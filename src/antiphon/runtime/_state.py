"""ActorState: what an actor knows, as a fold over a thread, with snapshots that have a version.

State is never stored by itself. It is what the messages of a thread amount to, so that a new actor, in this process or
the next, knows what the old one knew. A snapshot only makes it quicker; one of an older version is migrated step by
step.
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
    """A way to know something from what was said in a thread."""

    name: str
    initial: StateT
    step: Callable[[StateT, Message], StateT]
    """What it is after one more message; must be pure."""
    dump: Callable[[StateT], Json]
    load: Callable[[Any], StateT]
    version: int = 1
    """Of what `dump` writes: raise it when that changes."""
    migrations: Mapping[int, Callable[[Any], Any]] = field(default_factory=_no_migrations)
    """By version, what makes the next version's form of it."""
    every: int = 100
    """After how many messages a snapshot is made."""

    def fold(self) -> Fold[StateT]:
        """Return it in the form that a ledger replays."""
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
    """The states of threads as far as they are known, so that each message is folded once."""

    def __init__(self, journal: Journal, limit: int = 1000) -> None:
        self._journal = journal
        self._limit = limit
        self._known: dict[tuple[str, str], tuple[int, Any]] = {}

    async def get(self, thread_id: str, upto: int, state: ActorState[StateT]) -> StateT:
        """Return what a thread amounts to, up to and including a message.

        Raises:
            LedgerError: it cannot be read.
        """
        key = (thread_id, state.name)
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

    async def _keep(self, thread_id: str, upto: int, state: ActorState[StateT], value: StateT) -> None:
        """Make a snapshot, unless somebody has said something meanwhile: then the next one will do."""
        with suppress(AppendConflictError):
            await self._journal.write(thread_id, (), expected_version=upto, snapshot=state.fold().snapshot(value))
