"""Messages in a word, and what is written for them, held against Pydantic AI itself."""

from typing import Any

from tests.providers.types import problems

from antiphon import Conversation, Message, OptionCallPayload, OptionResultPayload, PartsPayload, TextPart, encode
from antiphon.messages import Part

__all__ = ["PYDANTIC_AI", "answered", "called", "parts_of", "said", "shown", "written"]

PYDANTIC_AI = "pydantic-ai"


def shown(*parts: Part, policy: str = "user", **fields: Any) -> Message:
    return Message(policy=policy, payload=PartsPayload(parts=parts), **fields)


def said(text: str, policy: str = "user", **fields: Any) -> Message:
    return shown(TextPart(text=text), policy=policy, **fields)


def called(invocation: str, policy: str = "assistant", **fields: Any) -> Message:
    payload = OptionCallPayload(invocation_id=invocation, option_name="search", arguments={"q": "x"})
    return Message(policy=policy, payload=payload, **fields)


def answered(invocation: str, **outcome: Any) -> Message:
    payload = OptionResultPayload(invocation_id=invocation, option_name="search", **(outcome or {"result": "found"}))
    return Message(policy="search", payload=payload)


def written(*history: Message, **options: Any) -> list[Any]:
    """The units written, which Pydantic AI loads and dumps as they are."""
    value = encode(Conversation(history), PYDANTIC_AI, **options).value
    assert not problems(PYDANTIC_AI, "request", value)
    return list(value)


def parts_of(units: list[Any]) -> list[Any]:
    """The parts of all units, in order."""
    return [part for unit in units for part in unit["parts"]]
