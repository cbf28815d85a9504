"""Durability that is missing: what is reported about code that was meant to be recorded, and was not.

By default it is a `DurabilityWarning`; with `ledger_run(required=True)` it is an error.

Two things must be seen when an agent begins, before any capability is asked: that it has no capability for durable execution,
and that its history has what this very run has said before. So `Agent.iter`, which all ways to run an agent use, is wrapped
when the first run is entered.
"""

from __future__ import annotations

import functools
import warnings
from collections.abc import Callable
from dataclasses import replace
from typing import Any, TypeAlias, cast

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


Watch: TypeAlias = Callable[[str, str | None], str | None]
"""Is given the name of an agent that begins, and its name in the journal, or None if it has no durability; returns the id
of the run that begins, or None outside of one."""
_watching: list[Watch] = []


def watch_agents(watch: Watch) -> None:
    """Have a function called with each agent that begins to run. Only the first call counts."""
    if _watching:
        return
    _watching.append(watch)
    begin = Agent.iter

    @functools.wraps(begin)
    def begin_watched(agent: Agent[Any, Any], *args: Any, **given: Any) -> Any:
        run_id = watch(agent.name or "agent", _name_in_journal(agent, given.get("capabilities")))
        return begin(agent, *args, **(given if run_id is None else _without_own(given, run_id)))

    setattr(Agent, "iter", begin_watched)  # noqa: B010 (a method of another package cannot be assigned)


def _name_in_journal(agent: Agent[Any, Any], given: Any) -> str | None:
    found: list[AbstractCapability[Any]] = []
    agent.root_capability.apply(found.append)
    for each in (*found, *(given or ())):
        if isinstance(each, BaseDurabilityCapability):
            return cast("BaseDurabilityCapability[Any]", each).name or agent.name or "agent"
    return None


def _without_own(given: dict[str, Any], run_id: str) -> dict[str, Any]:
    """Return the arguments without the messages of an earlier attempt of the same run, and everything after them.

    A conversation that was saved after the run has them. With them, the same request would be another one.
    """
    conversation, history = given.get("conversation"), given.get("message_history")
    messages: list[Any] = list((history if conversation is None else conversation.messages) or ())
    own = next((number for number, message in enumerate(messages) if message.run_id == run_id), None)
    if own is None:
        return given
    if conversation is None:
        return {**given, "message_history": messages[:own]}
    return {**given, "conversation": replace(conversation, messages=messages[:own])}
