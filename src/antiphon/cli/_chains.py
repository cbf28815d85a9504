"""What the commands that run threads share: which model and ledger they use, how a thread is shown live, and how it ends."""

from __future__ import annotations

import asyncio
import os
import shlex
import shutil
import signal
import sys
from collections.abc import Awaitable, Callable, Generator
from contextlib import aclosing, contextmanager, suppress
from dataclasses import dataclass, field
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TypeAlias, cast

import typer

from antiphon.cli._ledger import VARIABLE, complaints, known_thread, with_ledger
from antiphon.cli._output import deliver
from antiphon.cli._rows import print_json
from antiphon.cli._screen import fail, note, open_console, styled
from antiphon.cli._transcript import brief, call_text

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator

    from antiphon.ledger import Ledger
    from antiphon.patterns.cast import Outcome
    from antiphon.patterns.postchain import ChainEvent, PostChain

__all__ = [
    "INTERRUPTED",
    "ConfigOption",
    "ModelOption",
    "QuietOption",
    "Seen",
    "Show",
    "as_json",
    "check_model",
    "chosen_model",
    "interruptible",
    "moved",
    "opened",
    "program_name",
    "said_at_end",
    "show_result",
    "sum_up",
    "watched",
]

INTERRUPTED = 130
"""The exit code of a command that was interrupted, as shells have it."""

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
QuietOption: TypeAlias = Annotated[bool, typer.Option("--quiet", "-q", help="Print only the answer.")]


@dataclass
class Seen:
    """What a command has seen of a thread: enough to say at the end what it took."""

    thread_id: str = ""
    was_interrupted: bool = False
    began: float = field(default_factory=lambda: asyncio.get_running_loop().time())
    seconds: float = 0.0
    input_tokens: int = 0
    output_tokens: int = 0
    cost: str = "0"
    models: tuple[str, ...] = ()
    next_commands: tuple[str, ...] = ("show", "replay", "fork")
    """What can be done with such a thread."""


def chosen_model(name: str | None) -> str | None:
    """Return the model to use: as said, as configured, else the local one where it is installed, else the scripted one."""
    from antiphon.agents.config import ConfigError, read_config  # noqa: PLC0415 (only where threads are run)
    from antiphon.agents.models import MissingExtraError, WeightsError, model  # noqa: PLC0415

    try:
        is_chosen = name or os.environ.get("ANTIPHON_MODEL") or read_config().model
    except ConfigError as exc:
        fail(str(exc), code=2)
    if is_chosen:
        check_model(name)
        return name
    try:
        model("local")
    except (MissingExtraError, WeightsError):
        note("no model is chosen and none is installed: a script speaks in its place. --model names one.")
        return "scripted"
    return "local"


def check_model(name: str | None) -> None:
    """Refuse a model that cannot be had, before there is a thread that it would fail."""
    from antiphon.agents.config import ConfigError  # noqa: PLC0415 (only where threads are run)
    from antiphon.agents.models import ModelError, model  # noqa: PLC0415

    try:
        model(name)
    except (ConfigError, ModelError) as exc:
        fail(str(exc), code=2)


def opened(
    ledger: str | None,
    work: Callable[[PostChain], Awaitable[Any]],
    *,
    model: str | None = None,
    config: Path | None = None,
    thread: str | None = None,
    create: bool = False,
) -> Any:
    """Open a chain on a ledger, do something with it, and close both. What goes wrong is said in one line.

    `thread` is one that must be there.
    """
    try:
        from antiphon.patterns.postchain import PostChain  # noqa: PLC0415 (only where threads are run)
    except ModuleNotFoundError as exc:
        fail(f'{exc}; pip install "antiphon[agents]"', code=2)

    async def within(found: Ledger) -> Any:
        if thread is not None:
            await _check_chain(found, thread, may_be_imported=True)
        more: dict[str, Any] = {"config": config}
        if model == "local" and config is None:
            from antiphon.cli._small import for_small_model  # noqa: PLC0415 (only where it is used)

            more = for_small_model(found)
        async with PostChain(found, model=model, recover=False, listen=True, **more) as chain:
            return await work(chain)

    if model == "local":
        with suppress(ModuleNotFoundError):  # which is said where the model is used
            import_module("openai.resources.chat")  # takes a second, in which an event loop would stand still
    with complaints():
        return with_ledger(ledger, within, create=create)


async def _check_chain(ledger: Ledger, thread_id: str, *, may_be_imported: bool = False) -> None:
    """Refuse a thread that does not go through six phases; one that was imported can begin to.

    Raises:
        UnknownThreadError: there is none of that name.
    """
    from antiphon.patterns.postchain import LIFE  # noqa: PLC0415 (only where threads are run)

    found = await known_thread(ledger, thread_id)
    if may_be_imported and found.pattern is None:
        return
    if (await ledger.replay(thread_id, LIFE.fold())).status == "none":
        hint = "that of a team goes on by `antiphon run --team FILE --thread THREAD TASK`"
        fail(f"thread {thread_id!r} does not go through six phases; {hint}", code=2)


# ------------------------------------------------------------ while it runs


async def watched(chain: PostChain, thread_id: str, begin: Callable[[], Awaitable[Any]], *, is_shown: bool) -> Seen:
    """Have a thread begin or go on, show what happens, and return when it has ended; Ctrl-C pauses it."""
    from antiphon.errors import RefusedError  # noqa: PLC0415

    seen = Seen(thread_id)
    show = Show() if is_shown else None
    with interruptible() as interrupted:
        following = asyncio.ensure_future(_follow(chain, thread_id, show))
        stopping = asyncio.ensure_future(interrupted.wait())
        try:
            await asyncio.sleep(0)  # so that it listens before anything happens
            await begin()
            await asyncio.wait((following, stopping), return_when=asyncio.FIRST_COMPLETED)
            if not following.done():
                await chain.pause(thread_id)
                seen.was_interrupted = True
        except RefusedError:
            if not interrupted.is_set():
                raise  # else it has ended in the meantime
        finally:
            for task in (following, stopping):
                task.cancel()
            await asyncio.gather(following, stopping, return_exceptions=True)
    await sum_up(chain.ledger, seen)
    life = await chain.life(thread_id)
    seen.was_interrupted |= life.status == "paused"  # by another process, or because a person must settle something
    outputs = life.outputs or {}
    seen.models = tuple(dict.fromkeys(each["model"] for each in outputs.values() if each.get("model")))
    return seen


async def sum_up(ledger: Ledger, seen: Seen) -> None:
    """See how long a thread has taken, and what it has cost."""
    seen.seconds = asyncio.get_running_loop().time() - seen.began
    summary = await ledger.thread(seen.thread_id)
    if summary is not None:
        seen.input_tokens, seen.output_tokens, seen.cost = summary.input_tokens, summary.output_tokens, str(summary.cost)


async def _follow(chain: PostChain, thread_id: str, show: Show | None) -> None:
    async with aclosing(cast("AsyncGenerator[ChainEvent, None]", chain.events(thread_id))) as events:
        async for event in events:
            if show is not None:
                show.take(event)
            if event.is_pause:
                return


@contextmanager
def interruptible() -> Generator[asyncio.Event]:
    """Have Ctrl-C set an event, once; the second time it interrupts as ever."""
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


class Show:
    """Shows a thread on stderr, as it goes on: so what is piped is the answer alone."""

    def __init__(self) -> None:
        self._console = open_console(stderr=True)
        self._is_in_line = False

    def take(self, event: ChainEvent) -> None:
        """Show one more thing."""
        match event.kind:
            case "phase_began":
                self.line(f"● {event.phase}", "bold cyan")
            case "text":
                self._console.print(styled(event.text, "dim"), end="", soft_wrap=True)
                self._is_in_line = True
            case "tool_called":
                self.line(f"  → {call_text(event.text, event.data)}", "yellow")
            case "tool_returned":
                self.line(f"  ← {event.text}: {brief(event.data.get('result'))}", "yellow")
            case "phase_ended":
                self._ended(event)
            case _:
                pass

    def _ended(self, event: ChainEvent) -> None:
        output: dict[str, Any] = event.data["output"]
        cited = output.get("citations") or ()
        found = f", {len(cited)} sources" if event.phase == "experience" else ""
        self.line(f"  ✓ {event.data['processing_time']:.1f} s{found}", "green")

    def line(self, text: str, style: str) -> None:
        """Show a line."""
        if self._is_in_line:
            self._console.print()
            self._is_in_line = False
        self._console.print(styled(text, style), soft_wrap=True)


# ------------------------------------------------------------ at the end


def show_result(result: Outcome, seen: Seen, ledger: str | None, *, for_programs: bool, is_quiet: bool) -> None:
    """Print what came of a thread, and what to try next; exit 1 if it failed, 130 if it was interrupted."""
    if for_programs:
        print_json(as_json(result, seen))
    elif result.response is not None and not seen.was_interrupted:
        if not is_quiet:
            note("")
        deliver(f"{result.response}\n".encode(), None)
    has_failed = result.status == "failed" and not seen.was_interrupted
    if has_failed:
        note(f"the thread has failed: {result.error_message}", style="red")
    if not for_programs and not is_quiet:
        said_at_end(result, seen, ledger)
    if seen.was_interrupted:
        raise typer.Exit(INTERRUPTED)
    if has_failed:
        raise typer.Exit(1)


def as_json(result: Outcome, seen: Seen) -> dict[str, Any]:
    """Return what came of a thread, for programs."""
    return {
        "thread_id": result.thread_id,
        "status": result.status,
        "response": result.response,
        "citations": [dict(each) for each in result.citations],
        "models": list(seen.models),
        "seconds": round(seen.seconds, 3),
        "input_tokens": seen.input_tokens,
        "output_tokens": seen.output_tokens,
        "cost": seen.cost,
        "error_message": result.error_message,
        "error_code": result.error_code,
    }


def said_at_end(result: Outcome, seen: Seen, ledger: str | None) -> None:
    """Say which thread it was, what it took, what to think of it, and what can be done with it."""
    place = "" if ledger is None else f" --ledger {shlex.quote(ledger)}"
    used = f"{seen.input_tokens + seen.output_tokens} tokens, {seen.cost} US dollars"
    note("")
    note(f"thread {result.thread_id}: {result.status}; {seen.seconds:.1f} s, {used}")
    if label := _label(seen.models[-1:]):  # whose words the answer is
        note(label)
    if result.error_code == "PARKED":
        note(f"it waits for a person: {result.error_message}", style="yellow")
    if result.error_code == "UNGUARDED_TOOL":
        note(f"it waits for its own program: {result.error_message}", style="yellow")
    if seen.was_interrupted:
        note(f"paused; go on with: {program_name()} resume {result.thread_id}{place}")
        return
    note("try next:")
    for command in ("show",) if result.status == "failed" else seen.next_commands:
        note(f"  {program_name()} {command} {result.thread_id}{place}")
    note(f"  {program_name()} threads{place}")
    if ledger is not None:
        note(f"with {VARIABLE}={shlex.quote(ledger)} set, --ledger is not needed")


def program_name() -> str:
    """Return how this program is called from here."""
    if shutil.which("antiphon"):
        return "antiphon"
    own = Path(sys.argv[0])
    return os.path.relpath(own) if own.name == "antiphon" else "python -m antiphon"


def _label(models: tuple[str, ...]) -> str | None:
    """Return what must be known about who wrote the prose."""
    better = "for better prose: --model PROVIDER:MODEL, such as openai:gpt-4o, with its key in the environment"
    if any(model.startswith("scripted") for model in models):
        return f"sources and tool results are exact; the words are a script's, no language model was asked; {better}"
    if any("smollm" in model.casefold() or model == "local" for model in models):
        small = "the prose is by a model with 135 million parameters, and often wrong"
        return f"sources and tool results are exact; {small}; {better}"
    return None


# ------------------------------------------------------------ moves from outside


def moved(ledger: str | None, message: dict[str, Any], *, for_programs: bool) -> None:
    """Have a thread make a move, by the process that runs it, or here if there is none; print the answer."""
    from antiphon.patterns.postchain import ask_owner  # noqa: PLC0415 (only where threads are run)

    async def work(found: Ledger) -> dict[str, Any]:
        await _check_chain(found, message["data"]["thread_id"])
        return await ask_owner(found, message)

    response = with_ledger(ledger, work)
    if for_programs:
        print_json(response)
    if response["type"] == "ERROR":
        fail(str(response["data"]["error_message"]))
    if not for_programs:
        note(f"thread {response['data']['thread_id']} is {response['data']['status']}")
