"""F2: power cuts. A ledger is used on a disk that can lose power, and looked at as it would be after each operation."""

import asyncio
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from hashlib import sha256
from itertools import count as counting
from pathlib import Path
from random import Random
from typing import Any, NamedTuple

from tests.ledger.faults.after import evidence_of, judged, restored
from tests.ledger.faults.disk import Disk
from tests.ledger.histories import answered, at, called, said
from tools.soak.witness import Evidence

from antiphon import MediaPart, Message, PartsPayload
from antiphon.errors import LedgerError
from antiphon.ledger import Ledger
from antiphon.testing import Event
from antiphon.testing._events import content_of

_NAMES = counting()


class Cuts(NamedTuple):
    """How many cuts were tried, and what was wrong after them."""

    tried: int
    attempted: int
    """Over the whole run, which ended well."""
    acknowledged: int
    """Over the whole run."""
    before: int
    """How many were acknowledged before their power was cut, over all cuts."""
    present: int
    """How many of those that were begun before were there afterwards, over all cuts."""
    lost: list[str]


class Scribe:
    """Appends, and remembers at which operation of the disk each append began and was acknowledged."""

    def __init__(self, disk: Disk, ledger: Ledger) -> None:
        self.disk = disk
        self.ledger = ledger
        self.events: list[Event] = []

    def note(self, what: Any, thread: str, message: Message) -> None:
        content = content_of(message)
        self.events.append(Event(what=what, at=len(self.disk.log), thread=thread, id=message.id, content=content))

    async def append(self, thread: str, messages: list[Message], **options: Any) -> bool:
        for message in messages:
            self.note("inv", thread, message)
        try:
            await self.ledger.append(thread, messages, **options)
        except LedgerError:
            return False
        for message in messages:
            self.note("ok", thread, message)
        return True


GONE = "gone"
"""A thread that is deleted: whether it is there after a cut says nothing."""


async def work(scribe: Scribe, seed: int, *, is_plain: bool = False) -> None:
    """Use a ledger in many ways: alone and together, small and large, with calls and results, a deletion and a search."""
    random = Random(seed)
    for step in range(8):
        call = called()
        await scribe.append("a", [said(f"{step}"), call])
        await asyncio.gather(*(scribe.append(name, [said("x" * random.randrange(3000))]) for name in "bcd"))
        await scribe.append("a", [answered(call), said("out")])
        if step == 4:
            picture = MediaPart(modality="image", url="data:image/png;base64," + "QUJD" * 4000)
            await scribe.append("b", [Message(policy="u", payload=PartsPayload(parts=(picture,)))])
        if step == 6 and not is_plain:
            await scribe.ledger.append(GONE, [said("y" * 5000)])
            await scribe.ledger.delete(GONE)
        if step == 7 and not is_plain:
            await scribe.ledger.search("out")


@contextmanager
def a_disk() -> Iterator[Disk]:
    disk = Disk(f"disk-{next(_NAMES)}")
    try:
        yield disk
    finally:
        disk.close()


def recorded(disk: Disk, doing: Callable[[Scribe], Any]) -> list[Event]:
    """Do something with a ledger on a disk, to the end, and return what was seen."""

    async def run() -> list[Event]:
        async with at(disk.path(), vfs=disk.name) as ledger:
            scribe = Scribe(disk, ledger)
            await doing(scribe)
        return scribe.events

    return asyncio.run(run())


def tried(disk: Disk, events: list[Event], *, most: int, seeds: int = 3) -> Cuts:
    """Cut the power after each operation, and look: spread over the whole run if there are more cuts than wanted."""
    lost: list[str] = []
    known: dict[bytes, Evidence] = {}
    tries = before = present = 0
    with tempfile.TemporaryDirectory(dir=disk.folder.parent) as folder:
        for place, image in disk.cuts(seeds, most):
            tries += 1
            try:
                evidence = _evidence(Path(folder), image, known)
            except (LedgerError, AssertionError) as exc:
                lost.append(f"after operation {place}: {exc!r}")
                continue
            seen = [event for event in events if event.at <= place or event.what == "inv"]
            report = judged(seen, Evidence([row for row in evidence.rows if row.thread != GONE]))
            before, present = before + report.counts["acknowledged"], present + report.counts["present"]
            lost += [f"after operation {place}: {breach}" for breach in report.breaches]
    attempted, acknowledged = (sum(event.what == what for event in events) for what in ("inv", "ok"))
    return Cuts(tries, attempted, acknowledged, before, present, lost)


def fingerprint(image: dict[str, bytes]) -> bytes:
    """Return what tells the content of a disk from any other."""
    digest = sha256()
    for name in sorted(image):
        digest.update(f"{name} {len(image[name])}\n".encode())
        digest.update(image[name])
    return digest.digest()


def _evidence(folder: Path, image: dict[str, bytes], known: dict[bytes, Evidence]) -> Evidence:
    """Read what is on a disk, unless the same bytes were looked at before: only syncs change what is sure to be there."""
    if (key := fingerprint(image)) not in known:
        known[key] = evidence_of(restored(folder, image))
    return known[key]
