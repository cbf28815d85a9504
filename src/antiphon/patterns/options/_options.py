"""Options: what there is to choose, and the policies that choose. A policy, and so an agent, can be an option of others.

Every option is a tool of one `Toolkit`, whatever stands behind it: so arguments, permissions, approvals, time and what is done
to the world are seen to in one place.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, TypeAlias, TypeVar, Unpack

from pydantic_ai import Tool as AgentTool

from antiphon.agents import Toolkit
from antiphon.agents.toolkit import ToolkitTool, ToolSettings
from antiphon.messages import RESERVED_POLICIES, Conversation, Tool
from antiphon.patterns.cast import Cast
from antiphon.patterns.options._agents import AgentPolicy
from antiphon.patterns.options._choices import Choices
from antiphon.patterns.options._nesting import nest

__all__ = ["Decide", "Options", "Policy"]

FunctionT = TypeVar("FunctionT", bound=Callable[..., Any])

Decide: TypeAlias = Callable[[Conversation, Choices], Awaitable[Any] | Any]
"""Given what was observed and what there is to choose, returns messages (what it says, what it calls) or a plain answer."""

EVERYBODY: Final = ("*",)


@dataclass(frozen=True)
class Policy:
    """Somebody who decides."""

    name: str
    decide: Decide = field(repr=False, compare=False)


class Options:
    """Options and policies, by name. Each name is there once, and none is one that the runtime speaks under."""

    def __init__(self, toolkit: Toolkit | None = None) -> None:
        """Make an empty collection; `toolkit` is where its options are, if others share them, such as a `Cast`."""
        self.toolkit = toolkit or Toolkit(name="options")
        self._policies: dict[str, Policy] = {}

    # ------------------------------------------------------------ options

    def add(
        self,
        function: Callable[..., Any] | AgentTool[Any],
        *,
        name: str | None = None,
        to: Sequence[str] = EVERYBODY,
        **settings: Unpack[ToolSettings],
    ) -> ToolkitTool:
        """Add a function as an option of those policies that `to` names. What it takes is said by its hints and docstring.

        Unless `effects` says otherwise it is started at most once, as every tool is.

        Raises:
            ValueError: the name is taken, reserved, or none; or a setting is none, or it takes secrets.
        """
        if settings.get("sensitive"):
            raise ValueError("what a policy chooses is written down before it runs: have the option find its secrets itself")
        _check_free(name or str(getattr(function, "name", getattr(function, "__name__", ""))))
        return self.toolkit.add(function, name=name, to=to, **settings)

    def option(
        self, *, name: str | None = None, to: Sequence[str] = EVERYBODY, **settings: Unpack[ToolSettings]
    ) -> Callable[[FunctionT], FunctionT]:
        """Add the function below, as a decorator.

        Raises:
            ValueError: as `add`.
        """

        def added(function: FunctionT) -> FunctionT:
            self.add(function, name=name, to=to, **settings)
            return function

        return added

    async def tools(self) -> dict[str, ToolkitTool]:
        """Return all options there are now, those of servers too."""
        async with await self.toolkit.connect():
            return await self.toolkit.tools()

    async def offered_to(self, policy: str) -> tuple[Tool, ...]:
        """Return what a policy may choose."""
        async with await self.toolkit.connect():
            found = await self.toolkit.tools_of(policy)
        tools = sorted(found.values(), key=lambda tool: tool.name)
        return tuple(Tool(name=tool.name, description=tool.description, parameters=tool.parameters) for tool in tools)

    # ------------------------------------------------------------ policies

    def add_policy(
        self, decide: Decide, *, name: str | None = None, to: Sequence[str] = (), timeout: float | None = None
    ) -> Policy:
        """Add a policy, which is also an option of those other policies that `to` names: they call it with a `task`.

        As an option it does nothing to the world by itself: what it calls in turn is recorded, so it may run again.

        Raises:
            ValueError: the name is taken, reserved, or none.
        """
        policy = Policy(name or str(getattr(decide, "__name__", "")), decide)
        _check_free(policy.name)

        async def run(task: str) -> Any:
            return await nest(policy, task)

        description = (decide.__doc__ or "").strip()
        self.toolkit.add(run, name=policy.name, description=description, to=to, effects="none", timeout=timeout)
        self._policies[policy.name] = policy
        return policy

    def policy(
        self, *, name: str | None = None, to: Sequence[str] = (), timeout: float | None = None
    ) -> Callable[[FunctionT], FunctionT]:
        """Add the function below as a policy, as a decorator.

        Raises:
            ValueError: as `add_policy`.
        """

        def added(function: FunctionT) -> FunctionT:
            self.add_policy(function, name=name, to=to, timeout=timeout)
            return function

        return added

    def add_agent(self, cast: Cast, name: str, *, to: Sequence[str] = (), timeout: float | None = None) -> Policy:
        """Add an agent of a cast as a policy, which decides with its model. The tools that it may call are the options.

        Give the cast the same toolkit, if the agent names tools of it: nothing else is known here.

        Raises:
            CastError: there is no such agent.
            ValueError: as `add_policy`.
        """
        return self.add_policy(AgentPolicy(cast, name), to=to, timeout=timeout)

    def find(self, name: str) -> Policy:
        """Return the policy of a name.

        Raises:
            KeyError: there is none.
        """
        return self._policies[name]

    @property
    def policies(self) -> tuple[str, ...]:
        """Who can decide."""
        return tuple(self._policies)


def _check_free(name: str) -> None:
    if name in RESERVED_POLICIES:
        raise ValueError(f"{name!r} is what the runtime speaks under; give it another name")
