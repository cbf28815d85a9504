"""`antiphon run` and `antiphon chat`: questions in six phases, and tasks for a team."""

from __future__ import annotations

import os
import sys
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, TypeAlias

import typer

from antiphon import service
from antiphon.cli._chat import Chat
from antiphon.cli._input import read_text
from antiphon.cli._knowledge import STDIN, document_name, read_document
from antiphon.cli._ledger import JsonOption, LedgerOption, NewThreadOption, ThreadOption, with_ledger
from antiphon.cli._live import (
    BudgetOption,
    ConfigOption,
    EventsOption,
    ModelOption,
    QuietOption,
    RunPrinting,
    check_model,
    choose_model,
    exit_code,
    interruptible,
    read_budget,
    run_chain,
    say_stand_in,
    say_thread,
    say_waiting,
    show_report,
    sum_up,
    typed,
)
from antiphon.cli._output import COMPLETED, WAITING
from antiphon.cli._page import OpenOption, page_of, telling
from antiphon.cli._screen import check_unused, fail, note
from antiphon.cli._view import watching
from antiphon.errors import ParkedError

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Callable

    from antiphon.ledger import Ledger
    from antiphon.service import ChainRunner, ChosenModel, RunReport, TeamStep


UserOption: TypeAlias = Annotated[str, typer.Option("--user", metavar="NAME", help="The owner of the thread.")]
AddOption: TypeAlias = Annotated[
    list[Path] | None,
    typer.Option(
        "--add", metavar="FILE", help="A document, or a folder of them, that agents may search; repeatable; - reads stdin."
    ),
]


def run(
    question: Annotated[str, typer.Argument(metavar="QUESTION", help="The question; - reads it from stdin.")],
    *,
    model: ModelOption = None,
    documents: AddOption = None,
    thread: ThreadOption = None,
    name: NewThreadOption = None,
    user: UserOption = "user",
    config: ConfigOption = None,
    team: Annotated[
        Path | None, typer.Option("--team", metavar="FILE", help="Run the team of this file instead of the six phases.")
    ] = None,
    files: Annotated[
        Path | None, typer.Option("--files", metavar="FOLDER", help="With --team: the folder that the team works on.")
    ] = None,
    budget: BudgetOption = None,
    is_quiet: QuietOption = False,
    for_programs: JsonOption = False,
    as_events: EventsOption = False,
    opens: OpenOption = False,
    ledger: LedgerOption = None,
) -> None:
    """Answer a question in six phases. Progress goes to stderr, the answer to stdout. Ctrl-C pauses the thread."""
    if question == "-" and STDIN in (documents or ()):
        fail("the question and a document cannot both be read from stdin; give one of them as a file", code=2)
    question = read_text(question, "the question")
    _check_name(name, thread)
    if not question.strip():
        fail("the question is empty; ask something", code=2)
    printing = RunPrinting(for_programs, is_quiet, as_events)
    if team is not None or (thread is not None and _is_of_team(thread, ledger)):
        where = "goes without --team: a team's file" if team is not None else "does not go with a thread of a team: its file"
        check_unused({"--add": documents, "--config": config}, f"{where} says what it uses")
        task = TeamTask(
            thread_id=thread or name or service.new_thread_id(),
            ledger=ledger,
            team=team,
            task=question,
            files=files,
            model=model,
            budget=read_budget(budget),
            is_new=name is not None,
        )
        run_team(task, printing, opens=opens)
        return
    check_unused({"--files": files}, "goes with --team; --add FILE gives documents to six phases")
    asked = _Question(question, ledger, thread, name, user, model, config, budget, tuple(documents or ()))
    _run_phases(asked, printing, opens=opens)


@dataclass(frozen=True, slots=True)
class _Question:
    """A question for six phases, and where it is asked."""

    text: str
    ledger: str | None
    thread: str | None
    name: str | None
    user: str
    model: str | None
    config: Path | None
    budget: list[str] | None
    documents: tuple[Path, ...]


def _run_phases(question: _Question, printing: RunPrinting, *, opens: bool) -> None:
    """Ask a question, and print the answer."""
    texts = {document_name(path): read_document(path) for path in question.documents if not os.path.isdir(path)}
    paths = [file for path in question.documents if os.path.isdir(path) for file in service.files_in(path)]
    view = printing.view(question.text)

    async def work(runner: ChainRunner) -> RunReport:
        await service.add_documents(runner.ledger, texts)
        await service.add_files(runner.ledger, paths)
        with interruptible() as stop:
            async with watching(view, runner.ledger):
                return await runner.ask(
                    question.text,
                    thread_id=question.thread,
                    name=question.name,
                    user_id=question.user,
                    on_created=telling(page, say_begun if printing.has_notes else None),
                    on_event=view.take,
                    stop=stop,
                )

    def say_begun(thread_id: str) -> None:
        say_stand_in(model)
        say_thread(thread_id, question.ledger)

    model = _model_for(question.model, question.thread, question.config)
    with page_of(question.ledger, is_wanted=opens) as page:
        report = run_chain(
            question.ledger,
            work,
            model=model.name,
            config=question.config,
            thread=question.thread,
            create=question.thread is None,
            documents=[*texts, *map(str, paths)],
            budget=question.budget,
        )
        if page is not None:
            page.was_interrupted = report.was_interrupted
        show_report(report, question.ledger, printing)


def _check_name(name: str | None, thread: str | None) -> None:
    """Refuse the name of a new thread that could not be typed later, or that no new thread gets."""
    if name is None:
        return
    if thread is not None:
        fail("--name is for a new thread, --thread for one that exists; give one of them", code=2)
    if name in ("", service.LAST, "-") or name.startswith("-"):
        fail(f"--name: no thread can be called {name!r}: the command line reads it otherwise", code=2)


def _model_for(model: str | None, thread: str | None, config: Path | None) -> ChosenModel:
    """Return the model to use; of a thread that exists, that is the one that it was run with, unless another is named."""
    if thread is None:
        return choose_model(model, config)
    if model is not None:
        check_model(model)
    return service.ChosenModel(model)


def _is_of_team(thread: str, ledger: str | None) -> bool:
    """Whether a thread that takes a question says that a team has worked in it."""

    async def look(opened: Ledger) -> bool:
        await service.check_not_ended(opened, thread, may_have_failed=True)
        return await service.is_of_team(opened, thread)

    return with_ledger(ledger, look)


# ---------------------------------------------------------------- chat


def chat(
    *,
    model: ModelOption = None,
    thread: ThreadOption = None,
    name: NewThreadOption = None,
    user: UserOption = "user",
    config: ConfigOption = None,
    is_quiet: QuietOption = False,
    ledger: LedgerOption = None,
) -> None:
    """Chat: each input line is a turn of one thread. Ctrl-C stops an answer; /help lists the commands of the chat."""
    _check_name(name, thread)

    model_choice = _model_for(model, thread, config)
    if not is_quiet:
        say_stand_in(model_choice)
    session = Chat(user, is_quiet, thread, name, model_choice.name)
    is_new = thread is None
    while not session.is_over:
        run_chain(ledger, session.talk, model=session.model, config=config, thread=session.thread, create=is_new)
    last = session.last
    if last is None:
        return
    if not is_quiet:
        sum_up(last, ledger)
    if not sys.stdin.isatty() and (code := exit_code(last)) != COMPLETED:  # a stopped answer is no fault of a typed chat
        raise typer.Exit(code)


# ---------------------------------------------------------------- teams


@dataclass(frozen=True, slots=True)
class TeamTask:
    """A task for a team, and where it is done. What is not given is what the thread was run with."""

    thread_id: str
    ledger: str | None
    team: Path | None = None
    task: str | None = None
    """None: the one that the thread has not finished."""
    files: Path | None = None
    model: str | None = None
    budget: dict[str, float] | None = None
    is_new: bool = False
    """Whether the thread must not exist yet."""

    @property
    def command(self) -> str:
        """The command that continues the task."""
        return typed(self.ledger, "resume", self.thread_id)

    async def do(
        self,
        ledger: Ledger,
        *,
        on_created: Callable[[str], None] | None,
        on_step: Callable[[TeamStep], None],
        stop: asyncio.Event,
    ) -> RunReport:
        """Do the task, or continue it."""
        options = service.TeamOptions(self.model, self.files, self.budget)
        listeners = service.TeamListeners(on_created, on_step, stop)
        if self.task is None:
            return await service.resume_team(ledger, self.thread_id, self.team, options, listeners)
        if self.team is None:
            return await service.continue_team(ledger, self.thread_id, self.task, options, listeners)
        service.trust_named(self.team, self.files)
        return await service.run_team(ledger, self.team, self.task, options, listeners, thread_id=self.thread_id)


def run_team(task: TeamTask, printing: RunPrinting, *, opens: bool = False) -> None:
    """Run a task, and print the answer."""
    if task.model is not None:
        check_model(task.model)
    view = printing.view(task.task or "")
    view.thread_id = task.thread_id

    async def work(opened: Ledger) -> RunReport:
        if task.is_new:
            await service.check_new(opened, task.thread_id)
        if task.task is None and (before := await service.settings_of(opened, task.thread_id)) is not None:
            view.title = before.task or ""
        try:
            with interruptible() as stop:
                say = partial(say_thread, ledger=task.ledger) if printing.has_notes else None
                async with watching(view, opened):
                    return await task.do(opened, on_created=telling(page, say), on_step=view.take_step, stop=stop)
        except ParkedError as exc:
            await say_waiting(opened, task.thread_id, task.ledger, str(exc))
            note("then go on with:", command=task.command)
            raise typer.Exit(WAITING) from None

    with page_of(task.ledger, is_wanted=opens) as page:
        report = with_ledger(task.ledger, work, create=task.team is not None and task.task is not None)
        if page is not None:
            page.was_interrupted = report.was_interrupted
        if report.was_interrupted:
            note("stopped; go on with:", command=task.command)
            raise typer.Exit(exit_code(report))
        show_report(report, task.ledger, printing, ("show", "export", "fork"))
