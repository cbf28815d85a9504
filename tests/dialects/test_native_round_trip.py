"""Whatever the native classes can build comes back the same through the core, with nothing lost."""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests import strategies as core

from antiphon import decode, encode, protocol
from antiphon.dialects import atlas, marsys
from antiphon.dialects.agent_framework import message_builder as build
from antiphon.messages._json_values import canonical

names = st.sampled_from(["a", "bob", "w-1", "search"])
maybe_name = st.none() | names
maybe_id = st.sampled_from([None, "m0", "m1", "m2", "gone"])
values = st.recursive(
    core.scalars, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(core.keys, inner, max_size=3), max_leaves=6
)
objects = st.dictionaries(core.keys, values, max_size=3)
words = core.texts


def same(name: str, units: list[Any]) -> None:
    for data in (units, *units):
        encoded = encode(decode(data, name), name)
        assert canonical(encoded.value) == canonical(data)
        assert not encoded.losses


types = st.sampled_from(["CREATE_THREAD", "HEARTBEAT", "MESSAGE", "THREAD_RESULT", "THREAD_CREATED", "CUSTOM", "ERROR"])
requests = st.builds(
    protocol.Message,
    id=names,
    type=types.filter(lambda kind: kind != "ERROR"),
    data=objects,
    sender=maybe_name,
    receiver=maybe_name,
)
responses = st.builds(
    protocol.Response, id=names, type=types.filter(lambda kind: kind != "ERROR"), data=objects, message_id=maybe_id
)
failures = st.builds(
    protocol.ErrorResponse, words, error_code=maybe_name, message_id=maybe_id, data=objects, sender=maybe_name
)


@pytest.mark.slow
@given(st.lists(st.one_of(requests, responses, failures), max_size=4))
def test_choir(messages: list[Any]) -> None:
    """CH-043, CH-044, CH-045"""
    units = [json.loads(protocol.serialize_message(message)) for message in messages]
    same("choir", [{**unit, "id": f"m{number}"} for number, unit in enumerate(units)])


calls = st.builds(
    lambda call_id, name, arguments: {"id": call_id, "type": "function", "function": {"name": name, "arguments": arguments}},
    names,
    names,
    st.one_of(words, objects.map(json.dumps)),
)
marsys_messages = st.builds(
    marsys.Message,
    st.sampled_from(sorted(marsys.VALID_ROLES - {"agent_call"})),
    words,
    name=maybe_name,
    message_id=names,
    tool_calls=st.none() | st.lists(calls, max_size=2),
    tool_call_id=maybe_name,
    metadata=st.none() | objects | st.fixed_dictionaries({"task_id": names, "caller": names}),
)
agent_calls = st.builds(
    marsys.Message, st.just("agent_call"), words, name=names, message_id=names, metadata=st.none() | objects
)


@pytest.mark.slow
@given(st.lists(marsys_messages | agent_calls, max_size=4))
def test_marsys(messages: list[marsys.Message]) -> None:
    """MA-009"""
    same("marsys", [message.to_dict() for message in messages])


plain = st.text(max_size=20)
entries = st.one_of(
    st.builds(build.create_user_message, plain, metadata=st.none() | objects),
    st.builds(build.create_assistant_message, plain),
    st.builds(build.create_task_entry, plain, agent_key=names),
    st.builds(build.create_action, names, objects, agent_key=names),
    st.builds(build.create_observation, values, agent_key=names),
    st.builds(build.create_error, plain, agent_key=names),
    st.builds(build.create_final, plain, agent_key=names),
    st.builds(build.create_director_context, plain),
)


@pytest.mark.slow
@given(st.lists(entries, max_size=5))
def test_agent_framework(messages: list[Any]) -> None:
    """AF-001, AF-052: what the builders make is read as what it is."""
    same("agent-framework", messages)


@st.composite
def atlas_messages(draw: st.DrawFn) -> dict[str, Any]:
    kind = draw(st.sampled_from([None, *atlas.MessageType, "custom"]))
    metadata = draw(objects) | ({} if kind is None else {"type": kind})
    if draw(st.booleans()):
        metadata["in_reply_to"] = draw(names)
    message = atlas.StructuredMessage(
        content=draw(words),
        metadata=metadata,
        task_id=draw(names),
        source_agent=draw(maybe_name),
        target_agent=draw(maybe_name),
        timestamp=draw(st.floats(min_value=0, max_value=4e9)),
    )
    for _ in range(draw(st.integers(min_value=0, max_value=2))):
        call = message.add_tool_call(draw(names), draw(objects))
        if draw(st.booleans()):
            message.add_tool_result(draw(names), draw(values), call)
    if draw(st.booleans()):
        message.add_tool_result(draw(names), None, draw(names), status="error", error="late")
    return message.to_dict()


@pytest.mark.slow
@given(st.lists(atlas_messages(), max_size=4))
def test_atlas(messages: list[Any]) -> None:
    """AT-029, AT-033"""
    same("atlas", messages)


@pytest.mark.parametrize("target", ["choir", "agent-framework", "atlas", "house"])
def test_a_tool_conversation_comes_back_from_every_other_format(target: str) -> None:
    """MA-044: calls, results and texts are the same, and what paired in one pairs in the other."""
    flow = [
        marsys.Message("user", "How warm is it in Paris?"),
        marsys.Message(
            "assistant",
            "I look it up.",
            tool_calls=[
                {"id": "call_1", "type": "function", "function": {"name": "weather", "arguments": '{"city":"Paris"}'}}
            ],
        ),
        marsys.Message("tool", '{"temp":18}', name="weather", tool_call_id="call_1"),
        marsys.Message(
            "agent_call", "Is that usual?", name="climatologist", metadata={"caller": "assistant", "task_id": "t-1"}
        ),
        marsys.Message("agent_response", "Quite.", name="climatologist", metadata={"task_id": "t-1"}),
        marsys.Message("assistant", "18 °C, as usual."),
    ]
    there = encode(decode([message.to_dict() for message in flow], "marsys"), target).value
    back = encode(decode(there, target), "marsys").value

    def said(units: Any) -> list[Any]:
        calls = [
            (c["function"]["name"], json.loads(c["function"]["arguments"])) for u in units for c in u.get("tool_calls", ())
        ]
        results = [(u["name"], u["content"]) for u in units if u["role"] in ("tool", "agent_response")]
        asked = [(u["name"], u["content"]) for u in units if u["role"] == "agent_call"]
        texts = [u["content"] for u in units if u["role"] in ("user", "assistant") and u["content"]]
        return [calls, results, asked, texts]

    assert said(back) == said([message.to_dict() for message in flow])
    conversation = decode(back, "marsys")
    assert not conversation.open_calls()
    assert not conversation.orphans()
