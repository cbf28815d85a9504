"""A server that speaks the Model Context Protocol over standard input and output, and misbehaves in the way that it is told.

Written by hand: the SDK would not let it. `hostile_server.py WAY`; its tool is called `work`, unless the way is about names.
"""

import json
import os
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

GOOD: dict[str, Any] = {"type": "object", "properties": {"x": {"type": "string"}}}
DEEP: dict[str, Any] = {"type": "object"}
for _ in range(40):
    DEEP = {"type": "object", "properties": {"x": DEEP}}


def tool(name: str = "work", schema: Any = None, description: str = "Work.") -> dict[str, Any]:
    return {"name": name, "description": description, "inputSchema": GOOD if schema is None else schema}


def of(x: dict[str, Any]) -> dict[str, Any]:
    return {"type": "object", "properties": {"x": x}}


def say(said: dict[str, Any]) -> None:
    sys.stdout.write(json.dumps({"jsonrpc": "2.0", **said}) + "\n")
    sys.stdout.flush()


def text(words: str, **more: Any) -> dict[str, Any]:
    return {"content": [{"type": "text", "text": words}], **more}


def never() -> Any:
    if (own := os.environ.get("PID_FILE")) is not None:
        Path(f"{own}.hangs").touch()
    time.sleep(3600)


def leave() -> Any:
    os._exit(3)


def pages(cursor: str | None, wait: float) -> dict[str, Any]:
    number = int(cursor or 0)
    time.sleep(wait)
    return {"tools": [tool(f"work{number}")], "nextCursor": str(number + 1)}


def flood() -> Any:
    while True:
        say({"method": "notifications/message", "params": {"level": "info", "data": "x" * 100}})


LISTS: dict[str, Callable[[str | None], Any]] = {
    "list-hangs": lambda cursor: never(),
    "list-dies": lambda cursor: leave(),
    "list-of-nothing": lambda cursor: {},
    "list-of-text": lambda cursor: {"tools": "work"},
    "list-floods": lambda cursor: flood(),
    "pages-without-end": lambda cursor: pages(cursor, 0),
    "slow-pages": lambda cursor: pages(cursor, 0.3),
    "same-page": lambda cursor: {"tools": [tool()], "nextCursor": "1"},
    "our-name": lambda cursor: {"tools": [tool("add"), tool()]},
    "bad-names": lambda cursor: {
        "tools": [tool(name) for name in ("аdd", "add\u200b", "", "x" * 200, "a b", "add\n", "../add")] + [tool()]
    },
    "many-bad-names": lambda cursor: {"tools": [tool(f"a {number}") for number in range(1200)] + [tool()]},
    "schema-of-no-type": lambda cursor: {"tools": [tool("bad", of({"type": "thing"})), tool()]},
    "schema-elsewhere": lambda cursor: {"tools": [tool("bad", of({"$ref": "http://127.0.0.1:9/x.json"})), tool()]},
    "schema-of-this-machine": lambda cursor: {"tools": [tool("bad", of({"$ref": "file:///etc/passwd"})), tool()]},
    "schema-bad-pattern": lambda cursor: {"tools": [tool("bad", of({"pattern": "("})), tool()]},
    "schema-large-pattern": lambda cursor: {"tools": [tool("bad", of({"pattern": "((a{999}){999}){999}"})), tool()]},
    "schema-slow-pattern": lambda cursor: {"tools": [tool(schema=of({"pattern": "^(a+)+$"}))]},
    "schema-in-a-circle": lambda cursor: {"tools": [tool("bad", of({"$ref": "#/properties/x"})), tool()]},
    "schema-deep": lambda cursor: {"tools": [tool("bad", DEEP), tool()]},
    "schema-of-no-object": lambda cursor: {"tools": [tool("bad", []), tool()]},
    "schema-large": lambda cursor: {"tools": [tool("bad", {"type": "object", "enum": ["x" * 50] * 40_000}), tool()]},
    "tools-of-100-kB": lambda cursor: {"tools": [tool(), *(tool(f"work{number}") for number in range(800))]},
    "many-tools": lambda cursor: {"tools": [tool(f"work{number}") for number in range(20_000)]},
    "long-description": lambda cursor: {"tools": [tool(description="x" * 5_000_000)]},
}

CALLS: dict[str, Callable[[], Any]] = {
    "call-dies": leave,
    "call-hangs": never,
    "call-says-much": lambda: text("x" * 2_000_000),
    "call-fails-with-much": lambda: text("x" * 5_000_000, isError=True),
    "call-fails-with-lines": lambda: text("\n" * 1_000_000, isError=True),
    "call-structured-much": lambda: text("ok", structuredContent={"rows": [{"id": n} for n in range(150_000)]}),
    "call-structured-100-kB": lambda: text("ok", structuredContent={"rows": [{"id": n} for n in range(8000)]}),
    "call-of-unknown-kind": lambda: {"content": [{"type": "hologram", "data": "x"}]},
    "call-of-nothing": dict,
    "call-large-image": lambda: {"content": [{"type": "image", "mimeType": "image/png", "data": "AAAA" * 500_000}]},
    "call-no-image": lambda: {"content": [{"type": "image", "mimeType": "image/png", "data": "no base64!"}]},
}


def answer(way: str, asked: dict[str, Any]) -> Any:
    method, params = asked["method"], asked.get("params") or {}
    if method == "initialize":
        if way == "never-begins":
            never()
        version = params.get("protocolVersion", "2025-06-18")
        return {"protocolVersion": version, "capabilities": {"tools": {}}, "serverInfo": {"name": way, "version": "1"}}
    if method == "tools/list":
        return LISTS.get(way, lambda cursor: {"tools": [tool()]})(params.get("cursor"))
    if method == "tools/call":
        return CALLS.get(way, lambda: text("worked"))()
    return None


def main(way: str) -> None:
    if (own := os.environ.get("PID_FILE")) is not None:
        Path(own).write_text(str(os.getpid()))
    if way == "exits":
        leave()
    if way == "stays":  # whatever it is asked to do
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
    if way == "babbles":
        sys.stdout.write("Welcome!\n" * 1000)
        sys.stdout.flush()
        never()
    for line in sys.stdin:
        asked = json.loads(line)
        if "id" not in asked:
            continue
        if way == "list-refuses" and asked["method"] == "tools/list":
            say({"id": asked["id"], "error": {"code": -32000, "message": "no " * 100_000}})
        elif (said := answer(way, asked)) is None:
            say({"id": asked["id"], "error": {"code": -32601, "message": "there is no such method"}})
        else:
            say({"id": asked["id"], "result": said})
    if way == "stays":
        never()


if __name__ == "__main__":
    main(sys.argv[1])
