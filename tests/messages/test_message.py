"""Message: three kinds, frozen all the way down, equal by content."""

import copy
import pickle
import subprocess
import sys
from datetime import UTC, datetime, timedelta, timezone
from decimal import Decimal
from typing import Any, get_args

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError
from tests import strategies
from tests.messages.test_conversation import histories

from antiphon import (
    RUNTIME_POLICY,
    Citation,
    Conversation,
    DataPart,
    MediaPart,
    Message,
    OptionCallPayload,
    OptionResultPayload,
    PartsPayload,
    TextPart,
    Usage,
    dumps,
)
from antiphon.messages import Limits, RoleHint, use_limits, use_port
from antiphon.messages._message import RESERVED_POLICIES, is_surely_small
from antiphon.messages._unchecked import house_bytes
from antiphon.testing import CountingPort

MIB = 1024 * 1024
HI = PartsPayload(parts=(TextPart(text="hi"),))


def message(**fields: Any) -> Message:
    return Message(**{"id": "m-1", "policy": "user", "payload": HI, **fields})


# ---------------------------------------------------------------- fields


def test_only_policy_and_payload_must_be_given() -> None:
    """OP-004: everything else has a default; the id is filled in."""
    one, two = Message(policy="user", payload=HI), Message(policy="user", payload=HI)

    required = [name for name, field in Message.model_fields.items() if field.is_required()]
    assert required == ["policy", "payload"]
    assert one.id != two.id
    assert one.id.count("-") == 4
    assert one.id[14] == "7"
    assert one.kind == "parts"


def test_the_fields_are_those_of_the_design() -> None:
    """OP-003, OP-020: there is a policy and a step_num, and no actor anywhere."""
    assert list(Message.model_fields) == [
        "id",
        "policy",
        "payload",
        "role_hint_for_llm",
        "step_num",
        "turn_id",
        "thread_id",
        "to",
        "lane",
        "correlation_id",
        "in_reply_to",
        "parent_id",
        "created_at",
        "usage",
        "metadata",
    ]
    with pytest.raises(ValidationError, match="actor"):
        message(actor="me")


def test_the_role_hint_is_one_of_four_or_none() -> None:
    """OP-008"""
    assert get_args(RoleHint) == ("user", "assistant", "tool", "system")
    assert message().role_hint_for_llm is None
    with pytest.raises(ValidationError, match="role_hint_for_llm"):
        message(role_hint_for_llm="model")


@given(histories(), st.sampled_from([None, *get_args(RoleHint)]))
def test_the_role_hint_means_nothing_to_the_core(conversation: Conversation, hint: Any) -> None:
    """OP-009, OP-051: changing every hint changes no result of the core."""
    other = Conversation(each.model_copy(update={"role_hint_for_llm": hint}) for each in conversation)

    def core(conversation: Conversation) -> Any:
        return {
            "calls": [m.id for m in conversation.calls()],
            "results": [m.id for m in conversation.results()],
            "open": [m.id for m in conversation.open_calls()],
            "orphans": [m.id for m in conversation.orphans()],
            "steps": {step: [m.id for m in group] for step, group in conversation.steps().items()},
            "turns": [[m.id for m in group] for group in conversation.turns()],
            "transitions": [[m.id for m in t.actions] for t in conversation.transitions()],
            "window": [m.id for m in conversation.window(2)],
            "size": [m.id for m in conversation.window(size=200)],
            "tokens": [m.id for m in conversation.window(tokens=100)],
            "chains": [[m.id for m in conversation.chain(each)] for each in conversation],
        }

    assert core(conversation) == core(other)


def test_reserved_policies_are_named() -> None:
    """OP-007"""
    assert RUNTIME_POLICY == "runtime"
    assert {"runtime", "executor"} == RESERVED_POLICIES


def test_step_numbers_are_counts() -> None:
    """OP-020"""
    assert message(step_num=0).step_num == 0
    for wrong in (-1, 1.0, "1", True, 2**53 + 1):
        with pytest.raises(ValidationError, match="step_num"):
            message(step_num=wrong)


@given(histories(), st.data())
def test_step_numbers_are_apart_from_order_and_pairing(conversation: Conversation, data: st.DataObject) -> None:
    """OP-021: with any other step numbers, order, pairs, open calls, orphans and chains stay the same.

    That a ledger's order and a trace do not depend on them either is proven beside those: in the checks that every ledger must
    pass, and in tests/telemetry.
    """
    steps = st.sampled_from([None, 0, 1, 7])
    other = Conversation(each.model_copy(update={"step_num": data.draw(steps)}) for each in conversation)

    def independent(talk: Conversation) -> Any:
        return (
            [m.id for m in talk],
            talk.pairs(),
            [m.id for m in talk.open_calls()],
            [m.id for m in talk.orphans()],
            [[m.id for m in talk.chain(each)] for each in talk],
        )

    assert independent(other) == independent(conversation)


def test_time_is_aware_and_in_utc() -> None:
    moment = datetime(2026, 1, 1, 12, tzinfo=timezone(timedelta(hours=2)))

    assert message(created_at=moment).created_at == moment
    assert message(created_at=moment).created_at.tzinfo is UTC
    assert message(created_at="2026-01-01T10:00:00Z").created_at == moment
    for wrong in (datetime(2026, 1, 1), "2026-01-01", "yesterday", 1767225600, "2026-01-01T10:00:00.1234567Z"):
        with pytest.raises(ValidationError, match="created_at"):
            message(created_at=wrong)


def test_a_time_of_another_library_is_a_time() -> None:
    class Theirs(datetime):
        pass

    made = message(created_at=Theirs(2026, 1, 1, tzinfo=UTC))

    assert type(made.created_at) is datetime
    assert b"2026-01-01T00:00:00Z" in dumps(made)


def test_a_port_must_give_names() -> None:
    class Wrong(CountingPort):
        def new_id(self) -> Any:
            return 5

    with use_port(Wrong()), pytest.raises(ValueError, match="must return a name, not 5"):
        Message(policy="u", payload=HI)


def test_cost_is_exact() -> None:
    assert Usage(cost="0.10").cost == Decimal("0.10")
    assert Usage(cost=Decimal("1E-7")).cost == Decimal("0.0000001")
    for wrong in (0.1, "NaN", "Infinity", "-1", "free", True):
        with pytest.raises(ValidationError, match="A cost is"):
            Usage(cost=wrong)


def test_metadata_is_namespaced() -> None:
    kept = message(metadata={"openai-chat": {"logprobs": None}}).metadata

    assert kept == {"openai-chat": {"logprobs": None}}
    for wrong in ({"a": 1}, {"a": []}, [], "x", {"a": {"b": {1}}}, {"a\x00": {}}):
        with pytest.raises(ValidationError, match="metadata"):
            message(metadata=wrong)


def test_metadata_has_room_for_a_value_of_full_depth() -> None:
    deep: Any = []
    for _ in range(63):
        deep = [deep]

    assert message(metadata={"dialect": {"original": deep}})
    for _ in range(15):
        deep = [deep]
    with pytest.raises(ValidationError, match="nested deeper"):
        message(metadata={"dialect": {"original": deep}})


def test_a_call_is_the_callers_and_a_result_the_options() -> None:
    """OP-005, OP-006, OP-050: the decider's policy on the call, the option's on the result."""
    call = message(policy="planner", payload=OptionCallPayload(invocation_id="i", option_name="search", arguments={}))
    done = message(policy="search", payload=OptionResultPayload(invocation_id="i", option_name="search", result=1))

    assert (call.policy, call.kind, call.invocation_id, call.parts) == ("planner", "option_call", "i", ())
    assert (done.policy, done.kind, done.invocation_id) == ("search", "option_result", "i")
    assert message().invocation_id is None


def test_the_schema_can_be_published() -> None:
    """OP-012: Pydantic's own tools work on it."""
    schema = Message.model_json_schema()

    assert schema["properties"]["payload"]["discriminator"]["propertyName"] == "kind"
    assert schema["properties"]["metadata"]["type"] == "object"
    assert schema["additionalProperties"] is False
    assert "default" not in schema["properties"]["metadata"]
    assert Message.model_json_schema(mode="serialization")


# ---------------------------------------------------------------- immutability


@pytest.fixture
def rich() -> Message:
    return message(
        payload=OptionResultPayload(
            invocation_id="i",
            option_name="o",
            result={"rows": [{"n": 1}]},
            parts=(
                TextPart(text="t", citations=(Citation(title="c"),), metadata={"x": {"y": [1]}}),
                DataPart(data={"d": [1]}),
                MediaPart(modality="image", url="data:,"),
            ),
        ),
        to=("a", "b"),
        metadata={"ns": {"list": [1, 2]}},
        usage=Usage(input_tokens=1),
    )


@pytest.mark.parametrize(
    "change",
    [
        lambda m: setattr(m, "policy", "other"),
        lambda m: setattr(m, "metadata", {}),
        lambda m: setattr(m, "new", 1),
        lambda m: delattr(m, "policy"),
        lambda m: setattr(m.payload, "result", 1),
        lambda m: delattr(m.payload, "result"),
        lambda m: setattr(m.payload.parts[0], "text", "other"),
        lambda m: setattr(m.usage, "input_tokens", 2),
        lambda m: m.payload.result.__setitem__("rows", []),
        lambda m: m.payload.result["rows"].append(1),
        lambda m: m.payload.result["rows"][0].__setitem__("n", 2),
        lambda m: m.payload.parts.append(1),
        lambda m: m.payload.parts.__setitem__(0, 1),
        lambda m: m.payload.parts[0].citations.append(1),
        lambda m: m.payload.parts[0].metadata["x"]["y"].append(2),
        lambda m: m.payload.parts[1].data["d"].append(2),
        lambda m: m.metadata["ns"]["list"].append(3),
        lambda m: m.metadata.__setitem__("other", {}),
        lambda m: m.to.append("c"),
        lambda m: dict(m)["metadata"]["ns"]["list"].append(3),
        lambda m: dict(m.payload)["result"]["rows"].append(1),
        lambda m: next(value for name, value in m.payload if name == "result")["rows"].append(1),
        lambda m: copy.copy(m).payload.result["rows"].append(1),
        lambda m: copy.deepcopy(m).payload.result["rows"].append(1),
        lambda m: m.model_copy(deep=False).payload.result["rows"].append(1),
        lambda m: m.model_copy(update={"policy": "a\x00"}),
        lambda m: m.model_copy(update={"step_num": "x"}),
        lambda m: object.__setattr__(m.payload, "result", 1),
        lambda m: type(m).model_construct(policy="a\x00", payload=m.payload),
        lambda m: m.copy(update={"policy": "a\x00"}),
        lambda m: m.__setstate__({"__dict__": {}}),
        lambda m: type("Mutable", (TextPart,), {}, frozen=False),
        lambda m: type("Larger", (Message,), {"__annotations__": {"extra": int}}),
    ],
)
def test_no_way_leads_into_a_message(rich: Message, change: Any) -> None:
    """OP-002: tried, not declared."""
    before = dumps(rich)

    with pytest.raises((AttributeError, TypeError, ValidationError)):
        change(rich)

    assert dumps(rich) == before


def test_a_dump_is_a_copy_of_a_message(rich: Message) -> None:
    """OP-002: changing a dump does not change the message."""
    before = dumps(rich)

    dumped = rich.model_dump()
    dumped["payload"]["result"]["rows"].append(1)
    dumped["metadata"]["ns"]["list"].clear()

    assert dumps(rich) == before


def test_a_changed_copy_is_another_message(rich: Message) -> None:
    other = rich.model_copy(update={"policy": "other"})

    assert other.policy == "other"
    assert rich.policy == "user"
    assert other.payload == rich.payload
    assert other != rich
    assert rich.copy(update={"policy": "other"}) == other
    rich.model_fields_set.clear()
    assert rich.model_fields_set


def test_there_is_no_unchecked_constructor(rich: Message) -> None:
    assert Message.model_construct(id="m-1", policy="user", payload=HI) == message()


# ---------------------------------------------------------------- equality


@pytest.mark.slow
@given(strategies.messages)
def test_equal_is_by_content_and_hash_by_id(one: Message) -> None:
    other = pickle.loads(pickle.dumps(one))

    assert other == one
    assert other is not one
    assert hash(other) == hash(one) == hash(one.id)
    assert one != one.model_copy(update={"id": one.id + "x"})
    assert copy.copy(one) is one
    assert copy.deepcopy(one) is one


def test_numbers_that_python_calls_equal_are_different_content() -> None:
    one, real, true = (message(payload=PartsPayload(parts=(DataPart(data={"n": n}),))) for n in (1, 1.0, True))

    assert len({dumps(m) for m in (one, real, true)}) == 3
    assert one != real
    assert one != true
    assert real != true
    assert hash(one.payload) != hash(real.payload)


def test_the_order_of_keys_is_kept_but_is_not_content() -> None:
    one = message(metadata={"ns": {"a": 1, "b": 2}})
    other = message(metadata={"ns": {"b": 2, "a": 1}})

    assert one == other
    assert dumps(one) != dumps(other)
    assert hash(one.payload) == hash(other.payload)


def test_different_things_are_not_equal() -> None:
    assert message() != HI
    assert message() != HI
    assert TextPart(text="a") != DataPart(data="a")
    assert message() == message()


def test_the_repr_shows_what_was_said() -> None:
    assert repr(message(step_num=1)) == (
        "Message(id='m-1', policy='user', payload=PartsPayload(parts=(TextPart(text='hi'),)), step_num=1)"
    )


# ---------------------------------------------------------------- size


def test_a_message_of_a_mebibyte_and_one_is_refused() -> None:
    """S8"""
    with pytest.raises(ValidationError, match="more than 1048576: store large content outside"):
        message(payload=PartsPayload(parts=(TextPart(text="a" * (MIB + 1)),)))
    with pytest.raises(ValidationError, match="more than 1048576"):
        message(payload=PartsPayload(parts=tuple(TextPart(text="\x00" * 4096) for _ in range(50))))
    with pytest.raises(ValidationError, match="more than 1048576"):
        message(metadata={"ns": {"text": "a" * MIB}})
    with pytest.raises(ValidationError, match="more than 1048576"):
        message(to=tuple(f"{n:0512d}" for n in range(3000)))
    with pytest.raises(ValidationError, match="more than 1048576"):
        message(usage=Usage(metadata={"ns": {"text": "a" * MIB}}))
    assert message(payload=PartsPayload(parts=(TextPart(text="a" * (MIB - 200)),)))


@pytest.mark.slow
def test_a_photo_is_not_counted_as_text() -> None:
    """A 3 MB photo as a `data:` URL is fine; 33 MiB of them are not."""
    photo = MediaPart(modality="image", url="data:image/jpeg;base64," + "A" * 4_000_000)

    assert message(payload=PartsPayload(parts=(photo,)))
    assert message(payload=OptionResultPayload(invocation_id="i", option_name="o", parts=(photo,)))
    with pytest.raises(ValidationError, match="data: URLs of the message .* upload the file"):
        message(payload=PartsPayload(parts=(photo,) * 9))


@pytest.mark.slow
@given(strategies.messages, st.booleans())
def test_a_rough_look_never_finds_a_message_lighter_than_it_is(message: Message, looked_at: bool) -> None:
    """Else a message over the limit could go unmeasured."""
    if looked_at:
        repr(message)

    for model in (message.payload, *message.parts):
        assert len(house_bytes(model)) <= model.__weight__()


def test_the_rough_look_is_enough_for_what_is_said_every_day() -> None:
    call = OptionCallPayload(invocation_id="i", option_name="o", arguments={"q": "x" * 1000})
    result = OptionResultPayload(invocation_id="i", option_name="o", result=["x" * 1000])

    assert all(is_surely_small(message(payload=payload)) for payload in (HI, call, result))
    assert not is_surely_small(message(payload=PartsPayload(parts=(TextPart(text="x" * 100_000),))))


def test_other_limits_hold_where_they_are_set() -> None:
    small = Limits(message_bytes=120, data_url_bytes=20)

    with use_limits(small):
        with pytest.raises(ValidationError, match="more than 120"):
            message(policy="x" * 90)
        with pytest.raises(ValidationError, match="more than 20"):
            Message(id="1", policy="u", payload=PartsPayload(parts=(MediaPart(modality="image", url="data:," + "A" * 20),)))
    assert message(policy="x" * 90)


@pytest.mark.slow
@given(strategies.messages)
def test_what_is_called_small_is_small(one: Message) -> None:
    """The quick look at the size may doubt, and must never be wrong."""
    from antiphon.messages._message import is_surely_small

    if is_surely_small(one):
        assert len(dumps(one)) < MIB


def test_a_message_of_many_small_pieces_is_measured() -> None:
    """Small texts in small parts add up."""
    many = Citation(url="\0" * 4096, title="\0" * 4096, source="\0" * 4096, quote="\0" * 4096)

    with pytest.raises(ValidationError, match="more than 1048576"):
        message(payload=PartsPayload(parts=(TextPart(text="x", citations=(many,) * 8),) * 8))


def test_limits_say_what_is_possible() -> None:
    for depth in (0, 201):
        with pytest.raises(ValueError, match="depth must be 1 to 200"):
            Limits(depth=depth)
    with pytest.raises(ValueError, match="not negative"):
        Limits(nodes=-1)


@pytest.mark.slow
def test_the_first_messages_may_be_made_by_many_threads_at_once() -> None:
    """Schemas are built when first used, which must be safe in any order of threads."""
    code = """
import sys, threading
from antiphon import Message, PartsPayload, TextPart, dumps, loads
sys.setswitchinterval(1e-6)
start, good = threading.Barrier(16), []
def make():
    start.wait()
    message = Message(policy="a", payload=PartsPayload(parts=(TextPart(text="x"),)))
    good.append(loads(dumps(message)) == message)
threads = [threading.Thread(target=make) for _ in range(16)]
for thread in threads: thread.start()
for thread in threads: thread.join()
assert good == [True] * 16, good
"""
    subprocess.run([sys.executable, "-c", code], check=True)
