"""The verbs, their values, the marks they leave, and what they can read of a dialect's notes."""

import pytest
from tests.checks.said import calls, codes, gives, says

from antiphon import Conversation, Finding, TextPart, check, repair
from antiphon.checks import Change, is_left_out, projected
from antiphon.checks._findings import LEFT_OUT, marked
from antiphon.checks._rule import Trouble

ASK = says("user", "How warm is it?")


@pytest.mark.parametrize("verb", [check, repair])
def test_an_unknown_target_is_refused_with_the_known_ones(verb: object) -> None:
    with pytest.raises(LookupError, match="no target is called 'openai'; there are openai-chat, openai-responses, "):
        verb(Conversation(), "openai")  # type: ignore[operator]


def test_findings_are_in_the_order_of_the_messages() -> None:
    """Those about the whole come first."""
    metadata = {"openai-responses": {"rest": {"previous_response_id": "x"}}}
    broken = Conversation([calls("c1"), ASK, ASK, gives("c2")], metadata=metadata)

    assert [(each.position, each.code) for each in check(broken, "openai-responses")] == [
        (None, "AP702"),
        (0, "AP101"),
        (2, "AP108"),
        (3, "AP102"),
    ]


def test_a_finding_reads_like_a_linters() -> None:
    finding = Finding("AP101", "error", 3, "m4", "the call has no result", "It is refused.", "Add one.")

    assert str(finding) == "message 3: AP101 error: the call has no result"
    assert str(Finding("AP604", "warning", None, None, "too many", "", "")) == "conversation: AP604 warning: too many"
    assert str(Change("AP604", None, "done")) == "conversation: AP604: done"


def test_the_answer_says_how_sure_it_is() -> None:
    """An error is refused; of a warning it may be, and what nobody is known to refuse has no words."""
    cut = Conversation([ASK, calls("c1", text='{"a'), gives("c1")])
    done = Conversation([ASK, says("assistant", "Warm.")])

    assert check(cut)[0].answer == "No target is known to refuse it."
    assert check(cut, "openai-chat")[0].answer == "OpenAI Chat Completions may refuse it."
    assert check(done, "anthropic-messages")[0].answer == (
        "Sent as it is, Anthropic Messages may answer: “This model does not support assistant message prefill. "
        "The conversation must end with a user message.”"
    )


def test_a_valid_conversation_is_returned_unchanged() -> None:
    fine = Conversation([ASK, calls("c1"), gives("c1")])

    assert repair(fine).conversation is fine
    assert repair(fine).changes == ()


def test_tools_and_metadata_stay() -> None:
    broken = Conversation([ASK, calls("c1")], metadata={"mine": {"a": 1}})

    assert repair(broken).conversation.metadata == {"mine": {"a": 1}}


# ---------------------------------------------------------------- what is left out


def test_the_projection_has_what_is_not_left_out() -> None:
    """Messages and parts; the same conversation if all of it is there."""
    words = says("user", TextPart(text="a"), marked(TextPart(text="b"), LEFT_OUT, "AP301"))
    orphan = marked(gives("c9"), LEFT_OUT, "AP102")
    call, result = calls("c1"), gives("c1")
    history = Conversation([words, orphan, call, result], metadata={"mine": {}})

    shown = projected(history)
    assert [message.text for message in shown] == ["a", "", ""]
    assert shown[0].id == words.id
    assert shown.metadata == history.metadata
    assert projected(shown) is shown
    assert [is_left_out(message) for message in history] == [False, True, False, False]


def test_left_out_parts_are_not_checked() -> None:
    assert codes(Conversation([ASK, marked(gives("c9"), LEFT_OUT, "AP102")])) == []


def test_a_mark_keeps_what_was_there() -> None:
    message = says("user", "Hello", native="openai-chat")
    twice = marked(marked(message, "mended", "AP201"), LEFT_OUT, "AP302")

    assert twice.metadata == {"openai-chat": {}, "checks": {"mended": "AP201", "left_out": "AP302"}}


def test_a_trouble_of_the_whole_has_no_message() -> None:
    assert Trouble(3, "x").place == 3
    with pytest.raises(RuntimeError, match="not about a message"):
        Trouble(None, "x").place  # noqa: B018


def test_ids_that_are_made_are_new() -> None:
    """Also where a history has been repaired, cut, and repaired again."""
    once = repair(Conversation([ASK, calls("c1", id="call")])).conversation
    made = once[2].id
    taken = says("user", "Hello", id=made)
    again = repair(Conversation([ASK, calls("c1", id="call"), taken])).conversation

    assert len({message.id for message in again}) == 4
