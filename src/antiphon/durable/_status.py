"""Status of runs: the open runs, their owners, their age, and the reason why they wait; and what any thread waits for.

No status is stored. It is computed from the open calls of a thread, its owner, and the report of its last owner.
The first row of this table that applies decides:

| a run is | if |
|---|---|
| `completed` | its call has a result |
| `parked` | a person must settle it, or a call of it |
| `stopped` | its program ended because something outside failed, and nobody has continued it |
| `failed` | its program ended with another error, and nobody has continued it |
| `waiting` | a person must approve a call of it, or resume its thread |
| `running` | a living host owns its thread |
| `stopped` | the last program could not continue it |
| `waiting` | nobody owns it: its process has died, or was stopped. A program can continue it |
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Collection, Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, Final, Literal, TypeAlias, cast

from antiphon.durable._approvals import Approval
from antiphon.durable._changes import is_of
from antiphon.durable._history import FAILED, RUN_KIND
from antiphon.errors import BudgetExceededError
from antiphon.ledger import HostStatus, Owners, Record, ThreadFilter, ThreadSummary
from antiphon.ledger._open import command_line
from antiphon.ledger._unopened import check_opened
from antiphon.messages import Json, Message, OptionCallPayload, OptionResultPayload, current_port, thaw
from antiphon.runtime._rows import AGAIN, PARK, RUN, STOP, option_of, park_reason, stopped_error
from antiphon.runtime._settings import STOPPED

RunState: TypeAlias = Literal["running", "waiting", "parked", "stopped", "failed", "completed"]

_PAUSED: Final = "paused"


@dataclass(frozen=True, slots=True)
class RunStatus:
    """A run, as recorded in the ledger."""

    thread_id: str
    id: str
    """Pass it to `ledger_run` to continue the run; for a long or unusual id, a digest."""
    name: str | None
    """The name of its program: the thread has the kind `run/NAME`. None if the thread has another kind."""
    status: RunState
    owner: str | None
    """The living host that owns its thread."""
    began_at: datetime
    ended_at: datetime | None = None
    attempts: int = 1
    """How often it was started or continued. An attempt that ended because the run waits for a person does not count."""
    reason: str | None = None
    """The reason why it is parked, failed, stopped or waiting."""
    input: Json = None
    """Its input, if it was recorded."""
    unfit: tuple[str, ...] = ()
    """The builds that cannot continue it."""
    is_left: bool = False
    """Whether no living host owns it and it waits for no person: a program may continue it."""

    @property
    def age(self) -> timedelta:
        """The time since its start, until now or until its end."""
        return (self.ended_at or current_port().now()) - self.began_at

    def to_json(self) -> dict[str, Any]:
        """Return it as a JSON object."""
        return {
            "thread_id": self.thread_id,
            "id": self.id,
            "name": self.name,
            "status": self.status,
            "owner": self.owner,
            "began_at": self.began_at,
            "ended_at": self.ended_at,
            "age": round(self.age.total_seconds(), 3),
            "attempts": self.attempts,
            "reason": self.reason,
            "input": thaw(self.input),
        }


async def runs(ledger: Owners, thread_id: str | None = None, *, with_ended: bool = False) -> tuple[RunStatus, ...]:
    """Return the open runs of a ledger or of one thread, oldest first; with `with_ended`, also the ended ones.

    Open runs are found by an index. For ended runs, the threads of runs are read.
    """
    check_opened(ledger)
    alive = living_hosts(await ledger.hosts())
    statuses: list[RunStatus] = []
    if thread_id is not None:
        names: Sequence[str] = (thread_id,)
    elif with_ended:
        threads = matching_threads(ledger, ThreadFilter(system=False))
        names = [thread.thread_id async for thread in threads if is_of_runs(thread)]
    else:
        page = await ledger.open_calls(option=RUN)
        calls = page.calls
        while page.next is not None:
            page = await ledger.open_calls(option=RUN, page=page.next)
            calls += page.calls
        names = list(dict.fromkeys(call.message.thread_id or "" for call in calls if _key_of(call.message) is not None))
    for name in names:
        summary = await ledger.thread(name)
        if summary is not None:
            statuses += await runs_of(ledger, summary, alive, with_ended=with_ended)
    return tuple(sorted(statuses, key=lambda run: run.began_at))


def is_of_runs(thread: ThreadSummary) -> bool:
    """Whether a thread has the kind of a run."""
    return thread.kind is not None and thread.kind.startswith(f"{RUN_KIND}/")


def living_hosts(hosts: Collection[HostStatus]) -> frozenset[str]:
    """Return the names of the living hosts."""
    return frozenset(status.host.name for status in hosts if status.is_alive)


async def matching_threads(ledger: Owners, where: ThreadFilter) -> AsyncIterator[ThreadSummary]:
    """Return all threads that match a filter, in the order in which they were created."""
    page = await ledger.threads(where, "created_at")
    while True:
        for thread in page.threads:
            yield thread
        if page.next is None:
            return
        page = await ledger.threads(where, "created_at", page.next)


async def runs_of(
    ledger: Owners, thread: ThreadSummary, alive: Collection[str], *, with_ended: bool = False
) -> tuple[RunStatus, ...]:
    """Return the open runs of a thread; with `with_ended`, also the ended ones."""
    rows = await ledger.open_calls(thread.thread_id) if thread.open_calls else ()
    begun = [row for row in rows if _key_of(row.message) is not None]
    ends: dict[str, Record] = {}
    if with_ended:
        begun.clear()
        async for record in ledger.read(thread.thread_id):
            message, result = record.message, record.message.payload
            if _key_of(message) is not None:
                begun.append(record)
            # Only the owner writes in that lane: a result of somebody else ends nothing.
            elif message.lane == "effect" and isinstance(result, OptionResultPayload) and result.option_name == RUN:
                ends[result.invocation_id] = record
    calls = [row.message for row in rows]
    return tuple([_status(ledger, run, thread, calls, alive, end=ends.get(run.message.invocation_id or "")) for run in begun])


def _key_of(message: Message) -> str | None:
    """Return the id of the run that a row starts; None for other rows."""
    payload, thread_id = message.payload, message.thread_id or ""
    if message.lane != "effect" or not isinstance(payload, OptionCallPayload) or payload.option_name != RUN:
        return None
    key = payload.invocation_id.removeprefix(f"{thread_id}/")
    is_run = key != payload.invocation_id and "/" not in key and "effects" not in payload.arguments
    return key if is_run else None


def _status(
    ledger: Owners,
    run: Record,
    thread: ThreadSummary,
    calls: Sequence[Message],
    alive: Collection[str],
    *,
    end: Record | None,
) -> RunStatus:
    payload, run_id = run.message.payload, run.message.invocation_id or ""
    assert isinstance(payload, OptionCallPayload)  # noqa: S101 (only calls begin a run)
    owner = thread.owner if thread.owner in alive else None
    name = payload.arguments.get("program")
    if not isinstance(name, str):  # without an input, the row does not have it: that of the first run of the thread
        name = (thread.kind or "").removeprefix(f"{RUN_KIND}/") if is_of_runs(thread) else None
    # A call belongs to the run by its id, or by the call that it refers to.
    about = [call for call in calls if any(is_of(place, run_id) for place in (call.invocation_id, call.parent_id) if place)]
    state, reason, is_left = _state(ledger, thread, about, owner, end, name=name)
    again = sum(option_of(call) == AGAIN and call.parent_id == run_id for call in calls)
    return RunStatus(
        thread_id=thread.thread_id,
        id=_key_of(run.message) or "",
        name=name,
        status=state,
        owner=None if end is not None else owner,
        began_at=run.recorded_at,
        ended_at=None if end is None else end.recorded_at,
        attempts=1 + again,
        reason=reason,
        input=payload.arguments.get("input"),
        unfit=tuple(mark.build for mark in thread.unfit),
        is_left=is_left,
    )


def _state(
    ledger: Owners,
    thread: ThreadSummary,
    calls: Sequence[Message],
    owner: str | None,
    end: Record | None,
    *,
    name: str | None,
) -> tuple[RunState, str | None, bool]:
    """Return the status of a run, the reason, and whether a program may continue it."""
    if end is not None:
        result = cast("OptionResultPayload", end.message.payload)
        return ("failed", result.error_message, False) if result.is_error else ("completed", None, False)
    effects = [call for call in calls if call.lane == "effect"]
    if (parked := next((call for call in effects if option_of(call) == PARK), None)) is not None:
        return "parked", park_reason(parked), False
    if (failed := next((call for call in effects if option_of(call) == FAILED), None)) is not None:
        failure = cast("OptionCallPayload", failed.payload).arguments
        return "stopped" if failure.get(STOPPED) is True else "failed", str(failure.get("error")), False
    # An expired question is refused when the run is continued.
    if (questions := open_questions(calls)[0]) or thread.status == _PAUSED:
        resume = f"the thread is paused: `{command_line(ledger, 'resume', thread.thread_id)}`"
        reasons = [f"a person must approve {question.tool!r}: `{question.command(ledger)}`" for question in questions]
        return "waiting", "; ".join(reasons) or resume, False
    if owner is not None:
        return "running", None, False
    if thread.status == STOPPED:
        return "stopped", "; ".join(f"build {mark.build}: {mark.reason}" for mark in thread.unfit) or None, True
    # The ledger does not say whether the program can be imported.
    resume = command_line(ledger, "resume", "--all", options="--app MODULE:NAME")
    program = "its program" if name is None else f"program {name!r}"
    reason = f"no process runs it: start {program} again; if that is a @program or an agent, `{resume}` also continues it"
    return "waiting", reason, True


# ---------------------------------------------------------------- what a thread waits for


@dataclass(frozen=True, slots=True)
class Waiting:
    """The reason why a thread waits, and the commands to run."""

    reason: str
    commands: tuple[str, ...]
    """The commands to run, in order; if there are alternatives, only the first."""
    is_answered: bool = False
    """Whether it can continue without a decision: the approval has expired, and the model gets that; or the failure may be
    fixed."""
    stopped_by: str | None = None
    """The code of the failure outside that has stopped it; None: a person must decide something."""

    @property
    def text(self) -> str:
        """All of it, in one line."""
        return f"{self.reason}: {', then '.join(f'`{command}`' for command in self.commands)}"

    def to_json(self) -> dict[str, Any]:
        """Return it for a message."""
        return {"reason": self.reason, "commands": list(self.commands)}


async def waiting_for(ledger: Owners, thread_id: str) -> Waiting | None:
    """Return the reason why a thread waits; None: it does not wait."""
    calls = [record.message for record in await ledger.open_calls(thread_id)]
    questions, late = open_questions(calls, thread_id)
    resume = command_line(ledger, "resume", thread_id)
    if questions:
        wanted = " and ".join(f"{_described(question)} ({question.reason})" for question in questions)
        commands = (*(question.command(ledger) for question in questions), resume)
        return Waiting(f"a person must approve {wanted}, or deny it", commands)
    if late:
        return Waiting(f"nobody has approved {late[0].tool!r} in time", (resume,), is_answered=True)
    if (parked := next((call for call in calls if option_of(call) == PARK), None)) is not None:
        settle = command_line(ledger, "settle", thread_id, parked.parent_id or "", "--result", "JSON")
        return Waiting(f"{park_reason(parked)}; find out its outcome, and record it", (settle, resume))
    if (stop := next((call for call in calls if call.lane == "effect" and option_of(call) == STOP), None)) is not None:
        error = stopped_error(stop)
        budget = "--budget NAME=NUMBER" if error.cause == BudgetExceededError.code else ""  # a spent one needs a new one
        command = command_line(ledger, "resume", thread_id, options=budget)
        return Waiting(error.reason, (command,), is_answered=True, stopped_by=error.cause)
    return None


def _described(question: Approval) -> str:
    """Return the call that a question is about, with who makes it."""
    from antiphon.protocol import PHASES  # noqa: PLC0415 (a program of runs alone needs no protocol)

    who = f"in the {question.agent} phase" if question.agent in PHASES else f"of {question.agent!r}"
    return f"{question.tool!r} {who}"


def open_questions(calls: Iterable[Message], thread_id: str | None = None) -> tuple[list[Approval], list[Approval]]:
    """Return the questions to people among open calls: those that may be answered, and those that have expired."""
    now = current_port().now()
    questions = [question for call in calls if (question := Approval.of_question(call, thread_id)) is not None]
    return [each for each in questions if not each.is_late(now)], [each for each in questions if each.is_late(now)]
