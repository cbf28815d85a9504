"""The values of the API: the classes of requests and responses. The OpenAPI document is generated from them."""

from __future__ import annotations

import re
from datetime import datetime
from decimal import Decimal
from typing import Annotated, Any, Final, Literal, TypeAlias

from pydantic import AwareDatetime, BaseModel, BeforeValidator, ConfigDict, Field, JsonValue, WithJsonSchema

from antiphon import service


def _only_written(value: Any) -> Any:
    """Refuse a number as a time: only a date with a time and a zone is one."""
    if isinstance(value, str) and not _WRITTEN.match(value):
        raise ValueError("write a time as 2026-01-31T12:00:00Z")
    return value


_WRITTEN: Final = re.compile(r"\d{4}-\d\d-\d\d[T ]")
Text: TypeAlias = Annotated[str, Field(min_length=1, max_length=500_000)]
Name: TypeAlias = Annotated[str, Field(min_length=1, max_length=200)]
Limit: TypeAlias = Annotated[int, Field(ge=1, le=1000)]
Place: TypeAlias = Annotated[int, Field(ge=0, le=2**53)]
When: TypeAlias = Annotated[AwareDatetime, BeforeValidator(_only_written)]
Money: TypeAlias = Annotated[Decimal, WithJsonSchema({"type": "number"})]
Stored: TypeAlias = Annotated[Any, WithJsonSchema({"type": "object", "description": "A message in the house format."})]
"""The bytes of a message, as they are stored."""
OpenHalf: TypeAlias = Annotated[
    tuple[int, str],
    WithJsonSchema({"type": "array", "items": {"type": ["integer", "string"]}, "minItems": 2, "maxItems": 2}),
]
"""A message and the invocation whose other half is not in the window."""
AnyJson: TypeAlias = Annotated[Any, WithJsonSchema({"description": "Any JSON value."})]


class RequestValue(BaseModel):
    """What a caller says: nothing but the fields below."""

    model_config = ConfigDict(extra="forbid", frozen=True)


class RequestBody(RequestValue):
    """What a caller says in a body: each value in its JSON type, a number is no boolean and no text."""

    model_config = ConfigDict(strict=True)


class Value(BaseModel):
    """What an answer has."""

    model_config = ConfigDict(frozen=True, from_attributes=True)


# ---------------------------------------------------------------- what a caller says


class NoQuery(RequestValue):
    """No parameters."""


class NewSession(RequestBody):
    """A token, or a one-time code, for a session of a browser."""

    token: Annotated[str, Field(max_length=200)] | None = None
    code: Annotated[str, Field(max_length=200)] | None = None


class ThreadQuery(RequestValue):
    """Conditions on threads, and a page of them."""

    status: Name | None = None
    pattern: Name | None = None
    model: Name | None = None
    """Only threads that have asked this model; of a model, the latest 10,000 are known."""
    kind: Name | None = None
    owner: Name | None = None
    forked_from: Name | None = None
    system: bool = False
    """Include the threads of the system."""
    open_calls: bool | None = None
    updated_after: When | None = None
    updated_before: When | None = None
    created_after: When | None = None
    created_before: When | None = None
    min_tokens: Place | None = None
    min_cost: Annotated[Decimal, Field(ge=0, le=10**12)] | None = None
    titles: bool = False
    """Add the first question of each thread."""
    order: Literal["-updated_at", "updated_at", "-created_at", "created_at"] = "-updated_at"
    page: Annotated[str, Field(max_length=500)] | None = None
    limit: Limit = 100


class NewThread(RequestBody):
    """A question that begins a thread."""

    question: Text
    thread_id: Name | None = None
    """The id of the new thread; by default one is made."""
    model: Name | None = None
    team: Name | None = None
    """The name of a team that the server was started with; by default the six phases answer."""


class ChoirMessage(RequestBody):
    """A message of Choir's protocol. The sender is the token's principal, whatever is said here."""

    id: Annotated[str, Field(pattern=r"^[A-Za-z0-9._:-]{1,100}$")] | None = None
    """The same id is the same message: it is not done again."""
    type: Annotated[str, Field(pattern=r"^[A-Z][A-Z0-9_]{0,99}$")]
    data: dict[str, AnyJson] = Field(default_factory=dict)
    sender: Annotated[str, Field(max_length=200)] | None = None
    receiver: Annotated[str, Field(max_length=400)] | None = None
    timestamp: Annotated[str, Field(max_length=100)] | None = None
    correlation_id: Annotated[str, Field(pattern=r"^[A-Za-z0-9._:-]{1,100}$")] | None = None


class NewTurn(RequestBody):
    """A further question in a thread."""

    question: Text
    model: Name | None = None


class Resume(RequestBody):
    """How a thread continues; nothing must be given."""

    model: Name | None = None


class Terminate(RequestBody):
    """Why a thread is ended."""

    reason: Name = "user_request"


class Fork(RequestBody):
    """Where a branch begins, and whether it continues at once."""

    at: Name | None = None
    """The number of the last shared message, or a phase."""
    at_step: Place | None = None
    into: Name | None = None
    """The id of the branch; by default one is made."""
    go_on: bool = False
    """Continue the branch at once; only for threads of six phases."""
    model: Name | None = None
    """The model with which it continues."""


class Deletion(RequestValue):
    """Whether the branches of a thread go with it."""

    with_branches: bool = False


class MessageQuery(RequestValue):
    """A window of the messages of a thread."""

    after: Place = 0
    before: Place | None = None
    reverse: bool = False
    """Begin at the end."""
    limit: Limit = 100
    dialect: Name | None = Field(default=None, alias="as")
    """Write the window in this format."""
    as_policy: Name | None = None
    """Who becomes the assistant, in formats with only one."""


class ExportQuery(RequestValue):
    """How a thread is exported."""

    dialect: Name = Field(default="house", alias="as")
    as_policy: Name | None = None


class WindowQuery(RequestValue):
    """A window of a sequence or a timeline."""

    after: Place = 0
    limit: Limit = 200


class SearchQuery(RequestValue):
    """Words that a message must contain."""

    q: Annotated[str, Field(min_length=1, max_length=1000)]
    thread_id: Name | None = None
    limit: Annotated[int, Field(ge=1, le=100)] = 20


class ApprovalAnswer(RequestBody):
    """Approve or deny one exact call. The name under which it is answered is the token's."""

    approved: bool
    digest: Annotated[str, Field(max_length=200)]
    """The digest of the call that the person has seen: another call is not answered."""
    reason: Annotated[str, Field(max_length=2000)] | None = None


class CallSettlement(RequestBody):
    """The outcome of a parked call: a result, an error, or that it did not run (`retry`)."""

    result: JsonValue = None
    error: Annotated[str, Field(max_length=10_000)] | None = None
    retry: bool = False


class EventQuery(RequestValue):
    """Which events: of one thread, or of all; from a cursor on, from now on, or from the beginning."""

    thread_id: Name | None = None
    after: Annotated[str, Field(max_length=200)] | None = None
    """A cursor, `now`, or nothing for the beginning. The header Last-Event-ID goes before."""


# ---------------------------------------------------------------- what an answer has


class ChoirAnswer(Value):
    """A response of Choir; of the type ERROR, an error."""

    id: str
    type: str
    data: dict[str, AnyJson]
    sender: str | None = None
    receiver: str | None = None
    timestamp: str
    correlation_id: str | None = None
    message_id: str | None = None


class OpenAIError(Value):
    """What is wrong."""

    message: str
    type: str
    param: str | None
    code: str


class OpenAIErrorValue(Value):
    """An error, as OpenAI writes it."""

    error: OpenAIError


class ProblemValue(Value):
    """An error, as RFC 9457 has it."""

    type: str
    status: int
    code: str
    """The name of the error in antiphon's tree, such as `thread_busy`; or the server's own, such as `too_many`."""
    detail: str
    error_code: str | None = None
    """The code that the error carries."""
    retryable: bool | None = None


class SessionValue(Value):
    """Who is logged in."""

    principal: str
    scopes: tuple[str, ...]
    expires_at: datetime | None


class CodeValue(Value):
    """A code that opens one session, once, within a minute."""

    code: str


class DoneValue(Value):
    """It is done."""

    done: bool = True


class RunValue(Value):
    """An open run of a program in a thread."""

    id: str
    name: str | None
    status: str


class UnfitValue(Value):
    """A build that cannot continue a thread."""

    build: str
    reason: str


class ThreadValue(Value):
    """A thread."""

    thread_id: str
    status: str | None
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


class ThreadPageValue(Value):
    """A page of threads; `next` is the page after it."""

    threads: tuple[ThreadValue, ...]
    next: str | None


class StartedValue(Value):
    """A thread that this server runs now."""

    thread_id: str


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
    current_phase: str | None
    turn: int
    phases_completed: tuple[str, ...]
    phases_remaining: tuple[str, ...]
    waits_for: str | None
    owner: str | None
    unfit: tuple[str, ...]
    question: str | None = None
    """The first question or task."""


class MovedValue(Value):
    """The response of the protocol to a request such as PAUSE_THREAD."""

    response: AnyJson


class RecordValue(Value):
    """A stored message."""

    thread_id: str
    """The thread that it was appended to; of one that a branch shares, the origin."""
    seq: int
    recorded_at: datetime
    hash: str
    message: Stored


class MessagePageValue(Value):
    """A window of messages; `next` is the `after` (in reverse, the `before`) of the next window."""

    messages: tuple[RecordValue, ...]
    next: int | None


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


class HitValue(Value):
    """A message that a search found, with the words around the match."""

    record: RecordValue
    snippet: str


class HitsValue(Value):
    """What a search found, the best match first."""

    hits: tuple[HitValue, ...]
    unsearched: int = 0
    """Threads that were not searched, because they are encrypted."""


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


class ReplayedValue(Value):
    """Something that happened in a thread."""

    seq: int | None
    at: datetime
    kind: str
    phase: str | None
    text: str
    data: AnyJson


class ReplayValue(Value):
    """What happened in a thread, in order."""

    events: tuple[ReplayedValue, ...]


class RerunValue(Value):
    """The first difference between a thread and the same thread on the installed code; all null: there is none."""

    thread_id: str
    parts_at: int | None
    what: str | None
    reason: str | None


class DeletedValue(Value):
    """The threads that were deleted."""

    deleted: tuple[str, ...]


class ApprovalValue(Value):
    """A tool call that waits for a person."""

    id: str
    thread_id: str
    agent: str
    tool: str
    arguments: AnyJson
    reason: str | None
    digest: str
    expires_at: datetime | None
    approvers: tuple[str, ...]


class ApprovalsValue(Value):
    """The tool calls that wait for a person."""

    approvals: tuple[ApprovalValue, ...]


class ParkedValue(Value):
    """A call whose outcome only a person can record."""

    thread_id: str
    invocation_id: str
    reason: str
    option: str
    arguments: AnyJson
    began_at: datetime | None
    evidence: AnyJson


class ParkedListValue(Value):
    """The calls whose outcome only a person can record."""

    parked: tuple[ParkedValue, ...]


class HostValue(Value):
    """A process that runs threads."""

    name: str
    build: str
    kinds: tuple[str, ...]
    is_alive: bool
    since: datetime
    until: datetime
    threads: int


class HostsValue(Value):
    """The hosts of the ledger."""

    hosts: tuple[HostValue, ...]


class StuckThreadValue(Value):
    """A thread that has been due for long, and that no living host has."""

    thread_id: str
    kind: str | None
    due_at: datetime
    reason: str
    """Why no host takes it, and what to do."""


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


class ClusterValue(Value):
    """The hosts of the ledger together, the work that is in hand, and the work that waits."""

    hosts: tuple[HostValue, ...]
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


class ActorsValue(Value):
    """The actors of the threads that this server runs."""

    actors: tuple[ActorValue, ...]


class DeadLetterValue(Value):
    """A message that no actor handles."""

    message_id: str
    thread_id: str | None
    to: str
    code: str
    reason: str
    at: datetime


class DeadLettersValue(Value):
    """The latest dead letters of the threads that this server runs or has run."""

    letters: tuple[DeadLetterValue, ...]


class HealthValue(Value):
    """Whether the server and its ledger work."""

    status: Literal["ok"]
    version: str
    ledger: str
    """The name of the ledger: servers of the same ledger have the same one."""
    streams: int
    runs: int


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


class IndexValue(Value):
    """A few numbers for each message of a window, in columns; `lanes`, `kinds` and `marks` name them."""

    first: int
    began_at: datetime | None
    names: tuple[str, ...]
    lanes: tuple[str, ...] = service.INDEX_LANES
    kinds: tuple[str, ...] = service.INDEX_KINDS
    marks: tuple[str, ...] = service.INDEX_MARKS
    lane: tuple[int, ...]
    kind: tuple[int, ...]
    mark: tuple[int, ...]
    sender: tuple[int, ...]
    receiver: tuple[int, ...]
    millis: tuple[int, ...]
    pair: tuple[int, ...]
    open: tuple[OpenHalf, ...]
    next: int | None


class ChoicesValue(Value):
    """Names that a request may have: models, the one that is used by default, and formats."""

    models: tuple[str, ...]
    model: str | None
    dialects: tuple[str, ...]


class WindowValue(Value):
    """A window of a sequence or a timeline, as `antiphon.service` returns it."""

    window: AnyJson
