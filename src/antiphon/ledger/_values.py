"""What goes into a ledger beside messages and comes out of it beside records: heads, summaries, snapshots, hits, damages."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import datetime
from decimal import Decimal
from typing import Generic, Literal, TypeAlias, TypeVar

from antiphon.ledger._chain import Record
from antiphon.ledger._hosts import Unfit
from antiphon.messages import Json, Message

StateT = TypeVar("StateT")


@dataclass(frozen=True, slots=True)
class Head:
    """Where a thread ends. Kept somewhere else, it proves later that nothing up to here was changed or cut off."""

    thread_id: str
    seq: int
    """How many messages it has: the version that `expected_version` speaks of."""
    hash: str
    """The last link of its chain."""
    epoch: int = field(default=0, compare=False)
    """The epoch of its owner; 0 if it was never claimed."""


@dataclass(frozen=True, slots=True)
class ThreadSummary:
    """What a thread amounts to, kept beside its head, so that a list of threads reads no message."""

    thread_id: str
    status: str | None
    """As its owner's appends say."""
    pattern: str | None
    """As its owner's appends say; `system` for the threads of the machinery itself."""
    messages: int
    """All of them; those that a branch shares with its origin too."""
    open_calls: int
    """Calls without a result, in all lanes."""
    created_at: datetime
    updated_at: datetime
    input_tokens: int
    """Of the usage that was recorded in this thread itself; what a branch shares was paid for by its origin."""
    output_tokens: int
    cost: Decimal
    forked_from: str | None
    forked_at: int | None
    owner: str | None = None
    """The name of the host that owns it, whether it lives or not; None if no host does."""
    kind: str | None = None
    """What kind of host can run it; None if that is not known."""
    due_at: datetime | None = None
    """When it has something to do, if nobody owns it."""
    unfit: tuple[Unfit, ...] = ()
    """The builds that cannot continue it, and why."""


ThreadOrder: TypeAlias = Literal["-updated_at", "updated_at", "-created_at", "created_at"]
"""Newest first is `-`."""


@dataclass(frozen=True, slots=True)
class ThreadFilter:
    """Which threads; what is None is not asked."""

    status: str | None = None
    pattern: str | None = None
    system: bool | None = None
    """Whether threads of pattern `system`, or only the others."""
    forked_from: str | None = None
    updated_after: datetime | None = None
    updated_before: datetime | None = None
    created_after: datetime | None = None
    created_before: datetime | None = None
    open_calls: bool | None = None
    """Whether threads with open calls, or only those without."""
    owner: str | None = None
    """The name of a host."""
    kind: str | None = None
    unfit: bool | None = None
    """Whether threads that a build cannot continue, or only the others."""
    min_tokens: int | None = None
    """Input and output tokens together, at least."""
    min_cost: Decimal | None = None
    """The cost, at least."""


@dataclass(frozen=True, slots=True)
class ThreadPage:
    """Some threads, and where the next ones begin."""

    threads: tuple[ThreadSummary, ...]
    next: str | None
    """Give it as `page` to go on; None at the end."""


@dataclass(frozen=True, slots=True)
class Tailed:
    """A record as it comes out of `tail`."""

    record: Record
    cursor: str
    """Everything up to and including this record has been seen: give it to `tail` to go on after it."""


@dataclass(frozen=True, slots=True)
class ThreadJournal:
    """The rows of a thread as they were read, to be restored elsewhere; of a branch, those that are its own."""

    thread_id: str
    records: tuple[Record, ...]
    forked_from: str | None = None
    forked_at: int | None = None


CallOrder: TypeAlias = Literal["recorded_at", "-recorded_at"]
"""Newest first is `-`."""


@dataclass(frozen=True, slots=True)
class CallPage:
    """Some open calls of all threads, and where the next ones begin."""

    calls: tuple[Record, ...]
    """Each in the thread that its message names."""
    next: str | None
    """Give it as `page` to go on; None at the end."""


@dataclass(frozen=True, slots=True)
class Snapshot:
    """The state of a fold, to be kept with an append: what it is after the append's last message."""

    fold: str
    state: Json


@dataclass(frozen=True)  # no slots: with them, `Fold[int](…)` fails below Python 3.12
class Fold(Generic[StateT]):
    """A way to make one value out of a thread, message by message, that can go on from a snapshot."""

    name: str
    """Change it when states change their meaning: snapshots of another name are not used."""
    initial: StateT
    step: Callable[[StateT, Message], StateT]
    """Must be pure: no clock, no network, no random source."""
    dump: Callable[[StateT], Json]
    load: Callable[[Json], StateT]

    def snapshot(self, state: StateT) -> Snapshot:
        """Return a state in the form that `append` takes."""
        return Snapshot(self.name, self.dump(state))


@dataclass(frozen=True, slots=True)
class Diff:
    """How two threads differ: alike up to a point, then each its own way."""

    common: int
    """How many messages at the beginning are the same, but for the thread that they are in."""
    left: tuple[Record, ...]
    """What the first thread goes on with."""
    right: tuple[Record, ...]


@dataclass(frozen=True, slots=True)
class Hit:
    """A message that `search` found."""

    record: Record
    snippet: str
    """The words around the match, with the match in «»."""


@dataclass(frozen=True, slots=True)
class Damage:
    """Something that is not as it was written."""

    thread_id: str | None
    seq: int | None
    """The first message of the thread that is wrong; None where it is about more than a message."""
    what: str


@dataclass(frozen=True, slots=True)
class Verification:
    """What `verify` looked at and found."""

    threads: int
    messages: int
    damages: tuple[Damage, ...]
    """At most one a thread: what comes after the first damage in a chain proves nothing."""

    @property
    def is_whole(self) -> bool:
        """Whether all is as it was written."""
        return not self.damages
