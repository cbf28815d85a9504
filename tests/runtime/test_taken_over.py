"""What a system does that was thought dead, while another one has its threads (G7, G8)."""

import asyncio
from contextlib import suppress

from tests.runtime.actors import Note, Ping, Pong, virtually

from antiphon.errors import DeliveryError, LedgerError
from antiphon.ledger.memory import MemoryLedger
from antiphon.runtime import Actor, Context, System, handles


def test_what_the_new_owner_has_begun_is_not_begun_again_by_the_old_one() -> None:
    """G7: also where the old one takes the thread back, because its handler goes on after it was refused."""
    started: list[str] = []
    paused, taken, begun = asyncio.Event(), asyncio.Event(), asyncio.Event()

    class Clerk(Actor):
        def __init__(self, name: str) -> None:
            self._name = name

        @handles
        async def ping(self, ping: Ping, context: Context) -> Pong:
            if self._name == "old":
                paused.set()
                await taken.wait()
                with suppress(LedgerError):
                    await context.tell(context.address, Note(text="still here"))

            async def pay(key: str) -> str:
                started.append(self._name)
                begun.set()
                await asyncio.sleep(1)
                return "paid"

            return Pong(text=await context.effect("pay", {}, pay, effects="once"))

        @handles
        async def note(self, note: Note, context: Context) -> None:
            pass

    async def main() -> None:
        ledger = MemoryLedger()
        async with System(ledger) as old, System(ledger) as new:
            old.register("clerk", lambda: Clerk("old"))
            new.register("clerk", lambda: Clerk("new"))
            asking = asyncio.ensure_future(old.ask("clerk/1", Ping(text="x"), thread_id="t", id="p"))
            await paused.wait()
            await new.recover()
            await begun.wait()
            taken.set()
            with suppress(DeliveryError, LedgerError):
                await asking
            await asyncio.sleep(5)
        assert started == ["new"]

    virtually(main())
