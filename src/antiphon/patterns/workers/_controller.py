"""A controller that is an agent: its model gives tasks to workers by a tool, and answers with what they come to."""

from __future__ import annotations

from collections.abc import Generator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any, Final

from pydantic_ai.tools import RunContext

from antiphon.agents.toolkit.taint import current_taint
from antiphon.dialects.atlas import MessageType, StructuredMessage
from antiphon.patterns.cast import AgentSpec
from antiphon.patterns.workers._desk import Desk, Policy
from antiphon.patterns.workers._mind import Mind

__all__ = ["CONTROLLER", "assign_task", "model_policy", "with_workers"]

CONTROLLER: Final = AgentSpec(
    name="controller",
    instructions=(
        "You are the controller. Break what you are asked into tasks, give each to the worker that is good at it, and answer "
        "with what they come to. Give tasks that do not depend on each other at the same time."
    ),
)
"""The controller, unless there is another."""

_desk: ContextVar[Desk] = ContextVar("antiphon.patterns.workers.desk")


async def assign_task(  # noqa: D417 (the context is not for the model)
    ctx: RunContext[Any], worker: str, task: str, then: list[str] | None = None
) -> dict[str, Any]:
    """Give a task to a worker, and get its result.

    Args:
        worker: The name of the worker.
        task: What it is to do, with everything that it must know.
        then: Other workers that go on with the result, one after the other, if there are any.
    """
    desk, taint = _desk.get(), current_taint()
    answer = await desk.assign(worker, task, route=then or (), key=ctx.tool_call_id)
    if taint is not None:
        taint.mark(desk.untrusted)  # what the worker has read counts for whoever gave the task
    said = "error" if answer.message_type == MessageType.ERROR else "result"
    return {"worker": answer.source_agent, said: answer.content}


def model_policy(mind: Mind) -> Policy:
    """Return the policy of a controller whose model decides."""

    async def policy(query: StructuredMessage, desk: Desk) -> StructuredMessage:
        with _at(desk):
            answer, _ = await mind.process(query, is_said=True, history=desk.history)
        return answer

    return policy


@contextmanager
def _at(desk: Desk) -> Generator[None]:
    token = _desk.set(desk)
    try:
        yield
    finally:
        _desk.reset(token)


def with_workers(spec: AgentSpec, workers: dict[str, str], tool: str) -> AgentSpec:
    """Return how a controller is set up, told who there is, and with the tool that gives tasks."""
    listed = "\n".join(f"- {name}: {good_at}" for name, good_at in workers.items())
    told = f"{spec.instructions}\n\n## Workers\n{listed}".strip()
    return spec.model_copy(update={"instructions": told, "tools": (*spec.tools, tool)})
