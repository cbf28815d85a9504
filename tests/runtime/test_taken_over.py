"""What a system does that was thought dead, while another one has its threads (G7, G8)."""

import asyncio
from contextlib import suppress

import pytest
from tests.runtime.actors import Note, Ping, Pong, virtually

from antiphon.errors import DeliveryError, LedgerError
from antiphon.ledger.memory import MemoryLedger
from antiphon.runtime import Actor, Context, System, _journal, handles


@pytest.mark.parametrize("notices", [True, False])
def test_what_the_new_owner_has_begun_is_not_begun_again_by_the_old_one(
    notices: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """G7: also where the old one takes the thread back: its handler goes on after it was refused, or it forgot the thread."""
    monkeypatch.setattr(_journal, "_MOST", 1)
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
                if notices:
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
            if not notices:
                for name in ("other", "another"):
                    await old.tell("clerk/2", Note(text="hello"), thread_id=name)
            taken.set()
            with suppress(DeliveryError, LedgerError):
                await asking
            await asyncio.sleep(5)
        assert started == ["new"]

    virtually(main())
