"""A streamed answer becomes the same messages as the whole answer; its deltas add up to them."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.dialects.streams.answers import ANSWERS, Answer, answer
from tests.dialects.streams.framing import framed, pieces
from tests.dialects.streams.reading import read, read_events, told, words_of
from tests.dialects.streams.spoken import INVERSES, Streamed, streamed

from antiphon.dialects import decode
from antiphon.dialects._stream import Stream
from antiphon.messages import Conversation, OptionCallPayload

EVERY = [pytest.param(each, id=str(each)) for each in ANSWERS]


@pytest.mark.parametrize("spoken", EVERY)
def test_a_stream_finishes_as_the_messages_of_the_whole_answer(spoken: Answer) -> None:
    data = framed(spoken.events, "named events")
    whole = decode(spoken.body, spoken.dialect)

    assert read(spoken.dialect, pieces(data, 11)).stream.finish() == whole
    assert read_events(spoken.dialect, spoken.events).stream.finish() == whole


@pytest.mark.parametrize("spoken", EVERY)
def test_deltas_add_up_to_the_text_of_the_messages(spoken: Answer) -> None:
    stream, deltas = read_events(spoken.dialect, spoken.events)
    found = words_of(stream.finish())
    texts = told(deltas)

    assert _joined(texts, "text", "refusal") == "".join(found["text"])
    assert _joined(texts, "reasoning") == "".join(found["reasoning"])
    assert [delta.option_name for delta in deltas if delta.kind == "call"] == found["call"]


def _joined(texts: dict[tuple[str, int | None], str], *kinds: str) -> str:
    return "".join(text for (kind, _), text in texts.items() if kind in kinds)


@pytest.mark.parametrize("spoken", EVERY)
def test_so_far_returns_a_beginning_with_whole_calls_only(spoken: Answer) -> None:
    """After each event: it can be read, its calls are calls of the whole answer, its text begins the text."""
    whole = read_events(spoken.dialect, spoken.events).stream.finish()
    calls, text = _calls(whole), "".join(words_of(whole)["text"])
    stream = Stream(spoken.dialect)

    assert stream.so_far() == Conversation()
    for event in spoken.events:
        stream.add(event)
        so_far = stream.so_far()
        assert all(call in calls for call in _calls(so_far))
        assert text.startswith("".join(words_of(so_far)["text"]))
    assert stream.so_far() == stream.finish()


@pytest.mark.slow
@given(st.sampled_from(list(INVERSES)).flatmap(lambda name: st.tuples(st.just(name), streamed(name))), st.data())
def test_no_call_is_ever_returned_with_other_arguments(made: tuple[str, Streamed], data: st.DataObject) -> None:
    """Stopped after any event of any answer."""
    dialect, spoken = made
    stop = data.draw(st.integers(0, len(spoken.events)))
    whole = _calls(read_events(dialect, spoken.events).stream.finish())

    so_far = _calls(read_events(dialect, spoken.events[:stop]).stream.so_far())

    assert all(call in whole for call in so_far)


def _calls(conversation: Conversation) -> list[tuple[str, str, object, str | None]]:
    calls = [message.payload for message in conversation if isinstance(message.payload, OptionCallPayload)]
    return [(call.invocation_id, call.option_name, call.arguments, call.arguments_text) for call in calls]


def test_aliases_become_the_original_names_again() -> None:
    """Where a format refuses a name, the answer has the alias; messages and deltas have the original name again."""
    aliases = {"get_weather": "wetter/heute", "call_x": "invocation:1"}
    spoken = answer("openai-chat", "sample")
    stream = Stream("openai-chat", aliases=aliases)

    deltas = [delta for event in spoken.events for delta in Stream.resume(stream.state).add(event) + stream.add(event)]

    called = {(delta.option_name, delta.invocation_id) for delta in deltas if delta.kind == "call"}
    assert called == {("wetter/heute", "invocation:1"), ("now", "call_y")}
    assert stream.finish() == decode(spoken.body, "openai-chat", aliases=aliases)
    assert _calls(stream.finish())[0][:2] == ("invocation:1", "wetter/heute")
