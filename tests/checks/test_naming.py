"""AP2xx: ids and names that a target refuses."""

import re
from typing import Any

import pytest
from tests.checks.said import calls, codes, finding, gives, mended, mended_for, says, warnings

from antiphon import Conversation, decode, encode
from antiphon.checks import TARGETS
from antiphon.checks._targets import Target
from antiphon.messages import Tool

ASK = says("user", "How warm is it?")
LONG = "c" * 53


@pytest.mark.parametrize(
    ("target", "spelling", "accepted", "refused"),
    [
        ("openai-chat", "call_id", ["c" * 40, "a.b"], ["c" * 41]),
        ("openai-chat", "option_name", ["a-b_C9", "n" * 64], ["a.b", "", "n" * 65, "é"]),
        ("openai-chat", "speaker", ["ada"], ["Ada Lovelace"]),
        ("openai-responses", "call_id", ["c" * 64], ["c" * 65]),
        ("openai-responses", "option_name", ["n" * 64], ["a b"]),
        ("anthropic-messages", "call_id", ["toolu_1-A"], ["a:b", "", "a\n"]),
        ("anthropic-messages", "option_name", ["n" * 128], ["n" * 129, "a.b"]),
        ("gemini", "call_id", ["anything: at all"], [""]),
        ("gemini", "option_name", ["_a.b:c-d"], ["1st", "n" * 129]),
        ("pydantic-ai", "option_name", ["anything: at all"], [""]),
    ],
)
def test_spellings_are_those_of_the_formats(target: str, spelling: str, accepted: list[str], refused: list[str]) -> None:
    accepts = getattr(TARGETS[target], spelling).accepts

    assert [name for name in accepted if not accepts(name)] == []
    assert [name for name in refused if accepts(name)] == []


@pytest.mark.parametrize("target", TARGETS.values(), ids=TARGETS)
def test_ids_are_runs_of_one_alphabet(target: Target) -> None:
    """Dialects rely on it: many ids fit if they fit in a row."""
    assert re.fullmatch(r"\.\+|\[[^\]]+\]\+", target.call_id.pattern.pattern)


def pair(invocation: str, option: str, native: str | None) -> Conversation:
    return Conversation([ASK, calls(invocation, option, native=native), gives(invocation, 18, option, native=native)])


@pytest.mark.parametrize(
    ("target", "invocation"), [("openai-chat", LONG), ("openai-responses", "c" * 65), ("anthropic-messages", "a.b")]
)
def test_a_refused_id_is_an_error_where_it_is_written_as_it_was(target: str, invocation: str) -> None:
    """AP201: the service may hand out ids that it then refuses. The dialect maps the id in the call and in the result."""
    own, foreign = pair(invocation, "weather", target), pair(invocation, "weather", None)

    assert codes(own, target) == ["AP201"]
    assert (codes(foreign, target), warnings(foreign, target)) == ([], ["AP201"])
    made = mended(own, target)
    assert [message.invocation_id for message in made] == [None, invocation, invocation]
    assert [target in message.metadata for message in made[1:]] == [False, False]
    written = encode(made, target)
    assert invocation in written.aliases.values()


def test_half_of_a_pair_is_enough_to_refuse_it() -> None:
    half = Conversation([ASK, calls(LONG), gives(LONG, native="openai-chat")])

    assert codes(half, "openai-chat") == ["AP201"]
    assert mended(half, "openai-chat")[2].metadata == {"checks": {"mended": "AP201"}}


def test_the_problem_says_what_is_wrong_with_an_id() -> None:
    assert finding(pair(LONG, "weather", None), "AP201", "openai-chat").problem == (
        f"the call id '{LONG}' has 53 characters, more than 40"
    )
    shown = finding(pair("x" * 100, "weather", None), "AP201", "openai-chat").problem
    assert shown == f"the call id '{'x' * 60}…' has 100 characters, more than 40"


@pytest.mark.parametrize(
    ("target", "option"),
    [("openai-chat", "a.b"), ("openai-responses", "a b"), ("anthropic-messages", "a.b"), ("gemini", "1st")],
)
def test_a_refused_option_name_is_mapped(target: str, option: str) -> None:
    own, foreign = pair("c1", option, target), pair("c1", option, None)

    assert {"AP202"} == set(codes(own, target)) - {"AP508"}
    assert warnings(foreign, target) == ["AP202", "AP202"]
    assert mended(own, target)[1].payload == own[1].payload


def test_a_refused_participant_is_mapped() -> None:
    """AP204: roles are no participants, and the option that answers is not named."""
    own = Conversation([says("user", "Hello", policy="Ada Lovelace", native="openai-chat")])
    result = Conversation([ASK, calls("c1"), gives("c1", 18, "weather").model_copy(update={"policy": "the tool"})])

    assert codes(own, "openai-chat") == ["AP204"]
    assert mended(own, "openai-chat")[0].policy == "Ada Lovelace"
    assert codes(own, "gemini") == []
    assert warnings(result, "openai-chat") == []


def test_tools_have_names_that_are_accepted_and_their_own() -> None:
    """AP203, AP206."""
    tools = [Tool(name="a.b"), Tool(name="weather", description="first"), Tool(name="weather", description="second")]
    conversation = Conversation([ASK], tools=tools)

    assert (codes(conversation, "gemini"), warnings(conversation, "gemini")) == (["AP206"], [])
    assert warnings(conversation, "openai-chat") == ["AP203"]
    assert mended(conversation, "openai-chat").tools == tuple(tools[:2])


def noted(id: str) -> dict[str, Any]:
    return {"residue": [{"at": [0, "id"], "add": id}, {"at": [0, "namespace"], "add": "met"}]}


def test_an_item_does_not_have_a_call_id_for_its_own() -> None:
    """AP205: of the call only its id is forgotten, of the assistant's words all that needs one."""
    call = calls("call_1", native="openai-responses", notes=noted("call_1"))
    words = says("assistant", "I look.", native="openai-responses", notes=noted("call_2"))
    broken = Conversation([ASK, words, call, gives("call_1")])

    assert codes(broken, "openai-responses") == ["AP205", "AP205"]
    made = mended(broken, "openai-responses")
    assert made[1].metadata == {"checks": {"mended": "AP205"}}
    assert made[2].metadata["openai-responses"] == {"residue": [{"at": [0, "namespace"], "add": "met"}]}


RESPONSES = "openai-responses"
CALL = {"type": "function_call", "call_id": "c1", "name": "weather", "arguments": "{}"}
CUSTOM = {"type": "custom_tool_call", "call_id": "c1", "name": "weather", "input": "Oslo"}
OUTPUT = {"type": "function_call_output", "call_id": "c1", "output": "18"}
WORDS = {
    "type": "message",
    "role": "assistant",
    "status": "completed",
    "content": [{"type": "output_text", "text": "Hello!", "annotations": []}],
}
QUESTION = {"type": "message", "role": "user", "content": [{"type": "input_text", "text": "Hello"}]}
SEARCH = {"type": "web_search_call", "status": "completed", "action": {"type": "search", "query": "q"}}
THOUGHT = {
    "type": "reasoning",
    "summary": [{"type": "summary_text", "text": "a"}, {"type": "summary_text", "text": "b"}],
    "encrypted_content": "gAAA",
}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("item", "right", "wrong", "around"),
    [
        (CALL, "fc_1", "toolu_1", ([], [OUTPUT])),
        (CALL, "fc_1", "fc.1", ([], [OUTPUT])),
        (CALL, "fc_1", "fc_" + "1" * 62, ([], [OUTPUT])),
        (CUSTOM, "ctc_1", "fc_1", ([], [{**OUTPUT, "type": "custom_tool_call_output"}])),
        (OUTPUT, "fc_1", "item_1", ([CALL], [])),
        (WORDS, "msg_1", "019f629b-43ee", ([], [])),
        (QUESTION, "msg_1", "rs_1", ([], [])),
        (THOUGHT, "rs_1", "item_1", ([], [WORDS | {"id": "msg_2"}])),
        (SEARCH, "ws_1", "call_1", ([], [])),
    ],
    ids=["call", "alphabet", "length", "custom call", "result", "words", "question", "reasoning", "search"],
)
def test_the_id_of_an_item_says_what_it_is(
    item: dict[str, Any], right: str, wrong: str, around: tuple[list[Any], list[Any]]
) -> None:
    """AP205: an item that needs no id is written without one, otherwise unchanged; an item that needs one is left out."""
    before, after = (
        [{"role": "user", "content": "How warm is it?"}, *around[0]],
        [*around[1], {"role": "user", "content": "x"}],
    )
    fine, broken = (decode([*before, {**item, "id": own_id}, *after], RESPONSES) for own_id in (right, wrong))

    assert codes(fine, RESPONSES) == []
    assert codes(broken, RESPONSES) == ["AP205"]
    assert f"'{wrong[:60]}" in finding(broken, "AP205", RESPONSES).problem
    written = encode(mended_for(RESPONSES, broken), RESPONSES).value
    if item in (THOUGHT, SEARCH):
        assert written == [*before, *after]
    elif item is WORDS:
        assert written == [*before, {"role": "assistant", "content": "Hello!"}, *after]
    else:
        assert written == [*before, item, *after]


def test_ids_of_items_that_nobody_is_known_to_refuse_are_let_be() -> None:
    """AP205: new types of items appear often, and other formats have no items."""
    dream = {"type": "dream", "id": "whatever"}
    named = says("assistant", "Hello!", native="openai-chat", notes=noted("whatever"))

    assert codes(decode([{"role": "user", "content": "x"}, dream], RESPONSES), RESPONSES) == []
    assert codes(Conversation([ASK, named]), "openai-chat") == []
