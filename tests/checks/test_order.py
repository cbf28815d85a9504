"""AP4xx: the first word, the last word, and where instructions stand (OP-054)."""

from typing import Any

import pytest
from tests.checks.said import calls, codes, gives, kinds, mended, mended_for, says, warnings

from antiphon import Conversation, DataPart, ForeignPart, Message, decode, encode
from antiphon.messages import Tool

CLAUDE, GEMINI, CHAT, RESPONSES = "anthropic-messages", "gemini", "openai-chat", "openai-responses"
ASK = says("user", "How warm is it?")
SIGNED = {"thoughtSignature": "AAEC"}


def of(*messages: Message) -> Conversation:
    return Conversation(messages)


@pytest.mark.parametrize("target", [CLAUDE, GEMINI])
def test_a_user_has_the_first_word(target: str) -> None:
    """AP401: instructions aside."""
    own = of(says("system", "Be terse."), says("assistant", "Hello!", native=target, thread_id="t"), ASK)
    foreign = of(says("assistant", "Hello!"), ASK)

    assert (codes(foreign, target), warnings(foreign, target)) == ([], ["AP401"])
    if target == CLAUDE:  # whether it is taken depends on the host
        assert (codes(own, target), warnings(own, target)) == ([], ["AP401"])
        return
    assert codes(own, target) == ["AP401"]
    made = mended(own, target)
    assert kinds(made) == ["system", "user", "assistant", "user"]
    assert (made[1].text, made[1].thread_id) == (".", "t")


@pytest.mark.parametrize("shape", ["response", "one"])
def test_an_answer_alone_is_what_it_should_be(shape: str) -> None:
    """AP401: a response body begins with the assistant; nobody sends it so."""
    metadata = {CLAUDE: {"shape": shape}}
    answer = Conversation([says("assistant", "Hello!", native=CLAUDE)], metadata=metadata)

    assert (codes(answer, CLAUDE), warnings(answer, CLAUDE)) == ([], ["AP401", "AP403"])


ANSWERS: dict[str, Any] = {
    CLAUDE: {
        "id": "msg_1",
        "type": "message",
        "role": "assistant",
        "model": "m",
        "content": [{"type": "text", "text": "I look."}, {"type": "tool_use", "id": "t1", "name": "weather", "input": {}}],
        "stop_reason": "tool_use",
    },
    GEMINI: {
        "candidates": [
            {
                "content": {
                    "role": "model",
                    "parts": [
                        {"text": "I look."},
                        {"functionCall": {"name": "weather", "args": {}, "id": "t1"}, "thoughtSignature": "AAEC"},
                    ],
                }
            }
        ]
    },
}
OWN_RESULTS: dict[str, Any] = {
    CLAUDE: {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "t1", "content": "18"}]},
    GEMINI: {"role": "user", "parts": [{"functionResponse": {"name": "weather", "id": "t1", "response": {"output": 18}}}]},
}


def first_of(target: str, conversation: Conversation) -> str:
    written = encode(conversation, target).value
    return str(written["messages" if target == CLAUDE else "contents"][0]["role"])


@pytest.mark.slow
def test_an_answer_that_has_grown_is_a_request() -> None:
    """AP401: by a message of ours, by one of the format's own, or by tools; then a user must begin."""
    target = GEMINI
    answer = decode(ANSWERS[target], target)
    result = decode(OWN_RESULTS[target], target)

    assert "AP401" not in codes(answer, target)
    for grown in (answer.append(gives("t1")), answer.extend(result)):
        assert codes(grown, target) == ["AP401"]
        assert first_of(target, mended_for(target, grown)) == "user"
    offered = answer.extend(result).replace(tools=[Tool(name="weather")])
    assert codes(offered, target) == ["AP401"]
    alone = decode(ANSWERS[target], target).replace(tools=[Tool(name="weather")])
    assert "AP401" in codes(alone, target)


def test_a_user_who_says_nothing_does_not_begin() -> None:
    """AP401, AP402: the dialect leaves out what is blank, so that the assistant would."""
    target = GEMINI
    blank = says("user", DataPart(data=""))
    broken = of(blank, says("assistant", "Hello!", native=target), ASK)

    assert codes(broken, target) == ["AP401"]
    assert first_of(target, mended_for(target, broken)) == "user"
    words = says("assistant", "I look.", native=GEMINI)
    turn = [calls("c1", native=GEMINI, notes=SIGNED), gives("c1", native=GEMINI)]
    assert warnings(of(ASK, words, blank, *turn), GEMINI) == ["AP302", "AP402"]
    assert codes(of(blank, says("assistant", "Hello!", native=GEMINI), ASK, *turn), GEMINI) == ["AP401"]


@pytest.mark.parametrize("target", [CHAT, RESPONSES, "pydantic-ai", None])
def test_others_may_begin_as_they_like(target: str | None) -> None:
    assert codes(of(says("assistant", "Hello!")), target) == []


def test_a_call_comes_after_a_user_or_results() -> None:
    """AP402: not after other words of the model's, which some models refuse."""
    turn = [calls("c1", native=GEMINI, notes=SIGNED), gives("c1", native=GEMINI)]
    words = says("assistant", "I look.", native=GEMINI)
    broken = of(ASK, words, *turn)

    assert (codes(broken, GEMINI), warnings(broken, GEMINI)) == ([], ["AP402"])
    assert codes(of(ASK, *turn, calls("c2", native=GEMINI, notes=SIGNED), gives("c2")), GEMINI) == []
    assert warnings(of(ASK, words, calls("c1"), gives("c1")), GEMINI) == ["AP402"]


def test_words_and_calls_of_one_turn_are_one() -> None:
    turn = [says("assistant", "I look.", turn_id="t"), calls("c1", turn_id="t"), gives("c1")]

    assert warnings(of(ASK, *turn), GEMINI) == []


def test_a_finished_history_is_not_broken() -> None:
    """AP403: that the assistant speaks last is a warning."""
    done = of(ASK, says("assistant", "Warm."))

    assert (codes(done, CLAUDE), warnings(done, CLAUDE)) == ([], ["AP403"])
    assert warnings(done, GEMINI) == []


# ---------------------------------------------------------------- AP404


def system(native: str | None, **notes: bool) -> Message:
    return says("system", "Be terse.", native=native, notes=notes)


def test_instructions_have_a_place_of_their_own() -> None:
    assert codes(of(system(CLAUDE, slot=True), ASK), CLAUDE) == []
    assert codes(of(system(None), ASK), CLAUDE) == []


def test_instructions_are_not_the_first_of_the_messages() -> None:
    """AP404: "not first"; the dialect puts them where they belong."""
    broken = of(system(CLAUDE), ASK)

    assert codes(broken, CLAUDE) == ["AP404"]
    assert CLAUDE not in mended(broken, CLAUDE)[0].metadata


def test_instructions_may_follow_a_user() -> None:
    """AP404: at the end, or directly before an answer; older models refuse them there, so it is a warning."""
    answer = says("assistant", "Hello!")
    result = [calls("c1"), gives("c1")]
    for legal in ([ASK, system(CLAUDE)], [ASK, system(CLAUDE), answer], [ASK, *result, system(CLAUDE)]):
        assert codes(of(*legal), CLAUDE) == []
        assert "AP404" in warnings(of(*legal), CLAUDE)


def test_instructions_may_follow_a_result_of_the_providers() -> None:
    found = ForeignPart(dialect=CLAUDE, value={"type": "web_search_tool_result", "tool_use_id": "s1"})
    called = ForeignPart(dialect=CLAUDE, value={"type": "server_tool_use", "id": "s1"})

    assert codes(of(ASK, says("assistant", called, found), system(CLAUDE)), CLAUDE) == []
    assert codes(of(ASK, says("assistant", "Hello!"), system(CLAUDE)), CLAUDE) == ["AP404"]
    assert codes(of(ASK, says("assistant"), system(CLAUDE)), CLAUDE) == ["AP404"]


def test_instructions_elsewhere_are_written_as_what_a_user_says() -> None:
    """AP404."""
    again = ASK.model_copy(update={"id": "again"})
    for illegal in ([ASK, says("assistant", "Hello!"), system(CLAUDE), again], [ASK, system(CLAUDE), again]):
        assert codes(of(*illegal), CLAUDE) == ["AP404"]
        assert warnings(mended(of(*illegal), CLAUDE), CLAUDE) == ["AP404"]
    assert warnings(of(ASK, system(None)), CLAUDE) == ["AP404"]
    assert warnings(of(ASK, system(None)), GEMINI) == ["AP404"]
    assert codes(of(ASK, system(GEMINI)), GEMINI) == ["AP404"]


@pytest.mark.parametrize("target", [CHAT, RESPONSES, "pydantic-ai"])
def test_others_take_instructions_anywhere(target: str) -> None:
    assert warnings(of(ASK, system(target), says("assistant", "Hello!")), target) == []


def test_instructions_in_a_row_stand_where_one_may() -> None:
    """AP404"""
    system = [says("system", "Be terse.", native=CLAUDE), says("system", "Be kind.", native=CLAUDE)]
    asked = of(ASK, *system, says("assistant", "Mild.", native=CLAUDE), says("user", "Sure?"))
    late = of(ASK, says("assistant", "Mild.", native=CLAUDE), *system, says("user", "Sure?"))

    assert (codes(asked, CLAUDE), warnings(asked, CLAUDE)) == ([], ["AP404", "AP404"])
    assert codes(late, CLAUDE) == ["AP404", "AP404"]
