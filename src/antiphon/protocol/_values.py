"""Fields and values inside the data of requests and replies: text, times, numbers, phases; contexts, outputs, error codes.

All values are frozen. All but `Closed` ones keep the keys they do not know, at every depth: another program may send more
than we know. JSON in a value, known or not, is checked and copied at construction, and returned as a value that cannot be
changed. Fields are stored frozen (the core stores text until the first access, but these fields are nearly always read).
Unknown keys are stored plain, because Pydantic before 2.13 writes them without their schema, and are frozen when they are
read.

A field whose default is a plain constant (`status: Literal["created"] = "created"`) is always written, and data from outside
must have its key. A field with any other default is optional, and left out unless it is set.
"""

# No postponed annotations: Pydantic before 2.13 looks up those of `__pydantic_extra__` in the module of each subclass.
from collections.abc import Mapping
from copy import copy
from datetime import UTC, datetime
from enum import StrEnum
from functools import lru_cache
from math import isfinite
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal, Self, TypeAlias, get_args

from pydantic import BaseModel, BeforeValidator, Field, PlainValidator, Strict
from pydantic_core import PydanticCustomError, core_schema
from typing_extensions import override

from antiphon.messages import Json, JsonObject
from antiphon.messages._content import Text
from antiphon.messages._json_values import canonical, freeze, plain, unpacked
from antiphon.messages._message import any_time
from antiphon.messages._unchecked import JsonField

# ---------------------------------------------------------------- frozen values that keep unknown keys

_EMPTY = JsonObject({})

NOTHING: Any = Field(default_factory=lambda: _EMPTY)
"""The default of a JSON object: an empty one."""


class Frozen(JsonField):
    """Marks a field as JSON that is stored frozen."""

    @override
    def take(self, value: Any) -> Any:
        return freeze(unpacked(super().take(value)))

    @override
    def __get_pydantic_core_schema__(self, source: object, handler: object) -> core_schema.CoreSchema:
        # The serialiser reads the value without a copy; only its output is a copy.
        serialization = core_schema.plain_serializer_function_ser_schema(plain)
        return core_schema.no_info_plain_validator_function(self.take, serialization=serialization)


class _Unknown(JsonField):
    """Marks the values of unknown keys."""

    @override
    def take(self, value: Any) -> Any:
        return unpacked(super().take(value))


class Open(BaseModel, frozen=True, extra="allow"):
    """A frozen value with content equality that keeps unknown keys."""

    __pydantic_extra__: dict[str, Annotated[Json, _Unknown("any")]] = Field(init=False)  # pyright: ignore[reportIncompatibleVariableOverride]

    _constants: ClassVar[frozenset[str]] = frozenset()
    """The fields with a constant default, which the constructor sets."""

    @classmethod
    @override
    def __pydantic_init_subclass__(cls, **kwargs: Any) -> None:
        super().__pydantic_init_subclass__(**kwargs)
        defaults = {name: field.default for name, field in cls.model_fields.items()}
        cls._constants = frozenset(name for name, default in defaults.items() if isinstance(default, str | int | float))

    @override
    def model_post_init(self, context: Any, /) -> None:
        self.__pydantic_fields_set__.update(self._constants)

    @property
    @override
    def model_extra(self) -> dict[str, Any]:
        """The keys that the model does not know."""
        return {name: freeze(value) for name, value in (self.__pydantic_extra__ or {}).items()}

    def with_unknown(self, **values: Any) -> Self:
        """Return a copy with more keys that the model does not know. Only these are checked: all others have been.

        Raises:
            ValueError: the model knows one of them, or a value is not JSON.
        """
        if fields := values.keys() & type(self).model_fields.keys():
            raise ValueError(f"{type(self).__name__} knows {', '.join(sorted(fields))}: use `model_copy`")
        copied, taker = copy(self), _Unknown("any")
        added = {name: taker.take(value) for name, value in values.items()}
        object.__setattr__(copied, "__pydantic_extra__", {**self.__pydantic_extra__, **added})
        object.__setattr__(copied, "__pydantic_fields_set__", {*self.__pydantic_fields_set__, *values})
        return copied

    if not TYPE_CHECKING:  # pragma: no branch (a type checker would believe in every attribute)

        def __getattr__(self, name: str) -> Any:
            return freeze(super().__getattr__(name))

    @override
    def __iter__(self) -> Any:
        for name, value in super().__iter__():
            yield name, freeze(value)

    @override
    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Open) or type(self) is not type(other):
            return NotImplemented
        return self is other or _content(self) == _content(other)

    @override
    def __hash__(self) -> int:
        return hash(_content(self))

    @override
    def model_copy(self, *, update: Any = None, deep: bool = False) -> Self:
        """Return a copy with some fields changed; the copy is validated.

        Raises:
            ValidationError: an updated field is not valid.
        """
        changed = type(self).model_validate({**dict(self), **(update or {})})
        changed.__pydantic_fields_set__.intersection_update(self.__pydantic_fields_set__.union(update or ()))
        return changed

    @classmethod
    @override
    def model_construct(cls, _fields_set: set[str] | None = None, **values: Any) -> Self:
        """Construct with every check, unlike Pydantic's method of this name."""
        return cls.model_validate(values)


class Closed(Open, frozen=True, extra="forbid"):
    """A frozen value that refuses keys it does not know: the words of a client, which programs act on."""


def _content(model: Open) -> bytes:
    return canonical(model.model_dump(mode="json"))


@lru_cache(maxsize=1024)  # asked for every message that comes in
def required_fields(model: type[Open]) -> tuple[str, ...]:
    """Return the keys that data of this model must have when it comes from outside."""
    constants = model._constants  # pyright: ignore[reportPrivateUsage]
    return tuple(name for name, field in model.model_fields.items() if field.is_required() or name in constants)


def optional_fields(model: type[Open]) -> tuple[str, ...]:
    """Return the keys that data of this model may have."""
    required = required_fields(model)
    return tuple(name for name in model.model_fields if name not in required)


# ---------------------------------------------------------------- fields

Phase: TypeAlias = Literal["action", "experience", "intention", "observation", "understanding", "yield"]

PHASES: tuple[Phase, ...] = get_args(Phase)
"""The phases of a thread, in the order in which they run."""

ThreadState: TypeAlias = Literal["created", "processing", "paused", "terminated", "completed", "failed"]
"""The state of a thread: first created, then processing or paused, at last one of the other three."""

Object: TypeAlias = Annotated[Mapping[str, Json], Frozen("object")]
"""A JSON object that cannot be changed."""

Value: TypeAlias = Annotated[Json, Frozen("any")]
"""Any JSON value, which cannot be changed."""


def _read_time(value: object) -> datetime:
    time = any_time(value)
    if time.tzinfo is None:
        return time.replace(tzinfo=UTC)  # programs of this format write UTC without a time zone
    try:
        return time.astimezone(UTC)
    except OverflowError:
        raise PydanticCustomError("time", "A time lies in the years 1 to 9999 of UTC", {}) from None


Timestamp: TypeAlias = Annotated[datetime, Strict(), BeforeValidator(_read_time)]
"""An aware time in UTC, written with a Z. A time without a zone is read as UTC."""


def _read_number(value: object) -> int | float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not isfinite(value):
        raise PydanticCustomError("number", "This must be a finite number", {})
    return value


Number: TypeAlias = Annotated[int | float, PlainValidator(_read_number, json_schema_input_type=float)]
"""A finite number; an integer stays an integer."""

Quantity: TypeAlias = Annotated[Number, Field(ge=0)]
Share: TypeAlias = Annotated[Number, Field(ge=0, le=1)]
Positive: TypeAlias = Annotated[int, Strict(), Field(ge=1)]
Count: TypeAlias = Annotated[int, Strict(), Field(ge=0)]


# ---------------------------------------------------------------- values


class ErrorCode(StrEnum):
    """The codes of the protocol's own errors; a program may have others."""

    VALIDATION_ERROR = "VALIDATION_ERROR"
    UNKNOWN_MESSAGE_TYPE = "UNKNOWN_MESSAGE_TYPE"
    ACTOR_NOT_FOUND = "ACTOR_NOT_FOUND"
    THREAD_NOT_FOUND = "THREAD_NOT_FOUND"
    INVALID_STATE = "INVALID_STATE"
    PHASE_PROCESSING_ERROR = "PHASE_PROCESSING_ERROR"
    AGENT_ERROR = "AGENT_ERROR"
    TIMEOUT = "TIMEOUT"
    RETRY_EXHAUSTED = "RETRY_EXHAUSTED"
    ACTOR_STOPPED = "ACTOR_STOPPED"


class ChatTurn(Open, frozen=True):
    """One line of a conversation."""

    role: Text
    content: Text


class PhaseContext(Closed, frozen=True):
    """The context that a client gives a phase besides its input; what the chain adds is the request's `enclosure`."""

    conversation_history: tuple[ChatTurn, ...] = ()
    user_id: Text | None = None


class PreparedContext(Open, frozen=True):
    """The context that an agent gets, made from a phase's context."""

    messages: tuple[ChatTurn, ...]
    tools: tuple[Text, ...] = ()
    """The names of the tools it may use."""
    metadata: Object = NOTHING


class AgentContext(Closed, frozen=True):
    """The context that a client gives an agent: all of it is the client's word, and none of it is checked."""

    user_id: Text | None = None
    metadata: Object = NOTHING


class PhaseOutput(Open, frozen=True):
    """The outcome of a phase. Each phase adds fields of its own, and so do the phases of a program."""

    response: Text
    next_phase: Phase | None = None
    """The phase to continue with; None after the last."""
    confidence: Number | None = None
    by: Literal["agent", "code"] | None = None
    """Who decided."""


class ToolCall(Open, frozen=True):
    """A tool that an agent used."""

    id: Text | None = None
    name: Text | None = None
    arguments: Value = None
    result: Value = None
    """What it returned, shortened; a refused or failed call has none."""


class AgentResult(Open, frozen=True):
    """The answer of an agent."""

    response: Text
    confidence: Number | None = None
    tool_calls: tuple[ToolCall, ...] = ()
    model: Text | None = None
    """The model that answered."""
    input_tokens: Count | None = None
    output_tokens: Count | None = None
    untrusted: Text | None = None
    """Why the answer is untrusted."""
    prompt: Text | None = None
    """The name of the agent's prompt, if it is not the one that its phase has recorded."""
    judgement: Object | None = None
    """What a typed answer has besides its text."""
    dropped: tuple[Text, ...] | None = None
    """What was left out of a typed answer, because its sources do not have it."""
    data: Value = None
    """The answer of an agent of the program, if it is not text."""


class AgentConfig(Open, frozen=True):
    """The settings of an agent: all of them, or those to change."""

    model: Text | None = None
    """Provider and name, such as `openai:gpt-4o`."""
    temperature: Quantity | None = None
    max_tokens: Positive | None = None
    tools: tuple[Text, ...] | None = None
    """The names of its tools; None if not set, empty if it has none."""
    system_prompt: Text | None = None

    def merged(self, update: "AgentConfig") -> "AgentConfig":
        """Return the settings, updated with those that `update` sets."""
        settings: dict[str, Any] = {name: value for name, value in update if name in update.model_fields_set}
        return self.model_copy(update=settings)
