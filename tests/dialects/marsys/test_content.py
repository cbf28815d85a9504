"""Content as a list of parts, as OpenAI has it: kept as it is, said elsewhere as texts and media. MA-002, MA-009."""

from typing import Any, cast

import pytest

from antiphon import Conversation, MediaPart, check, decode, encode
from antiphon.dialects.marsys import (
    Message,
    process_for_llm,
    process_llm_response,
    validate_message,
    validate_tool_response,
    validation_errors,
)
from antiphon.messages import OptionCallPayload, OptionResultPayload, TextPart, thaw

PNG = "data:image/png;base64,iVBORw0KGgo="
WORDS = {"type": "text", "text": "What is this?"}
IMAGE = {"type": "image_url", "image_url": {"url": PNG, "detail": "low"}}
LOOK = [WORDS, IMAGE]


def test_content_may_be_a_list_of_parts() -> None:
    """MA-002, MA-009, MA-025, MA-046: read-only, equal by content, the same in JSON and for a model."""
    given: list[dict[str, Any]] = [dict(WORDS), dict(IMAGE)]
    message = Message("user", given, message_id="m1")
    given.clear()
    assert message.content == LOOK
    assert message.text == "What is this?"
    assert Message.from_json(message.to_json()) == message
    assert hash(Message.from_dict(message.to_dict())) == hash(message)
    assert message != message.replace(content="What is this?")
    assert message.to_llm_dict() == {"role": "user", "content": LOOK}
    assert validate_message(message)
    with pytest.raises(TypeError, match="read-only"):
        cast("list[Any]", message.content).append(WORDS)
    message.to_llm_dict()["content"].append(WORDS)
    assert message.content == LOOK


@pytest.mark.parametrize("content", [7, {"type": "text"}, ["text"], [WORDS, None]])
def test_content_is_text_or_a_list_of_objects(content: Any) -> None:
    with pytest.raises(ValueError, match="Content is text, or a list of parts"):
        Message("user", content)


def test_a_fault_in_a_list_is_reported() -> None:
    """MA-036: a part needs its type; a tool's answer in parts is no JSON."""
    assert validation_errors(Message("user", [WORDS, {"text": "?"}])) == ["content[1].type must be text that is not empty"]
    assert not validate_message(Message("user", []))
    assert not validate_tool_response(Message("tool", [WORDS], name="f", tool_call_id="c1"))


def test_a_model_gets_the_name_of_the_caller_before_the_parts() -> None:
    """MA-032, MA-034: the heading is a part of its own; a response may come in parts too."""
    call = Message("agent_call", LOOK, name="b", metadata={"caller": "a"})
    heading = {"type": "text", "text": "[Request from a]:"}
    assert process_for_llm(call) == {"role": "user", "content": [heading, *LOOK]}
    assert process_llm_response({"role": "assistant", "content": [WORDS]}).text == "What is this?"


UNITS: list[dict[str, Any]] = [
    {"role": "user", "content": LOOK, "message_id": "m1"},
    {"role": "user", "content": [{**WORDS, "cache_control": {"type": "ephemeral"}}]},
    {"role": "user", "content": []},
    {"role": "user", "content": [{"type": "text"}, {"type": "hologram", "hologram": 3}]},
    {"role": "user", "content": [{"type": "file", "file": {"file_id": "f-1", "filename": "a.pdf"}}]},
    {
        "role": "assistant",
        "content": [IMAGE],
        "message_id": "m2",
        "tool_calls": [{"id": "c1", "type": "function", "function": {"name": "look", "arguments": "{}"}}],
    },
    {"role": "tool", "content": [WORDS, IMAGE], "name": "look", "tool_call_id": "c1"},
    {"role": "agent_call", "content": LOOK, "name": "b", "metadata": {"caller": "a", "task_id": "t1"}},
    {"role": "agent_response", "content": [WORDS, WORDS], "name": "b", "metadata": {"task_id": "t1"}},
    {"role": "agent_call", "content": [WORDS], "name": "b", "metadata": {"caller": "a", "task_id": "t2"}},
    {"role": "error", "content": [WORDS], "metadata": {"task_id": "t2", "error_type": "E"}},
    {"role": "error", "content": LOOK, "name": "b"},
]


def test_lists_come_back_as_they_were() -> None:
    """G1, MA-009: every role, every kind of part, keys that nobody knows; nothing is lost."""
    conversation = decode(UNITS, "marsys")
    encoded = encode(conversation, "marsys")
    assert encoded.value == UNITS
    assert encoded.losses == ()
    bare = Conversation(message.model_copy(update={"metadata": {}}) for message in conversation)
    again = decode(encode(bare, "marsys").value, "marsys")
    assert [each.parts for each in again if each.kind == "parts"] == [each.parts for each in bare if each.kind == "parts"]


def test_parts_of_a_list_are_texts_and_media() -> None:
    """MA-009: what is said, called and answered in parts is that to every reader."""
    said = {each.id: each for each in decode(UNITS, "marsys")}
    words, image = said["m1"].parts
    assert (words.kind, image.kind) == ("text", "media")
    assert isinstance(image, MediaPart)
    assert (image.modality, image.url) == ("image", PNG)
    results = [each.payload for each in said.values() if isinstance(each.payload, OptionResultPayload)]
    assert [each.result for each in results] == [None, "What is this?\nWhat is this?", None]
    assert [part.kind for part in results[0].parts] == ["text", "media"]
    assert results[2].error_message == "What is this?"
    calls = [each.payload for each in said.values() if isinstance(each.payload, OptionCallPayload)]
    assert thaw(calls[1].arguments) == {"request": "What is this?", "content": LOOK}
    assert thaw(calls[2].arguments) == {"request": "What is this?"}


@pytest.mark.parametrize("target", ["openai-chat", "openai-responses", "anthropic-messages", "gemini", "pydantic-ai"])
def test_a_list_goes_to_other_formats_with_its_image(target: str) -> None:
    """MA-009: the image is there, and valid there; only the time is lost."""
    conversation = decode([Message("user", LOOK).to_dict()], "marsys")
    encoded = encode(conversation, target)
    (message,) = decode(encoded.value, target)
    assert [part.url for part in message.parts if isinstance(part, MediaPart)] == [PNG]
    assert [part.text for part in message.parts if isinstance(part, TextPart)] == ["What is this?"]
    assert {loss.what for loss in encoded.losses} <= {"time"}
    assert [each for each in check(decode(encoded.value, target), target) if each.severity == "error"] == []


def test_images_of_other_formats_are_said_in_a_list() -> None:
    """MA-009: what a list cannot say is reported, and nothing else."""
    body = {"messages": [{"role": "user", "content": LOOK}]}
    encoded = encode(decode(body, "openai-chat"), "marsys")
    assert encoded.value[0]["content"] == LOOK
    assert encoded.losses == ()
    video = MediaPart(modality="video", url="https://example.org/a.mp4")
    labelled = MediaPart(modality="image", url=PNG, prompt_hint="a cat")
    message = decode(body, "openai-chat")[0]
    both = message.model_copy(update={"payload": message.payload.model_copy(update={"parts": (video, labelled)})})
    encoded = encode(Conversation([both]), "marsys")
    assert encoded.value[0]["content"] == [{"type": "image_url", "image_url": {"url": PNG}}]
    assert {loss.what for loss in encoded.losses} == {"media", "hint"}
