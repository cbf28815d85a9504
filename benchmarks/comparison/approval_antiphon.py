"""Approval, with antiphon: a refund that a person must approve."""

from pydantic_ai import Agent
from scripts_pydantic_ai import scripted
from world import FOLDER, INSTRUCTIONS, ON_CHANGE, is_paid, pay, start, until

from antiphon import open_ledger
from antiphon.agents import LedgerDurability
from antiphon.agents.toolkit import Toolkit, answer, pending_approvals
from antiphon.durable import current_effect, ledger_run
from antiphon.service import list_parked, settle_call

LEDGER = f"sqlite:///{FOLDER}/ledger.db"
toolkit = Toolkit(approvers=["ada"], approval_wait=None)
agent = Agent(
    scripted("small", [("refund", "c1", {"order": 42})], "I have refunded order 42."),
    name="clerk",
    instructions=INSTRUCTIONS,
    capabilities=[LedgerDurability(LEDGER), toolkit.capability("clerk")],
)


@toolkit.tool(approval=True, to=["clerk"])
async def refund(order: int) -> str:
    """Refund an order."""
    return pay(current_effect().key, f"refund {order}")


async def ask() -> str:
    async with ledger_run("order-42", ledger=LEDGER, on_change=ON_CHANGE):
        return (await agent.run("Refund order 42.")).output


async def pending() -> None:
    async with open_ledger(LEDGER) as ledger:
        await until(lambda: pending_approvals(ledger))


async def approve() -> None:
    async with open_ledger(LEDGER) as ledger:
        for approval in await pending_approvals(ledger):
            await answer(ledger, approval.id, principal="ada", approved=True)


async def settle() -> None:  # `antiphon settle`: a person asks the bank what it has done
    async with open_ledger(LEDGER) as ledger:
        for parked in await list_parked(ledger):
            found = {"result": "it is done"} if is_paid(parked.invocation_id) else {"retry": True}
            await settle_call(ledger, parked.thread_id, parked.invocation_id, **found)


start(ask=ask, pending=pending, approve=approve, settle=settle)
