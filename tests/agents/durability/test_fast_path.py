"""The fast path: plain requests and answers are stored exactly as the dialect writes them."""

from __future__ import annotations

from datetime import UTC, datetime
from decimal import Decimal
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from pydantic_ai.messages import (
    BinaryContent,
    ModelMessage,
    ModelRequest,
    ModelResponse,
    SystemPromptPart,
    TextPart,
    ThinkingPart,
    ToolCallPart,
    ToolReturnPart,
    UserPromptPart,
)
from pydantic_ai.usage import RequestUsage

from antiphon.agents.durability._fast_path import plain
from antiphon.agents.durability._prompt import dump
from antiphon.agents.durability._talk import TalkPlace, ThreadTalk, _spoken, as_messages, as_unit
from antiphon.messages import Limits, dumps, use_limits

PLACE = TalkPlace("thread", "thread/run/clerk/model", "clerk")
MARK = "5ffef420ca68df0f24d8e828a71b3452"
TIME = datetime(2026, 1, 2, 3, 4, 5, 678901, tzinfo=UTC)

texts = st.text(max_size=20)
odd = texts | st.sampled_from(["{", "null", "\x00", "\u2028", "[redacted:x]", '{"a": 1}', '{"a":1}', "{}", "[]", "\ud800"])
good_names = st.sampled_from(["act", "look", "pay it", "é", "a" * 300, "call-1", "call-2", "call-3"])
names = good_names | good_names | texts
times = st.sampled_from([TIME, TIME.replace(microsecond=0), datetime(1970, 1, 1, tzinfo=UTC)])
json_values: st.SearchStrategy[Any] = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | odd | st.just("binary"),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(["kind", "a", "b"]) | texts, inner, max_size=3)
    ),
    max_leaves=6,
)
notes = st.none() | st.dictionaries(texts, json_values, max_size=2)
maybe = st.none() | texts

returns: st.SearchStrategy[ToolReturnPart] = st.builds(
    ToolReturnPart,
    tool_name=names,
    content=json_values | st.just(BinaryContent(b"x", media_type="image/png")),
    tool_call_id=names,
    metadata=notes,
    timestamp=times,
    outcome=st.sampled_from(["success", "success", "failed", "denied"]),
)
good_returns: st.SearchStrategy[ToolReturnPart] = st.builds(
    ToolReturnPart, tool_name=good_names, content=json_values, tool_call_id=good_names, metadata=notes, timestamp=times
)
prompts = st.builds(UserPromptPart, content=odd | st.lists(odd, max_size=2), timestamp=times)
systems = st.builds(SystemPromptPart, content=odd, timestamp=times)
requests = st.builds(
    ModelRequest,
    parts=st.lists(good_returns, min_size=1, max_size=3, unique_by=lambda part: part.tool_call_id)
    | st.lists(prompts | systems, max_size=2)
    | st.lists(returns | prompts, max_size=3),
    timestamp=st.none() | times,
    instructions=st.sampled_from([None, None, "", "Be kind.", "Be kind.", "Be brief."]),
    run_id=maybe,
    conversation_id=maybe,
    metadata=notes,
)
calls: st.SearchStrategy[ToolCallPart] = st.builds(
    ToolCallPart,
    tool_name=names,
    args=st.none() | odd | st.dictionaries(texts, json_values, max_size=2),
    tool_call_id=names,
    id=maybe,
    provider_name=maybe,
    provider_details=notes,
)
words = st.builds(TextPart, content=odd, id=maybe, provider_name=maybe, provider_details=notes)
thoughts = st.builds(
    ThinkingPart,
    content=odd,
    id=maybe | st.just("redacted_thinking"),
    signature=maybe,
    provider_name=maybe,
    provider_details=notes,
)
usages = st.builds(
    RequestUsage,
    input_tokens=st.integers(0, 9),
    output_tokens=st.integers(0, 9),
    cache_read_tokens=st.integers(0, 1),
    details=st.dictionaries(texts, st.integers(0, 9), max_size=2),
)
responses = st.builds(
    ModelResponse,
    parts=st.lists(calls | words | thoughts, max_size=4),
    usage=usages,
    model_name=maybe,
    timestamp=times,
    provider_name=maybe,
    provider_url=maybe,
    provider_details=notes,
    provider_response_id=maybe,
    finish_reason=st.sampled_from([None, "stop", "tool_call"]),
    run_id=maybe,
    conversation_id=maybe,
    metadata=notes,
)

QUESTION = ModelRequest([UserPromptPart("Where?", timestamp=TIME)], timestamp=TIME, run_id="thread/run/clerk")
RESULTS = ModelRequest(
    [
        ToolReturnPart("act", "done", "call-1", timestamp=TIME),
        ToolReturnPart("look", {"found": [1, None, {"kind": "x"}]}, "call-2", timestamp=TIME),
    ],
    timestamp=TIME,
    instructions="Be kind.",
    run_id="thread/run/clerk",
)
ANSWER = ModelResponse(
    [
        ThinkingPart("Hm.", signature="sealed", id="rs_1", provider_name="openai"),
        TextPart("Let me look.", id="msg_1", provider_name="openai"),
        ToolCallPart("act", '{"what": "it"}', "call-1", id="fc_1", provider_name="openai"),
        ToolCallPart("look", {"where": "there"}, "call-2"),
    ],
    usage=RequestUsage(input_tokens=7, output_tokens=2, details={"reasoning_tokens": 1}),
    model_name="gpt-4o",
    timestamp=TIME,
    provider_name="openai",
    provider_details={"finish_reason": "tool_calls", "timestamp": TIME},
    provider_response_id="resp_1",
    finish_reason="tool_call",
)


def _unit(message: ModelMessage) -> dict[str, Any]:
    (unit,) = dump([message])
    return {**unit, "conversation_id": None}


NEW_INSTRUCTIONS = ModelRequest([UserPromptPart("Where?", timestamp=TIME)], instructions="Be brief.", timestamp=TIME)


def _is_plain(message: ModelMessage, held: str | None = None) -> bool:
    return plain(_unit(message), held, {}) is not None


@pytest.mark.slow
@given(requests, st.sampled_from([None, "Be kind."]))
@example(QUESTION, None)
@example(RESULTS, "Be kind.")
@example(NEW_INSTRUCTIONS, "Be kind.")
def test_a_plain_request_is_stored_as_the_dialect_writes_it(message: ModelRequest, held: str | None) -> None:
    """Both paths write the same rows for a request, byte for byte (OP-054)."""
    unit = _unit(message)
    rows = PLACE.plain_rows(unit, "said", MARK, held=held, count=2)
    if rows is not None:
        before = [] if held is None else [{"kind": "request", "parts": [], "instructions": held}]
        assert [*map(dumps, rows)] == [*map(dumps, PLACE.rows(_spoken(unit, before), "said", MARK, count=2))]


@pytest.mark.slow
@given(responses, st.sampled_from([None, Decimal("0.5")]))
@example(ANSWER, None)
@example(ANSWER, Decimal("0.5"))
def test_a_plain_answer_is_stored_as_the_dialect_writes_it_and_comes_back(
    message: ModelResponse, cost: Decimal | None
) -> None:
    """Both paths write the same rows, byte for byte, and the dialect reads the same answer from them."""
    unit = _unit(message)
    rows = PLACE.plain_rows(unit, "answer", MARK, cost=cost)
    if rows is not None:
        messages = as_messages(unit, cost)
        assert [*map(dumps, rows)] == [*map(dumps, PLACE.rows(messages, "answer", MARK))]
        assert as_unit(messages, is_priced=cost is not None) == unit
        assert PLACE.answer(unit, MARK, cost).is_whole


def test_common_messages_of_agents_are_plain() -> None:
    assert _is_plain(QUESTION)
    assert _is_plain(RESULTS, "Be kind.")
    assert _is_plain(ANSWER)
    assert _is_plain(NEW_INSTRUCTIONS, "Be kind.")


@pytest.mark.parametrize(
    "message",
    [
        ModelRequest([SystemPromptPart("Be kind."), UserPromptPart("Where?")]),
        ModelRequest([UserPromptPart(["Where?"])]),
        ModelRequest([ToolReturnPart("act", BinaryContent(b"x", media_type="image/png"), "call-1")]),
        ModelRequest([ToolReturnPart("act", "no", "call-1", outcome="failed")]),
        ModelRequest([ToolReturnPart("act", "a", "call-1"), ToolReturnPart("act", "b", "call-1")]),
        ModelRequest([ToolReturnPart("no\nname", "a", "call-1")]),
        ModelRequest([UserPromptPart("Where?")], instructions="Be brief."),
        ModelRequest([UserPromptPart("x" * 70_000)]),
        ModelResponse([]),
        ModelResponse([ToolCallPart("act", {}, "call-1"), ToolCallPart("act", {}, "call-1")]),
        ModelResponse([ToolCallPart("act", {"n": 2**70}, "call-1")]),
    ],
)
def test_other_messages_take_the_slow_path(message: ModelMessage) -> None:
    assert not _is_plain(message)


def test_under_other_limits_nothing_is_plain() -> None:
    with use_limits(Limits(message_bytes=200)):
        assert not _is_plain(QUESTION)


def test_a_name_that_is_too_long_is_refused_as_on_the_slow_path() -> None:
    with pytest.raises(ValueError, match="A name is text"):
        ThreadTalk().unsaid([_unit(QUESTION)], [MARK], TalkPlace("thread", "x" * 510, "clerk"), None)
