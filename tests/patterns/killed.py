"""Programs whose process is killed before and after each row that they append, and that the next process finishes.

A program is a module with `async def program(ledger, witness) -> str`, which opens a pattern, does its work in threads with
fixed ids, and returns the result; and `if __name__ == "__main__": serve(program)`. Its tools and models say
`witness.start(…)` when they are started, so that what was done is known without the ledger. The test is
`check_survives(module, folder)`. A process that ends with something parked is helped on by a person, who says that it was
done.
"""

import asyncio
import os
import signal
import traceback
from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from pathlib import Path
from tempfile import NamedTemporaryFile
from typing import Any, TypeAlias, cast

from tests.runtime import worker
from tests.runtime.processes import Processes
from tests.runtime.worker import Killing, kill, note

from antiphon.dialects import decode
from antiphon.durable import current_effect
from antiphon.errors import ParkedError
from antiphon.ledger import Ledger, Record, heads_of, open_ledger
from antiphon.ledger.memory import MemoryLedger
from antiphon.messages import Message, OptionCallPayload, OptionResultPayload
from antiphon.runtime import System

PARKED = 3
KILLED = -signal.SIGKILL
PLACES = {"": 8, "ci": 10_000, "nightly": 10_000}[os.environ.get("ANTIPHON_CHAOS", "")]
"""At how many places a program is killed, of all that there are."""


HISTORY = decode([{"role": "user", "content": "Hello."}, {"role": "user", "content": "It rains."}], "openai-chat")
"""What is handed to a program's agents: it must be stored once, whenever the process is killed."""


async def handed_rows(ledger: Ledger, thread_id: str) -> int:
    """Return how many messages of a thread say what `HISTORY` says."""
    texts = [message.text for message in HISTORY]
    return sum([record.message.lane == "talk" and record.message.text in texts async for record in ledger.read(thread_id)])


class Witness:
    """What tools and models themselves say that they do."""

    def __init__(self, path: str, place: str = "") -> None:
        self._path = path
        self._place = place

    def say(self, words: str) -> None:
        """Say something else."""
        note(self._path, words)

    async def start(self, what: str) -> None:
        """Say that something is started, inside of an effect or not; at the place `in WHAT`, the process dies of it."""
        effect = current_effect()
        key, effects = (effect.key, effect.effects) if effect is not None else (what, "none")
        note(self._path, f"start {key} {effects}")
        if self._place == f"in {what}":
            kill()
        await asyncio.sleep(0)


Program: TypeAlias = Callable[[Ledger, Witness], Awaitable[str]]


class Counting(Killing):
    """A ledger that has its process killed before or after the n-th append: `before 7`, `after 7`."""

    count = 0

    async def append(self, thread_id: str, messages: Sequence[Message], **more: Any) -> tuple[Record, ...]:
        self.count += 1
        number = self.count
        if self._place == f"before {number}":
            kill()
        records = await self._ledger.append(thread_id, messages, **more)
        if self._place == f"after {number}":
            kill()
        return records


def serve(program: Program) -> None:
    """Fork a process for each line, and wait for it; what is made when first used is made before, once for all."""
    with NamedTemporaryFile() as witness:
        asyncio.run(_run(program, MemoryLedger(), witness.name, ""))
    worker.serve(partial(_live, program))


def _live(program: Program, path: str, witness: str, place: str) -> int:
    async def main() -> None:
        async with open_ledger(f"sqlite:///{path}") as ledger:
            await _run(program, ledger, witness, place)

    try:
        asyncio.run(main())
    except ParkedError:
        return PARKED
    except BaseException:  # noqa: BLE001 (whatever it is, the test shows it)
        traceback.print_exc()
        return 1
    return 0


async def _run(program: Program, ledger: Ledger, witness: str, place: str) -> None:
    counting = Counting(ledger, place)
    result = await program(cast("Ledger", counting), Witness(witness, place))
    note(witness, f"appends {counting.count}")
    note(witness, f"ok {result}")


# ---------------------------------------------------------------- the test


def check_survives(module: Path, folder: Path, *, places: int = PLACES, within: Sequence[str] = ()) -> None:
    """Kill a program at places spread over all there are, and in the middle of some things; have the next process finish it.

    Nothing that is recorded as finished is started again, nothing that must not be done twice is, whatever was asked is
    answered, the ledger is whole, and the program ends with what it says when nobody kills it.
    """
    with Processes(module) as processes:
        expected, appends = _whole(processes, folder)
        every = [f"{when} {number}" for number in range(1, appends + 1) for when in ("before", "after")]
        step = max(1, len(every) // places)
        for place in [*every[::step], *(f"in {what}" for what in within)]:
            _Life(processes, folder / place.replace(" ", "-")).check(place, expected)


def _whole(processes: Processes, folder: Path) -> tuple[str, int]:
    life = _Life(processes, folder / "whole")
    assert processes.run(life.folder) == 0
    return life.said("ok"), int(life.said("appends"))


class _Life:
    def __init__(self, processes: Processes, folder: Path) -> None:
        folder.mkdir()
        self.folder = folder
        self._processes = processes
        self._before: Counter[str] = Counter()
        self._ended: frozenset[str] = frozenset()

    def check(self, place: str, expected: str) -> None:
        assert self._processes.run(self.folder, place) in (KILLED, 0), place  # the order of what goes on at once may vary
        self._look(place)
        settled = 0
        for _ in range(10):
            code = self._processes.run(self.folder)
            self._look(place)
            if code == 0:
                break
            settled += asyncio.run(_settle(self.folder))
        else:
            raise AssertionError(f"{place}: it never finished")
        if not settled:
            assert self.said("ok") == expected, place
        assert asyncio.run(_open_calls(self.folder)) == [], place

    def said(self, word: str) -> str:
        lines = (self.folder / "witness").read_text().splitlines()
        return [line.removeprefix(f"{word} ") for line in lines if line.startswith(f"{word} ")][-1]

    def _look(self, place: str) -> None:
        """Check what one more life has done."""
        path = self.folder / "witness"
        lines = path.read_text().splitlines() if path.exists() else []
        started = Counter(line.removeprefix("start ") for line in lines if line.startswith("start "))
        twice = [line for line in started if line.endswith(" once") and started[line] > 1]
        assert not twice, (place, twice)
        again = [line for line in started if started[line] > self._before[line] > 0 and line.split()[0] in self._ended]
        assert not again, (place, again)
        self._before, self._ended = started, asyncio.run(_ended(self.folder))


async def _ended(folder: Path) -> frozenset[str]:
    if not (folder / "ledger.db").exists():
        return frozenset()
    async with open_ledger(f"sqlite:///{folder}/ledger.db") as ledger:
        assert (await ledger.verify()).is_whole
        payloads = [record.message.payload for head in await heads_of(ledger) async for record in ledger.read(head.thread_id)]
    return frozenset(each.invocation_id for each in payloads if isinstance(each, OptionResultPayload))


async def _open_calls(folder: Path) -> list[str]:
    async with open_ledger(f"sqlite:///{folder}/ledger.db") as ledger:
        found = [record.message for head in await heads_of(ledger) for record in await ledger.open_calls(head.thread_id)]
    due = [each.payload for each in found if each.lane != "talk" or each.to]  # not what a model called and nobody has begun
    return [each.option_name for each in due if isinstance(each, OptionCallPayload)]


async def _settle(folder: Path) -> int:
    """Settle every parked call as done, and return how many there were."""
    async with open_ledger(f"sqlite:///{folder}/ledger.db") as ledger, System(ledger) as system:
        parked = await system.parked()
        for each in parked:
            await system.settle(each.thread_id, each.invocation_id, result="done, says a person")
    return len(parked)
