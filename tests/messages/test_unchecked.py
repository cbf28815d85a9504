"""The unchecked way in makes what the constructors make, and the quick looks show what the views show."""

import inspect
import pickle
from collections.abc import Callable
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
    use_port,
)
from antiphon.messages import _unchecked as unchecked
from antiphon.messages._model import Model
from antiphon.messages._unchecked import EMPTY, house_bytes, json_bytes_of, json_text_of, plain_of
from antiphon.testing import CountingPort

MAKERS: dict[type[Model], Callable[..., Model]] = {
    Citation: unchecked.citation,
    DataPart: unchecked.data_part,
    ForeignPart: unchecked.foreign_part,
    MediaPart: unchecked.media_part,
    Message: unchecked.message,
    OptionCallPayload: unchecked.option_call_payload,
    OptionResultPayload: unchecked.option_result_payload,
    PartsPayload: unchecked.parts_payload,
    ReasoningPart: unchecked.reasoning_part,
    TextPart: unchecked.text_part,
    Usage: unchecked.usage,
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
        made = unchecked.message("user", unchecked.parts_payload(()))

    assert made == checked


@pytest.mark.parametrize("empty", [{}, EMPTY], ids=["parsed", "kept"])
def test_empty_metadata_and_arguments_are_left_out_as_ever(empty: Any) -> None:
    call = unchecked.option_call_payload("i", "o", empty)

    assert dumps(unchecked.message("p", call, id="m", metadata=empty)) == dumps(
        Message(id="m", policy="p", payload=OptionCallPayload(invocation_id="i", option_name="o", arguments={}))
    )


def test_an_unchecked_value_cannot_be_changed() -> None:
    part = unchecked.data_part({"a": [1]})

    with pytest.raises(ValidationError, match="frozen"):
        part.data = 1  # type: ignore[misc]
    with pytest.raises(TypeError):
        part.data["a"] = 1  # type: ignore[index, call-overload]


def test_the_unchecked_way_in_is_not_beside_the_checked_one() -> None:
    assert not set(unchecked.__all__) & set(antiphon.messages.__all__)


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
