"""Values that the runtime makes without the constructors equal theirs, and the same input is refused."""

from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from antiphon.ledger import Record
from antiphon.messages import Limits, Message, OptionCallPayload, OptionResultPayload, dumps, use_limits
from antiphon.messages.trusted import quick_call, quick_message, quick_result
from antiphon.protocol import Restart
from antiphon.runtime._delivery import DeliveryState, Envelope

NAMES = st.one_of(
    st.sampled_from(["worker/1", "", " a", "a ", "a b", "ümlaut", "u\u0308mlaut", "a\u200bb", "x" * 512, "x" * 513]),
    st.text(max_size=8),
)
VALUES = st.recursive(
    st.one_of(st.none(), st.booleans(), st.integers(), st.floats(), st.text(max_size=8)),
    lambda inner: st.one_of(st.lists(inner, max_size=3), st.dictionaries(st.text(max_size=4), inner, max_size=3)),
    max_leaves=8,
)
OBJECTS = st.dictionaries(st.text(max_size=4), VALUES, max_size=3)


def made(make: Callable[[], Any]) -> tuple[Any, bytes] | None:
    """Return what was made and how it is written; None if it is refused."""
    try:
        value = make()
    except ValidationError:
        return None
    message = value if isinstance(value, Message) else Message(id="m", policy="p", payload=value)
    return value, dumps(message)


@given(NAMES, NAMES, OBJECTS)
def test_a_call_is_what_the_constructor_makes_of_it(invocation: str, option: str, arguments: dict[str, Any]):
    assert made(lambda: quick_call(invocation, option, arguments)) == made(
        lambda: OptionCallPayload(invocation_id=invocation, option_name=option, arguments=arguments)
    )


@given(NAMES, NAMES, VALUES)
def test_a_result_is_what_the_constructor_makes_of_it(invocation: str, option: str, result: Any):
    assert made(lambda: quick_result(invocation, option, result)) == made(
        lambda: OptionResultPayload(invocation_id=invocation, option_name=option, result=result)
    )


@given(NAMES, NAMES, NAMES, st.lists(NAMES, max_size=2), st.one_of(st.none(), NAMES))
def test_a_message_is_what_the_constructor_makes_of_it(
    id: str, policy: str, thread: str, to: list[str], correlation: str | None
):
    payload = OptionCallPayload(invocation_id="i", option_name="o", arguments={})
    fields: dict[str, Any] = {
        "id": id,
        "thread_id": thread,
        "to": tuple(to),
        "lane": "control",
        "correlation_id": correlation,
        "created_at": datetime(2026, 1, 1, tzinfo=UTC),
        "metadata": {"antiphon": {"hops": 1}},
    }
    assert made(lambda: quick_message(policy, payload, **fields)) == made(
        lambda: Message(policy=policy, payload=payload, **fields)
    )


def test_changing_the_given_value_does_not_change_the_payload():
    arguments: dict[str, Any] = {"to": ["Oslo"]}
    call, result = quick_call("i", "o", arguments), quick_result("i", "o", arguments)
    arguments["to"].append("Bergen")
    assert call.arguments == {"to": ["Oslo"]}
    assert result.result == {"to": ["Oslo"]}


def test_narrower_limits_hold_for_what_the_runtime_says():
    deep: dict[str, Any] = {"a": {"b": {"c": {"d": 1}}}}
    with use_limits(Limits(depth=2)):
        for make in (quick_call, quick_result):
            with pytest.raises(ValidationError, match="deep"):
                make("i", "o", deep)
    with use_limits(Limits(message_bytes=200)), pytest.raises(ValidationError):
        quick_message("p", quick_call("i", "o", {"text": "x" * 300}))


def test_an_envelope_is_frozen_and_what_the_ledger_redacts_gets_another() -> None:
    """The value stays what was said; the delivery goes on with the message that was stored."""
    envelope = Envelope(Restart(actor_id="a/1", reason="sk-secret"), None, "me", "a/1", "r1", "t")
    delivery = DeliveryState(envelope)
    with pytest.raises(AttributeError):
        envelope.to = "b/1"
    said = delivery.message
    stored = said.model_copy(update={"payload": quick_call("r1", Restart.message_type, {"actor_id": "a/1"})})
    delivery.use_stored(Record(7, b"", "", datetime(2026, 1, 1, tzinfo=UTC), stored))
    assert (delivery.message, delivery.seq, delivery.type) == (stored, 7, Restart.message_type)
    assert delivery.envelope == envelope._replace(said=None, message=stored)
    assert envelope.said is not None
