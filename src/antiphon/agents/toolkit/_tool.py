"""One tool of a toolkit: its schema and settings, its construction from a function, and the limit of concurrent calls.

The schema of a function comes from its type hints and docstring. Functions that are not async run in threads.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from functools import partial
from inspect import isawaitable
from typing import Any, Final, TypeAlias, Unpack, cast
from weakref import WeakKeyDictionary

from pydantic import ValidationError
from pydantic_ai import RunContext, Tool
from typing_extensions import TypedDict

from antiphon.agents._secrets import SENSITIVE, WITHHOLDS, is_redacted
from antiphon.agents.config import known_names
from antiphon.agents.toolkit._outcome import InvalidArguments
from antiphon.agents.toolkit._schema import Schema, canonical, check_tool
from antiphon.runtime import Effects
from antiphon.runtime.extending import is_too_large

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
    """The arguments whose values are never stored: see `antiphon.agents._secrets`."""


def own_settings(metadata: Mapping[str, object] | None) -> ToolSettings:
    """Return the settings in the metadata of a Pydantic AI tool: `{"antiphon": {"effects": "none"}}`, and so on."""
    own: Any = (metadata or {}).get("antiphon", {})
    known = {name: own[name] for name in ToolSettings.__annotations__ if name in own}
    return cast("ToolSettings", known)


def unknown_setting(tool: str, metadata: Mapping[str, object] | None) -> str | None:
    """Return an error about the first setting in the metadata of a tool that has no meaning; None if all have one."""
    own = (metadata or {}).get("antiphon", {})
    names = cast("dict[str, object]", own) if isinstance(own, dict) else ()
    wrong = [name for name in names if name not in _KNOWN and name != WITHHOLDS]
    if not wrong:
        return None
    return f"the metadata of tool {tool!r} has the setting {wrong[0]!r}{known_names(wrong[0], _KNOWN, 'the settings are')}"


_KNOWN: Final = frozenset({*ToolSettings.__annotations__, "replay"})


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
        """Check arguments, before anything else.

        Raises:
            ToolRefusal: they do not match the schema.
        """
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
        said: dict[str, object] = {"effects": self.effects}
        if self.untrusted:
            said["untrusted"] = True
        if self.sensitive:
            said[WITHHOLDS] = list(self.sensitive)
        return {"antiphon": said}


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
    tool: Tool[Any] = function if isinstance(function, Tool) else Tool[Any](function, name=name)  # pyright: ignore[reportUnknownVariableType]
    if (reason := unknown_setting(tool.name, tool.metadata)) is not None:
        raise ValueError(reason)
    own: ToolSettings = {"approval": tool.requires_approval, "timeout": tool.timeout}
    own.update(own_settings(tool.metadata))
    own.update(settings)
    schema = tool.function_schema

    async def start(arguments: dict[str, object], ctx: RunContext[object]) -> Any:
        validated = schema.validator.validate_json(canonical(arguments))
        await check_by(tool.args_validator, validated, ctx)
        return await schema.call(validated, ctx)

    return ToolkitTool(
        name or tool.name,
        description if description is not None else tool.description or "",
        schema.json_schema,
        start,
        partial(_problems, tool),
        **own,
    )


async def check_by(validator: Callable[..., Any] | None, arguments: dict[str, object], ctx: RunContext[object]) -> None:
    """Check arguments with a tool's own validator, which raises its message for the model."""
    if validator is not None and isawaitable(found := validator(ctx, **arguments)):
        await found


def _problems(tool: Tool[Any], arguments: Mapping[str, object]) -> list[str]:
    """Return the problems that the function's types find beyond the JSON schema, without the values."""
    try:
        tool.function_schema.validator.validate_json(canonical(dict(arguments)))
    except ValidationError as exc:
        found = json.loads(exc.json(include_input=False, include_url=False, include_context=False))
        return [f"{'.'.join(str(step) for step in each['loc'])}: {each['msg']}" for each in found]
    return []
