"""Supervisor and workers, with antiphon: each worker buys something, at the same time as the others."""

from pydantic_ai import Agent, RunContext
from scripts_pydantic_ai import scripted
from world import FOLDER, INSTRUCTIONS, ON_CHANGE, is_paid, pay, start

from antiphon import open_ledger
from antiphon.agents import LedgerDurability
from antiphon.durable import current_effect, ledger_run
from antiphon.service import list_parked, settle_call

LEDGER = f"sqlite:///{FOLDER}/ledger.db"
READS = {"antiphon": {"effects": "none"}}
worker = Agent(
    scripted("small", lambda tea: [("buy", f"buy-{tea}", {"tea": tea})], lambda told: f"{told}."),
    name="worker",
    instructions=INSTRUCTIONS,
    capabilities=[LedgerDurability(LEDGER)],
)
supervisor = Agent(
    scripted("small", [("delegate", tea, {"tea": tea}) for tea in ("green", "black", "white")], "We have all three."),
    name="supervisor",
    instructions=INSTRUCTIONS,
    capabilities=[LedgerDurability(LEDGER)],
)


@worker.tool_plain
async def buy(tea: str) -> str:
    """Buy a tea."""
    return pay(current_effect().key, tea)


@supervisor.tool(metadata=READS)  # it only runs an agent, whose steps are recorded on their own
async def delegate(ctx: RunContext, tea: str) -> str:
    """Have a worker buy a tea."""
    return (await worker.run(tea, usage=ctx.usage)).output


async def ask() -> str:
    async with ledger_run("teas", ledger=LEDGER, on_change=ON_CHANGE):
        return (await supervisor.run("Buy three teas.")).output


async def settle() -> None:  # `antiphon settle`: a person asks the bank what it has done
    async with open_ledger(LEDGER) as ledger:
        for parked in await list_parked(ledger):
            found = {"result": "it is done"} if is_paid(parked.invocation_id) else {"retry": True}
            await settle_call(ledger, parked.thread_id, parked.invocation_id, **found)


start(ask=ask, settle=settle)
