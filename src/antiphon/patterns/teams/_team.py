"""Team: the public class of the pattern."""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Iterable, Sequence
from dataclasses import replace
from functools import partial
from typing import Final, Unpack

from typing_extensions import override

from antiphon.dialects.agent_framework import BaseMessageStore, RecordingMessageStore
from antiphon.errors import DeliveryError
from antiphon.ledger import Ledger
from antiphon.messages import current_port, thaw
from antiphon.patterns.cast import (
    UNHURRIED,
    AgentSpec,
    Cast,
    MessageHistory,
    Outcome,
    Pattern,
    PatternOptions,
    Task,
    TaskInput,
    failed,
    known_by,
    read_answer,
)
from antiphon.patterns.teams._manager import ManagerActor
from antiphon.patterns.teams._orchestrator import OrchestratorActor
from antiphon.patterns.teams._plans import DISPLAY_MESSAGE
from antiphon.patterns.teams._protocol import EndTurn, ManagerSpec, RunTurn, TeamLimits
from antiphon.patterns.teams._roster import ROLES, Role, Roster
from antiphon.patterns.teams._transcript import TeamStore, hand_over
from antiphon.patterns.teams._worker import Guards, TeamWorkerActor
from antiphon.runtime import System

_ORCHESTRATOR: Final = AgentSpec(name="orchestrator", instructions="You plan what a team does, and answer for it.")


class Team(Pattern):
    """An orchestrator that plans in phases, managers that divide them, and workers that act."""

    def __init__(
        self,
        ledger: Ledger | None = None,
        workers: Iterable[AgentSpec] = (),
        *,
        managers: Iterable[ManagerSpec] = (),
        orchestrator: AgentSpec = _ORCHESTRATOR,
        roles: Collection[Role] = ROLES,
        message_store: BaseMessageStore | None = None,
        operations: Sequence[str] = (DISPLAY_MESSAGE,),
        limits: TeamLimits = TeamLimits(),  # noqa: B008 (frozen)
        **common: Unpack[PatternOptions],
    ) -> None:
        """Make it; nothing runs before the `async with` block.

        `roles` are the roles whose actors run in this process. Workers may run in another process, which opens the same team
        with `roles=["worker"]`; both join a bus (`await team.system.join(bus, name)`).

        `message_store` is the host's own store of the conversation. If it has an `add_message`, it receives the messages of
        a turn before `run` returns. `operations` are the operations on its result that a worker may request from a client. The
        other options are those of every pattern: see `Pattern` and `Cast`.

        Raises:
            CastError: two agents have the same name, a manager names an unknown worker, a tool does not exist, or there are
                no workers or operations.
        """
        super().__init__(ledger, **common)
        led, workers = tuple(managers), tuple(workers)
        cast = Cast(self.ledger, (orchestrator, *led, *workers), capabilities=[Guards(limits)], **self.cast_options)
        self.roster = Roster(
            cast,
            orchestrator,
            {each.name: each for each in led},
            {each.name: each for each in workers},
            limits,
            roles,
            message_store,
            tuple(operations),
        )
        self.store = TeamStore(self.ledger)
        """The messages of the team, in several views."""

    @override
    def host(self, system: System) -> None:
        """Start the actors of the roles that run in this process."""
        roster = self.roster
        if "orchestrator" in roster.roles:
            system.spawn(roster.address(roster.orchestrator.name), partial(OrchestratorActor, roster))
        for name in roster.managers if "manager" in roster.roles else ():
            system.spawn(roster.address(name), partial(ManagerActor, roster, name))
        for name in roster.workers if "worker" in roster.roles else ():
            system.spawn(roster.address(name), partial(TeamWorkerActor, roster, name))

    @override
    async def run(self, task: Task, *, thread_id: str | None = None, message_history: MessageHistory = ()) -> Outcome:
        """Carry out a request of a user, and return the outcome. All agents that are asked read the history.

        The same task in the same thread continues where it stopped, or returns the recorded outcome.

        Raises:
            ParkedError: a person must approve or settle something; then run it again.
            HistoryMismatchError: the thread was written by another program.
            LedgerError: it could not be stored.
            Exception: an error of the host store's `add_message`; the same task passes the messages to it again.
        """
        thread_id = thread_id or current_port().new_id()
        address = self.roster.address(self.roster.orchestrator.name)
        given = TaskInput.of(task, message_history)
        turn = known_by("turn", address, thread_id, *given.identity)
        await given.hand_over(self.system, thread_id, turn)
        try:
            done = await self.system.ask(address, RunTurn(text=given.text), within=UNHURRIED, thread_id=thread_id, id=turn)
        except asyncio.CancelledError:
            await asyncio.shield(self._give_up(address, thread_id, turn))
            raise
        except DeliveryError as exc:
            outcome = failed(thread_id, exc)
        else:
            said = await read_answer(self.ledger, thread_id, lambda message: message.id == f"{turn}/answer")
            outcome = Outcome(thread_id, done.status, done.response, done.error_code, done.error_message)
            outcome = replace(outcome, data=thaw(done.final), messages=said)
        await self._hand_over(thread_id, turn)
        return outcome

    async def _hand_over(self, thread_id: str, turn: str) -> None:
        """Pass the messages of a turn to the host's store, if it takes messages."""
        store: object = self.roster.message_store
        if isinstance(store, RecordingMessageStore):
            await hand_over(store, thread_id, await self.store.get_messages(thread_id, turn=turn))

    async def _give_up(self, address: str, thread_id: str, turn: str) -> None:
        """Close the calls that a cancelled turn left open."""
        await self.system.tell(address, EndTurn(turn=turn), thread_id=thread_id, id=f"{turn}.end")
