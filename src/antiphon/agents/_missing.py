"""Durability that is missing: what is reported about code that was meant to be recorded, and was not.

By default it is a `DurabilityWarning`; with `ledger_run(required=True)` it is an error. An agent without a capability for
durable execution does not call any code of ours. So `Agent.iter`, which all ways to run an agent use, is wrapped when the
first run is entered: the wrapper looks at the agent's capabilities, and changes nothing.
"""

from __future__ import annotations

import functools
import warnings
from collections.abc import Callable
from typing import Any

from pydantic_ai import Agent
from pydantic_ai.capabilities import AbstractCapability
from pydantic_ai.durable_exec import BaseDurabilityCapability


class DurabilityWarning(UserWarning):
    """Something in a run is not recorded, so it is done again when the program runs again."""


def report_missing(reason: str, *, required: bool) -> None:
    """Report that something is not recorded.

    Raises:
        RuntimeError: the run says that everything must be.
    """
    if required:
        raise RuntimeError(reason)
    warnings.warn(reason, DurabilityWarning, stacklevel=3)


_watchers: list[Callable[[str], None]] = []


def watch_agents(report: Callable[[str], None]) -> None:
    """Have a function called with the name of each agent that begins to run and has no durability. The first call counts."""
    if _watchers:
        return
    _watchers.append(report)
    begin = Agent.iter

    @functools.wraps(begin)
    def begin_watched(agent: Agent[Any, Any], *args: Any, **more: Any) -> Any:
        if not _is_durable(agent, more.get("capabilities")):
            report(agent.name or "agent")
        return begin(agent, *args, **more)

    setattr(Agent, "iter", begin_watched)  # noqa: B010 (a method of another package cannot be assigned)


def _is_durable(agent: Agent[Any, Any], given: Any) -> bool:
    found: list[AbstractCapability[Any]] = []
    agent.root_capability.apply(found.append)
    return any(isinstance(each, BaseDurabilityCapability) for each in [*found, *(given or ())])
