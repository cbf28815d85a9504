"""Invalid streams: a typed error that names the event and the fault, and never a crash."""

import copy
import json
from contextlib import suppress
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.dialects.streams.answers import ANSWERS, Answer, answer
from tests.dialects.streams.framing import framed, pieces
from tests.dialects.streams.reading import read, read_events, words_of

from antiphon.dialects._stream import Stream
from antiphon.errors import DecodeError, DialectError, StreamCutError, StreamFailedError
from antiphon.messages import Limits, use_limits

START = {
    "openai-chat": {"id": "c", "choices": [{"index": 0, "delta": {"content": "Hi"}}]},
    "openai-responses": {
        "type": "response.output_item.added",
        "output_index": 0,
        "item": {
            "type": "message",
            "role": "assistant",
            "content": [{"type": "output_text", "text": "Hi", "annotations": [0]}],
        },
    },
    "anthropic-messages": {
        "type": "message_start",
        "message": {
            "type": "message",
            "role": "assistant",
            "content": [{"type": "text", "text": "Hi"}, {"type": "text", "text": "", "citations": "none"}],
        },
    },
    "gemini": {"candidates": [{"content": {"parts": [{"text": "Hi"}]}}]},
    "pydantic-ai": {"event_kind": "part_start", "index": 0, "part": {"part_kind": "text", "content": "Hi"}},
}
"""A first event of each format; it says Hi."""

OVERLOADED: dict[str, tuple[bytes, str, str]] = {
    "openai-chat": (b'data: {"error": {"message": "Too busy", "code": 503}}\n\n', "Too busy", "503"),
    "openai-responses": (
        b'event: error\ndata: {"type": "error", "code": "server_error", "message": "Too busy", "sequence_number": 3}\n\n',
        "Too busy",
        "server_error",
    ),
    "anthropic-messages": (
        b'event: error\ndata: {"type": "error", "error": {"type": "overloaded_error", "message": "Too busy"}}\n\n',
        "Too busy",
        "overloaded_error",
    ),
    "gemini": (b'[{\n"error": {"code": 503, "message": "Too busy", "status": "UNAVAILABLE"}\n}\n]', "Too busy", "503"),
}


@pytest.mark.parametrize("dialect", OVERLOADED)
def test_an_error_in_the_stream_is_typed_and_in_the_providers_words(dialect: str) -> None:
    data, words, code = OVERLOADED[dialect]

    with pytest.raises(StreamFailedError) as caught:
        read(dialect, pieces(framed([START[dialect]]) + data, 1))

    error = caught.value
    assert (error.reason, error.code, error.where, error.retryable) == (words, code, "event 2", True)


@pytest.mark.parametrize("dialect", OVERLOADED)
def test_deltas_before_an_error_are_returned_first(dialect: str) -> None:
    """In one piece with the error: the deltas are returned, then the next call raises, and so does every other."""
    stream = Stream(dialect)

    deltas = stream.feed(framed([START[dialect]]) + OVERLOADED[dialect][0] + framed([START[dialect]]))

    assert "".join(delta.text for delta in deltas if delta.kind == "text") == "Hi"
    for call in (stream.finish, lambda: stream.feed(b""), lambda: stream.add(START[dialect])):
        with pytest.raises(StreamFailedError):
            call()
    assert words_of(stream.so_far())["text"] == ["Hi"]


@pytest.mark.parametrize(
    ("data", "words", "code", "retryable"),
    [
        (b"event: error\ndata: gateway gone\n\n", "gateway gone", None, False),
        (b'event: error\ndata: {"detail": "x"}\n\n', '{"detail":"x"}', None, False),
        (b'data: {"error": "plain"}\n\n', "plain", None, False),
        (
            b'data: {"type": "error", "error": {"type": "invalid_request_error", "message": "no"}}\n\n',
            "no",
            "invalid_request_error",
            False,
        ),
        (
            b'{"error": {"message": "slow down", "type": "rate_limit_error", "code": null}}',
            "slow down",
            "rate_limit_error",
            True,
        ),
    ],
)
def test_an_error_is_understood_however_a_server_says_it(data: bytes, words: str, code: str | None, retryable: bool) -> None:
    for dialect in OVERLOADED:
        with pytest.raises(StreamFailedError) as caught:
            read(dialect, [data])
        assert (caught.value.reason, caught.value.code, caught.value.retryable) == (words, code, retryable)


def test_a_failed_response_is_an_error_with_its_text() -> None:
    response = {"id": "r", "status": "failed", "error": {"code": "server_error", "message": "It broke"}, "output": []}
    with pytest.raises(StreamFailedError, match="It broke") as caught:
        read_events("openai-responses", [{"type": "response.failed", "response": response}])
    assert caught.value.code == "server_error"

    with pytest.raises(StreamFailedError, match="the response failed"):
        read_events("openai-responses", [{"type": "response.failed", "response": {**response, "error": None}}])


@pytest.mark.parametrize("dialect", START)
@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (b"data: {nonsense}\n\n", "not JSON"),
        (b"data: [1, 2]\n\n", "expected an object"),
        (b"data: \xff\xfe\n\n", "not"),
        (b'data: {"a": 1, "a": 2}\n\n', "stands twice"),
        (b'data: {"a": NaN}\n\n', "not JSON"),
        (b'data: {"a": "\\ud83d", "b": NaN}\n\n', "not JSON"),
        (b"data: " + b'{"a":' * 100 + b"1" + b"}" * 100 + b"\n\n", "nested deeper"),
    ],
)
def test_an_event_that_is_not_json_says_which_it_was(dialect: str, data: bytes, reason: str) -> None:
    """S8."""
    with pytest.raises(DecodeError, match=reason) as caught:
        read(dialect, pieces(framed([START[dialect]]) + data, 3))

    assert caught.value.where.startswith("event 2")
    assert caught.value.dialect == dialect


BAD: dict[str, list[tuple[Any, str]]] = {
    "openai-chat": [
        ({"choices": {}}, "event 2: choices: expected a list, found an object"),
        ({"choices": [1]}, "event 2: choices: expected an object, found a number"),
        ({"choices": [{"index": -1}]}, "event 2: index: expected a position"),
        ({"choices": [{"delta": []}]}, "event 2: delta: expected an object, found a list"),
        ({"choices": [{"delta": {"tool_calls": "x"}}]}, "event 2: tool_calls: expected a list, found text"),
        ({"choices": [{"delta": {}, "finish_reason": 7}]}, "event 2: finish_reason: expected text"),
    ],
    "openai-responses": [
        ({"type": 7}, "event 2: type: expected text, found a number"),
        (
            {"type": "response.output_text.delta", "output_index": 4, "delta": "x"},
            "event 2: output_index: no item 4 has begun",
        ),
        (
            {"type": "response.output_text.delta", "output_index": 0, "content_index": 9},
            "event 2: expected a position up to 1",
        ),
        (
            {"type": "response.output_text.delta", "output_index": 0, "content_index": 0, "delta": []},
            "event 2: delta: expected text",
        ),
        (
            {"type": "response.output_item.added", "output_index": "0"},
            "event 2: output_index: expected a position, found text",
        ),
        (
            {"type": "response.content_part.added", "output_index": 0, "content_index": 5},
            "event 2: expected a position up to 1",
        ),
        (
            {"type": "response.output_text.annotation.added", "output_index": 0, "annotation_index": 0, "annotation": {}},
            "event 2: expected an object at position 0",
        ),
    ],
    "anthropic-messages": [
        (START["anthropic-messages"], "event 2: a second message begins"),
        ({"type": "content_block_start", "index": 0, "content_block": {}}, "event 2: index: block 0 has begun before"),
        ({"type": "content_block_delta", "index": 3, "delta": {}}, "event 2: index: no block 3 has begun"),
        ({"type": "content_block_stop"}, "event 2: index: expected a position, found nothing"),
        (
            {"type": "content_block_delta", "index": 0, "delta": {"type": "text_delta", "text": 1}},
            "event 2: text: expected text",
        ),
        ({"type": "message_delta", "delta": [], "usage": {}}, "event 2: delta: expected an object, found a list"),
        (
            {"type": "content_block_delta", "index": 1, "delta": {"type": "citations_delta", "citation": {}}},
            "event 2: citations: expected a list, found text",
        ),
    ],
    "gemini": [
        ({"candidates": "x"}, "event 2: candidates: expected a list, found text"),
        ({"candidates": [{"content": {"parts": [None]}}]}, "event 2: parts: expected an object, found nothing"),
        (
            {"candidates": [{"content": {"parts": [{"functionCall": {"name": "f", "args": {"a": "\ud83d"}}}]}}]},
            "event 2: half a character without its other half",
        ),
        ({"candidates": [{"index": 1.5}]}, "event 2: index: expected a position, found a number"),
        *(
            ({"candidates": [{"content": {"parts": [{"functionCall": {"partialArgs": [{"jsonPath": path}]}}]}}]}, words)
            for path, words in [
                ("q", "event 2: jsonPath: expected the path of one argument, found 'q'"),
                ("$", "expected the path"),
                ("$[0]", "expected the path"),
                ("$.a[*]", "expected the path"),
                ("$..a", "expected the path"),
                ("$.a[5]", "event 2: jsonPath: no value can be put at 5"),
                ("$" + ".a" * 100, "expected the path"),
            ]
        ),
    ],
    "pydantic-ai": [
        ({"event_kind": "part_delta", "index": 1, "delta": {}}, "event 2: index: no part 1 has begun"),
        (
            {"event_kind": "part_delta", "index": 0, "delta": {"part_delta_kind": "tool_call"}},
            "event 2: part_delta_kind: expected a change of a text part, found 'tool_call'",
        ),
        ({"event_kind": "part_start", "part": {}}, "event 2: index: expected a position"),
        ({"event_kind": "part_start", "index": 1, "part": 1}, "event 2: part: expected an object"),
    ],
}


@pytest.mark.parametrize(
    ("dialect", "event", "words"), [(dialect, event, words) for dialect, cases in BAD.items() for event, words in cases]
)
def test_an_event_of_the_wrong_shape_says_which_and_where(dialect: str, event: Any, words: str) -> None:
    with pytest.raises(DecodeError) as caught:
        read_events(dialect, [START[dialect], event])

    assert words in str(caught.value)


def test_events_before_the_message_has_begun_are_refused() -> None:
    for event in ({"type": "message_stop"}, {"type": "message_delta"}, {"type": "content_block_start", "index": 0}):
        with pytest.raises(DecodeError, match="no message has begun"):
            read_events("anthropic-messages", [event])


def test_bytes_that_are_no_stream_are_refused_at_the_end() -> None:
    stream = Stream("openai-chat")
    stream.feed(b"<html>\n<body>502 Bad Gateway</body>")

    with pytest.raises(DecodeError, match="not a stream of events: it begins with '<html>"):
        stream.finish()


def test_a_stream_of_nothing_was_cut() -> None:
    for dialect in START:
        with pytest.raises(StreamCutError, match="broke off after 0 events; still open: the end of the answer"):
            Stream(dialect).finish()


def test_an_event_is_limited() -> None:
    """S8: what is held of one event has an end."""
    with use_limits(Limits(message_bytes=1000, data_url_bytes=1000)):
        stream = Stream("gemini")
    stream.feed(framed([START["gemini"]]) * 100)

    stream.feed(b"data: " + b"x" * 1994)
    with pytest.raises(DecodeError, match="event 101: an event of more than 2000 bytes"):
        stream.feed(b"x")


# ---------------------------------------------------------------- anything at all

_JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-2, 3) | st.floats(allow_nan=False) | st.text(max_size=3),
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(st.text(max_size=3), inner, max_size=2),
    max_leaves=4,
)


def _places(value: Any) -> list[tuple[Any, Any]]:
    """Return each place in a value: the container, and the key or position."""
    items = list(value.items()) if isinstance(value, dict) else list(enumerate(value)) if isinstance(value, list) else []
    return [(value, key) for key, _ in items] + [place for _, each in items for place in _places(each)]


@st.composite
def _damaged(draw: st.DrawFn, changes: st.SearchStrategy[Any] = _JSON) -> tuple[Answer, list[Any]]:
    """An answer whose events were changed, left out, repeated or moved."""
    spoken = draw(st.sampled_from(ANSWERS))
    events = copy.deepcopy(spoken.events)
    for _ in range(draw(st.integers(1, 3))):
        holder, key = draw(st.sampled_from(_places(events)))
        match draw(st.sampled_from(["change", "remove", "repeat", "move"])):
            case "change":
                holder[key] = copy.deepcopy(draw(changes))
            case "remove":
                del holder[key]
            case "repeat" if isinstance(holder, list):
                holder.insert(key, copy.deepcopy(holder[key]))
            case _ if isinstance(holder, list):
                holder.append(holder.pop(key))
            case _:
                pass
        if not events:
            break
    return spoken, events


@pytest.mark.slow
@given(_damaged())
def test_damaged_events_give_an_answer_or_a_typed_error(damaged: tuple[Answer, list[Any]]) -> None:
    """Never another exception; whatever came, the state is JSON that goes on, and what is whole can be asked for."""
    spoken, events = damaged
    stream = Stream(spoken.dialect)
    with suppress(DialectError):
        for event in events:
            stream.add(event)
        stream.finish()
    assert Stream.resume(json.loads(json.dumps(stream.state))).body == stream.body
    with suppress(DecodeError):
        stream.so_far()


_HALVES = st.sampled_from(["\ud83d", "\ude00", {"\ud83d": ["\ude00"]}, {"type": "error", "\ud83d": 1}])


@given(_damaged(_HALVES))
def test_half_a_character_anywhere_gives_an_answer_or_a_typed_error(damaged: tuple[Answer, list[Any]]) -> None:
    """Text may be cut there; everywhere else it is refused, at the latest when the answer is asked for."""
    spoken, events = damaged
    stream = Stream(spoken.dialect)
    with suppress(DialectError):
        for event in events:
            stream.add(event)
        stream.finish()
    with suppress(DecodeError):
        stream.so_far()
    assert json.loads(json.dumps(stream.state)) == stream.state


@given(
    st.sampled_from(list(START)),
    st.lists(st.binary(max_size=30) | st.sampled_from([b"data: ", b"\n\n", b"{", b"}"]), max_size=8),
)
def test_any_bytes_give_a_typed_error(dialect: str, data: list[bytes]) -> None:
    with pytest.raises(DialectError):
        read(dialect, data).stream.finish()


def test_data_that_is_not_json_is_refused() -> None:
    """Also where half a character, which is let through, stands beside it."""
    for value in (object(), float("nan")):
        for event in ({"a": value}, {"a": value, "b": "\ud83d"}):
            with pytest.raises(DecodeError, match="event 1"):
                Stream("gemini").add(event)


def test_a_number_beyond_64_bits_is_exact() -> None:
    """In an event, and in arguments that come as text."""
    spoken = answer("anthropic-messages", "sample")
    spoken.events[12]["delta"]["partial_json"] = "0000000000000000000000000000}"
    spoken.events[0]["message"]["usage"]["input_tokens"] = 2**80

    stream = read("anthropic-messages", [framed(spoken.events)]).stream

    assert stream.body["content"][2]["input"] == {"a": 10**28}
    assert stream.body["usage"]["input_tokens"] == 2**80
