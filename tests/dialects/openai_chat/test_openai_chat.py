"""OpenAI Chat Completions: bodies there and back, and conversations from elsewhere as the service accepts them."""

from typing import Any

import pytest
from tests.providers.samples import samples
from tests.providers.types import as_request, problems

from antiphon import (
    Conversation,
    ForeignPart,
    MediaPart,
    Message,
    OptionCallPayload,
    OptionResultPayload,
    PartsPayload,
    ReasoningPart,
    TextPart,
    decode,
    encode,
)
from antiphon.dialects import get
from antiphon.errors import DecodeError
from antiphon.messages import DataPart, Part
from antiphon.testing import check_dialect

CHAT = "openai-chat"


def said(text: str, policy: str = "user", **fields: Any) -> Message:
    return Message(policy=policy, payload=PartsPayload(parts=(TextPart(text=text),)), **fields)


def called(invocation: str, option: str = "search", policy: str = "assistant", **fields: Any) -> Message:
    payload = OptionCallPayload(invocation_id=invocation, option_name=option, arguments={"q": "x"})
    return Message(policy=policy, payload=payload, **fields)


def answered(invocation: str, option: str = "search", **outcome: Any) -> Message:
    payload = OptionResultPayload(invocation_id=invocation, option_name=option, **(outcome or {"result": "found"}))
    return Message(policy=option, payload=payload)


def messages(*history: Message, **options: Any) -> list[dict[str, Any]]:
    """The messages written, which the SDK's own types accept."""
    value = encode(Conversation(history), CHAT, **options).value
    assert not problems(CHAT, "request", as_request(CHAT, value))
    return list(value["messages"])


@pytest.mark.parametrize("sample", [each for each in samples(CHAT) if each.kind != "stream"], ids=lambda each: each.name)
def test_every_sample_keeps_all_promises(sample: Any) -> None:
    check_dialect(get(CHAT), [sample.body])


def test_a_bare_list_and_one_message_come_back_as_they_came() -> None:
    unit = {"role": "user", "content": [{"type": "text", "text": "hi", "prompt_cache_breakpoint": {"mode": "explicit"}}]}

    check_dialect(get(CHAT), [[unit], unit, [], {"messages": []}])


def test_role_hints_become_roles_and_names_participants() -> None:
    """OP-054, OP-059: the hint decides the role; the policy is the participant's name."""
    found = messages(
        said("Be brief.", "system"),
        said("hi", "alice", role_hint_for_llm="user"),
        said("hello", "planner", role_hint_for_llm="assistant"),
        said("hm", "assistant"),
    )

    assert [(unit["role"], unit.get("name")) for unit in found] == [
        ("system", None),
        ("user", "alice"),
        ("assistant", "planner"),
        ("assistant", None),
    ]


def test_the_viewpoint_decides_whose_words_are_the_assistants() -> None:
    found = messages(said("a", "planner"), said("b", "writer"), as_policy="writer")

    assert [(unit["role"], unit.get("name")) for unit in found] == [("user", "planner"), ("assistant", "writer")]


def test_parts_become_content_parts() -> None:
    """OP-055, OP-059, OP-064: text and media in order, with the detail that a part asks for."""
    parts = (
        TextPart(text="look"),
        MediaPart(modality="image", url="https://example.com/a.png", metadata={CHAT: {"detail": "low"}}),
        MediaPart(modality="audio", url="data:audio/wav;base64,AAAA"),
        MediaPart(modality="document", url="data:application/pdf;base64,AAAA", metadata={"file": {"name": "a.pdf"}}),
        MediaPart(modality="video", url="https://example.com/a.mp4"),
        DataPart(data={"a": 1}),
    )
    (unit,) = messages(Message(policy="user", payload=PartsPayload(parts=parts)))

    assert unit["content"] == [
        {"type": "text", "text": "look"},
        {"type": "image_url", "image_url": {"url": "https://example.com/a.png", "detail": "low"}},
        {"type": "input_audio", "input_audio": {"data": "AAAA", "format": "wav"}},
        {"type": "file", "file": {"file_data": "data:application/pdf;base64,AAAA", "filename": "a.pdf"}},
        {"type": "text", "text": "[video: https://example.com/a.mp4]"},
        {"type": "text", "text": '{"a":1}'},
    ]


def test_detail_may_be_given_for_all_images() -> None:
    """OP-064."""
    image = MediaPart(modality="image", url="https://example.com/a.png")
    (unit,) = messages(Message(policy="user", payload=PartsPayload(parts=(image,))), image_detail="high")

    assert unit["content"][0]["image_url"]["detail"] == "high"


def test_media_get_labels_on_request() -> None:
    """OP-056: counted through the conversation."""
    image = MediaPart(modality="image", url="https://example.com/a.png")
    one = Message(policy="user", payload=PartsPayload(parts=(image, image)))
    found = messages(one, one.model_copy(update={"id": "other"}), media_labels=True)

    labels = [part["text"] for unit in found for part in unit["content"] if part["type"] == "text"]
    assert labels == ["Media 1:", "Media 2:", "Media 3:", "Media 4:"]


def test_calls_are_paired_with_results_and_open_ones_left_out() -> None:
    """OP-057, OP-058: results follow their calls at once; an incomplete call is not said, and that is reported."""
    history = Conversation(
        [
            said("go"),
            called("c1", turn_id="t"),
            called("c2", turn_id="t"),
            called("c3", turn_id="t"),
            said("wait"),
            answered("c2"),
            answered("c1"),
        ]
    )
    encoded = encode(history, CHAT)
    found = encoded.value["messages"]

    assert [unit["role"] for unit in found] == ["user", "assistant", "tool", "tool", "user"]
    assert [call["id"] for call in found[1]["tool_calls"]] == ["c1", "c2"]
    assert [unit["tool_call_id"] for unit in found[2:4]] == ["c2", "c1"]
    reported = {(loss.message_id, loss.what) for loss in encoded.losses}
    assert (history[3].id, "message") in reported
    assert {(history[5].id, "order"), (history[6].id, "order")} <= reported


def test_an_orphan_result_is_left_out_and_reported() -> None:
    history = Conversation([said("go"), answered("gone")])
    encoded = encode(history, CHAT)

    assert [unit["role"] for unit in encoded.value["messages"]] == ["user"]
    assert (history[1].id, "message") in {(loss.message_id, loss.what) for loss in encoded.losses}


def test_an_error_is_readable() -> None:
    """OP-061: in words, with its details, never null."""
    error = {"is_error": True, "error_type": "Timeout", "error_message": "took too long", "result": {"after": 30}}
    found = messages(
        called("c1"),
        answered("c1", **error),
        called("c2"),
        answered("c2", is_error=True, error_type="Error", error_message="no"),
        called("c3"),
        answered("c3", result=None),
    )

    assert found[1]["content"] == 'Timeout: took too long\n{"after":30}'
    assert found[3]["content"] == "Error: no"
    assert found[5]["content"] == ""


def test_media_of_a_result_follow_all_results_as_the_users() -> None:
    image = MediaPart(modality="image", url="https://example.com/a.png")
    found = messages(
        called("c1", turn_id="t"),
        called("c2", turn_id="t"),
        answered("c1", result="chart", parts=(image,)),
        answered("c2"),
    )

    assert [unit["role"] for unit in found] == ["assistant", "tool", "tool", "user"]
    assert [part["text"] for part in found[1]["content"]] == ["chart", "[image of c1: shown below]"]
    assert [part["type"] for part in found[3]["content"]] == ["text", "image_url"]


def test_reasoning_of_other_providers_is_not_written() -> None:
    parts = (ReasoningPart(text="hm", signature="s"), TextPart(text="yes"))
    history = Conversation([Message(policy="assistant", payload=PartsPayload(parts=parts))])
    encoded = encode(history, CHAT)

    assert encoded.value["messages"] == [{"role": "assistant", "content": "yes"}]
    assert [loss.what for loss in encoded.losses] == ["reasoning"]


def test_refused_ids_and_names_have_aliases_that_are_read_back() -> None:
    """Call and result together; two ids that begin alike stay two; the answer of the service names our option again."""
    long = "c" * 50
    history = Conversation(
        [
            called(f"{long}1", "get.weather", turn_id="t"),
            called(f"{long}2", "get.weather", turn_id="t"),
            answered(f"{long}1", "get.weather"),
            answered(f"{long}2", "get.weather"),
        ]
    )
    encoded = encode(history, CHAT)
    ids = [call["id"] for call in encoded.value["messages"][0]["tool_calls"]]
    names = {call["function"]["name"] for call in encoded.value["messages"][0]["tool_calls"]}

    assert len(set(ids)) == 2
    assert all(len(each) <= 40 for each in ids)
    assert [unit["tool_call_id"] for unit in encoded.value["messages"][1:]] == ids
    assert not {"call", "option", "answers"} & {loss.what for loss in encoded.losses}
    back = decode(encoded.value, CHAT, aliases=encoded.aliases)
    assert [message.payload.option_name for message in back.calls()] == ["get.weather"] * 2
    assert [message.invocation_id for message in back.calls()] == [f"{long}1", f"{long}2"]
    assert encode(back, CHAT).value == encoded.value
    answer = {"role": "assistant", "content": None, "tool_calls": [_wire_call("n1", names.pop())]}
    assert decode([answer], CHAT, aliases=encoded.aliases).calls()[0].payload.option_name == "get.weather"


def _wire_call(id: str, name: str) -> dict[str, Any]:
    return {"id": id, "type": "function", "function": {"name": name, "arguments": "{}"}}


def test_a_reused_id_gets_an_alias() -> None:
    history = Conversation([called("c1"), answered("c1", result="a"), called("c1"), answered("c1", result="b")])
    found = encode(history, CHAT).value["messages"]

    assert found[0]["tool_calls"][0]["id"] == found[1]["tool_call_id"] == "c1"
    assert found[2]["tool_calls"][0]["id"] == found[3]["tool_call_id"] != "c1"


def test_a_native_id_is_kept_and_its_result_follows_it() -> None:
    """The service gave an id that it would refuse: what is native stays as it was, and the pair stays a pair."""
    long = "x" * 60
    history = decode([{"role": "assistant", "content": None, "tool_calls": [_wire_call(long, "f")]}], CHAT)
    found = encode(history.append(answered(long, "f")), CHAT).value

    assert found[0]["tool_calls"][0]["id"] == found[1]["tool_call_id"] == long


def test_custom_and_legacy_calls_come_back() -> None:
    custom = {"id": "k1", "type": "custom", "custom": {"name": "shell", "input": "ls -l"}}
    sample = [
        {"role": "assistant", "content": None, "tool_calls": [custom]},
        {"role": "tool", "tool_call_id": "k1", "content": "a b"},
        {"role": "assistant", "content": None, "function_call": {"name": "now", "arguments": "{}"}},
        {"role": "function", "name": "now", "content": "noon"},
        {"role": "function", "name": "never", "content": None},
    ]
    check_dialect(get(CHAT), [sample])
    conversation = decode(sample, CHAT)

    assert conversation[0].payload.arguments_text == "ls -l"
    assert conversation.answer_to(conversation[2]) is conversation[3]


@pytest.mark.parametrize("parts", [(), (ReasoningPart(text="hm"),), (ForeignPart(dialect="gemini", value={}),)])
def test_an_answer_of_which_nothing_can_be_said_is_left_out_and_reported(parts: tuple[Part, ...]) -> None:
    """AP302: a message without content says nothing. One that came from here is written as it was."""
    silent = Message(policy="assistant", payload=PartsPayload(parts=parts))
    history = (said("hi"), silent, said("hello?"))

    assert [unit["role"] for unit in messages(*history)] == ["user", "user"]
    assert [(loss.message_id, loss.what) for loss in encode(Conversation(history), CHAT).losses] == [(silent.id, "message")]
    own = [{"role": "assistant", "content": ""}, {"role": "assistant", "content": None}]
    assert encode(decode(own, CHAT), CHAT).value == own


def test_a_call_is_written_even_where_its_text_cannot_be() -> None:
    thought = Message(policy="assistant", payload=PartsPayload(parts=(ReasoningPart(text="hm"),)), turn_id="t")
    found = messages(said("hi"), thought, called("c1", turn_id="t"), answered("c1"))

    assert [unit["role"] for unit in found] == ["user", "assistant", "tool"]
    assert found[1]["content"] is None


def test_usage_time_and_other_choices_are_kept() -> None:
    (sample,) = samples(CHAT, "response")
    conversation = decode(sample.body, CHAT)

    assert conversation[0].usage is not None
    assert (conversation[0].usage.input_tokens, conversation[0].usage.reasoning_tokens) == (20, 12)
    assert conversation[0].created_at is not None
    assert conversation[1].usage is None


def test_an_answer_joins_the_history_it_answers() -> None:
    """A request and the response to it make the next request."""
    (first, *_), (response,) = samples(CHAT, "request"), samples(CHAT, "response")
    history = decode(first.body, CHAT).extend(decode(response.body, CHAT))
    again = encode(history, CHAT).value

    assert again["messages"][:-1] == first.body["messages"]
    assert again["messages"][-1] == response.body["choices"][0]["message"]
    assert again["tools"] == first.body["tools"]


@pytest.mark.parametrize(
    ("data", "where"),
    [
        ({"role": "robot", "content": "x"}, "role"),
        ([{"role": "user", "content": 7}], "[0].content"),
        ([{"role": "user", "content": [7]}], "[0].content[0]"),
        ({"messages": [{"role": "user", "content": [{"type": "text"}]}]}, "messages[0].content[0].text"),
        ({"messages": [7]}, "messages[0]"),
        ([{"role": "tool", "content": "x"}], "[0].tool_call_id"),
        ([{"role": "assistant", "tool_calls": [{"id": "a", "function": {}}]}], "[0].tool_calls[0].function"),
        ({"choices": []}, "choices[0].message"),
        ({"choices": [{"message": None}]}, "choices[0].message"),
    ],
)
def test_wrong_shapes_are_named_with_their_place(data: Any, where: str) -> None:
    with pytest.raises(DecodeError) as caught:
        decode(data, CHAT)

    assert caught.value.where == where
