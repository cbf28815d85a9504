"""A program of peers that is killed: ada asks bob and carl at once, then bob again and dora, who fails; each has its tools.

`pay` must not be done twice, `reserve` may be under the same key, `look` does nothing to the world.
"""

from collections.abc import Sequence
from typing import Any

from pydantic_ai.messages import ModelResponse
from tests.patterns.killed import Witness, serve
from tests.patterns.peers.plays import QUICK, Play, asks, calls, line, spec

from antiphon.agents import Toolkit
from antiphon.ledger import Ledger
from antiphon.patterns.peers import Peers, star


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
    raise ConnectionError("gone")


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
    specs = [spec("ada"), spec("bob", tools=("pay", "look")), spec("carl", tools=("reserve",)), spec("dora")]
    more: Any = {"topology": star("ada", ["bob", "carl", "dora"]), "toolkit": kit(witness), "patience": QUICK}
    async with Peers(ledger, specs, model=play, **more) as peers:
        outcome = await peers.run("Arrange it", thread_id="trip")
        letter = await peers.invoke("carl", "One more room", caller="ada", thread_id="trip")
        count = len(await peers.letters("trip"))
    return f"{outcome.status} {outcome.response} {letter.content} {count}"


if __name__ == "__main__":
    serve(program)
