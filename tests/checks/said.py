"""Short ways to say something: messages with plain ids, native to a dialect where that is asked for."""

from itertools import count
from typing import Any

from tests.providers.types import as_request, problems

from antiphon import (
    Conversation,
    Finding,
    Message,
    OptionCallPayload,
    OptionResultPayload,
    PartsPayload,
    ReasoningPart,
    TextPart,
    check,
    decode,
    encode,
    repair,
)
from antiphon.messages import Part

_numbers = count(1)


def _id(fields: dict[str, Any]) -> str:
    return fields.pop("id", None) or f"m{next(_numbers)}"


def says(who: str, *parts: str | Part, native: str | None = None, **fields: Any) -> Message:
    """Return what a user, an assistant or the system says: texts, or parts."""
    notes = fields.pop("notes", {})
    shown = tuple(TextPart(text=part) if isinstance(part, str) else part for part in parts)
    return Message(
        id=_id(fields),
        policy=fields.pop("policy", who),
        payload=PartsPayload(parts=shown),
        role_hint_for_llm=who,  # type: ignore[arg-type]
        metadata={native: notes} if native else {},
        **fields,
    )


def calls(invocation: str, option: str = "weather", *, native: str | None = None, **fields: Any) -> Message:
    notes, text = fields.pop("notes", {}), fields.pop("text", None)
    payload = OptionCallPayload(invocation_id=invocation, option_name=option, arguments={}, arguments_text=text)
    return Message(
        id=_id(fields),
        policy=fields.pop("policy", "assistant"),
        payload=payload,
        role_hint_for_llm="assistant",
        metadata={native: notes} if native else {},
        **fields,
    )


def gives(invocation: str, result: Any = 18, option: str = "weather", *, native: str | None = None, **fields: Any) -> Message:
    notes, parts = fields.pop("notes", {}), fields.pop("parts", ())
    outcome = {"is_error": True, "error_type": "Error", "error_message": "it broke"} if fields.pop("fails", False) else {}
    payload = OptionResultPayload(invocation_id=invocation, option_name=option, result=result, parts=parts, **outcome)
    return Message(
        id=_id(fields),
        policy=option,
        payload=payload,
        role_hint_for_llm="tool",
        metadata={native: notes} if native else {},
        **fields,
    )


def thinks(text: str = "hm", signature: str | None = "EqQB", **fields: Any) -> ReasoningPart:
    return ReasoningPart(text=text, signature=signature, **fields)


def codes(conversation: Conversation, target: str | None = None) -> list[str]:
    """Return the codes of what is refused."""
    return [finding.code for finding in check(conversation, target) if finding.severity == "error"]


def warnings(conversation: Conversation, target: str | None = None) -> list[str]:
    return [finding.code for finding in check(conversation, target) if finding.severity == "warning"]


def finding(conversation: Conversation, code: str, target: str | None = None) -> Finding:
    """Return the one finding of a rule."""
    (found,) = (each for each in check(conversation, target) if each.code == code)
    return found


def mended(conversation: Conversation, target: str | None = None) -> Conversation:
    """Return what `repair` makes of it, in which nothing is refused."""
    made = repair(conversation, target).conversation
    assert codes(made, target) == []
    return made


def mended_for(target: str, conversation: Conversation) -> Conversation:
    """Return what `repair` makes of it, which is accepted as it is written, too: by the rules and the types of the SDK."""
    made = mended(conversation, target)
    written = encode(made, target).value
    assert problems(target, "request", as_request(target, written)) == []
    assert codes(decode(written, target), target) == []
    return made


def kinds(conversation: Conversation) -> list[str]:
    """Return who says what: `user`, `call c1`, `result c1`."""
    return [
        str(message.role_hint_for_llm)
        if message.kind == "parts"
        else f"{message.kind.removeprefix('option_')} {message.invocation_id}"
        for message in conversation
    ]
