"""The life of a thread: `antiphon status`, `pause`, `resume` and `terminate`."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import replace
from datetime import datetime
from enum import Enum
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final, cast

import typer

from antiphon import service
from antiphon.cli._hosts import AppOption, resume_all, show_hosts
from antiphon.cli._ledger import JsonOption, LedgerOption, ThreadArgument, thread_argument, with_ledger
from antiphon.cli._live import (
    BudgetOption,
    ConfigOption,
    EventsOption,
    ModelOption,
    QuietOption,
    RunPrinting,
    check_model,
    interruptible,
    read_budget,
    run_chain,
    show_report,
    typed,
)
from antiphon.cli._output import print_json, shown_time
from antiphon.cli._run import TeamTask, run_team
from antiphon.cli._screen import check_unused, fail, note, open_console, print_pairs
from antiphon.cli._view import watching
from antiphon.errors import RefusedError

if TYPE_CHECKING:
    from antiphon.ledger import Ledger
    from antiphon.service import ChainRunner, RunReport


class OnChangeChoice(Enum):
    """How a run goes on whose program has changed."""

    CONTINUE = "continue"
    RESTART = "restart"


def status(
    thread: Annotated[
        str | None, thread_argument("The id of a thread or a unique prefix, or last; default: the hosts of the ledger.")
    ] = None,
    *,
    with_work: Annotated[
        bool,
        typer.Option(
            "--all",
            help="Of the hosts: also dead ones with threads, due and stuck threads, takeovers. Exit 1 if one is stuck.",
        ),
    ] = False,
    for_programs: JsonOption = False,
    ledger: LedgerOption = None,
) -> None:
    """Show the state of a thread; without THREAD, the processes that run threads of the ledger: its hosts.

    For a thread of six phases: which are completed, and which remain.
    """
    if thread is None:
        show_hosts(ledger, with_work=with_work, for_programs=for_programs)
        return
    check_unused({"--all": with_work}, "is about the hosts: leave out THREAD")
    status = with_ledger(ledger, lambda opened: service.thread_status(opened, thread))
    if for_programs:
        print_json(status)
        return
    waits = status.waits_for or ""  # what a run waits for also says which build cannot continue it, and why
    unfit = tuple(build for build in status.unfit if build.partition(":")[0] not in waits)
    fields = {**dict(status), "unfit": unfit}
    names = [*(_OF_CHAIN if status.is_chain else _OF_OTHERS), *(name for name in _REASONS if fields[name])]
    print_pairs(open_console(), [(name.replace("_", " "), _text(name, fields[name])) for name in names])


_OF_CHAIN: Final = (
    *("thread_id", "status", "current_phase", "turn", "created_at", "updated_at", "phases_completed", "phases_remaining"),
)
_OF_OTHERS: Final = ("thread_id", "status", "pattern", "messages", "open_calls", "created_at", "updated_at")
_REASONS: Final = ("waits_for", "error", "owner", "unfit")
"""They are shown if there are any."""


def _text(name: str, value: Any) -> str:
    if name.endswith("_at"):
        return f"{shown_time(value if isinstance(value, datetime) else datetime.fromisoformat(value))} UTC"
    return ", ".join(cast("tuple[str, ...]", value)) if isinstance(value, tuple) else str(value or "")


# ---------------------------------------------------------------- moves


def pause(thread: ThreadArgument, *, for_programs: JsonOption = False, ledger: LedgerOption = None) -> None:
    """Pause a thread, whichever process runs it. Running calls finish and are recorded; no new call starts."""
    _move(ledger, lambda opened: service.pause_thread(opened, thread), for_programs=for_programs)


def terminate(
    thread: ThreadArgument,
    *,
    reason: Annotated[
        str, typer.Option("--reason", metavar="TEXT", help="The reason, recorded in the thread.")
    ] = "user_request",
    for_programs: JsonOption = False,
    ledger: LedgerOption = None,
) -> None:
    """End a thread permanently, whichever process runs it. Running calls are cancelled; no new call starts."""
    _move(ledger, lambda opened: service.terminate_thread(opened, thread, reason), for_programs=for_programs)


def _move(ledger: str | None, work: Callable[[Ledger], Awaitable[Mapping[str, Any]]], *, for_programs: bool) -> None:
    async def moved(opened: Ledger) -> Mapping[str, Any]:
        try:
            return await work(opened)
        except RefusedError as exc:
            if for_programs:
                print_json(cast("dict[str, Any]", exc.details))
            fail(exc.reason)

    answer = with_ledger(ledger, moved)
    if for_programs:
        print_json(dict(answer))
    else:
        note(f"thread {answer['data']['thread_id']} is {answer['data']['status']}")


def resume(
    thread: Annotated[
        str | None, thread_argument("The id of a thread or a unique prefix, or last: see antiphon threads.")
    ] = None,
    *,
    is_all: Annotated[
        bool, typer.Option("--all", help="Continue all runs of --app whose process died or stopped; without --app, list them.")
    ] = False,
    apps: AppOption = None,
    with_failed: Annotated[bool, typer.Option("--failed", help="With --all: also runs that failed.")] = False,
    model: ModelOption = None,
    config: ConfigOption = None,
    on_change: Annotated[
        OnChangeChoice | None,
        typer.Option(
            "--on-change",
            help="Continue a run that stopped because its program changed: keep what is recorded, or start over.",
        ),
    ] = None,
    run: Annotated[
        str | None, typer.Option("--run", metavar="ID", help="With --on-change: the id of the run; default: all open runs.")
    ] = None,
    team: Annotated[Path | None, typer.Option("--team", metavar="FILE", help="Use another team file than before.")] = None,
    files: Annotated[Path | None, typer.Option("--files", metavar="FOLDER", help="Use another folder than before.")] = None,
    budget: BudgetOption = None,
    is_quiet: QuietOption = False,
    for_programs: JsonOption = False,
    as_events: EventsOption = False,
    ledger: LedgerOption = None,
) -> None:
    """Continue a thread where it stopped, with its recorded model and settings. Finished steps do not run again."""
    if is_all and thread is not None:
        fail("--all is about all runs: leave out THREAD, or --all", code=2)
    check_unused({} if is_all else {"--app": apps, "--failed": with_failed}, "goes with --all")
    if is_all:
        resume_all(apps, ledger, with_failed=with_failed, for_programs=for_programs)
    elif thread is None:
        fail(f"which thread? `{typed(ledger, 'threads')}` lists them; --all continues the runs of your programs", code=2)
    elif on_change is not None:
        _allow_change(ledger, thread, on_change, run, for_programs=for_programs)
    else:
        task = TeamTask(thread, ledger, team=team, files=files, model=model)
        _resume(task, config, budget, RunPrinting(for_programs, is_quiet, as_events))


def _resume(task: TeamTask, config: Path | None, budget: list[str] | None, printing: RunPrinting) -> None:
    """Continue a thread of a team, of six phases, or of a program."""
    thread, ledger = task.thread_id, task.ledger

    async def work(runner: ChainRunner) -> RunReport:
        view = printing.view(await service.latest_question_of(runner.ledger, thread) or "")
        with interruptible() as stop:
            async with watching(view, runner.ledger):
                return await runner.resume(
                    thread, on_owner=_tell_host if printing.has_notes else None, on_event=view.take, stop=stop
                )

    if (done := with_ledger(ledger, partial(_completed, thread=thread))) is not None:
        show_report(done, ledger, printing, ("show", "replay", "fork") if done.is_chain else ("show", "export"))
        return
    if task.model is not None:
        check_model(task.model)
    if with_ledger(ledger, lambda opened: service.is_of_team(opened, thread)) or task.team is not None:
        run_team(replace(task, budget=read_budget(budget)), printing)
        return
    if with_ledger(ledger, lambda opened: service.resume_elsewhere(opened, thread)):
        note(f"thread {thread} continues in the program that runs it")
        return
    report = run_chain(ledger, work, model=task.model, config=config, thread=thread, budget=budget)
    show_report(report, ledger, printing)


async def _completed(ledger: Ledger, *, thread: str) -> RunReport | None:
    """Return the report of a completed thread; None if it can continue. A thread that has ended needs no model."""
    await service.check_not_ended(ledger, thread)
    return await service.report_completed(ledger, thread)


def _allow_change(ledger: str | None, thread: str, choice: OnChangeChoice, run: str | None, *, for_programs: bool) -> None:
    async def allow(opened: Ledger) -> tuple[str, ...]:
        return await service.allow_change(opened, thread, choice.value, run_id=run)

    runs = with_ledger(ledger, allow)
    if for_programs:
        print_json({"thread_id": thread, "choice": choice.value, "runs": runs})
    else:
        note(f"recorded for {', '.join(runs)}; start the program again to continue")


def _tell_host(host: str) -> None:
    note(f"host {host} runs the thread; this command waits for the same answer")
