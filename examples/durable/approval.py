"""Approval: a tool waits for a person. The person's answer is an effect of the run, so it is asked once, and kept.

python examples/durable/approval.py [ledger.db]
"""

from typing import Any

from outside import LOOKS, Outside, call, scripted, start
from pydantic_ai import Agent, DeferredToolRequests, DeferredToolResults, ToolDenied
from pydantic_ai.usage import RunUsage

from antiphon.agents import LedgerDurability
from antiphon.durable import ledger_run
from antiphon.ledger import Ledger

INSTRUCTIONS = "You look after files."
MODEL = scripted(
    [call("list_files", "a1"), call("delete", "a2", path="old.txt"), call("delete", "a3", path="secret.txt")],
    ["I have deleted old.txt, and kept secret.txt."],
)


def make_agent(ledger: Ledger, outside: Outside, instructions: str) -> Agent[object, str | DeferredToolRequests]:
    agent = Agent(
        MODEL,
        name="files",
        output_type=[str, DeferredToolRequests],
        instructions=instructions,
        capabilities=[LedgerDurability[object](ledger, reconcile=outside.reconcile)],
    )

    @agent.tool_plain(metadata=LOOKS)
    def list_files() -> list[str]:
        """List the files."""
        return ["old.txt", "secret.txt"]

    @agent.tool_plain(requires_approval=True)
    def delete(path: str) -> str:
        """Delete a file."""
        return outside.do(f"delete {path}", f"{path} is deleted")

    return agent


async def main(ledger: Ledger, outside: Outside, instructions: str = INSTRUCTIONS, **options: Any) -> tuple[object, RunUsage]:
    agent, usage = make_agent(ledger, outside, instructions), RunUsage()

    async def ask_person(key: str) -> list[str]:
        return ["old.txt"]  # a person would be asked here; these files may be deleted

    async with ledger_run("files", ledger=ledger, **options) as run:
        first = await agent.run("Tidy up.", usage=usage)
        assert isinstance(first.output, DeferredToolRequests)  # noqa: S101 (the script says so)
        allowed = await run.effect("ask", {}, ask_person, effects="none")
        answers = DeferredToolResults()
        for asked in first.output.approvals:
            is_allowed = asked.args_as_dict()["path"] in allowed
            answers.approvals[asked.tool_call_id] = True if is_allowed else ToolDenied("a person said no")
        result = await agent.run(message_history=first.all_messages(), deferred_tool_results=answers, usage=usage)
    return result.output, usage


if __name__ == "__main__":
    start(main)
