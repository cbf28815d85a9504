"""MCP: the tools of a server. What it offers is recorded, and what its tools do is declared by the agent that uses them.

python examples/durable/mcp_server.py [ledger.db]
"""

import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from outside import Outside
    from pydantic_ai.usage import RunUsage

    from antiphon.ledger import Ledger

INSTRUCTIONS = "You order books."


def serve(orders: Path) -> None:
    """Be the server, which is a process of its own and needs nothing of the rest."""
    from mcp.server import MCPServer  # noqa: PLC0415 (see above)

    server = MCPServer("books")

    @server.tool()
    def find(title: str) -> int:
        """Find the number of a book."""
        return 7 if title == "Emma" else 0

    @server.tool()
    def order(number: int) -> str:
        """Order a book. An order that comes twice is one order."""
        entry = {"key": f"order {number}", "what": f"order {number}", "result": "ordered", "effects": "", "time": 1}
        with orders.open("a", encoding="utf-8") as file:
            file.write(f"{json.dumps(entry)}\n")
        return f"number {number} is ordered"

    server.run("stdio")


async def main(
    ledger: "Ledger", outside: "Outside", instructions: str = INSTRUCTIONS, **options: Any
) -> "tuple[object, RunUsage]":
    from fastmcp.client.transports import StdioTransport  # noqa: PLC0415 (the server does not need it)
    from outside import call, scripted  # noqa: PLC0415
    from pydantic_ai import Agent  # noqa: PLC0415
    from pydantic_ai.mcp import MCPToolset  # noqa: PLC0415

    from antiphon.agents import LedgerDurability  # noqa: PLC0415
    from antiphon.durable import ledger_run  # noqa: PLC0415

    model = scripted(
        [call("find", "m1", title="Emma")], [call("order", "m2", number=7)], ["I have ordered Emma; it is number 7."]
    )
    durability = LedgerDurability[object](ledger, effects={"find": "none", "order": "idempotent"})
    server = StdioTransport(sys.executable, [__file__, "serve", str(outside.path)])
    toolset = MCPToolset[object](server, id="books", init_timeout=60)
    agent = Agent(model, name="buyer", instructions=instructions, toolsets=[toolset], capabilities=[durability])
    async with ledger_run("books", ledger=ledger, **options):
        result = await agent.run("I want to read Emma.")
    return result.output, result.usage


if __name__ == "__main__":
    if sys.argv[1:2] == ["serve"]:
        serve(Path(sys.argv[2]))
    else:
        from outside import start

        start(main)
