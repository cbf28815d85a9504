"""A process that runs threads on a ledger in a file, and can be told where to be killed.

    python worker.py LEDGER WITNESS [PLACE]

A place is `before NAME` or `after NAME`: the process kills itself right before or after the append of the first row with that
option that it writes; or `in pay`, in the middle of the effect. What it does to the world it writes to the witness itself.
"""

import asyncio
import os
import signal
import sys
from collections.abc import Sequence
from typing import Any, cast

from antiphon.ledger import Ledger, Record, open_ledger
from antiphon.messages import Message, OptionCallPayload, OptionResultPayload
from antiphon.protocol import Reply, Request
from antiphon.runtime import Actor, Context, Settings, System, handles

THREADS = 4


class Paid(Reply, frozen=True, type="WORKER_PAID"):
    receipt: str


class Pay(Request[Paid], frozen=True, type="WORKER_PAY"):
    to: str


class Ordered(Reply, frozen=True, type="WORKER_ORDERED"):
    receipt: str


class Order(Request[Ordered], frozen=True, type="WORKER_ORDER"):
    what: str


def kill() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


class Killing:
    """A ledger that has its process killed at a place."""

    def __init__(self, ledger: Ledger, place: str) -> None:
        self._ledger = ledger
        self._place = place

    def __getattr__(self, name: str) -> Any:
        return getattr(self._ledger, name)

    async def append(self, thread_id: str, messages: Sequence[Message], **more: Any) -> tuple[Record, ...]:
        names = {_name(message) for message in messages}
        if self._place in {f"before {name}" for name in names}:
            kill()
        records = await self._ledger.append(thread_id, messages, **more)
        if self._place in {f"after {name}" for name in names}:
            kill()
        return records


def _name(message: Message) -> str:
    match message.payload:
        case OptionCallPayload(option_name=name):
            return name
        case OptionResultPayload(option_name=name):
            return f"={name}"
        case _:
            return ""


class Shop(Actor):
    @handles
    async def order(self, order: Order, context: Context) -> Ordered:
        paid = await context.ask("bank/1", Pay(to=order.what), within=600)
        return Ordered(receipt=paid.receipt)


class Bank(Actor):
    witness = ""
    place = ""

    @handles
    async def pay(self, pay: Pay, context: Context) -> Paid:
        async def run(key: str) -> str:
            note(self.witness, f"fx {key}")
            if self.place == "in pay":
                kill()
            await asyncio.sleep(0.01)
            note(self.witness, f"fxend {key}")
            return f"receipt {pay.to}"

        return Paid(receipt=await context.effect("pay", {"to": pay.to}, run))


def note(path: str, line: str) -> None:
    descriptor = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    os.write(descriptor, f"{line}\n".encode())
    os.fsync(descriptor)
    os.close(descriptor)


async def main(path: str, witness: str, place: str = "") -> None:
    Bank.witness, Bank.place = witness, place
    async with (
        open_ledger(f"sqlite:///{path}") as ledger,
        System(cast("Ledger", Killing(ledger, place)), settings=Settings(within=600)) as system,
    ):
        system.register("shop", Shop)
        system.register("bank", Bank)
        await system.recover()
        await asyncio.gather(*(_order(system, witness, number) for number in range(THREADS)), return_exceptions=True)


async def _order(system: System, witness: str, number: int) -> None:
    ordered = await system.ask("shop/1", Order(what=f"book {number}"), thread_id=f"t{number}", id=f"m{number}")
    note(witness, f"ok m{number} {ordered.receipt}")


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
