"""Watching agents start: their question, and the messages of an earlier attempt of the same run in their history."""

from __future__ import annotations

import asyncio
import functools
from dataclasses import replace
from typing import Any, cast

from pydantic_ai import Agent
from pydantic_ai.capabilities import AbstractCapability
from pydantic_ai.durable_exec import BaseDurabilityCapability
from pydantic_core import to_jsonable_python

from antiphon.durable._block import report_missing
from antiphon.durable._course import asked
from antiphon.durable._differences import short_hash
from antiphon.durable._run import AgentStart, agent_start, current_effect, current_run

_is_watching: list[bool] = []


def watch_agents() -> None:
    """Watch each agent that starts to run. Only the first call of this function has an effect."""
    if _is_watching:
        return
    _is_watching.append(True)
    begin = Agent.iter

    @functools.wraps(begin)
    def begin_watched(agent: Agent[Any, Any], *args: Any, **given: Any) -> Any:
        question = args[0] if args else given.get("user_prompt")
        digest = None if question is None else short_hash(to_jsonable_python(question, fallback=type))
        run = current_run()
        agent_start.set(AgentStart(digest, {} if run is None else asked(run.place)))
        run_id = _watch_agent(agent.name or "agent", _name_in_journal(agent, given.get("capabilities")))
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

    A conversation that was saved after the run has them. With them, the same request would be a different one.
    """
    conversation, history = given.get("conversation"), given.get("message_history")
    messages: list[Any] = list((history if conversation is None else conversation.messages) or ())
    own = next((number for number, message in enumerate(messages) if message.run_id == run_id), None)
    if own is None:
        return given
    if conversation is None:
        return {**given, "message_history": messages[:own]}
    return {**given, "conversation": replace(conversation, messages=messages[:own])}


def _watch_agent(name: str, name_in_journal: str | None) -> str | None:
    """Return the id of the run that starts. Report an agent without durability, except in an effect, which records it.

    Raises:
        RuntimeError: the agent runs in another event loop than its run, whose ledger it cannot use.
    """
    run = current_run()
    if run is None:
        return None
    if name_in_journal is not None:
        if run.loop not in (None, asyncio.get_running_loop()):
            reason = f"agent {name!r} runs in another event loop than ledger_run({run.thread_id!r}), and cannot be recorded"
            raise RuntimeError(f"{reason}: use `async with ledger_run(…)` and `await agent.run(…)` in the same loop")
        return run.peek_agent(name_in_journal)
    if run.is_of_program and current_effect() is None:
        reason = f"agent {name!r} runs in ledger_run({run.thread_id!r}) and has no LedgerDurability: it is not recorded"
        report_missing(reason, required=run.required)
    return None
