"""A stream as a value: which there are, how its state is stored and refused, and its errors between processes."""

import json
import pickle
from typing import Any

import pytest
from tests.dialects.streams.answers import answer
from tests.dialects.streams.reading import read_events
from tests.providers.samples import DIALECTS

from antiphon.dialects._assembler import Delta
from antiphon.dialects._stream import Stream
from antiphon.errors import DecodeError, DialectError, StreamCutError, StreamFailedError


def test_every_provider_format_can_be_streamed() -> None:
    assert [Stream(dialect).dialect for dialect in DIALECTS] == list(DIALECTS)


def test_a_dialect_without_streams_is_refused() -> None:
    with pytest.raises(LookupError, match="no streamed answer of 'marsys' can be read; there are openai-chat"):
        Stream("marsys")
    with pytest.raises(LookupError, match="no dialect is called 'telegraph'"):
        Stream("telegraph")


def test_a_delta_is_a_frozen_value() -> None:
    delta = Delta("text", 0, "Hi")

    with pytest.raises(AttributeError):
        delta.text = "Ho"  # type: ignore[misc]
    assert delta == Delta("text", 0, "Hi")
    assert hash(delta) == hash(Delta("text", 0, "Hi"))


def test_changing_returned_values_does_not_change_the_stream() -> None:
    """Changes to an event that was added, to the body, or to the state do not reach the answer."""
    spoken = answer("openai-chat", "sample")
    stream = Stream("openai-chat")
    for event in spoken.events:
        stream.add(event)
        event.clear()
        stream.body["choices"].clear()
        stream.state["answer"].clear()

    assert stream.body == spoken.body


def test_a_state_is_json_and_says_what_it_is() -> None:
    stream = read_events("gemini", answer("gemini", "sample").events[:3]).stream
    state = stream.state

    assert json.loads(json.dumps(state)) == state
    assert (state["antiphon_stream"], state["dialect"], state["events"]) == (1, "gemini", 3)


def _without(key: str) -> Any:
    state = Stream("openai-chat").state
    del state[key]
    return state


@pytest.mark.parametrize(
    ("state", "where"),
    [
        ({}, "antiphon_stream"),
        ([], "antiphon_stream"),
        ({"antiphon_stream": object()}, ""),
        (_without("rest"), "rest"),
        (_without("answer"), "answer"),
        ({**Stream("openai-chat").state, "events": "3"}, "events"),
        ({**Stream("openai-chat").state, "answer": Stream("gemini").state["answer"]}, "answer.choices"),
    ],
)
def test_something_else_than_a_state_is_refused(state: Any, where: str) -> None:
    with pytest.raises(DecodeError, match="expected the state of a") as caught:
        Stream.resume(state)
    assert caught.value.where == where


def test_the_state_of_a_later_version_is_refused_by_name() -> None:
    with pytest.raises(DecodeError, match="version 2, and this antiphon reads up to 1: upgrade it"):
        Stream.resume({**Stream("openai-chat").state, "antiphon_stream": 2})


@pytest.mark.parametrize(
    "error",
    [
        StreamCutError("why", dialect="d", where="w", opened=("the call 'f'",), state={"events": 1}),
        StreamFailedError("why", dialect="d", where="w", code="503", retryable=True),
    ],
)
def test_an_error_of_a_stream_survives_the_way_between_processes(error: DialectError) -> None:
    again = pickle.loads(pickle.dumps(error))

    assert type(again) is type(error)
    assert vars(again) == vars(error)
    assert str(again) == "d at w: why"
    assert again.retryable
