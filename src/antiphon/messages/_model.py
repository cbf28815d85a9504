"""The base of every value in the core: a frozen Pydantic model with private JSON, compared by its house form.

A field annotated `JsonField(...)` stores its value in the instance's `__dict__`, in the form that `_json_values.own` returns.
Reading the attribute goes through a descriptor that returns a frozen view. Validation and `model_dump` use `__dict__`, so they
are not affected. Ways that would expose the stored value (`dict(model)`, an unchecked `model_copy`) are overridden here.

Two models are equal if they have the same class and the same house form; the order of keys in user data does not matter.
"""

from __future__ import annotations

from typing import Any, ClassVar, Literal, Self, cast

import orjson
from pydantic import BaseModel, GetJsonSchemaHandler, ValidationError
from pydantic_core import InitErrorDetails, PydanticCustomError, core_schema
from typing_extensions import override

from antiphon.messages._json_values import (
    JsonError,
    JsonObject,
    Path,
    canonical,
    freeze,
    own,
    parse,
    unpacked,
    with_big_ints,
    write,
)
from antiphon.messages._names import is_name
from antiphon.messages._settings import NO_LIMITS, use_limits

EMPTY = cast("Any", b"{}")
"""The default of a JSON object field, in its stored form: text, which needs no copy per instance."""

_NAMESPACE_DEPTH = 16
"""How much deeper than other values metadata may be nested: its namespaces, and the data that a dialect wraps around it."""

_NOTHING = JsonObject({})
HOUSE_VERSION = 1
"""The version that `dumps` writes, under the key `antiphon`."""
HOUSE_KEY = "antiphon"
HOUSE_MARK = f'{{"{HOUSE_KEY}":{HOUSE_VERSION},'.encode()
"""How a stored message begins."""

_OPTIONS = orjson.OPT_UTC_Z

WORST = 6
"""The most bytes that a character takes in JSON: a control character takes six."""
MUCH = 128 * 1024
"""A message whose estimate is at most this many bytes need not be measured: that is far below the default limits."""


class JsonField:
    """Marks a field as JSON. `object`: an object; `namespaces`: an object of objects, with names as its keys."""

    def __init__(self, shape: Literal["any", "object", "namespaces"]) -> None:
        self.shape = shape
        self._room = _NAMESPACE_DEPTH if shape == "namespaces" else 0

    def take(self, value: object) -> Any:
        """Check a value, and return it in its stored form."""
        try:
            stored = own(value, self._room)
        except JsonError as exc:
            raise _at(exc.path, PydanticCustomError("json", "{reason}", {"reason": exc.reason}), value) from None
        if self.shape == "any":
            return stored
        _check_object(stored, (), "a JSON object (a dict)")
        if not stored or stored == EMPTY:
            return EMPTY
        if self.shape == "namespaces":
            for namespace, fields in unpacked(stored).items():
                _check_object(fields, (namespace,), "a namespace's own object: metadata is {namespace: {key: value}}")
                if not is_name(namespace):
                    raise _at((namespace,), PydanticCustomError("name", "A namespace is a name", {}), namespace)
        return stored

    def __get_pydantic_core_schema__(self, source: object, handler: object) -> core_schema.CoreSchema:
        return core_schema.no_info_plain_validator_function(
            self.take, serialization=core_schema.plain_serializer_function_ser_schema(unpacked)
        )

    def __get_pydantic_json_schema__(self, schema: object, handler: GetJsonSchemaHandler) -> dict[str, Any]:
        if self.shape == "any":
            return {}
        inner = {"additionalProperties": {"type": "object"}} if self.shape == "namespaces" else {}
        return {"type": "object", **inner}


def _check_object(stored: object, path: Path, expected: str) -> None:
    if type(stored) is not dict and not (type(stored) is bytes and stored[:1] == b"{"):
        error = PydanticCustomError("json_object", "This must be {expected}", {"expected": expected})
        raise _at(path, error, unpacked(stored))


def _at(path: Path, error: PydanticCustomError, value: object) -> ValidationError:
    """Return an error whose path Pydantic appends to the path of the field."""
    return ValidationError.from_exception_data("json", [InitErrorDetails(type=error, loc=path, input=value)])


def without_default(schema: dict[str, Any]) -> None:
    """Remove the default from a JSON schema: the stored form of a default is internal."""
    schema.pop("default", None)


def plain_of(model: BaseModel, name: str) -> Any:
    """Return the parsed value of a JSON field, without a copy. The caller must not change it or pass it on."""
    stored = model.__dict__[name]
    if type(stored) is bytes:
        if stored is EMPTY:
            return {}  # a new dict: the field keeps `EMPTY`, which marks it as empty
        stored = cast("dict[str, Any]", model.__dict__)[name] = orjson.loads(stored)
    return stored


def json_bytes_of(model: BaseModel, name: str) -> bytes:
    """Return the compact JSON text of a JSON field. A value that is stored as text is not parsed for that."""
    stored = model.__dict__[name]
    return stored if type(stored) is bytes else write(stored)


def json_text_of(model: BaseModel, name: str) -> str:
    """Return the compact JSON text of a JSON field as `str`. A value that is stored as text is not parsed for that."""
    return json_bytes_of(model, name).decode()


class _View:
    """The descriptor of a JSON field: parses it at the first access, and returns a frozen view."""

    __slots__ = ("_name",)

    def __init__(self, name: str) -> None:
        self._name = name

    def __get__(self, model: BaseModel | None, owner: type) -> Any:
        if model is None:
            raise AttributeError(self._name)  # as Pydantic does for a field
        return _NOTHING if model.__dict__[self._name] is EMPTY else freeze(plain_of(model, self._name))

    def __set__(self, model: BaseModel, value: object) -> None:
        raise AttributeError(f"{type(model).__name__}.{self._name} cannot be changed")


class Model(BaseModel, frozen=True, extra="forbid", defer_build=True):
    """A frozen value with content equality and a house form."""

    _defaults: ClassVar[dict[str, Any]] = {}
    """The defaults, which the house form leaves out."""

    @classmethod
    @override
    def __pydantic_init_subclass__(cls, **kwargs: Any) -> None:
        if not cls.__module__.startswith("antiphon."):
            raise TypeError(
                f"{cls.__bases__[0].__name__} is final: put what you need into metadata, under a namespace of yours"
            )
        fields = cls.model_fields
        cls._defaults = {
            name: {} if field.default is EMPTY else field.default
            for name, field in fields.items()
            if name != "kind" and not field.is_required() and field.default_factory is None
        }
        for name, field in fields.items():
            if any(isinstance(mark, JsonField) for mark in field.metadata):
                setattr(cls, name, _View(name))

    def __house__(self) -> dict[str, Any]:
        """Return one level of the house form: fields in the model's order, defaults left out."""
        defaults = self._defaults
        form: dict[str, Any] = {}
        for name, value in self.__dict__.items():
            if name not in defaults or not (value == defaults[name] or (value is EMPTY and defaults[name] == {})):
                form[name] = written(value)
        return form

    def __weight__(self) -> int:
        """Return an upper bound of the bytes that a part or a payload takes, by an estimate that reads no text."""
        weight = 1024  # names, keys and punctuation
        value: Any
        for value in self.__dict__.values():
            if type(value) is str:
                weight += WORST * len(value)
            elif type(value) is bytes:
                weight += len(value)
            elif type(value) is tuple:
                weight += sum([item.__weight__() for item in cast("tuple[Model, ...]", value)])
            elif type(value) is dict or type(value) is list:
                weight += MUCH  # a parsed value can only be measured by writing it
        return weight

    @override
    def __eq__(self, other: object) -> bool:
        if self is other:
            return True
        if not isinstance(other, Model) or type(self) is not type(other):
            return NotImplemented
        mine, theirs = house_bytes(self), house_bytes(other)
        return mine == theirs or canonical(parse(mine)) == canonical(parse(theirs))

    @override
    def __hash__(self) -> int:
        return hash(canonical(parse(house_bytes(self))))

    @override
    def __iter__(self) -> Any:
        for name in type(self).model_fields:
            yield name, getattr(self, name)

    @override
    def __repr_args__(self) -> Any:
        return [(name, getattr(self, name)) for name in self.__house__() if name != "kind"]

    @override
    def __copy__(self) -> Self:
        return self

    @override
    def __deepcopy__(self, memo: object = None) -> Self:
        return self

    @override
    def __reduce__(self) -> tuple[Any, ...]:
        return _revive, (type(self), house_bytes(self))

    @override
    def model_copy(self, *, update: Any = None, deep: bool = False) -> Self:
        """Return a copy with some fields changed; the copy is validated."""
        return type(self)(**{**dict(self), **(update or {})})

    @override
    def copy(self, **changes: Any) -> Self:
        """Return a copy, by `model_copy`."""
        return self.model_copy(update=changes.get("update"))

    @override
    def __setstate__(self, state: Any) -> None:
        raise TypeError(f"{type(self).__name__} cannot be changed")

    @property
    @override
    def model_fields_set(self) -> set[str]:
        return set(self.__pydantic_fields_set__)

    @classmethod
    @override
    def model_construct(cls, _fields_set: set[str] | None = None, **values: Any) -> Self:
        """Construct with every check, unlike Pydantic's method of this name."""
        return cls(**values)


def _revive(cls: type[Model], data: bytes) -> Model:
    with use_limits(NO_LIMITS):
        return cls.model_validate(parse(data))


def written(value: object) -> Any:
    """Return a stored value for orjson to write: JSON text that was never parsed is written unchanged."""
    return orjson.Fragment(value) if type(value) is bytes else value


def house_bytes(model: Model | dict[str, Any]) -> bytes:
    """Return a model, or one level of its house form, as text."""
    try:
        return orjson.dumps(model, _one_level, _OPTIONS)
    except TypeError:
        return orjson.dumps(_expanded(model), None, _OPTIONS)  # an integer beyond 64 bits is somewhere inside


def _one_level(value: Any) -> Any:
    return value.__house__()


def _expanded(value: object) -> Any:
    if isinstance(value, Model):
        value = value.__house__()
    if isinstance(value, dict):
        return {name: _expanded(field) for name, field in cast("dict[str, Any]", value).items()}
    if isinstance(value, tuple | list):
        return [_expanded(item) for item in cast("list[Any]", value)]
    return with_big_ints(value)
