"""`antiphon fork`, `antiphon diff` and `antiphon replay`: another way from some place, compared, and played back."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, TypeAlias

import typer
from rich.text import Text

from antiphon import service
from antiphon.cli._hosts import AppOption
from antiphon.cli._ledger import (
    JsonOption,
    LedgerOption,
    ThreadArgument,
    known_thread,
    offered_threads,
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
    from antiphon.ledger import Diff, Ledger, Record, ThreadSummary
    from antiphon.service import (
        ChainEvent,
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
    left: Annotated[
        str,
        typer.Argument(metavar="LEFT", callback=known_thread, autocompletion=offered_threads, help="The id of a thread."),
    ],
    right: Annotated[
        str,
        typer.Argument(
            metavar="RIGHT",
            callback=known_thread,
            autocompletion=offered_threads,
            help="The id of another, for example a branch of it.",
        ),
    ],
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
        _print(_message_lines(difference.messages, left, right))
    else:
        _print(_phase_lines(difference, left, right))
    if not difference.is_empty:
        raise typer.Exit(1)


_SAME_ANSWERS = "the answers are the same, other messages differ: --messages compares those"


def _print(lines: Iterator[Text]) -> None:
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


def _message_lines(difference: Diff, left: str, right: str) -> Iterator[Text]:
    yield Text(f"messages that are the same: {difference.common}", style="aside")
    yield from _side("-", left, difference.left, "red")
    yield from _side("+", right, difference.right, "green")


def _side(sign: str, name: str, records: tuple[Record, ...], style: str) -> Iterator[Text]:
    if records:
        yield styled(f"{sign * 3} {name}", f"bold {style}")
    for record in records:
        text = rendered(service.in_one_line(record.message))
        text.stylize(style)
        yield Text.assemble((f"{sign} {record.seq}  ", style), styled(record.message.policy, f"bold {style}"), "  ", text)


# ---------------------------------------------------------------- replay


ReplayedArgument: TypeAlias = Annotated[
    str | None,
    typer.Argument(
        metavar="THREAD",
        callback=known_thread,
        autocompletion=offered_threads,
        help="The id of a thread; with --against, default: all.",
    ),
]
SpeedOption: TypeAlias = Annotated[
    float | None,
    typer.Option("--speed", metavar="X", min=0.01, help="Speed, relative to the original; default: without waiting."),
]
AgainstOption: TypeAlias = Annotated[
    bool,
    typer.Option("--against", help="Run stored threads again on the installed code, and report the first difference."),
]


def replay(
    thread: ReplayedArgument = None,
    *,
    speed: SpeedOption = None,
    by_step: Annotated[bool, typer.Option("--step", help="Wait for Enter after each step.")] = False,
    is_against: AgainstOption = False,
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
    if event.kind == "phase_ended":
        _put_words(event)
    elif event.kind == "ended":
        print_answer(replayed.answer, event.data.get("citations") or ())


def _put_words(event: ChainEvent) -> None:
    """Print the first line of what an agent said, unless the view has it already, or the answer follows."""
    summary = event.text.partition("\n")[0]
    if event.phase != PHASES[-1] and summary != contributed(event):
        console, line = open_console(stderr=True), styled(f"  {summary}", "aside")
        console.print(cut(line, console.width) if console.is_terminal else line, soft_wrap=True)


def _replay_against(ledger: str | None, thread: str | None, config: Path | None, *, for_programs: bool) -> None:
    """Run stored threads again on the installed code; exit 1 if one of them goes otherwise."""
    reruns = with_ledger(ledger, lambda opened: service.rerun_threads(opened, thread, config=config))
    parted = [rerun for rerun in reruns if rerun.differs]
    if for_programs:
        print_json(reruns)
    else:
        for rerun in parted:
            text = f"{rerun.thread_id} differs from message {rerun.parts_at} on, {rerun.what}: {rerun.reason}"
            _note_lines(text, f"{rerun.thread_id}: ")
        note(f"threads: {len(reruns)}; with differences: {len(parted)}")
    if parted:
        raise typer.Exit(1)


def _forecast_running(
    ledger: str | None, thread: str | None, config: Path | None, teams: list[Path], *, for_programs: bool
) -> None:
    """Try open threads on the installed code; exit 1 if one of them cannot be continued."""
    forecast = with_ledger(ledger, lambda opened: service.forecast_threads(opened, thread, config=config, teams=teams))
    if for_programs:
        print_json(forecast)
    else:
        for rerun in forecast.unfit:
            text = f"{rerun.thread_id} cannot continue at message {rerun.parts_at}, {rerun.what}: {rerun.reason}"
            _note_lines(text, f"{rerun.thread_id}: ")
        if forecast.untried:
            note(f"not tried, because their team was not given (--team FILE): {', '.join(forecast.untried)}")
        note(f"open threads: {len(forecast.tried)}; cannot continue: {len(forecast.unfit)}")
    if forecast.unfit:
        raise typer.Exit(1)


def _check_runs(ledger: str | None, thread: str | None, apps: list[str], *, for_programs: bool) -> None:
    """Try the open runs of programs; exit 1 if one of them would not go on."""
    app = service.load_apps(apps)
    checks = with_ledger(ledger, lambda opened: service.check_runs(opened, app, thread))
    bad = [check for check in checks if check.forecast in ("stops", "fails")]
    if for_programs:
        print_json(checks)
    else:
        for check in bad:
            _note_lines(
                f"{check.thread_id}, run {check.id!r} {check.forecast}: {check.reason}", f"{check.thread_id} {check.id}: "
            )
        note(f"open runs of these programs: {len(checks)}; cannot continue: {len(bad)}")
    if bad:
        raise typer.Exit(1)


def _note_lines(text: str, prefix: str) -> None:
    """Print a text line by line, as the differences of a program; `prefix` says what all but the first are about."""
    first, *rest = text.splitlines()
    note(first)
    for line in rest:
        note(f"{prefix}{line}", style="warning")
