"""What people suffer from, one broken history each: `check` names it, `repair` yields what every target accepts.

A call without a result (1), an orphan (2), trimming (3), a summary (4), a history that is refused for ever (5), a cancelled
run (6), cut arguments (7), lost signatures (8), reasoning items (9), another provider (10), reasoning that leaks (11), and
colliding ids (12).
"""

import pytest
from tests.checks.said import calls, codes, gives, mended_for, says, thinks, warnings

from antiphon import Conversation, Message, OptionResultPayload, ReasoningPart, encode, repair
from antiphon.checks import TARGETS, is_left_out

CHAT, RESPONSES, CLAUDE, GEMINI, AI = TARGETS


def turn(number: int, result: bool = True) -> list[Message]:
    """Return a question, a turn with text and two calls, their results, and the answer."""
    first, second = f"c{number}a", f"c{number}b"
    results = [gives(first), gives(second)] if result else [gives(first)]
    return [
        says("user", f"Question {number}"),
        says("assistant", "I look.", turn_id=f"t{number}"),
        calls(first, turn_id=f"t{number}"),
        calls(second, turn_id=f"t{number}"),
        *results,
        says("assistant", f"Answer {number}"),
    ]


def of(*messages: Message) -> Conversation:
    return Conversation(messages)


ASK = says("user", "Go on.")


@pytest.mark.slow
@pytest.mark.parametrize("target", TARGETS)
def test_pain_1_a_call_without_a_result(target: str) -> None:
    history = of(*turn(1, result=False), ASK)

    assert codes(history, target) == ["AP101"]
    closed = mended_for(target, history)[5].payload
    assert isinstance(closed, OptionResultPayload)
    assert (closed.invocation_id, closed.error_type) == ("c1b", "interrupted")


@pytest.mark.slow
@pytest.mark.parametrize("target", TARGETS)
def test_pain_2_an_orphan_result(target: str) -> None:
    history = of(ASK, gives("toolu_1"), says("assistant", "Done."), says("user", "Thanks."))

    assert codes(history, target) == ["AP102"]
    assert is_left_out(mended_for(target, history)[1])


@pytest.mark.parametrize("target", TARGETS)
def test_pain_3_trimming_that_cuts_pairs(target: str) -> None:
    """The last so many messages, as others cut them: every cut is mended."""
    history = [*turn(1), *turn(2), ASK]
    for length in range(1, len(history)):
        cut = of(*history[-length:])
        assert codes(cut, target).count("AP102") == len(cut.orphans())
        assert len(encode(mended_for(target, cut), target).value) > 0


@pytest.mark.parametrize("target", TARGETS)
def test_pain_4_a_summary_that_swallows_a_call(target: str) -> None:
    """The beginning is replaced by a summary, and the results of what it swallowed are still there."""
    history = of(says("user", "Summary: the weather was asked for."), *turn(1)[4:], ASK)

    assert codes(history, target) == ["AP102", "AP102"]
    assert len([message for message in mended_for(target, history) if is_left_out(message)]) == 2


@pytest.mark.parametrize("target", TARGETS)
def test_pain_5_a_poisoned_history_goes_on(target: str) -> None:
    """What was mended stays mended while the conversation grows: no later turn needs the same again."""
    history = mended_for(target, of(*turn(1, result=False), gives("c9")))
    for number in (2, 3):
        history = history.extend(turn(number))
        assert codes(history, target) == []
        assert repair(history, target).changes == ()


@pytest.mark.parametrize("target", TARGETS)
def test_pain_6_a_cancelled_run(target: str) -> None:
    """Cancelled in the middle of parallel calls, and then the user goes on; one result comes in late."""
    history = of(*turn(1, result=False)[:-1], ASK, gives("c1b"), says("assistant", "Warm."), says("user", "Thanks."))

    if TARGETS[target].results == "next":
        assert codes(history, target) == ["AP106"]
    made = mended_for(target, history)
    assert codes(made) == []
    interrupted = of(*turn(1, result=False)[:-1])
    assert codes(interrupted, target) == ["AP101"]


@pytest.mark.parametrize("target", TARGETS)
def test_pain_7_arguments_that_were_cut(target: str) -> None:
    """The stream broke in the middle of a call, and half of it was stored."""
    history = of(ASK, calls("c1", text='{"city": "Os'), says("user", "Hello?"))

    assert (codes(history, target), "AP309" in warnings(history, target)) == (["AP101"], True)
    written = encode(mended_for(target, history), target).value
    assert written


def test_pain_8_a_signature_that_was_lost() -> None:
    """Thinking that lost its signature in a store, or was made up by a proxy."""
    lost = says("assistant", ReasoningPart(text="hm"), "Warm.", native=CLAUDE)
    history = of(says("user", "Hello", native=CLAUDE), lost, ASK)

    assert codes(history, CLAUDE) == ["AP507"]
    assert is_left_out(mended_for(CLAUDE, history)[1].parts[0])


def test_pain_9_reasoning_items_without_their_partners() -> None:
    """Cut between reasoning and call, from either side."""
    thought = says(
        "assistant",
        ReasoningPart(encrypted_content="gAAA", metadata={RESPONSES: {"id": "rs_1"}}),
        id="rs_1",
        turn_id="rs_1",
        native=RESPONSES,
    )
    notes = {"residue": [{"at": [0, "id"], "add": "fc_1"}]}
    call = calls("c1", id="fc_1", turn_id="rs_1", native=RESPONSES, notes=notes)

    assert codes(of(ASK, thought, call, gives("c1")), RESPONSES) == []
    assert codes(of(ASK, thought, says("user", "Well?")), RESPONSES) == ["AP501"]
    assert codes(of(ASK, call, gives("c1")), RESPONSES) == ["AP502"]
    for broken in (of(ASK, thought, says("user", "Well?")), of(ASK, call, gives("c1"))):
        mended_for(RESPONSES, broken)


@pytest.mark.parametrize("target", [RESPONSES, CLAUDE, GEMINI])
def test_pain_10_another_provider_goes_on(target: str) -> None:
    """Proofs of the first, ids that the second refuses, media in results: nothing is refused, and what is not sent is said."""
    others = {RESPONSES: CLAUDE, CLAUDE: GEMINI, GEMINI: RESPONSES}[target]
    thought = says("assistant", thinks(metadata={others: {}}), "I look.", native=others, turn_id="t")
    history = of(ASK, thought, calls("fc:1/a", native=others, turn_id="t"), gives("fc:1/a", native=others))

    assert codes(history, target) == []
    assert "AP504" in warnings(history, target)
    assert "EqQB" not in str(encode(history, target).value)


@pytest.mark.parametrize("target", TARGETS)
def test_pain_11_reasoning_does_not_leak(target: str) -> None:
    """What another provider's model thought is not sent as visible text, before or after a repair."""
    thought = says("assistant", ReasoningPart(text="a secret thought", signature="EqQB", metadata={"other": {}}), "Warm.")
    history = of(ASK, thought, says("user", "Thanks."), calls("c1"))

    if target in (RESPONSES, CLAUDE, GEMINI):
        assert "AP504" in warnings(history, target)
    written = str(encode(mended_for(target, history), target).value)
    assert target == AI or "a secret thought" not in written


@pytest.mark.parametrize("target", TARGETS)
def test_pain_12_ids_that_collide(target: str) -> None:
    """Two calls of a turn share an id, and the next turn counts from zero again."""
    history = of(
        ASK,
        calls("call_0", turn_id="t1"),
        calls("call_0", turn_id="t1"),
        gives("call_0", "first"),
        gives("call_0", "second"),
        says("user", "Again."),
        calls("call_0", turn_id="t2"),
        gives("call_0", "third"),
    )

    assert "AP105" in codes(history, target)
    made = mended_for(target, history)
    pairs = [(made[call].invocation_id, made[result].payload) for call, result in made.pairs()]
    assert [payload.result for _, payload in pairs if isinstance(payload, OptionResultPayload)] == ["first", "second", "third"]
    assert pairs[0][0] != pairs[1][0]
