"""An agent in the handler of an actor: what it does is part of the handling, and survives the actor. G7, G9."""

import asyncio
from typing import ClassVar

import pytest
from pydantic_ai import Agent
from tests.agents.durability.agents import Desk, call, clerk, script

from antiphon.durable import ledger_run
from antiphon.errors import ParkedError
from antiphon.ledger.memory import MemoryLedger
from antiphon.protocol import Reply, Request
from antiphon.runtime import Actor, Context, Supervision, System, handles


class Served(Reply, frozen=True, type="DURABLE_SERVED"):
    words: str


class Serve(Request[Served], frozen=True, type="DURABLE_SERVE"):
    what: str


class Waiter(Actor):
    agents: ClassVar[dict[str, Agent[None, str]]] = {}
    fails: ClassVar[set[str]] = set()

    @handles
    async def serve(self, serve: Serve, context: Context) -> Served:
        async with ledger_run(context):
            words = str((await self.agents["waiter"].run(serve.what)).output)
        if serve.what in self.fails:
            self.fails.discard(serve.what)
            raise OSError("dropped the tray")
        return Served(words=words)


@pytest.mark.slow
async def test_a_handler_that_runs_again_gets_what_its_agent_has_done() -> None:
    ledger, desk = MemoryLedger(), Desk()
    Waiter.agents["waiter"] = clerk(ledger, desk, script(desk, [call("refund", "c1", amount=5)], ["done"]))
    Waiter.fails.add("soup")
    async with System(ledger) as system:
        team = system.supervise("team/1", Supervision(intensity=5))
        system.spawn("waiter/1", Waiter, supervisor=team)
        assert (await system.ask("waiter/1", Serve(what="soup"), thread_id="t", id="m1")).words == "done"
    assert desk.taken() == ["model 0", "refund 5", "model 1"]
    assert desk.keys["refund 5"] == "m1/clerk/refund:c1"
    assert not await ledger.open_calls("t")


@pytest.mark.slow
async def test_a_call_that_was_cut_off_parks_the_message() -> None:
    ledger, desk = MemoryLedger(), Desk()
    agent = Waiter.agents["waiter"] = clerk(ledger, desk, script(desk, [call("hang", "c1")], ["done"]))
    begun = asyncio.Event()

    @agent.tool_plain
    async def hang() -> str:
        begun.set()
        await asyncio.Event().wait()
        return "never"

    async with System(ledger) as system:
        system.spawn("waiter/1", Waiter)
        asked = asyncio.create_task(system.ask("waiter/1", Serve(what="soup"), thread_id="t", id="m1", within=60))
        await begun.wait()
        asked.cancel()
        await asyncio.gather(asked, return_exceptions=True)
    async with System(ledger) as system:
        (parked,) = await system.parked()
        assert parked.invocation_id == "m1/clerk/hang:c1"
        await system.settle("t", parked.invocation_id, result="it came out of the oven")


async def test_a_message_of_no_thread_cannot_be_durable() -> None:
    ledger, desk = MemoryLedger(), Desk()
    Waiter.agents["waiter"] = clerk(ledger, desk, script(desk, ["done"]))
    async with System(ledger) as system:
        system.spawn("waiter/1", Waiter)
        with pytest.raises(Exception, match="waiter/1") as caught:
            await system.ask("waiter/1", Serve(what="soup"))
    assert not isinstance(caught.value, ParkedError)
    assert desk.taken() == []


@pytest.mark.slow
async def test_an_agent_that_runs_in_two_blocks_of_a_handler_has_two_runs_and_each_is_found_again() -> None:
    """G9: else the second would have the ids of the first, and its request would be paid for and not recorded."""
    ledger, desk = MemoryLedger(), Desk()

    class Twice(Actor):
        @handles
        async def serve(self, serve: Serve, context: Context) -> Served:
            words: list[str] = []
            for dish in ("soup", "cake"):
                agent = clerk(ledger, desk, script(desk, [call("refund", "c1", amount=len(words))], [f"{dish} served"]))
                async with ledger_run(context):
                    words.append((await agent.run(dish)).output)
            if context.attempt == 1:
                raise OSError("dropped the tray")
            return Served(words=", ".join(words))

    async with System(ledger) as system:
        system.register("waiter", Twice)
        answer = await system.ask("waiter/1", Serve(what="all"), thread_id="t", id="m1")
    assert answer.words == "soup served, cake served"
    assert desk.taken() == ["model 0", "refund 0", "model 1", "model 0", "refund 1", "model 1"]
    assert not await ledger.open_calls("t")
