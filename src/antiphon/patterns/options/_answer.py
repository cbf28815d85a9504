"""What a policy returns, told apart: messages that it says and chooses, or a plain answer; and the answer of a run."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple, cast

from pydantic_core import to_jsonable_python

from antiphon.messages import DataPart, Json, MediaPart, Message, Part, PartsPayload, TextPart, thaw

__all__ = ["Answer", "read_decision"]


class Answer(NamedTuple):
    """What came of a loop: the last that its policy said."""

    parts: tuple[Part, ...] = ()

    @classmethod
    def of(cls, said: Iterable[Message]) -> Answer:
        """Return what messages say that call nothing."""
        return cls(tuple(part for message in said if message.kind == "parts" for part in message.parts))

    @property
    def text(self) -> str | None:
        """As text: data as JSON, and media by their address; None if nothing was said."""
        words = [_words(part) for part in self.parts]
        return "\n".join(word for word in words if word is not None) if words else None

    @property
    def data(self) -> Any:
        """As JSON, where it has data: one value by itself, several with the texts between them as a list; else None."""
        said = [part for part in self.parts if isinstance(part, TextPart | DataPart)]
        if not any(isinstance(part, DataPart) for part in said):
            return None
        values = [thaw(part.data) if isinstance(part, DataPart) else part.text for part in said]
        return values[0] if len(values) == 1 else values

    @property
    def value(self) -> Any:
        """As an option returns it: data as it is, else text, and media as they are."""
        media = [part for part in self.parts if isinstance(part, MediaPart)]
        others = tuple(part for part in self.parts if not isinstance(part, MediaPart))
        has_data = any(isinstance(part, DataPart) for part in others)
        value = Answer(others).data if has_data else Answer(others).text
        return [value, *media] if media else value


def _words(part: Part) -> str | None:
    match part:
        case TextPart(text=text):
            return text
        case DataPart(data=data):
            return json.dumps(thaw(data), ensure_ascii=False)
        case MediaPart(url=url):
            return url
        case _:
            return None


def read_decision(chosen: Any, policy: str) -> list[Message]:
    """Return what a policy returned: messages as they are, and anything else as the message that says it.

    Raises:
        TypeError: some of it are messages, and some not.
        ValueError: it cannot be written as JSON.
    """
    if isinstance(chosen, Message):
        return [chosen]
    if chosen is None:
        return []
    if isinstance(chosen, list | tuple | Iterator):
        each = list(cast("Iterable[Any]", chosen))
        messages = [one for one in each if isinstance(one, Message)]
        if len(messages) == len(each):
            return messages
        if messages:
            other = next(one for one in each if not isinstance(one, Message))
            raise TypeError(f"policy {policy!r} returned messages and a {type(other).__name__}: return one or the other")
        chosen = each
    return [Message(policy=policy, payload=PartsPayload(parts=(_part(chosen),)), role_hint_for_llm="assistant")]


def _part(value: Any) -> Part:
    if isinstance(value, str):
        return TextPart(text=value)
    plain: Json = to_jsonable_python(value)
    return DataPart(data=plain)
