"""Conversations for Hypothesis: any order of talk, calls and results, with everything a message can carry."""

from typing import Any

from hypothesis import strategies as st
from tests import strategies as core

from antiphon import Conversation, Message
from antiphon.messages import Tool

_WORDS = st.sampled_from(["", "hello", "two\nlines", '{"a": 1}', "ünï ☃", "null"])
_VALUES = st.sampled_from([None, "done", "", {"a": [1, 2.5]}, {"result": 1}, {"details": 1}, [], {}, 7, True, '{"a":1}'])
_ARGUMENTS = st.sampled_from([{}, {"city": "Oslo"}, {"request": "look"}, {"request": 1}, {"task": "x"}, {"a": {"b": [None]}}])
_POLICIES = st.sampled_from(["user", "assistant", "system", "planner", "search", "runtime"])
_TIMES = st.none() | core.times.filter(lambda time: time.year > 1970)
_EITHER = st.booleans()
_PLACES = {count: st.sampled_from(range(count)) for count in range(1, 8)}
"""By how many there are, the place of one."""
_OPTIONS = st.sampled_from(["search", "r"])
_BROKEN = st.sampled_from([None, None, "broken {"])
_ERRORS = st.sampled_from(["Timeout", "Error", "ERROR"])
_RETRYABLE = st.sampled_from([None, True, False])
_KINDS = st.sampled_from(["parts", "option_call", "option_result"])
_LENGTH = st.integers(min_value=0, max_value=6)
_TOOLS = st.sampled_from([(), (Tool(name="t"),)])
_FIELDS = {
    "role_hint_for_llm": st.sampled_from([None, "user", "assistant", "system", "tool"]),
    "step_num": st.sampled_from([None, None, 0, 3]),
    "turn_id": st.sampled_from([None, None, "t1", "t2"]),
    "thread_id": st.sampled_from([None, None, "th"]),
    "to": st.sampled_from([(), (), ("bob",), ("bob", "eve")]),
    "lane": st.sampled_from(["talk", "talk", "control", "effect"]),
    "correlation_id": st.sampled_from([None, None, "c", "i"]),
    "in_reply_to": st.sampled_from([None, None, "0", "1", "gone"]),
    "parent_id": st.sampled_from([None, None, "i"]),
    "created_at": _TIMES,
    "usage": st.sampled_from([None, None, {"input_tokens": 3}]),
}
"""Made once, as everything here: Hypothesis takes longer to look at a new strategy than to draw from it."""


def _payload(draw: st.DrawFn, kind: str, position: int, waiting: list[tuple[str, str]]) -> dict[str, Any]:
    """A payload; a result answers a call that waits, or none."""
    invocation = {"invocation_id": f"c{position}", "option_name": draw(_OPTIONS)}
    if kind == "option_call":
        waiting.append((invocation["invocation_id"], invocation["option_name"]))
    elif kind == "option_result" and waiting and draw(_EITHER):
        found = waiting.pop(draw(_PLACES[len(waiting)]))
        invocation = {"invocation_id": found[0], "option_name": found[1]}
    if kind == "option_call":
        text = draw(_BROKEN)
        return {"kind": kind, **invocation, "arguments": {} if text else draw(_ARGUMENTS), "arguments_text": text}
    parts = draw(_PARTS)
    if kind == "parts":
        return {"kind": kind, "parts": parts}
    error = {
        "is_error": True,
        "error_type": draw(_ERRORS),
        "error_message": draw(_WORDS),
    }
    outcome = ({}, {**error, "retryable": draw(_RETRYABLE)})[draw(_PLACES[2])]
    return {"kind": kind, **invocation, "result": draw(_VALUES), "parts": parts if draw(_EITHER) else [], **outcome}


@st.composite
def some_part(draw: st.DrawFn) -> dict[str, Any]:
    text = {"kind": "text", "text": draw(_WORDS)}
    found = (
        text,
        text,
        {**text, "citations": [{"title": "Sky"}]},
        {"kind": "media", "modality": "image", "url": "https://example.com/x.png"},
        {"kind": "reasoning", "text": draw(_WORDS)},
        {"kind": "data", "data": draw(_VALUES)},
        {"kind": "foreign", "dialect": "elsewhere", "value": {"x": 1}},
    )
    return found[draw(_PLACES[len(found)])]


_PARTS = st.lists(some_part(), max_size=2)


@st.composite
def conversations(draw: st.DrawFn) -> Conversation:
    messages: list[Message] = []
    waiting: list[tuple[str, str]] = []
    for position in range(draw(_LENGTH)):
        kind = draw(_KINDS)
        given = {name: draw(each) for name, each in _FIELDS.items() if draw(_EITHER)}
        message = {"id": str(position), "policy": draw(_POLICIES), "payload": _payload(draw, kind, position, waiting), **given}
        messages.append(Message.model_validate(message))
    return Conversation(messages, tools=draw(_TOOLS))


_STEPS = st.integers(min_value=0, max_value=3)
_CALLS = st.integers(min_value=0, max_value=2)
_SEARCH = st.sampled_from([(), (Tool(name="search"),)])
_EXTRAS = {
    "thread_id": _FIELDS["thread_id"],
    "created_at": _TIMES,
    "usage": _FIELDS["usage"],
    "to": st.sampled_from([(), (), ("bob",)]),
}
_SAID = st.sampled_from(["hello", "two\nlines", '{"a": 1}', "ünï ☃", "null"])
_MORE = [{"kind": "data", "data": {"a": 1}}, {"kind": "reasoning", "text": "hm"}, {"kind": "text", "text": "and"}]
_PICTURE = {"kind": "media", "modality": "image", "url": "https://example.com/x.png"}
_MORE_OF_USER = st.lists(st.sampled_from([*_MORE, _PICTURE]), max_size=2)
_MORE_OF_OTHERS = st.lists(st.sampled_from(_MORE), max_size=2)
_ERROR = {"is_error": True, "error_type": "Timeout", "error_message": "too long", "retryable": True}
_OUTCOMES = st.sampled_from([{"result": "done"}, {"result": {"a": [1, 2.5]}}, {"result": 7}, _ERROR])


@st.composite
def orderly(draw: st.DrawFn) -> Conversation:
    """Histories as they should be: the user begins, every call is answered at once, everybody says something."""
    messages = [_said(draw, "user")]
    for step in range(draw(_STEPS)):
        calls = draw(_CALLS)
        turn = f"turn {step}" if calls else None
        if not calls or draw(_EITHER):
            messages.append(_said(draw, "assistant", turn_id=turn))
        invocations = [f"call_{step}_{index}" for index in range(calls)]
        messages += [_called(draw, invocation, turn) for invocation in invocations]
        messages += [_answered(draw, invocation) for invocation in draw(st.permutations(invocations))]
        if not calls:
            messages.append(_said(draw, "user"))
    return Conversation(messages, tools=draw(_SEARCH))


def _message(draw: st.DrawFn, policy: str, payload: dict[str, Any], **fields: Any) -> Message:
    given = {name: draw(each) for name, each in _EXTRAS.items() if draw(_EITHER)}
    return Message.model_validate({"policy": policy, "payload": payload, **given, **fields})


def _said(draw: st.DrawFn, policy: str, **fields: Any) -> Message:
    words = {"kind": "text", "text": draw(_SAID)}
    parts = [words, *draw(_MORE_OF_USER if policy == "user" else _MORE_OF_OTHERS)]
    speaker = policy if fields.get("turn_id") else draw(st.sampled_from([policy, policy, "planner"]))
    return _message(draw, speaker, {"kind": "parts", "parts": parts}, role_hint_for_llm=policy, **fields)


def _called(draw: st.DrawFn, invocation: str, turn: str | None) -> Message:
    call = {"kind": "option_call", "invocation_id": invocation, "option_name": "search", "arguments": draw(_ARGUMENTS)}
    return _message(draw, "assistant", call, turn_id=turn)


def _answered(draw: st.DrawFn, invocation: str) -> Message:
    outcome = draw(_OUTCOMES)
    return _message(draw, "search", {"kind": "option_result", "invocation_id": invocation, "option_name": "search", **outcome})
