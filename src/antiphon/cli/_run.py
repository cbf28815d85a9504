"""`antiphon run` and `antiphon chat`: questions in six phases, and tasks for a team."""

from __future__ import annotations

import shlex
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from antiphon import service
from antiphon.cli._knowledge import read_document
from antiphon.cli._ledger import JsonOption, LedgerOption, with_ledger
from antiphon.cli._live import (
    ConfigOption,
    LiveView,
    ModelOption,
    QuietOption,
    TypedLines,
    check_model,
    choose_model,
    exit_code,
    interruptible,
    program_name,
    run_chain,
    show_report,
    sum_up,
)
from antiphon.cli._output import COMPLETED, WAITING, deliver
from antiphon.cli._screen import fail, note
from antiphon.errors import ParkedError
from antiphon.messages import current_port

if TYPE_CHECKING:
    from antiphon.ledger import Ledger
    from antiphon.service import ChainRunner, RunReport


def run(
    question: Annotated[str, typer.Argument(metavar="QUESTION", help="The question.")],
    *,
    model: ModelOption = None,
    documents: Annotated[
        list[Path] | None, typer.Option("--add", metavar="FILE", help="A document that agents may search; repeatable.")
    ] = None,
    thread: Annotated[
        str | None,
        typer.Option("--thread", metavar="THREAD", help="The thread to ask in, as its next turn."),
    ] = None,
    user: Annotated[str, typer.Option("--user", metavar="NAME", help="The owner of the thread.")] = "user",
    config: ConfigOption = None,
    team: Annotated[
        Path | None, typer.Option("--team", metavar="FILE", help="Run the team of this file instead of the six phases.")
    ] = None,
    files: Annotated[
        Path | None, typer.Option("--files", metavar="FOLDER", help="With --team: the folder that the team works on.")
    ] = None,
    is_quiet: QuietOption = False,
    for_programs: JsonOption = False,
    ledger: LedgerOption = None,
) -> None:
    """Answer a question in six phases. Progress goes to stderr, the answer to stdout. Ctrl-C pauses the thread."""
    if not question.strip():
        fail("the question is empty; ask something", code=2)
    if team is not None:
        _check_none_given({"--add": documents, "--config": config}, "without --team: a team's file says what it uses")
        task = _TeamTask(team, question, thread or current_port().new_id(), files, model, ledger)
        _run_team(task, for_programs=for_programs, is_quiet=is_quiet)
        return
    _check_none_given({"--files": files}, "with --team; --add FILE gives documents to six phases")
    texts = {str(path): read_document(path) for path in documents or ()}
    hear = None if is_quiet or for_programs else LiveView().take

    async def work(runner: ChainRunner) -> RunReport:
        await service.add_documents(runner.ledger, texts)
        with interruptible() as stop:
            return await runner.ask(question, thread_id=thread, user_id=user, hear=hear, stop=stop)

    chosen = choose_model(model)
    report = run_chain(ledger, work, model=chosen, config=config, thread=thread, create=thread is None)
    show_report(report, ledger, for_programs=for_programs, is_quiet=is_quiet)


def _check_none_given(options: dict[str, Any], goes: str) -> None:
    """Refuse options that have no effect here."""
    for name, value in options.items():
        if value:
            fail(f"{name} goes {goes}", code=2)


# ---------------------------------------------------------------- chat


def chat(
    *,
    model: ModelOption = None,
    thread: Annotated[
        str | None, typer.Option("--thread", metavar="THREAD", help="The thread to continue; default: a new one.")
    ] = None,
    user: Annotated[str, typer.Option("--user", metavar="NAME", help="The owner of the thread.")] = "user",
    config: ConfigOption = None,
    is_quiet: QuietOption = False,
    ledger: LedgerOption = None,
) -> None:
    """Chat: each input line is a turn of one thread. Ctrl-C pauses the turn and ends the chat."""
    hear = None if is_quiet else LiveView().take

    async def work(runner: ChainRunner) -> RunReport | None:
        thread_id, report, typed = thread, None, TypedLines()
        while (line := await typed.line()) is not None:
            with interruptible() as stop:
                report = await runner.ask(line, thread_id=thread_id, user_id=user, hear=hear, stop=stop)
            thread_id = report.thread_id
            deliver(f"{report.response or report.error_message or report.status}\n".encode(), None)
            if report.was_interrupted:
                break
        return report

    chosen = choose_model(model)
    last = run_chain(ledger, work, model=chosen, config=config, thread=thread, create=thread is None)
    if last is None:
        return
    if not is_quiet:
        sum_up(last, ledger)
    if (code := exit_code(last)) != COMPLETED:
        raise typer.Exit(code)


# ---------------------------------------------------------------- teams


@dataclass(frozen=True, slots=True)
class _TeamTask:
    """A task for a team, and where it is done."""

    team: Path
    task: str
    thread_id: str
    files: Path | None
    model: str | None
    ledger: str | None

    @property
    def command(self) -> str:
        """The command that continues the task."""
        chosen = {"--files": self.files, "--model": self.model, "--ledger": self.ledger}
        given = [word for name, value in chosen.items() if value is not None for word in (name, str(value))]
        words = shlex.join(["run", "--team", str(self.team), "--thread", self.thread_id, *given, self.task])
        return f"{program_name()} {words}"


def _run_team(task: _TeamTask, *, for_programs: bool, is_quiet: bool) -> None:
    """Run a task, and print the answer."""
    if task.model is not None:
        check_model(task.model)
    hear = None if for_programs or is_quiet else LiveView().take_step

    async def work(found: Ledger) -> RunReport:
        try:
            with interruptible() as stop:
                return await service.run_team(
                    found,
                    task.team,
                    task.task,
                    thread_id=task.thread_id,
                    model=task.model,
                    files=task.files,
                    hear=hear,
                    stop=stop,
                )
        except ParkedError as exc:
            fail(f"{exc}\nthen go on with: {task.command}", code=WAITING)

    report = with_ledger(task.ledger, work, create=True)
    if report.was_interrupted:
        note(f"stopped; go on with: {task.command}")
        raise typer.Exit(exit_code(report))
    commands = ("show", "export", "fork")
    show_report(report, task.ledger, for_programs=for_programs, is_quiet=is_quiet, next_commands=commands)
