"""Workers: the public class of the pattern."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable, Mapping
from contextlib import ExitStack, contextmanager
from functools import partial
from typing import Any, Final, Unpack

from typing_extensions import override

from antiphon.dialects.atlas import MessageType, StructuredMessage
from antiphon.errors import DeliveryError, StoppedError, UndeliverableError
from antiphon.ledger import Ledger, Record
from antiphon.messages import Conversation, Message, current_port
from antiphon.patterns.cast import (
    UNHURRIED,
    AgentSpec,
    Cast,
    CastError,
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
from antiphon.patterns.workers._actors import Control, ControllerActor, SensitiveArguments, WorkerActor
from antiphon.patterns.workers._agent import ToolCapableAgent
from antiphon.patterns.workers._assignment import (
    CONTROLLER,
    UNTOLD,
    ControllerPolicy,
    assign_task,
    model_policy,
    with_workers,
    worker_address,
)
from antiphon.patterns.workers._conversation import Reporting, check, is_said, is_tool_use, sent
from antiphon.patterns.workers._protocol import AskAgent, WorkerLimits, from_wire, to_wire
from antiphon.patterns.workers._responder import Responder, error_to
from antiphon.patterns.workers._schedule import Slots, late, lent_slot, time_left
from antiphon.runtime import System

_CLIENT: Final = "client/local"


class Workers(Pattern):
    """A controller that assigns tasks to workers, and workers that use tools."""

    def __init__(
        self,
        ledger: Ledger | None = None,
        workers: Iterable[AgentSpec | ToolCapableAgent] = (),
        *,
        controller: AgentSpec | ControllerPolicy = CONTROLLER,
        controller_name: str = CONTROLLER.name,
        reporting: Reporting = Reporting(),  # noqa: B008 (frozen)
        limits: WorkerLimits = WorkerLimits(),  # noqa: B008 (frozen)
        **common: Unpack[PatternOptions],
    ) -> None:
        """Make it; nothing runs before the `async with` block.

        The `controller` is an agent, whose model assigns the tasks, or a policy: a function of the message and an `Assigner`,
        with the name `controller_name`. Workers that are an `AgentSpec` share `model`, `toolkit` and `tools` with the
        controller, as in a `Cast`; a `ToolCapableAgent` has its own. Waiting tasks run by priority, then in the order of
        assignment. The other options are those of every pattern: see `Pattern` and `Cast`.

        Raises:
            CastError: two agents have the same name, or a tool does not exist.
        """
        super().__init__(ledger, **common)
        self.cast = Cast(self.ledger, **self.cast_options)
        self.limits, self._reporting = limits, reporting
        self._sensitive = SensitiveArguments()
        self._responders: dict[str, Responder] = {}
        self._slots: dict[str, Slots] = {}
        self._own: Responder | None = None
        """The responder of a controller that is an agent."""
        self._heard: list[Callable[[str, StructuredMessage], None]] = []
        for worker in workers:
            self._add(worker)
        self.controller = controller.name if isinstance(controller, AgentSpec) else controller_name
        if self.controller in self._responders:
            raise CastError(f"two agents are called {self.controller!r}; give one another name")
        self._policy = self._policy_of(controller)

    @property
    def workers(self) -> Mapping[str, str]:
        """The workers with their instructions."""
        return {name: responder.cast.spec(name).instructions for name, responder in self._responders.items()}

    @property
    def waiting(self) -> Mapping[str, int]:
        """How many tasks wait, by worker."""
        return {name: slots.waiting for name, slots in self._slots.items()}

    def _add(self, worker: AgentSpec | ToolCapableAgent) -> None:
        name = worker.name if isinstance(worker, AgentSpec) else worker.worker_id
        if name in self._responders:
            raise CastError(f"two agents are called {name!r}; give one another name")
        if isinstance(worker, AgentSpec):
            self.cast.add(worker)
            self._responders[name] = Responder(self.cast, name, self.limits.rounds, self._reporting)
        else:
            self._responders[name] = worker.responder(self.ledger)
        self._slots[name] = Slots(self.limits.at_once)

    def _policy_of(self, controller: AgentSpec | ControllerPolicy) -> ControllerPolicy:
        if not isinstance(controller, AgentSpec):
            return controller
        tool = self.cast.have_tool(assign_task, effects="none", allows_untrusted=True)
        self.cast.add(with_workers(controller, dict(self.workers), tool))
        responder = self._own = Responder(self.cast, controller.name, self.limits.rounds, self._reporting)
        return model_policy(responder)

    @override
    def host(self, system: System) -> None:
        control = Control(self.controller, self._policy, self.workers, self._reporting)
        system.spawn(f"controller/{self.controller}", partial(ControllerActor, control, self._sensitive))
        for name, responder in self._responders.items():
            system.spawn(worker_address(name), partial(WorkerActor, responder, self._slots[name], self._sensitive))
        system.watch(self._watch)

    @override
    @contextmanager
    def recovering(self) -> Generator[None]:
        with ExitStack() as stack:
            for slots in self._slots.values():
                stack.enter_context(slots.held())
            yield

    # ------------------------------------------------------------ requests

    @override
    async def run(self, task: Task, *, thread_id: str | None = None, message_history: MessageHistory = ()) -> Outcome:
        """Ask the controller. All agents that work on the task read the history.

        Raises:
            ParkedError: a person must settle or approve something; then run the same task in the same thread again.
        """
        thread_id = thread_id or current_port().new_id()
        given = TaskInput.of(task, message_history)
        message_id = known_by("query", thread_id, *given.identity)
        await given.hand_over(self.system, thread_id, message_id)
        query = StructuredMessage.create_query(given.text, "user", self.controller, task_id=thread_id, message_id=message_id)
        try:
            answer = await self.send(query)
        except StoppedError as exc:
            return failed(thread_id, exc)
        if answer.message_type != MessageType.ERROR:
            said = await read_answer(self.ledger, thread_id, partial(_is_answer, message_id))
            return Outcome(thread_id, "completed", answer.content, messages=said)
        return Outcome(thread_id, "failed", error_code=answer.metadata.get("code"), error_message=answer.content)

    async def send(self, message: StructuredMessage, *, within: float | None = None) -> StructuredMessage:
        """Send a message to its `target_agent`, and return the answer, or an ERROR message.

        The target is the controller (the default) or a worker. The thread has the id of the task. A repeated message returns
        the same answer.

        Raises:
            ParkedError: a person must settle or approve something; then send it again.
            HistoryMismatchError: another program has answered it differently before.
            LedgerError: it could not be stored.
        """
        name = message.target_agent or self.controller
        try:
            check(message)
            if time_left(message) == 0 and not await self._is_known(message):
                raise late()
            address, bare = await self._addressed(name, message)
            ids: dict[str, Any] = {"thread_id": message.task_id, "id": message.message_id, "sender": _CLIENT}
            with lent_slot():
                answered = await self.system.ask(address, AskAgent(message=to_wire(bare)), within=within or UNHURRIED, **ids)
        except UNTOLD:
            raise
        except DeliveryError as exc:
            return error_to(message, name, exc)
        return from_wire(answered.message, None)

    async def _is_known(self, message: StructuredMessage) -> bool:
        """Whether the ledger has a message: then its recorded answer is returned, even after its deadline."""
        return bool(await self.ledger.by_invocation(message.message_id, thread_id=message.task_id))

    async def _addressed(self, name: str, message: StructuredMessage) -> tuple[str, StructuredMessage]:
        """Return the address of an agent, and the message without sensitive arguments.

        Raises:
            UndeliverableError: there is no such agent.
        """
        if name == self.controller:
            address, responder = f"controller/{name}", self._own
        elif name in self._responders:
            address, responder = worker_address(name), self._responders[name]
        else:
            raise UndeliverableError(
                f"there is no agent {name!r}; there are {', '.join((self.controller, *self._responders))}"
            )
        return address, message if responder is None else self._sensitive.take_out(message, await responder.tools())

    # ------------------------------------------------------------ listeners

    def hear(self, listener: Callable[[str, StructuredMessage], None]) -> None:
        """Call a function with the thread id and each message of agents, right after the message was stored.

        Tool calls and results are included, as separate messages.
        """
        self._heard.append(listener)

    def _watch(self, record: Record) -> None:
        if self._heard and self._is_shown(record.message):
            thread_id = record.message.thread_id or ""
            for message in sent(Conversation([record.message]), thread_id):
                for listener in tuple(self._heard):
                    listener(thread_id, message)

    def _is_shown(self, message: Message, *, tools: bool = True) -> bool:
        # The call of `assign_task` is not shown: the task itself is.
        agents = (self.controller, *self._responders)
        return is_said(message) or (tools and is_tool_use(message, agents, besides=assign_task.__name__))

    async def messages(self, thread_id: str, *, tools: bool = True) -> list[StructuredMessage]:
        """Return the messages between agents in a thread, with their reports; see also `conversation`.

        With `tools`, also tool calls (`tool_request`) and results (`tool_response`).

        Raises:
            LedgerError: it cannot be read.
        """
        rows = [record.message async for record in self.ledger.read(thread_id)]
        return sent(Conversation([row for row in rows if self._is_shown(row, tools=tools)]), thread_id)


def _is_answer(message_id: str, message: Message) -> bool:
    return message.parent_id == message_id and message.id.startswith(f"{message_id}/answered")
