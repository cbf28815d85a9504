"""Unknown keys of one call or result stay with it, whatever happens to the others."""

from collections.abc import Callable
from typing import Any

import pytest

from antiphon import Conversation, Message, decode, encode

CHAT, CLAUDE, GEMINI, AI = "openai-chat", "anthropic-messages", "gemini", "pydantic-ai"


def chat(*words: str) -> list[Any]:
    calls = [
        {"id": "a", "type": "function", "function": {"name": "f", "arguments": "{}", "inner": "a"}, "outer": "a"},
        {"id": "b", "type": "function", "function": {"name": "f", "arguments": "{}"}, "outer": "b"},
    ]
    asked = {"role": "assistant", "content": words[0] if words else None, "tool_calls": calls, "whole": 1}
    return [{"role": "user", "content": "Go."}, asked, *({"role": "tool", "tool_call_id": i, "content": i} for i in "ab")]


def claude(*words: str) -> list[Any]:
    said = [{"type": "text", "text": each} for each in words]
    calls = [{"type": "tool_use", "id": i, "name": "f", "input": {}, "outer": i} for i in "ab"]
    results = [{"type": "tool_result", "tool_use_id": i, "content": i, "outer": i} for i in "ab"]
    asked = {"role": "assistant", "content": [*said, *calls], "whole": 1}
    return [{"role": "user", "content": "Go."}, asked, {"role": "user", "content": results, "whole": 1}]


def gemini(*words: str) -> list[Any]:
    calls = [{"functionCall": {"id": i, "name": "f", "args": {}, "inner": i}, "outer": i} for i in "ab"]
    results = [{"functionResponse": {"id": i, "name": "f", "response": {}}, "outer": i} for i in "ab"]
    asked = {"role": "model", "parts": [*({"text": each} for each in words), *calls], "whole": 1}
    return [{"role": "user", "parts": [{"text": "Go."}]}, asked, {"role": "user", "parts": results, "whole": 1}]


def ai(*words: str) -> list[Any]:
    calls = [{"part_kind": "tool-call", "tool_name": "f", "args": {}, "tool_call_id": i, "outer": i} for i in "ab"]
    results = [{"part_kind": "tool-return", "tool_name": "f", "content": i, "tool_call_id": i, "outer": i} for i in "ab"]
    said = [{"part_kind": "text", "content": each} for each in words]
    return [
        {"kind": "request", "parts": [{"part_kind": "user-prompt", "content": "Go."}]},
        {"kind": "response", "parts": [*said, *calls], "whole": 1},
        {"kind": "request", "parts": results, "whole": 1},
    ]


LISTS: dict[str, tuple[Callable[..., list[Any]], str]] = {
    CHAT: (chat, "tool_calls"),
    CLAUDE: (claude, "content"),
    GEMINI: (gemini, "parts"),
    AI: (ai, "parts"),
}
"""Histories with two calls in one unit, and the key of the list that they stand in."""
CASES = pytest.mark.parametrize(("name", "words"), [(name, words) for name in LISTS for words in ((), ("I look.",))])


def written(messages: list[Message], name: str) -> list[Any]:
    value = encode(Conversation(messages), name).value
    return list(value if isinstance(value, list) else value["contents" if name == GEMINI else "messages"])


@CASES
def test_calls_and_results_that_change_places_take_along_what_is_theirs(name: str, words: tuple[str, ...]) -> None:
    """The units are as they were, but for the order of the two; what is said of the whole stays."""
    make, key = LISTS[name]
    body = make(*words)
    messages = list(decode(body, name))
    messages[-4:] = [messages[place] for place in (-3, -4, -1, -2)]
    for unit in body[1:] if name != CHAT else body[1:2]:
        unit[key][-2:] = unit[key][:-3:-1]

    found = written(messages, name)
    assert found[:2] == body[:2]
    assert found[2:] == (body[:1:-1] if name == CHAT else body[2:])


@CASES
def test_a_call_keeps_what_is_its_own_when_the_one_before_it_goes(name: str, words: tuple[str, ...]) -> None:
    make, key = LISTS[name]
    body = make(*words)
    messages = list(decode(body, name))
    left = [message for message in messages if message.invocation_id != "a"]

    assert written(left, name)[1][key][-1] == body[1][key][-1]
    assert len(written(left, name)[1][key]) == len(body[1][key]) - 1


@CASES
def test_a_call_keeps_what_is_its_own_under_another_id(name: str, words: tuple[str, ...]) -> None:
    make, key = LISTS[name]
    messages = list(decode(make(*words), name))
    renamed = [
        message
        if message.invocation_id != "b"
        else message.model_copy(update={"payload": message.payload.model_copy(update={"invocation_id": "c"})})
        for message in messages
    ]

    assert [each["outer"] for each in written(renamed, name)[1][key][-2:]] == ["a", "b"]


def test_calls_that_share_an_id_are_told_apart_by_their_place() -> None:
    """Nothing else could: the same data comes back."""
    body = chat()
    body[1]["tool_calls"][1]["id"] = "a"

    assert encode(decode(body, CHAT), CHAT).value == body


@pytest.mark.slow
def test_a_call_that_is_written_with_others_does_not_give_them_what_is_its_own() -> None:
    """A call of the same turn that was said elsewhere stands before it."""
    messages = list(decode(chat("I look."), CHAT))
    first = messages[2]
    other = first.model_copy(
        update={"id": "new", "metadata": {}, "payload": first.payload.model_copy(update={"invocation_id": "n"})}
    )
    answer = messages[-1].model_copy(
        update={"id": "new answer", "metadata": {}, "payload": messages[-1].payload.model_copy(update={"invocation_id": "n"})}
    )
    unit = written([*messages[:2], other, *messages[2:], answer], CHAT)[1]

    assert [(call["id"], call.get("outer")) for call in unit["tool_calls"]] == [("n", None), ("a", "a"), ("b", "b")]
