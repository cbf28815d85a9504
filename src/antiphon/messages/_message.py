"""Message: the value that all agents, tools and actors exchange."""

from __future__ import annotations

import re
from contextlib import suppress
from datetime import UTC, datetime
from decimal import Decimal, InvalidOperation
from typing import Annotated, Any, Literal, Self, TypeAlias

from pydantic import BeforeValidator, FailFast, Field, Strict, model_validator
from pydantic_core import PydanticCustomError
from typing_extensions import override

from antiphon.messages._content import (
    DATA_URLS,
    Count,
    Kind,
    MediaPart,
    MetadataField,
    OptionCallPayload,
    Part,
    PartsPayload,
    Payload,
    TextPart,
    is_data_url,
)
from antiphon.messages._model import EMPTY, HOUSE_KEY, HOUSE_MARK, HOUSE_VERSION, MUCH, Model, house_bytes, written
from antiphon.messages._names import Name
from antiphon.messages._settings import DEFAULT_LIMITS, Limits, current_limits, new_id

RUNTIME_POLICY = "runtime"
"""The policy of the executor's own messages: an error result for a call that never reached its option."""

RESERVED_POLICIES = frozenset({RUNTIME_POLICY, "executor"})
"""Names that a user's policy must not have."""

RoleHint: TypeAlias = Literal["user", "assistant", "tool", "system"]
Lane: TypeAlias = Literal["talk", "control", "effect"]

_TOO_FINE = re.compile(r"[.,][0-9]{7}")
"""Python drops a finer fraction than microseconds silently."""


def any_time(value: object) -> datetime:
    """Return a time, with or without a zone, also from its text."""
    if isinstance(value, str) and not _TOO_FINE.search(value):
        with suppress(ValueError):
            value = datetime.fromisoformat(value)
    if not isinstance(value, datetime):
        raise PydanticCustomError("time", "A time is a datetime, or ISO 8601 text of at most microseconds", {})
    return value


def read_time(value: object) -> datetime:
    time = any_time(value)
    if type(time) is datetime and time.tzinfo is UTC:
        return time
    if time.utcoffset() is None:
        raise PydanticCustomError("time", "A time needs its zone: use datetime.now(UTC) or end the text in Z", {})
    try:
        time = time.astimezone(UTC)
    except OverflowError:
        raise PydanticCustomError("time", "A time must lie in the years 1 to 9999 in UTC", {}) from None
    return datetime.combine(datetime.date(time), datetime.time(time), UTC)  # other libraries have subclasses of `datetime`


def _read_cost(value: object) -> Decimal:
    if isinstance(value, Decimal | int | str) and not isinstance(value, bool):
        try:
            cost = Decimal(value)
        except InvalidOperation:
            pass
        else:
            if cost.is_finite() and cost >= 0:
                return cost
    raise PydanticCustomError("cost", "A cost is a Decimal, an int or decimal text, finite and not negative", {})


Time = Annotated[datetime, Strict(), BeforeValidator(read_time)]
Cost = Annotated[Decimal, Strict(), BeforeValidator(_read_cost)]


class Usage(Model, frozen=True):
    """The tokens and cost of the model answer that a message came from."""

    input_tokens: Count | None = None
    """All of the prompt, cached tokens included."""
    output_tokens: Count | None = None
    """All of the answer, reasoning included."""
    cache_read_tokens: Count | None = None
    cache_write_tokens: Count | None = None
    reasoning_tokens: Count | None = None
    cost: Cost | None = None
    """In US dollars, exact."""
    metadata: MetadataField = EMPTY

    @override
    def __house__(self) -> dict[str, Any]:
        form = super().__house__()
        if "cost" in form:
            form["cost"] = str(form["cost"])
        return form


class Message(Model, frozen=True):
    """A message: frozen, equal by content, hashed by `id`."""

    id: Name = Field(default_factory=new_id)
    """Made by the sender, unique in its thread; ours are UUIDv7."""
    policy: Name
    """The author: for an option_call its caller, for an option_result the option that ran."""
    payload: Payload
    role_hint_for_llm: RoleHint | None = None
    """A hint for dialects; nothing in the core reads it."""
    step_num: Count | None = None
    """The decision cycle it belongs to."""
    turn_id: Name | None = None
    """The utterance it belongs to: text, reasoning and calls of one model answer."""
    thread_id: Name | None = None
    """The conversation."""
    to: Annotated[tuple[Name, ...], FailFast()] = ()
    """The receivers; empty: visible to all in the thread, delivered to none."""
    lane: Lane = "talk"
    """`talk`: messages and calls of agents; `control`: the protocol of actors; `effect`: the journal."""
    correlation_id: Name | None = None
    """The exchange it belongs to."""
    in_reply_to: Name | None = None
    """The id of the message it answers."""
    parent_id: Name | None = None
    """The invocation during which it was sent."""
    created_at: Time | None = None
    """Aware, in UTC; None if the source had no time."""
    usage: Usage | None = None
    """On the first message of a turn: the tokens and cost of the model answer."""
    metadata: MetadataField = EMPTY

    @override
    def __hash__(self) -> int:
        return hash(self.id)

    @property
    def kind(self) -> Kind:
        """The kind of its payload."""
        return self.payload.kind

    @property
    def invocation_id(self) -> str | None:
        """The invocation that it calls or answers; None for parts."""
        return None if isinstance(self.payload, PartsPayload) else self.payload.invocation_id

    @property
    def parts(self) -> tuple[Part, ...]:
        """The parts of the message or of the result; empty for a call."""
        return () if isinstance(self.payload, OptionCallPayload) else self.payload.parts

    @property
    def text(self) -> str:
        """The text of its text parts, joined by line breaks."""
        return "\n".join(part.text for part in self.parts if isinstance(part, TextPart))

    @model_validator(mode="after")
    def _within_limits(self) -> Self:
        if not is_surely_small(self):
            check_size(self)
        return self

    @override
    def __house__(self) -> dict[str, Any]:
        form = stored_form(self)
        del form[HOUSE_KEY]
        return form


def stored_form(message: Message, thread_id: str | None = None) -> dict[str, Any]:
    """Return the house form with the version before it, two levels deep; `thread_id` is for a message without a thread.

    It does the same as the base class in half the time, which pays because every message is written at least once. The four
    fields after the payload are usually set: they are always added, and removed if they are not.
    """
    (own_id, policy, payload, hint, step, turn, thread, to, lane, correlation, reply, parent, created, usage, metadata) = (
        message.__dict__.values()
    )
    thread = thread or thread_id
    form: dict[str, Any] = {
        HOUSE_KEY: HOUSE_VERSION,
        "id": own_id,
        "policy": policy,
        "payload": payload.__house__(),
        "role_hint_for_llm": hint,
        "step_num": step,
        "turn_id": turn,
        "thread_id": thread,
    }
    if hint is None or step is None or turn is None or thread is None:
        form = {name: value for name, value in form.items() if value is not None}
    if to:
        form["to"] = to
    if lane != "talk":
        form["lane"] = lane
    if correlation is not None:
        form["correlation_id"] = correlation
    if reply is not None:
        form["in_reply_to"] = reply
    if parent is not None:
        form["parent_id"] = parent
    if created is not None:
        form["created_at"] = created
    if usage is not None:
        form["usage"] = usage
    if metadata is not EMPTY:
        form["metadata"] = written(metadata)
    return form


_FEW = 8
"""Receivers whose names together are far below the limits of a message."""


def is_surely_small(message: Message) -> bool:
    """Whether a message is far below the default limits by an estimate that reads no text."""
    fields = message.__dict__
    metadata = fields["metadata"]
    return (
        current_limits() is DEFAULT_LIMITS
        and type(metadata) is bytes  # a parsed value can only be measured by writing it
        and fields["usage"] is None
        and len(fields["to"]) <= _FEW
        and fields["payload"].__weight__() + len(metadata) <= MUCH
    )


def check_size(message: Message) -> None:
    """Check the size of a message in its stored form."""
    limits = current_limits()
    inline = sum(len(part.url.encode()) for part in message.parts if isinstance(part, MediaPart) and is_data_url(part.url))
    text = house_bytes(message)
    size = len(HOUSE_MARK) - 1 + len(text) - inline
    if size > limits.message_bytes:  # `data:` URLs in metadata count as media too: a provider's signature may have 2 MB
        notes = [house_bytes({"metadata": written(part.__dict__["metadata"])}) for part in message.parts]
        noted = sum(len(url) for note in notes for url in DATA_URLS.findall(note))
        inline, size = inline + noted, size - noted
    _refuse_over(limits.message_bytes, size, "message", "bytes", "store large content outside and send its URL")
    _refuse_over(limits.data_url_bytes, inline, "data: URLs of the message", "bytes", "upload the file and send its URL")
    _refuse_over(most_values(limits), count_values(text, limits), "message", "values", "store large data as media")


def _refuse_over(limit: int, amount: int, what: str, unit: str, advice: str) -> None:
    if amount > limit:
        context: dict[str, Any] = {"what": what, "found": amount, "unit": unit, "limit": limit, "advice": advice}
        raise PydanticCustomError("too_large", "The {what} has {found} {unit}, more than {limit}: {advice}", context)


_STRING = re.compile(rb'"(?:[^"\\]|\\.)*"')


def most_values(limits: Limits) -> int:
    """Return how many values a whole message may have: it may hold more than one large value."""
    return 2 * limits.nodes


def count_values(text: bytes, limits: Limits) -> int:
    """Estimate how many values a JSON text has before it is parsed; exact if there may be too many."""
    if len(text) <= 2 * limits.nodes:
        return 0
    roughly = text.count(b",") + text.count(b"[") + text.count(b"{")
    if roughly <= most_values(limits):
        return roughly
    bare = _STRING.sub(b"", text)
    return bare.count(b",") + bare.count(b"[") + bare.count(b"{")
