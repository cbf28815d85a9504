"""Messages that the runtime makes of its own values: as the constructor makes them, at a tenth of its cost.

Every message of a thread passes here twice, as a call and as its result. The constructor writes a message down to measure
it; what is surely small need not be measured, and names are looked at here.

An outcome that is too large for a row is cut (`cut_result`, `error_fields`). The caller gets what the row says, so that a
program that runs again gets the same.
"""

from __future__ import annotations

from contextlib import suppress
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import orjson

from antiphon.messages import (
    Json,
    Lane,
    Message,
    OptionCallPayload,
    OptionResultPayload,
    current_limits,
    current_port,
    is_name,
)
from antiphon.messages import _trusted as trusted
from antiphon.messages._cut import cut, cut_text
from antiphon.messages._json import JsonError, fits, own
from antiphon.messages._limits import DEFAULT_LIMITS
from antiphon.messages._model import MUCH

if TYPE_CHECKING:
    from antiphon.messages import PartsPayload

__all__ = ["cut_result", "error_fields", "is_too_large", "own_call", "own_message", "own_result", "text_of"]


def own_message(
    policy: str,
    payload: PartsPayload | OptionCallPayload | OptionResultPayload,
    *,
    id: str | None = None,
    thread_id: str | None = None,
    to: tuple[str, ...] = (),
    lane: Lane = "effect",
    correlation_id: str | None = None,
    in_reply_to: str | None = None,
    parent_id: str | None = None,
    created_at: datetime | None = None,
    metadata: dict[str, dict[str, Json]] | None = None,
) -> Message:
    """Return a message; `metadata`, which must be short and of plain values, is the message's from then on.

    Raises:
        ValueError: a name is none, or it is too large.
    """
    own_id = current_port().new_id() if id is None else id
    is_plain = _are_names(own_id, policy, thread_id, *to, correlation_id, in_reply_to, parent_id)
    is_plain = is_plain and (created_at is None or created_at.tzinfo is UTC)
    if is_plain and len(to) <= 1 and current_limits() is DEFAULT_LIMITS and payload.__weight__() <= MUCH:
        return trusted.message(
            policy,
            payload,
            own_id,
            thread_id=thread_id,
            to=to,
            lane=lane,
            correlation_id=correlation_id,
            in_reply_to=in_reply_to,
            parent_id=parent_id,
            created_at=created_at,
            metadata=metadata,
        )
    return Message(  # which measures it, or says what is wrong
        id=own_id,
        policy=policy,
        payload=payload,
        thread_id=thread_id,
        to=to,
        lane=lane,
        correlation_id=correlation_id,
        in_reply_to=in_reply_to,
        parent_id=parent_id,
        created_at=created_at,
        metadata=metadata or {},
    )


def own_call(invocation_id: str, option_name: str, arguments: dict[str, Json]) -> OptionCallPayload:
    """Return the payload of a call.

    Raises:
        ValueError: a name is none, or the arguments are not JSON within the limits.
    """
    kept = _kept(arguments)
    if kept is not None and _are_names(invocation_id, option_name):
        return trusted.option_call_payload(invocation_id, option_name, kept)
    return OptionCallPayload(invocation_id=invocation_id, option_name=option_name, arguments=arguments)


def own_result(invocation_id: str, option_name: str, result: Json) -> OptionResultPayload:
    """Return the payload of a result that is no error.

    Raises:
        ValueError: a name is none, or the result is not JSON within the limits.
    """
    kept = _kept(result)
    if kept is not None and _are_names(invocation_id, option_name):
        return trusted.option_result_payload(invocation_id, option_name, kept)
    return OptionResultPayload(invocation_id=invocation_id, option_name=option_name, result=result)


def cut_result(result: Any) -> Any:
    """Return a result that fits into a row, and into a message of the talk that repeats it; one that does, as it is."""
    limits = current_limits()
    most = limits.message_bytes * 3 // 4
    with suppress(TypeError):  # no JSON, or not for orjson
        text = orjson.dumps(result)
        if len(text) <= most and fits(text, result, limits):
            return result
    return cut(result, most)


def is_too_large(value: Any) -> bool:
    """Whether a value would have to be cut to be written down."""
    return cut_result(value) is not value


def error_fields(reason: str, code: str, *, retryable: bool, details: Any = None) -> dict[str, Any]:
    """Return the fields of an error result. Reason and details are cut so that both fit into one row."""
    most = current_limits().message_bytes
    words = cut_text(reason, most // 8).encode(errors="replace").decode()
    details = cut(details, most // 2)
    return {"is_error": True, "error_type": code, "error_message": words, "retryable": retryable, "result": details}


def text_of(error: BaseException) -> str:
    """Return what an exception says; a broken `__str__` must not hide the failure."""
    try:
        return str(error)
    except Exception:  # noqa: BLE001 (see above)
        return "(its text cannot be read)"


def _are_names(*names: str | None) -> bool:
    for name in names:  # noqa: SIM110 (a generator takes twice as long)
        if name is not None and not (type(name) is str and is_name(name)):
            return False
    return True


def _kept(value: Json) -> bytes | None:
    """Return an object in the form in which messages keep it; None for what the constructor must look at."""
    if type(value) is not dict:
        return None
    try:
        kept = own(value)
    except JsonError:
        return None
    return kept if type(kept) is bytes else None
