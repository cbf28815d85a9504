"""A tool call as an effect: what it says of itself in its metadata, and what becomes of an outcome that nobody knows."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final, TypeAlias, cast, get_args

from pydantic_ai.exceptions import UserError
from pydantic_ai.tools import ToolDefinition
from typing_extensions import override

from antiphon.agents._budget import Limits
from antiphon.agents._run import LedgerRun
from antiphon.agents.durability._talk import Talk
from antiphon.errors import WithdrawnError
from antiphon.ledger import Record
from antiphon.messages import Json, Message, thaw
from antiphon.runtime import Effect, Effects, ToolOperation

__all__ = ["METADATA_KEY", "Called", "NotDone", "Reconcile", "Unsettled", "effects_of"]

METADATA_KEY: Final = "antiphon"
"""Where a tool's metadata says what concerns us: `{"antiphon": {"effects": "none"}}`."""


def effects_of(tool: ToolDefinition | None, name: str, given: Mapping[str, Effects]) -> Effects:
    """Return what a tool's calls do to the world: as whoever made the agent says, else the tool itself, else `once`.

    Raises:
        UserError: the tool says something else.
    """
    own: Any = ((tool.metadata or {}).get(METADATA_KEY) if tool is not None else None) or {}
    said = given.get(name) or (cast("dict[str, Any]", own).get("effects", "once") if isinstance(own, dict) else own)
    if said not in get_args(Effects):
        raise UserError(f"the effects of tool {name!r} are one of {', '.join(get_args(Effects))}, not {said!r}")
    return cast("Effects", said)


@dataclass(frozen=True, slots=True)
class Unsettled:
    """A call that was started, and nobody knows what became of it."""

    thread_id: str
    invocation_id: str
    tool: str
    arguments: dict[str, Any]
    key: str
    """The idempotency key that the tool was given."""
    reason: str


@dataclass(frozen=True, slots=True)
class NotDone:
    """What `reconcile` returns if the thing was not done: it is started again."""


Reconcile: TypeAlias = Callable[[Unsettled], Awaitable[Any]]
"""Finds out what became of a call: returns its result, `NotDone()`, or None if it cannot say; then a person must."""


class Called(Effect):
    """A call of a tool."""

    def __init__(
        self,
        run: LedgerRun,
        tool: str,
        arguments: Mapping[str, Json],
        *,
        key: str,
        option: str,
        effects: Effects,
        parent_id: str | None,
        settle: Callable[[Unsettled], Awaitable[Json | NotDone | None]] | None,
        limits: Limits,
    ) -> None:
        super().__init__(
            run.journal,
            run.course,
            key,
            {"tool": tool, "arguments": dict(arguments)},
            effects=effects,
            park=run.park,
            option=option,
            parent_id=parent_id,
            forgiven=run.forgiven,
        )
        self.operation = ToolOperation(tool, parent_id, arguments=dict(arguments))
        self._run_of = run
        self._talk = Talk.of(run)
        self._tool = tool
        self._settle = settle
        self._limits = limits

    @override
    async def begin(self) -> Message:
        await self._talk.spend(self._run_of, self._limits, "tool", self.id)
        (record,) = await self.journal.write(self.thread_id, [self.intent()])
        self._talk.reach(record.seq)
        return record.message

    @override
    async def end(self, outcome: Message) -> Record:
        record = await super().end(outcome)
        self._talk.reach(record.seq)
        return record

    @override
    async def unknown(self, reason: str) -> Message:
        if self._settle is None:
            return await super().unknown(reason)
        arguments = cast("dict[str, Any]", thaw(self.arguments["arguments"]))
        found = await self._settle(Unsettled(self.thread_id, self.id, self._tool, arguments, self.id, reason))
        return await super().unknown(reason) if found is None else self.outcome(**_fields(found))


def _fields(found: Json | NotDone) -> dict[str, Any]:
    if isinstance(found, NotDone):
        reason = "it was not done, as was found out"
        return {"is_error": True, "error_type": WithdrawnError.code, "error_message": reason, "retryable": True}
    return {"result": found}
