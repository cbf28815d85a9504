"""Writes plain histories in one loop: the units that `write` makes of them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, cast

from antiphon.dialects._content import arguments_text, outcome_text
from antiphon.dialects._order import Content, NotPlainError, follows_words, only_text, words
from antiphon.dialects._writing import BodyWriting
from antiphon.dialects.openai_chat._write import named, write
from antiphon.messages import Message, OptionCallPayload, OptionResultPayload

__all__ = ["write_plain"]


def write_plain(messages: Sequence[Message], contents: Sequence[Content], writing: BodyWriting) -> list[Any]:
    """Return the units of a plain history; raise a `NotPlainError` if words with calls are not the assistant's."""
    units: list[Any] = []
    calls: list[Any] = []
    last: Message | None = None
    last_kind = ""
    options = writing.aliases.options
    for message, content in zip(messages, contents, strict=True):
        kind = content["kind"]
        if kind == "option_result":
            kept = content["result"]
            is_text = type(kept) is bytes and not content["is_error"]
            text = kept.decode() if is_text else outcome_text(cast("OptionResultPayload", message.payload))
            units.append({"role": "tool", "content": text, "tool_call_id": content["invocation_id"]})
        elif kind == "option_call":
            if kind != last_kind:
                calls = _begin_calls(units, message, last, writing)
            kept = content["arguments"]
            is_text = type(kept) is bytes and content["arguments_text"] is None
            text = kept.decode() if is_text else arguments_text(cast("OptionCallPayload", message.payload))
            function = {"name": options[content["option_name"]], "arguments": text}
            calls.append({"id": content["invocation_id"], "type": "function", "function": function})
        elif (said := only_text(content)) is not None:
            units.append(named({"role": writing.role(message), "content": said}, message, writing))
        else:
            units.append(words(message, write, writing))
        last, last_kind = message, kind
    return units


def _begin_calls(units: list[Any], first: Message, last: Message | None, writing: BodyWriting) -> list[Any]:
    """Return the list that calls go into: in a unit of their own, or in that of the words they were said with."""
    calls: list[Any] = []
    said = None
    if follows_words(first, last):
        unit = units.pop()
        said = unit["content"]
        if unit["role"] != "assistant" or not said:
            raise NotPlainError
    units.append(named({"role": "assistant", "content": said, "tool_calls": calls}, first, writing))
    return calls
