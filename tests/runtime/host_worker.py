"""A process that hosts threads on a ledger, until it is told to end.

    python host_worker.py LEDGER FOLDER NAME HEARTBEAT HOW SECONDS

It is a host of `antiphon soak`: it says `ready`, hosts all threads of the shop, and writes what it claims, appends and does
to its own witness in the folder. `HOW` is what the effect does for so many seconds: `wait`, or `block` the event loop, in the
first one only. Two more ways are broken builds, which the tests must catch: `unfenced` appends under the epoch that the thread
has, instead of the host's own, and `early` begins the effect before its intent.
"""

import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, cast

from tools.soak.host import Bank, Paid, Pay, WitnessedLedger, run_shop
from tools.soak.witness import Witness

from antiphon.ledger import Ledger, Record, open_ledger
from antiphon.messages import Message
from antiphon.runtime import Context, handles, run


class UnfencedLedger(WitnessedLedger):
    """A broken one: it appends under the epoch that the thread has."""

    async def append_below(
        self, thread_id: str, messages: Sequence[Message], epoch: int | None, **more: Any
    ) -> tuple[Record, ...]:
        current = abs((await self._ledger.head(thread_id)).epoch) if epoch else epoch
        return await super().append_below(thread_id, messages, current, **more)


class BlockingBank(Bank):
    """Its first payment blocks the event loop."""

    has_blocked = False

    async def work(self) -> None:
        if self.has_blocked:
            await super().work()
        else:
            BlockingBank.has_blocked = True
            time.sleep(self.seconds)  # noqa: ASYNC251 (the fault)


class EarlyBank(Bank):
    """A broken one: it pays before the intent is written."""

    @handles
    async def pay(self, pay: Pay, context: Context) -> Paid:
        thread_id, key = context.thread_id or "", f"{context.message.invocation_id}/pay"
        self.witness.say("fx", thread=thread_id, id=key, key=key, is_once=True)

        async def at_the_bank(key: str) -> str:
            await self.work()
            self.witness.say("fxend", thread=thread_id, id=key)
            return f"receipt {pay.to}"

        return Paid(receipt=await context.effect("pay", {"to": pay.to}, at_the_bank, effects="once"))


BANKS = {"block": BlockingBank, "early": EarlyBank}


async def main(url: str, folder: str, name: str, *more: str) -> None:
    heartbeat, how, seconds = more
    witness = Witness(Path(folder) / f"{name}.witness", name)
    make = UnfencedLedger if how == "unfenced" else WitnessedLedger
    async with open_ledger(url) as ledger:
        own = cast("Ledger", make(ledger, witness))
        await run_shop(own, name, float(heartbeat), lambda: BANKS.get(how, Bank)(witness, float(seconds)))


if __name__ == "__main__":
    run(main(*sys.argv[1:]))
