"""Weather: an agent asks two services, one after the other, for two cities at the same time.

python examples/durable/weather.py [ledger.db]
"""

from typing import Any

from outside import LOOKS, Outside, call, scripted, start
from pydantic_ai import Agent
from pydantic_ai.usage import RunUsage

from antiphon.agents import LedgerDurability
from antiphon.durable import ledger_run
from antiphon.ledger import Ledger

INSTRUCTIONS = "Be concise, reply with one sentence."
PLACES = {"London": (51.5, -0.1), "Oslo": (59.9, 10.7)}
MODEL = scripted(
    [call("locate", "l1", city="London"), call("locate", "l2", city="Oslo")],
    [call("weather", "w1", lat=51.5, lon=-0.1), call("weather", "w2", lat=59.9, lon=10.7)],
    ["It is 21 degrees in London, and 9 in Oslo."],
)


def make_agent(ledger: Ledger, instructions: str) -> Agent[object, str]:
    agent = Agent(MODEL, name="weather", instructions=instructions, capabilities=[LedgerDurability[object](ledger)])

    @agent.tool_plain(metadata=LOOKS)
    async def locate(city: str) -> dict[str, float]:
        """Find the place of a city."""
        lat, lon = PLACES[city]
        return {"lat": lat, "lon": lon}

    @agent.tool_plain(metadata=LOOKS)
    async def weather(lat: float, lon: float) -> str:
        """Look up the weather of a place."""
        return "21 degrees, sunny" if lat < 55 else "9 degrees, rain"  # noqa: PLR2004 (the north is cold)

    return agent


async def main(ledger: Ledger, outside: Outside, instructions: str = INSTRUCTIONS, **options: Any) -> tuple[object, RunUsage]:
    async with ledger_run("weather", ledger=ledger, **options):
        result = await make_agent(ledger, instructions).run("What is the weather like in London and in Oslo?")
    return result.output, result.usage


if __name__ == "__main__":
    start(main)
