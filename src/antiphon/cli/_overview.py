"""The overview that `antiphon --help` prints: every command under what it is for, in a few words each."""

from __future__ import annotations

from typing import Any, Final

from typer.core import TyperGroup
from typing_extensions import override

__all__ = ["OVERVIEW", "Overview"]

OVERVIEW: Final = {
    "Run agents": {
        "run": "Answer a question, or have a team do a task",
        "chat": "Talk: each line is a turn of one thread",
        "resume": "Go on with a thread that was paused or killed",
        "pause": "Let nothing of a thread begin until it is resumed",
        "terminate": "End a thread for good",
        "status": "Say where a thread is",
        "knowledge": "Keep documents for agents to look things up in",
        "local": "Install a small language model on this machine",
    },
    "Decide what they must not": {
        "approvals": "List the calls of tools that wait for a person",
        "approve": "Say yes to one of them",
        "deny": "Say no to one of them",
        "parked": "List what was begun and has no known outcome",
        "settle": "Say what became of it",
    },
    "See what was said": {
        "threads": "List the threads of a ledger, the newest first",
        "show": "Show a thread, or a file, for people to read",
        "tail": "Follow what is being said",
        "search": "Find messages by their words",
        "replay": "Play a thread back, or hold it against this version",
        "fork": "Begin a branch of a thread, also with another model",
        "diff": "Say how two threads differ",
        "reward": "Record how good a message was, for training data",
    },
    "Look after the ledger": {
        "verify": "Check that everything is as it was written",
        "heads": "Write where threads end, to be kept elsewhere",
        "backup": "Copy a ledger while others go on with it",
        "export": "Write threads as JSON Lines, in any format",
        "import": "Append what is in a file to threads, as talk",
        "restore": "Bring threads back from a journal and its heads",
        "delete": "Remove threads for good",
    },
    "Work on files": {
        "convert": "Turn a conversation from one format into another",
        "check": "Say what a provider would refuse",
        "repair": "Mend what a provider would refuse",
        "dialects": "List the formats there are",
    },
}


class Overview(TyperGroup):
    """The commands in sections, none of them cut off."""

    @override
    def format_commands(self, ctx: Any, formatter: Any) -> None:
        width = max(len(name) for section in OVERVIEW.values() for name in section)
        for title, commands in OVERVIEW.items():
            with formatter.section(title):
                formatter.write_dl([(name.ljust(width), about) for name, about in commands.items()])
