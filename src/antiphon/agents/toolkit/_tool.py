"""A tool of a toolkit: its name, its schema and settings, its construction from a function, and the outcomes of its calls.

**Names** of tools and agents are ASCII, so that no two different names look alike. A permission names a tool and an agent. A
name with a Cyrillic letter or an invisible character would look like another name to the person who grants it. Such names are
refused: they can neither be registered nor granted.

**Schemas** check whether arguments match the schema of a tool, a grant or a rule, with all of JSON Schema, including
references, formats, `additionalProperties` and conditions. Nothing is fetched: an untrusted schema must not make the process
open a connection. Error messages never contain the values, which may be secret. The schema of a function comes from its type
hints and docstring. Functions that are not async run in threads.

**Outcomes** are a result, or a refusal with its code:

| code | the tool was started | meaning |
|---|---|---|
| `UNKNOWN_TOOL` | no | there is no tool of this name |
| `PERMISSION_DENIED` | no | no grant permits this call |
| `INVALID_ARGUMENTS` | no | the arguments do not match the tool's schema |
| `APPROVAL_DENIED` | no | a person said no |
| `APPROVAL_EXPIRED` | no | nobody said yes in time |
| `APPROVAL_REQUIRED` | no | a person must approve, and there is no run in which one could be asked |
| `INVOCATION_REUSED` | no | its id belongs to another call of this run |
| `SENSITIVE_LOST` | no | sensitive values are not stored, and the process that had them has ended |
| `TOOL_CHANGED` | no | its server no longer offers it, or offers it with other arguments |
| `TOOL_FAILED` | yes | it refused in its own words; of an exception, the code is its class, such as `ValueError` |
| `TIMEOUT` | yes | it took too long and was cancelled |
| `RESULT_TOO_LARGE` | yes | it succeeded, and its result is too large |
| `RESULT_INVALID` | yes | it succeeded, and its result is not JSON |
"""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from functools import lru_cache, partial
from inspect import isawaitable
from typing import Any, Final, TypeAlias, Unpack, cast
from weakref import WeakKeyDictionary

from jsonschema_rs import FancyRegexOptions, Validator, validator_for
from jsonschema_rs import ValidationError as SchemaError
from pydantic import ValidationError
from pydantic_ai import RunContext, Tool
from pydantic_ai._function_schema import FunctionSchema
from pydantic_ai.toolsets import AbstractToolset, FunctionToolset, PrefixedToolset, RenamedToolset, WrapperToolset
from typing_extensions import TypedDict

from antiphon.agents._config import known_names
from antiphon.agents._guards import SENSITIVE, WITHHOLDS, is_redacted
from antiphon.durable._approvals import ANY
from antiphon.messages import Json, OptionResultPayload, Part, thaw
from antiphon.messages._arguments import check_type
from antiphon.runtime import Effects
from antiphon.runtime._effects import confirmed, start_confirmed
from antiphon.runtime._rows import is_too_large

# ---------------------------------------------------------------- names

_TOOL = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,127}", re.ASCII)


def is_tool_name(name: str) -> bool:
    """Whether it is a valid name of a tool."""
    return _TOOL.fullmatch(name) is not None


def check_tool(name: str, *, or_any: bool = False) -> str:
    """Return the name of a tool, if it is valid.

    Raises:
        ValueError: the name of the tool is not valid.
    """
    check_type("the name of a tool", name, str, "'calculator'")
    if is_tool_name(name) or (or_any and name == ANY):
        return name
    raise ValueError(f"{name!r} is not a valid name of a tool: use ASCII letters, digits, '_', '-' and '.', at most 128")


def tool_names(toolset: AbstractToolset[Any]) -> set[str] | None:
    """Return the names of all tools of a toolset, including those that are not always offered; None if they are unknown."""
    if isinstance(toolset, FunctionToolset):
        return set(toolset.tools)
    if not isinstance(toolset, WrapperToolset) or isinstance(toolset, RenamedToolset):
        return None
    names = tool_names(toolset.wrapped)
    if names is None or not isinstance(toolset, PrefixedToolset):
        return names
    return {f"{toolset.prefix}_{name}" for name in names}


# ---------------------------------------------------------------- schemas

_MOST_PROBLEMS: Final = 8
_MOST_WORDS: Final = 500
"""The maximum length of a problem in characters: a schema may list a million allowed values."""
_MASK: Final = "the value"
_PATTERNS: Final = FancyRegexOptions(backtrack_limit=100_000)  # a pattern that takes too long is a refusal


def canonical(value: Any) -> str:
    """Return JSON text that is the same for the same value; `1`, `1.0` and `true` differ.

    Raises:
        ValueError: it is not a JSON value.
        TypeError: it is not a JSON value.
    """
    return json.dumps(value, sort_keys=True, separators=(",", ":"), allow_nan=False)


class Schema:
    """A JSON schema, checked once and ready for use; equal by content."""

    __slots__ = ("_text", "_validator")

    def __init__(self, schema: Mapping[str, object]) -> None:
        """Take a schema.

        Raises:
            ValueError: it is not a JSON schema, or refers to another document.
        """
        try:
            self._text = canonical(dict(schema))
        except (TypeError, ValueError) as exc:
            raise ValueError(f"it is no JSON schema: {exc}") from None
        self._validator = _compiled(self._text)

    def problems(self, arguments: Mapping[str, object]) -> tuple[str, ...]:
        """Return the problems of arguments, a sentence each; empty if they match."""
        sentences: list[str] = []
        for error in self._validator.iter_errors(dict(arguments)):
            if len(sentences) == _MOST_PROBLEMS:
                return (*sentences, "and more")
            place = ".".join(str(step) for step in error.instance_path)
            sentence = f"{place}: {error.message}" if place else str(error.message)
            sentences.append(sentence if len(sentence) <= _MOST_WORDS else f"{sentence[:_MOST_WORDS]}… [cut]")
        return tuple(sentences)

    def accepts(self, arguments: Mapping[str, object]) -> bool:
        """Whether arguments match."""
        return self._validator.is_valid(dict(arguments))

    def to_json(self) -> dict[str, Json]:
        """Return a copy of the schema as plain JSON."""
        plain: dict[str, Json] = json.loads(self._text)
        return plain

    def __eq__(self, other: object) -> bool:
        return self._text == other._text if isinstance(other, Schema) else NotImplemented

    def __hash__(self) -> int:
        return hash(self._text)

    def __repr__(self) -> str:
        return f"Schema({self._text})"


@lru_cache(maxsize=512)
def _compiled(text: str) -> Validator:
    try:
        return validator_for(json.loads(text), validate_formats=True, offline=True, mask=_MASK, pattern_options=_PATTERNS)
    except (SchemaError, ValueError) as exc:
        raise ValueError(f"it is no JSON schema that can be used: {str(exc).splitlines()[0]}") from None


# ---------------------------------------------------------------- outcomes: refusals

UNKNOWN_TOOL: Final = "UNKNOWN_TOOL"
PERMISSION_DENIED: Final = "PERMISSION_DENIED"
INVALID_ARGUMENTS: Final = "INVALID_ARGUMENTS"
INVOCATION_REUSED: Final = "INVOCATION_REUSED"
APPROVAL_DENIED: Final = "APPROVAL_DENIED"
APPROVAL_REQUIRED: Final = "APPROVAL_REQUIRED"
SENSITIVE_LOST: Final = "SENSITIVE_LOST"
TOOL_CHANGED: Final = "TOOL_CHANGED"
TOOL_FAILED: Final = "TOOL_FAILED"
TIMEOUT: Final = "TIMEOUT"
RESULT_TOO_LARGE: Final = "RESULT_TOO_LARGE"
RESULT_INVALID: Final = "RESULT_INVALID"


class ToolRefusal(Exception):  # noqa: N818 (an outcome on its way to the caller, never seen outside)
    """A refusal or a failure, which the caller gets instead of a result."""

    def __init__(self, code: str, reason: str, *, details: Json = None, retryable: bool = False) -> None:
        super().__init__(code, reason)
        self.code = code
        self.reason = reason
        self.details = details
        self.retryable = retryable
        self.untrusted: str | None = None
        """The source of untrusted content that the tool has read, which may be in the reason."""
        self.returned: dict[str, Json] | None = None
        """What the tool returned, if that cannot be recorded: its type and its beginning, without secrets."""

    def to_details(self) -> dict[str, Json]:
        """Return the details in their stored form."""
        return {"details": self.details, "untrusted": self.untrusted}

    @classmethod
    def from_details(cls, code: str, reason: str, details: object, *, retryable: bool) -> ToolRefusal:
        """Return a refusal from its stored form."""
        stored = cast("dict[str, Any]", details)
        refusal = ToolRefusal(code, reason, details=stored["details"], retryable=retryable)
        refusal.untrusted = stored["untrusted"]
        return refusal


class InvalidArguments(ToolRefusal):
    """The arguments do not match the tool's schema."""

    def __init__(self, problems: Iterable[str]) -> None:
        sentences = list(problems)
        super().__init__(INVALID_ARGUMENTS, f"the arguments are wrong: {'; '.join(sentences)}", details=list(sentences))


# ---------------------------------------------------------------- outcomes: results


@dataclass(frozen=True)
class ToolOutcome:
    """A result, further parts of it, and whether it is untrusted."""

    result: Json = None
    parts: tuple[Part, ...] = ()
    untrusted: str | None = None
    """The source of the content, if it is untrusted."""

    def to_json(self) -> dict[str, Json]:
        """Return it in its stored form."""
        fields: dict[str, Json] = {"result": self.result}
        if self.parts:
            fields["parts"] = [part.__house__() for part in self.parts]
        return fields if self.untrusted is None else {**fields, "untrusted": self.untrusted}

    @classmethod
    def from_json(cls, stored: object) -> ToolOutcome:
        """Return an outcome from its stored form. Any other value is a result that a person has recorded."""
        fields = cast("dict[str, Any]", stored) if isinstance(stored, dict) else dict[str, Any]()
        if "result" not in fields or fields.keys() - {"result", "parts", "untrusted", "changes"}:
            return cls(result=cast("Json", stored))
        shown = OptionResultPayload(invocation_id="-", option_name="-", parts=fields.get("parts", ()))
        return cls(result=fields["result"], parts=shown.parts, untrusted=fields.get("untrusted"))

    def payload(self, invocation_id: str, option_name: str) -> OptionResultPayload:
        """Return it as the payload of a result."""
        result = thaw(self.result)
        return OptionResultPayload(invocation_id=invocation_id, option_name=option_name, result=result, parts=self.parts)


# ---------------------------------------------------------------- concurrency


class ConcurrencyLimit:
    """Limits the number of concurrent calls; other calls wait. It counts per event loop: a toolkit may outlive many loops."""

    def __init__(self, number: int | None) -> None:
        """Make a limit; None: no limit.

        Raises:
            ValueError: it is less than one.
        """
        if number is not None and number < 1:
            raise ValueError(f"at least one call must be allowed at a time, not {number}")
        self._number = number
        self._semaphores: WeakKeyDictionary[asyncio.AbstractEventLoop, asyncio.Semaphore] = WeakKeyDictionary()

    @asynccontextmanager
    async def take(self) -> AsyncGenerator[None]:
        """Wait for a free slot, and hold it."""
        if self._number is None:
            yield
            return
        async with self._semaphores.setdefault(asyncio.get_running_loop(), asyncio.Semaphore(self._number)):
            yield


# ---------------------------------------------------------------- the tool

Start: TypeAlias = "Callable[[dict[str, object], RunContext[object]], Awaitable[Any]]"
"""Starts a tool with checked arguments. An exception is its failure."""

_KIB = 1024


class ToolSettings(TypedDict, total=False):
    """The settings of a tool."""

    effects: Effects
    """`none`: it only reads; `idempotent`: it may be repeated under the same key; `once` (default): it must not."""
    approval: bool
    """Whether a person must approve each call."""
    untrusted: bool
    """Whether its results are untrusted: the web, mail, documents."""
    allows_untrusted: bool
    """Whether it may be called without an approval after the turn has read untrusted content."""
    timeout: float | None
    """Its time limit in seconds; None: no limit."""
    retries: int
    """How often it is retried when it fails; not for effects `once`."""
    concurrency: int | None
    """How many calls may run at the same time; None: any number."""
    max_result_bytes: int
    """The limit of its result, as JSON."""
    sensitive: tuple[str, ...]
    """The arguments whose values are never stored: see `antiphon.agents._guards`."""


def declared_settings(metadata: Mapping[str, object] | None) -> ToolSettings:
    """Return the settings in the metadata of a Pydantic AI tool: `{"antiphon": {"effects": "none"}}`, and so on."""
    declared: Any = (metadata or {}).get("antiphon", {})
    settings = {name: declared[name] for name in ToolSettings.__annotations__ if name in declared}
    return cast("ToolSettings", settings)


def unknown_setting(tool: str, metadata: Mapping[str, object] | None) -> str | None:
    """Return an error about the first setting in the metadata of a tool that has no meaning; None if all have one."""
    declared = (metadata or {}).get("antiphon", {})
    names = cast("dict[str, object]", declared) if isinstance(declared, dict) else ()
    wrong = [name for name in names if name not in _SETTINGS and name != WITHHOLDS]
    if not wrong:
        return None
    return f"the metadata of tool {tool!r} has the setting {wrong[0]!r}{known_names(wrong[0], _SETTINGS, 'the settings are')}"


_SETTINGS: Final = frozenset({*ToolSettings.__annotations__, "replay"})


@dataclass(frozen=True)
class ToolkitTool:
    """One tool.

    Raises:
        ValueError: the name, the schema or a number is not valid, or a tool with effects `once` has retries.
    """

    name: str
    description: str
    parameters: Mapping[str, Any]
    """The JSON schema of its arguments."""
    start: Start = field(repr=False, compare=False)
    types: Callable[[Mapping[str, object]], list[str]] | None = field(default=None, repr=False, compare=False)
    """A further check of arguments, beyond the schema."""
    effects: Effects = "once"
    approval: bool = False
    untrusted: bool = False
    allows_untrusted: bool = False
    timeout: float | None = None
    retries: int = 0
    concurrency: int | None = None
    max_result_bytes: int = 512 * _KIB
    sensitive: tuple[str, ...] = ()
    shared_slots: ConcurrencyLimit | None = field(default=None, repr=False, compare=False)
    """The slots of the same tool from an earlier listing."""
    check: Schema = field(init=False, repr=False)
    slots: ConcurrencyLimit = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        check_tool(self.name)
        check_type("retries", self.retries, int, "3")
        check_type("timeout", self.timeout, float | int | None, "30.0")
        check_type("max_result_bytes", self.max_result_bytes, int, "100_000")
        if self.retries and self.effects == "once":
            reason = "its effects are 'once'; say effects='idempotent' or 'none', if it may be repeated"
            raise ValueError(f"{self.name!r} cannot be retried: {reason}")
        if self.retries < 0 or (self.timeout is not None and self.timeout <= 0) or self.max_result_bytes < 1:
            raise ValueError(f"{self.name!r}: retries are not negative, and a timeout and a size are positive")
        try:
            object.__setattr__(self, "check", Schema(self.parameters))
        except ValueError as exc:
            raise ValueError(f"the arguments of {self.name!r}: {exc}") from None
        object.__setattr__(self, "slots", self.shared_slots or ConcurrencyLimit(self.concurrency))

    def check_arguments(self, arguments: Mapping[str, object]) -> None:
        """Check arguments, before anything else."""
        if is_too_large(arguments):  # a call is stored before it is made, and cannot be cut
            raise InvalidArguments(["they are too large to be written down; give less"])
        problems = self.check.problems(arguments)
        if not problems and self.types is not None:
            problems = tuple(self.types(arguments))
        if problems:
            raise InvalidArguments(problems)

    def shown(self, arguments: Mapping[str, Any]) -> dict[str, Any]:
        """Return arguments in the form that may be stored."""
        return {name: SENSITIVE if name in self.sensitive else value for name, value in arguments.items()}

    def lost(self, arguments: Mapping[str, object]) -> list[str]:
        """Return the arguments whose values were not stored and are lost."""
        return [name for name in self.sensitive if is_redacted(arguments.get(name))]

    def metadata(self) -> dict[str, object]:
        """Return the metadata of a tool for the runtime."""
        fields: dict[str, object] = {"effects": self.effects}
        if self.untrusted:
            fields["untrusted"] = True
        if self.sensitive:
            fields[WITHHOLDS] = list(self.sensitive)
        return {"antiphon": fields}


# ---------------------------------------------------------------- functions as tools


def function_tool(
    function: Callable[..., Any] | Tool[Any],
    *,
    name: str | None = None,
    description: str | None = None,
    **settings: Unpack[ToolSettings],
) -> ToolkitTool:
    """Return a function, or a tool of Pydantic AI, as a tool. A tool's own settings are the defaults.

    Raises:
        ValueError: the name or a setting is not valid.
    """
    check_type("a tool", function, Callable | Tool, "a function")
    tool: Tool[Any] = function if isinstance(function, Tool) else Tool[Any](function, name=name)  # pyright: ignore[reportUnknownVariableType]
    if (reason := unknown_setting(tool.name, tool.metadata)) is not None:
        raise ValueError(reason)
    merged: ToolSettings = {"approval": tool.requires_approval, "timeout": tool.timeout}
    merged.update(declared_settings(tool.metadata))
    merged.update(settings)
    schema = confirmed_in_thread(tool.function_schema)

    async def start(arguments: dict[str, object], ctx: RunContext[object]) -> Any:
        validated = schema.validator.validate_json(canonical(arguments))
        await check_by(tool.args_validator, validated, ctx)
        return await confirmed(lambda: schema.call(validated, ctx))

    return ToolkitTool(
        name or tool.name,
        description if description is not None else tool.description or "",
        schema.json_schema,
        start,
        partial(_problems, tool),
        **merged,
    )


def confirmed_in_thread(schema: FunctionSchema) -> FunctionSchema:
    """Return a function that, if it is not `async`, checks in its own thread that it may start.

    Pydantic AI calls it in a thread, for which it may have to wait.
    """
    return schema if schema.is_async else replace(schema, function=partial(start_confirmed, schema.function))


async def check_by(validator: Callable[..., Any] | None, arguments: dict[str, object], ctx: RunContext[object]) -> None:
    """Check arguments with a tool's own validator, which raises its message for the model."""
    if validator is not None and isawaitable(checking := validator(ctx, **arguments)):
        await checking


def _problems(tool: Tool[Any], arguments: Mapping[str, object]) -> list[str]:
    """Return the problems that the function's types find beyond the JSON schema, without the values."""
    try:
        tool.function_schema.validator.validate_json(canonical(dict(arguments)))
    except ValidationError as exc:
        errors = json.loads(exc.json(include_input=False, include_url=False, include_context=False))
        return [f"{'.'.join(str(step) for step in error['loc'])}: {error['msg']}" for error in errors]
    return []
