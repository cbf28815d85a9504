"""What comes from elsewhere is written as the service accepts it: each rule of the format is a test."""

import json
from typing import Any

import pytest
from hypothesis import given
from tests.dialects.anthropic_messages.bodies import RESPONSES
from tests.dialects.anthropic_messages.rules import refusals
from tests.dialects.conversations import conversations
from tests.dialects.samples import SAMPLES as SEEDS
from tests.providers.samples import samples
from tests.providers.types import as_request, problems

from antiphon import Conversation, Message, convert, decode, encode
from antiphon.dialects import Loss
from antiphon.errors import EncodeError
from antiphon.messages import (
    Citation,
    DataPart,
    ForeignPart,
    MediaPart,
    OptionCallPayload,
    OptionResultPayload,
    Part,
    PartsPayload,
    ReasoningPart,
    TextPart,
    Tool,
)
from antiphon.messages._json_values import canonical

NAME = "anthropic-messages"
PIXEL = "data:image/png;base64,iVBORw0KGgo="


def said(*parts: Part | str, policy: str = "user", **fields: Any) -> Message:
    made = tuple(TextPart(text=part) if isinstance(part, str) else part for part in parts)
    return Message(policy=policy, payload=PartsPayload(parts=made), **fields)


def call(invocation: str, option: str = "look", **fields: Any) -> Message:
    payload = {"kind": "option_call", "invocation_id": invocation, "option_name": option, "arguments": {}, **fields}
    return Message(policy="assistant", payload=OptionCallPayload.model_validate(payload))


def result(invocation: str, option: str = "look", **fields: Any) -> Message:
    payload = {"kind": "option_result", "invocation_id": invocation, "option_name": option, **fields}
    return Message(policy=option, payload=OptionResultPayload.model_validate(payload))


def failure(words: str, **fields: Any) -> dict[str, Any]:
    return {"is_error": True, "error_type": "Error", "error_message": words, **fields}


def body_of(*messages: Message, **options: Any) -> Any:
    """Return the request for some messages; one that the service accepts."""
    body = encode(Conversation(messages), NAME, **options).value
    assert refusals(body) == []
    assert problems(NAME, "request", as_request(NAME, body)) == []
    return body


def content_of(*messages: Message, **options: Any) -> Any:
    """Return what the last message of the request holds."""
    return body_of(*messages, **options)["messages"][-1]["content"]


def lost(*messages: Message) -> set[str]:
    return {loss.what for loss in encode(Conversation(messages), NAME).losses}


# ---------------------------------------------------------------- everything at once


@pytest.mark.slow
@given(conversations())
def test_any_conversation_is_written_as_the_service_accepts_it(conversation: Conversation) -> None:
    encoded = encode(conversation, NAME)
    assert refusals(encoded.value) == []
    assert problems(NAME, "request", as_request(NAME, encoded.value)) == []
    again = encode(decode(encoded.value, NAME), NAME)
    assert canonical(again.value) == canonical(encoded.value)
    assert again.losses == ()


@pytest.mark.slow
@given(conversations())
def test_a_longer_history_begins_like_a_shorter_one(conversation: Conversation) -> None:
    """Between cuts with no open call."""
    talk = Conversation(message for message in conversation if message.lane == "talk")
    whole = encode(talk, NAME).value["messages"]
    for end in range(len(talk)):
        if not talk[:end].open_calls() and not _cuts_an_utterance(talk, end):
            begun = encode(talk[:end], NAME).value["messages"]
            assert whole[: len(begun)] == begun


def _cuts_an_utterance(talk: Conversation, end: int) -> bool:
    """Whether what was said in one utterance goes on after a cut, or an answer in a later part belongs to an earlier one."""
    turns = [turn for turn in talk.turns() if turn[0] in talk[:end] and turn[-1] not in talk[:end]]
    return bool(turns) or (end > 0 and talk[end - 1].kind == "option_call") or any(a < end <= b for a, b in talk.pairs())


_ELSEWHERE = [each for each in samples() if each.kind != "stream" and each.dialect != NAME]


@pytest.mark.parametrize("sample", _ELSEWHERE, ids=str)
def test_samples_of_other_providers_are_accepted(sample: Any) -> None:
    body = convert(sample.body, source=sample.dialect, target=NAME).value
    assert refusals(body) == []
    assert problems(NAME, "request", as_request(NAME, body)) == []


@pytest.mark.parametrize("seed", SEEDS)
def test_samples_of_the_seeds_are_accepted(seed: str) -> None:
    body = convert(SEEDS[seed], source=seed, target=NAME).value
    assert refusals(body) == []
    assert problems(NAME, "request", as_request(NAME, body)) == []


def test_an_answer_goes_into_the_next_request() -> None:
    """What was read from a response is history for a request, with its proof and without its envelope."""
    response = RESPONSES["thinking, text and a call"]
    history = Conversation([said("Look."), *decode(response, NAME), result("toolu_1", result={"n": 1})])
    assert encode(history, NAME).value == {
        "messages": [
            {"role": "user", "content": "Look."},
            {"role": "assistant", "content": response["content"]},
            {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "toolu_1", "content": '{"n":1}'}]},
        ]
    }


# ---------------------------------------------------------------- roles


def test_hints_and_names_become_roles() -> None:
    """OP-054"""
    messages = [said("a", role_hint_for_llm="user", policy="ann"), said("b", policy="assistant"), said("c", policy="planner")]
    assert [(each["role"], each["content"]) for each in body_of(*messages)["messages"]] == [
        ("user", "a"),
        ("assistant", "b"),
        ("assistant", "c"),
    ]


def test_the_viewpoint_says_whose_words_are_the_assistants() -> None:
    """OP-054"""
    body = body_of(said("a", policy="planner"), said("b", policy="writer"), as_policy="writer")
    assert [each["role"] for each in body["messages"]] == ["user", "assistant"]


def test_instructions_in_front_have_their_own_place() -> None:
    body = body_of(said("Be brief.", policy="system"), said("hi"))
    assert body == {"system": "Be brief.", "messages": [{"role": "user", "content": "hi"}]}
    body = body_of(said("Be brief.", policy="system"), said("Be kind.", policy="system"), said("hi"))
    assert body["system"] == [{"type": "text", "text": "Be brief."}, {"type": "text", "text": "Be kind."}]


def test_instructions_without_words_have_no_place() -> None:
    conversation = Conversation([said("", policy="system", id="s"), said("hi")])
    encoded = encode(conversation, NAME)
    assert encoded.value == {"messages": [{"role": "user", "content": "hi"}]}
    assert [(loss.message_id, loss.what) for loss in encoded.losses] == [("s", "message")]


def test_a_later_instruction_is_marked_text_of_the_user() -> None:
    """Where the format takes one in between depends on what follows; this must not."""
    content = content_of(said("hi"), said("Be brief.", "In Danish.", policy="system"))
    assert content == [
        {"type": "text", "text": "[System instruction]: Be brief."},
        {"type": "text", "text": "In Danish."},
    ]
    assert lost(said("hi"), said("Be brief.", policy="system")) == {"speaker", "text"}


def test_an_instruction_that_stood_in_between_stays_there() -> None:
    messages = [{"role": "user", "content": "hi"}, {"role": "system", "content": "Be brief."}]
    history = decode(messages, NAME)
    assert encode(history.append(said("And now?")), NAME).value == [*messages, {"role": "user", "content": "And now?"}]


def test_an_instruction_of_the_front_is_marked_further_down() -> None:
    front, hi = decode({"system": "Be brief.", "messages": [{"role": "user", "content": "hi"}]}, NAME)
    assert content_of(hi, front) == "[System instruction]: Be brief."
    blocks = [{"type": "of_next_year"}, {"type": "text", "text": "Be brief."}]
    front, hi = decode({"system": blocks, "messages": [{"role": "user", "content": "hi"}]}, NAME)
    assert content_of(hi, front) == "[System instruction]: Be brief."
    front, hi = decode({"system": [], "messages": [{"role": "user", "content": "hi"}]}, NAME)
    assert content_of(hi, front) == "hi"


def test_a_user_speaks_first() -> None:
    conversation = Conversation([said("Hello, I am here.", policy="assistant", id="a")])
    encoded = encode(conversation, NAME)
    assert encoded.value["messages"] == [
        {"role": "user", "content": "."},
        {"role": "assistant", "content": "Hello, I am here."},
    ]
    assert encoded.losses == (Loss("a", "added", "something must be said before it here"),)


def test_neighbours_of_one_role_stay_apart() -> None:
    """The service takes them as one turn, and nothing of a shorter history changes."""
    assert body_of(said("a"), said("b"))["messages"] == [{"role": "user", "content": "a"}, {"role": "user", "content": "b"}]


# ---------------------------------------------------------------- text, data, reasoning


def test_text_without_words_is_not_said() -> None:
    """`messages: text content blocks must be non-empty`"""
    assert content_of(said("", "hi", " \n")) == "hi"
    assert body_of(said("hi"), said("", policy="assistant"))["messages"] == [{"role": "user", "content": "hi"}]
    assert lost(said("hi"), said("", policy="assistant")) == {"message"}


def test_parts_are_blocks_in_their_order() -> None:
    """OP-055"""
    picture = MediaPart(modality="image", url="https://img.example/a.png")
    assert content_of(said("a", picture, "b", DataPart(data={"n": 1}))) == [
        {"type": "text", "text": "a"},
        {"type": "image", "source": {"type": "url", "url": "https://img.example/a.png"}},
        {"type": "text", "text": "b"},
        {"type": "text", "text": '{"n":1}'},
    ]


@pytest.mark.parametrize(
    "part",
    [
        ReasoningPart(text="Hm.", signature="EqQB", metadata={"gemini": {}}),
        ReasoningPart(text="Hm.", encrypted_content="gAAA"),
        ReasoningPart(text="Hm."),
        ReasoningPart(text="Hm.", metadata={NAME: {}}),
    ],
)
def test_reasoning_without_a_proof_of_this_provider_is_not_said(part: ReasoningPart) -> None:
    """`Invalid signature in thinking block`"""
    message = said(part, "Yes.", policy="assistant")
    assert content_of(said("hi"), message) == "Yes."
    assert lost(said("hi"), message) == {"reasoning"}


def test_reasoning_of_this_provider_goes_with_its_message() -> None:
    part = ReasoningPart(text="Hm.", signature="EqQB", metadata={NAME: {}})
    encoded = encode(Conversation([said("hi"), said(part, "Yes.", policy="assistant")]), NAME)
    assert encoded.value["messages"][1]["content"][0] == {"type": "thinking", "thinking": "Hm.", "signature": "EqQB"}
    assert encoded.losses == ()


def test_assistant_only_blocks_are_not_written_for_a_user() -> None:
    """From another's viewpoint, an assistant's message is a user's: without thoughts, and without server tools."""
    content = [
        {"type": "thinking", "thinking": "Hm.", "signature": "EqQB"},
        {"type": "server_tool_use", "id": "srvtoolu_1", "name": "web_search", "input": {}},
        {"type": "text", "text": "Yes."},
    ]
    (message,) = decode([{"role": "assistant", "content": content}], NAME)
    assert content_of(message, as_policy="writer") == "Yes."


def test_foreign_parts_of_another_dialect_are_lost_and_reported() -> None:
    message = said("hi", ForeignPart(dialect="gemini", value={"executableCode": {}}))
    assert content_of(message) == "hi"
    assert lost(message) == {"foreign"}


def test_citations_of_other_providers_are_lost_and_reported() -> None:
    """A citation here names a document of the request."""
    message = said(TextPart(text="The sky is blue.", citations=(Citation(url="https://sky.example", title="Sky"),)))
    assert content_of(message) == "The sky is blue."
    assert lost(message) == {"citations"}


# ---------------------------------------------------------------- media and settings


@pytest.mark.parametrize(
    ("part", "source"),
    [
        (MediaPart(modality="image", url=PIXEL), {"type": "base64", "media_type": "image/png", "data": "iVBORw0KGgo="}),
        (
            MediaPart(modality="image", url="data:image/jpg;base64,_-A="),
            {"type": "base64", "media_type": "image/jpeg", "data": "/+A="},
        ),
        (MediaPart(modality="image", url="https://img.example/a"), {"type": "url", "url": "https://img.example/a"}),
        (MediaPart(modality="image", url="urn:anthropic-file:file_1"), {"type": "file", "file_id": "file_1"}),
        (
            MediaPart(modality="document", url="data:application/pdf;base64,JVBE"),
            {"type": "base64", "media_type": "application/pdf", "data": "JVBE"},
        ),
        (
            MediaPart(modality="document", url="data:text/markdown;base64,IyBoaQ=="),
            {"type": "text", "media_type": "text/plain", "data": "# hi"},
        ),
        (MediaPart(modality="document", url="https://docs.example/a"), {"type": "url", "url": "https://docs.example/a"}),
    ],
)
def test_media_that_the_service_takes_are_shown(part: MediaPart, source: dict[str, Any]) -> None:
    assert content_of(said("See:", part))[1] == {"type": part.modality, "source": source}


@pytest.mark.parametrize(
    ("part", "words"),
    [
        (MediaPart(modality="audio", url="data:audio/wav;base64,UklG"), "[audio, not shown]"),
        (MediaPart(modality="video", url="https://v.example/a.mp4"), "[video: https://v.example/a.mp4]"),
        (MediaPart(modality="image", url="data:image/svg+xml;base64,PHN2Zz4="), "[image, not shown]"),
        (MediaPart(modality="image", url="gs://bucket/a.png"), "[image, not shown]"),
        (MediaPart(modality="image", url="urn:openai-file:file-1", prompt_hint="radar"), "[image radar]"),
        (MediaPart(modality="document", url="https://docs.example/a.txt"), "[document: https://docs.example/a.txt]"),
        (MediaPart(modality="document", url="data:text/plain;base64,////"), "[document, not shown]"),
        (MediaPart(modality="document", url="data:text/plain;base64,%%%%"), "[document, not shown]"),
        (MediaPart(modality="document", url="data:application/zip;base64,UEs="), "[document, not shown]"),
    ],
)
def test_media_that_the_service_refuses_become_text(part: MediaPart, words: str) -> None:
    assert content_of(said("See:", part))[1] == {"type": "text", "text": words}
    assert lost(said("See:", part)) - {"hint"} == {"media", "text"}


def test_an_assistant_shows_no_media() -> None:
    part = MediaPart(modality="image", url="https://img.example/a.png")
    assert content_of(said("hi"), said(part, policy="assistant")) == "[image: https://img.example/a.png]"


def test_a_document_has_its_title() -> None:
    part = MediaPart(modality="document", url="data:application/pdf;base64,JVBE", prompt_hint="Report")
    assert content_of(said(part))[0]["title"] == "Report"


def test_media_have_labels_on_request() -> None:
    """OP-056"""
    part = MediaPart(modality="image", url="https://img.example/a.png")
    contents = [each["content"] for each in body_of(said("a", part), said(part), media_labels=True)["messages"]]
    image = {"type": "image", "source": {"type": "url", "url": "https://img.example/a.png"}}
    assert contents == [
        [{"type": "text", "text": "a"}, {"type": "text", "text": "Media 1:"}, image],
        [{"type": "text", "text": "Media 2:"}, image],
    ]


def test_settings_are_taken_from_the_notes_on_a_part() -> None:
    """OP-064"""
    mark = {"type": "ephemeral"}
    noted = {NAME: {"cache_control": mark, "context": "a draft", "of_no_text": 1}}
    document = MediaPart(modality="document", url="https://docs.example/a.pdf", metadata=noted)
    assert content_of(said(TextPart(text="hi", metadata=noted), document)) == [
        {"type": "text", "text": "hi", "cache_control": mark},
        {
            "type": "document",
            "source": {"type": "url", "url": "https://docs.example/a.pdf"},
            "cache_control": mark,
            "context": "a draft",
        },
    ]


def test_an_option_that_it_does_not_have_is_refused() -> None:
    with pytest.raises(TypeError, match="anthropic-messages has no option 'image_detail'"):
        encode(Conversation(), NAME, image_detail="high")


# ---------------------------------------------------------------- calls and results


def test_results_of_a_turn_stand_in_one_message() -> None:
    """OP-057: in the next message, all of them, before anything else."""
    body = body_of(said("go"), call("a"), call("b"), result("b", result="2"), result("a", result="1"), said("and?"))
    assert body["messages"][1:] == [
        {
            "role": "assistant",
            "content": [
                {"type": "tool_use", "id": "a", "name": "look", "input": {}},
                {"type": "tool_use", "id": "b", "name": "look", "input": {}},
            ],
        },
        {
            "role": "user",
            "content": [
                {"type": "tool_result", "tool_use_id": "b", "content": "2"},
                {"type": "tool_result", "tool_use_id": "a", "content": "1"},
            ],
        },
        {"role": "user", "content": "and?"},
    ]


def test_a_result_further_down_moves_to_its_call() -> None:
    """OP-057"""
    messages = [said("go"), call("a"), said("wait"), result("a", result="1")]
    assert [each["role"] for each in body_of(*messages)["messages"]] == ["user", "assistant", "user", "user"]
    assert lost(*messages) == {"order"}


def test_words_and_calls_of_one_utterance_are_one_message() -> None:
    words = said("Looking.", policy="assistant", turn_id="t")
    calls = [call(each).model_copy(update={"turn_id": "t"}) for each in ("a", "b")]
    body = body_of(said("go"), words, *calls, result("a"), result("b"))
    assert [[block["type"] for block in each["content"]] for each in body["messages"][1:]] == [
        ["text", "tool_use", "tool_use"],
        ["tool_result", "tool_result"],
    ]


def test_a_call_without_a_result_is_left_out() -> None:
    """OP-058"""
    messages = [said("go"), call("a"), call("b"), result("a")]
    assert [block["id"] for block in body_of(*messages)["messages"][1]["content"]] == ["a"]
    assert lost(*messages) == {"message"}


def test_ids_and_names_that_are_refused_have_an_alias_and_come_back() -> None:
    """`tool_use.id: String should match pattern '^[a-zA-Z0-9_-]+$'`"""
    messages = [said("go"), call("call|1", "fs.read"), result("call|1", "fs.read", result="x")]
    conversation = Conversation(messages, tools=[Tool(name="fs.read")])
    encoded = encode(conversation, NAME)
    assert refusals(encoded.value) == []
    tool, block = encoded.value["tools"][0], encoded.value["messages"][1]["content"][0]
    assert tool["name"] == block["name"] != "fs.read"
    again = decode(encoded.value, NAME, aliases=encoded.aliases)
    assert [each.payload.invocation_id for each in again if each.kind != "parts"] == ["call|1", "call|1"]
    assert encoded.losses == ()


def test_an_id_that_is_used_again_is_another_one() -> None:
    """`tool_use ids must be unique`"""
    body = body_of(said("go"), call("a"), result("a", result="1"), call("a"), result("a", result="2"))
    first, second = (each["content"][0] for each in body["messages"][2::2])
    assert (first["content"], second["content"]) == ("1", "2")
    assert first["tool_use_id"] != second["tool_use_id"]


def test_arguments_that_are_no_object_are_wrapped_and_come_back() -> None:
    """Cut JSON and free text of other formats."""
    calling = call("a", arguments={}, arguments_text='{"city": "Os')
    body = body_of(said("go"), calling, result("a"))
    assert body["messages"][1]["content"][0]["input"] == {"_raw": '{"city": "Os'}
    assert lost(said("go"), calling, result("a")) == set()


@pytest.mark.parametrize(
    ("outcome", "content"),
    [
        ({"result": "18 °C"}, "18 °C"),
        ({"result": ""}, ""),
        ({"result": {"t": 18, "ok": None}}, '{"t":18,"ok":null}'),
        ({"result": 7}, "7"),
        ({}, None),
    ],
)
def test_a_result_is_text(outcome: dict[str, Any], content: str | None) -> None:
    """Nothing returned is no content, never `null`."""
    (block,) = content_of(said("go"), call("a"), result("a", **outcome))
    assert block.get("content") == content
    assert "is_error" not in block


def test_a_result_shows_media() -> None:
    picture = MediaPart(modality="image", url=PIXEL)
    (block,) = content_of(said("go"), call("a"), result("a", result="09:00", parts=(picture, TextPart(text=""))))
    assert [each["type"] for each in block["content"]] == ["text", "image"]
    (block,) = content_of(said("go"), call("a"), result("a", parts=(TextPart(text=""), ReasoningPart(text="Hm."))))
    assert "content" not in block


@pytest.mark.parametrize(
    ("outcome", "words"),
    [
        (failure("upstream 503"), "upstream 503"),
        (failure("no answer", error_type="Timeout"), "Timeout: no answer"),
        (failure("no answer", result={"after": 5}), 'no answer\n{"after":5}'),
        (failure(""), "Error"),
        (failure(" ", parts=(TextPart(text=""),)), "Error"),
    ],
)
def test_an_error_has_the_flag_and_readable_words(outcome: dict[str, Any], words: str) -> None:
    """OP-061"""
    (block,) = content_of(said("go"), call("a"), result("a", **outcome))
    assert (block["is_error"], block["content"]) == (True, words)


def test_media_of_an_error_are_shown_after_the_results() -> None:
    """OP-061: `all content must be type text if is_error is true`"""
    parts = (MediaPart(modality="image", url=PIXEL), MediaPart(modality="audio", url="data:audio/wav;base64,UklG"))
    outcomes = [result("a", **failure("cut off", parts=parts)), result("b", result="1")]
    content = content_of(said("go"), call("a"), call("b"), *outcomes)
    assert [block["type"] for block in content] == ["tool_result", "tool_result", "text", "image"]
    assert [block["text"] for block in content[0]["content"]] == ["cut off", "[image of a: shown below]", "[audio, not shown]"]
    assert content[2] == {"type": "text", "text": "image of a:"}


# ---------------------------------------------------------------- the rest of a request


def test_a_tool_has_the_schema_of_an_object() -> None:
    tools = [Tool(name="a"), Tool(name="b", description="B", parameters={"type": "object", "properties": {}})]
    assert encode(Conversation(tools=tools), NAME).value["tools"] == [
        {"name": "a", "input_schema": {"type": "object"}},
        {"name": "b", "description": "B", "input_schema": {"type": "object", "properties": {}}},
    ]


def test_a_list_becomes_a_request_when_a_list_cannot_hold_it() -> None:
    history = decode([{"role": "user", "content": "hi"}], NAME)
    with_tools = Conversation(history, tools=[Tool(name="a")], metadata=history.metadata)
    assert encode(with_tools, NAME).value.keys() == {"messages", "tools"}
    instructed = Conversation([said("Be brief.", policy="system"), *history], metadata=history.metadata)
    assert encode(instructed, NAME).value.keys() == {"messages", "system"}


def test_a_response_that_is_answered_becomes_a_request() -> None:
    response = decode(RESPONSES["thinking, text and a call"], NAME)
    body = encode(response.append(result("toolu_1")), NAME).value
    assert body.keys() == {"messages"}
    assert json.dumps(body).count("msg_01Y") == 0


def test_losses_can_be_refused() -> None:
    with pytest.raises(EncodeError, match="cannot say media"):
        encode(Conversation([said(MediaPart(modality="audio", url="data:audio/wav;base64,UklG"))]), NAME, losses="raise")
