"""The values of the front doors: what commands print with `--json`, what the API answers, and so its OpenAPI schema.

A value is frozen and plain: texts, numbers, times and other values. `of` makes it of what the ledger, the runtime or the
agents have.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import asdict, is_dataclass
from datetime import datetime, timedelta
from decimal import Decimal
from typing import TYPE_CHECKING, Annotated, Any, Final, TypeAlias

import orjson
from pydantic import BaseModel, ConfigDict, WithJsonSchema

from antiphon.messages import current_port, thaw
from antiphon.messages._json_values import with_big_ints

if TYPE_CHECKING:
    from antiphon.agents.toolkit import Approval
    from antiphon.durable import RunStatus
    from antiphon.ledger import Diff, Hit, HostStatus, LimitStatus, Record, ThreadSummary
    from antiphon.patterns.postchain import ChainEvent, Divergence
    from antiphon.runtime import DeadLetter

Money: TypeAlias = Annotated[Decimal, WithJsonSchema({"type": "number"})]
Stored: TypeAlias = Annotated[Any, WithJsonSchema({"type": "object", "description": "A message in the house format."})]
"""The bytes of a message, as they are stored."""
OpenHalf: TypeAlias = Annotated[
    tuple[int, str],
    WithJsonSchema({"type": "array", "items": {"type": ["integer", "string"]}, "minItems": 2, "maxItems": 2}),
]
"""A message and the invocation whose other half is not in the window."""
AnyJson: TypeAlias = Annotated[Any, WithJsonSchema({"description": "Any JSON value."})]
INDEX_LANES: Final = ("talk", "control", "effect")
INDEX_KINDS: Final = ("said", "called", "answered", "failed")
INDEX_MARKS: Final = ("", "approval", "parked", "retried", "restarted", "taken_over")


class Value(BaseModel):
    """What a front door answers."""

    model_config = ConfigDict(frozen=True, from_attributes=True)


# ---------------------------------------------------------------- as JSON


def to_json(value: object, option: int = 0) -> bytes:
    """Return a value as JSON text: dataclasses and models by their fields, with exact numbers of any size."""
    option |= orjson.OPT_NON_STR_KEYS
    try:
        return orjson.dumps(value, _plain, option)
    except TypeError:
        return orjson.dumps(with_big_ints(_all_plain(value)), _plain, option)


def _plain(value: Any) -> Any:
    if isinstance(value, Value):
        return {name: getattr(value, name) for name in type(value).model_fields}
    if isinstance(value, BaseModel):  # of a message
        return value.model_dump(mode="json", exclude_none=True)
    if isinstance(value, Decimal):
        return orjson.Fragment(f"{value:f}")  # every digit of it
    if isinstance(value, tuple | set | frozenset):
        return list(value)  # pyright: ignore[reportUnknownArgumentType, reportUnknownVariableType]
    return thaw(value)


def _all_plain(value: Any) -> Any:
    """Return a value as dicts and lists, for the rare one with an integer that orjson does not write."""
    if isinstance(value, BaseModel):
        return {name: _all_plain(item) for name, item in _plain(value).items()}
    if is_dataclass(value) and not isinstance(value, type):
        return _all_plain(asdict(value))
    if isinstance(value, Mapping):
        return {str(key): _all_plain(item) for key, item in value.items()}  # pyright: ignore[reportUnknownVariableType, reportUnknownArgumentType]
    if isinstance(value, list | tuple):
        return [_all_plain(item) for item in value]  # pyright: ignore[reportUnknownVariableType]
    return value


# ---------------------------------------------------------------- threads


class RunValue(Value):
    """An open run of a program in a thread."""

    id: str
    name: str | None
    status: str
    owner: str | None
    """The living host that owns its thread."""
    began_at: datetime
    ended_at: datetime | None
    attempts: int
    """How often it was started or continued."""
    reason: str | None
    """Why it is parked, failed, stopped or waiting."""

    @property
    def age(self) -> timedelta:
        """The time since its start, until now or until its end."""
        return (self.ended_at or current_port().now()) - self.began_at


class UnfitValue(Value):
    """A build that cannot continue a thread."""

    build: str
    reason: str
    at: datetime
    """When it released the thread."""


class ThreadValue(Value):
    """A thread."""

    thread_id: str
    status: str | None
    """That of its open runs; otherwise its own, or `stopped` if the process that worked on it has died."""
    pattern: str | None
    kind: str | None
    messages: int
    open_calls: int
    created_at: datetime
    updated_at: datetime
    input_tokens: int
    output_tokens: int
    cost: Money
    forked_from: str | None
    forked_at: int | None
    owner: str | None
    title: str | None = None
    """The beginning of its first question, if titles are asked for."""
    runs: tuple[RunValue, ...] = ()
    unfit: tuple[UnfitValue, ...] = ()
    moved_to: str | None = None
    """The ledger that it was moved to, and continues in."""
    waits_for: str | None = None
    """Why none of the living hosts continues it, and what to do."""

    @classmethod
    def of(cls, thread: ThreadSummary, status: str | None = None, runs: Iterable[RunStatus] = ()) -> ThreadValue:
        """Return a thread of the ledger. `status` is that of its runs."""
        fields = {name: getattr(thread, name) for name in _OF_SUMMARY}
        of_runs = tuple(RunValue.model_validate(run) for run in runs)
        return cls.model_construct(**fields, status=status or thread.status, runs=of_runs, unfit=unfit_builds(thread))


_OF_SUMMARY: Final = (
    *("thread_id", "pattern", "kind", "messages", "open_calls", "created_at", "updated_at", "input_tokens", "output_tokens"),
    *("cost", "forked_from", "forked_at", "owner", "moved_to"),
)


def unfit_builds(thread: ThreadSummary) -> tuple[UnfitValue, ...]:
    """Return the builds that cannot continue what is open in a thread, and why; empty if nothing is open."""
    if not thread.open_calls:
        return ()
    one_line = ((unfit, "; ".join(unfit.reason.splitlines())) for unfit in thread.unfit)
    return tuple(UnfitValue(build=unfit.build, reason=reason, at=unfit.at) for unfit, reason in one_line)


class ThreadPageValue(Value):
    """A page of threads; `next` is the page after it."""

    threads: tuple[ThreadValue, ...]
    next: str | None


class StatusValue(Value):
    """Where a thread is."""

    thread_id: str
    status: str | None
    pattern: str | None
    messages: int
    open_calls: int
    created_at: datetime
    updated_at: datetime
    is_chain: bool
    """Whether it goes through six phases; only such a thread has the four fields below."""
    current_phase: str | None
    turn: int
    phases_completed: tuple[str, ...]
    phases_remaining: tuple[str, ...]
    waits_for: str | None
    """Why it waits, and what to do: for a person, with the commands; why its runs do not run, or no host continues it."""
    error: str | None
    """Why it has failed."""
    owner: str | None
    """The living host that owns it."""
    unfit: tuple[str, ...]
    """The builds that cannot continue it, each with the reason."""
    question: str | None = None
    """The first question or task."""


# ---------------------------------------------------------------- messages


class RecordValue(Value):
    """A stored message."""

    thread_id: str
    """The thread that it was appended to; of one that a branch shares, the origin."""
    seq: int
    recorded_at: datetime
    hash: str
    message: Stored

    @classmethod
    def of(cls, record: Record) -> RecordValue:
        """Return a record with its message byte for byte as it is stored."""
        return cls.model_construct(
            thread_id=record.message.thread_id or "",  # decoded first: an invalid row is not passed on
            seq=record.seq,
            recorded_at=record.recorded_at,
            hash=record.hash,
            message=orjson.Fragment(record.body),
        )


class HitValue(Value):
    """A message that a search found, with the words around the match."""

    record: RecordValue
    snippet: str

    @classmethod
    def of(cls, hit: Hit) -> HitValue:
        """Return what a search of the ledger has found."""
        return cls.model_construct(record=RecordValue.of(hit.record), snippet=hit.snippet)


class LossValue(Value):
    """A fact that a format cannot express."""

    message_id: str | None
    what: str
    reason: str


class EncodedValue(Value):
    """A thread in another format."""

    dialect: str
    value: AnyJson
    losses: tuple[LossValue, ...]


# ---------------------------------------------------------------- branches, and what happened


class PhaseDiffValue(Value):
    """The answers of one phase in two threads."""

    phase: str
    left: str | None
    left_model: str | None
    right: str | None
    right_model: str | None


class DiffValue(Value):
    """How two threads differ. At most 1,000 messages of each are listed."""

    common: int
    left: tuple[RecordValue, ...]
    right: tuple[RecordValue, ...]
    left_count: int
    right_count: int
    phases: tuple[PhaseDiffValue, ...] | None

    @classmethod
    def of(cls, diff: Diff, phases: tuple[PhaseDiffValue, ...] | None, most: int | None = None) -> DiffValue:
        """Return the difference of two threads, with at most so many messages of each."""
        left, right = diff.left, diff.right
        return cls.model_construct(
            common=diff.common,
            left=tuple(map(RecordValue.of, left[:most])),
            right=tuple(map(RecordValue.of, right[:most])),
            left_count=len(left),
            right_count=len(right),
            phases=phases,
        )


class ReplayedValue(Value):
    """Something that happened in a thread."""

    seq: int | None
    at: datetime
    kind: str
    phase: str | None
    text: str
    data: AnyJson

    @classmethod
    def of(cls, at: datetime, event: ChainEvent) -> ReplayedValue:
        """Return an event of a thread, and when it happened."""
        return cls.model_construct(
            seq=event.seq, at=at, kind=event.kind, phase=event.phase, text=event.text, data=dict(event.data)
        )


class RerunValue(Value):
    """The first difference between a thread and the same thread on the installed code; all null: there is none."""

    thread_id: str
    parts_at: int | None
    """The seq of the first message that is different."""
    what: str | None
    reason: str | None

    @property
    def differs(self) -> bool:
        return self.parts_at is not None

    @classmethod
    def of(cls, thread_id: str, divergence: Divergence | None) -> RerunValue:
        """Return where a thread parts from its records."""
        if divergence is None:
            return cls(thread_id=thread_id, parts_at=None, what=None, reason=None)
        return cls(thread_id=thread_id, parts_at=divergence.seq, what=divergence.what, reason=divergence.reason)


class IndexValue(Value):
    """A few numbers for each message of a window, in columns; `lanes`, `kinds` and `marks` name them."""

    first: int
    """The seq of the first message; the number at each place of a column belongs to the message `first + place`."""
    began_at: datetime | None
    """When the first message of the window was stored; None if the window is empty."""
    names: tuple[str, ...]
    """Senders, receivers and options, in the order in which they appear in the window."""
    lanes: tuple[str, ...] = INDEX_LANES
    kinds: tuple[str, ...] = INDEX_KINDS
    marks: tuple[str, ...] = INDEX_MARKS
    lane: tuple[int, ...]
    kind: tuple[int, ...]
    mark: tuple[int, ...]
    sender: tuple[int, ...]
    """The place in `names`."""
    receiver: tuple[int, ...]
    """The place of the first receiver in `names`; of a call without one, that of the option; -1: everybody."""
    millis: tuple[int, ...]
    """Since `began_at`."""
    pair: tuple[int, ...]
    """For the result of a call in the same window, or the call of a result in it, its seq; otherwise 0."""
    open: tuple[OpenHalf, ...]
    """Calls and results whose counterpart is not in this window: seq and invocation."""
    next: int | None
    """Give it as `after` to continue; None at the end of the thread."""


# ---------------------------------------------------------------- what waits for a person


class ApprovalValue(Value):
    """A tool call that waits for a person."""

    id: str
    thread_id: str
    agent: str
    tool: str
    arguments: AnyJson
    """For display, without sensitive values."""
    reason: str
    """Why a person is asked."""
    digest: str
    expires_at: datetime
    approvers: tuple[str, ...]

    @classmethod
    def of(cls, approval: Approval) -> ApprovalValue:
        """Return the question to a person."""
        fields = {name: getattr(approval, name) for name in cls.model_fields} | {"arguments": dict(approval.arguments)}
        return cls.model_construct(None, **fields)


class ParkedValue(Value):
    """A call whose outcome only a person can record."""

    thread_id: str
    invocation_id: str
    reason: str
    option: str
    """The effect with the unknown outcome, or else the message itself; empty if the ledger does not have it."""
    arguments: AnyJson
    began_at: datetime | None
    evidence: AnyJson


# ---------------------------------------------------------------- hosts, actors, sums


class HostValue(Value):
    """A process that runs threads."""

    name: str
    build: str
    kinds: tuple[str, ...]
    is_alive: bool
    since: datetime
    until: datetime
    threads: int

    @classmethod
    def of(cls, status: HostStatus) -> HostValue:
        """Return a host of the ledger."""
        host = status.host
        return cls(
            name=host.name,
            build=host.build,
            kinds=tuple(host.kinds),
            is_alive=status.is_alive,
            since=status.since,
            until=status.until,
            threads=status.threads,
        )


class PermitHolderValue(Value):
    """What a host has under a limit."""

    host: str
    held: int
    waiting: int
    reserved: Money


class LimitValue(Value):
    """A limit of model requests for all hosts, and its use; null is no limit."""

    model: str
    """`*`: all models together."""
    at_once: int | None
    per_minute: int | None
    cost_per_day: Money | None
    """US dollars in a day of UTC."""
    held: int
    """The permits that hosts have."""
    waiting: int
    """The requests that wait for a permit."""
    started: int
    """The requests that were permitted to begin in the last minute."""
    spent: Money
    reserved: Money
    """What requests at work may cost."""
    holders: tuple[PermitHolderValue, ...]

    @classmethod
    def of(cls, status: LimitStatus) -> LimitValue:
        """Return a limit of the ledger."""
        limit = status.limit
        return cls(
            model=limit.model,
            at_once=limit.at_once,
            per_minute=limit.per_minute,
            cost_per_day=limit.cost_per_day,
            held=status.permits,
            waiting=status.waiting,
            started=status.started,
            spent=status.spent,
            reserved=status.reserved,
            holders=tuple(PermitHolderValue.model_validate(holder) for holder in status.holders),
        )


class StuckThreadValue(Value):
    """A thread that has been due for long, and that no living host has."""

    thread_id: str
    kind: str | None
    due_at: datetime
    reason: str
    """Why no host takes it, and what to do."""


class ClusterValue(Value):
    """The hosts of the ledger together, the work that is in hand, and the work that waits."""

    hosts: tuple[HostValue, ...]
    """The living ones, and dead ones that still own threads; by name."""
    in_hand: int
    """Threads that living hosts own."""
    due: int
    """Threads that wait for a host; those in which everything waits for a person are left out."""
    oldest_due: datetime | None
    oldest_age: float | None
    """The seconds that the first of them has waited."""
    stuck: int
    """How many of them have waited for too long."""
    stuck_threads: tuple[StuckThreadValue, ...]
    """The first of these, the longest due first."""
    take_overs: int
    """Threads that a host has continued after another had died."""
    last_take_over: datetime | None
    limits: tuple[LimitValue, ...]
    tail_lag: float
    """Seconds by which the event stream is behind the last commit."""
    at: datetime
    """When this was read."""


class ActorValue(Value):
    """An actor of a thread that this server runs."""

    address: str
    supervisor: str | None
    state: str
    restarts: int
    waiting: int


class DeadLetterValue(Value):
    """A message that no actor handles."""

    message_id: str
    thread_id: str | None
    to: str
    code: str
    reason: str
    at: datetime

    @classmethod
    def of(cls, letter: DeadLetter) -> DeadLetterValue:
        """Return a dead letter, without the content of its message."""
        message = letter.message
        return cls(
            message_id=message.id,
            thread_id=message.thread_id,
            to=letter.to,
            code=letter.code,
            reason=letter.reason,
            at=letter.at,
        )


class SumsValue(Value):
    """What some messages add up to."""

    messages: int
    errors: int
    requests: int
    """Requests to models."""
    input_tokens: int
    output_tokens: int
    cost: Money
    answered: int
    """Requests that have ended."""
    seconds: float
    """The time that they took together."""
    p50: float | None = None
    """Half of them ended within so many seconds."""
    p95: float | None = None


class OverviewValue(Value):
    """Sums over all threads, as far as they are counted; threads by status as they are now."""

    total: SumsValue
    by_hour: dict[str, SumsValue]
    """The last seven days, by the beginning of the hour in UTC."""
    by_model: dict[str, SumsValue]
    threads: dict[str, int]
    """Threads without a status are under an empty name."""
    patterns: dict[str, int]
    """Threads by pattern; those without one are under an empty name."""
