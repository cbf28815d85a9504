"""Histories that grew, were cut, mixed, or seen from elsewhere: what providers are sent then."""

from typing import Any

import pytest
from tests.providers.types import as_request, problems

from antiphon import (
    Conversation,
    MediaPart,
    Message,
    OptionCallPayload,
    OptionResultPayload,
    PartsPayload,
    TextPart,
    check,
    decode,
    encode,
    repair,
)
from antiphon.dialects import Projection
from antiphon.messages import use_port
from antiphon.testing import CountingPort

PROVIDERS = ("openai-chat", "openai-responses", "anthropic-messages", "gemini", "pydantic-ai")


def says(text: str, policy: str = "user", **fields: Any) -> Message:
    return Message(policy=policy, payload=PartsPayload(parts=(TextPart(text=text),)), **fields)


def calls(invocation: str, policy: str = "assistant", **fields: Any) -> Message:
    payload = OptionCallPayload(invocation_id=invocation, option_name="f", arguments={})
    return Message(policy=policy, payload=payload, **fields)


def gives(invocation: str, result: Any = "r") -> Message:
    return Message(policy="f", payload=OptionResultPayload(invocation_id=invocation, option_name="f", result=result))


def written(conversation: Conversation, name: str, **options: Any) -> Any:
    """What is written, which the types and the rules accept."""
    value = encode(conversation, name, **options).value
    assert problems(name, "request", as_request(name, value)) == []
    assert [finding for finding in check(decode(value, name), name) if finding.severity == "error"] == []
    return value


@pytest.mark.parametrize("name", PROVIDERS)
def test_a_second_result_is_left_out_and_the_first_stays(name: str) -> None:
    history = Conversation([says("hi"), calls("c1"), gives("c1", "one"), gives("c1", "two"), says("so?")])
    value = written(history, name)

    assert "one" in str(value)
    assert "two" not in str(value)
    assert (history[3].id, "message") in {(loss.message_id, loss.what) for loss in encode(history, name).losses}


@pytest.mark.parametrize("name", PROVIDERS)
def test_messages_of_another_agent_are_a_users_and_its_calls_stay_pairs(name: str) -> None:
    """Text and call of one utterance, seen by another agent: the text is a user's, the call keeps its result."""
    bob = [says("I am bob", "bob", turn_id="t"), calls("i", "bob", turn_id="t"), gives("i")]
    value = written(Conversation([says("hi"), *bob, says("and?")]), name, as_policy="eve")
    units = value if isinstance(value, list) else next(value[key] for key in ("messages", "input", "contents") if key in value)

    spoken = [unit for unit in units if "I am bob" in str(unit)]
    assert [unit.get("role", unit.get("kind")) for unit in spoken] in (["user"], ["request"])
    assert "'f'" in str(value)


@pytest.mark.parametrize("name", ["anthropic-messages", "gemini"])
def test_words_stay_with_who_said_them_when_a_pair_is_cut_out(name: str) -> None:
    asked = [says("hi"), says("let me look", "assistant", turn_id="t"), calls("c1", turn_id="t"), gives("c1"), says("hurry")]
    native = decode(encode(Conversation(asked), name).value, name)
    cut = Conversation([message for message in native if message.kind == "parts"], metadata=native.metadata)
    value = encode(cut, name).value

    units = value.get("messages") or value["contents"]
    assert [unit["role"] for unit in units] in (["user", "assistant", "user"], ["user", "model", "user"])


def test_words_stay_with_who_said_them_when_they_stood_beside_a_result() -> None:
    body = {
        "messages": [
            {"role": "user", "content": "hi"},
            {
                "role": "assistant",
                "content": [{"type": "text", "text": "wait"}, {"type": "tool_use", "id": "c1", "name": "f", "input": {}}],
            },
            {
                "role": "user",
                "content": [{"type": "tool_result", "tool_use_id": "c1", "content": "r"}, {"type": "text", "text": "hurry"}],
            },
        ]
    }
    native = decode(body, "anthropic-messages")
    cut = Conversation([message for message in native if message.kind == "parts"], metadata=native.metadata)

    assert [unit["role"] for unit in encode(cut, "anthropic-messages").value["messages"]] == ["user", "assistant", "user"]


def test_equal_answers_are_two_messages() -> None:
    """By the id of the answer; and where there is none, by fresh ids on request."""
    answer = {"object": "chat.completion", "choices": [{"index": 0, "message": {"role": "assistant", "content": "Done."}}]}
    first, second = (decode({**answer, "id": f"chatcmpl-{n}"}, "openai-chat")[0].id for n in (1, 2))
    assert first != second
    with use_port(CountingPort()):
        third, fourth = (decode(answer, "openai-chat", fresh_ids=True)[0].id for _ in range(2))
    assert third != fourth
    assert decode(answer, "openai-chat") == decode(answer, "openai-chat")


def test_fresh_ids_keep_what_they_link() -> None:
    call = {"functionCall": {"name": "poll", "args": {}}}
    response = {"functionResponse": {"name": "poll", "response": {"output": "r"}}}
    body = {"contents": [{"role": "model", "parts": [{"text": "so"}, call]}, {"role": "user", "parts": [response]}]}
    with use_port(CountingPort()):
        one, two = (decode(body, "gemini", fresh_ids=True) for _ in range(2))

    assert not {message.id for message in one} & {message.id for message in two}
    assert one.pairs() == two.pairs() == ((1, 2),)
    assert not {message.invocation_id for message in one.calls()} & {message.invocation_id for message in two.calls()}
    assert encode(one, "gemini").value == body


@pytest.mark.parametrize("name", PROVIDERS)
@pytest.mark.parametrize("url", ["https://[", "https://[x]/a.pdf", "https://example.com:port/a.pdf?b=.png#c.gif"])
def test_an_invalid_url_is_written_like_any_other(name: str, url: str) -> None:
    """The provider refuses it; the media type comes from the end of its path."""
    shown = MediaPart(modality="document", url=url)
    value = written(Conversation([Message(policy="user", payload=PartsPayload(parts=(shown,)))]), name)

    assert url in str(value)


def test_a_legacy_call_is_answered_as_such() -> None:
    call = {"role": "assistant", "content": None, "function_call": {"name": "f", "arguments": "{}"}}
    history = decode([{"role": "user", "content": "hi"}, call], "openai-chat")
    value = encode(repair(history, "openai-chat").conversation, "openai-chat").value

    assert (value[2]["role"], value[2]["name"]) == ("function", "f")


def test_a_projection_keeps_native_names_that_come_later() -> None:
    name = "openai-chat"
    begun = decode({"messages": [{"role": "user", "content": "hi"}]}, name)
    projection = Projection(name)
    projection.encode(begun)
    call = {"id": "x" * 50, "type": "function", "function": {"name": "f", "arguments": "{}"}}
    later = [{"role": "assistant", "tool_calls": [call]}, {"role": "tool", "tool_call_id": "x" * 50, "content": "k"}]
    grown = begun.extend(decode(later, name))

    assert projection.encode(grown).value == encode(grown, name).value


def test_an_alias_is_never_the_name_of_another() -> None:
    refused = Conversation([calls("a b"), gives("a b")])
    (alias,) = encode(refused, "anthropic-messages").aliases
    both = Conversation([calls("a b"), gives("a b"), calls(alias), gives(alias)])
    encoded = encode(both, "anthropic-messages")

    blocks = [block for unit in encoded.value["messages"] if unit["role"] == "assistant" for block in unit["content"]]
    ids = [block["id"] for block in blocks]
    assert len(set(ids)) == 2
    back = decode(encoded.value, "anthropic-messages", aliases=encoded.aliases)
    assert [message.invocation_id for message in back.calls()] == ["a b", alias]


@pytest.mark.parametrize("name", ["anthropic-messages", "gemini"])
def test_a_native_history_seen_from_the_other_side_begins_with_a_user(name: str) -> None:
    native = decode(encode(Conversation([says("hi"), says("hello", "assistant")]), name).value, name)
    value = encode(native, name, as_policy="user").value

    assert (value.get("messages") or value["contents"])[0]["role"] == "user"


@pytest.mark.parametrize("name", ["openai-chat", "anthropic-messages"])
def test_many_refused_ids_have_an_alias_each(name: str) -> None:
    history = [message for n in range(300) for message in (calls(f"{'c' * 50}.{n}"), gives(f"{'c' * 50}.{n}"))]
    encoded = encode(Conversation(history), name)

    assert len(encoded.aliases) == 300


def test_an_unknown_key_stays_with_its_kind_of_part() -> None:
    """Parts of one message change places: the keys of an image do not move to a text."""
    mark = {"mode": "explicit"}
    image = {"type": "image_url", "image_url": {"url": "https://example.com/a.png"}, "prompt_cache_breakpoint": mark}
    (message,) = decode([{"role": "user", "content": [{"type": "text", "text": "look"}, image]}], "openai-chat")
    swapped = message.model_copy(update={"payload": PartsPayload(parts=message.parts[::-1])})
    content = encode(Conversation([swapped]), "openai-chat").value["messages"][0]["content"]

    assert [part.keys() for part in content] == [{"type", "image_url"}, {"type", "text"}]
