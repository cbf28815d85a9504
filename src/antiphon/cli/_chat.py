"""A chat: lines that are typed or piped, each a turn of one thread, and the commands that begin with a slash.

At a terminal, prompt_toolkit edits the line: history, several lines, completion of commands. Ctrl-C while an answer is coming
stops the answer, and the chat goes on; in a line that is being typed it clears the line, in an empty one it ends the chat. The
history are the questions of the ledger, so that nothing is written anywhere else.

A stopped answer stays in its thread, paused. `/resume` goes on with it. A question instead goes to a branch from before the
stopped turn: the answer that nobody wanted is not in its history.
"""

from __future__ import annotations

import sys
from collections.abc import Awaitable, Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from functools import partial
from typing import TYPE_CHECKING, Any, Final

import typer
from typing_extensions import override

from antiphon import service
from antiphon.cli._ledger import complaints
from antiphon.cli._live import TypedLines, check_model, interruptible, print_answer
from antiphon.cli._output import deliver
from antiphon.cli._screen import note, open_console, print_table
from antiphon.cli._view import open_view, watching

if TYPE_CHECKING:
    from prompt_toolkit import PromptSession
    from prompt_toolkit.completion import CompleteEvent, Completer, Completion
    from prompt_toolkit.document import Document

    from antiphon.ledger import Ledger
    from antiphon.service import ChainRunner, RunReport

COMMANDS: Final = {
    "/help": "list these commands",
    "/new": "begin another thread",
    "/thread": "THREAD: go on in another thread; without it, name this one",
    "/model": "NAME: let another model answer from now on",
    "/resume": "go on with the answer that was stopped",
    "/quit": "end the chat; so does Ctrl-D",
}
_KEYS: Final = (
    "Alt-Enter, or a \\ at the end of a line, begins another line. Ctrl-C stops an answer. // begins a line with a slash."
)
_THREADS: Final = 50
"""Threads whose questions are in the history."""


@dataclass
class Chat:
    """The state of a chat."""

    user: str
    is_quiet: bool
    thread: str | None = None
    name: str | None = None
    """The id of the first thread, if it is a new one."""
    model: str | None = None
    last: RunReport | None = None
    is_over: bool = False
    """Whether it has ended; if not, it goes on with another model."""
    _before: int = 0
    """How long the thread was before the last turn."""
    _lines: EditedLines | TypedLines | None = None

    async def talk(self, runner: ChainRunner) -> None:
        """Answer what is typed, until the end or until another model is chosen."""
        is_typed = sys.stdin.isatty() and sys.stderr.isatty()
        if self._lines is None:
            self._lines = await _lines(runner.ledger) if is_typed else TypedLines()
            if is_typed and not self.is_quiet:
                note("a question, or /help; Ctrl-D ends the chat", style="aside")
        self.is_over = True
        while (line := await self._lines.line()) is not None:
            if is_typed and line.startswith("/") and not line.startswith("//"):
                if not await self._obey(runner, *line.split(maxsplit=1)):
                    return
            elif not await self._turn(runner, line.removeprefix("/") if is_typed else line, is_typed=is_typed):
                return

    # ------------------------------------------------------------ questions

    async def _turn(self, runner: ChainRunner, question: str, *, is_typed: bool) -> bool:
        """Answer a question; return whether the chat goes on. What goes wrong ends only a chat that is piped."""
        try:
            with complaints():
                await self._leave_stopped(runner.ledger)
                self._before = 0 if self.thread is None else (await runner.ledger.head(self.thread)).seq
                ask = partial(runner.ask, question, thread_id=self.thread, user_id=self.user, name=self.name)
                await self._answer(runner, ask)
        except typer.Exit:
            if not is_typed:
                raise
        return is_typed or self.last is None or not self.last.was_interrupted

    async def _answer(self, runner: ChainRunner, begin: Callable[..., Awaitable[RunReport]]) -> None:
        """Have a turn begin or go on, show it, and print the answer."""
        view = open_view(is_quiet=self.is_quiet)
        with interruptible() as stop:
            async with watching(view, runner.ledger):
                report = await begin(on_event=view.take, stop=stop)
        self.last, self.thread, self.name = report, report.thread_id, None
        if report.was_interrupted:
            waits = report.error_message if report.error_code else None
            note(f"it waits: {waits}" if waits else "stopped; /resume goes on with it, a question asks anew", style="warning")
        elif report.response is not None:
            if not self.is_quiet:
                note("")
            print_answer(report.answer or "", report.citations)
        else:
            deliver(f"{report.error_message or report.status}\n".encode(), None)

    async def _leave_stopped(self, ledger: Ledger) -> None:
        """Go on from before a turn that was stopped: in a branch, or in a new thread if it was the first turn."""
        if self.last is None or not self.last.was_interrupted or self.last.error_code or self.thread is None:
            return
        if self._before:
            branch = await service.fork_thread(ledger, service.ForkPlace(self.thread, str(self._before)))
            note(f"a branch of {self.thread}, without the stopped answer: {branch.thread_id}", style="aside")
            self.thread = branch.thread_id
        else:
            self.thread = None
        self.last = None

    # ------------------------------------------------------------ commands

    async def _obey(self, runner: ChainRunner, command: str, argument: str = "") -> bool:
        """Do a command; return whether the chat goes on with this chain."""
        match command, argument.strip():
            case "/quit", _:
                return False
            case "/new", _:
                self.thread = self.last = None
                note("the next question begins another thread", style="aside")
            case "/thread", "":
                note(
                    f"this is thread {self.thread}" if self.thread else "no thread yet; the first question begins one",
                    style="aside",
                )
            case "/thread", name:
                await self._change_thread(runner.ledger, name)
            case "/model", "":
                note(f"the model is {self.model or 'the configured one'}", style="aside")
            case "/model", name:
                return not self._change_model(name)
            case "/resume", _:
                await self._resume(runner)
            case "/help", _:
                print_table(open_console(stderr=True), ("command", "meaning"), list(COMMANDS.items()))
                note(_KEYS, style="aside")
            case _:
                near = get_close_matches(command, COMMANDS, n=1)
                note(
                    f"no command is called {command}; " + (f"did you mean {near[0]}?" if near else "/help lists them"),
                    style="bad",
                )
        return True

    async def _change_thread(self, ledger: Ledger, name: str) -> None:
        try:
            with complaints():
                thread = await service.resolve_thread(ledger, name)
                await service.check_chain(ledger, thread, may_be_imported=True)
        except typer.Exit:
            return
        self.thread, self.last = thread, None
        note(f"this is thread {thread}: {service.brief(await service.question_of(ledger, thread) or '')}", style="aside")

    def _change_model(self, name: str) -> bool:
        try:
            check_model(name)
        except typer.Exit:
            return False
        self.model, self.is_over = name, False
        note(f"{name} answers from now on", style="aside")
        return True

    async def _resume(self, runner: ChainRunner) -> None:
        if self.thread is None:
            note("there is no answer to go on with", style="bad")
            return
        try:
            with complaints():
                await self._answer(runner, partial(runner.resume, self.thread))
        except typer.Exit:
            pass


# ---------------------------------------------------------------- lines


class EditedLines:
    """Lines that are typed at a terminal and edited there."""

    def __init__(self, history: Sequence[str]) -> None:
        self._session = _session(history)

    async def line(self) -> str | None:
        """Return the next text that is not empty; None at the end."""
        while True:
            try:
                text = (await self._session.prompt_async("> ")).strip()
            except (EOFError, KeyboardInterrupt):
                return None
            if text:
                return text


async def _lines(ledger: Ledger) -> EditedLines | TypedLines:
    try:
        return EditedLines(await _asked_before(ledger))
    except ModuleNotFoundError:  # without the package, lines are read as they come
        return TypedLines()


async def _asked_before(ledger: Ledger) -> list[str]:
    """Return the questions of the latest threads, oldest first; a question of several lines stays one."""
    from antiphon.ledger import ThreadFilter  # noqa: PLC0415 (only where a ledger is used)

    page = await ledger.threads(ThreadFilter(system=False), limit=_THREADS)
    asked = [await service.question_of(ledger, thread.thread_id) for thread in page.threads]
    return [question for question in reversed(asked) if question]


def _session(history: Iterable[str]) -> PromptSession[str]:
    """Return what reads lines from a terminal."""
    from prompt_toolkit import PromptSession  # noqa: PLC0415 (only where somebody types)
    from prompt_toolkit.history import InMemoryHistory  # noqa: PLC0415
    from prompt_toolkit.key_binding import KeyBindings  # noqa: PLC0415
    from prompt_toolkit.output import create_output  # noqa: PLC0415

    keys = KeyBindings()

    @keys.add("enter")
    def send(event: Any) -> None:
        buffer = event.current_buffer
        if buffer.document.text_before_cursor.endswith("\\"):
            buffer.delete_before_cursor()
            buffer.newline()
        else:
            buffer.validate_and_handle()

    @keys.add("escape", "enter")
    def begin_line(event: Any) -> None:
        event.current_buffer.newline()

    @keys.add("c-c")
    @keys.add("<sigint>")
    def clear(event: Any) -> None:
        if event.current_buffer.text:
            event.current_buffer.reset()
        else:
            event.app.exit(exception=EOFError)

    _ = (send, begin_line, clear)
    return PromptSession(
        history=InMemoryHistory(list(history)),
        completer=_completer(),
        key_bindings=keys,
        multiline=True,
        prompt_continuation="… ",
        output=create_output(stdout=sys.stderr),  # as all that is not the answer
        enable_open_in_editor=True,
    )


def _completer() -> Completer:
    """Return what completes commands, and the names of models."""
    from prompt_toolkit.completion import Completer, Completion  # noqa: PLC0415 (only where somebody types)

    class Commands(Completer):
        @override
        def get_completions(self, document: Document, complete_event: CompleteEvent) -> Iterator[Completion]:
            command, space, rest = document.text_before_cursor.partition(" ")
            if not command.startswith("/"):
                return
            choices = service.list_models() if space and command == "/model" else () if space else tuple(COMMANDS)
            typed = rest if space else command
            for name in choices:
                if name.startswith(typed):
                    yield Completion(name, start_position=-len(typed), display_meta=COMMANDS.get(name, ""))

    return Commands()
