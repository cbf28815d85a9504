"""The check that we ship for dialects finds what it is there to find."""

from typing import Any

import pytest

from antiphon import Conversation
from antiphon.dialects import Encoded, Loss, get
from antiphon.testing import check_dialect

TALK = [
    {"role": "user", "content": "one", "message_id": "1"},
    {"role": "assistant", "content": "two", "message_id": "2", "extra": {"deep": [{}]}},
]


class Marsys:
    """A dialect as it should be; each test breaks one thing."""

    name = "marsys"
    summary = "MARSYS"

    def decode(self, data: Any) -> Conversation:
        return get("marsys").decode(data)

    def encode(self, conversation: Conversation, **options: Any) -> Encoded:
        return get("marsys").encode(conversation)

    def recognise(self, data: Any) -> str | None:
        return None


def test_a_good_dialect_passes() -> None:
    check_dialect(Marsys(), [TALK, TALK[0], []])


def test_other_data_is_noticed() -> None:
    class Broken(Marsys):
        def encode(self, conversation: Conversation, **options: Any) -> Encoded:
            return Encoded([{**unit, "content": "?"} for unit in super().encode(conversation).value])

    with pytest.raises(AssertionError, match="marsys does not give back the same data"):
        check_dialect(Broken(), [TALK])


def test_a_loss_of_its_own_words_is_noticed() -> None:
    class Broken(Marsys):
        def encode(self, conversation: Conversation, **options: Any) -> Encoded:
            return Encoded(super().encode(conversation).value, (Loss("1", "text", "why"),))

    with pytest.raises(AssertionError, match="loses its own words"):
        check_dialect(Broken(), [TALK])


def test_a_dropped_key_is_noticed() -> None:
    class Broken(Marsys):
        def decode(self, data: Any) -> Conversation:
            return super().decode([{key: value for key, value in unit.items() if key != "x-not-known"} for unit in data])

    with pytest.raises(AssertionError, match="does not give back an unknown key"):
        check_dialect(Broken(), [TALK])


def test_an_edit_that_spreads_is_noticed() -> None:
    class Broken(Marsys):
        def encode(self, conversation: Conversation, **options: Any) -> Encoded:
            units = super().encode(conversation).value
            edited = any("(edited)" in unit["content"] for unit in units)
            return Encoded([{**unit, "seen": True} for unit in units] if edited else units)

    with pytest.raises(AssertionError, match="an edit of message '1' changed more than itself"):
        check_dialect(Broken(), [TALK])


def test_meaning_hidden_in_the_namespace_is_noticed() -> None:
    class Broken(Marsys):
        def decode(self, data: Any) -> Conversation:
            plain = super().decode(data)
            notes = {"metadata": {"marsys": {"text": "hidden"}}}
            return Conversation([message.model_copy(update=notes) for message in plain])

        def encode(self, conversation: Conversation, **options: Any) -> Encoded:
            units = get("marsys").encode(conversation).value
            kept = [bool(message.metadata) for message in conversation]
            return Encoded([unit if keep else {**unit, "content": ""} for unit, keep in zip(units, kept, strict=True)])

    plain = [{"role": "user", "content": "one", "message_id": "1"}]
    with pytest.raises(AssertionError, match="in its namespace|does not give back"):
        check_dialect(Broken(), [plain])
    from antiphon.testing._conformance import _check_meaning

    with pytest.raises(AssertionError, match="keeps text of '1' in its namespace"):
        _check_meaning(Broken(), plain)


def test_a_beginning_that_depends_on_the_end_is_noticed() -> None:
    class Broken(Marsys):
        def encode(self, conversation: Conversation, **options: Any) -> Encoded:
            units = super().encode(conversation).value
            return Encoded(units if len(units) != 1 else [{**units[0], "alone": True}])

    with pytest.raises(AssertionError, match="written differently when more follow"):
        check_dialect(Broken(), [TALK])
