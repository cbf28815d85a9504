"""Approval, with Pydantic AI on DBOS: a refund that a person must approve."""

from dbos import DBOS, DBOSClient, SetWorkflowID
from pydantic_ai import Agent, DeferredToolRequests, DeferredToolResults
from pydantic_ai.durable_exec.dbos import DBOSDurability
from scripts_pydantic_ai import scripted
from world import DATABASE, EXECUTOR, INSTRUCTIONS, pay, start, until

DBOS(config={"name": "desk", "system_database_url": DATABASE, "executor_id": EXECUTOR, "log_level": "ERROR"})
agent = Agent(
    scripted("small", [("refund", "c1", {"order": 42})], "I have refunded order 42."),
    name="clerk",
    instructions=INSTRUCTIONS,
    output_type=[str, DeferredToolRequests],
    capabilities=[DBOSDurability()],
)


@agent.tool_plain(requires_approval=True)
@DBOS.step()
async def refund(order: int) -> str:
    """Refund an order."""
    return pay(f"{DBOS.workflow_id}/{DBOS.step_id}", f"refund {order}")


@DBOS.workflow()
async def desk(prompt: str) -> str:
    result = await agent.run(prompt)
    while isinstance(result.output, DeferredToolRequests):
        answers = DeferredToolResults()
        for call in result.output.approvals:
            await DBOS.set_event_async("pending", call.tool_call_id)
            answers.approvals[call.tool_call_id] = await DBOS.recv_async("approval", timeout_seconds=86_400)
        result = await agent.run(message_history=result.all_messages(), deferred_tool_results=answers)
    return result.output


async def ask() -> str:
    DBOS.launch()
    with SetWorkflowID("order-42"):
        return await desk("Refund order 42.")


async def pending() -> None:
    await until(lambda: DBOSClient(system_database_url=DATABASE).get_event_async("order-42", "pending", 1))


async def approve() -> None:
    await DBOSClient(system_database_url=DATABASE).send_async("order-42", True, "approval")


start(ask=ask, pending=pending, approve=approve)
