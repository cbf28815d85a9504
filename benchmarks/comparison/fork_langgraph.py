"""Fork onto another model, with LangGraph: what the small model has found out is answered by the large one."""

from langchain_core.messages import HumanMessage, SystemMessage, ToolMessage
from langgraph.checkpoint.sqlite.aio import AsyncSqliteSaver
from langgraph.func import task
from langgraph.graph import START, MessagesState, StateGraph
from scripts_langchain import scripted
from world import FOLDER, INSTRUCTIONS, pay, start

CONFIG = {"configurable": {"thread_id": "question"}}
MODELS = {
    "small": scripted("small", [("measure", "c1", {"place": "Oslo"})], "Nine."),
    "large": scripted("large", "", "It is nine degrees in Oslo."),
}


class State(MessagesState):
    model: str


@task
async def measure(place: str, key: str) -> str:
    """Measure how warm it is. Each measurement costs money."""
    return pay(key, place)


async def call_model(state: State) -> dict:
    return {"messages": [await MODELS[state["model"]].ainvoke([SystemMessage(INSTRUCTIONS), *state["messages"]])]}


async def call_tools(state: State) -> dict:
    calls = state["messages"][-1].tool_calls
    done = [(await measure(**call["args"], key=f"question/{call['id']}"), call["id"]) for call in calls]
    return {"messages": [ToolMessage(text, tool_call_id=call_id) for text, call_id in done]}


builder = StateGraph(State)
builder.add_node(call_model)
builder.add_node(call_tools)
builder.add_edge(START, "call_model")
builder.add_conditional_edges("call_model", lambda state: "call_tools" if state["messages"][-1].tool_calls else "__end__")
builder.add_edge("call_tools", "call_model")


def opened():
    return AsyncSqliteSaver.from_conn_string(f"{FOLDER}/checkpoints.sqlite")


async def ask() -> str:
    async with opened() as saver:
        graph = builder.compile(checkpointer=saver)
        has_begun = (await graph.aget_state(CONFIG)).created_at is not None
        first = {"messages": [HumanMessage("How warm is it in Oslo?")], "model": "small"}
        result = await graph.ainvoke(None if has_begun else first, CONFIG, durability="sync")
        return result["messages"][-1].content


async def fork() -> str:
    async with opened() as saver:
        graph = builder.compile(checkpointer=saver)
        latest = await graph.aget_state(CONFIG)
        if latest.values["model"] == "small":
            states = [state async for state in graph.aget_state_history(CONFIG)]
            before = next(state for state in states if len(state.values["messages"]) == 3)
            branch = await graph.aupdate_state(before.config, {"model": "large"})
        else:  # it was forked before: the branch is the newest state of the thread
            branch = CONFIG
        result = await graph.ainvoke(None, branch, durability="sync")
        return result["messages"][-1].content


start(ask=ask, fork=fork)
