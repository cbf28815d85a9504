"""The four ways in which a user, a controller and workers talk to each other, each judged by its flow. Needs no network.

`python examples/four_flows.py` goes by a script; `python examples/four_flows.py local` asks a small language model.
"""

import asyncio
import sys
from collections.abc import Awaitable, Callable

from pydantic_ai.models import Model

from antiphon.agents.models import Call, Rule, Script, ScriptedModel, Turn, model
from antiphon.dialects.atlas import StructuredMessage
from antiphon.ledger import Ledger
from antiphon.ledger.memory import MemoryLedger
from antiphon.patterns.cast import AgentSpec
from antiphon.patterns.workers import Assigner, Workers, conversation
from antiphon.protocol.flows import Verdict, find_flow

SCRIPT = Script(
    rules=(
        Rule(
            when=r"(?:words.*:|count) (?P<text>.+)",
            tools=("count_words",),
            turns=(Turn(calls=(Call(tool="count_words", arguments={"text": "{text}"}),)), Turn(text="It has {result} words.")),
        ),
        Rule(turns=(Turn(text="I was told: {text}"),)),
    )
)


def count_words(text: str) -> int:
    """Count the words of a text."""
    return len(text.split())


async def policy(query: StructuredMessage, assigner: Assigner) -> str:
    """Give a task to one worker; if the query says so, another goes on with the result."""
    route = ["editor"] if "edit" in query.content else []
    result = await assigner.assign("counter", f"count {query.content}", route=route)
    return f"{result.source_agent} says: {result.content}"


def workers(ledger: Ledger, mind: Model | None = None) -> Workers:
    """Return the team: a controller that goes by a policy, one who counts and one who edits."""
    team = [
        AgentSpec(name="counter", instructions="You count.", tools=("count_words",), max_tokens=40),
        AgentSpec(name="editor", instructions="You edit.", max_tokens=40),
    ]
    return Workers(ledger, team, controller=policy, model=mind or ScriptedModel(SCRIPT), tools=[count_words])


async def request_response(team: Workers) -> str:
    """User → [query] → agent → [response] → user."""
    answer = await team.send(StructuredMessage.create_query("Hello!", "user", "editor", task_id="hello"))
    return answer.task_id


async def task_delegation(team: Workers) -> str:
    """Controller → [task] → worker → [result] → controller."""
    return (await team.run("two words", thread_id="delegation")).thread_id


async def tool_execution(team: Workers) -> str:
    """User → [query] → agent → [tool request] → tools → [tool results] → agent → [response] → user."""
    query = StructuredMessage.create_query("How many words: one two three", "user", "counter", task_id="tools")
    query.add_tool_call("count_words", {"text": "How many words"})
    return (await team.send(query)).task_id


async def collaboration(team: Workers) -> str:
    """Controller → [task] → worker A → [intermediate result] → worker B → [final result] → controller."""
    return (await team.run("edit these four words", thread_id="collaboration")).thread_id


FLOWS: dict[str, Callable[[Workers], Awaitable[str]]] = {
    "request-response": request_response,
    "task-delegation": task_delegation,
    "tool-execution": tool_execution,
    "collaboration": collaboration,
}


async def judged(ledger: Ledger, name: str, thread_id: str) -> Verdict:
    """Judge what agents have said in a thread by a flow; what a user asks the controller is not part of two of them."""
    said = await conversation(ledger, thread_id, tools=name == "tool-execution")
    is_inside = name in ("task-delegation", "collaboration")
    return find_flow(name).check([message for message in said if not (is_inside and "user" in (message.policy, *message.to))])


async def main(mind: Model | None) -> None:
    ledger = MemoryLedger()
    async with workers(ledger, mind) as team:
        for name, flow in FLOWS.items():
            thread_id = await flow(team)
            verdict = await judged(ledger, name, thread_id)
            print(f"{name}: {verdict.state}")
            for message in await team.messages(thread_id):
                print(f"  {message.source_agent} -> {message.target_agent}: [{message.message_type}] {message.content}")


if __name__ == "__main__":
    asyncio.run(main(model(sys.argv[1]) if len(sys.argv) > 1 else None))
