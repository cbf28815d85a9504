"""Hosts: `antiphon host` runs threads until a signal; their list, limits for all of them, and schedules."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Callable, Generator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from decimal import Decimal, InvalidOperation
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final, TypeAlias

import typer

from antiphon import service
from antiphon.cli._ledger import JsonOption, LedgerOption, SignalsOption, shown_ledger, with_ledger
from antiphon.cli._live import ConfigOption, ModelOption, choose_model, say_stand_in, typed
from antiphon.cli._output import print_json, print_list, shown_age, shown_time
from antiphon.cli._screen import fail, note, open_console, print_table, styled
from antiphon.errors import NotWaitingError
from antiphon.messages import current_port

if TYPE_CHECKING:
    from antiphon.ledger import HostStatus, Ledger
    from antiphon.service import ClusterValue, HostedThread, HostValue, LimitChanges, LimitValue, ListedSchedule, RecoveredRun

_SIGNALS: Final = (signal.SIGTERM, signal.SIGINT)
_LOOK: Final = 1.0
"""Seconds between two looks whether the parent is there."""

AppOption: TypeAlias = Annotated[
    list[str] | None,
    typer.Option("--app", metavar="MODULE:NAME", help="A program, an agent or a list of them, to import; repeatable."),
]


TeamsOption: TypeAlias = Annotated[
    list[Path] | None,
    typer.Option("--team", metavar="FILE", help="Run threads of this team too; repeatable, one of each pattern."),
]
ThreadLimitOption: TypeAlias = Annotated[
    int | None,
    typer.Option("--threads", metavar="N", min=1, help="How many threads to run at once; default: 1000, with --app 10."),
]
KindsOption: TypeAlias = Annotated[
    list[str] | None,
    typer.Option("--kinds", metavar="KIND,…", help="Take only threads of these kinds; default: all that it can run."),
]
TenantsOption: TypeAlias = Annotated[
    list[str] | None,
    typer.Option("--tenant", metavar="NAME", help="Run threads of this tenant; repeatable, they share --threads evenly."),
]
DrainOption: TypeAlias = Annotated[
    float | None,
    typer.Option(
        metavar="SECONDS", min=0, help="At the end, finish threads for so long if a host has another build; default: 30."
    ),
]


def host(
    *,
    teams: TeamsOption = None,
    apps: AppOption = None,
    config: ConfigOption = None,
    model: ModelOption = None,
    thread_limit: ThreadLimitOption = None,
    kinds: KindsOption = None,
    tenants: TenantsOption = None,
    drain: DrainOption = None,
    signals: SignalsOption = None,
    ledger: LedgerOption = None,
) -> None:
    """Run threads that are due, until SIGTERM or Ctrl-C; then other hosts take over. A second signal exits at once.

    With --app, it only continues runs of your own programs whose process died.
    """
    if apps:
        if teams or config or model or kinds or tenants:
            refused = "--team, --config, --model, --kinds and --tenant"
            fail(f"--app is a host of its own; start another one for {refused}", code=2)
        _host_apps(apps, ledger, signals, drain, thread_limit)
        return
    model_choice, names = choose_model(model, config), list(dict.fromkeys(tenants or ()))
    say_stand_in(model_choice)

    async def work(*opened: Ledger) -> None:
        with until_signal() as stop:
            places = iter([f"{shown_ledger(ledger)} for tenant {tenant}" for tenant in names] or [shown_ledger(ledger)])
            await service.run_host(
                *opened,
                config=config,
                model=model_choice.name,
                teams=teams or (),
                team_model=model,  # without one, the files name the models of their teams
                thread_limit=thread_limit,
                kinds=[kind for listed in kinds or () for kind in listed.split(",")],
                drain=drain,
                ready=lambda status: _tell_ready(next(places), status),
                on_thread=_tell_thread,
                draining=_tell_draining,
                stop=stop,
            )

    service.import_model(model_choice.name)
    with_ledger(ledger, work, create=True, signals=signals, tenants=names)
    print_line("stopped")


def _host_apps(
    apps: list[str], ledger: str | None, signals: str | None, drain: float | None, thread_limit: int | None
) -> None:
    async def work(opened: Ledger) -> None:
        with until_signal() as stop:
            await service.host_app(
                opened,
                app,
                thread_limit=thread_limit,
                drain=drain,
                ready=partial(_tell_ready, shown_ledger(ledger)),
                on_run=_tell_run,
                draining=_tell_draining,
                stop=stop,
            )

    app = service.load_apps(apps)
    with_ledger(ledger, work, create=True, signals=signals)
    print_line("stopped")


def _tell_run(run: RecoveredRun) -> None:
    reason = "" if run.reason is None else f": {run.reason}"
    print_line(f"{run.thread_id} run {run.id} {run.status}{reason}")


@contextmanager
def until_signal(
    word: str = "stopping; other hosts take over the threads", *, hurry: Callable[[], None] | None = None
) -> Generator[asyncio.Event]:
    """Print a word at the first signal, and have it set an event. The second ends the process at once, as after a crash.

    With `hurry`, the second calls that, and the third ends the process.
    """
    event, loop = asyncio.Event(), asyncio.get_running_loop()

    def again() -> None:
        for number in _SIGNALS:
            loop.remove_signal_handler(number)
            signal.signal(number, signal.SIG_DFL)
        if hurry is not None:
            hurry()

    def stop() -> None:
        print_line(word)
        event.set()
        if hurry is None:
            again()
            return
        for number in _SIGNALS:
            loop.add_signal_handler(number, again)

    for number in _SIGNALS:
        loop.add_signal_handler(number, stop)
    orphaned = asyncio.ensure_future(_when_orphaned(stop)) if service.END_WITH_PARENT in os.environ else None
    try:
        yield event
    finally:
        if orphaned is not None:
            orphaned.cancel()
        for number in _SIGNALS:
            loop.remove_signal_handler(number)


async def _when_orphaned(stop: Callable[[], None]) -> None:
    """Stop as by a signal when the process that has started this one is gone."""
    parent = os.getppid()
    while os.getppid() == parent:  # noqa: ASYNC110 (the system has no event for it)
        await asyncio.sleep(_LOOK)
    stop()


def _tell_ready(ledger: str, status: HostStatus) -> None:
    print_line(f"host {status.host.name} runs {', '.join(status.host.kinds)} on {ledger}")


def _tell_thread(thread: HostedThread) -> None:
    word = {"taken": "taken", "ended": thread.status or "ended", "released": "released"}[thread.kind]
    reason = "" if thread.reason is None else f": {thread.reason}"
    print_line(f"{thread.tenant + ': ' if thread.tenant else ''}{thread.thread_id} {word}{reason}")


def _tell_draining(threads: int) -> None:
    print_line(f"{threads} threads end here first: another host has another build, and may be unable to continue them")


def print_line(text: str) -> None:
    """Print a line to stdout, at once: a supervisor or a file reads it. In a terminal, a long one is divided between words."""
    console = open_console()
    console.print(styled(text), soft_wrap=not console.is_terminal)
    console.file.flush()


# ---------------------------------------------------------------- once


def resume_all(apps: list[str] | None, ledger: str | None, *, with_failed: bool, for_programs: bool) -> None:
    """Continue the runs of programs whose process died or stopped, and print how each ended; without programs, list them."""
    if not apps:
        _list_left(ledger, with_failed=with_failed, for_programs=for_programs)
        return
    app = service.load_apps(apps)
    done = with_ledger(ledger, lambda opened: service.recover_runs(opened, app, with_failed=with_failed))
    if for_programs:
        print_json(done)
    elif done:
        rows = [(run.thread_id, run.id, run.name, run.status, (run.reason or "").partition("\n")[0]) for run in done]
        print_table(open_console(), ("thread", "run", "program", "status", "reason"), rows)
        for run in done:
            for line in (run.reason or "").splitlines()[1:]:
                note(f"{run.thread_id} {run.id}: {line}", style="warning")
    else:
        note(f"these programs have no run to continue; `{typed(ledger, 'resume', '--all')}` lists the runs of others")
    if any(run.status in ("failed", "stopped") for run in done):
        raise typer.Exit(1)


def _list_left(ledger: str | None, *, with_failed: bool, for_programs: bool) -> None:
    runs = [run for run in with_ledger(ledger, service.list_runs) if run.is_left or (with_failed and run.status == "failed")]
    if for_programs:
        print_json([run.to_json() for run in runs])
    elif runs:
        rows = [(run.thread_id, run.id, run.name or "", run.status, shown_age(run.age)) for run in runs]
        print_table(open_console(), ("thread", "run", "program", "status", "age"), rows)
        again = typed(ledger, "resume", "--all", "--app", "MODULE:NAME")
        note(f"start their programs again; those with @program, and agents, also continue with `{again}`")
    else:
        note(f"no run to continue; `{typed(ledger, 'threads')}` lists all threads")


# ---------------------------------------------------------------- the list


def show_hosts(ledger: str | None, *, with_work: bool, for_programs: bool) -> None:
    """Print the processes that run threads of a ledger; `with_work`: also the work that they have and that waits for them."""
    if with_work:
        cluster = with_ledger(ledger, service.cluster_status)
        if for_programs:
            print_json(cluster)
        else:
            _print_cluster(cluster, ledger)
        if cluster.stuck:
            raise typer.Exit(1)
        return
    living = with_ledger(ledger, service.list_hosts)
    print_list(living, _HOST_HEADINGS, _row, for_programs=for_programs, otherwise=_no_host(ledger))


_HOST_HEADINGS: Final = ("host", "build", "kinds", "alive until (UTC)", "threads")


def _no_host(ledger: str | None) -> str:
    return f"no host runs threads of this ledger; `{typed(ledger, 'host')}` starts one"


def _row(status: HostValue) -> tuple[str, ...]:
    until = shown_time(status.until) if status.is_alive else f"ended {shown_time(status.until)}"
    return status.name, status.build, " ".join(status.kinds), until, str(status.threads)


def _print_cluster(cluster: ClusterValue, ledger: str | None) -> None:
    if cluster.hosts:
        print_table(open_console(), _HOST_HEADINGS, [_row(status) for status in cluster.hosts])
    if not any(host.is_alive for host in cluster.hosts):
        note(_no_host(ledger))
    oldest = "" if cluster.oldest_age is None else f", the oldest for {shown_age(timedelta(seconds=cluster.oldest_age))}"
    last = "" if cluster.last_take_over is None else f", the last at {shown_time(cluster.last_take_over)}"
    rows = [
        ("in hand", str(cluster.in_hand)),
        ("due", f"{cluster.due}{oldest}"),
        ("stuck", str(cluster.stuck)),
        ("taken over", f"{cluster.take_overs}{last}"),
        *(
            (f"permits of {'all models' if limit.model == '*' else limit.model}", f"{limit.held} held, {limit.waiting} wait")
            for limit in cluster.limits
        ),
        ("tail is behind", f"{cluster.tail_lag:.1f}s"),
    ]
    print_table(open_console(), ("threads", ""), rows)
    for thread in cluster.stuck_threads[:_MOST_STUCK]:
        note(f"{thread.thread_id} is stuck: {thread.reason}", style="warning")
    if cluster.stuck > _MOST_STUCK:
        first = len(cluster.stuck_threads)
        note(f"{cluster.stuck - _MOST_STUCK} more are stuck; `--json` has the first {first}", style="warning")


_MOST_STUCK: Final = 10
"""Stuck threads that are printed."""


# ---------------------------------------------------------------- limits for all hosts


def limits(
    *,
    model: Annotated[
        str | None,
        typer.Argument(
            metavar="MODEL", help="The model whose limits to set, or '*': all models together.", show_default=False
        ),
    ] = None,
    at_once: Annotated[int | None, typer.Option(metavar="N", min=0, help="The most concurrent requests.")] = None,
    per_minute: Annotated[
        int | None, typer.Option(metavar="N", min=0, help="The most requests started in any one minute.")
    ] = None,
    cost_per_day: Annotated[str | None, typer.Option(metavar="USD", help="The most US dollars spent in a day (UTC).")] = None,
    is_removed: Annotated[bool, typer.Option("--remove", help="Remove the limits of the model.")] = False,
    file: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Replace all limits of the ledger with those of this TOML file.")
    ] = None,
    for_programs: JsonOption = False,
    ledger: LedgerOption = None,
) -> None:
    """List the limits on model requests that all hosts of a ledger share, with their current use; or set them."""
    changes = service.LimitChanges()
    if at_once is not None:
        changes["at_once"] = at_once
    if per_minute is not None:
        changes["per_minute"] = per_minute
    if (dollars := _dollars(cost_per_day)) is not None:
        changes["cost_per_day"] = dollars
    if file is not None and (model is not None or changes or is_removed):
        fail("--file sets the limits of all models: leave out MODEL and the other options", code=2)
    if (changes or is_removed) and model is None:
        fail("name the model whose limits are set, or '*' for all models together", code=2)
    if model is not None and os.path.exists(model):
        fail(f"{model!r} is a file in this folder: for all models together, write '*' with its quotes", code=2)
    if model is not None and not changes and not is_removed:
        fail(f"say what is limited: antiphon limits {model!r} --at-once N --per-minute N --cost-per-day USD", code=2)
    work = partial(_change_limits, model=model, changes=changes, is_removed=is_removed, file=file, place=ledger)
    in_force = with_ledger(ledger, work, create=bool(changes or file))
    headings = ("model", "at once", "held", "waiting", "a minute", "begun", "USD a day", "spent", "reserved")
    otherwise = f"no model is limited; `{typed(ledger, 'limits', 'MODEL', '--at-once', 'N')}` sets a limit for all hosts"
    print_list(in_force, headings, _limit_row, for_programs=for_programs, otherwise=otherwise)


def _dollars(text: str | None) -> Decimal | None:
    try:
        amount = None if text is None else Decimal(text)
    except InvalidOperation:
        amount = Decimal("NaN")
    if amount is not None and not (amount.is_finite() and amount >= 0):
        fail(f"--cost-per-day is an amount of US dollars, such as 20 or 0.50, not {text!r}", code=2)
    return amount


async def _change_limits(
    ledger: Ledger, *, model: str | None, changes: LimitChanges, is_removed: bool, file: Path | None, place: str | None
) -> tuple[LimitValue, ...]:
    if file is not None:
        return await service.apply_limits(ledger, service.read_limits(file))
    if model is not None:
        limited = [limit.model for limit in await service.list_limits(ledger)]
        if is_removed and not changes and model not in limited:
            fail(f"{model!r} has no limits; `{typed(place, 'limits')}` lists those that there are", code=2)
        return await service.change_limit(ledger, model, is_removed=is_removed, **changes)
    return await service.list_limits(ledger)


def _limit_row(limit: LimitValue) -> tuple[str, ...]:
    at_once = ("", "") if limit.at_once is None else (str(limit.at_once), str(limit.held))
    per_minute = ("", "") if limit.per_minute is None else (str(limit.per_minute), str(limit.started))
    money = ("", "", "") if limit.cost_per_day is None else tuple(map(str, (limit.cost_per_day, limit.spent, limit.reserved)))
    return limit.model, *at_once, str(limit.waiting), *per_minute, *money


# ---------------------------------------------------------------- schedules

schedule = typer.Typer(
    name="schedule", no_args_is_help=True, rich_markup_mode=None, help="Ask questions at a set time, or by a cron line."
)


@schedule.command()
def add(
    name: Annotated[str, typer.Argument(metavar="NAME", help="Its name; an existing schedule of that name is replaced.")],
    question: Annotated[str, typer.Argument(metavar="QUESTION", help="The question to ask.")],
    *,
    cron: Annotated[
        str | None, typer.Option("--cron", metavar="LINE", help='When: minute hour day month weekday, such as "0 9 * * mon".')
    ] = None,
    at: Annotated[
        str | None, typer.Option("--at", metavar="TIME", help="A single time, such as 2026-01-31T09:00, in the time zone.")
    ] = None,
    zone: Annotated[str, typer.Option("--zone", metavar="ZONE", help="The time zone, such as Europe/Vienna.")] = "UTC",
    ledger: LedgerOption = None,
) -> None:
    """Add or replace a schedule. At each scheduled time, one host asks the question in a new thread."""
    if (cron is None) == (at is None):
        fail("say when, by one of the two: --cron LINE, again and again, or --at TIME, once", code=2)
    moment = None if at is None else service.read_time(at, zone)
    work = partial(_add, name=name, question=question, cron=cron, at=moment, zone=zone)
    next_at, has_host = with_ledger(ledger, work, create=True)
    note(f"{name}: next at {shown_time(next_at)} UTC, if a host runs then")
    if not has_host:
        note(f"no host runs now; `{typed(ledger, 'host')}` starts one")


async def _add(
    ledger: Ledger, *, name: str, question: str, cron: str | None, at: datetime | None, zone: str
) -> tuple[datetime, bool]:
    """Return the next time, and whether a host is alive."""
    schedule = await service.add_schedule(ledger, name, question, cron=cron, at=at, zone=zone)
    moment = schedule.next_after(current_port().now())
    next_at = moment.astimezone(UTC) if moment is not None else current_port().now()
    return next_at, bool(await service.list_hosts(ledger))


@schedule.command("list")
def list_(*, for_programs: JsonOption = False, ledger: LedgerOption = None) -> None:
    """List the schedules of a ledger."""
    adding = typed(ledger, "schedule", "add", "NAME", "QUESTION", "--cron", "LINE")
    otherwise = f"there is no schedule; `{adding}` adds one"
    schedules = with_ledger(ledger, service.list_schedules)
    headings = ("name", "cron", "zone", "next (UTC)", "question")
    print_list(schedules, headings, _schedule_row, for_programs=for_programs, otherwise=otherwise)


def _schedule_row(schedule: ListedSchedule) -> tuple[str, ...]:
    next_at = "" if schedule.next_at is None else shown_time(schedule.next_at.astimezone(UTC))
    return schedule.name, schedule.cron or "once", schedule.zone, next_at, schedule.question


@schedule.command()
def remove(
    name: Annotated[str, typer.Argument(metavar="NAME", help="A schedule: see antiphon schedule list.")],
    *,
    ledger: LedgerOption = None,
) -> None:
    """Remove a schedule. Threads that it started continue."""
    with_ledger(ledger, partial(_remove, name=name, place=ledger))
    note(f"{name}: removed")


async def _remove(ledger: Ledger, *, name: str, place: str | None) -> None:
    try:
        await service.remove_schedule(ledger, name)
    except NotWaitingError:
        fail(f"there is no schedule {name!r}; `{typed(place, 'schedule', 'list')}` lists them", code=2)
