"""A tool as the toolkit knows it: what it is called with, what may be done with it, and how it is started."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, TypeAlias, cast

from typing_extensions import TypedDict

from antiphon.agents._withheld import SENSITIVE, WITHHOLDS, is_withheld
from antiphon.agents.toolkit._errors import InvalidArguments
from antiphon.agents.toolkit._names import check_tool
from antiphon.agents.toolkit._schema import Schema
from antiphon.agents.toolkit._slots import Slots
from antiphon.runtime import Effects, is_too_large

if TYPE_CHECKING:
    from pydantic_ai import RunContext

__all__ = ["Start", "ToolSettings", "ToolkitTool", "own_settings"]

Start: TypeAlias = "Callable[[dict[str, Any], RunContext[Any]], Awaitable[Any]]"
"""Starts a tool with arguments that were checked. What it raises is its failure."""

_KIB = 1024


class ToolSettings(TypedDict, total=False):
    """What can be said about a tool besides what it does."""

    effects: Effects
    """`none`: it only looks; `idempotent`: it may be done twice under the same key; `once`, if nothing is said."""
    approval: bool
    """Whether a person must approve each call."""
    untrusted: bool
    """Whether what it returns was written by strangers: the web, mail, documents."""
    allows_untrusted: bool
    """Whether it may be called without an approval by somebody who has read what strangers wrote."""
    timeout: float | None
    """After how many seconds it is given up; None: never."""
    retries: int
    """How often it is tried again when it fails; never, what must not be done twice."""
    concurrency: int | None
    """How many calls may be at work at the same time; None: any number."""
    max_result_bytes: int
    """How large its result may be, as JSON."""
    sensitive: tuple[str, ...]
    """The arguments whose values are written down nowhere: see `antiphon.agents._withheld`."""


def own_settings(metadata: Mapping[str, Any] | None) -> ToolSettings:
    """Return what a tool of Pydantic AI says of itself: `{"antiphon": {"effects": "none"}}`, and so on."""
    own: Any = (metadata or {}).get("antiphon", {})
    known = {name: own[name] for name in ToolSettings.__annotations__ if name in own}
    return cast("ToolSettings", known)


@dataclass(frozen=True)
class ToolkitTool:
    """One tool.

    Raises:
        ValueError: the name, the schema or a number is none, or what must not be done twice shall be tried again.
    """

    name: str
    description: str
    parameters: Mapping[str, Any]
    """The JSON schema of its arguments."""
    start: Start = field(repr=False, compare=False)
    types: Callable[[Mapping[str, Any]], list[str]] | None = field(default=None, repr=False, compare=False)
    """What finds wrong in arguments what the schema cannot say."""
    effects: Effects = "once"
    approval: bool = False
    untrusted: bool = False
    allows_untrusted: bool = False
    timeout: float | None = None
    retries: int = 0
    concurrency: int | None = None
    max_result_bytes: int = 512 * _KIB
    sensitive: tuple[str, ...] = ()
    shared_slots: Slots | None = field(default=None, repr=False, compare=False)
    """Those of the same tool, where it was listed before."""
    check: Schema = field(init=False, repr=False)
    slots: Slots = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        check_tool(self.name)
        if self.retries and self.effects == "once":
            reason = "it must not be done twice; say effects='idempotent' or 'none', if it may"
            raise ValueError(f"{self.name!r} cannot be tried again: {reason}")
        if self.retries < 0 or (self.timeout is not None and self.timeout <= 0) or self.max_result_bytes < 1:
            raise ValueError(f"{self.name!r}: retries are not negative, and a timeout and a size are positive")
        try:
            object.__setattr__(self, "check", Schema(self.parameters))
        except ValueError as exc:
            raise ValueError(f"the arguments of {self.name!r}: {exc}") from None
        object.__setattr__(self, "slots", self.shared_slots or Slots(self.concurrency))

    def check_arguments(self, arguments: Mapping[str, Any]) -> None:
        """Have arguments checked, before anything else is done with them.

        Raises:
            ToolRefusal: they are not what the tool takes.
        """
        if is_too_large(arguments):  # a call is written down before it is made, and cannot be cut
            raise InvalidArguments(["they are too large to be written down; give less"])
        problems = self.check.problems(arguments)
        if not problems and self.types is not None:
            problems = tuple(self.types(arguments))
        if problems:
            raise InvalidArguments(problems)

    def shown(self, arguments: Mapping[str, Any]) -> dict[str, Any]:
        """Return arguments as they may be written down."""
        return {name: SENSITIVE if name in self.sensitive else value for name, value in arguments.items()}

    def lost(self, arguments: Mapping[str, Any]) -> list[str]:
        """Return the arguments whose values were not written down, and are no longer there."""
        return [name for name in self.sensitive if is_withheld(arguments.get(name))]

    def metadata(self) -> dict[str, Any]:
        """Return what the runtime reads of a tool."""
        said: dict[str, Any] = {"effects": self.effects}
        if self.untrusted:
            said["untrusted"] = True
        if self.sensitive:
            said[WITHHOLDS] = list(self.sensitive)
        return {"antiphon": said}
