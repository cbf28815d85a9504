"""The life of a thread: its status, and pausing, resuming and terminating it, also if another process runs it.

Status and comparison work for threads of every pattern, and without the extra `agents`: threads of six phases exist only where
that is installed.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from datetime import datetime
from importlib import import_module
from typing import TYPE_CHECKING, Any, Final, cast

from antiphon import protocol
from antiphon.durable import waiting_for
from antiphon.errors import DeliveryError, NotWaitingError, RefusedError, ServiceError, ThreadEndedError
from antiphon.ledger import HostStatus, Ledger, ThreadSummary, replay
from antiphon.messages import OptionResultPayload
from antiphon.protocol import ThreadResult
from antiphon.runtime import System
from antiphon.runtime._exchange import error_response
from antiphon.runtime._gates import LIFE_ACTOR
from antiphon.runtime._rows import notice_in
from antiphon.runtime._settings import STOPPED
from antiphon.service._runs import list_runs, with_open_runs
from antiphon.service._threads import RUN_KIND, find_thread, hostless_reason, is_of_runs, moved_reason
from antiphon.service._values import StatusValue

if TYPE_CHECKING:
    from antiphon.durable import Choice
    from antiphon.patterns.postchain._lifecycle import ThreadLife

_FAILED: Final = "failed"
_CHAIN: Final = "postchain"
"""The pattern of threads of six phases. An imported or restored one has none."""


async def thread_status(ledger: Ledger, thread_id: str) -> StatusValue:
    """Return the status of a thread. It writes nothing, so another process may run the thread meanwhile."""
    summary = await find_thread(ledger, thread_id)
    hosts = await ledger.hosts()
    moved, hostless = moved_reason(summary.moved_to), hostless_reason(summary, hosts, ledger)
    life = await chain_life(ledger, thread_id)
    listed = await with_open_runs(ledger, summary)
    status, error = listed.status, None
    waiting = await waiting_for(ledger, thread_id) if summary.open_calls else None
    if life is None:
        reasons = [f"run {run.id}: {run.reason}" for run in listed.runs if run.reason is not None]
        if status == _FAILED and not reasons:
            error = await _error(ledger, thread_id)
        waits_for = "; ".join(reasons) or (hostless if waiting is None else waiting.text)
    else:
        is_stopped = life.status == "paused" and waiting is not None and waiting.stopped_by is not None
        status = STOPPED if status == STOPPED or is_stopped else life.status
        if life.status == _FAILED:
            error = await _error(ledger, thread_id)
        waits_for = hostless if waiting is None else waiting.text
    return StatusValue(
        thread_id=thread_id,
        status=status,
        pattern=summary.pattern,
        messages=summary.messages,
        open_calls=summary.open_calls,
        created_at=_moment(life.created_at if life else None) or summary.created_at,
        updated_at=_moment(life.updated_at if life else None) or summary.updated_at,
        is_chain=life is not None,
        current_phase=life.current_phase if life else None,
        turn=life.turn if life else 0,
        phases_completed=tuple(life.completed) if life else (),
        phases_remaining=tuple(life.remaining) if life else (),
        waits_for=moved or waits_for,
        error=error,
        owner=_living_owner(summary, hosts),
        unfit=tuple(f"{build.build}: {build.reason}" for build in listed.unfit),
    )


def _moment(text: str | None) -> datetime | None:
    return datetime.fromisoformat(text) if text else None


async def _error(ledger: Ledger, thread_id: str) -> str | None:
    """Return why the last request in a thread has failed."""
    async for record in ledger.read(thread_id, reverse=True):
        message, payload = record.message, record.message.payload
        match notice_in(message), payload:
            case (ThreadResult.message_type, data), _:
                return cast("str | None", data.get("error_message"))
            case _, OptionResultPayload(is_error=True) if (
                message.lane == "control" and message.parent_id is None and message.policy != str(LIFE_ACTOR)
            ):
                return payload.error_message
            case _:
                pass
    return None


async def living_owner(ledger: Ledger, thread: ThreadSummary) -> str | None:
    """Return the name of the living host that owns a thread; None if there is none."""
    return None if thread.owner is None else _living_owner(thread, await ledger.hosts())


def _living_owner(thread: ThreadSummary, hosts: Sequence[HostStatus]) -> str | None:
    return thread.owner if any(host.is_alive and host.host.name == thread.owner for host in hosts) else None


async def chain_life(ledger: Ledger, thread_id: str, *, upto: int | None = None) -> ThreadLife | None:
    """Return the life of a thread of six phases; None for any other thread."""
    try:
        from antiphon.patterns.postchain._lifecycle import LIFE  # noqa: PLC0415 (needs the extra `agents`)
    except ModuleNotFoundError:  # without it, there are no such threads
        return None
    summary = await ledger.thread(thread_id)
    if summary is None or summary.pattern not in (_CHAIN, None):
        return None  # without reading its messages, which may be many
    life = await replay(ledger, thread_id, LIFE.fold(), upto=upto)
    return None if life.status == "none" else life


async def check_chain(ledger: Ledger, thread_id: str, *, may_be_imported: bool = False) -> None:
    """Refuse a thread that does not go through six phases. An imported thread, which has no pattern, is accepted."""
    summary = await find_thread(ledger, thread_id)
    if summary.open_calls and is_of_runs(summary):
        name = (summary.kind or "").removeprefix(RUN_KIND)
        reason = f"thread {thread_id!r} has an open run of program {name!r}, which continues it"
        raise ServiceError(reason, thread_id, code="OWN_PROGRAM")
    if may_be_imported and summary.pattern is None:
        return
    if await chain_life(ledger, thread_id) is None:
        raise ServiceError(f"thread {thread_id!r} does not go through six phases", thread_id, code="OTHER_PATTERN")


async def check_not_ended(ledger: Ledger, thread_id: str, *, may_have_failed: bool = False) -> None:
    """Refuse a thread that has failed or was terminated. `may_have_failed`: a failed thread is accepted, to take a question.

    It reads only the ledger: commands call it before they look for a model.
    """
    summary, life = await find_thread(ledger, thread_id), await chain_life(ledger, thread_id)
    status = summary.status if life is None else life.status
    is_failed = status in ("failed", "cancelled") and (life is not None or not summary.open_calls)  # a run stays open
    if status is not None and (status == "terminated" or (is_failed and not may_have_failed)):
        raise ThreadEndedError(f"thread {thread_id} is {status}", thread_id, status)


def load_agents() -> None:
    """Import the lazily imported modules of the verbs for agents and six phases; nothing without the extra `agents`.

    It takes a second or two. A server calls it in another thread before it listens, so that no request waits for it.
    """
    with suppress(ModuleNotFoundError):
        for name in _LAZY_NAMES:
            getattr(import_module(_LAZY_NAMES[name]), name)  # packages import a module when a name of it is first used


_LAZY_NAMES: Final = {
    "RunStatus": "antiphon.durable",
    "model": "antiphon.agents.models",
    "pending_approvals": "antiphon.agents.toolkit",
    "LIFE": "antiphon.patterns.postchain._lifecycle",
    "PostChain": "antiphon.patterns.postchain",
    "waiting_for": "antiphon.durable",
}


# ---------------------------------------------------------------- moves


async def pause_thread(ledger: Ledger, thread_id: str) -> Mapping[str, Any]:
    """Pause a thread of any pattern: no new model or tool call starts. Running calls finish. Return THREAD_PAUSED, as JSON.

    The host of the thread answers; if none lives, this process.

    Raises:
        ThreadEndedError: all runs in the thread have ended.
        RefusedError: it cannot be paused; `details` is the ERROR of the protocol.
    """
    thread = await find_thread(ledger, thread_id)
    if is_of_runs(thread) and not await ledger.open_calls(thread_id):
        ended = await list_runs(ledger, thread_id, with_ended=True)
        if ended and all(run.status == "completed" for run in ended):
            raise ThreadEndedError(
                f"thread {thread_id} has nothing to pause: all its runs are completed", thread_id, "completed"
            )
    return await _send_life(ledger, protocol.PauseThread(thread_id=thread_id), thread_id)


async def terminate_thread(ledger: Ledger, thread_id: str, reason: str = "user_request") -> Mapping[str, Any]:
    """End a thread of any pattern permanently: running calls are cancelled, no new one starts.

    Return THREAD_TERMINATED, as JSON.

    Raises:
        RefusedError: it cannot be terminated; `details` is the ERROR of the protocol.
    """
    return await _send_life(ledger, protocol.TerminateThread(thread_id=thread_id, reason=reason), thread_id)


async def _send_life(ledger: Ledger, request: protocol.Request[Any], thread_id: str) -> Mapping[str, Any]:
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
        error = response["data"]
        raise RefusedError(str(error["error_message"]), error["error_code"], details=response)
    return response


async def resume_elsewhere(ledger: Ledger, thread_id: str) -> bool:
    """Let the thread's own program resume it, if only that program can. Return whether it did; False: resume it here.

    A thread whose current phase uses tools of a program cannot continue without that program. If the program does not run, the
    request is posted, and the program handles it when it runs again. The runs of a program continue only in that program; a
    paused thread with open runs is resumed here, and continues when the program runs again.

    Raises:
        ServiceError: the program does not run now.
        ThreadEndedError: all runs in the thread have ended, or nothing was run in it.
        RefusedError: it cannot resume; `details` is the ERROR of the protocol.
    """
    life, summary = await chain_life(ledger, thread_id), await ledger.thread(thread_id)
    if life is None and summary is not None and is_of_runs(summary):
        return await _resume_runs(ledger, summary)
    if life is None and summary is not None and await _is_unused(ledger, summary):
        if summary.status == "paused":
            await _send_life(ledger, protocol.ResumeThread(thread_id=thread_id), thread_id)
        raise ThreadEndedError(f"thread {thread_id} has nothing to continue: it was not run", thread_id, "not run")
    tools = None if life is None or life.is_over else await own_tools(ledger, thread_id, life)
    if life is None or tools is None:
        return False
    from antiphon.patterns.postchain import PostChain  # noqa: PLC0415 (needs the extra `agents`)
    from antiphon.patterns.postchain._gateway import post_request  # noqa: PLC0415 (needs the extra `agents`)

    request = {"type": protocol.ResumeThread.message_type, "data": {"thread_id": thread_id}}
    if await living_owner(ledger, await find_thread(ledger, thread_id)) is None:
        await post_request(ledger, request)
        reason = f"its {life.current_phase} phase uses {tools}, which only the thread's own program has"
        advice = "start that program, and the thread continues there"
        raise ServiceError(f"{reason}: {advice}", thread_id, code="OWN_PROGRAM")
    async with PostChain(ledger, recover=False) as chain:
        _checked(await chain.send(request))
    return True


async def _is_unused(ledger: Ledger, thread: ThreadSummary) -> bool:
    """Whether nothing was run in a thread: it was imported, or is a branch of such a thread."""
    if thread.pattern is not None or thread.kind is not None or thread.open_calls:
        return False
    from antiphon.service._settings import settings_of  # noqa: PLC0415 (needs the extra `agents`)

    return await settings_of(ledger, thread.thread_id) is None


async def _resume_runs(ledger: Ledger, thread: ThreadSummary) -> bool:
    """Resume a thread of a program's runs, if it is paused. Return True if the program runs now."""
    thread_id = thread.thread_id
    if thread.status == "paused":
        await _send_life(ledger, protocol.ResumeThread(thread_id=thread_id), thread_id)
    open_runs = await list_runs(ledger, thread_id)
    if not open_runs:
        status = thread.status or "completed"
        raise ThreadEndedError(f"thread {thread_id} is {status}", thread_id, status)
    if await living_owner(ledger, thread) is not None:
        return True
    run = open_runs[0]
    start = "" if run.is_left else f"; then start program {run.name!r} again"
    reason = f"only its own program can continue thread {thread_id}: run {run.id!r} is {run.status}: {run.reason}{start}"
    raise ServiceError(reason, thread_id, code="OWN_PROGRAM")


async def allow_change(ledger: Ledger, thread_id: str, choice: Choice, *, run_id: str | None = None) -> tuple[str, ...]:
    """Allow the open runs of a thread, or one of them, to continue under a changed program. Return the runs.

    The program must be started again. Recorded steps are used unchanged (`continue`), or repeated (`restart`).
    Toolkits, guards and approvals are never covered.
    """
    from antiphon.durable import allow_change as allow  # noqa: PLC0415 (only where it is used)

    await find_thread(ledger, thread_id)
    try:
        return await allow(ledger, thread_id, choice, run_id=run_id)
    except ValueError as exc:
        raise NotWaitingError(str(exc), thread_id) from exc


async def own_tools(ledger: Ledger, thread_id: str, life: ThreadLife) -> str | None:
    """Return a phase, or an agent, tool or toolkit of the current phase, that only the thread's own program has.

    None: there is none.
    """
    from antiphon.agents.tools._builtin import BUILTIN_TOOLS  # noqa: PLC0415 (needs the extra `agents`)
    from antiphon.patterns.postchain._cast import GO_ON_WITH  # noqa: PLC0415
    from antiphon.patterns.postchain._config import prepared_agent  # noqa: PLC0415

    if own_phases := [phase for phase in life.order if phase not in protocol.PHASES]:
        return f"the phase {own_phases[0]!r}"
    agent = await prepared_agent(ledger, thread_id, life.current_phase)
    if agent is None or life.current_phase is None:
        return None
    if agent.own is not None:
        return f"the agent {agent.own!r}"
    if agent.toolkit is not None:
        return f"the toolkit {agent.toolkit!r}"
    program_tools = [name for name in agent.tools or () if name not in (*BUILTIN_TOOLS, GO_ON_WITH)]
    return repr(program_tools[0]) if program_tools else None
