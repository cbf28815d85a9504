"""Fork onto another model, with Pydantic AI on DBOS: what the small model has found out is answered by the large one."""

from contextlib import suppress

from dbos import DBOS, SetWorkflowID
from pydantic_ai import Agent
from pydantic_ai.durable_exec.dbos import DBOSDurability
from scripts_pydantic_ai import scripted
from sqlalchemy.exc import IntegrityError
from world import DATABASE, EXECUTOR, INSTRUCTIONS, ROLE, pay, start

DBOS(config={"name": "desk", "system_database_url": DATABASE, "executor_id": EXECUTOR, "log_level": "ERROR"})
small = scripted("small", [("measure", "c1", {"place": "Oslo"})], "Nine.")
large = scripted("large", "", "It is nine degrees in Oslo.")
# A fork has the inputs of its original, so the other model is chosen by the program that forks.
agent = Agent(large if ROLE == "fork" else small, name="clerk", instructions=INSTRUCTIONS, capabilities=[DBOSDurability()])


@agent.tool_plain
@DBOS.step()
async def measure(place: str) -> str:
    """Measure how warm it is. Each measurement costs money."""
    return pay(f"{DBOS.workflow_id}/{DBOS.step_id}", place)


@DBOS.workflow()
async def desk(prompt: str) -> str:
    return (await agent.run(prompt)).output


async def ask() -> str:
    DBOS.launch()
    with SetWorkflowID("question"):
        return await desk("How warm is it in Oslo?")


async def fork() -> str:
    DBOS.launch()
    steps = await DBOS.list_workflow_steps_async("question")
    last = max(step["function_id"] for step in steps if step["function_name"].endswith("model.request"))
    with suppress(IntegrityError), SetWorkflowID("question-large"):  # it was forked before
        await DBOS.fork_workflow_async("question", last)
    return await (await DBOS.retrieve_workflow_async("question-large")).get_result()


start(ask=ask, fork=fork)
