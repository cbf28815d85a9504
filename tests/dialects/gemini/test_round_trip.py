"""generateContent and back: the same data, and after an edit all but the edit."""

import json
from copy import deepcopy
from typing import Any

import pytest
from hypothesis import given
from tests.dialects.gemini.bodies import BODIES
from tests.dialects.gemini.mutations import mutated, places
from tests.providers.samples import samples
from tests.providers.types import differences

from antiphon import Conversation, Message, dumps, loads
from antiphon.dialects import get
from antiphon.errors import DecodeError
from antiphon.messages import MediaPart, OptionCallPayload, OptionResultPayload, PartsPayload, TextPart
from antiphon.testing import check_dialect

GEMINI = get("gemini")


def replaced(conversation: Conversation, place: int, **fields: Any) -> Conversation:
    """The conversation with fields of one message's payload changed."""
    message = conversation[place]
    changed = message.model_copy(update={"payload": message.payload.model_copy(update=fields)})
    messages = [*conversation[:place], changed, *conversation[place + 1 :]]
    return Conversation(messages, tools=conversation.tools, metadata=conversation.metadata)


@pytest.mark.parametrize("name", BODIES)
def test_every_body_comes_back_as_it_was(name: str) -> None:
    """OP-060. Also from text, from bytes, and after a stay in the house format."""
    body = BODIES[name]
    text = json.dumps(body)

    for data in (body, text, text.encode()):
        encoded = GEMINI.encode(GEMINI.decode(data))
        assert differences(body, encoded.value) == []
        assert encoded.losses == ()
    assert differences(body, GEMINI.encode(loads(dumps(GEMINI.decode(body)))).value) == []


@pytest.mark.slow
def test_the_samples_keep_what_every_dialect_promises() -> None:
    check_dialect(GEMINI, [sample.body for sample in samples("gemini", "request")])


@pytest.mark.parametrize("name", BODIES)
def test_an_unknown_key_is_kept_at_every_depth(name: str) -> None:
    count = sum(isinstance(box[key], dict) for box, key in places(BODIES[name]))
    for chosen in range(count):
        body = deepcopy(BODIES[name])
        box, key = [(box, key) for box, key in places(body) if isinstance(box[key], dict)][chosen]
        box[key]["x-not-known"] = {"kept": [None, 1.0]}

        assert differences(body, GEMINI.encode(GEMINI.decode(body)).value) == []


@given(body=mutated())
def test_an_accepted_body_comes_back_and_a_refused_one_names_the_place(body: Any) -> None:
    before = deepcopy(body)
    try:
        conversation = GEMINI.decode(body)
    except DecodeError as error:
        refused = error
    else:
        refused = None
        again = GEMINI.encode(conversation).value

    assert refused.dialect == "gemini" if refused else differences(before, again) == []
    assert body == before


@given(body=mutated())
def test_an_accepted_body_can_be_written_again_without_our_notes(body: Any) -> None:
    """It is then a conversation like any other: it is written, and that is read and written again."""
    try:
        conversation = GEMINI.decode(body)
    except DecodeError:
        return
    bare = Conversation((m.model_copy(update={"metadata": {}}) for m in conversation), tools=conversation.tools)
    value = GEMINI.encode(bare).value

    assert differences(value, GEMINI.encode(GEMINI.decode(value)).value) == []


def test_an_edited_text_changes_nothing_else() -> None:
    body = samples("gemini", "request")[0].body
    conversation = GEMINI.decode(body)
    place = next(i for i, m in enumerate(conversation) if m.parts and getattr(m.parts[0], "text", "") == "Oslo −3.")
    edited = replaced(conversation, place, parts=(TextPart(text="Oslo −4."), *conversation[place].parts[1:]))

    assert differences(body, GEMINI.encode(edited).value) == ["$.contents[3].parts[0].text: 'Oslo −3.' became 'Oslo −4.'"]


def test_a_body_in_snake_case_is_edited_in_snake_case() -> None:
    """The old value must not stand beside the new one under the other spelling."""
    body = BODIES["snake case, as clients write it"]
    conversation = GEMINI.decode(body)
    picture = conversation[1].parts[0]
    assert isinstance(picture, MediaPart)
    call = next(place for place, m in enumerate(conversation) if m.kind == "option_call")
    edited = replaced(
        conversation, 1, parts=(picture.model_copy(update={"url": "data:image/gif;base64,R0lG", "mime": "image/gif"}),)
    )
    edited = replaced(edited, call, arguments={"at": 3})

    assert sorted(differences(body, GEMINI.encode(edited).value)) == [
        "$.contents[0].parts[0].inline_data.data: 'iVBO-_8=' became 'R0lG'",
        "$.contents[0].parts[0].inline_data.mime_type: 'image/png' became 'image/gif'",
        "$.contents[1].parts[1].function_call.args.at: 1 became 3",
    ]


@pytest.mark.parametrize("result", [{"fresh": 1}, {"output": 1}, {"error": "x"}, {}, "text", None])
def test_an_edited_result_takes_the_place_of_the_old_one(result: Any) -> None:
    """Whatever its form was, nothing of the old one is left, and the new one is read as what it is."""
    conversation = GEMINI.decode(BODIES["results of every form"])
    results = [place for place, m in enumerate(conversation) if m.kind == "option_result"]
    success = {"is_error": False, "error_type": None, "error_message": None, "retryable": None}
    for place in results:
        conversation = replaced(conversation, place, result=result, **success)
    back = GEMINI.decode(GEMINI.encode(conversation).value)

    assert [back[place].payload for place in results] == [conversation[place].payload for place in results]


def test_instructions_may_be_taken_away_and_changed() -> None:
    body = BODIES["snake case, as clients write it"]
    conversation = GEMINI.decode(body)
    changed = replaced(conversation, 0, parts=(TextPart(text="Be brief."),))
    without = Conversation(conversation[1:], tools=conversation.tools, metadata=conversation.metadata)

    assert GEMINI.encode(changed).value["system_instruction"] == {"role": "system", "parts": [{"text": "Be brief."}]}
    assert "systemInstruction" not in GEMINI.encode(changed).value
    assert not GEMINI.encode(without).value.keys() & {"systemInstruction", "system_instruction"}


def test_a_response_becomes_part_of_the_next_request() -> None:
    """It is appended to its request; only its text, its calls and their signatures are history."""
    asked = GEMINI.decode({"contents": [{"role": "user", "parts": [{"text": "Look."}]}], "generationConfig": {"topK": 1}})
    response = BODIES["calls without ids"]
    answered = asked.extend(GEMINI.decode(response))
    encoded = GEMINI.encode(answered)

    assert encoded.value["contents"][1] == response["candidates"][0]["content"]
    assert encoded.value["generationConfig"] == {"topK": 1}


def test_two_answers_are_no_response() -> None:
    first = GEMINI.decode(BODIES["no role"])
    both = first.extend(GEMINI.decode(BODIES["calls without ids"]))

    assert GEMINI.encode(both).value.keys() == {"contents"}


def test_an_answer_without_words_has_no_place_for_some() -> None:
    blocked = GEMINI.decode(BODIES["nothing but a reason"])
    said = blocked.extend(GEMINI.decode([{"role": "user", "parts": [{"text": "hi"}]}]))

    assert len(blocked) == 0
    assert GEMINI.encode(said).value == {"contents": [{"role": "user", "parts": [{"text": "hi"}]}]}
    assert GEMINI.encode(GEMINI.decode(BODIES["no role"])[:0]).value["candidates"] == [{}]


def test_messages_are_of_the_core_only() -> None:
    kinds = {PartsPayload, OptionCallPayload, OptionResultPayload}

    assert {type(message.payload) for body in BODIES.values() for message in GEMINI.decode(body)} == kinds
    assert all(isinstance(message, Message) for message in GEMINI.decode(BODIES["no role"]))
