"""The witness: a record of what each process of a run did and observed, and the rules that compare it with the ledger.

A system cannot report what it has lost. So each process writes its attempts and their outcomes to its own file, on another
disk than the one under test. Each line is on the disk before the process continues. All times are of one clock that all
processes of a machine share.

**The checker** has rules R0 to R12 over the witnesses' events and the ledger's rows. Each rule is one pass over one of them.
Every thread is one totally ordered log and every id is used once, so the checker needs no search and takes linear time. A
breach has the rule, the thread, the id and a sentence. A run is good if there is no breach.
"""

from __future__ import annotations

import os
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, fields
from functools import cache, cached_property
from hashlib import sha256
from pathlib import Path
from typing import Any

import orjson
from pydantic import TypeAdapter

from antiphon.ledger import Ledger, heads_of
from antiphon.testing import Event
from antiphon.testing._events import What, content_of

# ---------------------------------------------------------------- events

_LINE = 4096
"""The most bytes of a line: a write of this size is complete or does not happen."""


def load_event(line: bytes) -> Event:
    """Read a line of a witness."""
    return _events().validate_json(line)


def dump_event(event: Event) -> bytes:
    """Return an event as a line, without defaults."""
    values = {each.name: getattr(event, each.name) for each in fields(event)}
    return orjson.dumps({name: value for name, value in values.items() if value or name == "at"}) + b"\n"


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
        line = dump_event(Event(what=what, at=self.now(), who=self._who, **details))
        if len(line) > _LINE:
            raise ValueError(f"an event of {len(line)} bytes; give ids and digests, not contents")
        os.write(self._file, line)
        os.fdatasync(self._file)

    def close(self) -> None:
        os.close(self._file)


def read_events(paths: Iterable[Path]) -> list[Event]:
    """Read the files of several witnesses, sorted by time. An incomplete last line is ignored: no process relied on it."""
    lines = [line for path in paths for line in path.read_bytes().splitlines(keepends=True) if line.endswith(b"\n")]
    return sorted((load_event(line) for line in lines), key=lambda event: event.at)


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


async def gather_evidence(ledger: Ledger) -> Evidence:
    """Read all messages of a ledger. Messages that a branch shares are read with its origin."""
    rows: list[Row] = []
    statuses: dict[str, str | None] = {}
    for head in await heads_of(ledger):
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


# ---------------------------------------------------------------- rules


@dataclass(frozen=True, slots=True)
class Breach:
    """A broken rule."""

    rule: str
    thread: str
    id: str
    what: str


@dataclass(frozen=True, slots=True)
class WitnessReport:
    """The result of `check_witness`: counts, and the breaches."""

    counts: dict[str, int]
    """attempted, acknowledged, present, recovered (present without an answer), effects, parked, and faults by kind."""
    breaches: tuple[Breach, ...]


class _History:
    """Events and rows, indexed for the rules."""

    def __init__(self, events: Sequence[Event], evidence: Evidence) -> None:
        self.events = sorted(events, key=lambda event: event.at)
        self.rows = evidence.rows
        self.statuses = evidence.statuses

    def of(self, *kinds: str) -> list[Event]:
        return [event for event in self.events if event.what in kinds]

    @cached_property
    def attempted(self) -> dict[tuple[str, str], Event]:
        """The first attempt to append each message."""
        found: dict[tuple[str, str], Event] = {}
        for event in self.of("inv"):
            found.setdefault((event.thread, event.id), event)
        return found

    @cached_property
    def acknowledged(self) -> dict[tuple[str, str], Event]:
        """The first acknowledgement of each message."""
        found: dict[tuple[str, str], Event] = {}
        for event in self.of("ok"):
            found.setdefault((event.thread, event.id), event)
        return found

    @cached_property
    def present(self) -> dict[tuple[str, str], Row]:
        return {(row.thread, row.id): row for row in self.rows}

    @cached_property
    def by_thread(self) -> dict[str, list[Row]]:
        found: dict[str, list[Row]] = defaultdict(list)
        for row in self.rows:
            found[row.thread].append(row)
        return found


def check_witness(
    events: Sequence[Event],
    evidence: Evidence,
    *,
    least_acknowledged: int = 1,
    least_faults: int = 0,
    running: Iterable[str] = ("running",),
) -> WitnessReport:
    """Compare the events with the ledger. `running` are the statuses that no thread may have after the run."""
    history = _History(events, evidence)
    breaches = [breach for rule in _RULES for breach in rule(history)]
    breaches += _vacuous(history, least_acknowledged, least_faults)
    breaches += _stuck(history, frozenset(running))
    return WitnessReport(_counts(history), tuple(breaches))


def _counts(history: _History) -> dict[str, int]:
    present = history.present.keys()
    faults = Counter(f"fault {event.content}" for event in history.of("fault"))
    return {
        "attempted": len(history.attempted),
        "acknowledged": len(history.acknowledged),
        "present": len(present),
        "recovered": len((present & history.attempted.keys()) - history.acknowledged.keys()),
        "effects": len(history.of("fx")),
        "parked": len(history.of("park")),
        **dict(sorted(faults.items())),
    }


def _vacuous(history: _History, least_acknowledged: int, least_faults: int) -> Iterator[Breach]:
    """R0: the run was not vacuous: enough appends were acknowledged, and enough faults happened."""
    if (found := len(history.acknowledged)) < least_acknowledged:
        yield Breach("R0", "", "", f"{found} appends were acknowledged, and {least_acknowledged} should have been")
    if (landed := len(history.of("fault"))) < least_faults:
        yield Breach("R0", "", "", f"{landed} faults have landed, and {least_faults} should have")


def _lost(history: _History) -> Iterator[Breach]:
    """R1: every acknowledged message is in the ledger, unaltered."""
    for (thread, name), event in history.acknowledged.items():
        row = history.present.get((thread, name))
        said = history.attempted.get((thread, name), event)
        if row is None:
            yield Breach("R1", thread, name, "it was acknowledged and is not there")
        elif said.content and said.content != row.content:
            yield Breach("R1", thread, name, "it was acknowledged and says something else")


def _phantoms(history: _History) -> Iterator[Breach]:
    """R2: every message in the ledger was sent, and was not refused."""
    refused = {(event.thread, event.id) for event in history.of("fail")} - history.acknowledged.keys()
    for thread, name in history.present:
        if (thread, name) not in history.attempted:
            yield Breach("R2", thread, name, "it is there and nobody has said it")
        if (thread, name) in refused:
            yield Breach("R2", thread, name, "it was refused and is there")


def _disorder(history: _History) -> Iterator[Breach]:
    """R3: ids are unique in a thread, and places follow each other."""
    for thread, rows in history.by_thread.items():
        for name, times in Counter(row.id for row in rows).items():
            if times > 1:
                yield Breach("R3", thread, name, f"it is there {times} times")
        for expected, row in enumerate(rows, start=rows[0].seq):
            if row.seq != expected:
                yield Breach("R3", thread, row.id, f"it is at {row.seq}, where {expected} should be")
                break


def _untimely(history: _History) -> Iterator[Breach]:
    """R4: a message that was acknowledged before another append began precedes it. One pass, from the end of the thread."""
    for thread, rows in history.by_thread.items():
        earliest = float("inf")  # the earliest acknowledgement among the later rows
        for row in reversed(rows):
            began = history.attempted.get((thread, row.id))
            ended = history.acknowledged.get((thread, row.id))
            if began is not None and earliest < began.at:
                yield Breach("R4", thread, row.id, "something that was acknowledged before it began stands after it")
            if ended is not None:
                earliest = min(earliest, ended.at)


def _bad_reads(history: _History) -> Iterator[Breach]:
    """R5: every read returns a prefix of the thread, with all messages that were acknowledged before the read began."""
    order = {thread: [row.id for row in rows] for thread, rows in history.by_thread.items()}
    acknowledged: dict[str, list[Event]] = defaultdict(list)
    for event in history.of("ok"):
        acknowledged[event.thread].append(event)
    for event in history.of("read"):
        if list(event.ids) != order.get(event.thread, [])[: len(event.ids)]:
            yield Breach("R5", event.thread, "", f"{event.who} read something else than the beginning of the thread")
            continue
        seen = set(event.ids)
        for before in acknowledged[event.thread]:
            if before.at >= event.began:
                break
            if before.id not in seen:
                yield Breach("R5", event.thread, before.id, f"{event.who} did not see it, and it was acknowledged before")
                break


def _bad_effects(history: _History) -> Iterator[Breach]:
    """R6: the intent is acknowledged before the effect begins, always under one key; a once-only effect begins once."""
    intents = {(row.thread, row.invocation): row.id for row in history.rows if _is_intent(row)}
    keys: dict[tuple[str, str], str] = {}
    begun: Counter[tuple[str, str]] = Counter()
    for event in history.of("fx"):
        place = (event.thread, event.id)
        intent = history.acknowledged.get((event.thread, intents.get(place, "")))
        if intent is None or intent.at > event.at:
            yield Breach("R6", event.thread, event.id, "the effect began before its intent was acknowledged")
        if keys.setdefault(place, event.key) != event.key:
            yield Breach("R6", event.thread, event.id, "the effect began again under another key")
        begun[place] += 1
        if event.is_once and begun[place] > 1:
            yield Breach("R6", event.thread, event.id, "the effect began twice, and must not")


def _is_intent(row: Row) -> bool:
    return row.lane == "effect" and row.kind == "option_call"


def _bad_results(history: _History) -> Iterator[Breach]:
    """R7: a result in the journal belongs to an effect that has ended, and is equal to the effect's result."""
    ended: dict[tuple[str, str], set[str]] = defaultdict(set)
    for event in history.of("fxend"):
        ended[event.thread, event.id].add(event.content)
    for row in history.rows:
        if row.lane == "effect" and row.kind == "option_result" and not row.is_error:
            contents = ended.get((row.thread, row.invocation))
            if contents is None:
                yield Breach("R7", row.thread, row.id, "it is the result of an effect that never ended")
            elif row.content not in contents and "" not in contents:
                yield Breach("R7", row.thread, row.id, "it is not what the effect gave")


def _fenced(history: _History) -> Iterator[Breach]:
    """R8: epochs increase, in claims and along a thread; an owner starts no effect after a later claim of its thread."""
    claims: dict[str, list[Event]] = defaultdict(list)
    for event in history.of("claim"):
        if claims[event.thread] and event.epoch <= claims[event.thread][-1].epoch:
            yield Breach("R8", event.thread, "", f"epoch {event.epoch} was given after {claims[event.thread][-1].epoch}")
        claims[event.thread].append(event)
    for thread, rows in history.by_thread.items():
        highest = 0
        for row in rows:
            epoch = history.attempted[thread, row.id].epoch if (thread, row.id) in history.attempted else 0
            if epoch and epoch < highest:
                yield Breach("R8", thread, row.id, f"it was appended under epoch {epoch}, after {highest}")
            highest = max(highest, epoch)
    for event in history.of("fx"):
        before = [claim for claim in claims[event.thread] if claim.at < event.at]
        # A tool does not know the epoch of its owner: that is the last one that its process has claimed.
        epoch = event.epoch or max((claim.epoch for claim in before if claim.who == event.who), default=0)
        if any(claim.epoch > epoch for claim in before):
            yield Breach("R8", event.thread, event.id, f"{event.who} began an effect after it had lost the thread")


def _undelivered(history: _History) -> Iterator[Breach]:
    """R9: a reader of a tail gets every message, and in order, repetitions aside."""
    received: dict[str, dict[str, dict[str, None]]] = defaultdict(lambda: defaultdict(dict))
    for event in history.of("rx"):
        received[event.who][event.thread].setdefault(event.id)
    for receiver, threads in sorted(received.items()):
        for thread, rows in history.by_thread.items():
            promised = [row.id for row in rows]
            wanted, got = set(promised), threads[thread]
            if missing := wanted - got.keys():
                yield Breach("R9", thread, min(missing), f"{receiver} never got it")
            elif [each for each in got if each in wanted] != promised:
                yield Breach("R9", thread, "", f"{receiver} got things out of order")


def _open_calls(history: _History) -> Iterator[Breach]:
    """R10: every call has a result or is parked."""
    parked = {(event.thread, event.id) for event in history.of("park")}
    answered = {(row.thread, row.lane == "effect", row.invocation) for row in history.rows if row.kind == "option_result"}
    for row in history.rows:
        is_open = (row.thread, row.lane == "effect", row.invocation) not in answered
        if row.kind == "option_call" and is_open and (row.thread, row.invocation) not in parked:
            yield Breach("R10", row.thread, row.id, "the call has neither a result nor a person who looks at it")


def _stuck(history: _History, running: frozenset[str]) -> Iterator[Breach]:
    """R10: no thread is still running."""
    for thread, status in history.statuses.items():
        if status in running:
            yield Breach("R10", thread, "", f"it is still {status}")


def _disobeyed(history: _History) -> Iterator[Breach]:
    """R11: no effect begins between a pause and its resumption, or after the end."""
    stopped: dict[str, str] = {}
    for event in history.of("pause", "resume", "terminate", "fx"):
        if event.what == "fx" and event.thread in stopped:
            yield Breach("R11", event.thread, event.id, f"an effect began after {stopped[event.thread]}")
        elif event.what == "resume" and stopped.get(event.thread) == "pause":
            del stopped[event.thread]
        elif event.what in ("pause", "terminate") and stopped.get(event.thread) != "terminate":
            stopped[event.thread] = event.what


def _broken_chains(history: _History) -> Iterator[Breach]:
    """R12: each link is the hash of the one before, the time and the bytes; computed again here."""
    for thread, rows in history.by_thread.items():
        if not rows[0].hash:
            continue
        previous = sha256(b"antiphon thread\n" + thread.encode()).digest() if rows[0].seq == 1 else None
        for row in rows:
            if previous is not None:
                time = row.recorded_at.to_bytes(8, "big", signed=True)
                if sha256(previous + time + row.body).hexdigest() != row.hash:
                    yield Breach("R12", thread, row.id, "the chain breaks here")
                    break
            previous = bytes.fromhex(row.hash)


_RULES: tuple[Callable[[_History], Iterable[Breach]], ...] = (
    _lost,
    _phantoms,
    _disorder,
    _untimely,
    _bad_reads,
    _bad_effects,
    _bad_results,
    _fenced,
    _undelivered,
    _open_calls,
    _disobeyed,
    _broken_chains,
)
