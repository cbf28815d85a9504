"""A process that runs a thread with telemetry, and is killed in the middle if it is told so.

    python worker.py LEDGER ENDPOINT [die]

The shop asks the bank, which books once; then the shop dies, or fails once and goes on.
"""

import asyncio
import os
import signal
import sys

from opentelemetry.sdk.trace import TracerProvider

from antiphon.ledger import open_ledger
from antiphon.protocol import Reply, Request
from antiphon.runtime import Actor, Context, System, ToolOperation, describe, handles
from antiphon.telemetry import Telemetry, configure

SECRET = "the walrus was Paul"


class Paid(Reply, frozen=True, type="OTLP_PAID"):
    receipt: str


class Pay(Request[Paid], frozen=True, type="OTLP_PAY"):
    to: str


class Ordered(Reply, frozen=True, type="OTLP_ORDERED"):
    receipt: str


class Order(Request[Ordered], frozen=True, type="OTLP_ORDER"):
    what: str


class Bank(Actor):
    @handles
    async def pay(self, pay: Pay, context: Context) -> Paid:
        async def book(key: str) -> str:
            describe(ToolOperation("book", arguments={"to": pay.to}))
            return f"receipt for {pay.to}"

        return Paid(receipt=await context.effect("book", {"to": pay.to}, book))


class Shop(Actor):
    telemetry: Telemetry
    must_die = False
    has_failed = False

    @handles
    async def order(self, order: Order, context: Context) -> Ordered:
        paid = await context.ask("bank/1", Pay(to=order.what))
        if type(self).must_die:
            tracers = self.telemetry._tracers
            assert isinstance(tracers, TracerProvider)
            await asyncio.to_thread(tracers.force_flush)
            os.kill(os.getpid(), signal.SIGKILL)
        if not type(self).has_failed:
            type(self).has_failed = True
            raise ValueError(f"cannot wrap {order.what}")
        return Ordered(receipt=paid.receipt)


async def main(ledger_path: str, telemetry: Telemetry) -> None:
    async with open_ledger(f"sqlite:///{ledger_path}") as ledger, System(ledger, observer=telemetry) as system:
        system.register("shop", Shop)
        system.register("bank", Bank)
        await system.recover()
        answer = await system.ask("shop/1", Order(what=SECRET), thread_id="order-42", id="m1")
        assert answer.receipt == f"receipt for {SECRET}"


if __name__ == "__main__":
    Shop.must_die = sys.argv[3:] == ["die"]
    with configure(sys.argv[2], service_name="shop") as Shop.telemetry:
        asyncio.run(main(sys.argv[1], Shop.telemetry))
