"""Agents as programs, so that another process can continue their runs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypeVar, Union, cast

from pydantic_ai.agent.abstract import AbstractAgent

from antiphon.durable import LedgerRun, RunProgram
from antiphon.messages.arguments import check_type

ResultT = TypeVar("ResultT")


def agent_program(agent: AbstractAgent[Any, ResultT], name: str | None = None) -> RunProgram[ResultT]:
    """Return the program that runs an agent: the input is the prompt, the result is the output. Its name is the agent's.

    Raises:
        ValueError: neither the agent nor the program has a name.
    """
    check_type("agent", agent, AbstractAgent, "Agent(…, name='clerk')")
    own = name or agent.name
    if own is None:
        raise ValueError("the agent has no name; give it one, Agent(…, name='clerk'): its runs are found by it")

    async def ask(run: LedgerRun) -> ResultT:
        return (await agent.run(cast("Any", run.input))).output

    output: Any = agent.output_type
    types = cast("Sequence[object]", output) if isinstance(output, Sequence) else (output,)
    is_plain = types and all(isinstance(each, type) for each in types)
    return RunProgram(own, ask, returns=Union[tuple(types)] if is_plain else Any)  # noqa: UP007 (a union of any number)
