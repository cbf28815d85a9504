"""Threads of six durable steps, as antiphon and as LangGraph run them.

As a program, it says what one takes in memory:

python -m benchmarks._chains chain|graph "at work"|ended NUMBER
"""

from __future__ import annotations

import asyncio
import gc
import logging
import operator
import os
import sys
from contextlib import AsyncExitStack, closing
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Annotated, Any, Protocol, TypedDict

from langgraph.checkpoint.sqlite.aio import AsyncSqliteSaver
from langgraph.graph import END, START, StateGraph
from pydantic_ai import Agent
from pydantic_ai.messages import ModelMessage, ModelResponse, TextPart
from pydantic_ai.models.function import AgentInfo, FunctionModel

from antiphon.ledger import open_ledger
from antiphon.patterns.postchain import ChainConfig, PostChain
from antiphon.protocol import PHASES
from antiphon.runtime import Settings

__all__ = ["Chain", "Graph", "Threads"]

QUESTION = "How hot is green tea steeped?"
QUIET = Settings(block_limit=None)  # between samples the event loop stands still
TOLD = 6
"""Turns that an agent is told."""


class _Word:
    """A model that says a word; in the last step, when it is let."""

    def __init__(self) -> None:
        self._left = 0
        self.all_wait = asyncio.Event()
        self.may_end = asyncio.Event()
        self.may_end.set()
        self.model = FunctionModel(self._answer, model_name="word")

    async def _answer(self, messages: list[ModelMessage], info: AgentInfo) -> ModelResponse:
        if not self.may_end.is_set() and f"You are the {PHASES[-1]} " in (info.instructions or ""):
            self._left -= 1
            if not self._left:
                self.all_wait.set()
            await self.may_end.wait()
        return ModelResponse([TextPart("So it is.")])

    def hold(self, number: int) -> None:
        """Let the last step of so many threads wait."""
        self._left = number
        self.may_end.clear()


class Threads(Protocol):
    """What runs threads of six steps."""

    def run(self, number: int, sample: int) -> None:
        """Run so many threads at once, to their end; no other sample has the number."""
        ...

    def begin_turns(self, number: int, sample: int) -> None:
        """Choose so many new threads."""
        ...

    def turn(self) -> None:
        """Have each of them take a turn, at once."""
        ...

    def close(self) -> None:
        """Be done."""
        ...


class Chain:
    """PostChain on SQLite."""

    def __init__(self, folder: Path) -> None:
        self.word = _Word()
        self._runner = asyncio.Runner()
        self._stack = AsyncExitStack()
        self._chain = self._runner.run(self._open(f"sqlite:///{folder}/ledger.db"))
        self._threads: list[str] = []

    async def _open(self, url: str) -> PostChain:
        ledger = await self._stack.enter_async_context(open_ledger(url))
        config = ChainConfig(max_sources=0, concurrency=100_000, phases={"action": {"tools": []}})
        return await self._stack.enter_async_context(PostChain(ledger, model=self.word.model, config=config, settings=QUIET))

    def do(self, work: Any) -> Any:
        return self._runner.run(work)

    def run(self, number: int, sample: int) -> None:
        self._runner.run(self.run_all(number, sample))

    async def run_all(self, number: int, sample: int) -> None:
        _check(await asyncio.gather(*(self._chain.run(QUESTION) for _ in range(number))))

    def rows(self) -> int:
        """Return how many rows a thread has."""

        async def count() -> int:
            result = await self._chain.run(QUESTION)
            return (await self._chain.ledger.head(result.thread_id)).seq

        return self._runner.run(count())

    def begin_turns(self, number: int, sample: int) -> None:
        self._threads = [""] * number

    def turn(self) -> None:
        async def all_of_them() -> None:
            turns = (self._chain.run(QUESTION, thread_id=thread or None) for thread in self._threads)
            results = await asyncio.gather(*turns)
            _check(results)
            self._threads = [result.thread_id for result in results]

        self._runner.run(all_of_them())

    def close(self) -> None:
        self._runner.run(self._stack.aclose())
        self._runner.close()


def _check(results: Any) -> None:
    if any(result.status != "completed" for result in results):
        raise RuntimeError("a thread has failed")


class _State(TypedDict):
    question: str
    answers: dict[str, str]
    turns: Annotated[list[str], operator.add]


class Graph:
    """Six nodes in a row, each asking an agent."""

    def __init__(self, folder: Path) -> None:
        self.word = _Word()
        self._runner = asyncio.Runner()
        self._stack = AsyncExitStack()
        self._agents = {
            phase: Agent(self.word.model, name=phase, instructions=f"You are the {phase} phase.") for phase in PHASES
        }
        self._graph = self._runner.run(self._open(f"{folder}/checkpoints.db"))
        self._threads: list[str] = []

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
            told = state["turns"][-2 * TOLD :]
            said = await self._agents[phase].run("\n".join((*told, state["question"])))
            ends = {"turns": [state["question"], said.output]} if phase == PHASES[-1] else {}
            return {"answers": {**state["answers"], phase: said.output}, **ends}

        return node

    def do(self, work: Any) -> Any:
        return self._runner.run(work)

    def run(self, number: int, sample: int) -> None:
        self._runner.run(self.run_all(number, sample))

    async def run_all(self, number: int, sample: int) -> None:
        await asyncio.gather(*(self._one(f"{sample}-{each}") for each in range(number)))

    async def _one(self, thread: str) -> None:
        config = {"configurable": {"thread_id": thread}}
        state = await self._graph.ainvoke({"question": QUESTION, "answers": {}, "turns": []}, config, durability="sync")
        if len(state["answers"]) != len(PHASES):
            raise RuntimeError("a graph has not ended")

    def run_bare(self, number: int) -> None:
        """Run the agents, and write nothing down."""

        async def one() -> None:
            for phase in PHASES:
                await self._agents[phase].run(QUESTION)

        async def all_of_them() -> None:
            await asyncio.gather(*(one() for _ in range(number)))

        self._runner.run(all_of_them())

    def begin_turns(self, number: int, sample: int) -> None:
        self._threads = [f"{sample}-long-{each}" for each in range(number)]

    def turn(self) -> None:
        async def all_of_them() -> None:
            await asyncio.gather(*map(self._one, self._threads))

        self._runner.run(all_of_them())

    def close(self) -> None:
        self._runner.run(self._stack.aclose())
        self._runner.close()


# ---------------------------------------------------------------- memory


def _resident() -> int:
    gc.collect()
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


async def _held(threads: Chain | Graph, number: int) -> float:
    """Return how many bytes a thread takes while the last step of each waits."""
    await threads.run_all(10, 1)
    threads.word.hold(number)
    before = _resident()
    running = asyncio.create_task(threads.run_all(number, 2))
    await threads.word.all_wait.wait()
    taken = _resident() - before
    threads.word.may_end.set()
    await running
    return taken / number


async def _ended(threads: Chain | Graph, number: int) -> float:
    """Return how many bytes are kept of a thread that has ended, once as many have run and ended before."""
    await threads.run_all(number, 1)
    before = _resident()
    for sample in range(2, 5):
        await threads.run_all(number, sample)
    return max(0, _resident() - before) / (3 * number)


def main(kind: str, when: str, number: int) -> None:
    logging.disable(logging.WARNING)
    with TemporaryDirectory() as folder, closing((Chain if kind == "chain" else Graph)(Path(folder))) as threads:
        print(threads.do((_held if when == "at work" else _ended)(threads, number)))


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], int(sys.argv[3]))
