"""Schedules: questions that are asked at a time, or repeatedly by a cron line, once for all hosts.

A schedule is a separate thread, `system/schedule/NAME`, with an actor of the kind `schedule`. Changes are posted to the
thread. The actor sets a timer for the next time. The timer is a row, and a host that releases the thread leaves its time as
`wake_at`, so one host takes the thread when it is due, and the epoch fences all others. When the timer fires, the actor starts
the thread `NAME-TIME`. Its name is a function of the time, and starting is an idempotent effect. So a host that takes over in
the middle of it starts the same thread, and not a second one. The timer for the next time is set before that, so a failed
start affects only one thread.

If times passed while no host was alive, the question is asked once for them; then at the next future time. If the clock is set
back, the timer fires at once, and is set again for the next time by the right clock. A time that came twice is asked once: its
thread exists.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from importlib import import_module
from typing import TYPE_CHECKING, Any, Final
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

from pydantic import TypeAdapter

from antiphon.errors import NotWaitingError, RefusedError, SetupError
from antiphon.ledger import Ledger, ThreadFilter, replay
from antiphon.ledger._listing import SYSTEM_PATTERN
from antiphon.messages import Message, OptionCallPayload, current_port, thaw
from antiphon.protocol import Notice, Reply, Request
from antiphon.runtime import Actor, ActorState, Context, handles
from antiphon.runtime._recovery import timer_due
from antiphon.service._threads import all_threads

if TYPE_CHECKING:
    from antiphon.patterns.postchain import PostChain
    from antiphon.runtime import System

SCHEDULE_KIND: Final = "schedule"
_PREFIX: Final = f"{SYSTEM_PATTERN}/{SCHEDULE_KIND}/"
_NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")


@dataclass(frozen=True, slots=True)
class Schedule:
    """A question, and when it is asked."""

    name: str
    question: str
    cron: str | None = None
    """A cron line, in the time zone `zone`; None: once, at `at`."""
    zone: str = "UTC"
    at: datetime | None = None
    revision: str = ""
    """The id of the message that has set it."""

    def next_after(self, moment: datetime) -> datetime | None:
        """Return the first time after a given one at which the question is asked; None if there is none."""
        if self.cron is None:
            return self.at if self.at is not None and self.at > moment else None
        return next(_times(self.cron, self.zone, moment), None)

    def thread_at(self, moment: datetime) -> str:
        """Return the name of the thread that is started at a time."""
        return f"{self.name}-{moment.astimezone(UTC):%Y%m%dT%H%M%SZ}"


@dataclass(frozen=True, slots=True)
class ListedSchedule:
    """A schedule of a ledger, with its next time and its last thread."""

    name: str
    question: str
    cron: str | None
    zone: str
    at: datetime | None
    next_at: datetime | None
    """The next time; None: it is not asked again."""
    owner: str | None
    """The current host of the schedule."""


def read_time(text: str, zone: str = "UTC") -> datetime:
    """Return a time of ISO 8601; one without an offset is in the time zone."""
    try:
        moment = datetime.fromisoformat(text)
        return moment if moment.tzinfo is not None else moment.replace(tzinfo=ZoneInfo(zone))
    except ZoneInfoNotFoundError as exc:
        raise SetupError(f"there is no time zone {zone!r}; use a name such as Europe/Vienna") from exc
    except ValueError as exc:
        raise SetupError(f"{text!r} is no time; write it as 2026-01-31T09:00") from exc


def _times(cron: str, zone: str, moment: datetime) -> Any:
    """Return an iterator over the times of a cron line, after a moment."""
    try:
        cronsim: Any = import_module("cronsim")
    except ModuleNotFoundError as exc:
        raise SetupError('cron lines need the extra `cron`: pip install "antiphon[cron]"') from exc
    try:
        return cronsim.CronSim(cron, moment.astimezone(ZoneInfo(zone)))
    except (ZoneInfoNotFoundError, ValueError, OSError) as exc:
        raise SetupError(f"there is no time zone {zone!r}; use a name such as Europe/Vienna") from exc
    except cronsim.CronSimError as exc:
        advice = "five fields: minute hour day month weekday, such as 0 9 * * mon-fri"
        raise SetupError(f"{cron!r} is no cron line ({exc}); {advice}") from exc


# ---------------------------------------------------------------- setting them


async def add_schedule(
    ledger: Ledger, name: str, question: str, *, cron: str | None = None, at: datetime | None = None, zone: str = "UTC"
) -> Schedule:
    """Set a schedule, or replace the one of that name; a host of the ledger asks the question from then on."""
    if not _NAME.fullmatch(name):
        raise SetupError("the name of a schedule has 1 to 64 letters, digits and . _ -, and begins with a letter or digit")
    if not question.strip():
        raise SetupError("a schedule needs a question")
    if (cron is None) == (at is None):
        raise SetupError("a schedule has either a cron line or a time")
    try:
        schedule = Schedule(name, question, cron, zone, None if at is None else at.astimezone(UTC))
    except OverflowError:
        raise SetupError("the time of a schedule is between the years 1 and 9999, in UTC") from None
    if schedule.next_after(current_port().now()) is None:
        what = f"{cron!r} never comes" if schedule.at is None else f"{schedule.at:%Y-%m-%d %H:%M} UTC has passed"
        raise SetupError(f"{what}; choose a time that comes")
    value = {"question": question, "cron": cron, "zone": zone, "at": None if schedule.at is None else schedule.at.isoformat()}
    return replace(schedule, revision=await _post(ledger, name, SetSchedule.message_type, value))


async def remove_schedule(ledger: Ledger, name: str) -> Schedule:
    """Remove a schedule: its question is not asked again. Threads that it has started continue.

    Raises:
        NotWaitingError: there is no such schedule.
    """
    state = (
        None if await ledger.thread(f"{_PREFIX}{name}") is None else await replay(ledger, f"{_PREFIX}{name}", _STATE.fold())
    )
    if state is None:
        raise NotWaitingError(f"there is no schedule {name!r}; `antiphon schedule list` lists them")
    await _post(ledger, name, RemoveSchedule.message_type, {})
    return replace(state, name=name)


async def list_schedules(ledger: Ledger) -> tuple[ListedSchedule, ...]:
    """Return the schedules of a ledger by name."""
    schedules: list[ListedSchedule] = []
    async for thread in all_threads(ledger, ThreadFilter(kind=SCHEDULE_KIND), "created_at"):
        state = await replay(ledger, thread.thread_id, _STATE.fold())
        if thread.thread_id.startswith(_PREFIX) and state is not None:
            schedule = replace(state, name=thread.thread_id.removeprefix(_PREFIX))
            next_at = await _next_at(ledger, thread.thread_id, schedule)
            schedules.append(
                ListedSchedule(
                    schedule.name, schedule.question, schedule.cron, schedule.zone, schedule.at, next_at, thread.owner
                )
            )
    return tuple(sorted(schedules, key=lambda schedule: schedule.name))


async def _next_at(ledger: Ledger, thread_id: str, schedule: Schedule) -> datetime | None:
    """Return when the timer of a schedule fires; before a host has set it, the time for which it will be set."""
    for row in await ledger.open_calls(thread_id):
        timer = timer_due(row.message)
        if timer is not None and timer[1]["revision"] == schedule.revision:
            return timer[0]
    return schedule.next_after(current_port().now())


async def _post(ledger: Ledger, name: str, option: str, value: dict[str, Any]) -> str:
    """Post a message to the actor of a schedule, and return its id."""
    thread_id, own_id = f"{_PREFIX}{name}", current_port().new_id()
    if await ledger.thread(thread_id) is None:
        await ledger.append(thread_id, (), pattern=SYSTEM_PATTERN)
    payload = OptionCallPayload(invocation_id=own_id, option_name=option, arguments=value)
    message = Message(policy="user", payload=payload, to=(f"{SCHEDULE_KIND}/{name}",), lane="control", id=own_id)
    await ledger.post(thread_id, message)
    return own_id


# ---------------------------------------------------------------- keeping them


class ScheduleKept(Reply, frozen=True, type="SCHEDULE_KEPT"):
    """The change of the schedule is stored."""


class SetSchedule(Request[ScheduleKept], frozen=True, type="SCHEDULE_SET"):
    """Ask a question at a time, or by a cron line."""

    question: str
    cron: str | None = None
    zone: str = "UTC"
    at: str | None = None


class RemoveSchedule(Request[ScheduleKept], frozen=True, type="SCHEDULE_REMOVE"):
    """Stop asking the question."""


class ScheduleDue(Notice, frozen=True, type="SCHEDULE_DUE"):
    """A time of a schedule has come."""

    at: str
    revision: str


def _step(state: Schedule | None, message: Message) -> Schedule | None:
    payload = message.payload
    if message.lane != "control" or not isinstance(payload, OptionCallPayload):
        return state
    if payload.option_name == RemoveSchedule.message_type:
        return None
    if payload.option_name != SetSchedule.message_type:
        return state
    value: Any = thaw(payload.arguments)
    at = value.get("at")
    moment = None if at is None else datetime.fromisoformat(at)
    return Schedule("", value["question"], value.get("cron"), value.get("zone") or "UTC", moment, payload.invocation_id)


_FORM: Final = TypeAdapter[Schedule | None](Schedule | None)
_STATE: Final = ActorState[Schedule | None](
    SCHEDULE_KIND,
    None,
    _step,
    lambda state: _FORM.dump_python(state, mode="json"),
    lambda stored: _FORM.validate_python(thaw(stored)),
)


class _ScheduleActor(Actor):
    """Keeps one schedule: it waits for the next time, and starts a thread."""

    def __init__(self, chain: PostChain) -> None:
        self._chain = chain

    @handles
    async def set(self, request: SetSchedule, context: Context) -> ScheduleKept:
        # From the time when it was posted on: until a host handles it, the time of the question may have passed.
        await self._wait_for_next(context, await _posted_at(context))
        return ScheduleKept()

    @handles
    async def remove(self, request: RemoveSchedule, context: Context) -> ScheduleKept:
        return ScheduleKept()  # its timer fires without effect: the revision has changed by then

    @handles
    async def due(self, notice: ScheduleDue, context: Context) -> None:
        state = await context.state(_STATE)
        if state is None or state.revision != notice.revision:
            return
        moment = datetime.fromisoformat(notice.at)
        if moment > current_port().now():  # the clock was ahead when the timer was set, and was set back since
            await self._wait_for_next(context, current_port().now())
            return
        schedule = replace(state, name=context.address.partition("/")[2])
        thread_id = schedule.thread_at(moment)

        async def start(key: str) -> str:
            await _start(self._chain, thread_id, schedule.question)
            return thread_id

        # First: a start that fails, or takes too long for this message, must not be the last one.
        await self._wait_for_next(context, max(moment, current_port().now()))
        await context.effect("start", {"thread_id": thread_id}, start, effects="idempotent")

    async def _wait_for_next(self, context: Context, moment: datetime) -> None:
        state = await context.state(_STATE)
        at = None if state is None else state.next_after(moment)
        if state is not None and at is not None:
            at = at.astimezone(UTC)
            await context.remind_at(at, ScheduleDue(at=at.isoformat(), revision=state.revision), key="next")


async def _posted_at(context: Context) -> datetime:
    """Return when the handled message was posted."""
    async for record in context.ledger.read(context.thread_id or "", context.seq - 1):
        return record.recorded_at
    return current_port().now()  # pragma: no cover (a message of a thread is in the ledger)


async def _start(chain: PostChain, thread_id: str, question: str) -> None:
    """Start a thread, unless it was started before."""
    life = await chain.life(thread_id)
    if life.status == "none":
        await chain.create(question, user_id=SCHEDULE_KIND, id=f"{thread_id}/create", thread_id=thread_id)
        life = await chain.life(thread_id)
    if life.status == "created":
        try:
            await chain.start(thread_id)
        except RefusedError:
            if (await chain.life(thread_id)).status == "created":
                raise  # it did not start for another reason than that it runs


def keep_schedules(system: System, chain: PostChain) -> None:
    """Let a host run the schedules of its ledger."""
    system.register(SCHEDULE_KIND, lambda: _ScheduleActor(chain))
