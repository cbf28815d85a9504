"""Hosts: `antiphon host`, which runs threads until a signal, and `antiphon hosts`, which lists the hosts of a ledger."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Generator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final

import typer

from antiphon import service
from antiphon.cli._ledger import JsonOption, LedgerOption, complaints, ledger_in_use, with_ledger
from antiphon.cli._live import ConfigOption, ModelOption, choose_model
from antiphon.cli._output import print_json, shown_time
from antiphon.cli._screen import note, open_console, print_table, styled

if TYPE_CHECKING:
    from antiphon.ledger import HostStatus, Ledger
    from antiphon.service import HostedThread

_SIGNALS: Final = (signal.SIGTERM, signal.SIGINT)


def host(
    *,
    teams: Annotated[
        list[Path] | None,
        typer.Option("--team", metavar="FILE", help="Run threads of this team too; repeatable, one of each pattern."),
    ] = None,
    config: ConfigOption = None,
    model: ModelOption = None,
    ledger: LedgerOption = None,
) -> None:
    """Run threads that are due, until SIGTERM or Ctrl-C: then other hosts continue them. The second signal ends it at once."""
    chosen = choose_model(model)

    async def work(found: Ledger) -> None:
        with _until_signal() as stop:
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
    _print_line("stopped")


@contextmanager
def _until_signal() -> Generator[asyncio.Event]:
    """Have the first signal set an event. The second ends the process at once, as after a crash."""
    event, loop = asyncio.Event(), asyncio.get_running_loop()

    def stop() -> None:
        _print_line("stopping; the threads go to other hosts")
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
    _print_line(f"host {own.host.name} runs {', '.join(own.host.kinds)} on {ledger}")


def _tell_thread(thread: HostedThread) -> None:
    word = {"taken": "taken", "ended": thread.status or "ended", "released": "released"}[thread.kind]
    reason = "" if thread.reason is None else f": {thread.reason}"
    _print_line(f"{thread.thread_id} {word}{reason}")


def _print_line(text: str) -> None:
    """Print a line to stdout, at once: a supervisor or a file reads it."""
    console = open_console()
    console.print(styled(text), soft_wrap=True)
    console.file.flush()


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
