"""Peers: the public class of the pattern; `PeerAgent`, one peer; and `PeerActor`, the actor of a peer.

The agent of a peer answers requests; the actor asks other peers for its agent. It handles requests concurrently, even those of
one thread: a peer may be asked by a peer that it waits for.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextvars import ContextVar
from functools import partial
from typing import Any, TypeVar, Unpack

from pydantic_ai import RunContext
from pydantic_ai.messages import UserContent
from typing_extensions import override

from antiphon.agents._config import known_names
from antiphon.agents._deeds import note_deed
from antiphon.agents.toolkit._taint import Taint, current_taint, taint_scope, untrusted_in
from antiphon.agents.toolkit._tool import declared_settings
from antiphon.dialects import marsys
from antiphon.durable import LedgerRun, current_run, ledger_run
from antiphon.errors import AntiphonError, DeliveryError, LedgerError, RefusedError, SetupError
from antiphon.ledger import Ledger
from antiphon.messages import Conversation, current_port
from antiphon.messages._arguments import check_each, check_type
from antiphon.patterns.cast import AgentSpec, Answer, Cast, MessageHistory, Outcome, Pattern, PatternOptions, Task
from antiphon.patterns.cast._handling import UNHURRIED, AgentActor, handling, left_open, log_unexpected, request_key
from antiphon.patterns.cast._pattern import TaskInput, failed, read_answer
from antiphon.patterns.peers._additions import memory_address
from antiphon.patterns.peers._calls import BreakerState, Calls, PeerTurn
from antiphon.patterns.peers._letters import (
    KIND,
    PATTERN,
    DelegateToPeer,
    InvokePeer,
    PeerAnswered,
    PeerHeard,
    PeerLimits,
    address_of,
    dated,
    for_model,
    from_model,
    letter_of,
    marsys_form,
    peer_at,
)
from antiphon.patterns.peers._memory import PeerMemory, is_answer, prompt_of, recollect
from antiphon.patterns.peers._registry import EVERYBODY, INVOKE_AGENT, PEER_NOT_FOUND, PeerRegistry, PeerSpec, Topology
from antiphon.protocol import ErrorCode, Reply, Request
from antiphon.runtime import Context, System, handles

# ---------------------------------------------------------------- the actor

_turn: ContextVar[PeerTurn | None] = ContextVar("antiphon.patterns.peers.turn", default=None)


class PeerActor(AgentActor):
    """One peer."""

    def __init__(self, registry: PeerRegistry, cast: Cast, calls: Calls, limits: PeerLimits) -> None:
        self._registry, self._cast, self._calls, self._limits = registry, cast, calls, limits

    @handles
    async def invoke(self, request: InvokePeer, context: Context) -> PeerAnswered:
        """Ask the agent."""
        began = asyncio.get_running_loop().time()
        turn = self._turn(context, request.depth, request.task_id)
        async with handling(context, PATTERN) as handler:
            prompt = await prompt_of(request, context, peer_at(context.message.policy))
            shared = await self._shared(turn.name, handler.run)
            token = _turn.set(turn)
            try:
                with taint_scope(Taint()) as taint:  # the caller's taint arrives with the request
                    content = await self._answer(turn, prompt, shared)
            finally:
                _turn.reset(token)
        seconds = round(asyncio.get_running_loop().time() - began, 6)
        return PeerAnswered(content=content, completion_time=seconds, untrusted=taint.untrusted)

    @handles
    async def delegate(self, request: DelegateToPeer, context: Context) -> PeerHeard:
        """Ask another peer for the agent."""
        turn, ids = self._turn(context, 0, request.task_id), request.context_message_ids
        async with left_open(context), ledger_run(context) as run:
            letter = await self._calls.invoke(turn, run, request.target, request.request, ids, message_id=request.message_id)
        return PeerHeard(message_id=letter.id)

    def _turn(self, context: Context, depth: int, task_id: str | None) -> PeerTurn:
        name = peer_at(context.address) or ""
        if name not in self._registry:
            reason = f"there is no agent {name!r}; there are {', '.join(self._registry.names) or 'none'}"
            raise RefusedError(reason, PEER_NOT_FOUND)
        if context.thread_id is None:
            raise RefusedError("a peer works in a thread: ask it in one", ErrorCode.VALIDATION_ERROR)
        return PeerTurn(context, name, depth, self._calls, task_id)

    async def _shared(self, name: str, run: LedgerRun) -> list[PeerMemory]:
        """Return the shared memories of the peer, as of the first attempt of this request.

        Others may add to them at any time. The end of each memory is recorded first, so that a process that continues after
        a crash gives the model the same messages.
        """
        ledger, names = self._cast.ledger, self._registry.get(name).shares
        if not names:
            return []

        async def ends(_: str) -> dict[str, int]:
            return {memory: (await ledger.head(memory_address(memory))).seq for memory in names}

        seqs = await run.effect("read_memory", {"names": list(names)}, ends, effects="none")
        return [await PeerMemory.read_shared(ledger, memory, before=seq + 1) for memory, seq in seqs.items()]

    async def _answer(self, turn: PeerTurn, prompt: str | Sequence[UserContent], shared: Sequence[PeerMemory]) -> str:
        """Return the agent's answer. An error of the agent also becomes an answer to the caller."""
        context, cast = turn.context, self._cast
        history = await recollect(
            cast.ledger, context.thread_id or "", turn.name, until=context.message, limits=self._limits, shared=shared
        )
        try:
            answer: Answer[str] = await cast.ask(turn.name, prompt, history=history)
        except (DeliveryError, LedgerError):
            raise
        except Exception as exc:
            log_unexpected(exc, context)
            reason = f"{type(exc).__qualname__}: {exc}"
            raise RefusedError(reason, ErrorCode.AGENT_ERROR, details={"agent_id": turn.name}) from exc
        return answer.output


async def invoke_agent(  # noqa: D417 (a model is told nothing of `ctx`)
    ctx: RunContext[Any], target: str, request: str, context_message_ids: tuple[str, ...] = ()
) -> dict[str, Any]:
    """Ask another agent, and wait for its answer. It knows nothing but what you write.

    Args:
        target: The name of the agent.
        request: What it is to do, with all that it must know.
        context_message_ids: Messages that it is given besides, by the `message_id` of earlier answers.
    """
    turn, run = _turn.get(), current_run()
    if turn is None or run is None:
        raise RuntimeError("only a peer that is at work can ask another")
    note_deed(invoke_agent.__name__)  # asked again, the other would do its work again
    answer = await turn.calls.invoke(turn, run, target, request, context_message_ids, untrusted=_untrusted(ctx))
    letter, taint = letter_of(answer), current_taint()
    if letter is not None and taint is not None:
        taint.mark(letter.untrusted)  # untrusted content that the other peer has read also taints the caller
    (form,) = marsys_form(Conversation([answer]))
    fields = {"role": form.role, "name": form.name, "content": form.content, "message_id": form.message_id}
    return {**fields, "error_type": form.error_type} if form.role == "error" else fields


def _untrusted(ctx: RunContext[Any]) -> str | None:
    """Return the source of untrusted content that the model had read when it decided to ask.

    Content that parallel calls of the same step read does not count: it cannot have influenced the decision, and its order
    may differ after a restart.
    """
    tools = [name for name, tool in ctx.tools.items() if declared_settings(tool.metadata).get("untrusted")]
    return untrusted_in(ctx.messages, tools)


# ---------------------------------------------------------------- a request as text, or as an agent_call


def delegation(
    target: str | marsys.Message, request: str | None, caller: str | None, context_message_ids: tuple[str, ...]
) -> tuple[str, DelegateToPeer, tuple[str, ...]]:
    """Return the caller, its request, and the identity of the request."""
    ids = context_message_ids
    if isinstance(target, marsys.Message):
        call = target
        caller, name, text = _read_call(call, request, caller)
        delegate = DelegateToPeer(
            target=name, request=text, context_message_ids=ids, task_id=call.task_id, message_id=call.message_id
        )
        return caller, delegate, (caller, name, text, *ids, call.message_id)
    if request is None or caller is None:
        raise ValueError("the request or the caller is missing: use invoke(target, request, caller=…), or pass an agent_call")
    delegate = DelegateToPeer(target=target, request=request, context_message_ids=ids)
    return caller, delegate, (caller, target, request, *ids)


def _read_call(call: marsys.Message, request: str | None, caller: str | None) -> tuple[str, str, str]:
    """Return the caller, the target and the request of an `agent_call`."""
    if call.role != "agent_call" or not call.name or not call.text:
        raise ValueError(f"expected an agent_call with a name and a content, not {call.role!r} for {call.name!r}")
    named_caller = call.caller or caller
    if named_caller is None or request is not None or caller not in (None, named_caller):
        raise ValueError("an agent_call says who asks (metadata['caller']) and what: give neither a second time")
    if not isinstance(call.content, str) and any(part.get("type") != "text" for part in call.content):
        raise ValueError("a peer is asked in words; pass on other messages by context_message_ids")
    return named_caller, call.name, call.text


# ---------------------------------------------------------------- one peer


class PeerAgent:
    """One peer: its name, its memory, its requests to others, and its message processors."""

    def __init__(self, peers: Peers, name: str) -> None:
        self._peers = peers
        self.name = name

    @property
    def spec(self) -> PeerSpec:
        """Its configuration."""
        return self._peers.registry.get(self.name)

    async def memory(self, thread_id: str) -> PeerMemory:
        """Return its current memory of a thread."""
        return await self._peers.memory(self.name, thread_id)

    async def invoke_agent(
        self,
        target: str | marsys.Message,
        request: str | None = None,
        *,
        thread_id: str | None = None,
        context_message_ids: Sequence[str] = (),
    ) -> marsys.Message:
        """Ask another peer, by its name or with an `agent_call`, and return its answer, or an error: see `Peers.invoke`."""
        return await self._peers.invoke(
            target, request, caller=self.name, thread_id=thread_id, context_message_ids=context_message_ids
        )

    def _input_message_processor(self) -> Callable[[Mapping[str, Any]], dict[str, Any]]:
        """Return the function that turns a model's response into a message of the peer; for `Message.from_response_dict`."""
        return partial(from_model, self.name)

    def _output_message_processor(self) -> Callable[[marsys.Message], dict[str, Any]]:
        """Return the function that turns a message into input for the peer's model."""
        return partial(for_model, self.name)


# ---------------------------------------------------------------- the pattern

ReplyT = TypeVar("ReplyT", bound=Reply)


class Peers(Pattern):
    """Named agents that ask each other."""

    def __init__(
        self,
        ledger: Ledger | None = None,
        agents: Iterable[AgentSpec] = (),
        *,
        topology: Topology | None = None,
        limits: PeerLimits = PeerLimits(),  # noqa: B008 (frozen)
        **common: Unpack[PatternOptions],
    ) -> None:
        """Make it; nothing runs before the `async with` block.

        The first agent is the one that `run` asks. The peers that an agent may ask are in its `PeerSpec`; a `topology`
        overrides that. The other options are those of every pattern: see `Pattern` and `Cast`.

        Raises:
            SetupError: two agents have the same name, the topology names an unknown agent, or a tool does not exist.
        """
        super().__init__(ledger, **common)
        check_type("limits", limits, PeerLimits, "PeerLimits(max_depth=3)")
        self.limits = limits
        self.registry = PeerRegistry(_placed(agents, topology))
        self._cast = Cast(self.ledger, **self.cast_options)
        self._calls = Calls(self.ledger, self.registry, limits)
        self._cast.have_tool(invoke_agent, effects="none", allows_untrusted=True)
        for spec in self.registry:
            self._add(spec)

    # ------------------------------------------------------------ agents

    def register(self, spec: PeerSpec) -> PeerAgent:
        """Add a peer.

        Raises:
            SetupError: the name is taken.
        """
        self.registry.register(spec)
        try:
            self._add(spec)
        except AntiphonError:
            self.registry.unregister(spec.name)
            raise
        return self.agent(spec.name)

    def unregister(self, name: str) -> None:
        """Remove a peer: requests to it then fail with PEER_NOT_FOUND."""
        self.registry.unregister(name)
        self._cast.remove(name)

    def agent(self, name: str) -> PeerAgent:
        """Return a peer."""
        return PeerAgent(self, self.registry.get(name).name)

    def _add(self, spec: PeerSpec) -> None:
        instructions, tools = [spec.instructions] if spec.instructions else [], spec.tools
        allowed = tuple(spec.allowed_peers)
        if spec.allowed_peers == EVERYBODY:
            allowed = tuple(name for name in self.registry.names if name != spec.name) or ("whoever there is",)
        if allowed:
            instructions.append(f"You can ask other agents with {INVOKE_AGENT}: {', '.join(allowed)}.")
            tools = (*tools, INVOKE_AGENT)
        self._cast.add(spec.model_copy(update={"instructions": "\n\n".join(instructions), "tools": tools}))

    # ------------------------------------------------------------ requests

    @override
    def casts(self) -> Iterable[Cast]:
        return (self._cast,)

    @override
    def host(self, system: System) -> None:
        """Start its actors in a system."""
        system.register(KIND, partial(PeerActor, self.registry, self._cast, self._calls, self.limits))

    @override
    async def run(
        self,
        task: Task,
        *,
        thread_id: str | None = None,
        message_history: MessageHistory = (),
        peer: str | None = None,
    ) -> Outcome:
        """Ask a peer: the first, unless another is named. It reads the history, within `PeerLimits.added_messages`."""
        name = self.registry.get(peer or next(iter(self.registry.names), "")).name
        thread_id = thread_id or current_port().new_id()
        task_input = TaskInput.of(task, message_history)
        request_id = request_key("ask", thread_id, name, *task_input.identity)
        message_id = await task_input.hand_over(self.system, thread_id, request_id)
        request = InvokePeer(request=task_input.text, message_id=message_id)
        try:
            answered = await self._ask(name, request, thread_id, request_id)
        except DeliveryError as exc:
            return failed(thread_id, exc)
        answer = await read_answer(self.ledger, thread_id, partial(is_answer, request_id, name))
        return Outcome(thread_id, "completed", answered.content, messages=answer)

    async def invoke(
        self,
        target: str | marsys.Message,
        request: str | None = None,
        *,
        caller: str | None = None,
        thread_id: str | None = None,
        context_message_ids: Sequence[str] = (),
    ) -> marsys.Message:
        """Let one peer ask another, as its agent would; return the `agent_response`, or the `error`.

        Pass the target, the request and the caller; or an `agent_call`, which has all three. The thread keeps its id and its
        task, and the answer has the same task. `context_message_ids` are messages of the caller's memory to forward. The same
        call in the same thread returns the recorded answer.

        Raises:
            ValueError: an argument is missing, or the message is not an `agent_call`.
        """
        caller, delegate, identity = delegation(target, request, caller, tuple(context_message_ids))
        name = self.registry.get(caller).name
        thread_id = thread_id or current_port().new_id()
        answered = await self._ask(name, delegate, thread_id, request_key("delegate", thread_id, *identity))
        letters = {letter.message_id: letter for letter in await self.letters(thread_id)}
        return letters[answered.message_id]

    async def _ask(self, name: str, request: Request[ReplyT], thread_id: str, request_id: str) -> ReplyT:
        return await self.system.ask(
            address_of(name), request, sender="user", within=UNHURRIED, thread_id=thread_id, id=request_id
        )

    # ------------------------------------------------------------ state

    async def memory(self, name: str, thread_id: str) -> PeerMemory:
        """Return the current memory of a peer in a thread."""
        return await PeerMemory.read(self.ledger, thread_id, self.registry.get(name).name)

    async def shared(self, name: str) -> PeerMemory:
        """Return the current state of a memory that peers share across threads (`PeerSpec.shares`)."""
        return await PeerMemory.read_shared(self.ledger, name)

    async def letters(self, thread_id: str) -> list[marsys.Message]:
        """Return the messages between peers in a thread: calls, responses and errors."""
        rows = [record async for record in self.ledger.read(thread_id)]
        return marsys_form(Conversation(dated(row) for row in rows if letter_of(row.message) is not None))

    async def breaker(self, name: str) -> BreakerState:
        """Return the state of a peer's circuit breaker: closed, open, or half-open."""
        return await self._calls.breaker.state(self.registry.get(name).name)


def _placed(agents: Iterable[AgentSpec], topology: Mapping[str, tuple[str, ...]] | None) -> list[PeerSpec]:
    """Return the specs with the peers that each may ask."""
    check_type("topology", topology, Mapping | None, '{"ada": ("bob",)}')
    places = topology or {}
    specs = check_each("agents", agents, AgentSpec, 'AgentSpec(name="ada")')
    if missing := places.keys() - {spec.name for spec in specs}:
        name = min(missing)
        hint = known_names(name, [spec.name for spec in specs], "they are", "none")
        raise SetupError(f"the topology names {name!r}, who is not among the agents{hint}")
    peers: list[PeerSpec] = []
    for spec in specs:
        fields = {**spec.model_dump(), "agent": spec.agent, "deps": spec.deps}
        if spec.name in places:
            fields["allowed_peers"] = places[spec.name]
        peers.append(PeerSpec.model_validate(fields))
    return peers
