"""Crew: who is in a team, where each lives, and what all their actors share."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Literal, TypeAlias, TypeVar

from antiphon.agents.toolkit.taint import Taint
from antiphon.dialects.agent_framework import BaseMessageStore
from antiphon.errors import RefusedError
from antiphon.messages import Conversation, Message
from antiphon.patterns.cast import (
    AgentSpec,
    Answer,
    Cast,
    CastError,
    model_messages,
    read_history,
    untrusted_source,
)
from antiphon.patterns.teams._plans import DISPLAY_MESSAGE
from antiphon.patterns.teams._requests import HistoryPlace
from antiphon.patterns.teams._specs import ManagerSpec, TeamLimits
from antiphon.protocol import ErrorCode

__all__ = ["ROLES", "Crew", "Role"]

OutputT = TypeVar("OutputT")

Role: TypeAlias = Literal["orchestrator", "manager", "worker"]
ROLES: tuple[Role, ...] = ("orchestrator", "manager", "worker")


@dataclass(frozen=True)
class Crew:
    """Who is in a team."""

    cast: Cast
    orchestrator: AgentSpec
    managers: Mapping[str, ManagerSpec]
    workers: Mapping[str, AgentSpec]
    limits: TeamLimits
    roles: Collection[Role] = field(default=ROLES)
    """Whose actors live in this process."""
    message_store: BaseMessageStore | None = None
    """Where the host keeps the conversation; None: the thread has it."""
    operations: tuple[str, ...] = (DISPLAY_MESSAGE,)
    """What a client can be told to do with a result."""

    def __post_init__(self) -> None:
        """Check that managers manage workers who are there.

        Raises:
            CastError: one does not, or there is nobody to do anything.
        """
        for manager in self.managers.values():
            if missing := [name for name in manager.workers if name not in self.workers]:
                raise CastError(f"manager {manager.name!r} has no worker {missing[0]!r}; there are {_names(self.workers)}")
            for step in manager.script or ():
                if step.worker not in manager.workers:
                    raise CastError(
                        f"the script of manager {manager.name!r} names {step.worker!r}, who is no worker of its own"
                    )
        if not self.workers:
            raise CastError("a team has workers: give it at least one")
        if not self.operations:
            raise CastError("a team has operations: give it at least one, or leave them out for display_message")

    @property
    def assignees(self) -> tuple[str, ...]:
        """Who can lead or do a phase, the first of whom gets what nobody could plan: managers, then workers without one."""
        managed = {worker for manager in self.managers.values() for worker in manager.workers}
        return (*self.managers, *(name for name in self.workers if name not in managed))

    def role_of(self, name: str) -> Role | None:
        """Return what somebody is; None for somebody who is not of the team."""
        if name == self.orchestrator.name:
            return "orchestrator"
        return "manager" if name in self.managers else "worker" if name in self.workers else None

    def address(self, name: str) -> str:
        """Return where somebody lives."""
        return f"{self.role_of(name)}/{name}"

    def is_elsewhere(self, name: str) -> bool:
        """Whether somebody's actor lives in another process."""
        return self.role_of(name) not in self.roles

    def seconds(self, name: str) -> float | None:
        """Return how long somebody may take for what is delegated to it; None: as long as it takes."""
        return self.limits.phase_seconds if name in self.managers else self.limits.task_seconds

    async def history(self, place: HistoryPlace | None, taint: Taint) -> Conversation:
        """Return the history at a place; whoever reads it is tainted by what strangers wrote in it.

        Raises:
            LedgerError: it cannot be read.
        """
        if place is None:
            return Conversation()
        thread_id, message_id = place
        found = await read_history(self.cast.ledger, thread_id, until=message_id)
        for message in found:
            taint.mark(untrusted_source(message))
        return found

    async def answer(self, name: str, prompt: str, output: type[OutputT], history: Iterable[Message] = ()) -> OutputT | None:
        """Have somebody's agent answer; None where its models give no answer, or none that can be read.

        Raises:
            DeliveryError, LedgerError: it is not about the models.
        """
        try:
            told = model_messages(history, name)
            answer: Answer[OutputT] = await self.cast.ask(name, prompt, output=output, history=told)
        except RefusedError as exc:
            if exc.code != ErrorCode.AGENT_ERROR:
                raise
            return None
        return answer.output

    async def described(self, names: Iterable[str]) -> str:
        """Return who there is, with what each is for and can use, as lines of text."""
        return "\n".join([await self._line(name) for name in names])

    async def _line(self, name: str) -> str:
        spec = self.managers.get(name) or self.workers[name]
        about = f": {spec.instructions}" if spec.instructions else ""
        if isinstance(spec, ManagerSpec):
            return f"- {name} (manager of {', '.join(spec.workers)}){about}"
        tools = f" [tools: {', '.join(spec.tools)}]" if spec.tools else ""
        return f"- {name}{about}{tools}"


def _names(of: Iterable[str]) -> str:
    return ", ".join(of) or "none"
