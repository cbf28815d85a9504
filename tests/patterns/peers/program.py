"""A program of peers that is killed: ada asks bob and carl at once, then bob again and dora, who fails; each has its tools.

Before that, ada's memory and the shared memory of carl get messages. At the end ada gets one more, and writes an agent_call.

`pay` must not be done twice, `reserve` may be under the same key, `look` does nothing to the world.
"""

from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any

from pydantic_ai.messages import ModelResponse
from tests.patterns.killed import Witness, serve
from tests.patterns.peers.plays import QUICK, Play, asks, calls, line, spec

from antiphon.agents.toolkit import Toolkit
from antiphon.dialects.marsys import Message
from antiphon.ledger import Ledger
from antiphon.patterns.peers import Peers, star

NEW_YEAR = datetime(2026, 1, 1, tzinfo=UTC)


def kit(witness: Witness) -> Toolkit:
    toolkit = Toolkit()

    @toolkit.tool(effects="once")
    async def pay(to: str) -> str:
        """Pay somebody."""
        await witness.start("pay")
        return f"paid {to}"

    @toolkit.tool(effects="idempotent")
    async def reserve(room: int) -> str:
        """Reserve a room."""
        await witness.start("reserve")
        return f"room {room}"

    @toolkit.tool(effects="none")
    async def look(place: str) -> str:
        """Look somewhere."""
        await witness.start("look")
        return f"nothing {place}"

    return toolkit


def bob(asked: str, given: Sequence[Any]) -> ModelResponse:
    wanted = {"to": "Pia"} if "Pia" in asked else {"to": "Ole"}
    return line(calls(("pay", wanted), ("look", {"place": "around"})))(asked, given)


def dora(asked: str, given: Sequence[Any]) -> ModelResponse:
    raise ValueError("gone")


async def program(ledger: Ledger, witness: Witness) -> str:
    """Have two things done in one thread, by three peers."""

    class Noted(Play):
        async def _play(self, messages: Any, info: Any) -> ModelResponse:
            await witness.start("model")
            return await super()._play(messages, info)

    play = Noted(
        ada=line(
            asks(("bob", "Pay Pia"), ("carl", "Find a room"), ("eve", "Help")), asks(("bob", "Pay Ole"), ("dora", "Help"))
        ),
        bob=bob,
        carl=line(calls(("reserve", {"room": 7}))),
        dora=dora,
    )
    carl = spec("carl", tools=("reserve",), shares=("board",))
    specs = [spec("ada"), spec("bob", tools=("pay", "look")), carl, spec("dora")]
    more: Any = {"topology": star("ada", ["bob", "carl", "dora"]), "toolkit": kit(witness), "patience": QUICK}
    async with Peers(ledger, specs, model=play, **more) as peers:
        await (await peers.memory("ada", "trip")).append(noted("user", "We like trains."), noted("assistant", "So do I."))
        await (await peers.shared("board")).append(noted("user", "Room 7 is quiet."))
        outcome = await peers.run("Arrange it", thread_id="trip")
        memory = await (await peers.memory("ada", "trip")).append(noted("user", "One more comes along."))
        call = Message(
            "agent_call", "One more room", name="carl", message_id="call", metadata={"caller": "ada", "task_id": "t"}
        )
        letter = await peers.invoke(call, thread_id="trip")
        count = len(await peers.letters("trip"))
    added = [each.id for each in memory if each.created_at == NEW_YEAR]
    return f"{outcome.status} {outcome.response} {letter.content} {letter.task_id} {count} {' '.join(added)}"


def noted(role: str, content: str) -> Message:
    """Return a message that is the same in every process."""
    return Message(role, content, message_id=content.lower().replace(" ", "-"), timestamp=NEW_YEAR)


if __name__ == "__main__":
    serve(program)
