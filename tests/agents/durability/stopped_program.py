"""A process with a durable run that pays (see `payers.py`), and that stops itself at a point, as SIGSTOP from outside would.

Arguments: the URL of the ledger, the folder of the witnesses, how it pays, and the point, or `nowhere`. It says `stopped`
right before it stops, `blocks` right before it blocks, and at the end what came of the run.
"""

import asyncio
import os
import signal
import sys
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import cast

from tests.agents.durability.payers import BLOCKS, HEARTBEAT, PAID, PAYERS, THREAD, Bank, Payment
from tools.soak.host import WitnessedLedger
from tools.soak.witness import Witness, read_events
from typing_extensions import override

from antiphon import open_ledger
from antiphon.errors import AntiphonError
from antiphon.ledger import Ledger
from antiphon.runtime import Settings, _lease
from antiphon.runtime._points import Point, stop_at
from antiphon.testing import Event


class WitnessedBank(Bank):
    """A bank whose payments are in the witnesses of the processes, in one folder."""

    def __init__(self, folder: Path, who: str) -> None:
        self._folder = folder
        self._who = who
        self.witness = Witness(folder / f"{who}.witness", who)

    @override
    def start(self, key: str) -> None:
        self.witness.say("fx", thread=THREAD, id=key, key=key, is_once=True)

    @override
    def block(self) -> None:
        if self._who == "first":
            say("blocks")
            time.sleep(BLOCKS)

    @property
    @override
    def payments(self) -> Sequence[Payment]:
        return [Payment(event.who, event.key) for event in self.witnessed if event.what == "fx"]

    @property
    def witnessed(self) -> Sequence[Event]:
        return read_events(sorted(self._folder.glob("*.witness")))


async def pay(ledger: Ledger, bank: WitnessedBank, how: str) -> str:
    """Do what the program does, and return what came of it."""
    try:
        await PAYERS[how](cast("Ledger", WitnessedLedger(ledger, bank.witness)), bank)
    except AntiphonError as exc:
        return type(exc).__name__
    return PAID


class Stopper:
    """Stops its process at a point: where it owns the thread, and on the way to the payment."""

    def __init__(self, point: str, url: str) -> None:
        self._point = point
        self._file = url.removeprefix("sqlite:///") if url.startswith("sqlite:") else None
        self._has_stopped = False

    def __call__(self, point: Point, thread_id: str, effect_id: str) -> None:
        if self._has_stopped or point != self._point or (effect_id and "pay" not in effect_id):
            return
        self._has_stopped = True
        say("stopped")
        if self._file is not None:
            _until_nothing_is_written(self._file)
        os.kill(os.getpid(), signal.SIGSTOP)


def _until_nothing_is_written(file: str) -> None:
    """Wait until no thread of this process is in a transaction: otherwise the file would stay locked for all others."""
    import apsw

    connection = apsw.Connection(file)
    connection.set_busy_timeout(5_000)
    connection.execute("BEGIN IMMEDIATE; ROLLBACK")
    connection.close()


def say(text: str) -> None:
    sys.stdout.write(f"{text}\n")
    sys.stdout.flush()


async def main(url: str, folder: str, how: str, point: str) -> None:
    _lease._SETTINGS = Settings(heartbeat=HEARTBEAT)
    async with open_ledger(url) as ledger:
        with stop_at(Stopper(point, url)):
            came = await pay(ledger, WitnessedBank(Path(folder), "first"), how)
    say(came)


if __name__ == "__main__":
    with suppress(BrokenPipeError):  # the test has failed
        asyncio.run(main(*sys.argv[1:]))
