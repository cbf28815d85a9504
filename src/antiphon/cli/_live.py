"""Running threads at a terminal: options, the live view on stderr, Ctrl-C, typed lines, and the report at the end."""

from __future__ import annotations

import asyncio
import getpass
import io
import logging
import os
import shlex
import shutil
import signal
import sys
from collections.abc import Awaitable, Callable, Generator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final, TypeAlias, TypeVar

import typer

from antiphon import service
from antiphon._tasks import beside
from antiphon.cli._ledger import VARIABLE, complaints, has_password, ledger_option, shown_ledger, with_ledger
from antiphon.cli._output import (
    COMPLETED,
    FAILED,
    INTERRUPTED,
    STOPPED,
    WAITING,
    deliver,
    print_json,
    print_json_line,
)
from antiphon.cli._screen import fail, note, open_console, print_markdown, print_numbered
from antiphon.cli._view import RunView, open_view
from antiphon.errors import ConfigError, LedgerFullError, ModelError

if TYPE_CHECKING:
    from rich.console import Console

    from antiphon.ledger import Ledger
    from antiphon.service import ChainRunner, ChosenModel, RunReport

_MUCH: Final = 65536


def _offered_models(incomplete: str) -> list[str]:
    """Return the models for the shell to offer; without the extra `agents` there are none."""
    try:
        return list(service.list_models(incomplete))
    except ModuleNotFoundError:
        return []


ModelOption: TypeAlias = Annotated[
    str | None,
    typer.Option(
        "--model",
        metavar="NAME",
        autocompletion=_offered_models,
        help="scripted, local, or PROVIDER:MODEL; default: the best installed model that needs no API key.",
    ),
]
ConfigOption: TypeAlias = Annotated[
    Path | None,
    typer.Option("--config", metavar="FILE", help="A TOML file that configures the phases, and may name their model."),
]
BudgetOption: TypeAlias = Annotated[
    list[str] | None,
    typer.Option(
        "--budget",
        metavar="NAME=NUMBER",
        help="What the thread may use: requests, tool_calls, tokens, cost (US dollars) or seconds; repeatable.",
    ),
]
QuietOption: TypeAlias = Annotated[bool, typer.Option("--quiet", "-q", help="Print only the answer.")]
EventsOption: TypeAlias = Annotated[
    bool, typer.Option("--json-events", help="Print each event as a line of JSON, and the report as the last one.")
]

ResultT = TypeVar("ResultT")


@dataclass(frozen=True, slots=True)
class RunPrinting:
    """How a run is printed: for a person, if nothing else is chosen."""

    for_programs: bool = False
    """The report is JSON."""
    is_quiet: bool = False
    """Only the answer."""
    as_events: bool = False
    """Each event is a line of JSON, and the report the last one."""

    @property
    def has_notes(self) -> bool:
        return not (self.for_programs or self.is_quiet or self.as_events)

    def view(self, title: str = "") -> RunView:
        """Return the view of the run."""
        return open_view(title, is_quiet=self.is_quiet or self.for_programs, as_events=self.as_events)


# ---------------------------------------------------------------- before


def choose_model(name: str | None, config: Path | None = None) -> ChosenModel:
    """Return the model to use; `config` is the configuration of the phases."""
    with _model_errors():
        return service.choose_model(name, config)


def say_stand_in(model: ChosenModel) -> None:
    """Print a note if a script answers in the place of a model."""
    if model.is_stand_in:
        note("no model is chosen and none is installed: the answer is put together from quotes. --model chooses one.")


def check_model(name: str | None) -> None:
    """Refuse a model that cannot be used, before a thread exists that would fail because of it."""
    with _model_errors():
        service.check_model(name)


@contextmanager
def _model_errors() -> Generator[None]:
    with complaints():
        try:
            yield
        except (ConfigError, ModelError) as exc:
            fail(str(exc), code=2)


def read_budget(texts: Sequence[str] | None) -> dict[str, float] | None:
    """Return the budget that --budget gives, if any."""
    with complaints():
        return service.read_budget(texts or ())


def run_chain(
    ledger: str | None,
    work: Callable[[ChainRunner], Awaitable[ResultT]],
    *,
    model: str | None = None,
    config: Path | None = None,
    thread: str | None = None,
    create: bool = False,
    documents: Sequence[str] = (),
    budget: Sequence[str] | None = None,
) -> ResultT:
    """Open a chain on a ledger, do something with it, and close both. `thread` is a thread that must exist."""
    amounts = read_budget(budget)

    async def within(opened: Ledger) -> ResultT:
        async with service.open_chain(
            opened, thread_id=thread, model=model, config=config, documents=documents, budget=amounts
        ) as runner:
            return await work(runner)

    with complaints():
        service.import_model(model)
        return with_ledger(ledger, within, create=create)


# ---------------------------------------------------------------- meanwhile


@contextmanager
def interruptible() -> Generator[asyncio.Event]:
    """Have Ctrl-C set an event, once; the second Ctrl-C interrupts as usual."""
    # The report says it once, at the end. In the log, each actor that waits for space would say it again and again.
    logging.getLogger("antiphon.runtime").addFilter(_is_not_about_space)
    event, loop = asyncio.Event(), asyncio.get_running_loop()

    def interrupt() -> None:
        event.set()
        loop.remove_signal_handler(signal.SIGINT)

    try:
        loop.add_signal_handler(signal.SIGINT, interrupt)
    except (NotImplementedError, RuntimeError, ValueError):  # not on this system, or not in this thread
        yield event
        return
    try:
        yield event
    finally:
        loop.remove_signal_handler(signal.SIGINT)


def _is_not_about_space(record: logging.LogRecord) -> bool:
    return getattr(record, "error.type", None) != LedgerFullError.__qualname__


# ---------------------------------------------------------------- at the end


def show_report(
    report: RunReport,
    ledger: str | None,
    printing: RunPrinting,
    next_commands: tuple[str, ...] = ("show", "replay", "fork"),
) -> None:
    """Print the outcome of a thread, and what to try next; exit with the code that tells how it ended."""
    if printing.as_events:
        print_json_line({"kind": "report", **report.to_json()})
    elif printing.for_programs:
        print_json(report.to_json())
    elif report.response is not None and not report.was_interrupted:
        if not printing.is_quiet:
            note("")
        print_answer(report.answer or "", report.citations)
    code = exit_code(report)
    if code == FAILED and not report.is_unfounded:
        why = report.error_message or report.status
        note(f"the thread {_END[report.status == 'failed']}: {why}", style="bad", has_lines=True)
    if report.failed_tools and code in (COMPLETED, FAILED):
        tell_failed_tools(report)
    if printing.has_notes:
        sum_up(report, ledger, next_commands)
    if code != COMPLETED:
        raise typer.Exit(code)


_END: Final = {True: "has failed", False: "has ended"}


def exit_code(report: RunReport) -> int:
    """Return the exit code that tells how a run ended."""
    if report.by_caller:
        return INTERRUPTED
    if report.error_code == "PARKED":
        return WAITING
    if report.was_interrupted or report.status == "stopped":
        return STOPPED
    return COMPLETED if report.status == "completed" and not report.is_unfounded else FAILED


def tell_failed_tools(report: RunReport) -> None:
    """Print which tools failed that the answer may rest on."""
    rests = "the answer rests on failed tools" if report.is_unfounded else "tools failed, and the answer may rest on them"
    note(f"{rests}:", style="bad" if report.is_unfounded else "warning")
    for tool in report.failed_tools:
        note(f"  {tool}")


_SOURCES: Final = "\n\nSources:\n"
"""Before the list of sources at the end of an answer."""


_PASSAGE: Final = "kb-"
"""How the id of a passage begins, which `antiphon show` takes. Ids of calls are for programs, which have --json."""


def print_answer(text: str, cited: Sequence[Mapping[str, Any]]) -> None:
    """Print the answer once, with its sources numbered: drawn as Markdown in a terminal, else as plain text."""
    console = open_console()
    if not cited or not (console.is_terminal or _SOURCES not in text):
        deliver(f"{text}\n".encode(), None) if not console.is_terminal else print_markdown(console, text)
        return
    print_markdown(console, text.rpartition(_SOURCES)[0] if _SOURCES in text else text)
    print_sources(console, cited)


def print_sources(console: Console, cited: Sequence[Mapping[str, Any]]) -> None:
    """Print the sources of an answer, numbered, each with what is quoted from it."""
    console.print()
    print_numbered(console, "Sources", [(_source(citation), str(citation.get("quote") or "")) for citation in cited])


def _source(citation: Mapping[str, Any]) -> str:
    name, passage = service.place_of(citation) if citation.get("source") else "", str(citation.get("id") or "")
    return f"{name} ({passage})" if name and passage.startswith(_PASSAGE) else name or passage


def sum_up(report: RunReport, ledger: str | None, next_commands: tuple[str, ...] = ("show", "replay", "fork")) -> None:
    """Print the thread, what it took, how far its words can be trusted, and the commands to continue with."""
    thread_id = report.thread_id
    _say_kept(report, ledger)
    if report.error_code == "PARKED":
        with_ledger(ledger, partial(say_waiting, thread_id=thread_id, place=ledger, reason=report.error_message or ""))
    if report.error_code == "UNGUARDED_TOOL":
        note(f"it waits for its own program: {report.error_message}", style="warning")
    if report.host is not None:
        note(f"host {report.host} continues it; wait for it with:", command=typed(ledger, "resume", thread_id))
        return
    if report.was_interrupted:
        word = "then" if report.error_code == "PARKED" else "paused;"
        note(f"{word} go on with:", command=typed(ledger, "resume", thread_id))
        return
    if report.status == "stopped":
        _say_stopped(report, ledger)
        return
    note("try next:")
    if report.status == "failed" and report.failed_at is not None:
        note("", command=f"  {typed(ledger, 'fork', thread_id, '--at', report.failed_at)}")
    for command in ("show",) if report.status == "failed" else next_commands:
        note("", command=f"  {typed(ledger, *command.split(' '), thread_id)}")
    note("", command=f"  {typed(ledger, 'threads')}")
    if ledger is not None and has_password(ledger):
        note(f"set {VARIABLE} to the URL of the ledger first: it has a password, which is not printed here")
    elif ledger is not None:
        note(f"with {VARIABLE}={shlex.quote(ledger)} set, --ledger is not needed")


def _say_kept(report: RunReport, ledger: str | None) -> None:
    """Print where a thread is kept, what it took, and how far its words can be trusted."""
    tokens = report.input_tokens + report.output_tokens
    used = f", {tokens:,} tokens" * bool(tokens) + f", {report.cost} US dollars" * bool(float(report.cost))
    place = shown_ledger(ledger).removeprefix("sqlite:///")
    note("")
    note(f"thread {report.thread_id}: {report.status}; {report.seconds:.1f} s{used}; kept in {place}")
    if warning := _warning(report):
        note(warning, style="aside")


def _say_stopped(report: RunReport, ledger: str | None) -> None:
    """Print why a thread has stopped, and the command that continues it."""
    note(f"stopped: {report.error_message}", style="warning", has_lines=True)
    budget: tuple[str, ...] = ()
    if report.error_code == "BUDGET_EXCEEDED":
        note("give it a new budget, larger than what it has used, or it stops again at once")
        budget = ("--budget", "NAME=NUMBER")
    else:
        note("nothing is lost; when that is put right,")
    note("go on with:", command=typed(ledger, "resume", report.thread_id, *budget))


async def say_waiting(ledger: Ledger, thread_id: str, place: str | None, reason: str) -> None:
    """Print what a thread waits for, with the commands by which a person decides it, each on a line of its own."""
    approvals = await service.list_approvals(ledger, thread_id=thread_id)
    parked = [call for call in await service.list_parked(ledger) if call.thread_id == thread_id]
    for approval in approvals:
        call = service.call_text(approval.tool, approval.arguments)
        note(f"it waits for a person: may {approval.agent} call {call}? Type one of:", style="warning")
        for verb in ("approve", "deny"):
            note("", command=f"  {typed(place, verb, approval.id, '--as', (*approval.approvers, _own_name())[0])}")
    for waiting in parked:
        note(f"it waits for a person: {waiting.reason}; find out, then type one of:", style="warning")
        for outcome, condition in _SETTLED:
            note(f"  {condition}:", command=typed(place, "settle", thread_id, waiting.invocation_id, *outcome))
    if not approvals and not parked:
        note(f"it waits for a person: {reason}", style="warning")


_SETTLED: Final = (
    (("--result", "JSON"), "if it was done"),
    (("--error", "TEXT"), "if it failed"),
    (("--retry",), "if it did not run, and may start again"),
)


def _own_name() -> str:
    """Return the name of the person at the terminal, as the system knows it."""
    try:
        return getpass.getuser()
    except (KeyError, OSError, ImportError):  # a user without a name
        return "NAME"


def say_thread(thread_id: str, ledger: str | None) -> None:
    """Print the thread that begins, and the command that continues it: whatever happens to this process."""
    again = typed(ledger, "resume", thread_id)
    note(f"thread {thread_id}; if it is interrupted, go on with:", style="aside", command=again)


def typed(ledger: str | None, *words: str) -> str:
    """Return a command of this program as a shell takes it, with the ledger if that was named."""
    return f"{program_name()} {shlex.join(words)}{ledger_option(ledger)}"


def program_name() -> str:
    """Return the command by which this program can be started from here."""
    if shutil.which("antiphon"):
        return "antiphon"
    script = Path(sys.argv[0])
    return os.path.relpath(script) if script.name == "antiphon" else "python -m antiphon"


def _warning(report: RunReport) -> str | None:
    """Return a warning, if no language model wrote the answer, or a very small one has chosen its quotes."""
    better = "for prose: --model openai:gpt-4o with its key set, or ollama:NAME"
    models = report.models[-1:]
    if report.is_quoted and any(model.startswith("scripted") for model in models):
        return f"quotes and tool results are exact; quotes are found by their words, no language model was asked; {better}"
    if any(model.startswith("scripted") for model in models):
        return f"sources and tool results are exact, the words are a script's; {better}"
    if any("smollm" in model.casefold() or model == "local" for model in models):
        choice = "a model with 135 million parameters chose between equals" if report.input_tokens else "no model was needed"
        return f"quotes and tool results are exact; quotes are found by their words, {choice}; {better}"
    return None


# ---------------------------------------------------------------- typed lines


class TypedLines:
    """Lines of stdin, typed or piped, read so that Ctrl-C ends the wait.

    A thread that reads from a terminal cannot be interrupted, and delays the end of the process until Enter is pressed. So
    the event loop waits for input, and it is read without the buffer of `sys.stdin`, which would hide lines from the loop. A
    file is always ready, and a file in memory has no descriptor; both are simply read.
    """

    def __init__(self) -> None:
        self._read = b""
        self._is_ended = False

    async def line(self) -> str | None:
        """Return the next line that is not empty; None at the end, and after Ctrl-C."""
        with interruptible() as interrupted:  # before the prompt invites anybody to type
            if sys.stdin.isatty():
                typer.echo("> ", nl=False, err=True)
            while (line := await self._next(interrupted)) is not None:
                if line.strip():
                    return line.strip()
        return None

    async def _next(self, interrupted: asyncio.Event) -> str | None:
        try:
            number = sys.stdin.fileno()
        except io.UnsupportedOperation:
            return sys.stdin.readline() or None
        while b"\n" not in self._read and not self._is_ended:
            if not await _is_ready(number, interrupted):
                typer.echo(err=True)  # a new line after ^C
                return None
            piece = os.read(number, _MUCH)
            self._read += piece
            self._is_ended = not piece
        line, _, self._read = self._read.partition(b"\n")
        return line.decode(errors="replace") if line or not self._is_ended else None


async def _is_ready(number: int, interrupted: asyncio.Event) -> bool:
    """Wait until there is input, or its end; False: Ctrl-C was pressed."""
    loop, ready = asyncio.get_running_loop(), asyncio.Event()
    try:
        loop.add_reader(number, ready.set)
    except (NotImplementedError, OSError):  # not on this system, or a file
        return True
    try:
        async with beside(ready.wait(), interrupted.wait()) as waits:
            await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
        return ready.is_set()
    finally:
        loop.remove_reader(number)
