"""Events from bytes: three framings, cut anywhere; incomplete events are kept, invalid ones are reported."""

import json
from collections.abc import Iterable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.dialects.streams.framing import FRAMINGS, NOISE, cut, framed, pieces

from antiphon.dialects._stream import EventReader, RawEvent, TooLargeError

LARGE = 1_000_000

_JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=6,
)
EVENTS = st.lists(st.dictionaries(st.text(), _JSON, min_size=1, max_size=3), max_size=5)


def _read(data: Iterable[bytes]) -> list[RawEvent]:
    reader = EventReader(LARGE)
    return [event for piece in data for event in reader.feed(piece)]


@pytest.mark.slow
@given(EVENTS, st.sampled_from(list(FRAMINGS)), st.data())
def test_any_objects_come_back_from_any_framing_cut_anywhere(events: list[Any], framing: str, data: st.DataObject) -> None:
    """Text with quotes, braces, backslashes, line ends and anything else in it."""
    whole = framed(events, framing)
    cuts = data.draw(st.lists(st.integers(0, len(whole)), max_size=8))

    assert [json.loads(event.data) for event in _read(cut(whole, cuts))] == events
    assert [json.loads(event.data) for event in _read(pieces(whole, 1))] == events


@pytest.mark.slow
@given(EVENTS, st.sampled_from(["data lines", "named events", "CR LF", "many data lines"]), st.data())
def test_server_sent_events_are_read_as_an_sdk_reads_them(events: list[Any], framing: str, data: st.DataObject) -> None:
    """Names and ids too, with noise between them. The SDK's decoder gives an event without data, which says nothing."""
    from openai._streaming import SSEDecoder

    noise = st.sampled_from([b"", *NOISE.values()])
    whole = b"".join(frame + data.draw(noise) for frame in FRAMINGS[framing](events)).removeprefix(b"\xef\xbb\xbf")
    parts = cut(whole, data.draw(st.lists(st.integers(0, len(whole)), max_size=8)))

    theirs = [event for event in SSEDecoder().iter_bytes(iter(parts)) if event.data]

    assert [(event.data, event.event or "") for event in theirs] == [
        (event.data.decode(), event.name) for event in _read(parts)
    ]


@pytest.mark.parametrize("end", [b"\n", b"\r", b"\r\n"])
@pytest.mark.parametrize("size", [1, 2, 3, 100])
def test_a_line_ends_in_one_of_three_ways(end: bytes, size: int) -> None:
    lines = [b"event: a", b"data: {}", b"", b": note", b"", b"id: 7", b"data:  [1]", b"data: x", b"", b""]

    events = _read(pieces(end.join(lines), size))

    assert events == [RawEvent(b"{}", "a"), RawEvent(b" [1]\nx", "", "7")]


def test_a_framing_may_change_in_the_middle() -> None:
    """As where a server breaks off its events to send an error as plain JSON, over several lines."""
    data = b'data: {"a": 1}\n\n{\n  "error": {\n    "message": "}\\""\n  }\n}\n\ndata: {"b": 2}\n\n'

    assert [json.loads(event.data) for event in _read(pieces(data, 1))] == [
        {"a": 1},
        {"error": {"message": '}"'}},
        {"b": 2},
    ]


@pytest.mark.slow
@given(EVENTS, st.sampled_from(list(FRAMINGS)), st.data())
def test_the_rest_is_all_that_must_be_remembered(events: list[Any], framing: str, data: st.DataObject) -> None:
    """A reader that is made anew from the rest goes on as if it were the old one."""
    whole = framed(events, framing)
    found, rest = [], b""

    for piece in cut(whole, data.draw(st.lists(st.integers(0, len(whole)), max_size=8))):
        reader = EventReader(LARGE)
        found += [*reader.feed(rest), *reader.feed(piece)]
        rest = reader.rest

    assert [json.loads(event.data) for event in found] == events
    assert rest.strip() == b""


def test_an_event_without_the_last_empty_line_is_there_when_nothing_more_comes() -> None:
    reader = EventReader(LARGE)

    assert [*reader.feed(b'event: x\ndata: {"a": 1}\n')] == []
    assert reader.flush() == RawEvent(b'{"a": 1}', "x")
    reader.drop()
    assert reader.rest == b""
    assert [*reader.feed(b'{"half": ')] == []
    assert reader.flush() is None


def test_an_event_has_a_largest_size() -> None:
    """S8: an endless line does not fill the memory."""
    reader = EventReader(100)
    assert len([*reader.feed(framed([{"a": "x" * 40}] * 30))]) == 30

    assert [*reader.feed(b"data: " + b"x" * 94)] == []
    with pytest.raises(TooLargeError, match="more than 100 bytes"):
        list(reader.feed(b"x"))


@pytest.mark.slow
def test_a_long_event_in_small_pieces_costs_no_more_than_its_length() -> None:
    """Looking at all that is there again with every piece would take minutes here."""
    event = {"a": ['{"}\\' * 100_000]}

    for framing in ("data lines", "many data lines", "a JSON array"):
        data = framed([event, event], framing)
        assert [json.loads(found.data) for found in _read(pieces(data, 16))] == [event, event]


@pytest.mark.parametrize("rest", [b"", b"d", b"dat", b"event:", b": comm", b"id: 5\nda", b"{", b'{"a"', b"retry"])
def test_the_beginning_of_an_event_is_not_lost(rest: bytes) -> None:
    reader = EventReader(LARGE)
    assert [*reader.feed(rest)] == []
    assert not reader.is_lost()


@pytest.mark.parametrize("rest", [b"<html>\n<body>", b"Internal Server Error", b"upstream: gone", b"x"])
def test_data_in_no_framing_is_reported_as_lost(rest: bytes) -> None:
    reader = EventReader(LARGE)
    assert [*reader.feed(rest)] == []
    assert reader.is_lost()
