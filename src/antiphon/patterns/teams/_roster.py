"""Roster: the members of a team, their addresses, and the state that their actors share."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Literal, TypeAlias, TypeVar

from antiphon.agents.config import known_names
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
from antiphon.patterns.teams._protocol import HistoryPlace, ManagerSpec, TeamLimits
from antiphon.protocol import ErrorCode

OutputT = TypeVar("OutputT")

Role: TypeAlias = Literal["orchestrator", "manager", "worker"]
ROLES: tuple[Role, ...] = ("orchestrator", "manager", "worker")


@dataclass(frozen=True)
class Roster:
    """The members of a team."""

    cast: Cast
    orchestrator: AgentSpec
    managers: Mapping[str, ManagerSpec]
    workers: Mapping[str, AgentSpec]
    limits: TeamLimits
    roles: Collection[Role] = field(default=ROLES)
    """The roles whose actors run in this process."""
    message_store: BaseMessageStore | None = None
    """The host's store of the conversation; None: the thread."""
    operations: tuple[str, ...] = (DISPLAY_MESSAGE,)
    """The operations on a result that a worker may request from a client."""

    def __post_init__(self) -> None:
        """Check that the workers of managers exist.

        Raises:
            CastError: one does not exist, or there are no workers or operations.
        """
        for manager in self.managers.values():
            if missing := [name for name in manager.workers if name not in self.workers]:
                hint = known_names(missing[0], self.workers, "there are", "none")
                raise CastError(f"manager {manager.name!r} has no worker {missing[0]!r}{hint}")
            for step in manager.script or ():
                if step.worker not in manager.workers:
                    hint = known_names(step.worker, manager.workers, "it has", "none")
                    raise CastError(
                        f"the script of manager {manager.name!r} names {step.worker!r}, who is no worker of its own{hint}"
                    )
        if not self.workers:
            raise CastError("a team has workers: give it at least one")
        if not self.operations:
            raise CastError("a team has operations: give it at least one, or leave them out for display_message")

    @property
    def assignees(self) -> tuple[str, ...]:
        """The members that can get a phase: managers, then workers without a manager. The first gets unplanned requests."""
        managed = {worker for manager in self.managers.values() for worker in manager.workers}
        return (*self.managers, *(name for name in self.workers if name not in managed))

    def role_of(self, name: str) -> Role | None:
        """Return the role of a member; None: there is no such member."""
        if name == self.orchestrator.name:
            return "orchestrator"
        return "manager" if name in self.managers else "worker" if name in self.workers else None

    def address(self, name: str) -> str:
        """Return the address of a member."""
        return f"{self.role_of(name)}/{name}"

    def is_elsewhere(self, name: str) -> bool:
        """Whether the actor of a member runs in another process."""
        return self.role_of(name) not in self.roles

    def seconds(self, name: str) -> float | None:
        """Return the time limit of a member for a delegated task, in seconds; None: no limit."""
        return self.limits.phase_seconds if name in self.managers else self.limits.task_seconds

    async def history(self, place: HistoryPlace | None, taint: Taint) -> Conversation:
        """Return the history at a place, and taint the reader with the untrusted content in it.

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
        """Ask the agent of a member; None: its models give no answer or an invalid one.

        Raises:
            DeliveryError, LedgerError: for any other cause than the models.
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
        """Return the members with their instructions and tools, as lines of text."""
        return "\n".join([await self._line(name) for name in names])

    async def _line(self, name: str) -> str:
        spec = self.managers.get(name) or self.workers[name]
        about = f": {spec.instructions}" if spec.instructions else ""
        if isinstance(spec, ManagerSpec):
            return f"- {name} (manager of {', '.join(spec.workers)}){about}"
        tools = f" [tools: {', '.join(spec.tools)}]" if spec.tools else ""
        return f"- {name}{about}{tools}"
