"""The overview that `antiphon --help` prints: every command under what it is for, in a few words each."""

from __future__ import annotations

from typing import Any, Final

from typer.core import TyperGroup
from typing_extensions import override

__all__ = ["OVERVIEW", "Overview"]

OVERVIEW: Final = {
    "Run agents": {
        "run": "Answer a question, or run a team on a task",
        "chat": "Chat: each line is a turn of one thread",
        "resume": "Continue a thread that was paused or killed",
        "pause": "Pause a thread: no new model or tool call starts",
        "terminate": "End a thread permanently",
        "status": "Show the state of a thread",
        "knowledge": "Manage the documents that agents search",
        "local": "Install a small language model on this machine",
    },
    "Approvals": {
        "approvals": "List the tool calls that wait for an approval",
        "approve": "Approve a waiting tool call",
        "deny": "Deny a waiting tool call",
        "parked": "List started calls with an unknown outcome",
        "settle": "Record the outcome of a parked call",
    },
    "Read threads": {
        "threads": "List the threads of a ledger, newest first",
        "show": "Print a thread or a file for people to read",
        "tail": "Print new messages as they are written",
        "search": "Find messages by words",
        "replay": "Replay a thread, or compare it with this version",
        "fork": "Branch a thread, optionally with another model",
        "diff": "Compare two threads",
        "reward": "Rate a message, for training data",
    },
    "Maintain the ledger": {
        "verify": "Check the ledger against its hashes",
        "heads": "Print the last hash of each thread, to keep elsewhere",
        "backup": "Copy a ledger while it is in use",
        "export": "Write threads as JSON Lines, in any format",
        "import": "Append the messages of a file to threads, as talk",
        "restore": "Restore threads from a journal and its heads",
        "delete": "Delete threads permanently",
    },
    "Work on files": {
        "convert": "Convert a conversation to another format",
        "check": "List what a provider would refuse",
        "repair": "Fix what a provider would refuse",
        "dialects": "List the supported formats",
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
