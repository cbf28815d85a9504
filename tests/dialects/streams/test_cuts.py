"""However the bytes of a streamed answer are framed and cut, the answer and its deltas are the same."""

import json
import re
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.dialects.streams.answers import ANSWERS, Answer, answer
from tests.dialects.streams.framing import FRAMINGS, NOISE, cut, framed, pieces
from tests.dialects.streams.reading import read, read_events

from antiphon.dialects._stream import Stream
from antiphon.errors import StreamCutError
from antiphon.messages._json_values import canonical

EVERY = [pytest.param(each, id=str(each)) for each in ANSWERS]
A_FEW = st.sampled_from(ANSWERS)
FRAMED = st.sampled_from(list(FRAMINGS))


@pytest.mark.parametrize("spoken", EVERY)
def test_events_fold_to_the_whole_answer(spoken: Answer) -> None:
    """Values too: `1`, `1.0` and `true` are three."""
    stream = read_events(spoken.dialect, spoken.events).stream

    assert canonical(stream.body) == canonical(spoken.body)
    assert stream.unfinished == ()


@pytest.mark.slow
@pytest.mark.parametrize("framing", FRAMINGS)
@pytest.mark.parametrize("spoken", EVERY)
def test_every_framing_is_the_same_byte_by_byte_and_at_once(spoken: Answer, framing: str) -> None:
    data = framed(spoken.events, framing)
    expected = read_events(spoken.dialect, spoken.events).deltas

    for size in (1, 7, len(data)):
        stream, deltas = read(spoken.dialect, pieces(data, size))
        assert canonical(stream.body) == canonical(spoken.body)
        assert deltas == expected


@pytest.mark.slow
@pytest.mark.parametrize("spoken", EVERY)
def test_a_cut_at_every_boundary_changes_nothing(spoken: Answer) -> None:
    """In two pieces: at each byte of a line end, of an escape and of a character, and at some others."""
    data = framed(spoken.events, "named events").replace(b"\n", b"\r\n")
    expected = read_events(spoken.dialect, spoken.events).deltas
    marks = re.finditer(rb"\r\n\r\n|\\\\|[\x80-\xff]+", data)
    places = {at for mark in marks for at in range(mark.start(), mark.end() + 1)}

    for at in places | set(range(0, len(data) + 1, 97)):
        stream, deltas = read(spoken.dialect, cut(data, [at]))
        assert canonical(stream.body) == canonical(spoken.body)
        assert deltas == expected


@given(A_FEW, FRAMED, st.data())
def test_noise_between_events_and_cuts_anywhere_change_nothing(spoken: Answer, framing: str, data: st.DataObject) -> None:
    noise = st.lists(st.sampled_from([*NOISE.values()]), max_size=2).map(b"".join)
    frames = [frame + (data.draw(noise) if framing != "a JSON array" else b"") for frame in FRAMINGS[framing](spoken.events)]
    whole = b"".join(frames)
    cuts = data.draw(st.lists(st.integers(0, len(whole)), max_size=12))

    stream, deltas = read(spoken.dialect, cut(whole, cuts))

    assert canonical(stream.body) == canonical(spoken.body)
    assert deltas == read_events(spoken.dialect, spoken.events).deltas
    assert stream.unknown.get("ping", 0) == (0 if spoken.dialect == "anthropic-messages" else whole.count(NOISE["a ping"]))


@pytest.mark.parametrize("spoken", EVERY)
def test_unknown_events_are_counted_and_change_nothing(spoken: Answer) -> None:
    unknown = {"type": "response.telepathy.started", "event_kind": "telepathy", "level": [1, {"x": None}]}
    events = [each for event in spoken.events for each in (unknown, event)]

    stream, deltas = read_events(spoken.dialect, events)

    assert canonical(stream.body) == canonical(spoken.body)
    assert deltas == read_events(spoken.dialect, spoken.events).deltas
    assert stream.unknown["response.telepathy.started"] == len(spoken.events)


@given(A_FEW, FRAMED, st.data())
def test_a_stream_goes_on_from_its_state(spoken: Answer, framing: str, data: st.DataObject) -> None:
    """Stopped at any byte, stored as JSON text, and gone on from there: nothing shows that it was stopped."""
    whole = framed(spoken.events, framing)
    stops = sorted(data.draw(st.lists(st.integers(0, len(whole)), min_size=1, max_size=5)))
    stream, deltas = Stream(spoken.dialect), []

    for piece in cut(whole, stops):
        stream = Stream.resume(json.loads(json.dumps(stream.state)))
        deltas += stream.feed(piece)

    assert canonical(stream.body) == canonical(spoken.body)
    assert deltas == read_events(spoken.dialect, spoken.events).deltas


@pytest.mark.parametrize("spoken", EVERY)
def test_a_reconnected_stream_forgets_half_an_event(spoken: Answer) -> None:
    """A server that continues after the last whole event sends the cut event again from its beginning."""
    frames = FRAMINGS["CR LF"](spoken.events)
    for at in range(1, len(frames)):
        stream, before = read(spoken.dialect, [*frames[:at], frames[at][:-9]])
        again = Stream.resume(stream.state, reconnected=True)

        deltas = before + read(spoken.dialect, frames[at:], again).deltas

        assert canonical(again.body) == canonical(spoken.body)
        assert deltas == read_events(spoken.dialect, spoken.events).deltas
        assert again.last_event == str(len(spoken.events) - 1)


@pytest.mark.parametrize("spoken", EVERY)
def test_a_cut_stream_says_what_is_open_and_goes_on(spoken: Answer) -> None:
    """After each event before the end: a typed error, whose state leads to the whole answer."""
    frames = FRAMINGS["data lines"](spoken.events)
    ends = {at for at in range(len(frames)) if not read(spoken.dialect, frames[:at]).stream.unfinished}
    for at in set(range(len(frames))) - ends:
        with pytest.raises(StreamCutError) as caught:
            read(spoken.dialect, frames[:at]).stream.finish()

        error = caught.value
        assert error.retryable
        assert error.opened[-1] == "the end of the answer"
        assert all(name in str(error) for name in error.opened)
        stream, _ = read(spoken.dialect, frames[at:], Stream.resume(error.state))
        assert canonical(stream.body) == canonical(spoken.body)
    # Whole before the last event: only usage, citations or a mark of the end can follow.
    assert len(ends) <= 2


@pytest.mark.parametrize("spoken", EVERY)
def test_the_complete_pieces_never_hold_half_a_call(spoken: Answer) -> None:
    """After each event, every call that is there is one of the whole answer."""
    whole = _calls(spoken.body)
    stream = Stream(spoken.dialect)
    for event in spoken.events:
        stream.add(event)
        assert all(call in whole for call in _calls(stream._assembler.body(only_complete=True)))


def _calls(body: Any) -> list[Any]:
    """Return each object that is a call, in any format."""
    if isinstance(body, list):
        return [call for each in body for call in _calls(each)]
    if not isinstance(body, dict):
        return []
    kinds = {str(body.get("type")), str(body.get("part_kind"))}
    if kinds & {"function", "custom", "tool_use", "server_tool_use", "function_call", "custom_tool_call", "tool-call"}:
        return [body]
    named = [body[key] for key in ("functionCall", "function_call") if body.get(key)]
    return named + [call for value in body.values() for call in _calls(value)]


def test_a_call_is_left_out_until_it_is_whole() -> None:
    """The trap in each format: arguments that are JSON already, or look so, before the call is over."""
    open_after = {"openai-chat": 4, "anthropic-messages": 12, "gemini": 5, "openai-responses": 17, "pydantic-ai": 6}
    calls_then = {"openai-chat": 0, "anthropic-messages": 0, "gemini": 1, "openai-responses": 0, "pydantic-ai": 0}
    for dialect, count in open_after.items():
        stream = read_events(dialect, answer(dialect, "sample").events[:count]).stream
        assert len(_calls(stream._assembler.body(only_complete=True))) == calls_then[dialect], dialect
        assert any(name.startswith("the call ") for name in stream.unfinished), dialect
