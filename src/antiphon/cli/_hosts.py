"""Hosts: `antiphon host` runs threads until a signal, `recover` continues runs once, `hosts` lists the hosts of a ledger."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final, TypeAlias

import typer

from antiphon import service
from antiphon.cli._ledger import JsonOption, LedgerOption, complaints, ledger_in_use, with_ledger
from antiphon.cli._live import ConfigOption, ModelOption, choose_model
from antiphon.cli._output import print_json, shown_age, shown_time
from antiphon.cli._screen import fail, note, open_console, print_table, styled

if TYPE_CHECKING:
    from antiphon.ledger import HostStatus, Ledger
    from antiphon.service import HostedThread, RecoveredRun, RunApp, RunStatus

_SIGNALS: Final = (signal.SIGTERM, signal.SIGINT)

AppOption: TypeAlias = Annotated[
    list[str] | None,
    typer.Option("--app", metavar="MODULE:NAME", help="A program, an agent or a list of them, to import; repeatable."),
]


def host(
    *,
    teams: Annotated[
        list[Path] | None,
        typer.Option("--team", metavar="FILE", help="Run threads of this team too; repeatable, one of each pattern."),
    ] = None,
    apps: AppOption = None,
    config: ConfigOption = None,
    model: ModelOption = None,
    ledger: LedgerOption = None,
) -> None:
    """Run threads that are due, until SIGTERM or Ctrl-C: then other hosts continue them. The second signal ends it at once.

    With --app it continues the runs of your own programs that a dead process has left, and nothing else.
    """
    if apps:
        _host_apps(apps, ledger, has_more=bool(teams or config or model))
        return
    chosen = choose_model(model)

    async def work(found: Ledger) -> None:
        with until_signal() as stop:
            ready = partial(_tell_ready, ledger_in_use(ledger))
            await service.run_host(
                found,
                config=config,
                model=chosen,
                teams=teams or (),
                team_model=model,  # without one, the files name the models of their teams
                ready=ready,
                hear=_tell_thread,
                stop=stop,
            )

    with complaints():
        service.import_model(chosen)
        with_ledger(ledger, work, create=True)
    print_line("stopped")


def _host_apps(apps: list[str], ledger: str | None, *, has_more: bool) -> None:
    if has_more:
        fail("--app is a host of its own; start another one for --team, --config and --model", code=2)

    async def work(found: Ledger) -> None:
        with until_signal() as stop:
            ready = partial(_tell_ready, ledger_in_use(ledger))
            await service.host_app(found, app, ready=ready, hear=_tell_run, stop=stop)

    with complaints():
        app = service.load_apps(apps)
        with_ledger(ledger, work, create=True)
    print_line("stopped")


def _tell_run(run: RecoveredRun) -> None:
    reason = "" if run.reason is None else f": {run.reason}"
    print_line(f"{run.thread_id} run {run.id} {run.status}{reason}")


@contextmanager
def until_signal(word: str = "stopping; the threads go to other hosts") -> Generator[asyncio.Event]:
    """Print a word at the first signal, and have it set an event. The second ends the process at once, as after a crash."""
    event, loop = asyncio.Event(), asyncio.get_running_loop()

    def stop() -> None:
        print_line(word)
        event.set()
        for number in _SIGNALS:
            loop.remove_signal_handler(number)
            signal.signal(number, signal.SIG_DFL)

    for number in _SIGNALS:
        loop.add_signal_handler(number, stop)
    try:
        yield event
    finally:
        for number in _SIGNALS:
            loop.remove_signal_handler(number)


def _tell_ready(ledger: str, own: HostStatus) -> None:
    print_line(f"host {own.host.name} runs {', '.join(own.host.kinds)} on {ledger}")


def _tell_thread(thread: HostedThread) -> None:
    word = {"taken": "taken", "ended": thread.status or "ended", "released": "released"}[thread.kind]
    reason = "" if thread.reason is None else f": {thread.reason}"
    print_line(f"{thread.thread_id} {word}{reason}")


def print_line(text: str) -> None:
    """Print a line to stdout, at once: a supervisor or a file reads it."""
    console = open_console()
    console.print(styled(text), soft_wrap=True)
    console.file.flush()


# ---------------------------------------------------------------- once


def recover(
    *,
    apps: AppOption = None,
    with_failed: Annotated[bool, typer.Option("--failed", help="Also continue runs that failed.")] = False,
    for_programs: JsonOption = False,
    ledger: LedgerOption = None,
) -> None:
    """Continue the runs that a dead or stopped process has left, and print how each ended. Without --app, list them."""
    if not apps:
        _list_left(ledger, with_failed=with_failed, for_programs=for_programs)
        return
    with complaints():
        app = service.load_apps(apps)
        done = with_ledger(ledger, partial(_recover, app=app, with_failed=with_failed))
    if for_programs:
        print_json([asdict(each) for each in done])
    elif done:
        rows = [(each.thread_id, each.id, each.name, each.status, each.reason or "") for each in done]
        print_table(open_console(), ("thread", "run", "program", "status", "reason"), rows)
    else:
        note("nothing is left to these programs; `antiphon recover` lists the runs of others")
    if any(each.status in ("failed", "stopped") for each in done):
        raise typer.Exit(1)


async def _recover(ledger: Ledger, *, app: RunApp, with_failed: bool) -> tuple[RecoveredRun, ...]:
    return await service.recover_runs(ledger, app, with_failed=with_failed)


def _list_left(ledger: str | None, *, with_failed: bool, for_programs: bool) -> None:
    found = [each for each in with_ledger(ledger, _runs) if each.is_left or (with_failed and each.status == "failed")]
    if for_programs:
        print_json([each.to_json() for each in found])
    elif found:
        rows = [(each.thread_id, each.id, each.name or "", each.status, shown_age(each.age)) for each in found]
        print_table(open_console(), ("thread", "run", "program", "status", "age"), rows)
        note("continue them with `antiphon recover --app MODULE:NAME`, or start their programs")
    else:
        note("no run is left; `antiphon threads` lists all")


async def _runs(ledger: Ledger) -> tuple[RunStatus, ...]:
    return await service.list_runs(ledger)


# ---------------------------------------------------------------- the list


def hosts(
    *,
    with_ended: Annotated[
        bool, typer.Option("--all", help="Include hosts that have ended and were the last to own a thread.")
    ] = False,
    for_programs: JsonOption = False,
    ledger: LedgerOption = None,
) -> None:
    """List the processes that run threads of a ledger."""
    found = with_ledger(ledger, partial(_hosts, with_ended=with_ended))
    if for_programs:
        print_json([service.host_json(each) for each in found])
    elif found:
        print_table(open_console(), ("host", "build", "kinds", "alive until (UTC)", "threads"), [_row(each) for each in found])
    else:
        note("no host runs threads of this ledger; `antiphon host` starts one")


async def _hosts(ledger: Ledger, *, with_ended: bool) -> tuple[HostStatus, ...]:
    return await service.list_hosts(ledger, with_ended=with_ended)


def _row(status: HostStatus) -> tuple[str, ...]:
    until = shown_time(status.until) if status.is_alive else f"ended {shown_time(status.until)}"
    return status.host.name, status.host.build, " ".join(status.host.kinds), until, str(status.threads)
