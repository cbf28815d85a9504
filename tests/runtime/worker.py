"""Processes that run threads on a ledger in a file, and can be told where to be killed.

    python worker.py

For each line of stdin, `LEDGER<tab>WITNESS<tab>PLACE`, a process is forked: so a test can have many, each a real one, and what
takes long is imported once. Stdout says `pid N`, `busy` when an effect has begun, `ending` when the process was told to end,
`stopped` when it was stopped by a signal, and `ended N` with its exit code: 3, if another process has taken a thread over.
What a process does to the world it writes to the witness itself.

A place is `before NAME` or `after NAME`: the process kills itself right before or after the append of the first row with that
option that it writes; `in pay`, in the middle of the effect; `slow N`, the effect takes so many seconds; or `greedy PATH`, the
effect takes all the memory that the cgroup at that path lets it have.

After `idempotent `, there is one thread, its effect may be done twice, and the process ends within 30 s whatever happens.
There, a place is also `stop`: the process stops itself when it has looked up an effect that another has begun, right before
it would start it. `stop ask` does not recover, but asks at once.
"""

import asyncio
import gc
import inspect
import os
import signal
import sys
import traceback
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any, cast

from antiphon.errors import FencedError
from antiphon.ledger import Ledger, Record, open_ledger
from antiphon.messages import Message, OptionCallPayload, OptionResultPayload
from antiphon.protocol import Reply, Request
from antiphon.runtime import Actor, Context, Effects, Settings, System, handles, run

THREADS = 4
FENCED = 3
"""The exit code of a process that has lost a thread."""


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
        self._at_work = 0
        """Calls of the ledger that have not returned."""

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._ledger, name)
        return partial(self._do, found) if inspect.iscoroutinefunction(found) else found

    async def _do(self, call: Callable[..., Awaitable[Any]], *given: Any, **more: Any) -> Any:
        self._at_work += 1
        try:
            return await call(*given, **more)
        finally:
            self._at_work -= 1

    async def find(self, **names: Any) -> tuple[Record, ...]:
        records = await self._ledger.find(**names)
        if self._place.startswith("stop") and [_name(record.message) for record in records] == ["pay"]:
            while self._at_work:  # noqa: ASYNC110 (a process that is stopped in a transaction keeps the file locked)
                await asyncio.sleep(0.001)
            os.kill(os.getpid(), signal.SIGSTOP)
        return records

    async def append(self, thread_id: str, messages: Sequence[Message], **more: Any) -> tuple[Record, ...]:
        names = {_name(message) for message in messages}
        if self._place in {f"before {name}" for name in names}:
            kill()
        records: tuple[Record, ...] = await self._do(self._ledger.append, thread_id, messages, **more)
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
    effects: Effects = "once"

    @handles
    async def pay(self, pay: Pay, context: Context) -> Paid:
        async def at_the_bank(key: str) -> str:
            note(self.witness, f"fx {key}")
            say("busy")
            await _take_time(self.place)
            note(self.witness, f"fxend {key}")
            return f"receipt {pay.to}"

        return Paid(receipt=await context.effect("pay", {"to": pay.to}, at_the_bank, effects=self.effects))


async def _take_time(place: str) -> None:
    how, _, rest = place.partition(" ")
    if place == "in pay":
        kill()
    hoard: list[bytes] = []
    while how == "greedy":
        hoard.append(b"x" * 2**20)
    await asyncio.sleep(float(rest) if how == "slow" else 0.01)


def note(path: str, line: str) -> None:
    descriptor = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    os.write(descriptor, f"{line}\n".encode())
    os.fsync(descriptor)
    os.close(descriptor)


async def main(path: str, witness: str, place: str = "") -> None:
    threads = THREADS
    if place.startswith("idempotent"):
        threads, Bank.effects = 1, "idempotent"
        place = place.removeprefix("idempotent").strip()
        signal.alarm(30)
    Bank.witness, Bank.place = witness, place
    async with (
        open_ledger(f"sqlite:///{path}") as ledger,
        System(cast("Ledger", Killing(ledger, place)), settings=Settings(within=600)) as system,
    ):
        system.register("shop", Shop, grace=60)
        system.register("bank", Bank, grace=60)
        if place != "stop ask":
            await system.recover()
        orders = asyncio.gather(*(_order(system, witness, number) for number in range(threads)), return_exceptions=True)
        try:
            outcomes = await orders
        except asyncio.CancelledError:
            say("ending")
            raise
    for outcome in outcomes:
        if isinstance(outcome, FencedError):
            raise outcome


async def _order(system: System, witness: str, number: int) -> None:
    ordered = await system.ask("shop/1", Order(what=f"book {number}"), thread_id=f"t{number}", id=f"m{number}")
    note(witness, f"ok m{number} {ordered.receipt}")


def say(words: str) -> None:
    os.write(1, f"{words}\n".encode())


def serve(live: Callable[..., int]) -> None:
    """Fork a process for each line, have it live, and wait for it. What is imported and made before is made once for all."""
    gc.collect()
    gc.freeze()  # otherwise each process would look through all of it, and copy it
    for line in sys.stdin:
        child = os.fork()
        if child == 0:
            os._exit(live(*line.rstrip("\n").split("\t")))
        say(f"pid {child}")
        _, status = os.waitpid(child, os.WUNTRACED)
        while os.WIFSTOPPED(status):
            say("stopped")
            _, status = os.waitpid(child, os.WUNTRACED)
        say(f"ended {os.waitstatus_to_exitcode(status)}")


def live(path: str, witness: str, place: str) -> int:
    """Be the process, and return its exit code."""
    code: Any = 0
    try:
        if place.startswith("greedy "):
            Path(place.partition(" ")[2], "cgroup.procs").write_text(str(os.getpid()))
        run(main(path, witness, place))
    except SystemExit as exc:
        code = exc.code
    except FencedError:
        code = FENCED
    except BaseException:  # noqa: BLE001 (the test prints it)
        traceback.print_exc()
        code = 1
    return int(code)


if __name__ == "__main__":
    serve(live)
