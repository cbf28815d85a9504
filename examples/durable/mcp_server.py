"""MCP: the tools of a server. What it offers is recorded, and what its tools do is declared by the agent that uses them.

python examples/durable/mcp_server.py [ledger.db]
"""

import sys
from pathlib import Path
from typing import Any

from fastmcp.client.transports import StdioTransport
from mcp.server import MCPServer
from outside import Outside, call, scripted, start
from pydantic_ai import Agent
from pydantic_ai.mcp import MCPToolset
from pydantic_ai.usage import RunUsage

from antiphon.agents import LedgerDurability, ledger_run
from antiphon.ledger import Ledger

INSTRUCTIONS = "You order books."
MODEL = scripted([call("find", "m1", title="Emma")], [call("order", "m2", number=7)], ["I have ordered Emma; it is number 7."])


def serve(outside: Outside) -> None:
    """Be the server, which is a process of its own."""
    server = MCPServer("books")

    @server.tool()
    def find(title: str) -> int:
        """Find the number of a book."""
        return 7 if title == "Emma" else 0

    @server.tool()
    def order(number: int) -> str:
        """Order a book. An order that comes twice is one order."""
        return outside.do(f"order {number}", f"number {number} is ordered")

    server.run("stdio")


async def main(ledger: Ledger, outside: Outside, instructions: str = INSTRUCTIONS, **options: Any) -> tuple[object, RunUsage]:
    durability = LedgerDurability[object](ledger, effects={"find": "none", "order": "idempotent"})
    server = StdioTransport(sys.executable, [__file__, "serve", str(outside.path)])
    toolset = MCPToolset[object](server, id="books", init_timeout=60)
    agent = Agent(MODEL, name="buyer", instructions=instructions, toolsets=[toolset], capabilities=[durability])
    async with ledger_run("books", ledger=ledger, **options):
        result = await agent.run("I want to read Emma.")
    return result.output, result.usage


if __name__ == "__main__":
    if sys.argv[1:2] == ["serve"]:
        serve(Outside(Path(sys.argv[2])))
    else:
        start(main)
