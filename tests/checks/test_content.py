"""AP3xx: empty texts, silent messages, empty lists, cut arguments."""

from typing import Any

import pytest
from tests.checks.said import calls, codes, finding, gives, mended, mended_for, says, thinks, warnings

from antiphon import (
    Conversation,
    DataPart,
    ForeignPart,
    MediaPart,
    Message,
    TextPart,
    check,
    decode,
    encode,
)
from antiphon.checks import TARGETS, is_left_out
from antiphon.checks._view import View
from antiphon.messages import Part

ASK = says("user", "How warm is it?")
PICTURE = MediaPart(modality="image", url="https://example.com/a.png")
CLAUDE, CHAT, GEMINI, RESPONSES = "anthropic-messages", "openai-chat", "gemini", "openai-responses"


def of(*messages: Message) -> Conversation:
    return Conversation(messages)


# ---------------------------------------------------------------- AP301, AP302, AP303


@pytest.mark.parametrize("who", ["system", "user"])
def test_an_empty_text_beside_another_is_left_out(who: str) -> None:
    broken = of(says(who, "", "Hello", native=CLAUDE, notes={"slot": True}), ASK)

    assert codes(broken, CLAUDE) == ["AP301"]
    made = mended(broken, CLAUDE)
    assert [is_left_out(part) for part in made[0].parts] == [True, False]
    assert made[0].metadata == {CLAUDE: {"slot": True}}


def test_an_empty_text_beside_a_call_is_left_out_as_a_message() -> None:
    words = says("assistant", "", native=CLAUDE, turn_id="t")
    broken = of(ASK, words, calls("c1", native=CLAUDE, turn_id="t"), gives("c1", native=CLAUDE))

    assert codes(broken, CLAUDE) == ["AP301"]
    assert [is_left_out(message) for message in mended(broken, CLAUDE)] == [False, True, False, False]


def test_an_empty_text_in_a_result_is_left_out() -> None:
    result = gives("c1", None, native=CLAUDE, parts=says("user", "", "found").parts)
    made = mended(of(ASK, calls("c1", native=CLAUDE), result), CLAUDE)

    assert [is_left_out(part) for part in made[2].parts] == [True, False]


def answered(**result: Any) -> Conversation:
    """Return a history of Anthropic's own with one result."""
    call = {"type": "tool_use", "id": "t1", "name": "weather", "input": {}}
    other = {"type": "tool_use", "id": "t2", "name": "weather", "input": {}}
    results = [
        {"type": "tool_result", "tool_use_id": "t2", "content": "18", "cache_control": {"type": "ephemeral"}},
        {"type": "tool_result", "tool_use_id": "t1", **result},
    ]
    body = [{"role": "user", "content": "x"}, {"role": "assistant", "content": [call, other]}]
    return decode([*body, {"role": "user", "content": results}], CLAUDE)


EMPTY_BLOCK = {"type": "text", "text": ""}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("given", "written"),
    [
        ({"content": [EMPTY_BLOCK]}, {"content": ""}),
        ({"content": [{**EMPTY_BLOCK, "citations": None}]}, {"content": ""}),
        ({"content": [EMPTY_BLOCK, EMPTY_BLOCK]}, {}),
        ({"content": [EMPTY_BLOCK, {"type": "text", "text": "a"}]}, {"content": "a"}),
        ({"is_error": True, "content": [EMPTY_BLOCK]}, {"is_error": True, "content": [{"type": "text", "text": "Error"}]}),
    ],
)
def test_no_block_of_a_result_is_empty(given: dict[str, Any], written: dict[str, Any]) -> None:
    """AP301: all else of the message is as it was."""
    broken = answered(**given)

    assert codes(broken, CLAUDE) == ["AP301"]
    results = encode(mended_for(CLAUDE, broken), CLAUDE).value[2]["content"]
    assert results[1] == {"type": "tool_result", "tool_use_id": "t1", **written}
    assert results[0] == encode(broken, CLAUDE).value[2]["content"][0]


@pytest.mark.parametrize("given", [{}, {"content": ""}, {"is_error": True, "content": ""}])
def test_a_result_may_be_empty(given: dict[str, Any]) -> None:
    """AP301: absent or an empty text is fine; only a block is not."""
    fine = answered(**given)

    assert check(fine, CLAUDE) == []
    assert encode(fine, CLAUDE).value[2]["content"][1] == {"type": "tool_result", "tool_use_id": "t1", **given}


@pytest.mark.slow
def test_an_empty_result_that_shows_something_is_written_without_its_words() -> None:
    """AP301."""
    broken = of(ASK, calls("c1", native=CLAUDE), gives("c1", "", native=CLAUDE, parts=(PICTURE,)))

    assert codes(broken, CLAUDE) == ["AP301"]
    (shown,) = encode(mended_for(CLAUDE, broken), CLAUDE).value["messages"][-1]["content"]
    assert [block["type"] for block in shown["content"]] == ["image"]


@pytest.mark.parametrize("target", [CHAT, RESPONSES, GEMINI, "pydantic-ai"])
def test_an_empty_text_is_accepted_elsewhere(target: str) -> None:
    assert codes(of(says("user", "", "Hello", native=target)), target) == []


@pytest.mark.parametrize(
    ("target", "who", "parts"),
    [
        (CLAUDE, "user", ()),
        (CLAUDE, "user", ("",)),
        (CLAUDE, "assistant", ()),
        (CHAT, "assistant", ()),
        (GEMINI, "user", ()),
        (GEMINI, "assistant", ()),
    ],
)
def test_a_message_that_says_nothing_is_left_out(target: str, who: str, parts: tuple[str, ...]) -> None:
    own, foreign = (of(ASK, says(who, *parts, native=native), says("user", "Well?")) for native in (target, None))

    assert codes(own, target) == ["AP302"]
    assert (codes(foreign, target), warnings(foreign, target)) == ([], ["AP302"])
    assert [is_left_out(message) for message in mended(own, target)] == [False, True, False]


def test_a_message_with_anything_in_it_says_something() -> None:
    own = ForeignPart(dialect=CLAUDE, value={"type": "container_upload", "file_id": "f"})
    foreign = ForeignPart(dialect=GEMINI, value={"executableCode": {}})
    for part in (own, DataPart(data=1), PICTURE):
        assert warnings(of(says("user", part), ASK), CLAUDE) == []
    assert warnings(of(says("user", foreign), ASK), CLAUDE) == ["AP302"]


@pytest.mark.slow
def test_instructions_of_gemini_have_parts() -> None:
    """AP302: the content that holds them is one like others; elsewhere they may be empty."""
    contents = [{"role": "user", "parts": [{"text": "Hello"}]}]
    for empty in ({"parts": []}, {}):
        broken = decode({"contents": contents, "systemInstruction": empty}, GEMINI)
        assert codes(broken, GEMINI) == ["AP302"]
        assert encode(mended_for(GEMINI, broken), GEMINI).value == {"contents": contents}
    assert codes(decode({"contents": contents, "systemInstruction": {"parts": [{"text": ""}]}}, GEMINI), GEMINI) == []
    assert warnings(of(says("system"), ASK), GEMINI) == ["AP302"]
    assert codes(decode({"messages": [{"role": "user", "content": "Hello"}], "system": []}, CLAUDE), CLAUDE) == []


def test_thoughts_are_something_to_whom_they_came_from() -> None:
    """What others thought is not sent, so that nothing is left of it."""
    own = thinks(metadata={CLAUDE: {}})
    said = of(ASK, says("assistant", own), says("user", "Well?"))
    foreign = of(ASK, says("assistant", thinks()), says("user", "Well?"))

    assert "AP302" not in warnings(said, CLAUDE)
    assert "AP302" in warnings(foreign, CLAUDE)


def test_the_last_word_of_an_assistant_may_be_none() -> None:
    """AP302: "except for the optional final assistant message"."""
    refusal = of(ASK, says("assistant", native=CLAUDE))

    assert codes(refusal, CLAUDE) == []
    assert codes(of(*refusal, says("user", "Why?")), CLAUDE) == ["AP302"]


def test_a_turn_that_calls_says_enough() -> None:
    turn = [says("assistant", native=CHAT, turn_id="t"), calls("c1", native=CHAT, turn_id="t")]

    assert codes(of(ASK, *turn, gives("c1")), CHAT) == []


def test_white_space_is_a_warning() -> None:
    """AP303: it is refused in some places."""
    assert warnings(of(ASK, says("user", " \n", native=CLAUDE)), CLAUDE) == ["AP303"]
    assert warnings(of(ASK, says("user", "Hello", " \n")), CLAUDE) == ["AP303"]
    assert warnings(of(ASK, says("assistant", "Hello ")), CLAUDE) == ["AP303", "AP403"]
    assert warnings(of(ASK, says("assistant", "Hello ")), CHAT) == []


# ---------------------------------------------------------------- AP304, AP307, AP308


def residue(*changes: dict[str, Any]) -> dict[str, Any]:
    return {"residue": list(changes)}


@pytest.mark.parametrize(
    "change",
    [
        {"at": [0, "tool_calls"], "add": []},
        {"at": ["tool_calls"], "add": []},
        {"at": [0, "content"], "is": [], "was": "0"},
        {"at": [], "is": [{"role": "assistant", "content": "Hello!", "tool_calls": []}], "was": "0"},
    ],
)
def test_an_empty_list_is_not_written(change: dict[str, Any]) -> None:
    other = {"at": [0, "x"], "add": 1}
    broken = of(ASK, says("assistant", "Hello!", native=CHAT, notes=residue(change, other)))

    assert codes(broken, CHAT) == ["AP304"]
    assert mended(broken, CHAT)[1].metadata == {CHAT: residue(other), "checks": {"mended": "AP304"}}


def test_a_residue_that_is_empty_is_none() -> None:
    broken = of(ASK, says("assistant", "Hello!", native=CHAT, notes=residue({"at": ["tool_calls"], "add": []})))

    assert mended(broken, CHAT)[1].metadata[CHAT] == {}


def test_the_content_of_a_result_is_no_empty_list() -> None:
    """AP304: absent or an empty text is fine; a message without content is another matter (AP302)."""
    history = [
        {"role": "user", "content": "How warm is it?"},
        {"role": "assistant", "content": [{"type": "tool_use", "id": "t1", "name": "weather", "input": {}}]},
        {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "t1", "content": []}]},
    ]
    broken = decode(history, CLAUDE)

    assert codes(broken, CLAUDE) == ["AP304"]
    assert "content" not in encode(mended(broken, CLAUDE), CLAUDE).value[2]["content"][0]
    assert "AP304" not in codes(decode([history[0], {"role": "assistant", "content": []}, history[0]], CLAUDE), CLAUDE)


def test_what_the_assistant_said_is_no_input() -> None:
    """AP307; what the user said is."""
    change = {"at": [0, "content", 0, "type"], "is": "input_text", "was": "0"}
    broken = of(*(says(who, "Hello", native=RESPONSES, notes=residue(change)) for who in ("user", "assistant")))

    assert [each.position for each in (finding(broken, "AP307", RESPONSES),)] == [1]
    assert mended(broken, RESPONSES)[1].metadata == {"checks": {"mended": "AP307"}}


def test_a_part_without_data_is_left_out() -> None:
    """AP308: in either spelling of the keys; the rule is not for parts of other dialects."""
    hollow = ForeignPart(dialect=GEMINI, value={"thought": True})
    code = ForeignPart(dialect=GEMINI, value={"executable_code": {"code": "1"}})
    strange = ForeignPart(dialect=CLAUDE, value={})
    broken = of(says("user", "Hello", hollow, code, strange))

    assert codes(broken, GEMINI) == ["AP308"]
    assert [is_left_out(part) for part in mended(broken, GEMINI)[0].parts] == [False, True, False, False]
    assert is_left_out(mended(of(ASK, says("user", hollow)), GEMINI)[1])


# ---------------------------------------------------------------- AP305


@pytest.mark.parametrize("target", [CHAT, RESPONSES, CLAUDE, GEMINI])
def test_a_request_needs_a_message_with_content(target: str) -> None:
    instructions = of(says("system", "Be terse.", thread_id="t"))
    for silent in (of(), instructions, of(says("assistant", thinks()))):
        if silent is instructions and target == CHAT:
            assert codes(silent, target) == []
            continue
        assert "AP305" in codes(silent, target)
        last = mended(silent, target)[-1]
        assert (last.text, last.role_hint_for_llm, last.metadata) == (".", "user", {"checks": {"added": "AP305"}})
        assert last.thread_id == (silent[-1].thread_id if silent else None)


@pytest.mark.parametrize(
    ("target", "who", "part", "is_said"),
    [
        (CLAUDE, "user", TextPart(text="  "), False),
        (CLAUDE, "user", DataPart(data="\n"), False),
        (CLAUDE, "user", DataPart(data=None), True),
        (CLAUDE, "user", thinks(metadata={CLAUDE: {}}), False),
        (CLAUDE, "assistant", thinks(metadata={CLAUDE: {}}), True),
        (CLAUDE, "assistant", thinks(signature=None, metadata={CLAUDE: {}}), False),
        (CLAUDE, "user", ForeignPart(dialect=CLAUDE, value={"type": "container_upload", "file_id": "f"}), True),
        (CLAUDE, "user", ForeignPart(dialect=CLAUDE, value="no block"), False),
        (GEMINI, "user", TextPart(text=""), False),
        (GEMINI, "user", TextPart(text="  "), True),
        (GEMINI, "user", TextPart(text="", metadata={GEMINI: {"thoughtSignature": "AAEC"}}), True),
        (GEMINI, "user", DataPart(data=""), False),
        (GEMINI, "assistant", thinks(signature=None, metadata={GEMINI: {}}), True),
        (GEMINI, "user", ForeignPart(dialect=GEMINI, value={"executableCode": {"code": "1"}}), True),
        (GEMINI, "user", ForeignPart(dialect=GEMINI, value=["no part"]), False),
        (RESPONSES, "user", TextPart(text=""), True),
        (RESPONSES, "user", thinks(metadata={RESPONSES: {"id": "rs_1"}}), False),
        (RESPONSES, "assistant", thinks(metadata={RESPONSES: {"id": "rs_1"}}), True),
        (RESPONSES, "assistant", thinks(metadata={RESPONSES: {"id": None}}), False),
        (RESPONSES, "user", ForeignPart(dialect=RESPONSES, value={"type": "input_file", "file_id": "f"}), True),
        (RESPONSES, "assistant", ForeignPart(dialect=RESPONSES, value={"type": "input_file", "file_id": "f"}), False),
        (RESPONSES, "user", ForeignPart(dialect=GEMINI, value={}), False),
        (CHAT, "user", TextPart(text=""), True),
        (CHAT, "user", ForeignPart(dialect=CHAT, value={"type": "text", "text": "a"}), True),
    ],
)
def test_repair_adds_a_message_only_where_the_dialect_would_write_none(
    target: str, who: str, part: Part, is_said: bool
) -> None:
    """AP305."""
    alone = of(says(who, part))
    units = "input" if target == RESPONSES else "contents" if target == GEMINI else "messages"

    assert bool(encode(alone, target).value[units]) == is_said
    assert ("AP305" in codes(alone, target)) != is_said
    assert encode(mended(alone, target), target).value[units]


@pytest.mark.parametrize("target", [None, "pydantic-ai"])
def test_a_history_may_be_empty(target: str | None) -> None:
    assert codes(of(), target) == []


def test_a_message_is_added_when_all_others_are_left_out() -> None:
    made = mended(of(gives("c1")), GEMINI)

    assert [is_left_out(message) for message in made] == [True, False]


# ---------------------------------------------------------------- AP306, AP309


def test_an_error_shows_nothing_but_text() -> None:
    own, foreign = (
        of(ASK, calls("c1"), gives("c1", None, native=native, parts=(PICTURE,), fails=True)) for native in (CLAUDE, None)
    )
    success = of(ASK, calls("c1"), gives("c1", None, native=CLAUDE, parts=(PICTURE,)))

    assert (codes(own, CLAUDE), codes(success, CLAUDE)) == (["AP306"], [])
    assert warnings(foreign, CLAUDE) == ["AP306"]
    assert mended(own, CLAUDE)[2].metadata == {"checks": {"mended": "AP306"}}


@pytest.mark.parametrize(
    ("text", "anywhere", "as_object"),
    [
        (None, False, False),
        ("", False, False),
        ("{}", False, False),
        (' { "city" : "Oslo" } ', False, False),
        ('{"city": "Os', True, True),
        ("[1]", False, True),
        ("SELECT 1", False, True),
    ],
)
def test_arguments_are_whole(text: str | None, anywhere: bool, as_object: bool) -> None:
    """AP309: cut JSON is named everywhere; text that is no object, where arguments are one."""
    conversation = of(ASK, calls("c1", text=text), gives("c1"))

    assert ("AP309" in warnings(conversation)) == anywhere
    assert ("AP309" in warnings(conversation, CHAT)) == anywhere
    assert ("AP309" in warnings(conversation, CLAUDE)) == as_object


def test_arguments_that_were_understood_are_not_looked_at() -> None:
    call = calls("c1", text="{'city': 'Oslo'}")
    read = call.model_copy(update={"payload": call.payload.model_copy(update={"arguments": {"city": "Oslo"}})})

    assert warnings(of(ASK, read, gives("c1"))) == []


def test_a_rule_for_targets_is_not_asked_without_one() -> None:
    with pytest.raises(RuntimeError, match="must name its targets"):
        View(of(), None).accepted  # noqa: B018
    assert View(of(), TARGETS[CHAT]).accepted is TARGETS[CHAT]


def test_a_part_of_a_chat_message_has_a_type() -> None:
    """AP310: a compatible server may accept it."""
    content = [{"type": "text", "text": "Hello"}, {"text": "there"}]
    broken = decode({"model": "gpt-5", "messages": [{"role": "user", "content": content}]}, CHAT)
    elsewhere = decode({"model": "mistral-large", "messages": [{"role": "user", "content": content}]}, CHAT)

    assert codes(broken, CHAT) == ["AP310"]
    assert [is_left_out(part) for part in mended(broken, CHAT)[0].parts] == [False, True]
    assert (codes(elsewhere, CHAT), warnings(elsewhere, CHAT)) == ([], ["AP310"])


def test_instructions_that_are_an_empty_text_are_taken() -> None:
    """AP301: an empty block is not."""
    ask = {"role": "user", "content": "How warm is it?"}

    assert codes(decode({"system": "", "messages": [ask]}, CLAUDE), CLAUDE) == []
    assert codes(decode({"system": [{"type": "text", "text": ""}], "messages": [ask]}, CLAUDE), CLAUDE) == ["AP301"]


def test_a_part_of_gemini_may_hold_nothing_but_a_proof_or_how_to_see_a_video() -> None:
    """AP308"""
    parts = [{"text": "Hi"}, {"thought": True, "thoughtSignature": "AAEC"}, {"videoMetadata": {"fps": 1}}]

    assert codes(decode([{"role": "user", "parts": parts}], GEMINI), GEMINI) == []


def test_servers_that_are_compatible_may_take_more() -> None:
    """AP201, AP205, AP304: what the provider refuses is a warning for a model of another provider."""
    call = {"id": "c" * 41, "type": "function", "function": {"name": "weather", "arguments": "{}"}}
    turn = [
        {"role": "assistant", "content": None, "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "c" * 41, "content": "18"},
    ]
    empty = {"role": "assistant", "content": "Mild.", "tool_calls": []}
    messages = [{"role": "user", "content": "How warm is it?"}, *turn, empty]
    item = {"type": "message", "role": "assistant", "id": "0-1", "content": [{"type": "output_text", "text": "Mild."}]}
    items = [{"role": "user", "content": "How warm is it?"}, item]

    for model, found in (
        ("gpt-5", "error"),
        ("ft:gpt-4o:me", "error"),
        ("mistral-large", "warning"),
        ("x-ai/grok", "warning"),
    ):
        asked = check(decode({"model": model, "messages": messages}, CHAT), CHAT)
        assert {(each.code, each.severity) for each in asked} == {("AP201", found), ("AP304", found)}
        asked = check(decode({"model": model, "input": items}, RESPONSES), RESPONSES)
        assert {(each.code, each.severity) for each in asked} == {("AP205", found)}


def test_a_legacy_call_has_no_id_to_be_refused() -> None:
    """AP201"""
    name = "w" * 50
    call = {"role": "assistant", "content": None, "function_call": {"name": name, "arguments": "{}"}}
    messages = [{"role": "user", "content": "Hi"}, call, {"role": "function", "name": name, "content": "18"}]

    assert codes(decode({"messages": messages}, CHAT), CHAT) == []
