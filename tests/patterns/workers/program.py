"""Workers to be killed: tools that must not be done twice and tools that only look; side by side, and handed on."""

from __future__ import annotations

from pydantic_ai.messages import ModelMessage, ModelResponse, TextPart, ToolCallPart
from pydantic_ai.models.function import AgentInfo, FunctionModel
from tests.patterns.killed import HISTORY, Witness, handed_rows, serve
from tests.patterns.workers.minds import got, prompt

from antiphon.agents.toolkit import Toolkit
from antiphon.dialects.atlas import StructuredMessage
from antiphon.ledger import Ledger
from antiphon.patterns.cast import AgentSpec
from antiphon.patterns.workers import Assigner, Workers, report

CHIEF = AgentSpec(name="controller", instructions="You are the controller.")
LOOKER = AgentSpec(name="looker", instructions="You are looker.", tools=("look",))
PAYER = AgentSpec(name="payer", instructions="You are payer.", tools=("look", "pay"))
WRITER = AgentSpec(name="writer", instructions="You are writer.")


async def policy(query: StructuredMessage, assigner: Assigner) -> str:
    """Give two tasks side by side, then one that is handed on."""
    both = await assigner.assign_all([("looker", "look"), ("payer", "pay")])
    handed = await assigner.assign("payer", "pay again", route=["writer"])
    return " | ".join(each.content for each in (*both, handed))


def _calls(name: str, messages: list[ModelMessage]) -> list[ToolCallPart]:
    """Return what an agent calls first."""
    match name:
        case "controller":
            tasks = [{"worker": "looker", "task": "look"}, {"worker": "payer", "task": "pay", "then": ["writer"]}]
            return [ToolCallPart("assign_task", task, f"t{number}") for number, task in enumerate(tasks, 1)]
        case "looker":
            return [ToolCallPart("look", {"at": "clock"}, "l1"), ToolCallPart("look", {"at": "sky"}, "l2")]
        case "payer":
            return [ToolCallPart("look", {"at": "bill"}, "p1"), ToolCallPart("pay", {"what": prompt(messages)[:9]}, "p2")]
        case _:
            return []


def team(ledger: Ledger, witness: Witness, *, by_model: bool) -> Workers:
    """Return the workers, whose tools and model say what they do."""

    async def look(at: str) -> str:
        """Look at something."""
        await witness.start("look")
        report(f"looking at {at}")
        return f"saw the {at}"

    async def pay(what: str) -> str:
        """Pay for something."""
        await witness.start("pay")
        return "paid"

    async def answer(messages: list[ModelMessage], info: AgentInfo) -> ModelResponse:
        await witness.start("model")
        name = (info.instructions or "").split(".")[0].rpartition(" ")[2]
        calls = [] if got(messages) else _calls(name, messages)
        said = [TextPart(f"{name}: {prompt(messages).splitlines()[0]}, {len(got(messages))} results")]
        return ModelResponse(calls or said)

    toolkit = Toolkit()
    toolkit.add(look, effects="none")
    toolkit.add(pay, effects="once")
    controller, workers = CHIEF if by_model else policy, [LOOKER, PAYER, WRITER]
    model = FunctionModel(answer)
    return Workers(ledger, workers, controller=controller, controller_name="clerk", model=model, toolkit=toolkit)


async def program(ledger: Ledger, witness: Witness) -> str:
    """Have a policy, a user and a model give work to the workers, each in a thread of its own."""
    query = StructuredMessage.create_query("Pay.", "user", "payer", task_id="direct", message_id="direct-1")
    query.add_tool_call("pay", {"what": "tea"}, "u1")
    query.add_tool_call("look", {"at": "cup"}, "u2")
    async with team(ledger, witness, by_model=False) as workers:
        by_policy = await workers.run("Go.", thread_id="by-policy")
        answer = await workers.send(query)
    async with team(ledger, witness, by_model=True) as workers:
        by_model = await workers.run("Go.", thread_id="by-model", message_history=HISTORY)
    results = [each["call_id"] for each in answer.tool_results]
    handed = await handed_rows(ledger, "by-model")
    return f"{handed} {by_policy.response} || {by_model.response} || {answer.content} {results}"


if __name__ == "__main__":
    serve(program)
