"""Supervisor and workers, with LangGraph: each worker is a branch of the graph (`Send`), at the same time as the others."""

from langchain_core.messages import AnyMessage, HumanMessage, SystemMessage, ToolMessage
from langgraph.checkpoint.sqlite.aio import AsyncSqliteSaver
from langgraph.func import task
from langgraph.graph import END, START, MessagesState, StateGraph
from langgraph.types import Send
from scripts_langchain import scripted
from typing_extensions import TypedDict
from world import FOLDER, INSTRUCTIONS, pay, start

CONFIG = {"configurable": {"thread_id": "teas"}}
plan = scripted("small", [("delegate", tea, {"tea": tea}) for tea in ("green", "black", "white")], "We have all three.")
talk = scripted("small", lambda tea: [("buy", f"buy-{tea}", {"tea": tea})], lambda told: f"{told}.")


@task
async def buy(tea: str, key: str) -> str:
    """Buy a tea."""
    return pay(key, tea)


@task
async def think(messages: list[AnyMessage]) -> AnyMessage:
    return await talk.ainvoke([SystemMessage(INSTRUCTIONS), *messages])


class Work(TypedDict):
    call: dict


async def supervisor(state: MessagesState) -> dict:
    return {"messages": [await plan.ainvoke([SystemMessage(INSTRUCTIONS), *state["messages"]])]}


async def worker(state: Work) -> dict:
    call = state["call"]
    messages: list[AnyMessage] = [HumanMessage(call["args"]["tea"])]
    while (said := await think(messages)).tool_calls:
        messages.append(said)
        for each in said.tool_calls:
            done = await buy(**each["args"], key=f"teas/{each['id']}")
            messages.append(ToolMessage(done, tool_call_id=each["id"]))
    return {"messages": [ToolMessage(said.content, tool_call_id=call["id"])]}


def delegate(state: MessagesState):
    return [Send("worker", {"call": call}) for call in state["messages"][-1].tool_calls] or END


builder = StateGraph(MessagesState)
builder.add_node(supervisor)
builder.add_node(worker)
builder.add_edge(START, "supervisor")
builder.add_conditional_edges("supervisor", delegate, ["worker", END])
builder.add_edge("worker", "supervisor")


async def ask() -> str:
    async with AsyncSqliteSaver.from_conn_string(f"{FOLDER}/checkpoints.sqlite") as saver:
        graph = builder.compile(checkpointer=saver)
        has_begun = (await graph.aget_state(CONFIG)).created_at is not None
        first = {"messages": [HumanMessage("Buy three teas.")]}
        result = await graph.ainvoke(None if has_begun else first, CONFIG, durability="sync")
        return result["messages"][-1].content


start(ask=ask)
