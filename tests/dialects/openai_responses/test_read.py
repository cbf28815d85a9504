"""What the items of OpenAI Responses say, in the core's words."""

from datetime import UTC, datetime
from typing import Any

import pytest
from tests.dialects.openai_responses.items import HOSTED, PIXEL, one_of_each
from tests.dialects.samples import SAMPLES as SEEDS
from tests.providers.samples import SAMPLES, samples

from antiphon import (
    Citation,
    Conversation,
    ForeignPart,
    MediaPart,
    Message,
    OptionCallPayload,
    OptionResultPayload,
    ReasoningPart,
    TextPart,
    decode,
)
from antiphon.dialects import get
from antiphon.errors import DecodeError
from antiphon.messages import thaw

RESPONSES = "openai-responses"


def sample(number: str) -> Any:
    return next(each.body for each in samples(RESPONSES) if f"--{number}-" in each.name)


def one(item: dict[str, Any]) -> Message:
    (message,) = decode([item], RESPONSES)
    return message


def result(message: Message) -> OptionResultPayload:
    assert isinstance(message.payload, OptionResultPayload)
    return message.payload


def test_each_item_is_a_message_and_a_row_of_the_assistants_is_a_turn() -> None:
    conversation = decode(sample("01"), RESPONSES)

    assert [(message.kind, message.policy, message.turn_id) for message in conversation] == [
        ("parts", "system", None),
        ("parts", "system", None),
        ("parts", "user", None),
        ("parts", "assistant", "rs_01"),
        ("parts", "assistant", "rs_01"),
        ("option_call", "assistant", "rs_01"),
        ("option_call", "assistant", "rs_01"),
        ("option_call", "assistant", "rs_01"),
        ("option_result", "radar", None),
        ("option_result", "get_weather", None),
        ("option_result", "get_weather", None),
        ("parts", "assistant", "rs_02"),
        ("parts", "assistant", "rs_02"),
        ("parts", "user", None),
    ]


def test_messages_in_short_form_are_turns_of_their_own() -> None:
    """They are written by hand: nothing says that they were one utterance."""
    conversation = decode(sample("02"), RESPONSES)
    first, second = (message for message in conversation if message.policy == "assistant" and message.text)

    assert first.turn_id != second.turn_id


def test_calls_belong_to_the_short_message_before_them() -> None:
    call = {"type": "function_call", "call_id": "c1", "name": "now", "arguments": "{}"}
    conversation = decode([{"role": "assistant", "content": "Let me see."}, call, {**call, "call_id": "c2"}], RESPONSES)

    assert len({message.turn_id for message in conversation}) == 1


def test_ids_of_items_are_ids_of_messages_and_call_ids_are_invocations() -> None:
    """Two different identifiers; outputs out of order find their calls."""
    conversation = decode(sample("01"), RESPONSES)
    call = conversation[5]

    assert (call.id, call.invocation_id) == ("fc_01", "call_aa")
    assert set(conversation.pairs()) == {(5, 9), (6, 10), (7, 8)}


def test_reasoning_keeps_each_thought_and_its_proof() -> None:
    (reasoning,) = [message for message in decode(sample("01"), RESPONSES) if message.id == "rs_02"]
    thoughts = [part for part in reasoning.parts if isinstance(part, ReasoningPart)]

    assert [part.text for part in thoughts] == ["**Answering**", "Bergen failed."]
    assert [part.encrypted_content for part in thoughts] == ["gAAAAABp_oPaQue-encrypted-reasoning==2", None]
    assert all(RESPONSES in part.metadata for part in thoughts)


def test_reasoning_without_a_summary_is_its_proof() -> None:
    (part,) = one({"type": "reasoning", "id": "rs_1", "summary": [], "encrypted_content": "gAAA"}).parts

    assert isinstance(part, ReasoningPart)
    assert (part.text, part.encrypted_content) == ("", "gAAA")


def test_arguments_that_were_cut_stay_text() -> None:
    """An incomplete call is an open call whose arguments nobody guesses."""
    conversation = decode(sample("03"), RESPONSES)
    payload = conversation[-1].payload

    assert isinstance(payload, OptionCallPayload)
    assert (dict(payload.arguments), payload.arguments_text) == ({}, '{"partial":')
    assert conversation.open_calls() == (conversation[-1],)


def test_the_input_of_a_custom_tool_is_text() -> None:
    payload = one({"type": "custom_tool_call", "call_id": "c1", "name": "sh", "input": '{"a": 1}'}).payload

    assert isinstance(payload, OptionCallPayload)
    assert (dict(payload.arguments), payload.arguments_text) == ({}, '{"a": 1}')


def test_a_result_is_text_or_what_it_shows() -> None:
    conversation = decode(sample("01"), RESPONSES)
    shown, text, failed = (result(message) for message in conversation[8:11])

    assert [part.kind for part in shown.parts] == ["text", "media", "media"]
    assert shown.result is None
    assert text.result == '{"t":-3}'
    assert (failed.result, failed.is_error) == ("Error: upstream 503", False), "a status is no error flag"


def test_a_result_may_name_its_tool_or_be_an_orphan() -> None:
    named = one({"type": "function_call_output", "call_id": "gone", "name": "now", "output": "x"})
    bare = one({"type": "function_call_output", "output": "x"})

    assert result(named).option_name == named.policy == "now"
    assert result(bare).option_name == "unknown"


def test_media_by_url_file_and_bytes() -> None:
    (message,) = [message for message in decode(sample("02"), RESPONSES) if len(message.parts) > 1]
    media = [part for part in message.parts if isinstance(part, MediaPart)]

    assert [(part.modality, part.url, part.file_name) for part in media] == [
        ("image", "urn:openai-file:file-img1", None),
        ("image", "https://img.example/b.png", None),
        ("document", "https://docs.example/spec.pdf", None),
        ("document", "urn:openai-file:file-doc1", None),
        ("document", "data:text/csv;base64,YSxiCjEsMgo=", "n.csv"),
    ]
    assert [part.prompt_hint for part in media if part.prompt_hint] == []
    assert media[0].metadata[RESPONSES]["detail"] == "original"


def test_citations_and_refusals() -> None:
    (message,) = [message for message in decode(sample("03"), RESPONSES) if message.id == "msg_9"]
    said, refused = message.parts

    assert isinstance(said, TextPart)
    assert isinstance(refused, TextPart)
    assert said.citations == (
        Citation(url="https://example.org", title="Example", start=4, end=14),
        Citation(source="file-1", title="a.pdf", start=14),
    )
    assert said.text[4:14] == "😀 example.", "offsets count characters"
    assert refused.metadata[RESPONSES] == {"refusal": True}


def test_a_generated_image_is_media() -> None:
    (part,) = one({"type": "image_generation_call", "id": "ig_1", "status": "completed", "result": PIXEL}).parts

    assert isinstance(part, MediaPart)
    assert part.url == f"data:image/png;base64,{PIXEL}"


@pytest.mark.parametrize(
    "item", [each for each in HOSTED if each.get("result") != PIXEL], ids=lambda each: str(each.get("type"))
)
def test_items_of_hosted_tools_are_kept_whole(item: dict[str, Any]) -> None:
    message = one(item)
    (part,) = message.parts

    assert isinstance(part, ForeignPart)
    assert (part.dialect, thaw(part.value)) == (RESPONSES, item)
    speakers = {"shell_call_output": "user", "mcp_approval_response": "user", "additional_tools": "system"}
    assert message.policy == message.role_hint_for_llm == speakers.get(str(item.get("type")), "assistant")


def test_messages_of_agents_have_a_sender_and_a_receiver() -> None:
    conversation = decode(one_of_each(), RESPONSES)
    (told,) = [message for message in conversation if message.id == "am_1"]
    (called,) = [message for message in conversation if message.id == "fc_7"]

    assert (told.policy, told.to, told.text) == ("/root", ("/root/reader",), "Read chapter 2.")
    assert isinstance(told.parts[1], ForeignPart)
    assert called.policy == "/root/reader"


def test_usage_and_time_of_a_response() -> None:
    conversation = decode(sample("03"), RESPONSES)
    usage = conversation[0].usage

    assert usage is not None
    assert (usage.input_tokens, usage.cache_read_tokens, usage.cache_write_tokens) == (100, 64, 0)
    assert (usage.output_tokens, usage.reasoning_tokens) == (50, 40)
    assert {message.created_at for message in conversation} == {datetime.fromtimestamp(1794700800, UTC)}
    assert [message.usage for message in conversation[1:]] == [None] * 4


def test_a_text_as_input_is_what_the_user_says() -> None:
    conversation = decode({"model": "m", "instructions": "Be brief.", "input": "hi"}, RESPONSES)

    assert [(message.policy, message.text) for message in conversation] == [("system", "Be brief."), ("user", "hi")]


def test_tools_of_the_caller_are_tools() -> None:
    conversation = decode(sample("01"), RESPONSES)

    assert [tool.name for tool in conversation.tools] == ["get_weather"], "a namespace is none"


# ---------------------------------------------------------------- what it is not


@pytest.mark.parametrize(
    ("data", "where"),
    [
        (7, ""),
        ({"model": "m"}, ""),
        ({"output": "x"}, ""),
        ({"input": [7]}, "input[0]"),
        ({"input": "x", "instructions": ["y"]}, "instructions"),
        ([{"role": "tool", "content": "x"}], "[0].role"),
        ([{"type": 7}], "[0].type"),
        ([{"type": "message", "content": "x"}], "[0].role"),
        ([{"role": "user"}], "[0].content"),
        ([{"role": "user", "content": None}], "[0].content"),
        ([{"role": "user", "content": [7]}], "[0].content[0]"),
        ({"input": [{"role": "user", "content": [{"type": "input_text"}]}]}, "input[0].content[0].text"),
        ({"output": [{"type": "function_call", "call_id": "c", "name": "f"}]}, "output[0].arguments"),
        ([{"type": "function_call", "name": "f", "arguments": ""}], "[0].call_id"),
        ([{"type": "function_call_output", "call_id": "c", "output": 7}], "[0].output"),
        ([{"type": "reasoning", "id": "rs", "summary": "x"}], "[0].summary"),
        ([{"type": "message", "role": "user", "content": "x", "id": 7}], "[0].id"),
        ([{"type": "response.created", "response": {}}], "[0].type"),
        ({"input": "x", "tools": [{"type": "function", "name": "f", "description": 7}]}, "tools"),
    ],
)
def test_wrong_shapes_are_named_with_their_place(data: Any, where: str) -> None:
    with pytest.raises(DecodeError) as caught:
        decode(data, RESPONSES)

    assert caught.value.where == where


def test_an_item_that_the_core_cannot_express_is_kept_whole() -> None:
    """An invalid URL, an image without data, a thought of an unknown kind."""
    image = {"type": "input_image", "detail": "auto", "image_url": "file:///etc/passwd"}
    dream = {"type": "reasoning", "id": "rs_1", "summary": [{"type": "dream", "of": "sheep"}]}
    conversation = decode([{"role": "user", "content": [image]}, dream], RESPONSES)

    assert [thaw(part.value) for message in conversation for part in message.parts if isinstance(part, ForeignPart)] == [
        image,
        dream,
    ]


def test_it_is_recognised_and_nothing_else_is() -> None:
    recognise = get(RESPONSES).recognise

    assert {str(each): bool(recognise(each.body)) for each in SAMPLES} == {
        str(each): each.dialect == RESPONSES and each.kind != "stream" for each in SAMPLES
    }
    for units in SEEDS.values():
        assert [recognise(data) for data in (units, *units)] == [None] * (len(units) + 1)
    assert recognise([{"role": "user", "content": "hi"}]) is None, "several formats look like this"
    assert recognise({"model": "m", "input": "hi"})
    assert recognise(one_of_each())
    assert recognise({"input": one_of_each()})
    assert recognise([{"role": "user", "content": [{"type": "input_text", "text": "hi"}]}])


def test_reading_is_the_same_every_time() -> None:
    assert decode(one_of_each(), RESPONSES) == decode(one_of_each(), RESPONSES)
    assert isinstance(decode(one_of_each(), RESPONSES), Conversation)
