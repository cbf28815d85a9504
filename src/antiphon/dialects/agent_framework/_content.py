"""The content of messages: frozen models for each type, which accept several forms and write one.

A model accepts unknown keys and keeps them. An optional field may also be null, which means the same. Short and older forms
(an error as text, a plan without its wrapper, …) are converted to the long form when they are read; `to_dict` returns the long
form as plain JSON.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Annotated, Any, ClassVar, Literal, Self, TypeAlias, cast

from pydantic import (
    AliasChoices,
    BaseModel,
    Field,
    PlainValidator,
    Strict,
    ValidationError,
    ValidationInfo,
    model_serializer,
    model_validator,
)
from pydantic_core import InitErrorDetails, PydanticCustomError
from typing_extensions import override

from antiphon.messages import DataPart, Json, JsonArray, JsonObject, current_port, thaw

VERIFIED = object()
"""The validation context of data that is known to be JSON and is ours alone: it needs no copy."""


def own(value: object) -> Json:
    """Return a private, frozen copy of a JSON value."""
    try:
        return DataPart(data=cast("Json", value)).data
    except ValidationError as exc:
        first = exc.errors()[0]
        raise refusal(first["msg"], value, *first["loc"][1:]) from None  # without the `data` of the part


def refusal(reason: str, value: object, *loc: str | int) -> ValidationError:
    """Return an error that Pydantic adds to the place it is raised at."""
    error = PydanticCustomError("message", "{reason}", {"reason": reason})
    return ValidationError.from_exception_data("message", [InitErrorDetails(type=error, loc=loc, input=value)])


def _take_json(value: object, info: ValidationInfo) -> Any:
    if info.context is not VERIFIED:
        return own(value)
    if isinstance(value, dict):
        return JsonObject(cast("dict[str, Any]", value))
    return JsonArray(cast("list[Any]", value)) if isinstance(value, list) else value


def _take_object(value: object, info: ValidationInfo) -> Any:
    taken = _take_json(value, info)
    if not isinstance(taken, JsonObject):
        raise shape_error("an object")
    return taken


def shape_error(expected: str) -> PydanticCustomError:
    """Return the error for a value of another shape than expected."""
    return PydanticCustomError("shape", "Input should be {expected}", {"expected": expected})


Text: TypeAlias = Annotated[str, Strict()]
AnyJson: TypeAlias = Annotated[Json, PlainValidator(_take_json)]
AnyObject: TypeAlias = Annotated[Mapping[str, Json], PlainValidator(_take_object)]


class Value(BaseModel, frozen=True, extra="allow"):
    """A frozen JSON object of which some keys are known."""

    __pydantic_extra__: dict[str, AnyJson] = Field(init=False)  # pyright: ignore[reportIncompatibleVariableOverride]
    accepts: ClassVar[str] = "an object"
    """A description of the accepted forms."""
    _defaults: ClassVar[frozenset[str]] = frozenset()
    """The fields for which null means another default."""

    @classmethod
    @override
    def __pydantic_init_subclass__(cls, **kwargs: object) -> None:
        fields = cls.model_fields.items()
        cls._defaults = frozenset(name for name, field in fields if not field.is_required() and field.default is not None)

    @classmethod
    def long_form(cls, value: object) -> Any:
        """Return an accepted form as the object that the fields describe; any other value unchanged."""
        return value

    @model_validator(mode="before")
    @classmethod
    def _take(cls, value: object) -> Any:
        value = cls.long_form(thaw(value) if isinstance(value, JsonObject | JsonArray) else value)
        if not isinstance(value, dict):
            raise shape_error(cls.accepts)
        fields = cast("dict[str, Any]", value)
        left_out = {name for name in cls._defaults if name in fields and fields[name] is None}
        return {name: fields[name] for name in fields if name not in left_out} if left_out else fields

    def to_dict(self) -> dict[str, Any]:
        """Return it as plain JSON that the caller owns: the long form, without optional fields that are None."""
        fields = type(self).model_fields
        return {
            name: _plain(value)
            for name, value in self
            if value is not None or name not in fields or fields[name].is_required()
        }

    @model_serializer(mode="plain")
    def _written(self) -> dict[str, Any]:
        return self.to_dict()


def _plain(value: Any) -> Any:
    if isinstance(value, Value):
        return value.to_dict()
    if isinstance(value, tuple):
        return [_plain(item) for item in cast("tuple[Any, ...]", value)]
    return thaw(value)


# ---------------------------------------------------------------- execution and completion


class ErrorContent(Value, frozen=True):
    """An error. Plain text is the `error_message`."""

    accepts: ClassVar[str] = "text or an object"

    error_message: Text
    error_type: Text | None = None
    tool: Text | None = None

    @classmethod
    @override
    def long_form(cls, value: object) -> Any:
        return {"error_message": value} if isinstance(value, str) else value


class FinalContent(Value, frozen=True):
    """The end of a task: an action and its payload. Plain text is a message to display."""

    accepts: ClassVar[str] = "text or an object"

    operation: Text
    payload: AnyObject
    human_readable_summary: Text | None = None

    @classmethod
    @override
    def long_form(cls, value: object) -> Any:
        if not isinstance(value, str):
            return value
        return {"operation": "display_message", "payload": {"message": value}, "human_readable_summary": value}


class SynthesisContent(Value, frozen=True):
    """A manager's synthesis of its workers' results, if it is more than text."""

    accepts: ClassVar[str] = "text or an object"

    synthesized_summary: Text | None = None
    actual_data: AnyJson = None
    full_result: AnyJson = None
    worker_results: AnyJson = None


# ---------------------------------------------------------------- plans


class Phase(Value, frozen=True):
    """A part of a strategic plan: the goals of one worker or manager.

    Its position in the plan, from 0, is its `phase_id`. The second spellings are those of older plans.
    """

    name: Text = Field(validation_alias=AliasChoices("name", "action"))
    worker: Text = Field(validation_alias=AliasChoices("worker", "manager"))
    goals: Text | None = Field(default=None, validation_alias=AliasChoices("goals", "context"))
    """None: the task itself."""
    notes: Text | None = None


class Plan(Value, frozen=True):
    """The phases, in order, or the workers that get the whole task."""

    phases: tuple[Phase, ...] = Field(default=(), validation_alias=AliasChoices("phases", "steps"))
    primary_worker: Text | None = None
    rationale: Text | None = None
    task_type: Text | None = None
    parallel_workers: tuple[Text, ...] | None = None

    @model_validator(mode="after")
    def _says_who_works(self) -> Self:
        if "phases" not in self.model_fields_set and self.primary_worker is None and self.parallel_workers is None:
            raise shape_error("a plan: it has phases, or else a primary_worker or parallel_workers")
        return self


class StrategicPlanContent(Value, frozen=True):
    """An orchestrator's plan, and its interpretation of the request. A plan without the wrapper is the `plan`."""

    refined_intent: Text | None = None
    plan: Plan

    @classmethod
    @override
    def long_form(cls, value: object) -> Any:
        if not isinstance(value, dict) or "plan" in value:
            return cast("object", value)
        plan = dict(cast("dict[str, Any]", value))
        intent = {"refined_intent": plan.pop("refined_intent")} if "refined_intent" in plan else {}
        return {**intent, "plan": plan}


class SuggestedStep(Value, frozen=True):
    """A step that a worker may follow."""

    name: Text
    tool: Text | None = None


class SuggestedPlanContent(Value, frozen=True):
    """Steps that a worker may follow. A plain list is the `steps`."""

    accepts: ClassVar[str] = "a list or an object"

    steps: tuple[SuggestedStep, ...]

    @classmethod
    @override
    def long_form(cls, value: object) -> Any:
        return {"steps": cast("object", value)} if isinstance(value, list | tuple) else value


class ScriptStep(Value, frozen=True):
    """One tool call that a manager has prepared for a worker."""

    name: Text
    worker: Text
    tool_name: Text
    args: AnyObject = Field(default_factory=lambda: JsonObject({}))
    notes: Text | None = None
    execution_mode: Literal["direct", "guided"] = "direct"
    """`direct`: the worker runs the tool exactly so; `guided`: the worker treats it as a suggestion."""


class ScriptPlanContent(Value, frozen=True):
    """A manager's script of tool calls."""

    goal: Text | None = None
    steps: tuple[ScriptStep, ...]
    metadata: AnyObject | None = None


# ---------------------------------------------------------------- context


class InjectedContext(Value, frozen=True):
    """The context that a manager gives to a worker with the task."""

    manager_goal: Text | None = None
    worker_task: Text | None = None
    script_steps: tuple[ScriptStep, ...] | None = None
    suggested_plan: SuggestedPlanContent | None = None
    script_metadata: AnyObject | None = None
    worker_key: Text | None = None
    assembled_context: Text | None = None


# ---------------------------------------------------------------- times

Timestamp: TypeAlias = "str | datetime | float"
"""The times that a builder accepts."""

# `datetime.fromisoformat` takes more than date and time, and more in each Python version: the shape is fixed here.
_HOUR, _SIXTY, _FRACTION, _ZONE = r"([01]\d|2[0-3])", r"[0-5]\d", r"([.,]\d+)?", r"(Z|[+-]\d\d(:?\d\d)?)?"
_EXTENDED = re.compile(rf"\d{{4}}-\d\d-\d\d[T ]{_HOUR}:{_SIXTY}(:{_SIXTY}{_FRACTION})?{_ZONE}", re.ASCII)
_BASIC = re.compile(rf"\d{{8}}T{_HOUR}{_SIXTY}({_SIXTY}{_FRACTION})?{_ZONE}", re.ASCII)


def is_iso(text: str) -> bool:
    """Whether a text is a date and a time in ISO 8601, with or without a zone."""
    if not _EXTENDED.fullmatch(text) and not _BASIC.fullmatch(text):
        return False
    try:
        datetime.fromisoformat(text)
    except ValueError:
        return False  # the right shape, but no such day or zone
    return True


def iso(time: Timestamp | None) -> str:
    """Return a time as text; None is the time of the port. Text is returned unchanged, and checked with the message.

    Raises:
        ValueError: it is of another type, has no zone, or lies outside the years 1 to 9999.
    """
    if isinstance(time, str):
        return time
    if time is None:
        time = current_port().now()
    try:
        return _moment(time).astimezone(UTC).isoformat().replace("+00:00", "Z")
    except (ValueError, OverflowError, OSError) as exc:
        raise ValueError(f"{time!r} is no timestamp: {exc}") from exc


def _moment(time: object) -> datetime:
    if isinstance(time, datetime):
        if time.tzinfo is None:
            raise ValueError("it needs its zone: use datetime.now(UTC)")
        return time
    if isinstance(time, int | float) and not isinstance(time, bool):
        return datetime.fromtimestamp(time, UTC)
    raise ValueError("give ISO 8601 text, a datetime or seconds since 1970")
