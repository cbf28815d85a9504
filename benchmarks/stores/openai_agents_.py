"""OpenAI Agents: `SQLiteSession`, given the items of the Responses API that say the same."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from agents import SQLiteSession
from benchmarks._messages import Said, as_text

__all__ = ["OpenAIAgentsStore"]


class OpenAIAgentsStore:
    """A session a thread, all on one file."""

    def __init__(self, folder: Path, said: Sequence[Said]) -> None:
        self._items: list[Any] = [_item(each) for each in said]
        self._path = f"{folder}/sessions.db"
        self._runner = asyncio.Runner()
        self._sessions: dict[str, SQLiteSession] = {}

    def _session(self, thread: str) -> SQLiteSession:
        if thread not in self._sessions:
            self._sessions[thread] = SQLiteSession(thread, self._path)
        return self._sessions[thread]

    def begin(self, threads: Sequence[str]) -> None:
        """Make the sessions, which opens the file and looks at its tables; close others, which keep a connection a thread."""
        for session in self._sessions.values():
            session.close()
        self._sessions = {thread: SQLiteSession(thread, self._path) for thread in threads}

    def append(self, thread: str, first: int, last: int) -> None:
        self._runner.run(self._append(thread, first, last))

    async def _append(self, thread: str, first: int, last: int) -> None:
        session = self._session(thread)
        for item in self._items[first:last]:
            await session.add_items([item])

    def append_together(self, threads: Sequence[str], count: int) -> None:
        self._runner.run(self._together(threads, count))

    async def _together(self, threads: Sequence[str], count: int) -> None:
        await asyncio.gather(*(self._append(thread, 0, count) for thread in threads))

    def fill(self, thread: str, count: int) -> None:
        self._runner.run(self._session(thread).add_items(self._items[:count]))

    def read(self, thread: str) -> object:
        return self._runner.run(self._session(thread).get_items())

    def close(self) -> None:
        self._runner.close()  # ends the threads that it writes in
        for session in self._sessions.values():
            session.close()


def _item(said: Said) -> dict[str, Any]:
    content = said["content"]
    if said["kind"] == "option_call":
        return {
            "type": "function_call",
            "id": said["envelope"]["id"],
            "call_id": content["invocation_id"],
            "name": content["option_name"],
            "arguments": as_text(content["arguments"]),
        }
    if said["kind"] == "option_result":
        return {"type": "function_call_output", "call_id": content["invocation_id"], "output": as_text(content["result"])}
    return {"role": "user", "content": content["parts"][0]["fields"]["text"]}
