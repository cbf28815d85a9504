"""RAG: an agent searches documents that are in the same ledger, and answers with what it found.

python examples/durable/rag.py [ledger.db]
"""

from typing import Any

from outside import LOOKS, Outside, call, last_result, scripted, start
from pydantic_ai import Agent
from pydantic_ai.messages import ModelMessage
from pydantic_ai.usage import RunUsage

from antiphon.agents import LedgerDurability
from antiphon.durable import ledger_run
from antiphon.ledger import Ledger
from antiphon.retrieval import KnowledgeBase

INSTRUCTIONS = "Answer from the documents only."
DOCUMENTS = {
    "tea.md": "# Green tea\nGreen tea is steeped at 80 degrees for two minutes.\n\n# Black tea\nAt 95 degrees for four.",
    "coffee.md": "# Filter coffee\nFilter coffee wants 92 degrees.",
}


def answer(messages: list[ModelMessage]) -> list[str]:
    return [f"The documents say: {last_result(messages)}"]


def make_agent(ledger: Ledger, instructions: str) -> Agent[KnowledgeBase, str]:
    agent = Agent(
        scripted([call("retrieve", "r1", query="green tea temperature")], answer),
        name="librarian",
        deps_type=KnowledgeBase,
        instructions=instructions,
        capabilities=[LedgerDurability[KnowledgeBase](ledger)],
    )

    @agent.tool_plain(metadata=LOOKS)
    async def retrieve(query: str) -> str:
        """Find passages."""
        return "; ".join(passage.text for passage in await KnowledgeBase(ledger).search(query, limit=1))

    return agent


async def main(ledger: Ledger, outside: Outside, instructions: str = INSTRUCTIONS, **options: Any) -> tuple[object, RunUsage]:
    documents = KnowledgeBase(ledger)
    for source, text in DOCUMENTS.items():
        await documents.add(source, text)  # an unchanged document is not stored again
    async with ledger_run("question", ledger=ledger, **options):
        result = await make_agent(ledger, instructions).run("How hot is green tea?", deps=documents)
    return result.output, result.usage


if __name__ == "__main__":
    start(main)
