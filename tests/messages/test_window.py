"""Windows: as much as fits, and never in the middle of something."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.messages.test_conversation import answer, call, histories, ids, say

from antiphon import Conversation, MediaPart, Message, OptionResultPayload, PartsPayload, TextPart, dumps
from antiphon.messages._log import estimate_tokens
from antiphon.messages._unchecked import house_bytes

TALK = Conversation(
    [
        say("s", "system"),
        say("q1"),
        say("t", "assistant", turn_id="t"),
        call("a", turn_id="t"),
        call("b", turn_id="t"),
        answer("rb", "i-b"),
        answer("ra", "i-a"),
        say("f1", "assistant"),
        say("q2"),
    ]
)


@pytest.mark.parametrize(
    ("count", "found"),
    [
        (0, "s"),
        (1, "s"),
        (2, "s q2"),
        (3, "s f1 q2"),
        (4, "s f1 q2"),
        (7, "s f1 q2"),
        (8, "s t a b rb ra f1 q2"),
        (9, "s q1 t a b rb ra f1 q2"),
        (100, "s q1 t a b rb ra f1 q2"),
    ],
)
def test_a_window_by_count_cuts_no_pair_and_no_turn(count: int, found: str) -> None:
    assert ids(TALK.window(count)) == found


def test_a_window_has_no_message_of_a_longer_conversation() -> None:
    """Both share their storage."""
    short = Conversation([say("q1"), say("f1", "assistant")])
    long = short.append(say("q2")).append(say("f2", "assistant"))
    assert (ids(short.window(4)), ids(short.window(1)), ids(long.window(1))) == ("q1 f1", "f1", "f2")


def test_keep_decides_what_stays() -> None:
    assert ids(TALK.window(2, keep=lambda message: False)) == "f1 q2"
    assert ids(TALK.window(2, keep=lambda message: message.id == "q1")) == "q1 q2"


def test_a_kept_message_brings_its_other_half() -> None:
    assert ids(TALK.window(3, keep=lambda message: message.id == "b")) == "t a b rb ra"
    assert ids(TALK.window(6, keep=lambda message: message.id == "rb")) == "t a b rb ra q2"
    twice = Conversation([call("c", "x"), answer("r", "x"), answer("again", "x"), say("q")])
    assert ids(twice.window(3, keep=lambda message: message.id == "again")) == "c r again"


def test_a_window_never_starts_with_an_orphan() -> None:
    conversation = Conversation([say("a"), answer("lost", "?"), say("b")])

    assert ids(conversation.window(2)) == "b"
    assert ids(conversation.window(3)) == "a lost b"


def test_a_window_by_size_and_by_tokens() -> None:
    size = len(house_bytes(TALK[-1].payload))

    assert ids(TALK.window(size=size, keep=lambda message: False)) == "q2"
    assert ids(TALK.window(size=size - 1, keep=lambda message: False)) == ""
    assert ids(TALK.window(tokens=10_000)) == ids(TALK)
    assert ids(TALK.window(tokens=3, count_tokens=lambda message: 1)) == "s f1 q2"


def test_an_utterance_without_a_turn_is_not_cut_either() -> None:
    """Same step and policy are one utterance, as `turns` has it."""
    conversation = Conversation([say("t", "x", step_num=1), call("c", "i", policy="x", step_num=1), answer("r", "i")])

    assert [ids(turn) for turn in conversation.turns()] == ["t c", "r"]
    assert ids(conversation.window(2)) == ""
    assert ids(conversation.window(3)) == "t c r"


def test_the_journal_is_not_in_a_window() -> None:
    conversation = Conversation([say("a"), call("e", lane="effect"), say("b")])

    assert ids(conversation.window(2)) == "a b"


@pytest.mark.parametrize("wrong", [{}, {"count": 1, "size": 1}, {"size": 1, "tokens": 1}])
def test_one_limit_must_be_given(wrong: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match="exactly one of count, size and tokens"):
        TALK.window(**wrong)


def test_tokens_are_estimated_from_text_and_media() -> None:
    text = Message(policy="user", payload=PartsPayload(parts=(TextPart(text="word " * 400),)))
    photo = MediaPart(modality="image", url="data:image/png;base64," + "A" * 100_000)
    image = Message(policy="user", payload=PartsPayload(parts=(photo,)))

    assert 500 < estimate_tokens(text) < 550
    assert 1000 < estimate_tokens(image) < 1050


@given(histories(), st.integers(min_value=0, max_value=16))
def test_a_window_is_closed_ordered_and_within_its_limit(conversation: Conversation, count: int) -> None:
    """For any history: what belongs together is in or out together."""
    window = conversation.window(count)
    chosen = set(ids(window).split())
    looked_at = [message for message in conversation if message.lane != "effect"]
    kept = {message.id for message in looked_at if message.policy == "system"}
    tail = [message for message in window if message.id not in kept]

    assert [m.id for m in window] == [m.id for m in looked_at if m.id in chosen]
    assert kept <= chosen
    assert len(window) <= max(count, len(conversation.window(0)))
    for result in conversation.results():
        found = conversation.call_of(result)
        if found is not None and result.lane != "effect":
            assert (result.id in chosen) == (found.id in chosen) or found.lane == "effect"
    if tail:
        assert tail[0] not in conversation.orphans()


@pytest.mark.slow
@given(histories(), st.integers(min_value=0, max_value=16))
def test_a_smaller_window_is_the_end_of_a_larger_one(conversation: Conversation, count: int) -> None:
    smaller, larger = (ids(conversation.window(n, keep=lambda m: False)) for n in (count, count + 1))

    assert larger.endswith(smaller)


def test_windows_of_what_was_loaded_are_the_same() -> None:
    from antiphon import loads

    assert loads(dumps(TALK), Conversation).window(8) == TALK.window(8)
    assert isinstance(TALK[5].payload, OptionResultPayload)
