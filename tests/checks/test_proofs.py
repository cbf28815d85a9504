"""AP5xx: reasoning items that need each other, signatures, and whose they are."""

from typing import Any

import pytest
from tests.checks.said import calls, codes, finding, gives, mended, says, thinks, warnings

from antiphon import Conversation, ForeignPart, Message, ReasoningPart, decode, repair
from antiphon.checks import is_left_out

CLAUDE, GEMINI, RESPONSES = "anthropic-messages", "gemini", "openai-responses"
ASK = says("user", "How warm is it?")
AGAIN = says("user", "Well?")


def of(*messages: Message, **settings: Any) -> Conversation:
    return Conversation(messages, metadata={RESPONSES: {"rest": settings}, CLAUDE: {"rest": settings}} if settings else {})


# ---------------------------------------------------------------- AP501, AP502, AP503, AP505


def thought(proof: str | None = "gAAA", **fields: Any) -> Message:
    notes = {"id": "rs_1"}
    part = ReasoningPart(encrypted_content=proof, metadata={RESPONSES: notes})
    return says("assistant", part, id="rs_1", native=RESPONSES, turn_id="rs_1", **fields)


def item(**fields: Any) -> Message:
    notes = {"residue": [{"at": [0, "id"], "add": "fc_1"}], **fields.pop("notes", {})}
    return calls("c1", id="fc_1", native=RESPONSES, notes=notes, **{"turn_id": "rs_1", **fields})


def test_reasoning_and_its_following_item_go_together() -> None:
    assert codes(of(ASK, thought(), item(), gives("c1")), RESPONSES) == []


@pytest.mark.parametrize("after", [(), (AGAIN,), (says("assistant", "Warm."), AGAIN)])
def test_reasoning_without_its_following_item_is_left_out(after: tuple[Message, ...]) -> None:
    """AP501: nothing follows, a user's message follows, or an answer from elsewhere."""
    broken = of(ASK, thought(), *after)

    assert codes(broken, RESPONSES) == ["AP501"]
    assert is_left_out(mended(broken, RESPONSES)[1])


def test_an_item_without_its_reasoning_loses_its_id() -> None:
    """AP502: as after a window that begins in between; other facts of the wire stay."""
    broken = of(ASK, item(), gives("c1"))

    assert codes(broken, RESPONSES) == ["AP502"]
    assert finding(broken, "AP502", RESPONSES).problem == "the item belongs to reasoning 'rs_1', which is missing"
    assert mended(broken, RESPONSES)[1].metadata[RESPONSES] == {}


def test_an_item_may_say_what_it_needs() -> None:
    noted = item(turn_id="t", notes={"needs": ["rs_9"]})
    plain = item(turn_id="t")

    assert codes(of(ASK, noted, gives("c1")), RESPONSES) == ["AP502"]
    assert codes(of(ASK, plain, gives("c1")), RESPONSES) == []


def test_an_item_that_has_no_id_needs_no_reasoning() -> None:
    assert codes(of(ASK, calls("c1", native=RESPONSES, turn_id="rs_1"), gives("c1")), RESPONSES) == []


def test_leaving_reasoning_out_lets_its_items_go() -> None:
    """AP501 in one turn of two thoughts, then AP502 for what was called after the first."""
    broken = of(ASK, item(), thought(), gives("c1"))
    repaired = repair(broken, RESPONSES)

    assert [change.code for change in repaired.changes] == ["AP501", "AP502"]


def test_a_summary_is_there_even_if_it_is_empty() -> None:
    """AP503."""
    broken = of(ASK, thought(notes={"residue": [{"at": [0, "summary"], "drop": "0"}]}), item(), gives("c1"))

    assert codes(broken, RESPONSES) == ["AP503"]
    assert mended(broken, RESPONSES)[1].metadata[RESPONSES] == {}


def test_nothing_is_known_by_its_id_where_nothing_is_stored() -> None:
    """AP505: reasoning comes with its encrypted content, and references do not resolve."""
    reference = ForeignPart(dialect=RESPONSES, value={"type": "item_reference", "id": "msg_1"})
    history = (ASK, says("assistant", reference), thought(None), item(), gives("c1"))

    assert codes(of(*history, store=True), RESPONSES) == []
    assert codes(of(*history), RESPONSES) == []
    assert codes(of(*history, store=False), RESPONSES) == ["AP505", "AP505"]
    made = mended(of(*history, store=False), RESPONSES)
    assert [is_left_out(message) for message in made] == [False, True, True, False, False]
    assert codes(of(ASK, thought("gAAA"), item(), gives("c1"), store=False), RESPONSES) == []


# ---------------------------------------------------------------- AP504, AP507, AP509


@pytest.mark.parametrize("target", [RESPONSES, CLAUDE, GEMINI])
def test_a_foreign_proof_is_not_sent(target: str) -> None:
    """AP504: a warning. Reasoning without a proof says nothing to anybody."""
    proven = of(ASK, says("assistant", thinks(), "Warm.", native="marsys"), AGAIN)
    plain = of(ASK, says("assistant", thinks(signature=None), "Warm."), AGAIN)
    own = of(ASK, says("assistant", thinks(metadata={target: {}}), "Warm."), AGAIN)

    assert warnings(proven, target) == ["AP504"]
    assert warnings(plain, target) == warnings(own, target) == []


@pytest.mark.parametrize("signature", [None, ""])
def test_thinking_without_a_signature_is_left_out(signature: str | None) -> None:
    """AP507: redacted thinking has its proof elsewhere."""
    redacted = ReasoningPart(encrypted_content="EmwK")
    words = says("assistant", thinks(signature=signature), redacted, "Warm.", native=CLAUDE)

    assert codes(of(ASK, words, AGAIN), CLAUDE) == ["AP507"]
    assert [is_left_out(part) for part in mended(of(ASK, words, AGAIN), CLAUDE)[1].parts] == [True, False, False]


def test_a_message_of_nothing_but_unsigned_thinking_is_left_out() -> None:
    made = mended(of(ASK, says("assistant", thinks(signature=None), native=CLAUDE), AGAIN), CLAUDE)

    assert is_left_out(made[1])
    assert made[1].parts[0].metadata == {}


def test_a_signature_is_bound_to_all_that_stands_before_it() -> None:
    """AP509: a warning for thinking behind a mended place, and for none before it."""
    early, late = (says("assistant", thinks(), "Warm.", native=CLAUDE) for _ in range(2))
    history = of(ASK, early, calls("c1"), AGAIN, late, ASK.model_copy(update={"id": "z"}))

    assert warnings(history, CLAUDE) == []
    made = mended(history, CLAUDE)
    assert warnings(made, CLAUDE) == ["AP509"]
    assert finding(made, "AP509", CLAUDE).message_id == late.id


# ---------------------------------------------------------------- AP506


ENABLED = {"type": "enabled", "budget_tokens": 1024}


def loop(*first: object, native: str | None = CLAUDE) -> list[Message]:
    words = [says("assistant", *first, native=native, turn_id="t")] if first else []  # type: ignore[arg-type]
    return [ASK, *words, calls("c1", native=native, turn_id="t"), gives("c1", native=native)]


def test_a_turn_that_calls_begins_with_thinking_where_that_is_enabled() -> None:
    """AP506: the setting is taken out, since nobody can make thinking up."""
    assert codes(of(*loop(thinks()), thinking=ENABLED), CLAUDE) == []
    for broken in (loop(), loop("I look."), loop(thinks(), native=None)):
        assert codes(of(*broken, thinking=ENABLED), CLAUDE) == ["AP506"]
        made = mended(of(*broken, thinking=ENABLED), CLAUDE)
        assert made.metadata[CLAUDE] == {"rest": {}}
        assert made.metadata[RESPONSES] == {"rest": {"thinking": ENABLED}}


def test_thinking_is_not_asked_for_outside_of_a_loop() -> None:
    finished = [*loop(), says("assistant", "Warm."), AGAIN]

    assert codes(of(*finished, thinking=ENABLED), CLAUDE) == []
    assert codes(of(*loop(), thinking={"type": "adaptive"}), CLAUDE) == []
    assert codes(of(*loop(), AGAIN, thinking=ENABLED), CLAUDE) == []
    assert codes(of(ASK, thinking=ENABLED), CLAUDE) == []


# ---------------------------------------------------------------- AP508


def test_calls_of_the_current_turn_bring_their_signature() -> None:
    """AP508: the first call of each step since the user last spoke; earlier turns are not looked at."""
    old = [calls("c0", native=GEMINI, turn_id="t0"), gives("c0")]
    signed = [
        calls("c1", native=GEMINI, turn_id="t1", notes={"thoughtSignature": "AAEC"}),
        calls("c2", native=GEMINI, turn_id="t1"),
    ]
    unsigned = [calls("c3", native=GEMINI, turn_id="t3"), gives("c3")]
    history = of(ASK, *old, AGAIN, *signed, gives("c1"), gives("c2"), *unsigned)

    assert (codes(history, GEMINI), warnings(history, GEMINI)) == ([], ["AP508"])
    older = history.replace(metadata={GEMINI: {"rest": {"model": "models/gemini-2.5-pro"}}})
    assert codes(older, GEMINI) == []
    history = history.replace(metadata={GEMINI: {"rest": {"model": "models/gemini-3-flash-preview"}}})
    assert codes(history, GEMINI) == ["AP508"]
    assert finding(history, "AP508", GEMINI).position == 8
    made = mended(history, GEMINI)
    assert [GEMINI in message.metadata for message in made][8] is False
    assert made[5] == history[5]


@pytest.mark.parametrize(
    "signed",
    [
        says("assistant", thinks(), native=GEMINI, turn_id="t"),
        says("assistant", "I look.", native=GEMINI, turn_id="t", notes={"thoughtSignature": "AAEC"}),
        says(
            "assistant",
            "I look.",
            native=GEMINI,
            turn_id="t",
            notes={"residue": [{"at": [0, "parts", 1, "thoughtSignature"], "add": "A"}]},
        ),
    ],
)
def test_a_signature_may_stand_anywhere_in_the_turn(signed: Message) -> None:
    assert codes(of(ASK, signed, calls("c1", native=GEMINI, turn_id="t"), gives("c1")), GEMINI) == []


def test_a_call_from_elsewhere_gets_the_documented_stand_in() -> None:
    """AP508: the dialect adds it."""
    assert codes(of(ASK, calls("c1"), gives("c1")), GEMINI) == []


@pytest.mark.parametrize(("settings", "found"), [({}, ["AP501"]), ({"store": True}, ["AP501"]), ({"store": False}, [])])
def test_a_message_without_an_id_is_not_what_stored_reasoning_led_to(settings: dict[str, Any], found: list[str]) -> None:
    """AP501: “provided without its required following item”."""
    thought = {"type": "reasoning", "id": "rs_1", "summary": [], "encrypted_content": "AAEC"}
    answer = {"role": "assistant", "content": "Mild."}
    items = [{"role": "user", "content": "How warm is it?"}, thought, answer, {"role": "user", "content": "Sure?"}]
    body = {"model": "gpt-5", "input": items, **settings}

    assert codes(decode(body, "openai-responses"), "openai-responses") == found
    items[2] = {"type": "message", "id": "msg_1", "status": "completed", "role": "assistant", "content": []}
    assert codes(decode(body, "openai-responses"), "openai-responses") == []
