"""A process that hosts threads on a ledger, until it is told to end.

    python host_worker.py LEDGER FOLDER NAME HEARTBEAT HOW SECONDS

It says `ready`, hosts all threads of the shop, and writes to its own witness in the folder what it claims, appends and does.
`HOW` is what the effect does for so many seconds: `wait`, or `block` the event loop, in the first one only. Two more ways are
broken builds, which the tests must catch: `unfenced` appends under the epoch that the thread has, whichever the host was
given, and `early` begins the effect before its intent.
"""

import asyncio
import os
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, cast

from antiphon.errors import LedgerError
from antiphon.ledger import Epoch, Host, Ledger, Record, TakenThread, open_ledger
from antiphon.messages import Message
from antiphon.protocol import Reply, Request
from antiphon.runtime import Actor, Context, Settings, System, handles, run
from antiphon.testing import Witness, content_of


class Paid(Reply, frozen=True, type="HOST_PAID"):
    receipt: str


class Pay(Request[Paid], frozen=True, type="HOST_PAY"):
    to: str


class Ordered(Reply, frozen=True, type="HOST_ORDERED"):
    receipt: str


class Order(Request[Ordered], frozen=True, type="HOST_ORDER"):
    what: str


class Witnessed:
    """A ledger whose claims and appends are seen by a witness."""

    def __init__(self, ledger: Ledger, witness: Witness, how: str = "wait") -> None:
        self._ledger = ledger
        self._is_unfenced = how == "unfenced"
        self._witness = witness

    def __getattr__(self, name: str) -> Any:
        return getattr(self._ledger, name)

    async def take(self, by: Host, **more: Any) -> tuple[TakenThread, ...]:
        found = await self._ledger.take(by, **more)
        for taken in found:
            self._witness.say("claim", thread=taken.thread_id, epoch=taken.epoch)
        return found

    async def claim(self, thread_id: str, **more: Any) -> Epoch:
        epoch = await self._ledger.claim(thread_id, **more)
        self._witness.say("claim", thread=thread_id, epoch=epoch)
        return epoch

    async def append(
        self, thread_id: str, messages: Sequence[Message], *, epoch: int | None = None, **more: Any
    ) -> tuple[Record, ...]:
        for message in messages:
            self._witness.say("inv", thread=thread_id, id=message.id, content=content_of(message), epoch=epoch or 0)
        try:
            current = abs((await self._ledger.head(thread_id)).epoch) if self._is_unfenced and epoch else epoch
            records = await self._ledger.append(thread_id, messages, epoch=current, **more)
        except LedgerError:
            for message in messages:
                self._witness.say("fail", thread=thread_id, id=message.id, epoch=epoch or 0)
            raise
        for message in messages:
            self._witness.say("ok", thread=thread_id, id=message.id, epoch=epoch or 0)
        return records


class Shop(Actor):
    @handles
    async def order(self, order: Order, context: Context) -> Ordered:
        paid = await context.ask("bank/1", Pay(to=order.what), within=600)
        return Ordered(receipt=paid.receipt)


class Bank(Actor):
    def __init__(self, system: System, witness: Witness, how: str, seconds: float) -> None:
        self._system, self._witness, self._how, self._seconds = system, witness, how, seconds

    @handles
    async def pay(self, pay: Pay, context: Context) -> Paid:
        thread = context.thread_id or ""

        async def at_the_bank(key: str) -> str:
            epoch = self._system._kernel.journal.epoch(thread)
            if self._how != "early":
                self._witness.say("fx", thread=thread, id=key, key=key, epoch=epoch, is_once=True)
            how, self._how = self._how, self._how if self._how == "early" else "wait"
            if how == "block":
                time.sleep(self._seconds)  # noqa: ASYNC251 (the fault)
            else:
                await asyncio.sleep(self._seconds)
            self._witness.say("fxend", thread=thread, id=key)
            return f"receipt {pay.to}"

        if self._how == "early":
            key = f"{context.message.invocation_id}/pay"
            self._witness.say("fx", thread=thread, id=key, key=key, is_once=True)
        return Paid(receipt=await context.effect("pay", {"to": pay.to}, at_the_bank, effects="once"))


async def main(url: str, folder: str, name: str, *more: str) -> None:
    heartbeat, how, seconds = more
    witness = Witness(Path(folder) / f"{name}.witness", name)
    settings = Settings(within=600, host=name, build="1", heartbeat=float(heartbeat), block_limit=None)
    async with (
        open_ledger(url) as ledger,
        System(cast("Ledger", Witnessed(ledger, witness, how)), settings=settings) as system,
    ):
        system.register("shop", Shop, grace=60, concurrency=1000)
        system.register("bank", lambda: Bank(system, witness, how, float(seconds)), grace=60, concurrency=50)
        os.write(1, b"ready\n")
        try:
            await system.host()
        except asyncio.CancelledError:
            os.write(1, b"ending\n")
            raise


if __name__ == "__main__":
    run(main(*sys.argv[1:]))
