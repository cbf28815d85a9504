"""Rows: the messages that the runtime itself writes to threads, and the values that it reads from messages.

**Size.** An outcome that is too large for a row is cut (`cut_result`, `error_fields`). The caller gets the value as stored, so
a program that runs again gets the same value.

**The journal's rows** are calls and results in the lane `effect`. Each is a call that stays open until its subject is settled,
so recovery reads only the open calls of a thread. `parent_id` is the invocation that the row refers to. Rows carry no
timestamp: the ledger records when it stored them.

| option | open while |
|---|---|
| `DELIVER` | a notice has not been handled; the notice is the record right before this row |
| `AGAIN` | a redelivered message has not been handled; there is one row for each redelivery |
| `PARK` | a person must settle a message |
| `STOPPED` | something outside has failed, and the thread was not resumed since |
| `TIMER` | a timer runs |
| `RUN` | a program works in the thread |
| `REOPEN` | never: a person has discarded the failure of an effect |
| any other | an effect was begun, and its outcome is not known |

Each further attempt of an effect gets a row. That row is not a call, so it is never open: only the intent must be ended. Its
`correlation_id` is the effect.

**Comparison.** `says_the_same` compares a message or effect of a handler with the stored one under the same id, and ignores
redacted values.
"""

from __future__ import annotations

from asyncio import get_running_loop
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import datetime
from typing import TYPE_CHECKING, Any, Final, Literal, TypeAlias, cast

import orjson

from antiphon import errors
from antiphon.errors import StoppedError
from antiphon.messages import (
    RUNTIME_POLICY,
    DataPart,
    Json,
    JsonObject,
    Message,
    OptionCallPayload,
    OptionResultPayload,
    PartsPayload,
    current_port,
    thaw,
)
from antiphon.messages._json_values import fits
from antiphon.messages._keys import attempt_id, begun_id, ended_id, is_below
from antiphon.messages._long_values import cut, cut_text
from antiphon.messages._settings import current_limits

if TYPE_CHECKING:
    from antiphon.ledger import Owners, Record
    from antiphon.messages import Payload


def cut_result(result: Any) -> Any:
    """Return a result, cut if needed to fit into a row, and into a talk message that repeats it."""
    limits = current_limits()
    most = limits.message_bytes * 3 // 4
    with suppress(TypeError):  # not JSON, or not serializable by orjson
        text = orjson.dumps(result)
        if len(text) <= most and fits(text, result, limits):
            return result
    return cut(result, most)


def is_too_large(value: Any) -> bool:
    """Whether a value is too large to be stored whole."""
    return cut_result(value) is not value


def error_fields(reason: str, code: str, *, retryable: bool, details: Any = None) -> dict[str, Any]:
    """Return the fields of an error result. Reason and details are cut so that both fit into one row."""
    most = current_limits().message_bytes
    words = cut_text(reason, most // 8).encode(errors="replace").decode()
    details = cut(details, most // 2)
    return {"is_error": True, "error_type": code, "error_message": words, "retryable": retryable, "result": details}


_ERRORS: dict[str, type[errors.DeliveryError]] = {
    cls.code: cls
    for cls in (
        errors.ActorFailedError,
        errors.ActorStoppedError,
        errors.BudgetExceededError,
        errors.EffectFailedError,
        errors.EscalatedError,
        errors.HistoryMismatchError,
        errors.HopLimitError,
        errors.MailboxFullError,
        errors.ParkedError,
        errors.ReplyTimeoutError,
        errors.ToolServerError,
        errors.UndeliverableError,
        errors.UnguardedToolError,
        errors.WithdrawnError,
    )
}


_ACTED_ON: Final = frozenset({errors.HistoryMismatchError.code, errors.ParkedError.code, errors.WithdrawnError.code})
"""The codes of outcomes that decide what runs again, and what waits for a person."""
_CHOSEN: Final = "chosen:"
"""The beginning of such a code in a row, if a program has chosen it."""


def chosen_code(code: str) -> str:
    """Return a code that a program has chosen, as it is stored.

    A bank's "CANCELLED" must not count as an effect that was withdrawn: such an effect is done again.
    """
    return _CHOSEN + code if code in _ACTED_ON else code


def stored_code(error: errors.DeliveryError | errors.FailedError) -> str:
    """Return the code of an error as it is stored. A program has chosen it, unless it is that of the class of the error."""
    cls = _ERRORS.get(error.code)
    return error.code if cls is not None and isinstance(error, cls) else chosen_code(error.code)


def error_of(payload: OptionResultPayload, address: str) -> errors.DeliveryError:
    """Return the exception of an error result."""
    code, reason = payload.error_type or "ERROR", payload.error_message or ""
    cls, code = _ERRORS.get(code), code.removeprefix(_CHOSEN)
    if cls is not None:
        error = cls(reason, address)
        if isinstance(error, errors.EffectFailedError):
            error.details = thaw(payload.result)
        return error
    return errors.RefusedError(reason, code, details=thaw(payload.result), retryable=bool(payload.retryable), address=address)


def is_withdrawn(payload: Payload) -> bool:
    """Whether a message or an effect ended because its outcome was not wanted any more: then it may be done again."""
    return isinstance(payload, OptionResultPayload) and payload.error_type == errors.WithdrawnError.code


def text_of(error: BaseException) -> str:
    """Return the text of an exception, even if its `__str__` raises: that must not hide the failure."""
    try:
        return str(error)
    except Exception:  # noqa: BLE001 (see above)
        return "(its text cannot be read)"


def error_text(error: BaseException) -> str:
    """Return the class and the text of an exception, as a row says it."""
    return f"{type(error).__qualname__}: {text_of(error)}"


RUN: Final = "RUN"
REOPEN: Final = "REOPEN"
DELIVER: Final = "DELIVER"
AGAIN: Final = "AGAIN"
APPROVE: Final = "APPROVE"
"""The option by which a toolkit asks a person."""
PARK: Final = "PARK"
STOP: Final = "STOPPED"
TIMER: Final = "TIMER"


def option_of(message: Message) -> str | None:
    """Return the option that a message calls; None if it is not a call."""
    return message.payload.option_name if isinstance(message.payload, OptionCallPayload) else None


def is_once(intent: Message) -> bool:
    """Whether an open call is an effect that must not be done twice."""
    return isinstance(intent.payload, OptionCallPayload) and intent.payload.arguments.get("effects") == "once"


def park_reason(row: Message) -> str:
    """Return why a PARK row parks a message."""
    payload = row.payload
    return str(payload.arguments.get("reason")) if isinstance(payload, OptionCallPayload) else ""


def question_expiry(call: Message) -> datetime | None:
    """Return when a question to a person expires: an approval (ADR 0010). None: an open call is no such question."""
    payload = call.payload
    if call.lane != "control" or call.to or not isinstance(payload, OptionCallPayload):
        return None
    try:
        expiry = datetime.fromisoformat(str(payload.arguments.get("expires_at")))
    except ValueError:
        return None
    return None if expiry.tzinfo is None else expiry  # without a zone it is another question, or forged


def waits_for_person(call: Message) -> bool:
    """Whether an open call is a question to a person that has not expired."""
    expiry = question_expiry(call)
    return expiry is not None and expiry > current_port().now()


_WORK: Final = frozenset({DELIVER, RUN, TIMER})
"""Rows that a host does something about. An effect is continued by the handler of its message, which is open as well."""


def has_work(calls: Sequence[Message]) -> bool:
    """Whether some open calls of a thread are work that a host can do.

    A question to a person, or a parked call, is none; nor are the calls above it, which wait for it.
    """
    waiting = [
        call.parent_id for call in calls if waits_for_person(call) or (call.lane == "effect" and option_of(call) == PARK)
    ]
    return any(_is_work(call) and not any(_is_at_or_below(place, call.invocation_id) for place in waiting) for call in calls)


def _is_work(call: Message) -> bool:
    """Whether an open call is a message to an actor, a run or a timer."""
    return bool(call.to) if call.lane == "control" else call.lane == "effect" and option_of(call) in _WORK


def _is_at_or_below(place: str | None, invocation_id: str | None) -> bool:
    return invocation_id is not None and (place == invocation_id or is_below(place, invocation_id))


def stops_in(rows: Sequence[Record]) -> list[Record]:
    """Return the open calls of a thread that record why it stopped."""
    return [row for row in rows if row.message.lane == "effect" and option_of(row.message) == STOP]


def stopped_error(row: Message) -> StoppedError:
    """Return the error that a STOPPED row records."""
    arguments: Any = thaw(row.payload.arguments) if isinstance(row.payload, OptionCallPayload) else {}
    return StoppedError(str(arguments.get("reason")), cause=str(arguments.get("code")), row=row.invocation_id)


async def unused(ledger: Owners, thread_id: str, name: Callable[[int], str], first: int) -> int:
    """Return the first number whose row name is unused in the thread. Numbers are used without gaps.

    Ended rows keep their names. The ledger refuses a second row with the same name, or treats it as the first.
    """

    async def is_used(number: int) -> bool:
        return bool(await ledger.find(invocation_id=name(number), thread_id=thread_id))

    if not await is_used(first):
        return first
    used, step = first, 1
    while await is_used(used + step):  # in longer and longer steps: a run may have waited a thousand times
        used, step = used + step, 2 * step
    free = used + step
    while free - used > 1:
        middle = (used + free) // 2
        used, free = (middle, free) if await is_used(middle) else (used, middle)
    return free


async def effect_rows(ledger: Owners, thread_id: str, invocation_id: str) -> list[Record]:
    """Return the rows of an effect or a timer, in order. Talk and messages with the same id are none."""
    records = await ledger.find(invocation_id=invocation_id, thread_id=thread_id)
    return [record for record in records if record.message.lane == "effect"]


def begun(
    option: str,
    invocation_id: str,
    *,
    thread_id: str,
    parent_id: str | None = None,
    arguments: Mapping[str, Json] | None = None,
    policy: str = RUNTIME_POLICY,
) -> Message:
    """Return the row that opens something. The same arguments give the same row, so it can be appended twice."""
    payload = OptionCallPayload(invocation_id=invocation_id, option_name=option, arguments=dict(arguments or {}))
    return _row(begun_id(invocation_id), payload, thread_id, parent_id, policy)


def attempted(effect: str, attempt: int, *, thread_id: str, policy: str, failure: str | None = None) -> Message:
    """Return the row of a further attempt of an effect, numbered from 2; `failure` is the error of the previous attempt."""
    data: dict[str, Json] = {"attempt": attempt}
    if failure is not None:
        data["failure"] = cut_text(failure, current_limits().message_bytes // 8)
    payload = PartsPayload(parts=(DataPart(data={"type": "ATTEMPT", "data": data}),))
    return Message(
        id=attempt_id(effect, attempt),
        policy=str(policy),
        payload=payload,
        thread_id=thread_id,
        lane="effect",
        correlation_id=effect,
        parent_id=effect,
    )


def ended(
    option: str,
    invocation_id: str,
    *,
    thread_id: str,
    parent_id: str | None = None,
    policy: str = RUNTIME_POLICY,
    **outcome: Any,
) -> Message:
    """Return the row that ends something; `outcome` has the fields of the result."""
    payload = OptionResultPayload(invocation_id=invocation_id, option_name=option, **outcome)
    return _row(ended_id(invocation_id), payload, thread_id, parent_id, policy)


def _row(row_id: str, payload: Payload, thread_id: str, parent_id: str | None, policy: str) -> Message:
    return Message(id=row_id, policy=str(policy), payload=payload, thread_id=thread_id, lane="effect", parent_id=parent_id)


_REDACTED = "[redacted:"
"""The beginning of the text that replaces a redacted value."""


def says_the_same(recorded: Payload, asked: Payload) -> bool:
    """Whether two payloads are the same, except for redacted values of the recorded one."""
    if recorded == asked:
        return True
    return _is_alike(recorded.model_dump(mode="json"), asked.model_dump(mode="json"))


def says_the_same_value(recorded: Json, asked: Json) -> bool:
    """Whether two JSON values are the same, except for redacted values of the recorded one."""
    return recorded == asked or _is_alike(thaw(recorded), thaw(asked))


def _is_alike(recorded: Any, asked: Any) -> bool:
    if isinstance(recorded, dict) and isinstance(asked, dict):
        ours = cast("dict[str, Any]", asked)
        return recorded.keys() == asked.keys() and all(
            _is_alike(value, ours[key]) for key, value in cast("dict[str, Any]", recorded).items()
        )
    if isinstance(recorded, list) and isinstance(asked, list):
        left, right = cast("list[Any]", recorded), cast("list[Any]", asked)
        return len(left) == len(right) and all(_is_alike(*pair) for pair in zip(left, right, strict=True))
    if isinstance(recorded, str) and _REDACTED in recorded:
        return True
    value = cast("Any", recorded)
    return type(value) is type(asked) and value == asked  # 1, 1.0 and true differ


# ---------------------------------------------------------------- values that the runtime reads from messages

OWN = "antiphon"
"""The namespace of metadata that is the runtime's own."""


def renamed(message: Message, id: str) -> Message:
    """Return a message with another id, which is also the invocation if it is a call."""
    changes: dict[str, Any] = {"id": id}
    if isinstance(message.payload, OptionCallPayload):
        changes["payload"] = message.payload.model_copy(update={"invocation_id": id})
    return message.model_copy(update=changes)


def notice_in(message: Message) -> tuple[str, Mapping[str, Json]] | None:
    """Return the type and the data of a notice; None for other messages."""
    match message.parts:
        case (DataPart(data=JsonObject() as data),) if message.lane == "control" and set(data) == {"type", "data"}:
            kind, content = data["type"], data["data"]
            return (kind, content) if isinstance(kind, str) and isinstance(content, JsonObject) else None
        case _:
            return None


def enclosure_of(message: Message) -> Mapping[str, Json]:
    """Return what the actor that sent a message has added beside its data."""
    facts = message.metadata.get(OWN)
    enclosure = facts.get("enclosure") if isinstance(facts, JsonObject) else None
    return enclosure if isinstance(enclosure, JsonObject) else JsonObject({})


def origin_of(message: Message) -> str | None:
    """Return the trace of a message that was stored, or came from another system."""
    facts = message.metadata.get(OWN)
    origin = facts.get("traceparent") if isinstance(facts, JsonObject) else None
    return origin if isinstance(origin, str) else None


def hops_and_deadline(message: Message) -> tuple[int, float | None]:
    """Return the hops of a stored message, and its deadline in the event loop's time."""
    facts = message.metadata.get(OWN)
    hops: Any = facts.get("hops", 0) if isinstance(facts, JsonObject) else 0
    deadline: Any = facts.get("deadline") if isinstance(facts, JsonObject) else None
    if not isinstance(deadline, str):
        return hops, None
    seconds = (datetime.fromisoformat(deadline) - current_port().now()).total_seconds()
    return hops, get_running_loop().time() + seconds


Cause: TypeAlias = Literal["failed", "recovered", "posted"]
"""Why a message is delivered: posted messages for the first time, others again."""


@dataclass(frozen=True, slots=True)
class Standing:
    """The redeliveries and the parking of one message, from the open rows of its thread."""

    again: tuple[str, ...] = ()
    """The rows of its redeliveries."""
    failed: int = 0
    """How many of them followed a failure of its handler."""
    lost: int = 0
    """How often a process ended before them that had the thread and had not released it."""
    parked: Message | None = None
    """The row that parks it."""
    reruns: int = 0
    """How many deliveries have no row, because the ledger was unavailable."""

    @classmethod
    def of(cls, rows: Sequence[Record], invocation_id: str) -> Standing:
        """Return the standing of a message, by the open calls of its thread."""
        about = [row.message for row in rows if row.message.lane == "effect" and row.message.parent_id == invocation_id]
        called = [message.payload for message in about if option_of(message) == AGAIN]
        again = [row for row in called if isinstance(row, OptionCallPayload)]
        recovered = [row for row in again if row.arguments.get("cause") != "failed"]
        return cls(
            again=tuple(row.invocation_id for row in again),
            failed=len(again) - len(recovered),
            # By epoch: an owner may redeliver a message several times, such as after each answer of a person.
            lost=len({str(row.arguments["epoch"]) for row in recovered if "taken_from" in row.arguments}),
            parked=next((message for message in about if option_of(message) == PARK), None),
        )

    def plus(self, id: str, cause: Cause) -> Standing:
        """Return it with one more redelivery."""
        return replace(self, again=(*self.again, id), failed=self.failed + (cause == "failed"))

    def plus_rerun(self) -> Standing:
        """Return it with one more redelivery that has no row."""
        return replace(self, reruns=self.reruns + 1)
