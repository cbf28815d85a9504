"""Declaring one's own types: a class writes the row, and everything knows the type from then on."""

from typing import Literal

import pytest

from antiphon.protocol import Message, Notice, Reply, Request, validate_message
from antiphon.protocol._catalogue import CATALOGUE
from antiphon.protocol._messages import find_entry


class Translated(Reply, frozen=True, type="TEST_TRANSLATED"):
    text: str
    status: Literal["done"] = "done"


class Translate(Request[Translated], frozen=True, type="TEST_TRANSLATE", family="language"):
    text: str
    to: str | None = None


class Count(Reply, frozen=True):
    count: int


class CountWords(Request[Count], frozen=True, type="TEST_COUNT"):
    text: str


class Spoken(Notice, frozen=True, type="TEST_SPOKEN"):
    text: str


def test_a_declared_type_is_known_everywhere() -> None:
    """CH-042"""
    entry = find_entry("TEST_TRANSLATE")
    message = Translate(text="hello").to_message(sender="a", receiver="b", correlation_id="c")

    assert entry is not None
    assert (entry.family, entry.data, entry.response_type, entry.response) == (
        "language",
        Translate,
        "TEST_TRANSLATED",
        Translated,
    )
    assert message.get_response_type() == "TEST_TRANSLATED"
    assert (message.sender, message.receiver, message.correlation_id) == ("a", "b", "c")
    assert Translated(text="hallo").to_response(message).data == {"text": "hallo", "status": "done"}
    with pytest.raises(ValueError, match="^TEST_TRANSLATE message must contain 'text' field$"):
        validate_message(Message(type="TEST_TRANSLATE"))
    with pytest.raises(ValueError, match="^TEST_TRANSLATED message must contain 'status' field$"):
        validate_message(Message(type="TEST_TRANSLATED", data={"text": ""}))


def test_the_catalogue_stays_that_of_the_protocol() -> None:
    assert not [entry.type for entry in CATALOGUE if entry.type.startswith("TEST_")]


def test_a_reply_without_a_type_takes_the_one_that_the_request_gives() -> None:
    message = CountWords(text="one two").to_message()
    response = Count(count=2).to_response(message)

    assert response.type == "TEST_COUNT_RESPONSE"
    assert Count.from_response(response) == Count(count=2)
    with pytest.raises(ValueError, match="^TEST_COUNT_RESPONSE message must contain 'count' field$"):
        validate_message(message.reply())
    with pytest.raises(ValueError, match="^Count message must contain 'count' field$"):
        Count.from_data({})


def test_a_notice_is_due_no_answer() -> None:
    entry = find_entry("TEST_SPOKEN")

    assert entry is not None
    assert (entry.family, entry.response_type, entry.response) == ("other", None, None)
    assert Spoken.from_message(Spoken(text="hi").to_message()) == Spoken(text="hi")


def test_a_type_is_declared_once() -> None:
    with pytest.raises(TypeError, match=r"^STOP is the type of antiphon.protocol._catalogue.Stop; choose another for "):

        class _MyStop(Notice, frozen=True, type="STOP"):
            pass


def test_the_same_class_may_be_declared_again() -> None:
    """As a notebook does when a cell is run twice."""
    for _ in range(2):

        class Again(Notice, frozen=True, type="TEST_AGAIN"):
            pass

        entry = find_entry("TEST_AGAIN")
        assert entry is not None
        assert entry.data is Again


@pytest.mark.parametrize("base", [Notice, Request[Reply], Request])
def test_a_sent_message_needs_a_type(base: type) -> None:
    with pytest.raises(TypeError, match=r"^Untyped needs a type: declare it with type='…'"):
        type("Untyped", (base,), {"__module__": __name__})


def test_a_subclass_says_the_same_type() -> None:
    class Whispered(Spoken, frozen=True):
        volume: int

    assert Whispered(text="hi", volume=1).to_message().type == "TEST_SPOKEN"
    entry = find_entry("TEST_SPOKEN")
    assert entry is not None
    assert entry.data is Spoken


def test_a_request_that_names_no_reply_takes_any() -> None:
    class Ask(Request, frozen=True, type="TEST_ASK"):  # type: ignore[type-arg]
        pass

    assert Ask.reply_class() is Reply
    assert Ask().to_message().get_response_type() == "TEST_ASK_RESPONSE"
