"""The app: all commands, and the overview that `antiphon --help` prints."""

from __future__ import annotations

import io
import os
import sys
import textwrap
from collections.abc import Callable
from difflib import get_close_matches
from typing import Annotated, Any, Final

import typer
from typer.core import TyperGroup
from typing_extensions import override

from antiphon import __version__
from antiphon.cli._approvals import approvals, approve, deny, parked, settle
from antiphon.cli._branches import diff, fork, replay
from antiphon.cli._check import check
from antiphon.cli._convert import convert, print_dialects, repair
from antiphon.cli._export import export
from antiphon.cli._hosts import host, limits, schedule
from antiphon.cli._import import import_
from antiphon.cli._knowledge import knowledge
from antiphon.cli._ledger import complaints
from antiphon.cli._life import pause, resume, status, terminate
from antiphon.cli._output import EXIT_CODES
from antiphon.cli._run import chat, run
from antiphon.cli._screen import fail, open_console, print_table
from antiphon.cli._serve import serve, token, up
from antiphon.cli._setup import local, trust
from antiphon.cli._show import show
from antiphon.cli._threads import delete, reward, search, tail, threads
from antiphon.cli._verify import backup, doctor, key, verify


def help_(
    ctx: typer.Context,
    topic: Annotated[
        str | None, typer.Argument(metavar="TOPIC", help="A command, dialects or exit-codes; default: all commands.")
    ] = None,
) -> None:
    """Explain a command, or list the dialects or the exit codes. Without a topic, list all commands."""
    group: Any = ctx.parent.command if ctx.parent is not None else None
    if topic == "exit-codes":
        rows = [(str(code), meaning) for code, meaning in EXIT_CODES.items()]
        print_table(open_console(), ("code", "meaning"), rows)
        return
    if topic == "dialects":
        print_dialects()
        return
    command = None if topic is None else group.get_command(ctx.parent, topic)
    if topic is not None and command is None:
        topics = [*group.list_commands(ctx.parent), "dialects", "exit-codes"]
        near = get_close_matches(topic, topics, 1)
        fail(
            f"there is no topic {topic!r}; " + (f"is it {near[0]!r}?" if near else "`antiphon help` lists the commands"),
            code=2,
        )
    if command is None:
        typer.echo(ctx.parent.get_help() if ctx.parent is not None else "")
        return
    with typer.Context(command, info_name=topic, parent=ctx.parent) as topic_context:
        typer.echo(topic_context.get_help())


_COMMANDS: Final[dict[str, dict[Callable[..., Any] | typer.Typer, str]]] = {
    "Run agents": {
        run: "Answer a question, or run a team on a task",
        chat: "Chat: each line is a turn of one thread",
        resume: "Continue a thread, or all runs of a dead process",
        pause: "Pause a thread: no new model or tool call starts",
        terminate: "End a thread permanently",
        status: "Show the state of a thread, or the hosts of a ledger",
        host: "Run threads until a signal; start as many as you like",
        up: "Start a database, hosts and a server, to try them",
        schedule: "Ask questions at a set time, or by a cron line",
        limits: "List or set limits on model requests and cost",
        serve: "Serve the ledger over HTTP: page, API, events",
        token: "Manage the access tokens of the server",
        knowledge: "Manage the documents that agents search",
        trust: "Review the code of a team file, and allow it to run",
        local: "Install a small language model on this machine",
    },
    "Approvals": {
        approvals: "List the tool calls that wait for an approval",
        approve: "Approve a waiting tool call",
        deny: "Deny a waiting tool call",
        parked: "List started calls with an unknown outcome",
        settle: "Record the outcome of a parked call",
    },
    "Read threads": {
        threads: "List the threads of a ledger, newest first",
        show: "Print a thread or a file in readable form",
        tail: "Print new messages as they are written",
        search: "Find messages, or passages of documents, by words",
        replay: "Replay a thread, or test it against this version",
        fork: "Branch a thread, optionally with another model",
        diff: "Compare two threads",
        reward: "Rate a message, for training data",
    },
    "Maintain the ledger": {
        verify: "Check the ledger against its hashes; save them",
        doctor: "Check settings, disk, clock and waiting threads",
        backup: "Copy a ledger while it is in use",
        export: "Write threads in any format, or into another ledger",
        import_: "Append a file to threads, or restore a journal",
        delete: "Delete threads, or the keys of encrypted ones",
        key: "Create a key file, or change the master key",
    },
    "Work on files": {
        convert: "Convert a conversation to another format",
        check: "List what a provider would refuse",
        repair: "Fix what a provider would refuse",
        help_: "Explain a command; list formats and exit codes",
    },
}
"""The commands in the order of the overview, each with its line in it. A group is an app with commands of its own."""


def _name_of(command: Callable[..., Any] | typer.Typer) -> str:
    return str(command.info.name if isinstance(command, typer.Typer) else getattr(command, "__name__", "")).rstrip("_")


OVERVIEW: Final = {
    title: {_name_of(command): summary for command, summary in commands.items()} for title, commands in _COMMANDS.items()
}


class Overview(TyperGroup):
    """Prints the commands in sections, with whole lines, and errors of their options without breaking a word."""

    @override
    def invoke(self, ctx: Any) -> Any:
        try:
            with complaints():  # also where a command first uses a package that is not installed
                return super().invoke(ctx)
        except typer.BadParameter as exc:
            exc.message = _filled(exc)
            raise

    @override
    def format_commands(self, ctx: Any, formatter: Any) -> None:
        width = max(len(name) for section in OVERVIEW.values() for name in section)
        for title, commands in OVERVIEW.items():
            with formatter.section(title):
                formatter.write_dl([(name.ljust(width), summary) for name, summary in commands.items()])


def _filled(error: typer.BadParameter) -> str:
    """Return the message of an error with line breaks between words, if it is shown in a terminal."""
    console = open_console(stderr=True)
    if not console.is_terminal:
        return error.message
    line = f"Error: {error.format_message()}"  # as it will be printed; a break takes the place of a space
    lines = textwrap.fill(line, console.width, break_long_words=False, break_on_hyphens=False)
    return lines[len(lines) - len(error.message) :]


app = typer.Typer(
    name="antiphon",
    cls=Overview,
    epilog='Start with: antiphon run "What is 17 * 23?". Every command has its own --help.',
    no_args_is_help=True,
    rich_markup_mode=None,  # plain help and errors: people pipe and search them
    pretty_exceptions_enable=False,  # these print local variables, with messages in them
)


def _print_version(asked: bool) -> None:
    if asked:
        typer.echo(f"antiphon {__version__}")
        raise typer.Exit


@app.callback()
def every_command(
    version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Print the version and exit.")
    ] = False,
) -> None:
    """Run durable agents, maintain the ledger that stores their messages, and check and convert conversations."""
    os.environ.setdefault("PYDANTIC_AI_NO_BANNER", "1")  # it would appear in the middle of the live view
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")  # a terminal without UTF-8 shows a number, not a traceback


for _command in (command for commands in _COMMANDS.values() for command in commands):
    if isinstance(_command, typer.Typer):
        app.add_typer(_command)
    else:
        app.command(_name_of(_command))(_command)
