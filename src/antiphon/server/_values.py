"""What a request may say, and what only the server answers. The other answers are the values of the service."""

from __future__ import annotations

import re
from datetime import datetime
from decimal import Decimal
from typing import Annotated, Any, Final, Literal, TypeAlias

from pydantic import AwareDatetime, BaseModel, BeforeValidator, ConfigDict, Field, JsonValue

from antiphon.service import (
    ActorValue,
    AnyJson,
    ApprovalValue,
    DeadLetterValue,
    HitValue,
    HostValue,
    ParkedValue,
    RecordValue,
    ReplayedValue,
    Value,
)


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


class RequestValue(BaseModel):
    """What a caller says: nothing but the fields below."""

    model_config = ConfigDict(extra="forbid", frozen=True)


class RequestBody(RequestValue):
    """What a caller says in a body: each value in its JSON type, a number is no boolean and no text."""

    model_config = ConfigDict(strict=True)


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


# ---------------------------------------------------------------- what only the server answers


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


class StartedValue(Value):
    """A thread that this server runs now."""

    thread_id: str


class MovedValue(Value):
    """The response of the protocol to a request such as PAUSE_THREAD."""

    response: AnyJson


class MessagePageValue(Value):
    """A window of messages; `next` is the `after` (in reverse, the `before`) of the next window."""

    messages: tuple[RecordValue, ...]
    next: int | None


class HitsValue(Value):
    """What a search found, the best match first."""

    hits: tuple[HitValue, ...]
    unsearched: int = 0
    """Threads that were not searched, because they are encrypted."""


class ReplayValue(Value):
    """What happened in a thread, in order."""

    events: tuple[ReplayedValue, ...]


class DeletedValue(Value):
    """The threads that were deleted."""

    deleted: tuple[str, ...]


class ApprovalsValue(Value):
    """The tool calls that wait for a person."""

    approvals: tuple[ApprovalValue, ...]


class ParkedListValue(Value):
    """The calls whose outcome only a person can record."""

    parked: tuple[ParkedValue, ...]


class HostsValue(Value):
    """The hosts of the ledger."""

    hosts: tuple[HostValue, ...]


class ActorsValue(Value):
    """The actors of the threads that this server runs."""

    actors: tuple[ActorValue, ...]


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


class ChoicesValue(Value):
    """Names that a request may have: models, the one that is used by default, and formats."""

    models: tuple[str, ...]
    model: str | None
    dialects: tuple[str, ...]


class WindowValue(Value):
    """A window of a sequence or a timeline, as `antiphon.service` returns it."""

    window: AnyJson
