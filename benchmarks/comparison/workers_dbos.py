"""Supervisor and workers, with Pydantic AI on DBOS: each worker is a child workflow, at the same time as the others."""

from dbos import DBOS, SetWorkflowID
from pydantic_ai import Agent
from pydantic_ai.durable_exec.dbos import DBOSDurability
from scripts_pydantic_ai import scripted
from world import DATABASE, EXECUTOR, INSTRUCTIONS, pay, start

DBOS(config={"name": "teas", "system_database_url": DATABASE, "executor_id": EXECUTOR, "log_level": "ERROR"})
worker = Agent(
    scripted("small", lambda tea: [("buy", f"buy-{tea}", {"tea": tea})], lambda told: f"{told}."),
    name="worker",
    instructions=INSTRUCTIONS,
    capabilities=[DBOSDurability()],
)
supervisor = Agent(
    scripted("small", [("delegate", tea, {"tea": tea}) for tea in ("green", "black", "white")], "We have all three."),
    name="supervisor",
    instructions=INSTRUCTIONS,
    capabilities=[DBOSDurability()],
)


@worker.tool_plain
@DBOS.step()
async def buy(tea: str) -> str:
    """Buy a tea."""
    return pay(f"{DBOS.workflow_id}/{DBOS.step_id}", tea)


@DBOS.workflow()
async def work(tea: str) -> str:
    return (await worker.run(tea)).output


@supervisor.tool_plain
async def delegate(tea: str) -> str:
    """Have a worker buy a tea."""
    return await (await DBOS.start_workflow_async(work, tea)).get_result()


@DBOS.workflow()
async def teas(prompt: str) -> str:
    return (await supervisor.run(prompt)).output


async def ask() -> str:
    DBOS.launch()
    with SetWorkflowID("teas"):
        return await teas("Buy three teas.")


start(ask=ask)
