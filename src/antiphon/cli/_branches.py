"""`antiphon fork`, `antiphon diff` and `antiphon replay`: another way from some place, compared, and played back."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.text import Text

from antiphon import service
from antiphon.cli._hosts import AppOption
from antiphon.cli._ledger import (
    JsonOption,
    LedgerOption,
    ThreadArgument,
    thread_argument,
    with_ledger,
)
from antiphon.cli._live import (
    ConfigOption,
    ModelOption,
    QuietOption,
    RunPrinting,
    check_model,
    interruptible,
    print_answer,
    run_chain,
    say_thread,
    show_report,
    typed,
)
from antiphon.cli._output import deliver, print_json, print_json_line
from antiphon.cli._screen import cut, fail, note, open_console, rendered, styled
from antiphon.cli._view import LineView, contributed, watching
from antiphon.errors import PlaceError
from antiphon.protocol import PHASES

if TYPE_CHECKING:
    from antiphon.ledger import Ledger, Record, ThreadSummary
    from antiphon.service import (
        ChainRunner,
        ForkPlace,
        ReplayedEvent,
        RunReport,
        ThreadDiff,
    )


def fork(
    thread: ThreadArgument,
    *,
    at: Annotated[
        str | None,
        typer.Option(
            "--at", metavar="PLACE", help="The number of the last shared message, or a phase: share the messages before it."
        ),
    ] = None,
    at_step: Annotated[
        int | None, typer.Option("--at-step", metavar="STEP", help="Share the messages up to the end of this step.")
    ] = None,
    into: Annotated[
        str | None, typer.Option("--into", metavar="NAME", help="The id of the branch; default: a new one.")
    ] = None,
    model: ModelOption = None,
    is_quiet: QuietOption = False,
    for_programs: JsonOption = False,
    ledger: LedgerOption = None,
) -> None:
    """Branch a thread at a message, and print the id of the branch. With --model, continue it."""
    place = service.ForkPlace(thread, at, at_step, into)
    if model is not None:
        _run_branch(place, model, ledger, RunPrinting(for_programs, is_quiet))
        return
    branch, status = with_ledger(ledger, partial(_fork, place=place, named=ledger))
    if for_programs:
        print_json(service.ThreadValue.of(branch))
        return
    if not is_quiet:
        _tell(branch)
        if status == "terminated":
            note("the branch is terminated too, and does not continue; --at PLACE makes one from before the end")
        else:
            is_open = status not in (None, "completed", "failed")
            again = ("resume", branch.thread_id) if is_open else ("run", "--thread", branch.thread_id, "And then?")
            note("continue it with:", command=typed(ledger, *again))
    deliver(f"{branch.thread_id}\n".encode(), None)


async def _fork(ledger: Ledger, *, place: ForkPlace, named: str | None) -> tuple[ThreadSummary, str | None]:
    """Return the branch, and its status if it goes through six phases: in the middle of them, it takes no question."""
    try:
        branch = await service.fork_thread(ledger, place)
    except PlaceError as exc:
        _refuse(exc, named)
        raise
    summary = await service.thread_status(ledger, branch.thread_id)
    return branch, summary.status if summary.is_chain else None


def _refuse(error: PlaceError, ledger: str | None) -> None:
    """Print an error about a place in the words of the options."""
    show = typed(ledger, "show", error.thread_id or "", "--all")
    hint = f"; `{show}` shows the messages" if "has no phase" in str(error) else ""
    text = str(error).replace("give at or at_step", "give --at or --at-step").replace("a place is", "--at is")
    fail(f"{text}{hint}", code=2)


def _run_branch(place: ForkPlace, model: str, ledger: str | None, printing: RunPrinting) -> None:

    def begin(branch: ThreadSummary) -> None:
        _tell(branch)
        say_thread(branch.thread_id, ledger)

    async def work(runner: ChainRunner) -> RunReport:
        tell, view = begin if printing.has_notes else None, printing.view()
        try:
            with interruptible() as stop:
                async with watching(view, runner.ledger):
                    return await runner.fork(place, on_branch=tell, on_event=view.take, stop=stop)
        except PlaceError as exc:
            _refuse(exc, ledger)
            raise

    check_model(model)
    report = run_chain(ledger, work, model=model, thread=place.thread_id)
    commands = (f"diff {place.thread_id}", "show", "replay")
    show_report(report, ledger, printing, commands)


def _tell(branch: ThreadSummary) -> None:
    closed = branch.messages - (branch.forked_at or 0)
    closing = f"; open calls closed in the branch: {closed}" if closed else ""
    note(f"a branch of {branch.forked_from} after message {branch.forked_at}{closing}")


# ---------------------------------------------------------------- diff


def diff(
    left: Annotated[str, thread_argument("The id of a thread.", metavar="LEFT")],
    right: Annotated[str, thread_argument("The id of another, for example a branch of it.", metavar="RIGHT")],
    *,
    by_message: Annotated[bool, typer.Option("--messages", help="Compare message by message, not by phase.")] = False,
    for_programs: JsonOption = False,
    ledger: LedgerOption = None,
) -> None:
    """Compare two threads, by phase if both have six phases. Exit 1 if they differ."""
    difference = with_ledger(ledger, lambda opened: service.compare_threads(opened, left, right))
    if for_programs:
        print_json(service.DiffValue.of(difference.messages, difference.phases))
    elif difference.phases is None or by_message:
        messages = difference.messages
        common = Text(f"messages that are the same: {messages.common}", style="aside")
        _print((common, *_side("-", left, messages.left, "red"), *_side("+", right, messages.right, "green")))
    else:
        _print(_phase_lines(difference, left, right))
    if not difference.is_empty:
        raise typer.Exit(1)


_SAME_ANSWERS = "the answers are the same, other messages differ: --messages compares those"


def _print(lines: Iterable[Text]) -> None:
    console = open_console()
    for line in lines:
        if console.is_terminal:
            line.truncate(console.width, overflow="ellipsis")
        console.print(line, soft_wrap=True)


def _phase_lines(difference: ThreadDiff, left: str, right: str) -> Iterator[Text]:
    """Yield, phase by phase, the answers of both threads and their models."""
    yield Text(f"messages that are the same: {difference.messages.common}", style="aside")
    yield styled(f"--- {left}", "bold red")
    yield styled(f"+++ {right}", "bold green")
    for phase in difference.phases or ():
        before, after = _answer(phase.left, phase.left_model), _answer(phase.right, phase.right_model)
        if before == after:
            yield styled(f"  {phase.phase}: the same", "aside")
            continue
        yield styled(f"- {phase.phase}: {before}", "red")
        yield styled(f"+ {phase.phase}: {after}", "green")
    if not difference.is_empty and all(
        (phase.left, phase.left_model) == (phase.right, phase.right_model) for phase in difference.phases or ()
    ):
        yield Text(_SAME_ANSWERS)


def _answer(response: str | None, model: str | None) -> str:
    if response is None:
        return "nothing"
    return " ".join(response.split()) + (f" ({model})" if model else "")


def _side(sign: str, name: str, records: tuple[Record, ...], style: str) -> Iterator[Text]:
    if records:
        yield styled(f"{sign * 3} {name}", f"bold {style}")
    for record in records:
        text = rendered(service.in_one_line(record.message))
        text.stylize(style)
        yield Text.assemble((f"{sign} {record.seq}  ", style), styled(record.message.policy, f"bold {style}"), "  ", text)


# ---------------------------------------------------------------- replay


def replay(
    thread: Annotated[str | None, thread_argument("The id of a thread; with --against, default: all.")] = None,
    *,
    speed: Annotated[
        float | None,
        typer.Option("--speed", metavar="X", min=0.01, help="Speed, relative to the original; default: without waiting."),
    ] = None,
    by_step: Annotated[bool, typer.Option("--step", help="Wait for Enter after each step.")] = False,
    is_against: Annotated[
        bool,
        typer.Option("--against", help="Run stored threads again on the installed code, and report the first difference."),
    ] = False,
    is_running: Annotated[
        bool, typer.Option("--running", help="With --against: try threads that have not ended, up to their next step.")
    ] = False,
    apps: AppOption = None,
    teams: Annotated[
        list[Path] | None,
        typer.Option("--team", metavar="FILE", help="With --running: also threads of this team; repeatable."),
    ] = None,
    config: ConfigOption = None,
    for_programs: JsonOption = False,
    ledger: LedgerOption = None,
) -> None:
    """Print what happened in a thread: its phases, tool calls and answers, in order. No model is called.

    Before a deploy, --against --running lists the open threads that the installed code cannot continue, and --against --app
    the open runs of your programs that would stop.
    """
    if (is_running or teams) and not (is_against and is_running and not apps):
        fail("--running and --team belong to --against --running; runs of programs: --against --app", code=2)
    if apps:
        _check_runs(ledger, thread, apps, for_programs=for_programs)
    elif is_running:
        _forecast_running(ledger, thread, config, teams or [], for_programs=for_programs)
    elif is_against:
        _replay_against(ledger, thread, config, for_programs=for_programs)
    elif thread is None:
        fail(f"which thread? `{typed(ledger, 'threads')}` lists them", code=2)
    else:
        _replay(ledger, thread, speed, by_step=by_step, for_programs=for_programs)


def _replay(ledger: str | None, thread: str, speed: float | None, *, by_step: bool, for_programs: bool) -> None:
    """Print the events of a thread, with pauses if a speed is wanted."""
    events = with_ledger(ledger, lambda opened: service.replay_thread(opened, thread))
    view, before = LineView(open_console(stderr=True)), events[0].at if events else None
    for event in events:
        if speed is not None and before is not None:
            time.sleep(max(0.0, (event.at - before).total_seconds() / speed))
        before = event.at
        _put(event, view, for_programs=for_programs)
        if by_step and not for_programs:
            sys.stdin.readline()
    if not events:
        note(f"the thread has no phases to replay; `{typed(ledger, 'show', thread)}` prints its messages")


def _put(replayed: ReplayedEvent, view: LineView, *, for_programs: bool) -> None:
    if for_programs:
        print_json_line(service.ReplayedValue.of(replayed.at, replayed.event))
        return
    event = replayed.event
    view.take(event)
    # The first line of what an agent said, unless the view has it already, or the answer follows.
    summary = event.text.partition("\n")[0]
    if event.kind == "phase_ended" and event.phase != PHASES[-1] and summary != contributed(event):
        console, line = open_console(stderr=True), styled(f"  {summary}", "aside")
        console.print(cut(line, console.width) if console.is_terminal else line, soft_wrap=True)
    elif event.kind == "ended":
        print_answer(replayed.answer, event.data.get("citations") or ())


def _replay_against(ledger: str | None, thread: str | None, config: Path | None, *, for_programs: bool) -> None:
    """Run stored threads again on the installed code; exit 1 if one of them goes otherwise."""
    reruns = with_ledger(ledger, lambda opened: service.rerun_threads(opened, thread, config=config))
    bad = [
        (rerun.thread_id, f"{rerun.thread_id} differs from message {rerun.parts_at} on, {rerun.what}: {rerun.reason}")
        for rerun in reruns
        if rerun.differs
    ]
    _tell_checked(reruns, bad, f"threads: {len(reruns)}; with differences", for_programs=for_programs)


def _forecast_running(
    ledger: str | None, thread: str | None, config: Path | None, teams: list[Path], *, for_programs: bool
) -> None:
    """Try open threads on the installed code; exit 1 if one of them cannot be continued."""
    forecast = with_ledger(ledger, lambda opened: service.forecast_threads(opened, thread, config=config, teams=teams))
    bad = [
        (rerun.thread_id, f"{rerun.thread_id} cannot continue at message {rerun.parts_at}, {rerun.what}: {rerun.reason}")
        for rerun in forecast.unfit
    ]
    if forecast.untried and not for_programs:
        note(f"not tried, because their team was not given (--team FILE): {', '.join(forecast.untried)}")
    _tell_checked(forecast, bad, f"open threads: {len(forecast.tried)}; cannot continue", for_programs=for_programs)


def _check_runs(ledger: str | None, thread: str | None, apps: list[str], *, for_programs: bool) -> None:
    """Try the open runs of programs; exit 1 if one of them would not go on."""
    app = service.load_apps(apps)
    checks = with_ledger(ledger, lambda opened: service.check_runs(opened, app, thread))
    bad = [
        (f"{check.thread_id} {check.id}", f"{check.thread_id}, run {check.id!r} {check.forecast}: {check.reason}")
        for check in checks
        if check.forecast in ("stops", "fails")
    ]
    _tell_checked(checks, bad, f"open runs of these programs: {len(checks)}; cannot continue", for_programs=for_programs)


def _tell_checked(values: object, bad: Sequence[tuple[str, str]], counts: str, *, for_programs: bool) -> None:
    """Print what would not go on, line by line, each with what its further lines are about; exit 1 if anything would not."""
    if for_programs:
        print_json(values)
    else:
        for prefix, text in bad:
            first, *rest = text.splitlines()
            note(first)
            for line in rest:
                note(f"{prefix}: {line}", style="warning")
        note(f"{counts}: {len(bad)}")
    if bad:
        raise typer.Exit(1)
