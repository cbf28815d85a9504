"""The program of a host of a soak: a shop that takes orders, a bank that pays, and a witness of what the host does.

Run it as `python -m tools.soak.host FOLDER NAME HEARTBEAT SECONDS`. The URL of the ledger is in `ANTIPHON_LEDGER`,
because everybody on the machine can read the arguments of a process.

Some orders need an approval. They wait for the answer of a person, in the way of any tool of a toolkit, and pay only after it.
"""

from __future__ import annotations

import asyncio
import fcntl
import os
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Final, cast

from tools.soak.witness import Witness

from antiphon.agents.toolkit import Toolkit
from antiphon.durable import ledger_run
from antiphon.errors import LedgerError
from antiphon.ledger import Epoch, Host, Ledger, Record, TakenThread, open_ledger
from antiphon.messages import Message
from antiphon.patterns.cast._handling import left_open
from antiphon.protocol import Reply, Request
from antiphon.runtime import Actor, Context, Settings, System, handles, run
from antiphon.testing._events import content_of

APPROVER: Final = "grace"
"""The person who answers."""
DENIED: Final = "denied"
"""The receipt of an order that was denied."""
PROCESS: Final = ".pid"
"""How the name of the file ends that a running host has locked; its process id is in it."""


class Paid(Reply, frozen=True, type="HOST_PAID"):
    """The bank has paid."""

    receipt: str


class Pay(Request[Paid], frozen=True, type="HOST_PAY"):
    """Pay somebody."""

    to: str


class Ordered(Reply, frozen=True, type="HOST_ORDERED"):
    """The order is paid."""

    receipt: str


class Order(Request[Ordered], frozen=True, type="HOST_ORDER"):
    """Order something."""

    what: str
    needs_approval: bool = False


class WitnessedLedger:
    """A ledger whose claims and appends are recorded by a witness."""

    def __init__(self, ledger: Ledger, witness: Witness) -> None:
        self._ledger = ledger
        self._witness = witness

    def __getattr__(self, name: str) -> Any:
        return getattr(self._ledger, name)

    async def take(self, by: Host, **more: Any) -> tuple[TakenThread, ...]:
        """Take threads, and record each as a claim."""
        found = await self._ledger.take(by, **more)
        for taken in found:
            self._witness.say("claim", thread=taken.thread_id, epoch=taken.epoch)
        return found

    async def claim(self, thread_id: str, **more: Any) -> Epoch:
        """Claim a thread, and record it."""
        epoch = await self._ledger.claim(thread_id, **more)
        self._witness.say("claim", thread=thread_id, epoch=epoch)
        return epoch

    async def append(
        self, thread_id: str, messages: Sequence[Message], *, epoch: int | None = None, **more: Any
    ) -> tuple[Record, ...]:
        """Append messages; record the attempt before it, and its outcome."""
        for message in messages:
            self._witness.say("inv", thread=thread_id, id=message.id, content=content_of(message), epoch=epoch or 0)
        try:
            records = await self.append_below(thread_id, messages, epoch, **more)
        except LedgerError:
            for message in messages:
                self._witness.say("fail", thread=thread_id, id=message.id, epoch=epoch or 0)
            raise
        for message in messages:
            self._witness.say("ok", thread=thread_id, id=message.id, epoch=epoch or 0)
        return records

    async def append_below(
        self, thread_id: str, messages: Sequence[Message], epoch: int | None, **more: Any
    ) -> tuple[Record, ...]:
        """Append messages to the ledger itself."""
        return await self._ledger.append(thread_id, messages, epoch=epoch, **more)


TOOLS: Final = Toolkit(approvers=[APPROVER])


@TOOLS.tool(approval=True, effects="none", to=["shop"])
async def allow(what: str) -> str:
    """Allow an order: the approval is what counts."""
    return what


class Shop(Actor):
    """Takes orders, and has the bank pay."""

    @handles
    async def order(self, order: Order, context: Context) -> Ordered:
        """Pay for an order, if a person allows it."""
        if order.needs_approval:
            # Only the wait is in here: an order whose payment is parked ends with that error.
            async with left_open(context), ledger_run(context):
                allowed = await TOOLS.call("shop", allow.__name__, {"what": order.what}, invocation_id="allow")
            if allowed.is_error:
                return Ordered(receipt=DENIED)
        paid = await context.ask("bank/1", Pay(to=order.what), within=600)
        return Ordered(receipt=paid.receipt)


class Bank(Actor):
    """Pays once for each request; a payment takes some seconds."""

    def __init__(self, witness: Witness, seconds: float) -> None:
        self.witness, self.seconds = witness, seconds

    @handles
    async def pay(self, pay: Pay, context: Context) -> Paid:
        """Pay, as a `once` effect."""
        thread_id = context.thread_id or ""

        async def at_the_bank(key: str) -> str:
            epoch = context.journal.epoch(thread_id)
            self.witness.say("fx", thread=thread_id, id=key, key=key, epoch=epoch, is_once=True)
            await self.work()
            self.witness.say("fxend", thread=thread_id, id=key)
            return f"receipt {pay.to}"

        return Paid(receipt=await context.effect("pay", {"to": pay.to}, at_the_bank, effects="once"))

    async def work(self) -> None:
        """Take the time of a payment."""
        await asyncio.sleep(self.seconds)


async def run_shop(ledger: Ledger, name: str, heartbeat: float, make_bank: Callable[[], Actor]) -> None:
    """Host the threads of the shop, until the process is told to end. Print `ready`, and `ending`."""
    settings = Settings(within=600, host=name, build="1", heartbeat=heartbeat, block_limit=None)
    async with System(ledger, settings=settings) as system:
        system.register("shop", Shop, grace=60, concurrency=1000)
        system.register("bank", make_bank, grace=60, concurrency=50)
        os.write(1, b"ready\n")
        try:
            await system.host()
        except asyncio.CancelledError:
            os.write(1, b"ending\n")
            raise


async def _host(folder: str, name: str, heartbeat: str, seconds: str) -> None:
    held = (Path(folder) / f"{name}{PROCESS}").open("w")  # until this process ends
    fcntl.flock(held, fcntl.LOCK_EX)
    held.write(str(os.getpid()))
    held.flush()
    witness = Witness(Path(folder) / f"{name}.witness", name)
    asyncio.get_running_loop().call_later(1, _end_with_parent, os.getppid())
    async with open_ledger(os.environ["ANTIPHON_LEDGER"]) as ledger:
        own = cast("Ledger", WitnessedLedger(ledger, witness))
        await run_shop(own, name, float(heartbeat), lambda: Bank(witness, float(seconds)))


def _end_with_parent(parent: int) -> None:
    """End this host when the soak is gone that has started it."""
    if os.getppid() != parent:
        os._exit(1)
    asyncio.get_running_loop().call_later(1, _end_with_parent, parent)


if __name__ == "__main__":
    run(_host(*sys.argv[1:]))
