"""What every provider's dialect promises for any conversation: valid there, the same every time, stable as it grows."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.dialects.conversations import conversations, orderly
from tests.providers.types import as_request, problems

from antiphon import Conversation, Message, PartsPayload, TextPart, check, decode, encode
from antiphon.dialects import Projection, meaning
from antiphon.messages._json_values import canonical

PROVIDERS = ("openai-chat", "openai-responses", "anthropic-messages", "gemini", "pydantic-ai")
NOTHING_SAID = frozenset({"AP305"})


@pytest.mark.slow
@pytest.mark.parametrize("name", PROVIDERS)
@given(conversation=conversations())
def test_the_written_data_has_the_types_of_the_sdk(name: str, conversation: Conversation) -> None:
    value = encode(conversation, name).value

    assert problems(name, "request", as_request(name, value)) == []


@pytest.mark.slow
@pytest.mark.parametrize("name", PROVIDERS)
@given(conversation=conversations())
def test_the_written_data_breaks_no_rule_of_the_service(name: str, conversation: Conversation) -> None:
    value = encode(conversation, name).value
    errors = [finding for finding in check(decode(value, name), name) if finding.severity == "error"]

    assert [finding for finding in errors if finding.code not in NOTHING_SAID] == [], value


@pytest.mark.slow
@pytest.mark.parametrize("name", PROVIDERS)
@given(conversation=conversations())
def test_the_written_data_is_read_and_written_again_the_same(name: str, conversation: Conversation) -> None:
    encoded = encode(conversation, name)
    back = decode(encoded.value, name, aliases=encoded.aliases)
    again = encode(back, name)

    assert canonical(again.value) == canonical(encoded.value)
    assert again.losses == ()


@pytest.mark.slow
@pytest.mark.parametrize("name", PROVIDERS)
@given(conversation=conversations())
def test_a_longer_history_begins_like_a_shorter_one(name: str, conversation: Conversation) -> None:
    """Between cuts with no open call, and none through a turn."""
    whole = _history(encode(conversation, name).value)
    for end in range(len(conversation)):
        begun = conversation[:end]
        if not _is_cut(conversation, begun):
            shorter = _history(encode(begun, name).value)
            assert canonical(whole[: len(shorter)]) == canonical(shorter)


def _history(value: Any) -> list[Any]:
    """The list of units in a body, or the list itself."""
    if isinstance(value, list):
        return value
    return next(value[key] for key in ("messages", "input", "contents") if key in value)


def _is_cut(conversation: Conversation, begun: Conversation) -> bool:
    after = conversation[len(begun) :]
    later = {message.turn_id for message in after} - {None}
    invocations = {message.invocation_id for message in after} - {None}
    return any(message.turn_id in later or message.invocation_id in invocations for message in begun)


@pytest.mark.slow
@pytest.mark.parametrize("name", PROVIDERS)
@given(conversation=conversations(), data=st.data())
def test_a_projection_writes_what_encode_writes(name: str, conversation: Conversation, data: st.DataObject) -> None:
    """However the conversation grows, shrinks or changes between."""
    projection = Projection(name)
    for _ in range(3):
        end = data.draw(st.integers(min_value=0, max_value=len(conversation)))
        begun = conversation[:end]
        assert projection.encode(begun) == encode(begun, name)
    grown = conversation.append(Message(policy="user", payload=PartsPayload(parts=(TextPart(text="more"),))))
    assert projection.encode(conversation) == encode(conversation, name)
    assert projection.encode(grown) == encode(grown, name)


@pytest.mark.slow
@pytest.mark.parametrize("name", PROVIDERS)
@given(conversation=orderly())
def test_losses_are_what_does_not_come_back(name: str, conversation: Conversation) -> None:
    """In a history that is in order every message comes back in its place, and the facets that differ are the losses."""
    encoded = encode(conversation, name)
    back = decode(encoded.value, name, aliases=encoded.aliases)
    differing = {
        (message.id, facet)
        for message, ours, theirs in zip(conversation, meaning(conversation), meaning(back), strict=True)
        for facet in {*ours, *theirs}
        if ours.get(facet) != theirs.get(facet)
    }

    assert {(loss.message_id, loss.what) for loss in encoded.losses if loss.message_id is not None} == differing
    assert not differing & {
        (message.id, what) for message in conversation for what in ("call", "arguments", "answers", "turn")
    }
