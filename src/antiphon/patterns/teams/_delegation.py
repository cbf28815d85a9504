"""Delegation: a member of a team gives a task to another. It ends exactly once, even if the other member fails.

The `delegation` is recorded before the request, and its end after that, as its answer: an `observation` for a result, an
`error` for anything else. The caller closes the calls that a stopped member left open.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Collection, Iterable
from dataclasses import dataclass
from functools import partial
from hashlib import sha256
from typing import Any, Final, Generic, Literal, TypeAlias, TypeVar

from antiphon import errors
from antiphon.messages import Json, thaw
from antiphon.patterns import cast
from antiphon.patterns.cast import UNHURRIED, stopped
from antiphon.patterns.teams._protocol import PhaseDone, TeamTaskDone
from antiphon.patterns.teams._roster import Roster
from antiphon.patterns.teams._transcript import DIALECT, Transcript
from antiphon.protocol import Request
from antiphon.runtime import Context

end_open_calls = partial(cast.end_open_calls, fields=lambda _: {"metadata": {DIALECT: {"type": "error"}}})


# ---------------------------------------------------------------- delegations


ReplyT = TypeVar("ReplyT", PhaseDone, TeamTaskDone)
ResultT = TypeVar("ResultT")

Ending: TypeAlias = Literal["result", "failure", "timeout", "cancelled", "down"]

_ENDINGS: Final[tuple[tuple[type[errors.DeliveryError], Ending], ...]] = (
    (errors.ReplyTimeoutError, "timeout"),
    (errors.WithdrawnError, "cancelled"),
    (errors.UndeliverableError, "down"),
    (errors.ActorStoppedError, "down"),
    (errors.ActorFailedError, "down"),
    (errors.EscalatedError, "down"),
)


@dataclass(frozen=True, slots=True)
class DelegationEnd:
    """The end of a delegation."""

    worker: str
    status: Ending
    summary: str
    code: str | None = None
    """The code of the error; None for a result."""
    untrusted: str | None = None
    """The source of untrusted content that was read for it, if any."""
    final: Any = None
    """The content of its `final`, if there is one."""

    @classmethod
    def of(cls, worker: str, error: errors.DeliveryError) -> DelegationEnd:
        """Return the end of a delegation that raised an error."""
        found: list[Ending] = [ending for kind, ending in _ENDINGS if isinstance(error, kind)]
        status: Ending = found[0] if found else "failure"
        match error:
            case errors.RefusedError(details={"untrusted": str(source)}):
                return cls(worker, status, error.reason, error.code, source)
            case _:
                return cls(worker, status, error.reason, error.code)

    @classmethod
    def with_reply(cls, worker: str, reply: PhaseDone | TeamTaskDone) -> DelegationEnd:
        """Return the end of a delegation with a reply; a failed phase may also have a reply."""
        if isinstance(reply, PhaseDone):
            code = None if reply.status == "completed" else reply.error_code or "PHASE_FAILED"
            status: Ending = "result" if code is None else "failure"
            return cls(worker, status, reply.synthesis, code, reply.untrusted, thaw(reply.final))
        return cls(worker, "result", reply.summary, untrusted=reply.untrusted, final=thaw(reply.final))

    @property
    def is_result(self) -> bool:
        """Whether there is a result."""
        return self.status == "result"

    def entry(self) -> tuple[str, dict[str, Any]]:
        """Return the type and the content of the message that records it."""
        if self.is_result:
            said = {"worker": self.worker, "status": self.status, "human_readable_summary": self.summary}
            return "observation", said
        details = {"worker": self.worker, "status": self.status}
        return "error", {"error_message": self.summary, "error_type": self.code or "ERROR", "details": details}


@dataclass(frozen=True, slots=True)
class Done(Generic[ReplyT]):
    """The end of a delegation, and the reply if there is one."""

    end: DelegationEnd
    reply: ReplyT | None = None


async def delegate(
    roster: Roster,
    context: Context,
    transcript: Transcript,
    to: str,
    request: Request[ReplyT],
    *,
    task: str,
    key: str,
    among: Collection[str],
) -> Done[ReplyT]:
    """Delegate a task, and return its end; `among` are the members that can be asked.

    Raises:
        ParkedError: a person must settle or approve something first; the delegation stays open until then.
        HistoryMismatchError, LedgerError: as for every request in a thread.
    """
    said = {"type": "delegation", "worker": to, "task": task, "call_id": transcript.call_id(f"delegation-{key}")}
    await transcript.say("delegation", f"delegation-{key}", worker=to, task=task, call_id=said["call_id"])
    done: Done[ReplyT]
    try:
        if to not in among:
            raise errors.RefusedError(f"there is no {to!r} to delegate to; there are {', '.join(among)}", "UNKNOWN_WORKER")
        reply = await _asked(roster, context, to, request, key)
        done = Done(DelegationEnd.with_reply(to, reply), reply)
    except (errors.ParkedError, errors.HistoryMismatchError):
        raise
    except errors.DeliveryError as exc:
        done = Done(DelegationEnd.of(to, exc))
        asked = f"{context.course.invocation_id}/{key}"
        await stopped(transcript.run, asked)
        await end_open_calls(transcript.run, asked, exc)
    transcript.taint.mark(done.end.untrusted)
    kind, content = done.end.entry()
    await transcript.answer(said, kind, f"end-{key}", content=content)
    return done


async def _asked(roster: Roster, context: Context, to: str, request: Request[ReplyT], key: str) -> ReplyT:
    address, within = roster.address(to), roster.seconds(to) or UNHURRIED
    if not roster.is_elsewhere(to):
        return await context.ask(address, request, within=within, key=key)
    return await _asked_elsewhere(context, address, request, within, key)


async def _asked_elsewhere(context: Context, address: str, request: Request[ReplyT], within: float, key: str) -> ReplyT:
    """Ask a member whose actor runs in another system, in a separate thread: a thread has one writing system."""
    cls = request.reply_class()

    async def ask(id: str) -> Json:
        thread_id = f"{context.thread_id}:{sha256(id.encode()).hexdigest()[:16]}"
        try:
            reply = await context.system.ask(
                address, request, within=within, thread_id=thread_id, sender=context.address, id=id
            )
        except (errors.ParkedError, errors.HistoryMismatchError):
            raise
        except errors.DeliveryError as exc:
            end = DelegationEnd.of(address, exc)
            return {"code": exc.code, "reason": exc.reason, "status": end.status, "untrusted": end.untrusted}
        return {"data": reply.to_data()}

    came = await context.effect(key, {"to": address, "data": request.to_data()}, ask, effects="idempotent")
    if "data" in came:
        return cls.from_data(came["data"])
    raise _error_of(came, address)


def _error_of(came: dict[str, Any], address: str) -> errors.DeliveryError:
    kind = next((kind for kind, ending in _ENDINGS if ending == came["status"]), None)
    if kind is None:
        return errors.RefusedError(came["reason"], came["code"], details={"untrusted": came["untrusted"]}, address=address)
    error = kind(came["reason"], address)
    error.code = came["code"]
    return error


async def side_by_side(works: Iterable[Awaitable[ResultT]]) -> list[ResultT]:
    """Run awaitables in parallel, all to the end; return their results, or raise the error of the first that failed."""
    ended = await asyncio.gather(*works, return_exceptions=True)
    for each in ended:
        if isinstance(each, BaseException):
            raise each
    return [each for each in ended if not isinstance(each, BaseException)]
