"""A program with a durable run in thread `t` that pays once. It stops itself at a point, as SIGSTOP from outside would, or blocks.

Arguments: the URL of the ledger, the folder of the witnesses, how it pays (see `PAYERS`), and the point, or `nowhere`. It says
`stopped` right before it stops, `blocks` right before its other tool blocks, and at the end what came of the run. The payment
itself writes its start to the witness of the process, as its first act: so the bank knows what was paid, and by whom.
"""

import asyncio
import os
import signal
import sys
import time
from collections.abc import Awaitable, Callable
from contextlib import suppress
from pathlib import Path
from typing import Any, cast

from pydantic_ai import Agent
from tests.agents.durability.agents import Desk, call, script

from antiphon import open_ledger
from antiphon.agents import LedgerDurability, NotDone, current_effect, ledger_run
from antiphon.errors import AntiphonError
from antiphon.ledger import Ledger
from antiphon.runtime import Settings, _lease
from antiphon.runtime._points import Point, stop_at
from antiphon.service._soak_host import WitnessedLedger
from antiphon.testing import Event, Witness, read_events

THREAD = "t"
PAID = "paid"
HEARTBEAT = 0.3
BLOCKS = 5 * HEARTBEAT
"""Seconds for which the first process blocks: longer than its lease."""


class Bank:
    """Pays, and knows what all processes have paid."""

    def __init__(self, folder: Path, who: str) -> None:
        self._folder = folder
        self.who = who
        self.witness = Witness(folder / f"{who}.witness", who)

    def pay(self, key: str) -> str:
        self.witness.say("fx", thread=THREAD, id=key, key=key, is_once=True)
        return PAID

    def pay_in_tool(self) -> str:
        """Pay."""
        effect = current_effect()
        assert effect is not None
        return self.pay(effect.key)

    async def pay_in_async_tool(self) -> str:
        """Pay."""
        return self.pay_in_tool()

    @property
    def payments(self) -> list[Event]:
        return [event for event in self.witnessed if event.what == "fx"]

    @property
    def witnessed(self) -> list[Event]:
        return read_events(sorted(self._folder.glob("*.witness")))

    async def find_out(self, unsettled: object) -> str | NotDone:
        """Tell truthfully whether it was paid."""
        return PAID if self.payments else NotDone()


async def _look_first(key: str) -> str:
    return "seen"


async def _by_function(ledger: Ledger, bank: Bank) -> None:
    async with ledger_run(THREAD, ledger=ledger, name="desk") as run:
        await run.effect("look", {}, _look_first, effects="none")
        await run.effect("pay", {}, bank.pay, effects="once")


async def _by_async_function(ledger: Ledger, bank: Bank) -> None:
    async def pay(key: str) -> str:
        return bank.pay(key)

    async with ledger_run(THREAD, ledger=ledger, name="desk") as run:
        await run.effect("look", {}, _look_first, effects="none")
        await run.effect("pay", {}, pay, effects="once")


def _agent(ledger: Ledger, tools: dict[str, Callable[[], Any]], **more: Any) -> Agent[None, str]:
    """Return an agent that calls each of its tools once, all at the same time."""
    durability: LedgerDurability[None] = LedgerDurability(ledger, effects={"look": "none"}, **more)
    model = script(Desk(), [call(tool, f"c-{tool}") for tool in tools], ["done"])
    agent: Agent[None, str] = Agent(model, name="clerk", capabilities=[durability])
    for name, tool in tools.items():
        agent.tool_plain(name=name)(tool)
    return agent


def _look() -> str:
    """Look."""
    return "seen"


async def _by_agent(ledger: Ledger, bank: Bank) -> None:
    async with ledger_run(THREAD, name="desk"):
        await _agent(ledger, {"pay": bank.pay_in_async_tool, "look": _look}).run("pay")


async def _by_reconciling_agent(ledger: Ledger, bank: Bank) -> None:
    async with ledger_run(THREAD, name="desk"):
        await _agent(ledger, {"pay": bank.pay_in_tool, "look": _look}, reconcile=bank.find_out).run("pay")


async def _by_blocking_agent(ledger: Ledger, bank: Bank) -> None:
    async def look() -> str:
        """Look."""
        if bank.who == "first":
            say("blocks")
            time.sleep(BLOCKS)
        return "seen"

    async with ledger_run(THREAD, name="desk"):
        await _agent(ledger, {"look": look, "pay": bank.pay_in_async_tool}, reconcile=bank.find_out).run("pay")


async def _by_blocking_function(ledger: Ledger, bank: Bank) -> None:
    def look_and_pay(key: str) -> str:
        if bank.who == "first":
            say("blocks")
            time.sleep(BLOCKS)
        return bank.pay(key)

    async with ledger_run(THREAD, ledger=ledger, name="desk") as run:
        await run.effect("pay", {}, look_and_pay, effects="once")


PAYERS: dict[str, Callable[[Ledger, Bank], Awaitable[None]]] = {
    "function": _by_function,
    "async function": _by_async_function,
    "agent": _by_agent,
    "reconciling agent": _by_reconciling_agent,
    "blocking agent": _by_blocking_agent,
    "blocking function": _by_blocking_function,
}


async def pay(ledger: Ledger, bank: Bank, how: str) -> str:
    """Do what the program does, and return what came of it."""
    own = cast("Ledger", WitnessedLedger(ledger, bank.witness))
    try:
        await PAYERS[how](own, bank)
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
            came = await pay(ledger, Bank(Path(folder), "first"), how)
    say(came)


if __name__ == "__main__":
    with suppress(BrokenPipeError):  # the test has failed
        asyncio.run(main(*sys.argv[1:]))
