"""Workers: the public class of the pattern; and its actors, a controller that follows its policy, and workers.

Both actors answer clients (WORKERS_MESSAGE) and record the request and the answer in the thread. The sender of a task
(WORKERS_TASK), which is the controller or a worker that hands on its task, records it. Sensitive arguments of tool calls in a
message are kept only in memory: when the process ends, they are lost, and a call that has not started is refused.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Generator, Iterable, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any, Final, Unpack

from typing_extensions import override

from antiphon._listeners import Listener
from antiphon.agents.toolkit import ToolkitTool
from antiphon.agents.toolkit._taint import Taint, taint_scope
from antiphon.dialects.atlas import MessageType, StructuredMessage
from antiphon.durable import current_run, ledger_run
from antiphon.errors import BudgetExceededError, DeliveryError, RefusedError, SetupError, StoppedError, UndeliverableError
from antiphon.ledger import Ledger, Record
from antiphon.messages import Conversation, Message, current_port
from antiphon.messages._arguments import check_each, check_type
from antiphon.patterns.cast import AgentSpec, Cast, MessageHistory, Outcome, Pattern, PatternOptions, Task
from antiphon.patterns.cast._handling import (
    UNHURRIED,
    AgentActor,
    HandlerRun,
    end_open_calls,
    handling,
    left_open,
    request_key,
    stopped,
)
from antiphon.patterns.cast._pattern import TaskInput, ThreadHistory, failed, read_answer, read_history
from antiphon.patterns.workers._agent import Responder, ToolCapableAgent, answer_to, error_to, without_sensitive
from antiphon.patterns.workers._assignment import (
    CONTROLLER,
    UNTOLD,
    Assigner,
    ControllerPolicy,
    ask_worker,
    assign_task,
    model_policy,
    with_workers,
    worker_address,
)
from antiphon.patterns.workers._conversation import (
    HAND_ON,
    Reporting,
    check,
    ended_fields,
    is_between_agents,
    is_tool_use,
    reports_of,
    say,
    sent,
)
from antiphon.patterns.workers._schedule import (
    PATTERN,
    Answered,
    AskAgent,
    DoWorkerTask,
    Slots,
    Ticket,
    WorkerLimits,
    WorkerTaskDone,
    from_wire,
    late,
    lent_slot,
    time_left,
    to_wire,
    within_deadline,
)
from antiphon.protocol import ErrorCode
from antiphon.runtime import Context, System, handles, tag

# ---------------------------------------------------------------- sensitive arguments

_MOST: Final = 10_000
"""The maximum number of messages with kept arguments; beyond it, the oldest are dropped."""


class SensitiveArguments:
    """The sensitive arguments that were removed from messages, by message id."""

    def __init__(self) -> None:
        self._calls: OrderedDict[str, list[dict[str, Any]]] = OrderedDict()

    def take_out(self, message: StructuredMessage, tools: Mapping[str, ToolkitTool]) -> StructuredMessage:
        """Return a message without its sensitive arguments, and keep those."""
        calls = message.tool_calls
        shown_calls = without_sensitive(calls, tools)
        if shown_calls == calls:
            return message
        self._calls[message.message_id] = calls
        if len(self._calls) > _MOST:
            self._calls.popitem(last=False)
        shown = message.copy()
        shown.tool_calls = shown_calls
        return shown

    def put_back(self, message: StructuredMessage) -> StructuredMessage:
        """Return a message with its sensitive arguments, as far as they are in memory."""
        calls = self._calls.get(message.message_id)
        if calls is None:
            return message
        complete = message.copy()
        complete.tool_calls = calls
        return complete

    def drop(self, message: StructuredMessage) -> None:
        """Drop the arguments of an answered message."""
        self._calls.pop(message.message_id, None)


# ---------------------------------------------------------------- the actors


async def _answered(
    handler: HandlerRun, message: StructuredMessage, answer: StructuredMessage, *, is_recorded: bool = False
) -> Answered:
    is_error = answer.message_type == MessageType.ERROR  # also without a result: the answer looks like that of a task
    if not is_recorded:
        await say(answer, "answered", is_answer=not is_error or message.message_type == MessageType.TASK)
    if is_error:
        handler.status = "failed"
    return Answered(message=answer.to_dict())


def _tag(message: StructuredMessage) -> None:
    """Add the `trace_id` of a message, and similar fields, to the span of its handler."""
    tag({name: value for name, value in message.tracking.items() if isinstance(value, str)})


async def _end_late(code: str | None, context: Context, message: StructuredMessage, *keys: str) -> None:
    """If work ended because its deadline has passed, close its open calls, after its requests with `keys` have stopped."""
    run = current_run()
    if run is None or code != ErrorCode.TIMEOUT:
        return
    invocation_id, error = context.course.invocation_id, RefusedError("the deadline passed", ErrorCode.TIMEOUT)
    context.expect_leftovers()  # a cancelled effect may or may not have written its row
    for key in keys:
        await stopped(run, f"{invocation_id}/{key}")
    await end_open_calls(run, invocation_id, error, fields=ended_fields, besides=message.task_id)


# ---------------------------------------------------------------- the controller


@dataclass(frozen=True, slots=True)
class Control:
    """The configuration of a controller."""

    name: str
    policy: ControllerPolicy
    workers: Mapping[str, str]
    """The workers with their instructions."""
    reporting: Reporting


class ControllerActor(AgentActor):
    """Answers clients, and assigns tasks to workers."""

    def __init__(self, control: Control, sensitive: SensitiveArguments) -> None:
        self._control, self._sensitive = control, sensitive

    @handles
    async def ask(self, request: AskAgent, context: Context) -> Answered:
        """Run the policy."""
        shown = from_wire(request.message, context.message.created_at)
        query = self._sensitive.put_back(shown)
        async with handling(context, PATTERN) as handler:
            _tag(query)
            await say(shown, "asked")
            answer = await self._answer(query, context)
            self._sensitive.drop(query)
            return await _answered(handler, query, answer)

    async def _answer(self, query: StructuredMessage, context: Context) -> StructuredMessage:
        control = self._control
        history = await read_history(context.ledger, context.thread_id or "", until=context.message.id)
        with taint_scope(Taint()) as taint:
            taint.mark(history.untrusted)
            assigner = Assigner(control.name, query, control.workers, context, taint, history=history)
            async with reports_of(query, control.name, control.reporting):
                try:
                    async with within_deadline(query):
                        answer = await control.policy(query, assigner)
                except (RefusedError, BudgetExceededError) as exc:
                    if isinstance(exc, BudgetExceededError) and exc.limit is not None:
                        raise  # it continues with a new budget
                    await _end_late(exc.code, context, query, *assigner.task_keys)
                    return error_to(query, control.name, exc)
        return answer if isinstance(answer, StructuredMessage) else answer_to(query, control.name, answer)


# ---------------------------------------------------------------- workers


class WorkerActor(AgentActor):
    """Carries out tasks, and answers clients directly."""

    def __init__(self, responder: Responder, slots: Slots, sensitive: SensitiveArguments) -> None:
        self._responder, self._slots, self._sensitive = responder, slots, sensitive

    @handles
    async def ask(self, request: AskAgent, context: Context) -> Answered:
        """Answer a client."""
        shown = from_wire(request.message, context.message.created_at)
        message = self._sensitive.put_back(shown)
        with self._slots.ticket(message) as ticket:
            async with handling(context, PATTERN) as handler:
                await say(shown, "asked")
                done = await self._do(message, None, context, ticket, is_recorded=True, until=context.message.id)
                self._sensitive.drop(message)
                return await _answered(handler, message, from_wire(done.message, None), is_recorded=done.handed_on)

    @handles
    async def task(self, request: DoWorkerTask, context: Context) -> WorkerTaskDone:
        """Do a task."""
        message = from_wire(request.message, context.message.created_at)
        with self._slots.ticket(message) as ticket:
            async with left_open(context), ledger_run(context):
                return await self._do(message, request.untrusted, context, ticket, until=request.history)

    async def _do(
        self,
        message: StructuredMessage,
        untrusted: str | None,
        context: Context,
        ticket: Ticket,
        *,
        is_recorded: bool = False,
        until: str | None,
    ) -> WorkerTaskDone:
        """Carry out the task of a message; if it has a route, hand the result on to the next worker.

        The worker reads the history before the message `until`.
        """
        _tag(message)
        ledger, thread_id = context.ledger, context.thread_id or ""
        history = ThreadHistory() if until is None else await read_history(ledger, thread_id, until=until)
        answer, untrusted = await self._responder.process(
            message, untrusted, is_recorded=is_recorded, ticket=ticket, history=history
        )
        await _end_late(answer.metadata.get("code"), context, message)
        if not message.metadata.get("route") or answer.message_type == MessageType.ERROR:
            return WorkerTaskDone(message=answer.to_dict(), handed_on=False, untrusted=untrusted)
        return await self._hand_on(message, answer, context, untrusted, until if history else None)

    async def _hand_on(
        self,
        message: StructuredMessage,
        answer: StructuredMessage,
        context: Context,
        untrusted: str | None,
        until: str | None,
    ) -> WorkerTaskDone:
        """Hand the task on to the next worker, and return the answer of the last one to the waiting caller."""
        worker, *route = message.metadata["route"]
        metadata = {name: value for name, value in message.metadata.items() if name not in ("type", "route")}
        metadata = {"task": message.content, **metadata, **({"route": route} if route else {})}
        step = StructuredMessage.create_result(
            answer.content,
            message,
            source_agent=self._responder.name,
            target_agent=worker,
            message_id=f"{message.task_id}:{worker}",
            metadata=metadata,
            tool_results=answer.tool_results,
        )
        await say(step, "handed-on", is_answer=message.message_type == MessageType.TASK)
        taint = Taint()
        taint.mark(untrusted)
        try:
            seconds = time_left(message)
            done = await ask_worker(step, worker, context, taint, within=seconds, key=HAND_ON, history=until)
        except UNTOLD:
            raise
        except DeliveryError as exc:
            await _end_late(exc.code, context, message, HAND_ON)
            done = WorkerTaskDone(message=error_to(step, worker, exc).to_dict(), handed_on=False)
        if not done.handed_on:
            await say(from_wire(done.message, None), "final", is_answer=False)
        return WorkerTaskDone(message=done.message, handed_on=True, untrusted=taint.untrusted)


# ---------------------------------------------------------------- the public class

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
            SetupError: two agents have the same name, or a tool does not exist.
        """
        super().__init__(ledger, **common)
        check_type("limits", limits, WorkerLimits, "WorkerLimits(at_once=4)")
        self.cast = Cast(self.ledger, **self.cast_options)
        self.limits, self._reporting = limits, reporting
        self._sensitive = SensitiveArguments()
        self._responders: dict[str, Responder] = {}
        self._slots: dict[str, Slots] = {}
        self._controller_responder: Responder | None = None
        """The responder of a controller that is an agent."""
        self._listeners: list[Callable[[str, StructuredMessage], None]] = []
        for worker in check_each("workers", workers, AgentSpec | ToolCapableAgent, 'AgentSpec(name="ada")'):
            self._add(worker)
        check_type("controller", controller, AgentSpec | Callable, 'AgentSpec(name="boss")')
        self.controller = controller.name if isinstance(controller, AgentSpec) else controller_name
        if self.controller in self._responders:
            raise SetupError(f"two agents are called {self.controller!r}; give one another name")
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
            raise SetupError(f"two agents are called {name!r}; give one another name")
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
        responder = self._controller_responder = Responder(self.cast, controller.name, self.limits.rounds, self._reporting)
        return model_policy(responder)

    @override
    def casts(self) -> Iterable[Cast]:
        return (self.cast, *(responder.cast for responder in self._responders.values()))

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
        """Ask the controller. All agents that work on the task read the history."""
        thread_id = thread_id or current_port().new_id()
        request = TaskInput.of(task, message_history)
        message_id = request_key("query", thread_id, *request.identity)
        await request.hand_over(self.system, thread_id, message_id)
        query = StructuredMessage.create_query(request.text, "user", self.controller, task_id=thread_id, message_id=message_id)
        try:
            answer = await self.send(query)
        except StoppedError as exc:
            return failed(thread_id, exc)
        if answer.message_type != MessageType.ERROR:
            messages = await read_answer(self.ledger, thread_id, partial(_is_answer, message_id))
            return Outcome(thread_id, "completed", answer.content, messages=messages)
        return Outcome(thread_id, "failed", error_code=answer.metadata.get("code"), error_message=answer.content)

    async def send(self, message: StructuredMessage, *, within: float | None = None) -> StructuredMessage:
        """Send a message to its `target_agent`, and return the answer, or an ERROR message.

        The target is the controller (the default) or a worker. The thread has the id of the task. A repeated message returns
        the same answer.
        """
        check_type("a message", message, StructuredMessage, 'StructuredMessage("How are the sales?")')
        name = message.target_agent or self.controller
        try:
            check(message)
            # A recorded answer is returned even after the deadline.
            if time_left(message) == 0 and not await self.ledger.find(
                invocation_id=message.message_id, thread_id=message.task_id
            ):
                raise late()
            address, shown = await self._addressed(name, message)
            with lent_slot():
                answered = await self.system.ask(
                    address,
                    AskAgent(message=to_wire(shown)),
                    within=within or UNHURRIED,
                    thread_id=message.task_id,
                    id=message.message_id,
                    sender=_CLIENT,
                )
        except UNTOLD:
            raise
        except DeliveryError as exc:
            return error_to(message, name, exc)
        return from_wire(answered.message, None)

    async def _addressed(self, name: str, message: StructuredMessage) -> tuple[str, StructuredMessage]:
        """Return the address of an agent, and the message without sensitive arguments."""
        if name == self.controller:
            address, responder = f"controller/{name}", self._controller_responder
        elif name in self._responders:
            address, responder = worker_address(name), self._responders[name]
        else:
            raise UndeliverableError(
                f"there is no agent {name!r}; there are {', '.join((self.controller, *self._responders))}"
            )
        return address, message if responder is None else self._sensitive.take_out(message, await responder.tools())

    # ------------------------------------------------------------ listeners

    def on_message(self, function: Callable[[str, StructuredMessage], None]) -> None:
        """Call a function with the thread id and each message of agents, right after the message was stored.

        Tool calls and results are included, as separate messages.
        """
        self._listeners.append(Listener(function))

    def _watch(self, record: Record) -> None:
        if self._listeners and self._is_shown(record.message):
            thread_id = record.message.thread_id or ""
            for message in sent(Conversation([record.message]), thread_id):
                for notify in tuple(self._listeners):
                    notify(thread_id, message)

    def _is_shown(self, message: Message, *, tools: bool = True) -> bool:
        # The call of `assign_task` is not shown: the task itself is.
        agents = (self.controller, *self._responders)
        return is_between_agents(message) or (tools and is_tool_use(message, agents, assign_task.__name__))

    async def messages(self, thread_id: str, *, tools: bool = True) -> list[StructuredMessage]:
        """Return the messages between agents in a thread, with their reports; see also `conversation`.

        With `tools`, also tool calls (`tool_request`) and results (`tool_response`).
        """
        rows = [record.message async for record in self.ledger.read(thread_id)]
        return sent(Conversation([row for row in rows if self._is_shown(row, tools=tools)]), thread_id)


def _is_answer(message_id: str, message: Message) -> bool:
    return message.parent_id == message_id and message.id.startswith(f"{message_id}/answered")
