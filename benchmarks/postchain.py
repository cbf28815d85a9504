"""Threads of six durable steps: PostChain beside LangGraph, with the same agents on the same model, each on one SQLite file.

The model says a word and waits for nothing, so what is measured is what stands around it: for us six phases with their
messages, contexts and effects in the ledger, for LangGraph six nodes with a checkpoint after each. The clock on the wall,
because the disk is waited for. Many threads run at once, as in a server.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterator
from contextlib import AsyncExitStack, ExitStack, closing
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, TypedDict

from langgraph.checkpoint.sqlite.aio import AsyncSqliteSaver
from langgraph.graph import END, START, StateGraph
from pydantic_ai import Agent
from pydantic_ai.messages import ModelMessage, ModelResponse, TextPart
from pydantic_ai.models.function import AgentInfo, FunctionModel

from antiphon.ledger import open_ledger
from antiphon.patterns.postchain import ChainConfig, PostChain
from antiphon.protocol import PHASES
from antiphon.runtime import Settings
from benchmarks._harness import Table, waited

__all__ = ["tables"]

ANTIPHON, LANGGRAPH, BARE = "antiphon PostChain", "LangGraph, AsyncSqliteSaver", "six agents, nothing durable"
AT_ONCE = (10, 100)
QUESTION = "How hot is green tea steeped?"
QUIET = Settings(block_limit=None)  # between samples the event loop stands still

ROUNDS = 3


def tables(part: str = "") -> Iterator[Table]:
    """Make the tables with `part` in their names, one by one: a thread among ten, and among a hundred."""
    for number in AT_ONCE:
        if part in f"a thread of six durable steps, {number:,} at once":
            yield from _threads(number)


def _threads(number: int) -> Iterator[Table]:
    logging.disable(logging.WARNING)
    with ExitStack() as stack:
        folder = Path(stack.enter_context(TemporaryDirectory()))
        ours = stack.enter_context(closing(_Chain(folder, number)))
        peer = stack.enter_context(closing(_Graph(folder, number)))
        yield Table(
            name=f"a thread of six durable steps, {number:,} at once",
            unit="ms a thread",
            scale=1_000,
            baseline=LANGGRAPH,
            candidates={
                ANTIPHON: waited(ours.run, number),
                LANGGRAPH: waited(peer.run, number),
                BARE: waited(peer.run_bare, number),
            },
            against=(BARE,),
            notes=("a thread of ours has 87 rows: messages, contexts, effects, talk", "a graph's state is the six answers"),
            rounds=ROUNDS,
        )


def _answer(messages: list[ModelMessage], info: AgentInfo) -> ModelResponse:
    return ModelResponse([TextPart("So it is.")])


MODEL = FunctionModel(_answer, model_name="word")


class _Chain:
    """PostChain on SQLite."""

    def __init__(self, folder: Path, number: int) -> None:
        self._number = number
        self._runner = asyncio.Runner()
        self._stack = AsyncExitStack()
        self._chain = self._runner.run(self._open(f"sqlite:///{folder}/ledger.db"))

    async def _open(self, url: str) -> PostChain:
        ledger = await self._stack.enter_async_context(open_ledger(url))
        config = ChainConfig(found=0, phases={"action": {"tools": []}})
        return await self._stack.enter_async_context(PostChain(ledger, model=MODEL, config=config, settings=QUIET))

    def run(self, sample: int) -> None:
        self._runner.run(self._run())

    async def _run(self) -> None:
        results = await asyncio.gather(*(self._chain.run(QUESTION) for _ in range(self._number)))
        if any(result.status != "completed" for result in results):
            raise RuntimeError("a thread has failed")

    def close(self) -> None:
        self._runner.run(self._stack.aclose())
        self._runner.close()


class _State(TypedDict):
    question: str
    answers: dict[str, str]


class _Graph:
    """Six nodes in a row, each asking an agent."""

    def __init__(self, folder: Path, number: int) -> None:
        self._number = number
        self._runner = asyncio.Runner()
        self._stack = AsyncExitStack()
        self._agents = {phase: Agent(MODEL, name=phase, instructions=f"You are the {phase} phase.") for phase in PHASES}
        self._graph = self._runner.run(self._open(f"{folder}/checkpoints.db"))

    async def _open(self, path: str) -> Any:
        saver = await self._stack.enter_async_context(AsyncSqliteSaver.from_conn_string(path))
        await saver.setup()
        graph = StateGraph(_State)
        for phase in PHASES:
            graph.add_node(phase, self._node(phase))
        for before, after in zip((START, *PHASES), (*PHASES, END), strict=True):
            graph.add_edge(before, after)
        return graph.compile(checkpointer=saver)

    def _node(self, phase: str) -> Any:
        async def node(state: _State) -> dict[str, Any]:
            said = await self._agents[phase].run(state["question"])
            return {"answers": {**state["answers"], phase: said.output}}

        return node

    def run(self, sample: int) -> None:
        self._runner.run(self._run(sample))

    async def _run(self, sample: int) -> None:
        await asyncio.gather(*(self._one(f"{sample}-{number}") for number in range(self._number)))

    async def _one(self, thread: str) -> None:
        config = {"configurable": {"thread_id": thread}}
        state = await self._graph.ainvoke({"question": QUESTION, "answers": {}}, config, durability="sync")
        if len(state["answers"]) != len(PHASES):
            raise RuntimeError("a graph has not ended")

    def run_bare(self, sample: int) -> None:
        self._runner.run(self._run_bare())

    async def _run_bare(self) -> None:
        async def one() -> None:
            for phase in PHASES:
                await self._agents[phase].run(QUESTION)

        await asyncio.gather(*(one() for _ in range(self._number)))

    def close(self) -> None:
        self._runner.run(self._stack.aclose())
        self._runner.close()
