"""PeerActor: the actor of a peer. Its agent answers requests; the actor asks other peers for its agent.

It handles requests concurrently, even those of one thread: a peer may be asked by a peer that it waits for.
"""

from __future__ import annotations

import asyncio
from collections.abc import Generator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

from pydantic_ai import RunContext
from pydantic_ai.messages import UserContent

from antiphon.agents import LedgerRun, current_run, ledger_run
from antiphon.agents.extending import own_settings
from antiphon.agents.toolkit.taint import Taint, current_taint, taint_scope, untrusted_in
from antiphon.errors import DeliveryError, LedgerError, RefusedError
from antiphon.messages import Conversation, Json, Message
from antiphon.patterns.cast import Answer, Cast, handling, left_open, log_unexpected
from antiphon.patterns.peers._additions import memory_address
from antiphon.patterns.peers._calls import Calls, PeerTurn, Wanted
from antiphon.patterns.peers._letters import letter_of, marsys_form
from antiphon.patterns.peers._memory import PeerMemory
from antiphon.patterns.peers._prompts import prompt_of, recollect
from antiphon.patterns.peers._protocol import PATTERN, DelegateToPeer, InvokePeer, PeerAnswered, PeerHeard, PeerLimits, peer_at
from antiphon.patterns.peers._registry import PEER_NOT_FOUND, PeerRegistry
from antiphon.protocol import ErrorCode
from antiphon.runtime import Actor, Context, handles

_turn: ContextVar[PeerTurn | None] = ContextVar("antiphon.patterns.peers.turn", default=None)


class PeerActor(Actor):
    """One peer."""

    concurrency = 1000

    def __init__(self, registry: PeerRegistry, cast: Cast, calls: Calls, limits: PeerLimits) -> None:
        self._registry, self._cast, self._calls, self._limits = registry, cast, calls, limits

    @classmethod
    def ordering_key(cls, message: Message) -> str | None:
        """Handle all requests concurrently: otherwise peers that ask each other in a cycle would wait for themselves."""
        return message.id

    @handles
    async def invoke(self, request: InvokePeer, context: Context) -> PeerAnswered:
        """Ask the agent."""
        began = asyncio.get_running_loop().time()
        turn = self._turn(context, request.depth, request.task_id)
        async with handling(context, PATTERN) as here:
            prompt = await prompt_of(request, context, peer_at(context.message.policy))
            shared = await self._shared(turn.name, here.run)
            with _at_work(turn) as taint:
                content = await self._answer(turn, prompt, shared)
        took = round(asyncio.get_running_loop().time() - began, 6)
        untrusted = {"untrusted": taint.untrusted} if taint.untrusted else {}
        return PeerAnswered(content=content, completion_time=took, **untrusted)

    @handles
    async def delegate(self, request: DelegateToPeer, context: Context) -> PeerHeard:
        """Ask another peer for the agent."""
        turn = self._turn(context, 0, request.task_id)
        passed = tuple(request.context_message_ids)
        wanted = Wanted(request.target, request.request, passed, message_id=request.message_id)
        async with left_open(context), ledger_run(context) as run:
            return PeerHeard(message_id=(await self._calls.invoke(turn, run, wanted)).id)

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

        async def ends(_: str) -> Json:
            return {each: (await ledger.head(memory_address(each))).seq for each in names}

        found = await run.effect("read_memory", {"names": list(names)}, ends, effects="none")
        return [await PeerMemory.read_shared(ledger, each, before=seq + 1) for each, seq in found.items()]

    async def _answer(self, turn: PeerTurn, prompt: str | Sequence[UserContent], shared: Sequence[PeerMemory]) -> str:
        """Return the agent's answer. An error of the agent also becomes an answer to the caller."""
        context, cast = turn.context, self._cast
        more: dict[str, Any] = {"until": context.message, "limits": self._limits, "shared": shared}
        before = await recollect(cast.ledger, context.thread_id or "", turn.name, **more)
        try:
            answer: Answer[str] = await cast.ask(turn.name, prompt, history=before)
        except (DeliveryError, LedgerError):
            raise
        except Exception as exc:
            log_unexpected(exc, context)
            reason = f"{type(exc).__qualname__}: {exc}"
            raise RefusedError(reason, ErrorCode.AGENT_ERROR, details={"agent_id": turn.name}) from exc
        return answer.output


@contextmanager
def _at_work(turn: PeerTurn) -> Generator[Taint]:
    """Run a peer and track untrusted input; the caller's taint arrives with the request."""
    token = _turn.set(turn)
    try:
        with taint_scope(Taint()) as taint:
            yield taint
    finally:
        _turn.reset(token)


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
    wanted = Wanted(target, request, tuple(context_message_ids), _untrusted(ctx))
    said = await turn.calls.invoke(turn, run, wanted)
    letter, taint = letter_of(said), current_taint()
    if letter is not None and taint is not None:
        taint.mark(letter.untrusted)  # untrusted content that the other peer has read also taints the caller
    (form,) = marsys_form(Conversation([said]))
    found = {"role": form.role, "name": form.name, "content": form.content, "message_id": form.message_id}
    return {**found, "error_type": form.error_type} if form.role == "error" else found


def _untrusted(ctx: RunContext[Any]) -> str | None:
    """Return the source of untrusted content that the model had read when it decided to ask.

    Content that parallel calls of the same step read does not count: it cannot have influenced the decision, and its order
    may differ after a restart.
    """
    tools = [name for name, tool in ctx.tools.items() if own_settings(tool.metadata).get("untrusted")]
    return untrusted_in(ctx.messages, tools)
