"""A server that speaks the Model Context Protocol over standard input and output; what it lends it writes to a file."""

import sys
from pathlib import Path

from mcp.server import MCPServer

server = MCPServer("books", instructions="ask for books")


@server.tool()
def borrow(title: str) -> str:
    """Borrow a book."""
    with Path(sys.argv[1]).open("a") as witness:
        witness.write(f"{title}\n")
    return f"{title} is yours"


if __name__ == "__main__":
    server.run("stdio")
