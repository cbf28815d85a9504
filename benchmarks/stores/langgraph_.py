"""LangGraph: its SQLite savers, given a checkpoint a message, as a graph of one node does; without the graph around them."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from contextlib import AsyncExitStack, ExitStack
from pathlib import Path
from typing import Any

from langchain_core.messages import AIMessage, BaseMessage, HumanMessage, ToolMessage
from langgraph.checkpoint.base import Checkpoint, empty_checkpoint
from langgraph.checkpoint.base.id import uuid6
from langgraph.checkpoint.sqlite import SqliteSaver
from langgraph.checkpoint.sqlite.aio import AsyncSqliteSaver

from benchmarks._messages import Said, as_text

__all__ = ["LangGraphStore"]


class LangGraphStore:
    """A saver of checkpoints. A checkpoint holds all messages so far."""

    def __init__(self, folder: Path, said: Sequence[Said]) -> None:
        self._messages = [_message(each) for each in said]
        self._stack = ExitStack()
        self._saver = self._stack.enter_context(SqliteSaver.from_conn_string(f"{folder}/checkpoints.db"))
        self._runner = asyncio.Runner()
        self._async_stack = AsyncExitStack()
        self._async_saver = self._runner.run(self._open(f"{folder}/checkpoints.db"))
        self._parents: dict[str, Any] = {}

    async def _open(self, path: str) -> AsyncSqliteSaver:
        saver = await self._async_stack.enter_async_context(AsyncSqliteSaver.from_conn_string(path))
        await saver.setup()
        return saver

    def _parent(self, thread: str) -> Any:
        return self._parents.get(thread, {"configurable": {"thread_id": thread, "checkpoint_ns": ""}})

    def _checkpoint(self, count: int) -> Checkpoint:
        return {
            **empty_checkpoint(),
            "id": str(uuid6(clock_seq=count)),
            "channel_values": {"messages": self._messages[:count]},
            "channel_versions": {"messages": count},
        }

    def begin(self, threads: Sequence[str]) -> None:
        pass

    def append(self, thread: str, first: int, last: int) -> None:
        for count in range(first + 1, last + 1):
            metadata = {"source": "loop", "step": count, "parents": {}}
            checkpoint = self._checkpoint(count)
            self._parents[thread] = self._saver.put(self._parent(thread), checkpoint, metadata, {"messages": count})

    def append_together(self, threads: Sequence[str], count: int) -> None:
        self._runner.run(self._together(threads, count))

    async def _together(self, threads: Sequence[str], count: int) -> None:
        await asyncio.gather(*(self._append(thread, count) for thread in threads))

    async def _append(self, thread: str, last: int) -> None:
        parent = self._parent(thread)
        for count in range(1, last + 1):
            metadata = {"source": "loop", "step": count, "parents": {}}
            parent = await self._async_saver.aput(parent, self._checkpoint(count), metadata, {"messages": count})

    def fill(self, thread: str, count: int) -> None:
        """Save one checkpoint, of the last message."""
        self.append(thread, count - 1, count)

    def read(self, thread: str) -> object:
        return self._saver.get_tuple({"configurable": {"thread_id": thread, "checkpoint_ns": ""}})

    def close(self) -> None:
        self._runner.run(self._async_stack.aclose())
        self._runner.close()
        self._stack.close()


def _message(said: Said) -> BaseMessage:
    content, name = said["content"], said["envelope"]["id"]
    if said["kind"] == "option_call":
        call = {"name": content["option_name"], "args": content["arguments"], "id": content["invocation_id"]}
        return AIMessage(content="", tool_calls=[call], id=name)
    if said["kind"] == "option_result":
        option, invocation = content["option_name"], content["invocation_id"]
        return ToolMessage(content=as_text(content["result"]), tool_call_id=invocation, name=option, id=name)
    return HumanMessage(content=content["parts"][0]["fields"]["text"], id=name)
