"""The shared meaning of messages: what a message is for, and the user's own metadata, in one namespace of all dialects.

Formats have types that the three kinds of the core do not tell apart: an error that answers no call, a status, a plan. They
also have a place for the user's own keys. Both are read into the namespace `shared`, and written from it: `purpose` is one of
`PURPOSES`, `metadata` holds the user's keys. A failure that answers no call has its class and the rest as such keys:
`error_type`, `retryable`, `tool`, `details`. A format without a type for a purpose writes it as the key `purpose` beside them.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from antiphon.dialects._reading import OutcomeFields, Unit, as_object, notes_of, text_at
from antiphon.messages import Message, OptionCallPayload, Part, PartsPayload, TextPart, thaw
from antiphon.messages._unchecked import EMPTY, plain_of

SHARED: Final = "shared"
"""The namespace."""
ERROR: Final = "error"
PURPOSES: Final = frozenset(
    {
        ERROR,
        "status",
        "plan",
        "suggested_plan",
        "script_plan",
        "synthesis",
        "task",
        "delegation",
        "context",
        "injected_context",
    }
)
"""What a message can be for, besides ordinary talk."""
TOOL: Final = "tool"
"""The purpose of a call of a tool whose arguments look like a request to an agent."""
_KEY: Final = "purpose"
_TASKS: Final = frozenset({"task", "delegation"})
FAILURE: Final = ("error_type", "retryable", "details")
"""The keys of a failure besides its message."""


def purpose_of(message: Message) -> str | None:
    """Return what a message is for, where that is noted."""
    return text_at(notes_of(message, SHARED), _KEY)


def metadata_of(message: Message) -> Mapping[str, Any]:
    """Return the user's own metadata: plain JSON, which the caller must not change."""
    metadata: Mapping[str, Any] = notes_of(message, SHARED).get("metadata") or {}
    return metadata


def is_error(message: Message) -> bool:
    """Whether a message is an error that answers no call."""
    return (
        message.__dict__["metadata"] is not EMPTY
        and type(message.__dict__["payload"]) is PartsPayload
        and purpose_of(message) == ERROR
    )


def is_task(message: Message) -> bool:
    """Whether a call is a task for an agent: by its purpose, else because its only argument is the text `request`."""
    payload = message.payload
    if not isinstance(payload, OptionCallPayload):
        return False
    purpose = purpose_of(message)
    return purpose in _TASKS or (purpose != TOOL and request_of(payload) is not None)


def request_of(payload: Any) -> str | None:
    """Return the request to an agent, if a call is one: its only argument is the text `request`."""
    if payload.kind != "option_call" or payload.arguments_text is not None:
        return None
    arguments = plain_of(payload, "arguments")
    request = arguments.get("request") if len(arguments) == 1 else None
    return request if isinstance(request, str) else None


def purpose_to_write(message: Message) -> str | None:
    """Return the purpose of a message, unless its payload shows it: a `task` with a request does."""
    purpose = purpose_of(message)
    if purpose == "task" and request_of(message.payload) is not None:
        return None
    return None if purpose == TOOL and request_of(message.payload) is None else purpose


def call_purpose(payload: Mapping[str, Any], *, is_task: bool) -> str | None:
    """Return the purpose to note on a call that was read: none, if its arguments show whether it is a task."""
    arguments, has_text = payload["arguments"], payload.get("arguments_text") is not None
    shows_task = not has_text and list(arguments) == ["request"] and isinstance(arguments["request"], str)
    if is_task == shows_task:
        return None
    return "task" if is_task else TOOL


def note(unit: Unit, metadata: object, *read: str, purpose: str | None = None) -> None:
    """Note the user's own metadata of a unit: all keys but those that were read; and its purpose, unless a key names one."""
    users = {key: value for key, value in (as_object(metadata) or {}).items() if key not in read}
    named = users.get(_KEY)
    if isinstance(named, str) and (named in PURPOSES or named == TOOL):
        purpose = named
        del users[_KEY]
    unit.shared = shared_notes(purpose, users)


def shared_notes(purpose: str | None, metadata: Mapping[str, Any]) -> dict[str, Any]:
    """Return the namespace for a purpose and the user's own metadata; empty if there is neither."""
    notes: dict[str, Any] = {_KEY: purpose} if purpose else {}
    if metadata:
        notes["metadata"] = metadata
    return {SHARED: notes} if notes else {}


def with_purpose(message: Message, shown: str | None = None) -> dict[str, Any]:
    """Return the user's own metadata as plain JSON, with the purpose as one of its keys unless a unit shows it."""
    purpose = purpose_to_write(message)
    metadata: dict[str, Any] = thaw(metadata_of(message))
    return metadata if purpose in (None, shown) else {**metadata, _KEY: purpose}


def failed(
    fields: Mapping[str, Any], message: object, details: object, *, key: str = "error_type", otherwise: str = "Error"
) -> OutcomeFields:
    """Return the outcome of a call that failed; its class is under a key, and a value of another type counts as missing."""
    retryable = fields.get("retryable")
    return {
        "is_error": True,
        "error_type": text_at(fields, key) or otherwise,
        "error_message": message if isinstance(message, str) else "",
        "retryable": retryable if isinstance(retryable, bool) else None,
        "result": details,
    }


def marked_error(message: Message) -> Message:
    """Return an error as a user's words that begin with what it is: no provider has a role for it."""
    kind = metadata_of(message).get("error_type")
    error_class = f" ({kind})" if isinstance(kind, str) and kind else ""
    heading = f"[Error from {message.policy}{error_class}]:"
    first, *rest = message.parts or (TextPart(text=""),)
    words: list[Part] = [TextPart(text=heading), first]
    if isinstance(first, TextPart):
        words = [first.model_copy(update={"text": f"{heading} {first.text}".rstrip()})]
    return message.model_copy(update={"payload": PartsPayload(parts=(*words, *rest)), "role_hint_for_llm": "user"})
