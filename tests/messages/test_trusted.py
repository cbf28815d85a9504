"""The unchecked way in makes what the constructors make, and the quick looks show what the views show."""

import inspect
import pickle
from collections.abc import Callable
from datetime import UTC, datetime, timedelta, timezone
from typing import Any

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import BaseModel, ValidationError
from tests import strategies

import antiphon
from antiphon import Message, dumps, loads
from antiphon.messages import (
    Citation,
    DataPart,
    ForeignPart,
    MediaPart,
    OptionCallPayload,
    OptionResultPayload,
    PartsPayload,
    ReasoningPart,
    TextPart,
    Usage,
    thaw,
    trusted,
    use_port,
)
from antiphon.messages._model import Model
from antiphon.messages.trusted import EMPTY, house_bytes, json_bytes_of, json_text_of, plain_of
from antiphon.testing import CountingPort

MAKERS: dict[type[Model], Callable[..., Model]] = {
    Citation: trusted.citation,
    DataPart: trusted.data_part,
    ForeignPart: trusted.foreign_part,
    MediaPart: trusted.media_part,
    Message: trusted.message,
    OptionCallPayload: trusted.option_call_payload,
    OptionResultPayload: trusted.option_result_payload,
    PartsPayload: trusted.parts_payload,
    ReasoningPart: trusted.reasoning_part,
    TextPart: trusted.text_part,
    Usage: trusted.usage,
}
JSON_FIELDS = {"arguments", "result", "data", "value", "metadata"}
SLOTS = ("__dict__", "__pydantic_extra__", "__pydantic_private__")


def again(value: Any, as_text: bool) -> Any:
    """The same value, made the unchecked way from the inside out; JSON parsed, or as the text that is kept."""
    if isinstance(value, tuple):
        return tuple(again(each, as_text) for each in value)
    if not isinstance(value, Model):
        return value
    fields = {
        name: kept_form(value, name, as_text) if name in JSON_FIELDS else again(field, as_text)
        for name, field in value.__dict__.items()
        if name != "kind"
    }
    return MAKERS[type(value)](**fields)


def kept_form(model: Model, name: str, as_text: bool) -> Any:
    kept = model.__dict__[name]
    if kept is EMPTY or as_text:
        return kept
    return thaw(getattr(model, name))


def all_given(model: Model) -> Model:
    """The same value by the constructor, every field given."""
    return type(model)(**dict(model))


def models_in(message: Message) -> list[Model]:
    cited = [citation for part in message.parts if isinstance(part, TextPart) for citation in part.citations]
    used = [] if message.usage is None else [message.usage]
    return [message, message.payload, *message.parts, *cited, *used]


@pytest.mark.slow
@pytest.mark.parametrize("as_text", [True, False])
@given(message=strategies.messages)
def test_an_unchecked_value_equals_that_of_the_constructor(as_text: bool, message: Message) -> None:
    made = again(message, as_text)

    assert made == message
    assert dumps(made) == dumps(message)
    assert made.model_dump() == message.model_dump()
    assert made.model_dump_json() == message.model_dump_json()
    assert repr(made) == repr(message)
    for mine, theirs in zip(models_in(made), models_in(message), strict=True):
        assert type(mine) is type(theirs)
        assert mine == theirs
        assert hash(mine) == hash(theirs)
        assert mine.model_fields_set == all_given(theirs).model_fields_set
        assert mine.model_dump(exclude_unset=True) == theirs.model_dump()


@pytest.mark.slow
@given(strategies.messages)
def test_an_unchecked_value_is_accepted_by_loads(message: Message) -> None:
    made = again(message, False)

    assert loads(dumps(made)) == message
    assert pickle.loads(pickle.dumps(made)) == message
    assert made.model_copy(update={"policy": "other"}).policy == "other"


@pytest.mark.slow
@given(strategies.messages)
def test_pydantic_puts_into_an_instance_what_it_puts_there_itself(message: Message) -> None:
    """Pins what Pydantic does inside: if a release has another slot, or fills one otherwise, this fails."""
    assert set(BaseModel.__slots__) == {*SLOTS, "__pydantic_fields_set__"}
    for mine, theirs in zip(models_in(again(message, True)), models_in(message), strict=True):
        assert list(mine.__dict__) == list(theirs.__dict__) == list(type(theirs).model_fields)
        assert type(mine.__pydantic_fields_set__) is set
        assert all(type(getattr(mine, slot)) is type(getattr(theirs, slot)) for slot in SLOTS)


@pytest.mark.parametrize(("cls", "maker"), MAKERS.items(), ids=lambda each: each.__name__)
def test_an_unchecked_maker_takes_the_fields_of_its_class(cls: type[Model], maker: Callable[..., Model]) -> None:
    """A field that is added to a model, or gets another default, cannot be forgotten here."""
    parameters = inspect.signature(maker).parameters
    fields = {name: field for name, field in cls.model_fields.items() if name != "kind"}

    assert parameters.keys() == fields.keys()
    for name, field in fields.items():
        default = parameters[name].default
        assert (default is inspect.Parameter.empty) == field.is_required()
        if field.default_factory is None and not field.is_required():
            assert default == field.default


def test_without_an_id_an_unchecked_message_gets_one_from_the_port() -> None:
    with use_port(CountingPort()):
        checked = Message(policy="user", payload=PartsPayload(parts=()))
    with use_port(CountingPort()):
        made = trusted.message("user", trusted.parts_payload(()))

    assert made == checked


@pytest.mark.parametrize("empty", [{}, EMPTY], ids=["parsed", "kept"])
def test_empty_metadata_and_arguments_are_left_out_as_ever(empty: Any) -> None:
    call = trusted.option_call_payload("i", "o", empty)

    assert dumps(trusted.message("p", call, id="m", metadata=empty)) == dumps(
        Message(id="m", policy="p", payload=OptionCallPayload(invocation_id="i", option_name="o", arguments={}))
    )


def test_an_unchecked_value_cannot_be_changed() -> None:
    part = trusted.data_part({"a": [1]})

    with pytest.raises(ValidationError, match="frozen"):
        part.data = 1  # type: ignore[misc]
    with pytest.raises(TypeError):
        part.data["a"] = 1  # type: ignore[index, call-overload]


def test_the_unchecked_way_in_is_not_beside_the_checked_one() -> None:
    assert "trusted" not in antiphon.messages.__all__
    assert not set(trusted.__all__) & set(antiphon.messages.__all__)


# ---------------------------------------------------------------- quick looks


@given(strategies.json_values, st.booleans())
def test_the_text_of_a_field_is_its_compact_json_looked_at_or_not(value: Any, looked_at: bool) -> None:
    part = DataPart(data=value)
    if looked_at:
        assert part.data == value

    text = json_text_of(part, "data")

    assert text.encode() == json_bytes_of(part, "data")
    assert b'{"kind":"data","data":%b}' % json_bytes_of(part, "data") == house_bytes(part)


def test_asking_for_the_text_of_a_field_does_not_parse_it() -> None:
    part = DataPart(data={"a": [None, "é"]})

    assert json_text_of(part, "data") == '{"a":[null,"é"]}'
    assert json_bytes_of(part, "data") is part.__dict__["data"]
    assert json_text_of(part, "metadata") == "{}"


@given(strategies.json_values)
def test_a_plain_field_is_what_the_view_shows(value: Any) -> None:
    part = DataPart(data=value)

    found = plain_of(part, "data")

    assert repr(found) == repr(value)
    assert plain_of(part, "data") is found
    assert part.data == value
    assert house_bytes(part) == house_bytes(DataPart(data=value))


def test_a_plain_empty_field_stays_empty() -> None:
    part = DataPart(data=1)

    assert plain_of(part, "metadata") == part.metadata == {}
    assert part.__dict__["metadata"] is EMPTY
    assert orjson.loads(house_bytes(part)) == {"kind": "data", "data": 1}


# ---------------------------------------------------------------- quick, and checked

SAID = PartsPayload(parts=(TextPart(text="hello"),))


class Name(str):
    """A text of a class of its own, as an enumeration has: the constructor decides about it."""


QUICK: list[dict[str, Any]] = [
    {},
    {"id": "m", "thread_id": "t", "to": ("a/1",), "lane": "control", "parent_id": "p"},
    {"correlation_id": "c", "in_reply_to": "r", "metadata": {"antiphon": {"hops": 2}}},
    {"id": "m", "to": ("a/1", "b/1")},  # the constructor makes it
    {"created_at": datetime(2026, 1, 2, tzinfo=timezone(timedelta(hours=1)))},  # the constructor turns it into UTC
    {"created_at": datetime(2026, 1, 2, tzinfo=UTC)},
    {"id": "two words", "parent_id": "é"},
    {"id": "m" * 400, "thread_id": "t" * 400},  # longer than a name together, not each
    {"id": Name("m"), "thread_id": "t"},
]


@pytest.mark.parametrize("fields", QUICK, ids=str)
def test_a_quick_message_is_what_the_constructor_makes(fields: dict[str, Any]) -> None:
    with use_port(CountingPort()):
        quick = trusted.quick_message("me", SAID, **fields)
    with use_port(CountingPort()):
        checked = Message(policy="me", payload=SAID, lane=fields.pop("lane", "effect"), **fields)

    assert quick == checked
    assert dumps(quick) == dumps(checked)
    assert quick.id == checked.id


@pytest.mark.parametrize(
    "fields",
    [{"id": ""}, {"id": " m"}, {"id": 1}, {"id": "m" * 513}, {"thread_id": "a\nb"}, {"to": ("",)}, {"parent_id": "\u200b"}],
    ids=lambda fields: str(fields)[:40],
)
def test_a_quick_message_with_a_malformed_name_is_refused(fields: dict[str, Any]) -> None:
    with pytest.raises(ValidationError):
        trusted.quick_message("me", SAID, **fields)


@pytest.mark.parametrize("value", [{}, {"a": [1, {"b": None}]}, {"text": "x" * 5000}])
def test_quick_payloads_are_what_the_constructors_make(value: Any) -> None:
    assert trusted.quick_call("i", "o", value) == OptionCallPayload(invocation_id="i", option_name="o", arguments=value)
    assert trusted.quick_result("i", "o", value) == OptionResultPayload(invocation_id="i", option_name="o", result=value)


@pytest.mark.parametrize("value", ["text", 1, None, [1, 2]])
def test_a_quick_result_may_be_any_json(value: Any) -> None:
    assert trusted.quick_result("i", "o", value) == OptionResultPayload(invocation_id="i", option_name="o", result=value)


@pytest.mark.parametrize("value", [{"a": object()}, {"a": float("nan")}, {1: "a"}])
def test_a_quick_payload_that_is_no_json_is_refused(value: Any) -> None:
    with pytest.raises(ValidationError):
        trusted.quick_call("i", "o", value)
    with pytest.raises(ValidationError):
        trusted.quick_result("i", "o", value)


def test_a_quick_payload_with_a_malformed_name_is_refused() -> None:
    with pytest.raises(ValidationError):
        trusted.quick_call("", "o", {})
    with pytest.raises(ValidationError):
        trusted.quick_result("i", " o", {})
