"""The values that a ledger takes and returns besides messages and records: heads, summaries, snapshots, hits, damages."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import datetime
from decimal import Decimal
from pathlib import Path
from typing import Generic, Literal, Protocol, TypeAlias, TypeVar, runtime_checkable

from antiphon.ledger._encryption import WrappedKey
from antiphon.ledger._hosts import Unfit
from antiphon.ledger._records import Record
from antiphon.messages import Json, Message

StateT = TypeVar("StateT")


@dataclass(frozen=True, slots=True)
class Head:
    """The end of a thread. A head that is kept elsewhere proves later that no message up to it was changed or removed."""

    thread_id: str
    seq: int
    """The number of its messages: the version that `expected_version` is compared with."""
    hash: str
    """The last link of its chain."""
    epoch: int = field(default=0, compare=False)
    """The epoch of its owner; 0 if it was never claimed."""


@dataclass(frozen=True, slots=True)
class ThreadSummary:
    """The summary of a thread. The ledger stores it with the thread, so listing threads reads no messages."""

    thread_id: str
    status: str | None
    """The last status that an append has set."""
    pattern: str | None
    """The last pattern that an append has set; `system` for the runtime's own threads."""
    messages: int
    """The number of messages, including those that a branch shares with its origin."""
    open_calls: int
    """Calls without a result, in all lanes."""
    created_at: datetime
    updated_at: datetime
    input_tokens: int
    """The sum of the usage recorded in this thread. Messages that a branch shares count for its origin only."""
    output_tokens: int
    cost: Decimal
    forked_from: str | None
    forked_at: int | None
    owner: str | None = None
    """The name of the host that owns it, alive or not; None if no host owns it."""
    kind: str | None = None
    """The kind of host that can run it; None if unknown."""
    due_at: datetime | None = None
    """When a host may take it; while a living host owns it, none may."""
    unfit: tuple[Unfit, ...] = ()
    """The builds that cannot continue it, and why."""
    moved_to: str | None = None
    """The URL of the ledger that it was moved to, and continues in."""
    head: Head = field(kw_only=True)
    """Its end, which proves later what it had."""


ThreadOrder: TypeAlias = Literal["-updated_at", "updated_at", "-created_at", "created_at"]
"""`-` means newest first."""


@dataclass(frozen=True, slots=True)
class ThreadFilter:
    """Conditions on threads. A field that is None sets no condition."""

    status: str | None = None
    pattern: str | None = None
    system: bool | None = None
    """True: only threads of pattern `system`. False: only the others."""
    forked_from: str | None = None
    updated_after: datetime | None = None
    updated_before: datetime | None = None
    created_after: datetime | None = None
    created_before: datetime | None = None
    open_calls: bool | None = None
    """True: only threads with open calls. False: only those without."""
    owner: str | None = None
    """The name of a host."""
    kind: str | None = None
    unfit: bool | None = None
    """True: only threads that a build cannot continue. False: only the others."""
    due_before: datetime | None = None
    """Only threads that no host owns, and that were due before this time. Those of dead hosts are listed by `owner`."""
    min_tokens: int | None = None
    """The least sum of input and output tokens."""
    min_cost: Decimal | None = None
    """The least cost."""


@dataclass(frozen=True, slots=True)
class ThreadPage:
    """A page of threads, and where the next page begins."""

    threads: tuple[ThreadSummary, ...]
    next: str | None
    """Pass it as `page` to get the next page; None at the end."""


@dataclass(frozen=True, slots=True)
class ThreadCount:
    """The number of threads that have the same status and the same pattern."""

    status: str | None
    pattern: str | None
    threads: int
    open: int
    """How many of them have open calls."""


@dataclass(frozen=True, slots=True)
class Tailed:
    """A record as it comes out of `tail`."""

    record: Record
    cursor: str
    """Pass it to `tail` to continue after this record."""


@dataclass(frozen=True, slots=True)
class ThreadStanding:
    """The stored data of a thread other than its rows. The hash chain does not cover it."""

    created_at: datetime
    updated_at: datetime
    status: str | None = None
    pattern: str | None = None
    kind: str | None = None
    due_at: datetime | None = None
    posted: int = 0
    """The place of the last posted message that no owner has reported as seen; 0: none."""


@dataclass(frozen=True, slots=True)
class ThreadJournal:
    """The rows of a thread as they were read, for `restore`. Of a branch, only its own rows, not those that it shares."""

    thread_id: str
    records: tuple[Record, ...]
    forked_from: str | None = None
    forked_at: int | None = None
    key: WrappedKey | None = None
    """The key of an encrypted thread, wrapped by the master key of the ledger that it was read from."""
    standing: ThreadStanding | None = None
    """Its status, times and waiting work; None: they are not known, or not trusted."""


CallOrder: TypeAlias = Literal["recorded_at", "-recorded_at"]
"""`-` means newest first."""


@dataclass(frozen=True, slots=True)
class CallPage:
    """A page of the open calls of all threads, and where the next page begins."""

    calls: tuple[Record, ...]
    """The message of each record names its thread."""
    next: str | None
    """Pass it as `page` to get the next page; None at the end."""


@dataclass(frozen=True, slots=True)
class Snapshot:
    """The state of a fold after the last message of an append, to be stored with that append."""

    fold: str
    state: Json


@dataclass(frozen=True)  # no slots: with them, `Fold[int](…)` fails below Python 3.12
class Fold(Generic[StateT]):
    """Reduces a thread to one value, message by message. It can start from a snapshot."""

    name: str
    """Change it when the meaning of the state changes: `replay` ignores snapshots of another name."""
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
    """The difference of two threads: how many messages they begin with in common, and the rest of each."""

    common: int
    """The number of messages at the beginning that are equal, apart from the thread that they are in."""
    left: tuple[Record, ...]
    """The rest of the first thread."""
    right: tuple[Record, ...]
    """The rest of the second thread."""


@dataclass(frozen=True, slots=True)
class Hit:
    """A message that `search` found."""

    record: Record
    snippet: str
    """The words around the match, with the match in «»."""


@dataclass(frozen=True, slots=True)
class Damage:
    """Stored data that differs from what was written."""

    thread_id: str | None
    seq: int | None
    """The place of the first wrong message; None if the damage is not in one message."""
    what: str


@dataclass(frozen=True, slots=True)
class Diagnosis:
    """One finding of a store about its own condition."""

    what: str
    """The setting or fact that was examined, such as `synchronous`."""
    value: str
    """Its value, as text for display."""
    advice: str | None = None
    """What to change; None if it is as it should be."""

    @property
    def is_good(self) -> bool:
        """Whether nothing needs to be changed."""
        return self.advice is None


@runtime_checkable
class Maintained(Protocol):
    """What only a store with a file or a server of its own does, beside its contract."""

    async def tail_lag(self) -> float:
        """Return the lag of `tail` in seconds: the age of the oldest committed record that it does not return yet.

        A store with concurrent transactions holds back a record until no earlier transaction runs. Other stores return 0.
        """
        ...

    async def backup(self, path: str | Path) -> None:
        """Write a consistent copy to a new file. The ledger can be used meanwhile.

        Raises:
            FileExistsError: the file exists already.
            ValueError: the ledger has no file to copy.
        """
        ...

    async def diagnose(self) -> tuple[Diagnosis, ...]:
        """Return the findings, with advice where something should be changed. Nothing is written.

        Raises:
            LedgerUnavailableError: the store cannot be reached.
        """
        ...


@dataclass(frozen=True, slots=True)
class Verification:
    """The result of `verify`: how much it checked, and the damages."""

    threads: int
    messages: int
    damages: tuple[Damage, ...]
    """At most one per thread: behind the first damage, a chain proves nothing."""

    @property
    def is_whole(self) -> bool:
        """Whether no damage was found."""
        return not self.damages
