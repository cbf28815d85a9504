"""The state of a delivery."""

from datetime import UTC, datetime

import pytest

from antiphon.ledger import Record
from antiphon.messages import OptionCallPayload
from antiphon.protocol import Restart
from antiphon.runtime._delivery import DeliveryState, Envelope


def test_an_envelope_is_frozen_and_what_the_ledger_redacts_gets_another() -> None:
    """The value stays what was said; the delivery goes on with the message that was stored."""
    envelope = Envelope(Restart(actor_id="a/1", reason="sk-secret"), None, "me", "a/1", "r1", "t")
    delivery = DeliveryState(envelope, may_be_known=False)
    with pytest.raises(AttributeError):
        envelope.to = "b/1"
    sent = delivery.message
    payload = OptionCallPayload(invocation_id="r1", option_name=Restart.message_type, arguments={"actor_id": "a/1"})
    stored = sent.model_copy(update={"payload": payload})
    delivery.use_stored(Record(7, b"", "", datetime(2026, 1, 1, tzinfo=UTC), stored))
    assert (delivery.message, delivery.seq, delivery.type) == (stored, 7, Restart.message_type)
    assert delivery.envelope == envelope._replace(request=None, message=stored)
    assert envelope.request is not None
