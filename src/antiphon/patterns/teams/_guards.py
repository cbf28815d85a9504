"""Guards: a worker that goes round in circles, learns nothing or does not come to an end is stopped, as a failure.

They look at what the worker has done each time its model wants to use tools again, so one that finishes in time is let be.
What they see is the run's own history, so a run that is taken up after a crash is judged alike.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Sequence
from typing import Any, NamedTuple

from pydantic_ai import RunContext
from pydantic_ai.capabilities import AbstractCapability
from pydantic_ai.messages import ModelMessage, ModelResponse, ToolCallPart, ToolReturnPart
from pydantic_ai.models import ModelRequestContext
from typing_extensions import override

from antiphon.errors import RefusedError
from antiphon.patterns.teams._specs import TeamLimits

__all__ = ["Deed", "Guards", "deeds_in", "judge"]


class Deed(NamedTuple):
    """An action and what came of it."""

    action: str
    result: str
    has_failed: bool = False


class Guards(AbstractCapability[object]):
    """What stops agents that do not get anywhere."""

    def __init__(self, limits: TeamLimits) -> None:
        self._limits = limits

    @override
    async def after_model_request(
        self, ctx: RunContext[object], *, request_context: ModelRequestContext, response: ModelResponse
    ) -> ModelResponse:
        tools = {tool.name for tool in request_context.model_request_parameters.function_tools}
        if any(isinstance(part, ToolCallPart) and part.tool_name in tools for part in response.parts):
            rounds = sum(_uses(message, tools) for message in request_context.messages)
            judge(deeds_in(request_context.messages, tools), rounds, self._limits)
        return response


def judge(deeds: Sequence[Deed], rounds: int, limits: TeamLimits) -> None:
    """Look whether somebody who has done this, and wants to do more, may.

    Raises:
        RefusedError: LOOP, STAGNATION or ITERATION_LIMIT.
    """
    for deed, count in Counter(deeds[-limits.window :]).items():
        if count >= limits.repeats:
            reason = f"the same action had the same result {count} times: {deed.action[:200]}"
            raise RefusedError(reason, "LOOP")
    if _in_vain(deeds) >= limits.stagnation:
        raise RefusedError(f"the last {limits.stagnation} actions have told nothing new", "STAGNATION")
    if rounds >= limits.iterations:
        raise RefusedError(f"it has used tools {rounds} times and is not through", "ITERATION_LIMIT")


def _in_vain(deeds: Sequence[Deed]) -> int:
    """Return how many of the latest deeds have failed, or told what was known before them."""
    known: set[str] = set()
    count = 0
    for deed in deeds:
        is_new = not deed.has_failed and deed.result not in known
        known.add(deed.result)
        count = 0 if is_new else count + 1
    return count


def deeds_in(messages: Sequence[ModelMessage], tools: set[str]) -> list[Deed]:
    """Return what was done with tools in the course of a run, in the order of the results.

    A model may use an id again in a later answer: a result belongs to the latest call of its id.
    """
    calls: dict[str, ToolCallPart] = {}
    deeds: list[Deed] = []
    for part in (part for message in messages for part in message.parts):
        if isinstance(part, ToolCallPart) and part.tool_name in tools:
            calls[part.tool_call_id] = part
        elif isinstance(part, ToolReturnPart) and part.tool_call_id in calls:
            deeds.append(Deed(_action(calls[part.tool_call_id]), _text(part.content), part.outcome != "success"))
    return deeds


def _uses(message: ModelMessage, tools: set[str]) -> bool:
    return any(isinstance(part, ToolCallPart) and part.tool_name in tools for part in message.parts)


def _action(call: ToolCallPart) -> str:
    return f"{call.tool_name} {_text(call.args_as_dict())}"


def _text(value: Any) -> str:
    """Return a value as text that is the same for the same value."""
    return json.dumps(value, sort_keys=True, default=repr)
