"""What every dialect promises, held against every dialect there is."""

from collections.abc import Sequence
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

import pytest
from hypothesis import given
from tests.dialects.conversations import conversations
from tests.dialects.samples import SAMPLES

from antiphon import Conversation, Message, PartsPayload, TextPart, dumps
from antiphon.dialects import decode, encode, get, meaning, names
from antiphon.dialects._unit_dialect import UnitDialect, Writing
from antiphon.messages._json_values import canonical
from antiphon.testing import check_dialect


def differences(one: Conversation, other: Conversation) -> set[tuple[int, str]]:
    """The facets that two conversations do not have in common, by place."""
    first, second = meaning(one), meaning(other)
    longest = max(len(first), len(second))
    pairs = [((*first, *({},) * longest)[place], (*second, *({},) * longest)[place]) for place in range(longest)]
    return {
        (place, facet)
        for place, (ours, theirs) in enumerate(pairs)
        for facet in {*ours, *theirs}
        if ours.get(facet) != theirs.get(facet)
    }


@pytest.mark.slow
@pytest.mark.parametrize("name", ["house", *SAMPLES])
@given(conversation=conversations())
def test_exactly_the_losses_are_reported(name: str, conversation: Conversation) -> None:
    """For any conversation: the differences in `meaning` after a round trip are the losses."""
    dialect = get(name)
    encoded = dialect.encode(conversation)
    back = dialect.decode(encoded.value)
    places = {m.id: place for place, m in enumerate(m for m in conversation if m.lane != "effect")}
    reported = {(places[loss.message_id], loss.what) for loss in encoded.losses if loss.message_id is not None}

    assert differences(conversation, back) == reported, dumps(conversation).decode()
    assert all(loss.reason for loss in encoded.losses)


@pytest.mark.parametrize("name", SAMPLES)
def test_every_dialect_keeps_its_promises_on_samples(name: str) -> None:
    """Together, one by one, and alone."""
    units = SAMPLES[name]

    check_dialect(get(name), [units, [], *([unit] for unit in units), *units])


@pytest.mark.parametrize(("source", "target"), [(s, t) for s in SAMPLES for t in SAMPLES if s != t])
def test_every_pair_reports_exactly_what_it_loses(source: str, target: str) -> None:
    conversation = decode(SAMPLES[source], source)
    encoded = encode(conversation, target)
    places = {message.id: place for place, message in enumerate(conversation)}
    reported = {(places[loss.message_id], loss.what) for loss in encoded.losses if loss.message_id is not None}
    extras = {(place, what) for place, what in reported if what == "extras"}  # keys of one format, which `meaning` leaves out

    assert differences(conversation, decode(encoded.value, target)) == reported - extras


@pytest.mark.slow
@pytest.mark.parametrize("name", names())
@given(conversation=conversations())
def test_an_encoded_conversation_is_a_fixed_point(name: str, conversation: Conversation) -> None:
    """What a dialect has written, it reads and writes again the same, without a loss."""
    value = encode(conversation, name).value
    again = encode(decode(value, name), name)

    assert canonical(again.value) == canonical(value)
    assert not again.losses


@pytest.mark.parametrize("name", SAMPLES)
def test_a_writer_cannot_forget_to_report_a_loss(name: str) -> None:
    """G3: nothing is lost in silence, even if a writer drops the time of each message: losses are measured."""
    dialect = get(name)
    assert isinstance(dialect, UnitDialect)

    def forgetful(group: Sequence[Message], writing: Writing) -> dict[str, Any]:
        return {key: value for key, value in dialect.write(group, writing).items() if key != "timestamp"}

    said = Message(
        policy="user", payload=PartsPayload(parts=(TextPart(text="hi"),)), created_at=datetime(2026, 1, 2, tzinfo=UTC)
    )
    conversation = Conversation([said])

    assert "time" not in [loss.what for loss in dialect.encode(conversation).losses]
    assert "time" in [loss.what for loss in replace(dialect, write=forgetful).encode(conversation).losses]
