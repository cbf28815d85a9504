"""Messages as the GenAI conventions write them, where content is recorded."""

from typing import Any

import orjson

from antiphon.messages import (
    DataPart,
    ForeignPart,
    MediaPart,
    Message,
    OptionCallPayload,
    OptionResultPayload,
    PartsPayload,
    ReasoningPart,
    TextPart,
)
from antiphon.runtime import AgentOperation, ModelOperation
from antiphon.telemetry._conventions import body_of, content_of, outcome_text


def _written(*messages: Message) -> Any:
    return orjson.loads(content_of(ModelOperation("m", input=messages))["gen_ai.input.messages"])


def test_every_part_has_its_form_and_bytes_are_left_out() -> None:
    parts = (
        TextPart(text="see"),
        ReasoningPart(text="hmm", signature="s"),
        MediaPart(modality="image", url="https://e.example/a.png", mime="image/png"),
        MediaPart(modality="audio", url="data:audio/wav;base64,QUJD", mime="audio/wav"),
        DataPart(data={"n": [1, None]}),
        ForeignPart(dialect="gemini", value={"odd": True}),
    )
    (message,) = _written(Message(policy="ann", payload=PartsPayload(parts=parts), role_hint_for_llm="user"))

    assert message == {
        "role": "user",
        "name": "ann",
        "parts": [
            {"type": "text", "content": "see"},
            {"type": "reasoning", "content": "hmm"},
            {"type": "uri", "modality": "image", "mime_type": "image/png", "uri": "https://e.example/a.png"},
            {"type": "blob", "modality": "audio", "mime_type": "audio/wav"},
            {"type": "data", "content": {"n": [1, None]}},
            {"type": "gemini", "content": {"odd": True}},
        ],
    }


def test_an_utterance_is_one_message_and_results_are_the_tools() -> None:
    call = OptionCallPayload(invocation_id="c1", option_name="look", arguments={"at": "it"})
    odd = OptionCallPayload(invocation_id="c2", option_name="look", arguments={}, arguments_text='{"at":')
    said = [
        Message(policy="bot", payload=PartsPayload(parts=(TextPart(text="ok"),)), role_hint_for_llm="assistant", turn_id="t"),
        Message(policy="bot", payload=call, turn_id="t"),
        Message(policy="bot", payload=odd, turn_id="u"),
        Message(policy="look", payload=OptionResultPayload(invocation_id="c1", option_name="look", result={"x": 1})),
        Message(
            policy="look",
            payload=OptionResultPayload(
                invocation_id="c2", option_name="look", is_error=True, error_type="E", error_message="no JSON"
            ),
        ),
    ]
    written = _written(*said)

    assert [(message["role"], message["parts"]) for message in written] == [
        (
            "assistant",
            [
                {"type": "text", "content": "ok"},
                {"type": "tool_call", "id": "c1", "name": "look", "arguments": {"at": "it"}},
            ],
        ),
        ("assistant", [{"type": "tool_call", "id": "c2", "name": "look", "arguments": '{"at":'}]),
        ("tool", [{"type": "tool_call_response", "id": "c1", "response": {"x": 1}}]),
        ("tool", [{"type": "tool_call_response", "id": "c2", "response": "no JSON"}]),
    ]


def test_any_outcome_can_be_written() -> None:
    message = Message(policy="ann", payload=PartsPayload(parts=(TextPart(text="hi"),)))

    assert outcome_text(message) == body_of(message)
    assert outcome_text({"n": 1}) == '{"n":1}'
    assert outcome_text(object()) == '"object"'
    assert content_of(AgentOperation("a")) == {}
    assert content_of(ModelOperation("m")) == {}
