"""Running threads at a terminal: options, the live view on stderr, Ctrl-C, typed lines, and the report at the end."""

from __future__ import annotations

import asyncio
import io
import os
import shlex
import shutil
import signal
import sys
from collections.abc import Awaitable, Callable, Generator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final, TypeAlias, TypeVar

import typer

from antiphon import service
from antiphon.cli._ledger import VARIABLE, complaints, with_ledger
from antiphon.cli._output import deliver, print_json
from antiphon.cli._screen import fail, note, open_console, styled
from antiphon.errors import ConfigError, ModelError

if TYPE_CHECKING:
    from antiphon.ledger import Ledger
    from antiphon.service import ChainEvent, ChainRunner, RunReport, TeamStep

INTERRUPTED: Final = 130
"""The exit code of an interrupted command, as shells have it."""
STOPPED: Final = 4
"""The exit code of a thread that something outside has stopped: it goes on when it is resumed."""
_MUCH: Final = 65536

ModelOption: TypeAlias = Annotated[
    str | None,
    typer.Option(
        "--model",
        metavar="NAME",
        help="scripted, local, or PROVIDER:MODEL; default: the best installed model that needs no API key.",
    ),
]
ConfigOption: TypeAlias = Annotated[
    Path | None, typer.Option("--config", metavar="FILE", help="A TOML file that configures the phases.")
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

ResultT = TypeVar("ResultT")


# ---------------------------------------------------------------- before


def choose_model(name: str | None) -> str | None:
    """Return the model to use, and print a note if a script answers in its place."""
    with _model_errors():
        chosen = service.choose_model(name)
    if chosen.is_stand_in:
        note("no model is chosen and none is installed: a script answers instead. --model chooses one.")
    return chosen.name


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


def read_budget(given: Sequence[str] | None) -> dict[str, float] | None:
    """Return the budget that --budget gives, if any."""
    with complaints():
        return service.read_budget(given or ())


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
    given = read_budget(budget)

    async def within(found: Ledger) -> ResultT:
        chosen: dict[str, Any] = {"model": model, "config": config, "documents": documents, "budget": given}
        async with service.open_chain(found, thread_id=thread, **chosen) as runner:
            return await work(runner)

    with complaints():
        service.import_model(model)
        return with_ledger(ledger, within, create=create)


# ---------------------------------------------------------------- meanwhile


@contextmanager
def interruptible() -> Generator[asyncio.Event]:
    """Have Ctrl-C set an event, once; the second Ctrl-C interrupts as usual."""
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


class LiveView:
    """Shows a running thread on stderr, so that a pipe gets the answer alone."""

    def __init__(self) -> None:
        self._console = open_console(stderr=True)
        self._is_in_line = False

    def take(self, event: ChainEvent) -> None:
        """Show an event of a thread of six phases."""
        match event.kind:
            case "phase_began":
                self.line(f"● {event.phase}", "bold cyan")
            case "text":
                self._console.print(styled(event.text, "dim"), end="", soft_wrap=True)
                self._is_in_line = True
            case "tool_called":
                self.line(f"  → {service.call_text(event.text, event.data)}", "yellow")
            case "tool_returned":
                self.line(f"  ← {event.text}: {service.brief(event.data.get('result'))}", "yellow")
            case "phase_ended":
                self._ended(event)
            case _:
                pass

    def take_step(self, step: TeamStep) -> None:
        """Show a step of a team."""
        match step.kind:
            case "asked":
                by = f", asked by {step.text}" if step.text else ""
                self.line(f"● {step.agent}{by}", "bold cyan")
            case "called":
                self.line(f"  {step.agent} → {step.text}", "yellow")
            case "returned":
                self.line(f"  ← {step.agent}: {step.text}", "yellow")
            case "failed":
                self.line(f"  ✗ {step.agent}: {step.text}", "red")
            case "said":
                self.line(f"  {step.agent}: {step.text}", "dim")

    def _ended(self, event: ChainEvent) -> None:
        output: dict[str, Any] = event.data["output"]
        cited = output.get("citations") or ()
        found = f", {len(cited)} sources" if event.phase == "experience" else ""
        self.line(f"  ✓ {event.data['processing_time']:.1f} s{found}", "green")

    def line(self, text: str, style: str) -> None:
        """Show a line; streamed text before it ends its own."""
        if self._is_in_line:
            self._console.print()
            self._is_in_line = False
        self._console.print(styled(text, style), soft_wrap=True)


# ---------------------------------------------------------------- at the end


def show_report(
    report: RunReport,
    ledger: str | None,
    *,
    for_programs: bool,
    is_quiet: bool,
    next_commands: tuple[str, ...] = ("show", "replay", "fork"),
) -> None:
    """Print the outcome of a thread, and what to try next; exit 1 if it failed, 130 if it was interrupted."""
    if for_programs:
        print_json(report.to_json())
    elif report.response is not None and not report.was_interrupted:
        if not is_quiet:
            note("")
        deliver(f"{report.response}\n".encode(), None)
    has_failed = report.status == "failed" and not report.was_interrupted
    if has_failed:
        note(f"the thread has failed: {report.error_message}", style="red")
    if not for_programs and not is_quiet:
        sum_up(report, ledger, next_commands)
    if report.was_interrupted:
        raise typer.Exit(INTERRUPTED)
    if report.status == "stopped":
        raise typer.Exit(STOPPED)
    if has_failed:
        raise typer.Exit(1)


def sum_up(report: RunReport, ledger: str | None, next_commands: tuple[str, ...] = ("show", "replay", "fork")) -> None:
    """Print the thread, what it took, how far its words can be trusted, and the commands to continue with."""
    place = "" if ledger is None else f" --ledger {shlex.quote(ledger)}"
    used = f"{report.input_tokens + report.output_tokens} tokens, {report.cost} US dollars"
    note("")
    note(f"thread {report.thread_id}: {report.status}; {report.seconds:.1f} s, {used}")
    if warning := _warning(report.models[-1:]):
        note(warning)
    if report.error_code == "PARKED":
        note(f"it waits for a person: {report.error_message}", style="yellow")
    if report.error_code == "UNGUARDED_TOOL":
        note(f"it waits for its own program: {report.error_message}", style="yellow")
    if report.host is not None:
        note(f"it goes on in host {report.host}; wait for it with: {program_name()} resume {report.thread_id}{place}")
        return
    if report.was_interrupted:
        note(f"paused; go on with: {program_name()} resume {report.thread_id}{place}")
        return
    if report.status == "stopped":
        _say_stopped(report, place)
        return
    note("try next:")
    if report.status == "failed" and report.failed_at is not None:
        note(f"  {program_name()} fork {report.thread_id} --at {report.failed_at}{place}")
    for command in ("show",) if report.status == "failed" else next_commands:
        note(f"  {program_name()} {command} {report.thread_id}{place}")
    note(f"  {program_name()} threads{place}")
    if ledger is not None:
        note(f"with {VARIABLE}={shlex.quote(ledger)} set, --ledger is not needed")


def _say_stopped(report: RunReport, place: str) -> None:
    """Print why a thread has stopped, and the command that continues it."""
    note(f"stopped: {report.error_message}", style="yellow")
    budget = ""
    if report.error_code == "BUDGET_EXCEEDED":
        note("give it a new budget, larger than what it has used, or it stops again at once")
        budget = " --budget NAME=NUMBER"
    else:
        note("nothing is lost; when that is put right,")
    note(f"go on with: {program_name()} resume {report.thread_id}{place}{budget}")


def say_thread(thread_id: str, ledger: str | None) -> None:
    """Print the thread that begins, and the command that continues it: whatever happens to this process."""
    place = "" if ledger is None else f" --ledger {shlex.quote(ledger)}"
    note(f"thread {thread_id}; if it is interrupted, go on with: {program_name()} resume {thread_id}{place}", style="dim")


def program_name() -> str:
    """Return the command by which this program can be started from here."""
    if shutil.which("antiphon"):
        return "antiphon"
    own = Path(sys.argv[0])
    return os.path.relpath(own) if own.name == "antiphon" else "python -m antiphon"


def _warning(models: tuple[str, ...]) -> str | None:
    """Return a warning, if no language model or a very small one wrote the answer."""
    better = "for better prose: --model PROVIDER:MODEL, such as openai:gpt-4o, with its key in the environment"
    if any(model.startswith("scripted") for model in models):
        return f"sources and tool results are exact; the words are a script's, no language model was asked; {better}"
    if any("smollm" in model.casefold() or model == "local" for model in models):
        small = "the prose is by a model with 135 million parameters, and often wrong"
        return f"sources and tool results are exact; {small}; {better}"
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
        waiting = [asyncio.ensure_future(event.wait()) for event in (ready, interrupted)]
        await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
        for each in waiting:
            each.cancel()
        return ready.is_set()
    finally:
        loop.remove_reader(number)
