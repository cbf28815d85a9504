"""Whatever an answer says, and however a provider cuts it into events, the fold is the answer and the deltas add up to it."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.dialects.streams.framing import cut, framed
from tests.dialects.streams.reading import read, read_events, told
from tests.dialects.streams.spoken import INVERSES, Call, Said, Streamed, streamed

from antiphon.dialects._assembler import Delta
from antiphon.dialects._stream import Stream
from antiphon.errors import DecodeError
from antiphon.messages._json_values import canonical

DIALECTS = st.sampled_from(list(INVERSES))
ANY = DIALECTS.flatmap(lambda dialect: st.tuples(st.just(dialect), streamed(dialect)))


@pytest.mark.slow
@given(ANY, st.data())
def test_a_streamed_answer_folds_to_itself(made: tuple[str, Streamed], data: st.DataObject) -> None:
    """Characters cut in half between two events, and bytes cut anywhere."""
    dialect, answer = made
    whole = framed(answer.events)
    cuts = data.draw(st.lists(st.integers(0, len(whole)), max_size=5))

    stream, deltas = read(dialect, cut(whole, cuts))

    assert canonical(stream.body) == canonical(answer.body)
    assert stream.unfinished == ()
    assert all(delta.text.encode() is not None for delta in deltas)  # no half of a character in any


@pytest.mark.slow
@given(ANY)
def test_deltas_add_up_to_the_answer(made: tuple[str, Streamed]) -> None:
    """Piece by piece, in their order: texts, thoughts and arguments; each call once, with its name and id, and first."""
    dialect, answer = made
    deltas = read_events(dialect, answer.events).deltas
    texts = told(deltas)

    for kind in ("text", "reasoning"):
        said = "".join(piece.text for piece in answer.pieces if isinstance(piece, Said) and piece.kind == kind)
        assert "".join(text for (one, _), text in sorted(texts.items(), key=_by_piece) if one == kind) == said
    begun: dict[int | None, Delta] = {delta.index: delta for delta in deltas if delta.kind == "call"}
    calls = [piece for piece in answer.pieces if isinstance(piece, Call)]
    assert [(each.option_name, each.invocation_id) for each in begun.values()] == [(call.name, call.id) for call in calls]
    arguments = {index: json.loads(text) for (kind, index), text in texts.items() if kind == "arguments"}
    assert [arguments.get(index, {}) for index in begun] == [call.arguments for call in calls]


def _by_piece(told_text: tuple[tuple[str, int | None], str]) -> int:
    return told_text[0][1] or 0


@pytest.mark.slow
@given(ANY, st.data())
def test_a_made_up_answer_goes_on_from_any_state(made: tuple[str, Streamed], data: st.DataObject) -> None:
    """The state is JSON text, also while half a character waits."""
    dialect, answer = made
    stop = data.draw(st.integers(0, len(answer.events)))
    first, before = read_events(dialect, answer.events[:stop])
    again = Stream.resume(json.loads(canonical(first.state)))

    after = [delta for event in answer.events[stop:] for delta in again.add(event)]

    assert canonical(again.body) == canonical(answer.body)
    assert before + after == read_events(dialect, answer.events).deltas


@pytest.mark.parametrize("dialect", INVERSES)
def test_half_a_character_that_never_becomes_one_is_refused(dialect: str) -> None:
    events = {
        "openai-chat": [{"choices": [{"index": 0, "delta": {"content": text}}]} for text in ("\ud83d", "a")],
        "anthropic-messages": [
            {"type": "message_start", "message": {"id": "m"}},
            {"type": "content_block_start", "index": 0, "content_block": {"type": "text", "text": ""}},
            *(
                {"type": "content_block_delta", "index": 0, "delta": {"type": "text_delta", "text": text}}
                for text in ("\ud83d", "a")
            ),
        ],
        "gemini": [{"candidates": [{"content": {"parts": [{"text": text}]}}]} for text in ("\ud83d", "a")],
        "openai-responses": [
            {"type": "response.output_item.added", "output_index": 0, "item": {"type": "message", "content": []}},
            *(
                {"type": "response.output_text.delta", "output_index": 0, "content_index": 0, "delta": text}
                for text in ("\ud83d", "a")
            ),
        ],
        "pydantic-ai": [
            {"event_kind": "part_start", "index": 0, "part": {"part_kind": "text", "content": ""}},
            *(
                {"event_kind": "part_delta", "index": 0, "delta": {"part_delta_kind": "text", "content_delta": text}}
                for text in ("\ud83d", "a")
            ),
        ],
    }[dialect]

    waiting = read_events(dialect, events[:-1]).stream
    assert "a character of which half has come" in waiting.unfinished
    with pytest.raises(DecodeError, match="half a character"):
        waiting.add(events[-1])
