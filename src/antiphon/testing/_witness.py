"""The witness: what every process of a run saw, written down beside the system under test, and what the ledger says after.

A system cannot be asked whether it lost something. So each process writes what it is about to do and what it was answered to
a file of its own, on another disk than the one under attack, one line at a time, each on the disk before the process goes
on. All times are of one clock, which all processes of a machine share. `_witness_rules` compares the two.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, fields
from functools import cache
from hashlib import sha256
from pathlib import Path
from typing import Any, Literal, TypeAlias

import orjson
from pydantic import TypeAdapter

from antiphon.ledger import Ledger
from antiphon.messages import Message
from antiphon.messages.trusted import house_bytes

_LINE = 4096
"""Bytes of a line at most: so much is written at once or not at all."""

What: TypeAlias = Literal[
    "inv",  # about to append: id, content, epoch
    "ok",  # the append was acknowledged: id
    "fail",  # the append was refused: id. With neither, the outcome is unknown
    "claim",  # the thread was claimed: epoch
    "read",  # the thread was read, from `began` on: ids
    "rx",  # a message came out of a tail of all threads: id
    "fx",  # an effect begins, said by the tool itself: id (its invocation), key, epoch, is_once
    "fxend",  # it has ended: id, content (of its result)
    "park",  # a call was handed to a person: id (its invocation)
    "pause",  # acknowledged for the thread
    "resume",
    "terminate",
    "fault",  # a fault has really landed: content says which
]


@dataclass(frozen=True, slots=True, kw_only=True)
class Event:
    """Something that a process did or saw."""

    what: What
    at: float
    who: str = ""
    thread: str = ""
    id: str = ""
    content: str = ""
    """A digest of what was said (see `content_of`)."""
    key: str = ""
    epoch: int = 0
    is_once: bool = False
    """Whether the effect must not begin twice."""
    began: float = 0.0
    ids: tuple[str, ...] = ()

    @staticmethod
    def load(line: bytes) -> Event:
        """Read a line of a witness."""
        return _events().validate_json(line)

    def dump(self) -> bytes:
        """Write it as a line; what is as it usually is, is left out."""
        said = {each.name: getattr(self, each.name) for each in fields(self)}
        return orjson.dumps({name: value for name, value in said.items() if value or name == "at"}) + b"\n"


@cache
def _events() -> TypeAdapter[Event]:
    return TypeAdapter(Event)


class Witness:
    """Writes down what one process sees. Each line is on the disk when `say` returns."""

    def __init__(self, path: Path, who: str) -> None:
        self._file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        self._who = who

    @staticmethod
    def now() -> float:
        """Return the time on the clock that all processes share."""
        return time.clock_gettime(time.CLOCK_MONOTONIC)

    def say(self, what: What, **details: Any) -> None:
        """Write an event.

        Raises:
            ValueError: it is longer than a line may be.
        """
        line = Event(what=what, at=self.now(), who=self._who, **details).dump()
        if len(line) > _LINE:
            raise ValueError(f"an event of {len(line)} bytes; give ids and digests, not contents")
        os.write(self._file, line)
        os.fdatasync(self._file)

    def close(self) -> None:
        os.close(self._file)


def read_events(paths: Iterable[Path]) -> list[Event]:
    """Read the files of several witnesses, in the order of time. A last line that was cut off was never relied on."""
    lines = [line for path in paths for line in path.read_bytes().splitlines(keepends=True) if line.endswith(b"\n")]
    return sorted((Event.load(line) for line in lines), key=lambda event: event.at)


# ---------------------------------------------------------------- what the ledger says


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """A message as it is in the ledger in the end."""

    thread: str
    seq: int
    id: str
    content: str
    kind: str = "parts"
    lane: str = "talk"
    invocation: str = ""
    is_error: bool = False
    recorded_at: int = 0
    body: bytes = b""
    hash: str = ""


@dataclass(frozen=True, slots=True)
class Evidence:
    """What a fresh process finds in the ledger when all is over."""

    rows: Sequence[Row]
    """Each thread's in its order."""
    statuses: dict[str, str | None] = field(default_factory=dict[str, "str | None"])


def content_of(message: Message) -> str:
    """Return a digest of who says what, whatever the rest of the envelope is."""
    return sha256(message.policy.encode() + b"\n" + house_bytes(message.payload)).hexdigest()[:16]


async def gather_evidence(ledger: Ledger) -> Evidence:
    """Read everything that is in a ledger. Of a branch, what it shares is left to its origin."""
    rows: list[Row] = []
    statuses: dict[str, str | None] = {}
    for head in await ledger.heads():
        summary = await ledger.thread(head.thread_id)
        shared = summary.forked_at or 0 if summary is not None else 0
        statuses[head.thread_id] = summary.status if summary is not None else None
        async for record in ledger.read(head.thread_id, after=shared):
            message = record.message
            rows.append(
                Row(
                    thread=head.thread_id,
                    seq=record.seq,
                    id=message.id,
                    content=content_of(message),
                    kind=message.kind,
                    lane=message.lane,
                    invocation=message.invocation_id or "",
                    is_error=getattr(message.payload, "is_error", False),
                    recorded_at=round(record.recorded_at.timestamp() * 1_000_000),
                    body=record.body,
                    hash=record.hash,
                )
            )
    return Evidence(rows, statuses)
