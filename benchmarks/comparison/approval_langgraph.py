"""Approval, with LangGraph: a refund that a person must approve."""

from langchain_core.messages import HumanMessage, SystemMessage, ToolMessage
from langgraph.checkpoint.sqlite.aio import AsyncSqliteSaver
from langgraph.func import task
from langgraph.graph import START, MessagesState, StateGraph
from langgraph.types import Command, interrupt
from scripts_langchain import scripted
from world import FOLDER, INSTRUCTIONS, pay, start, until

CONFIG = {"configurable": {"thread_id": "order-42"}}
model = scripted("small", [("refund", "c1", {"order": 42})], "I have refunded order 42.")


@task
async def refund(order: int, key: str) -> str:
    """Refund an order."""
    return pay(key, f"refund {order}")


async def call_model(state: MessagesState) -> dict:
    return {"messages": [await model.ainvoke([SystemMessage(INSTRUCTIONS), *state["messages"]])]}


async def call_tools(state: MessagesState) -> dict:
    results = []
    for call in state["messages"][-1].tool_calls:
        if interrupt({"tool": call["name"], "arguments": call["args"]}):
            done = await refund(**call["args"], key=f"order-42/{call['id']}")
        else:
            done = "a person said no"
        results.append(ToolMessage(done, tool_call_id=call["id"]))
    return {"messages": results}


builder = StateGraph(MessagesState)
builder.add_node(call_model)
builder.add_node(call_tools)
builder.add_edge(START, "call_model")
builder.add_conditional_edges("call_model", lambda state: "call_tools" if state["messages"][-1].tool_calls else "__end__")
builder.add_edge("call_tools", "call_model")


def opened():
    return AsyncSqliteSaver.from_conn_string(f"{FOLDER}/checkpoints.sqlite")


async def run(given) -> str:
    async with opened() as saver:
        graph = builder.compile(checkpointer=saver)
        has_begun = (await graph.aget_state(CONFIG)).created_at is not None
        first = {"messages": [HumanMessage("Refund order 42.")]}
        result = await graph.ainvoke(given or (None if has_begun else first), CONFIG, durability="sync")
        return "waiting for a person" if "__interrupt__" in result else result["messages"][-1].content


async def ask() -> str:
    return await run(None)


async def pending() -> None:
    async with opened() as saver:
        graph = builder.compile(checkpointer=saver)

        async def interrupts() -> object:
            return (await graph.aget_state(CONFIG)).interrupts

        await until(interrupts)


async def approve() -> str:
    return await run(Command(resume=True))


start(ask=ask, pending=pending, approve=approve)
