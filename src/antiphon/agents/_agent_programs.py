"""Agents as programs, so that another process can continue their runs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypeVar, Union, cast

from pydantic_ai.agent.abstract import AbstractAgent
from pydantic_ai.durable_exec import BaseDurabilityCapability

from antiphon.agents._observers import leaves_of
from antiphon.durable import LedgerRun, RunProgram
from antiphon.durable._block import report_missing
from antiphon.messages._arguments import check_type

ResultT = TypeVar("ResultT")


def agent_program(agent: AbstractAgent[Any, ResultT], name: str | None = None) -> RunProgram[ResultT]:
    """Return the program that runs an agent: the input is the prompt, the result is the output. Its name is the agent's.

    An agent without `LedgerDurability` causes a `DurabilityWarning`.

    Raises:
        ValueError: neither the agent nor the program has a name.
    """
    check_type("agent", agent, AbstractAgent, "Agent(…, name='clerk')")
    program_name = name or agent.name
    if program_name is None:
        raise ValueError("the agent has no name; give it one, Agent(…, name='clerk'): its runs are found by it")
    if not any(isinstance(capability, BaseDurabilityCapability) for capability in leaves_of(agent.root_capability)):
        report_missing(
            f"agent {program_name!r} is a program and has no LedgerDurability: its steps are not recorded", required=False
        )

    async def ask(run: LedgerRun) -> ResultT:
        return (await agent.run(cast("Any", run.input))).output

    output: Any = agent.output_type
    types = cast("Sequence[object]", output) if isinstance(output, Sequence) else (output,)
    is_plain = types and all(isinstance(kind, type) for kind in types)
    return RunProgram(program_name, ask, returns=Union[tuple(types)] if is_plain else Any)  # noqa: UP007 (a union of any number)
