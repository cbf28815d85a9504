"""Bad input: a typed error with the place, or kept as data; never a crash, a hang or a silent change."""

import json
from contextlib import suppress
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests import strategies
from tests.dialects.samples import SAMPLES

from antiphon import decode, encode
from antiphon.dialects import detect, names
from antiphon.errors import DecodeError
from antiphon.messages._json_values import canonical


@pytest.mark.parametrize(
    ("dialect", "data", "where", "reason"),
    [
        ("marsys", [{"role": "wizard", "content": ""}], "[0].role", "unknown role 'wizard'"),
        ("marsys", [{"content": ""}], "[0].role", "expected text, found nothing"),
        ("marsys", {"role": 7}, "role", "expected text, found a number"),
        ("marsys", [{"role": "user"}, {"role": "user", "content": {}}], "[1].content", "expected text, found an object"),
        (
            "marsys",
            [{"role": "user"}, {"role": "user", "content": [1]}],
            "[1].content[0]",
            "expected an object, found a number",
        ),
        ("marsys", [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "\x00"}}]}], "[0]", "url"),
        ("marsys", [{"role": "assistant", "tool_calls": {}}], "[0].tool_calls", "expected a list, found an object"),
        ("marsys", [{"role": "assistant", "tool_calls": [1]}], "[0].tool_calls[0]", "expected an object, found a number"),
        ("marsys", [{"role": "assistant", "tool_calls": [{}]}], "[0].tool_calls[0].function", "a function with a name"),
        (
            "marsys",
            [{"role": "assistant", "tool_calls": [{"function": {"name": "f", "arguments": 1}}]}],
            "[0].tool_calls[0].function.arguments",
            "as JSON text",
        ),
        ("marsys", [{"role": "user", "timestamp": "noon"}], "[0].timestamp", "ISO 8601"),
        ("marsys", [{"role": "user", "metadata": 1, "name": "a\x00"}], "[0]", "A name is"),
        ("marsys", [{"role": "agent_call", "metadata": 1}], "[0].metadata", "expected an object"),
        ("marsys", [{"role": "agent_call", "content": "", "name": "a\x00"}], "[0]", "A name is"),
        ("agent-framework", [{"type": "gossip"}], "[0].type", "unknown type 'gossip'"),
        ("agent-framework", [{"type": "user_message"}], "[0].content", "expected content"),
        ("agent-framework", [{"type": "action", "tool": "x", "args": []}], "[0].args", "expected an object, found a list"),
        ("atlas", [{"metadata": {}}], "[0].content", "expected text, found nothing"),
        ("atlas", [{"content": "", "timestamp": "now"}], "[0].timestamp", "seconds since 1970"),
        ("atlas", [{"content": "", "timestamp": 1e300}], "[0].timestamp", "that a calendar has"),
        ("atlas", [{"content": "", "tool_calls": [{"name": 1}]}], "[0].tool_calls[0].name", "name as text"),
        (
            "atlas",
            [{"content": "", "tool_calls": [{"name": "f", "arguments": 1}]}],
            "[0].tool_calls[0].arguments",
            "an object",
        ),
        ("atlas", [{"content": "", "tool_results": [{"name": "f"}]}], "[0].tool_results[0]", "a name and a call_id"),
        ("choir", [{"data": {}}], "[0].type", "expected text, found nothing"),
        ("choir", [{"type": "X", "data": True}], "[0].data", "expected an object, found a truth value"),
        ("choir", ["hi"], "[0]", "expected an object, found text"),
        ("choir", "7", "", "expected an object, found a number"),
        ("house", [{"antiphon": 2}], "", "upgrade"),
    ],
)
def test_a_fault_is_reported_with_its_place(dialect: str, data: Any, where: str, reason: str) -> None:
    with pytest.raises(DecodeError, match=reason) as caught:
        decode(data, dialect)

    assert caught.value.where == where
    assert caught.value.dialect in (dialect, "antiphon")


@pytest.mark.parametrize("name", names())
@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"{",
        b"\xff\xfe[\x00",
        "[" * 10_000 + "]" * 10_000,
        b"[" * 10_000 + b"]" * 10_000,
        b'[{"a":1,"a":2}]',
        b"[NaN]",
        '["\ud800"]',
        [float("nan")],
        [{1, 2}],
        None,
        [None],
        [[]],
        7,
        [{"content": {"kind": "lc"}, "type": {"kind": "lc"}, "role": ["user"]}],
    ],
    ids=repr,
)
def test_data_that_is_no_conversation_is_refused(name: str, data: Any) -> None:
    """S8: broken JSON, wrong encodings, nesting of 10,000, values that JSON does not have."""
    with pytest.raises(DecodeError):
        decode(data, name)


@st.composite
def damaged(draw: st.DrawFn, name: str) -> Any:
    """A sample with something put in, changed or taken out somewhere."""
    data = json.loads(json.dumps(draw(st.sampled_from(SAMPLES[name]))))
    place = data
    while isinstance(place, dict) and place:
        key = draw(st.sampled_from(sorted(place)))
        if isinstance(place[key], dict) and draw(st.booleans()):
            place = place[key]
            continue
        match draw(st.sampled_from(["change", "drop", "add"])):
            case "change":
                place[key] = draw(strategies.json_values)
            case "drop":
                del place[key]
            case _:
                place[draw(strategies.keys)] = draw(strategies.json_values)
        break
    return draw(st.sampled_from([data, [data], [*SAMPLES[name], data]]))


@pytest.mark.parametrize("name", SAMPLES)
@given(data=st.data())
def test_damaged_data_comes_back_the_same_or_is_refused(name: str, data: st.DataObject) -> None:
    """S2, G21: reserved keys, wrong types, anything: the same data back, or a typed error."""
    value = data.draw(damaged(name))
    with suppress(DecodeError):
        conversation = decode(value, name)
        assert canonical(encode(conversation, name).value) == canonical(value)


ODD: tuple[Any, ...] = ({}, [], None, 1, True, "x", [{}], [[]], [None], {"a": {}})


@pytest.mark.slow
@pytest.mark.parametrize("odd", ODD, ids=repr)
def test_detect_gives_a_verdict_on_json_of_any_shape(odd: Any) -> None:
    """G21: an unhashable value stood where a role or a type is expected, and was looked up in a set."""
    user = {"role": "user", "content": "hi"}
    for data in (
        [odd],
        *([{key: odd}] for key in ("role", "type", "kind", "content", "parts", "antiphon")),
        *({key: odd} for key in ("role", "type", "messages", "contents", "input", "candidates", "object", "output")),
        *({"messages": [user], key: odd} for key in ("system", "tools", "model")),
        {"messages": [{"role": odd, "content": odd}]},
        {"messages": [{**user, "content": [{"type": odd}]}]},
        [{**user, "content": [{"type": odd}]}],
        [{**user, "tool_calls": odd}],
        {"input": [{"type": odd}], "model": odd},
        {"contents": [{"parts": odd}]},
        {"contents": [{"role": odd, "parts": [{"text": odd}]}]},
        {"candidates": [{"content": odd}]},
        {"kind": "request", "parts": [odd]},
        {"type": "message", "stop_reason": odd, "content": odd},
    ):
        assert detect(data).name in (None, *names())


@pytest.mark.slow
@given(value=strategies.json_values)
def test_detect_gives_a_verdict_on_any_json(value: Any) -> None:
    for data in ({"content": value}, [value], [{"role": value, "type": value, "content": [{"type": value}]}]):
        assert detect(data).name in (None, *names())


@pytest.mark.parametrize("name", names())
@given(value=strategies.json_values)
def test_any_json_is_read_or_refused(name: str, value: Any) -> None:
    with suppress(DecodeError):
        decode(value, name)
