"""Flight booking: one agent finds a flight, another reads the page for it, a third finds the seat; then it is booked.

python examples/durable/flight_booking.py [ledger.db]
"""

from typing import Any

from outside import LOOKS, Outside, call, scripted, start
from pydantic import BaseModel
from pydantic_ai import Agent, ModelRetry, RunContext
from pydantic_ai.usage import RunUsage, UsageLimits

from antiphon.agents import LedgerDurability
from antiphon.durable import ledger_run
from antiphon.ledger import Ledger
from antiphon.messages import Json

INSTRUCTIONS = "Find the cheapest flight for the user on the given day."
LIMITS = UsageLimits(request_limit=10)


class Flight(BaseModel):
    number: str
    price: int
    origin: str


class Seat(BaseModel):
    row: int
    letter: str


EXTRACTED = [{"number": "SFO-AK123", "price": 350, "origin": "SFO"}, {"number": "SFO-AK456", "price": 370, "origin": "SFO"}]


def make_search(ledger: Ledger, instructions: str) -> Agent[str, Flight]:
    extraction = Agent(
        scripted([call("final_result", "x1", response=EXTRACTED)]),
        name="extraction",
        output_type=list[Flight],
        capabilities=[LedgerDurability[object](ledger)],
    )
    model = scripted(
        [call("extract_flights", "s1")],
        [call("final_result", "s2", number="SFO-AK456", price=370, origin="LAX")],
        [call("final_result", "s3", number="SFO-AK123", price=350, origin="SFO")],
    )
    search = Agent(
        model,
        name="search",
        deps_type=str,
        output_type=Flight,
        instructions=instructions,
        retries=3,
        capabilities=[LedgerDurability[str](ledger)],
    )

    @search.tool(metadata=LOOKS)
    async def extract_flights(ctx: RunContext[str]) -> list[Flight]:
        """Get the flights of the page."""
        return (await extraction.run(f"From {ctx.deps}: 350 and 370 dollars.", usage=ctx.usage)).output

    @search.output_validator
    async def check(ctx: RunContext[str], flight: Flight) -> Flight:
        if flight.origin != ctx.deps:
            raise ModelRetry(f"The flight must begin in {ctx.deps}.")
        return flight

    return search


async def main(ledger: Ledger, outside: Outside, instructions: str = INSTRUCTIONS, **options: Any) -> tuple[object, RunUsage]:
    usage = RunUsage()
    seats = Agent(
        scripted([call("final_result", "p1", row=1, letter="A")]),
        name="seats",
        output_type=Seat,
        capabilities=[LedgerDurability[object](ledger)],
    )
    async with ledger_run("trip", ledger=ledger, **options) as run:
        found = await make_search(ledger, instructions).run("To ANC.", deps="SFO", usage=usage, usage_limits=LIMITS)
        seat = await seats.run("The front, at the window.", usage=usage, usage_limits=LIMITS)

        async def book(key: str) -> Json:
            return outside.do(f"book {found.output.number}", "booked")

        booked = await run.effect("book", {"flight": found.output.number}, book, effects="idempotent")
    return f"{found.output.number} in seat {seat.output.row}{seat.output.letter}: {booked}", usage


if __name__ == "__main__":
    start(main)
