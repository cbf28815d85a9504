"""Envelopes as JSON text, and back as the class they were."""

from __future__ import annotations

from typing import Any, cast

from pydantic import ValidationError

from antiphon.errors import DecodeError
from antiphon.messages._json import JsonError, parse
from antiphon.protocol._envelopes import ERROR, ErrorResponse, Message, Response
from antiphon.protocol._validation import complaint

__all__ = ["deserialize_message", "serialize_message"]


def serialize_message(message: Message | Response) -> str:
    """Write a message or response as JSON: its fields, and nothing that tells its class."""
    return message.model_dump_json()


def deserialize_message(json_str: str | bytes) -> Message | Response:
    """Read a message, response or error response: a `message_id` tells a response, the type ERROR an error response.

    Raises:
        DecodeError: the text is not JSON, or no envelope; `where` says which field is wrong.
    """
    form = _parse(json_str)
    kind = Message if "message_id" not in form else ErrorResponse if form.get("type") == ERROR else Response
    try:
        return kind.model_validate(form)
    except ValidationError as exc:
        where, reason = complaint(exc)
        raise _error(reason, where) from exc


def _parse(text: str | bytes) -> dict[str, Any]:
    try:
        form = parse(text.encode() if isinstance(text, str) else text)
    except UnicodeEncodeError:
        raise _error("the text has a lone surrogate, which is no Unicode") from None
    except JsonError as exc:
        raise _error(exc.reason) from None
    if not isinstance(form, dict):
        raise _error("not a JSON object")
    return cast("dict[str, Any]", form)


def _error(reason: str, where: str = "") -> DecodeError:
    return DecodeError(reason, dialect="choir", where=where)
