"""Voice: what somebody of a team says, as one of the fourteen types of message, checked, and in the thread once.

What strangers wrote taints whoever reads it: with every request and answer goes where such words came from, so that a worker
whose task follows from them may use only tools that allow it, or a person is asked.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from hashlib import sha256
from typing import Any

from antiphon.agents.toolkit.taint import Taint, taint_scope
from antiphon.dialects import decode
from antiphon.dialects.agent_framework import normalise_message
from antiphon.ledger import Record
from antiphon.patterns.cast import Handling, handling
from antiphon.runtime import Context

__all__ = ["DIALECT", "PATTERN", "Voice", "at_work"]

DIALECT = "agent-framework"
PATTERN = "teams"
"""What threads of teams are listed as."""


@asynccontextmanager
async def at_work(context: Context, agent: str, turn: str, untrusted: str | None = None) -> AsyncGenerator[Voice]:
    """Have one of a team handle a message: durably, waiting for people, and tainted by what it was given.

    Raises:
        ParkedError: a person must settle or approve something; the message stays open.
    """
    async with handling(context, PATTERN) as handled:
        with taint_scope(Taint()) as taint:
            taint.mark(untrusted)
            yield Voice(handled, agent, turn, taint)


class Voice:
    """How one of a team speaks in the handling of a message."""

    def __init__(self, handled: Handling, agent: str, turn: str, taint: Taint) -> None:
        self.handled = handled
        self.run = handled.run
        self.agent = agent
        self.turn = turn
        self.taint = taint
        """What it has read."""

    def call_id(self, key: str) -> str:
        """Return what a call is known by that is said under a key, and its answer."""
        return f"{key}-{sha256(self.run.course.invocation_id.encode()).hexdigest()[:16]}"

    async def say(self, type: str, key: str, **fields: Any) -> Record:
        """Say a message. It has no time of its own: the ledger's is when it was said.

        Raises:
            ValidationError: it is no message of its type.
            HistoryMismatchError, LedgerError: as for everything that is said in a run.
        """
        (message,) = decode([self._entry(type, fields)], DIALECT)
        return await self.run.say(message, key=key)

    async def answer(self, asked: dict[str, Any], type: str, key: str, **fields: Any) -> Record:
        """Say the message that answers another: a task, a delegation or an action that was given as its fields."""
        entry = self._entry(type, {"call_id": asked["call_id"], **fields})
        _, message = decode([normalise_message(asked), entry], DIALECT)
        return await self.run.say(message, key=key)

    def _entry(self, type: str, fields: dict[str, Any]) -> dict[str, Any]:
        given = {"agent_key": self.agent, "turn_id": self.turn, **fields}
        return normalise_message({"type": type, **{name: value for name, value in given.items() if value is not None}})
