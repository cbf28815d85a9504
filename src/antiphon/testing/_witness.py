"""The witness: a record of the actions and observations of each process of a run, and the evidence from the ledger after it.

A system cannot report what it has lost. So each process writes its attempts and their outcomes to its own file, on another
disk than the one under test. Each line is on the disk before the process continues. All times are of one clock that all
processes of a machine share. `_witness_rules` compares the record with the ledger.
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
"""The most bytes of a line: a write of this size is complete or does not happen."""

What: TypeAlias = Literal[
    "inv",  # it is about to append: id, content, epoch
    "ok",  # the append was acknowledged: id
    "fail",  # the append was refused: id. With neither, the outcome is unknown
    "claim",  # the thread was claimed: epoch
    "read",  # the thread was read, from `began` on: ids
    "rx",  # a message came out of a tail of all threads: id
    "fx",  # an effect starts, recorded by the tool itself: id (its invocation), key, epoch, is_once
    "fxend",  # it has ended: id, content (of its result)
    "park",  # a call was handed to a person: id (its invocation)
    "pause",  # acknowledged for the thread
    "resume",
    "terminate",
    "fault",  # a fault has really happened: content is its kind
]


@dataclass(frozen=True, slots=True, kw_only=True)
class Event:
    """An action or observation of a process."""

    what: What
    at: float
    who: str = ""
    thread: str = ""
    id: str = ""
    content: str = ""
    """A digest of the message (see `content_of`)."""
    key: str = ""
    epoch: int = 0
    is_once: bool = False
    """Whether the effect must not start twice."""
    began: float = 0.0
    ids: tuple[str, ...] = ()

    @staticmethod
    def load(line: bytes) -> Event:
        """Read a line of a witness."""
        return _events().validate_json(line)

    def dump(self) -> bytes:
        """Return it as a line, without defaults."""
        said = {each.name: getattr(self, each.name) for each in fields(self)}
        return orjson.dumps({name: value for name, value in said.items() if value or name == "at"}) + b"\n"


@cache
def _events() -> TypeAdapter[Event]:
    return TypeAdapter(Event)


class Witness:
    """Records the events of one process. Each line is on the disk when `say` returns."""

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
    """Read the files of several witnesses, sorted by time. An incomplete last line is ignored: no process relied on it."""
    lines = [line for path in paths for line in path.read_bytes().splitlines(keepends=True) if line.endswith(b"\n")]
    return sorted((Event.load(line) for line in lines), key=lambda event: event.at)


# ---------------------------------------------------------------- evidence from the ledger


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """A message in the ledger after the run."""

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
    """The contents of the ledger, as a new process reads them after the run."""

    rows: Sequence[Row]
    """Each thread's in its order."""
    statuses: dict[str, str | None] = field(default_factory=dict[str, "str | None"])


def content_of(message: Message) -> str:
    """Return a digest of the policy and the payload of a message, without its other fields."""
    return sha256(message.policy.encode() + b"\n" + house_bytes(message.payload)).hexdigest()[:16]


async def gather_evidence(ledger: Ledger) -> Evidence:
    """Read all messages of a ledger. Messages that a branch shares are read with its origin."""
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
