"""Messages from outside: how a message from a file, a person or another program is stored as talk.

Approvals, gates, budgets, flows and recovery act on rows of the control and the effect lane, and on open calls. So a message
from outside must never become such a row, whatever lane it claims:

- A row of another lane is stored as *foreign history*: a message of the talk lane whose only part holds the row as data. Its
  id is derived from the row, so the same row is stored once and cannot take an id that the runtime needs.
- A message of the talk lane is stored unchanged, except that metadata which only the runtime may write is removed. The mark of
  untrusted content stays.
- A call from outside that is still open at the end of the append gets an error result in that append (see `_admission`).

Foreign history is talk, so it is stored unchanged if it comes from outside again.
"""

from __future__ import annotations

from collections.abc import Iterator
from hashlib import sha256
from typing import Any

from pydantic import ValidationError

from antiphon.messages import (
    RUNTIME_POLICY,
    ForeignPart,
    Json,
    JsonObject,
    Message,
    OptionCallPayload,
    OptionResultPayload,
    PartsPayload,
    dumps,
    thaw,
)
from antiphon.messages.json_values import parse

FOREIGN = "antiphon"
"""The dialect of the part that holds a foreign row."""
OUTSIDE_POLICY = "outside"
"""The policy of foreign history."""
NOT_EXECUTED = "not_executed"
"""The error type of the result that an open call from outside gets."""

_OWN = "antiphon"
"""The metadata that only the runtime writes: marks, principals, letters."""
_UNTRUSTED = "untrusted"
"""The mark of untrusted content. It only restricts, so it is kept."""
_REASON = "The call came from outside and was open. Calls from outside are never executed."


def from_outside(message: Message) -> Message:
    """Return a message from outside as it is stored: talk as talk, a row of another lane as foreign history."""
    if message.lane != "talk":
        return _foreign(message)
    own = message.metadata.get(_OWN)
    kept = {_UNTRUSTED: own[_UNTRUSTED]} if isinstance(own, JsonObject) and isinstance(own.get(_UNTRUSTED), str) else {}
    if own is None or own == kept:
        return message
    metadata: dict[str, Any] = {name: thaw(value) for name, value in message.metadata.items() if name != _OWN}
    return message.model_copy(update={"metadata": {**metadata, _OWN: kept} if kept else metadata})


def is_foreign(message: Message) -> bool:
    """Whether a message is foreign history."""
    return any(isinstance(part, ForeignPart) and part.dialect == FOREIGN for part in message.parts)


def is_not_executed(message: Message) -> bool:
    """Whether a message is the result of a call from outside that was open."""
    return isinstance(message.payload, OptionResultPayload) and message.payload.error_type == NOT_EXECUTED


def not_executed(call: Message, body: bytes, thread_id: str) -> Message:
    """Return the result of a call from outside that is still open; for the same bytes, the same result."""
    assert isinstance(call.payload, OptionCallPayload)  # noqa: S101 (only calls are open)
    result = OptionResultPayload(
        invocation_id=call.payload.invocation_id,
        option_name=call.payload.option_name,
        is_error=True,
        error_type=NOT_EXECUTED,
        error_message=_REASON,
        retryable=False,
    )
    return Message(
        id=f"closed-{_digest(body)}",
        policy=RUNTIME_POLICY,
        payload=result,
        role_hint_for_llm="tool",
        step_num=call.step_num,
        thread_id=thread_id,
        in_reply_to=call.id,
    )


def _foreign(row: Message) -> Message:
    body = dumps(row.model_copy(update={"thread_id": None}))
    for value in _forms(row, body):
        try:
            return Message(
                id=f"foreign-{_digest(body)}",
                policy=OUTSIDE_POLICY,
                payload=PartsPayload(parts=(ForeignPart(dialect=FOREIGN, value=value),)),
                thread_id=row.thread_id,
                created_at=row.created_at,
            )
        except ValidationError:
            continue  # the value is larger, or nested deeper, than a message allows
    raise AssertionError("unreachable: the last form is small")  # pragma: no cover


def _forms(row: Message, body: bytes) -> Iterator[Json]:
    """Yield the row as data: as JSON; as text, which is not nested; and as its digest, which is small."""
    yield parse(body)
    yield body.decode()
    yield {"id": row.id, "lane": row.lane, "bytes": len(body), "sha256": sha256(body).hexdigest()}


def _digest(data: bytes) -> str:
    return sha256(data).hexdigest()[:32]
