"""AP7xx: settings of a request that contradict what it says."""

from typing import Any

import pytest
from tests.checks.said import calls, codes, gives, mended, says

from antiphon import Conversation, ForeignPart, Message
from antiphon.checks import is_left_out
from antiphon.messages import Tool

CHAT, RESPONSES, CLAUDE, GEMINI = "openai-chat", "openai-responses", "anthropic-messages", "gemini"
ASK = says("user", "How warm is it?")


def asked(target: str, *messages: Message, tools: tuple[str, ...] = (), **settings: Any) -> Conversation:
    declared = [Tool(name=name) for name in tools]
    notes = {"rest": settings} if settings else {}
    return Conversation(messages or (ASK,), tools=declared, metadata={target: notes})


@pytest.mark.parametrize(
    ("target", "settings"),
    [
        (CHAT, {"tool_choice": {"type": "function", "function": {"name": "weather"}}}),
        (CHAT, {"tool_choice": {"type": "custom", "custom": {"name": "weather"}}}),
        (RESPONSES, {"tool_choice": {"type": "function", "name": "weather"}}),
        (CLAUDE, {"tool_choice": {"type": "tool", "name": "weather"}}),
        (GEMINI, {"toolConfig": {"functionCallingConfig": {"mode": "ANY", "allowedFunctionNames": ["weather"]}}}),
        (GEMINI, {"tool_config": {"function_calling_config": {"allowed_function_names": ["weather"]}}}),
    ],
)
def test_a_tool_that_must_be_called_is_declared(target: str, settings: dict[str, Any]) -> None:
    """AP701."""
    broken = asked(target, tools=("time",), model="m", **settings)

    assert codes(broken, target) == ["AP701"]
    assert mended(broken, target).metadata == {target: {"rest": {"model": "m"}}}
    assert codes(asked(target, tools=("weather",), **settings), target) == []


@pytest.mark.parametrize("choice", ["auto", None, {"type": "auto"}, {"type": "web_search"}, {"mode": "auto"}])
def test_a_choice_that_names_no_tool_is_free(choice: Any) -> None:
    assert codes(asked(RESPONSES, tool_choice=choice), RESPONSES) == []


def test_a_tool_that_only_the_format_knows_is_declared() -> None:
    tools = [{"at": [0], "is": {"type": "custom", "name": "sql", "tools": [{"name": "inner"}]}, "was": "0"}]
    for name in ("sql", "inner"):
        rest = {"tool_choice": {"type": "custom", "name": name}}
        known = Conversation([ASK], metadata={RESPONSES: {"rest": rest, "tools": tools}})
        assert codes(known, RESPONSES) == []


def test_a_previous_response_is_a_response() -> None:
    """AP702."""
    assert codes(asked(RESPONSES, previous_response_id="resp_1"), RESPONSES) == []
    assert codes(asked(RESPONSES, previous_response_id=None), RESPONSES) == []
    broken = asked(RESPONSES, previous_response_id="msg_1")
    assert codes(broken, RESPONSES) == ["AP702"]
    assert mended(broken, RESPONSES).metadata == {RESPONSES: {"rest": {}}}


@pytest.mark.parametrize("config", ["toolConfig", "tool_config"])
def test_cached_content_has_its_own_tools(config: str) -> None:
    """AP703."""
    settings = {"cachedContent": "cachedContents/1", config: {"functionCallingConfig": {"mode": "AUTO"}}}
    for broken in (asked(GEMINI, tools=("weather",), **settings), asked(GEMINI, **settings)):
        assert codes(broken, GEMINI) == ["AP703"]
        made = mended(broken, GEMINI)
        assert (made.tools, made.metadata) == ((), {GEMINI: {"rest": {"cachedContent": "cachedContents/1"}}})
    assert codes(asked(GEMINI, cached_content="cachedContents/1"), GEMINI) == []


def test_a_call_has_the_namespace_of_its_tool() -> None:
    """AP704: unless the tool is also declared without one."""
    met = {"type": "namespace", "name": "met", "tools": [{"type": "function", "name": "radar"}]}
    notes = {"tools": [{"at": [], "is": [met], "was": "0"}]}
    called = {"residue": [{"at": [0, "namespace"], "add": "met"}]}

    def history(native: str | None, notes_of_call: dict[str, Any], *tools: str) -> Conversation:
        call = calls("c1", "radar", native=native, notes=notes_of_call)
        declared = [Tool(name=name) for name in tools]
        return Conversation([ASK, call, gives("c1", 18, "radar")], tools=declared, metadata={RESPONSES: notes})

    assert codes(history(RESPONSES, called), RESPONSES) == []
    assert codes(history(RESPONSES, {}, "radar"), RESPONSES) == []
    assert codes(history(None, {}), RESPONSES) == []
    broken = history(RESPONSES, {"residue": [{"at": [0, "status"], "add": "completed"}]})
    assert codes(broken, RESPONSES) == ["AP704"]
    assert mended(broken, RESPONSES)[1].metadata[RESPONSES]["residue"] == [
        {"at": [0, "status"], "add": "completed"},
        {"at": [0, "namespace"], "add": "met"},
    ]


@pytest.mark.parametrize(
    "block",
    [
        {"type": "tool_reference", "tool_name": "weather"},
        {"type": "tool_addition", "tool": {"name": "weather"}},
        {"type": "tool_removal", "tool": {"name": "weather"}},
    ],
)
def test_a_tool_that_is_referred_to_is_declared(block: dict[str, Any]) -> None:
    """AP705."""
    history = (says("user", "Hello", ForeignPart(dialect=CLAUDE, value=block)),)

    assert codes(asked(CLAUDE, *history), CLAUDE) == ["AP705"]
    assert [is_left_out(part) for part in mended(asked(CLAUDE, *history), CLAUDE)[0].parts] == [False, True]
    assert codes(asked(CLAUDE, *history, tools=("weather",)), CLAUDE) == []
    nameless = ForeignPart(dialect=CLAUDE, value={"type": block["type"]})
    assert codes(asked(CLAUDE, says("user", nameless)), CLAUDE) == []
