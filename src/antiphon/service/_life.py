"""The life of a thread: its status, and pausing, resuming and terminating it, also if another process runs it.

Status and comparison work for threads of every pattern, and without the extra `agents`: threads of six phases exist only where
that is installed.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime
from importlib import import_module
from typing import TYPE_CHECKING, Any, Final

from antiphon import protocol
from antiphon.errors import DeliveryError, NotWaitingError, OtherPatternError, OwnProgramError, RefusedError
from antiphon.ledger import HostStatus, Ledger, ThreadSummary
from antiphon.runtime import System
from antiphon.runtime.extending import LIFE_ACTOR, STOPPED, error_response
from antiphon.service._runs import with_open_runs
from antiphon.service._threads import find_thread, hostless_reason, moved_reason, unfit_json

if TYPE_CHECKING:
    from antiphon.agents.extending import Choice
    from antiphon.patterns.postchain import ThreadLife

_CHAIN: Final = "postchain"
"""The pattern of threads of six phases. An imported or restored one has none."""


@dataclass(frozen=True, slots=True)
class ThreadReport:
    """The status of a thread."""

    thread_id: str
    status: str | None
    pattern: str | None
    messages: int
    open_calls: int
    created_at: datetime
    updated_at: datetime
    is_chain: bool = False
    """Whether it goes through six phases; only such a thread has the fields below."""
    current_phase: str | None = None
    turn: int = 0
    phases_completed: tuple[str, ...] = ()
    phases_remaining: tuple[str, ...] = ()
    waits_for: str | None = None
    """The reason why it waits, and what to do: for a person, with the commands; why its runs do not run, or no host continues
    it."""
    owner: str | None = None
    """The living host that owns it."""
    unfit: tuple[str, ...] = ()
    """The builds that cannot continue it, each with the reason."""

    def to_json(self) -> dict[str, Any]:
        """Return it as a JSON object; a thread of six phases has the fields of THREAD_STATUS."""
        if not self.is_chain:
            names = ("thread_id", "status", "pattern", "messages", "open_calls", "created_at", "updated_at")
            waits = {} if self.waits_for is None else {"waits_for": self.waits_for}
            return {**{name: getattr(self, name) for name in names}, **waits, **self._hosting()}
        return {
            "thread_id": self.thread_id,
            "status": self.status,
            "current_phase": self.current_phase,
            "turn": self.turn,
            "created_at": self.created_at.isoformat(),
            "updated_at": self.updated_at.isoformat(),
            "phases_completed": self.phases_completed,
            "phases_remaining": self.phases_remaining,
            **({} if self.waits_for is None else {"waits_for": self.waits_for}),
            **self._hosting(),
        }

    def _hosting(self) -> dict[str, Any]:
        """Return its owner and the builds that cannot continue it, if there are any."""
        said = {"owner": self.owner, "unfit": self.unfit}
        return {name: value for name, value in said.items() if value}


async def thread_status(ledger: Ledger, thread_id: str) -> ThreadReport:
    """Return the status of a thread. It writes nothing, so another process may run the thread meanwhile.

    Raises:
        UnknownThreadError: there is no such thread.
    """
    summary = await find_thread(ledger, thread_id)
    shared: dict[str, Any] = {
        name: getattr(summary, name) for name in ("pattern", "messages", "open_calls", "created_at", "updated_at")
    }
    hosts = await ledger.hosts()
    shared["owner"] = _living_owner(summary, hosts)
    moved, hostless = moved_reason(summary), hostless_reason(summary, hosts)
    shared["unfit"] = tuple(f"{each['build']}: {each['reason']}" for each in unfit_json(summary))
    life = await chain_life(ledger, thread_id)
    if life is None:
        listed = await with_open_runs(ledger, summary)
        reasons = [f"run {each.id}: {each.reason}" for each in listed.runs if each.reason is not None]
        return ThreadReport(thread_id, listed.status, **shared, waits_for=moved or "; ".join(reasons) or hostless)
    from antiphon.patterns.postchain import waiting_for  # noqa: PLC0415 (needs the extra `agents`)

    waiting = await waiting_for(ledger, thread_id)
    shared |= {name: datetime.fromisoformat(at) for name in ("created_at", "updated_at") if (at := getattr(life, name))}
    listed = await with_open_runs(ledger, summary)
    is_stopped = listed.status == STOPPED or (
        life.status == "paused" and waiting is not None and waiting.stopped_by is not None
    )
    return ThreadReport(
        thread_id,
        STOPPED if is_stopped else life.status,
        **shared,
        is_chain=True,
        current_phase=life.current_phase,
        turn=life.turn,
        phases_completed=life.completed,
        phases_remaining=life.remaining,
        waits_for=moved or (hostless if waiting is None else waiting.text),
    )


async def living_owner(ledger: Ledger, thread: ThreadSummary) -> str | None:
    """Return the name of the living host that owns a thread; None if there is none."""
    return None if thread.owner is None else _living_owner(thread, await ledger.hosts())


def _living_owner(thread: ThreadSummary, hosts: Sequence[HostStatus]) -> str | None:
    return thread.owner if any(each.is_alive and each.host.name == thread.owner for each in hosts) else None


async def chain_life(ledger: Ledger, thread_id: str, *, upto: int | None = None) -> ThreadLife | None:
    """Return the life of a thread of six phases; None for any other thread."""
    try:
        from antiphon.patterns.postchain import LIFE  # noqa: PLC0415 (needs the extra `agents`)
    except ModuleNotFoundError:  # without it, there are no such threads
        return None
    found = await ledger.thread(thread_id)
    if found is None or found.pattern not in (_CHAIN, None):
        return None  # without reading its messages, which may be many
    life = await ledger.replay(thread_id, LIFE.fold(), upto=upto)
    return None if life.status == "none" else life


async def check_chain(ledger: Ledger, thread_id: str, *, may_be_imported: bool = False) -> None:
    """Refuse a thread that does not go through six phases. An imported thread, which has no pattern, is accepted.

    Raises:
        UnknownThreadError: there is no such thread.
        OtherPatternError: it is of another pattern.
    """
    found = await find_thread(ledger, thread_id)
    if may_be_imported and found.pattern is None:
        return
    if await chain_life(ledger, thread_id) is None:
        raise OtherPatternError(f"thread {thread_id!r} does not go through six phases", thread_id, found.pattern)


def load_agents() -> None:
    """Import the lazily imported modules of the verbs for agents and six phases; nothing without the extra `agents`.

    It takes a second or two. A server calls it in another thread before it listens, so that no request waits for it.
    """
    with suppress(ModuleNotFoundError):
        for name in _USED_LATER:
            getattr(import_module(_USED_LATER[name]), name)  # packages import a module when a name of it is first used


_USED_LATER: Final = {
    "RunStatus": "antiphon.agents",
    "model_names": "antiphon.agents.models",
    "pending_approvals": "antiphon.agents.toolkit",
    "LIFE": "antiphon.patterns.postchain",
    "PostChain": "antiphon.patterns.postchain",
    "waiting_for": "antiphon.patterns.postchain",
}


# ---------------------------------------------------------------- moves


async def pause_thread(ledger: Ledger, thread_id: str) -> Mapping[str, Any]:
    """Pause a thread of any pattern: no new model or tool call starts. Running calls finish. Return THREAD_PAUSED, as JSON.

    The host of the thread answers; if none lives, this process.

    Raises:
        UnknownThreadError: there is no such thread.
        RefusedError: it cannot be paused; `details` is the ERROR of the protocol.
    """
    return await _moved(ledger, protocol.PauseThread(thread_id=thread_id), thread_id)


async def terminate_thread(ledger: Ledger, thread_id: str, reason: str = "user_request") -> Mapping[str, Any]:
    """End a thread of any pattern permanently: running calls are cancelled, no new one starts.

    Return THREAD_TERMINATED, as JSON.

    Raises:
        UnknownThreadError: there is no such thread.
        RefusedError: it cannot be terminated; `details` is the ERROR of the protocol.
    """
    return await _moved(ledger, protocol.TerminateThread(thread_id=thread_id, reason=reason), thread_id)


async def _moved(ledger: Ledger, request: protocol.Request[Any], thread_id: str) -> Mapping[str, Any]:
    """Send a request about the life of a thread to its owner."""
    await find_thread(ledger, thread_id)
    wire = protocol.Message(type=request.message_type, data=request.to_data())
    if await chain_life(ledger, thread_id) is not None:
        from antiphon.patterns.postchain import PostChain  # noqa: PLC0415 (needs the extra `agents`)

        async with PostChain(ledger, recover=False) as chain:
            return _checked(await chain.send(_json(wire)))
    async with System(ledger) as system:
        try:
            reply = await system.ask(LIFE_ACTOR, request, thread_id=thread_id)
        except DeliveryError as exc:
            return _checked(_json(error_response(wire, exc)))
        return _json(reply.to_response(wire))


def _json(message: protocol.Message | protocol.Response) -> dict[str, Any]:
    return message.model_dump(mode="json", exclude_none=True)


def _checked(response: dict[str, Any]) -> dict[str, Any]:
    if response["type"] == "ERROR":
        said = response["data"]
        raise RefusedError(str(said["error_message"]), said["error_code"], details=response)
    return response


async def resume_elsewhere(ledger: Ledger, thread_id: str) -> bool:
    """Let the thread's own program resume it, if only that program can. Return whether it did; False: resume it here.

    A thread whose current phase uses tools of a program cannot continue without that program. If the program does not run, the
    request is posted, and the program handles it when it runs again.

    Raises:
        OwnProgramError: the program does not run now.
        RefusedError: it cannot resume; `details` is the ERROR of the protocol.
    """
    life = await chain_life(ledger, thread_id)
    tools = None if life is None or life.is_over else await own_tools(ledger, thread_id, life)
    if life is None or tools is None:
        return False
    from antiphon.patterns.postchain import PostChain, post_request  # noqa: PLC0415 (needs the extra `agents`)

    request = {"type": protocol.ResumeThread.message_type, "data": {"thread_id": thread_id}}
    if await living_owner(ledger, await find_thread(ledger, thread_id)) is None:
        await post_request(ledger, request)
        reason = f"its {life.current_phase} phase uses {tools}, which only the thread's own program has"
        raise OwnProgramError(f"{reason}: start that program, and the thread continues there", thread_id)
    async with PostChain(ledger, recover=False) as chain:
        _checked(await chain.send(request))
    return True


async def allow_change(ledger: Ledger, thread_id: str, choice: Choice, *, run_id: str | None = None) -> tuple[str, ...]:
    """Allow the open runs of a thread, or one of them, to continue under a changed program. Return the runs.

    The program must be started again. Recorded steps are used unchanged (`continue`), or repeated (`restart`).
    Toolkits, guards and approvals are never covered.

    Raises:
        UnknownThreadError: there is no such thread.
        NotWaitingError: it has no such open run.
        LedgerError: it could not be stored.
    """
    from antiphon.agents.extending import allow_change as allow  # noqa: PLC0415 (needs the extra `agents`)

    await find_thread(ledger, thread_id)
    try:
        return await allow(ledger, thread_id, choice, run_id=run_id)
    except ValueError as exc:
        raise NotWaitingError(str(exc), thread_id) from exc


async def own_tools(ledger: Ledger, thread_id: str, life: ThreadLife) -> str | None:
    """Return a phase, or an agent, tool or toolkit of the current phase, that only the thread's own program has.

    None: there is none.
    """
    from antiphon.agents.tools import BUILTIN_TOOLS  # noqa: PLC0415 (needs the extra `agents`)
    from antiphon.patterns.postchain import GO_ON_WITH, prepared_agent  # noqa: PLC0415

    if own_phases := [phase for phase in life.order if phase not in protocol.PHASES]:
        return f"the phase {own_phases[0]!r}"
    agent = await prepared_agent(ledger, thread_id, life.current_phase)
    if agent is None:
        return None
    if own_agent := agent.model_extra.get("own"):
        return f"the agent {own_agent!r}"
    if toolkit := agent.model_extra.get("toolkit"):
        return f"the toolkit {toolkit!r}"
    own = [name for name in agent.tools or () if name not in (*BUILTIN_TOOLS, GO_ON_WITH)]
    return repr(own[0]) if own else None
