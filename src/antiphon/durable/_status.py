"""Status of runs: the open runs, their owners, their age, and the reason why they wait.

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

from collections.abc import AsyncIterator, Collection, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, Final, Literal, TypeAlias

from antiphon.durable._approvals import Approval
from antiphon.durable._history import FAILED, RUN_KIND
from antiphon.ledger import HostStatus, Owners, Record, ThreadFilter, ThreadSummary, open_calls_of
from antiphon.ledger._open import command_line
from antiphon.ledger._unopened import check_opened
from antiphon.messages import Json, Message, OptionCallPayload, OptionResultPayload, current_port, thaw
from antiphon.messages._keys import is_below
from antiphon.runtime._rows import AGAIN, PARK, RUN, option_of
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
        names = [thread.thread_id async for thread in _threads(ledger) if is_of_runs(thread)]
    else:
        names = await _with_open_runs(ledger)
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


async def _threads(ledger: Owners) -> AsyncIterator[ThreadSummary]:
    page = await ledger.threads(ThreadFilter(system=False), "created_at")
    while True:
        for thread in page.threads:
            yield thread
        if page.next is None:
            return
        page = await ledger.threads(ThreadFilter(system=False), "created_at", page.next)


async def _with_open_runs(ledger: Owners) -> list[str]:
    calls = [record.message async for record in open_calls_of(ledger, RUN)]
    return list(dict.fromkeys(call.thread_id or "" for call in calls if _key_of(call) is not None))


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
            if _key_of(record.message) is not None:
                begun.append(record)
            elif _is_end(record.message):
                ends[record.message.invocation_id or ""] = record
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


def _is_end(message: Message) -> bool:
    return message.lane == "effect" and isinstance(message.payload, OptionResultPayload) and message.payload.option_name == RUN


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
    name = _name(payload, thread)
    state, reason, is_left = _state(ledger, thread, [call for call in calls if _is_about(call, run_id)], owner, end, name=name)
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


def _name(run: OptionCallPayload, thread: ThreadSummary) -> str | None:
    """Return the name of a run's program: from its row, or the name of the first run of the thread."""
    name = run.arguments.get("program")
    if isinstance(name, str):
        return name
    return (thread.kind or "").removeprefix(f"{RUN_KIND}/") if is_of_runs(thread) else None


def _is_about(call: Message, run_id: str) -> bool:
    """Whether an open call belongs to a run: by its id, or by the call that it refers to."""
    return any(row is not None and (row == run_id or is_below(row, run_id)) for row in (call.invocation_id, call.parent_id))


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
        return _ended(end)
    if (parked := _first(calls, PARK)) is not None:
        return "parked", _text(parked, "reason"), False
    if (failed := _first(calls, FAILED)) is not None:
        is_stopped = isinstance(failed.payload, OptionCallPayload) and failed.payload.arguments.get(STOPPED) is True
        return "stopped" if is_stopped else "failed", _text(failed, "error"), False
    if (approvals := _approvals(calls)) or thread.status == _PAUSED:
        resume = f"the thread is paused: `{command_line(ledger, 'resume', thread.thread_id)}`"
        questions = [f"a person must approve {approval.tool!r}: `{approval.command(ledger)}`" for approval in approvals]
        return "waiting", "; ".join(questions) or resume, False
    if owner is not None:
        return "running", None, False
    if thread.status == STOPPED:
        return "stopped", "; ".join(f"build {mark.build}: {mark.reason}" for mark in thread.unfit) or None, True
    return "waiting", _left_reason(ledger, name), True


def _left_reason(ledger: Owners, name: str | None) -> str:
    """Return what to do with a run that no process runs. The ledger does not say whether its program can be imported."""
    resume = command_line(ledger, "resume", "--all", options="--app MODULE:NAME")
    program = "its program" if name is None else f"program {name!r}"
    return f"no process runs it: start {program} again; if that is a @program or an agent, `{resume}` also continues it"


def _ended(end: Record) -> tuple[RunState, str | None, bool]:
    payload = end.message.payload
    assert isinstance(payload, OptionResultPayload)  # noqa: S101 (see `_is_end`)
    return ("failed", payload.error_message, False) if payload.is_error else ("completed", None, False)


def _first(calls: Sequence[Message], option: str) -> Message | None:
    return next((call for call in calls if option_of(call) == option and call.lane == "effect"), None)


def _text(call: Message, name: str) -> str | None:
    value = call.payload.arguments.get(name) if isinstance(call.payload, OptionCallPayload) else None
    return value if isinstance(value, str) else None


def _approvals(calls: Sequence[Message]) -> list[Approval]:
    """Return the approvals that a run waits for. An expired one is refused when the run is continued."""
    now = current_port().now()
    questions = [Approval.of_question(call) for call in calls]
    return [approval for approval in questions if approval is not None and not approval.is_late(now)]
