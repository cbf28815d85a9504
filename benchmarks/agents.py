"""What it costs to make an agent's run durable: 10 model requests and 20 tool calls, whole and streamed, against the bare run.

The model is a script and the tools do nothing, so what is measured is the framework, and above it the durability. The clock on
the wall, because the disk is waited for. What the bare agent takes is taken off all others.
"""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Iterator, Sequence
from contextlib import AsyncExitStack, ExitStack, closing
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, TypeAlias, cast
from unittest.mock import patch
from uuid import uuid4

from dbos import DBOS
from pydantic_ai import Agent
from pydantic_ai.durable_exec.dbos import DBOSDurability
from pydantic_ai.messages import ModelMessage, ModelResponse, TextPart, ToolCallPart
from pydantic_ai.models.function import AgentInfo, DeltaToolCall, DeltaToolCalls, FunctionModel

from antiphon.agents import LedgerDurability
from antiphon.durable import ledger_run
from antiphon.errors import LedgerError
from antiphon.ledger import Ledger, Record, open_ledger
from antiphon.messages import Message
from antiphon.runtime._journal import Journal
from benchmarks._harness import Goal, Table, waited

__all__ = ["tables"]

CALLS = (3, 3, 2, 2, 2, 2, 2, 2, 2)
"""Tool calls in each answer but the last, which has none: 20 in 10 answers."""
BARE, ANTIPHON, PEER = "bare agent", "antiphon", "Pydantic AI with DBOS on SQLite"
APPENDS, TOGETHER = "antiphon's ledger, the same rows", "antiphon's ledger, the same appends"
SETTLING = 20
ROUNDS = 15
PROMPT = "Do what has to be done, one thing after the other."


def tables(part: str = "") -> Iterator[Table]:
    """Make the tables with `part` in their names, one by one."""
    if part in "what durability adds to a run":
        yield from _durability()
    if part in "what durability adds to a streamed run":
        yield from _streams()


def _durability() -> Iterator[Table]:
    logging.disable(logging.WARNING)  # DBOS says what it does
    with ExitStack() as stack:
        folder = Path(stack.enter_context(TemporaryDirectory()))
        durable = stack.enter_context(closing(_Durable(folder)))
        peer = stack.enter_context(closing(_Peer(folder)))
        yield Table(
            name="what durability adds to a run of 10 requests and 20 tool calls",
            unit="ms",
            scale=1_000,
            baseline=APPENDS,
            candidates={
                BARE: waited(durable.bare, 1),
                ANTIPHON: waited(durable.run, 1),
                APPENDS: waited(durable.append, 1, before=durable.prepare(durable.steps)),
                TOGETHER: waited(durable.append, 1, before=durable.prepare(durable.appends)),
                PEER: waited(peer.run, 1),
            },
            against=(PEER,),
            floor=BARE,
            goals=(Goal(ANTIPHON, 1.5, APPENDS), Goal(ANTIPHON, 0.25, PEER)),
            notes=(
                f"what the {BARE} takes is taken off",
                "the same rows: what begins a step and what ends it, each waited for; tools of one answer at once",
                "the same appends: what ends a step together with what begins the next, as a run writes them",
                "tools of the peer are steps of DBOS, as its documentation asks",
            ),
            rounds=ROUNDS,
        )


def _streams() -> Iterator[Table]:
    """The deltas of both runs are read as they come. The peer is left out: it gives them out after its step has ended."""
    with ExitStack() as stack:
        folder = Path(stack.enter_context(TemporaryDirectory()))
        durable = stack.enter_context(closing(_Durable(folder, _stream)))
        yield Table(
            name="what durability adds to a streamed run of 10 requests, 20 tool calls and 100 deltas",
            unit="ms",
            scale=1_000,
            baseline=APPENDS,
            candidates={
                BARE: waited(durable.bare, 1),
                ANTIPHON: waited(durable.run, 1),
                APPENDS: waited(durable.append, 1, before=durable.prepare(durable.steps)),
            },
            floor=BARE,
            goals=(Goal(ANTIPHON, 2.5, APPENDS),),
            notes=(f"what the {BARE} takes is taken off, which streams as well",),
            rounds=ROUNDS,
        )


def _answer(messages: list[ModelMessage], info: AgentInfo) -> ModelResponse:
    number = sum(isinstance(message, ModelResponse) for message in messages)
    if number == len(CALLS):
        return ModelResponse([TextPart("All of it is done.")])
    calls = range(CALLS[number])
    return ModelResponse([ToolCallPart("act", {"what": f"thing {number}"}, tool_call_id=f"{number}-{call}") for call in calls])


async def _deltas(messages: list[ModelMessage], info: AgentInfo) -> AsyncIterator[str | DeltaToolCalls]:
    """Say the same in pieces: three for each call, and the last answer word by word."""
    for number, part in enumerate(_answer(messages, info).parts):
        if isinstance(part, ToolCallPart):
            what = json.dumps(part.args)
            yield {number: DeltaToolCall(part.tool_name, "", tool_call_id=part.tool_call_id)}
            yield {number: DeltaToolCall(json_args=what[:8])}
            yield {number: DeltaToolCall(json_args=what[8:])}
        elif isinstance(part, TextPart):
            for word in (f"{part.content} " * 8).split():
                yield f"{word} "


async def _act(what: str) -> str:
    return f"{what} is done"


def _agent(tool: Callable[..., Awaitable[str]], *capabilities: Any) -> Agent[None, str]:
    agent: Agent[None, str] = Agent(
        FunctionModel(_answer, stream_function=_deltas, model_name="script"), name="worker", capabilities=capabilities
    )
    agent.tool_plain(name="act")(tool)
    return agent


async def _run(agent: Agent[None, str]) -> None:
    await agent.run(PROMPT)


async def _stream(agent: Agent[None, str]) -> None:
    async with agent.run_stream(PROMPT) as result:
        async for _ in result.stream_text(delta=True, debounce_by=None):
            pass


_Batches: TypeAlias = list[list[Sequence[Message]]]
"""What was appended at the same time, one after the other."""


async def _written_at_once(journal: Journal, thread_id: str, messages: Sequence[Message]) -> Sequence[Message]:
    """Append what ends a step by itself, as if nothing could be written soon."""
    return [record.message for record in await journal.write(thread_id, messages)]


class _Recorder:
    """A ledger that remembers what was appended, and what of it at the same time."""

    def __init__(self, ledger: Ledger) -> None:
        self._ledger = ledger
        self._is_over = True
        """Whether one of the last batch has returned: what begins now may depend on it."""
        self.batches: _Batches = []

    def __getattr__(self, name: str) -> Any:
        return getattr(self._ledger, name)

    async def append(self, thread_id: str, messages: Sequence[Message], **more: Any) -> tuple[Record, ...]:
        if self._is_over:
            self.batches.append([])
            self._is_over = False
        batch = self.batches[-1]
        batch.append(messages)
        try:
            return await self._ledger.append(thread_id, messages, **more)
        except LedgerError:
            batch.remove(messages)
            raise
        finally:
            self._is_over = self._is_over or batch is self.batches[-1]


class _Durable:
    """The agent, bare and on a ledger in a file; and the ledger without it."""

    def __init__(self, folder: Path, ask: Callable[[Agent[None, str]], Coroutine[Any, Any, None]] = _run) -> None:
        self._ask = ask
        self._stack = AsyncExitStack()
        self._runner = asyncio.Runner()
        self._runner.run(self._open(f"sqlite:///{folder}/ledger.db"))
        for number in range(SETTLING):
            self.run(-1 - number)

    async def _open(self, url: str) -> None:
        self._ledger = await self._stack.enter_async_context(open_ledger(url))
        self._bare = _agent(_act)
        self._agent = _agent(_act, LedgerDurability(self._ledger))
        with patch.object(Journal, "write_soon", _written_at_once):
            self.steps = await self._recorded("steps")
        self.appends = await self._recorded("appends")

    async def _recorded(self, thread_id: str) -> _Batches:
        recorder = _Recorder(self._ledger)
        async with ledger_run(thread_id):
            await self._ask(_agent(_act, LedgerDurability(cast("Ledger", recorder))))
        return recorder.batches

    def bare(self, number: int) -> None:
        self._runner.run(self._ask(self._bare))

    def run(self, number: int) -> None:
        self._runner.run(self._run(f"run-{number}"))

    async def _run(self, thread_id: str) -> None:
        async with ledger_run(thread_id):
            await self._ask(self._agent)

    def prepare(self, batches: _Batches) -> Callable[[int], None]:
        """Return what makes the rows of a run ready to be appended to another thread."""

        def ready(number: int) -> None:
            own = {"thread_id": str(uuid4())}
            self._rows = [
                [[message.model_copy(update=own) for message in messages] for messages in batch] for batch in batches
            ]

        return ready

    def append(self, number: int) -> None:
        """Run the bare agent, and append the rows that the durable one has appended, as many at once."""
        self.bare(number)
        self._runner.run(self._append())

    async def _append(self) -> None:
        thread_id = self._rows[0][0][0].thread_id or ""
        for batch in self._rows:
            await asyncio.gather(*(self._ledger.append(thread_id, messages) for messages in batch))

    def close(self) -> None:
        self._runner.run(self._stack.aclose())
        self._runner.close()


class _Peer:
    """The same agent with DBOS, its system database in a file of SQLite."""

    def __init__(self, folder: Path) -> None:
        DBOS(config={"name": "benchmark", "system_database_url": f"sqlite:///{folder}/dbos.sqlite", "run_admin_server": False})
        agent = _agent(DBOS.step(name="act")(_act), DBOSDurability())

        @DBOS.workflow(name="run")
        async def run() -> str:
            return (await agent.run(PROMPT)).output

        DBOS.launch()
        self._workflow = run
        self._runner = asyncio.Runner()
        for number in range(SETTLING):
            self.run(number)

    def run(self, number: int) -> None:
        async def once() -> None:
            await self._workflow()

        self._runner.run(once())

    def close(self) -> None:
        DBOS.destroy()
        self._runner.close()
