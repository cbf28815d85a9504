"""What is asked of a way to keep conversations, and the conversation that all of them keep."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Protocol

from benchmarks._messages import Said, cases

__all__ = ["Store", "bytes_in", "talk"]


class Store(Protocol):
    """One way. All of them keep the same messages, `talk(n)`, under the names of their threads."""

    def begin(self, threads: Sequence[str]) -> None:
        """Get ready for threads: what need not be done again for each message."""
        ...

    def append(self, thread: str, first: int, last: int) -> None:
        """Append the messages from `first` up to, not including, `last` to a thread: each durable before the next."""
        ...

    def fill(self, thread: str, count: int) -> None:
        """Append the first messages in the quickest way there is."""
        ...

    def read(self, thread: str) -> object:
        """Read a thread."""
        ...

    def close(self) -> None:
        """Close the file, and copy into it what stands in a log."""
        ...


def talk(count: int) -> list[Said]:
    """Return a conversation of so many messages: that of the other benchmarks over and over, with other ids."""
    (case,) = (case for case in cases() if case.is_stream)
    laps = range(-(-count // len(case.messages)))
    return [_again(said, lap) for lap in laps for said in case.messages][:count]


def _again(said: Said, lap: int) -> Said:
    def renamed(fields: dict[str, object]) -> dict[str, object]:
        ids = ("id", "turn_id", "in_reply_to", "invocation_id")
        return {name: f"{str(each)[:-4]}{lap:04x}" if name in ids else each for name, each in fields.items()}

    envelope = {name: each for name, each in renamed(said["envelope"]).items() if name != "thread_id"}
    envelope["step_num"] = said["envelope"]["step_num"] + 1000 * lap
    return {"kind": said["kind"], "envelope": envelope, "content": renamed(said["content"])}


def bytes_in(folder: Path) -> int:
    """Return how large the files in a folder are."""
    return sum(each.stat().st_size for each in folder.iterdir())
