"""Warnings about servers of tools: what is wrong with a server or one of its tools, and who is told.

A warning costs the server, or the one tool, and nothing else. It is a row `TOOL_WARNING` of the thread, once for each part of
a run, and a line of the log. For a server that was registered with `required=True` it is a `ToolServerError`.

| code | what is left out |
|---|---|
| `SERVER_FAILED` | the server: it does not start, cannot be reached, breaks off, or lists its tools in vain |
| `SERVER_TIMEOUT` | the server: it takes too long to start, or to list its tools |
| `NAME_TAKEN` | the tool: another one has its name; give the server a prefix |
| `NAME_INVALID` | the tool: its name could be mistaken for another |
| `SCHEMA_INVALID` | the tool: its arguments are no JSON schema that can be used |
| `TOO_MUCH` | the tools beyond what can be written down |
"""

from __future__ import annotations

import logging
from dataclasses import asdict, dataclass
from hashlib import sha256
from typing import Any, Final

from antiphon.agents._run import LedgerRun
from antiphon.agents.toolkit._schema import canonical
from antiphon.errors import ToolServerError
from antiphon.messages import RUNTIME_POLICY, DataPart, Message, PartsPayload

__all__ = [
    "NAME_INVALID",
    "NAME_TAKEN",
    "SCHEMA_INVALID",
    "SERVER_FAILED",
    "SERVER_TIMEOUT",
    "TOO_MUCH",
    "ToolWarning",
    "raise_if_required",
    "warn",
]

SERVER_FAILED: Final = "SERVER_FAILED"
SERVER_TIMEOUT: Final = "SERVER_TIMEOUT"
NAME_TAKEN: Final = "NAME_TAKEN"
NAME_INVALID: Final = "NAME_INVALID"
SCHEMA_INVALID: Final = "SCHEMA_INVALID"
TOO_MUCH: Final = "TOO_MUCH"

_TYPE: Final = "TOOL_WARNING"
_LOG: Final = logging.getLogger("antiphon.agents.toolkit")


@dataclass(frozen=True)
class ToolWarning:
    """What is wrong with a server, or with one of its tools."""

    server: str
    code: str
    reason: str
    tool: str | None = None
    """The tool that is left out; None: all of the server."""

    def to_json(self) -> dict[str, Any]:
        """Return it as it is written down."""
        return {name: value for name, value in asdict(self).items() if value is not None}

    @property
    def sentence(self) -> str:
        """What is told to people."""
        what = "its tools are left out" if self.tool is None else f"its tool {self.tool!r} is left out"
        return f"tool server {self.server!r}: {self.reason}; {what} ({self.code})"


class _Written:
    """What the parts of a run have written down."""

    def __init__(self) -> None:
        self.keys: set[tuple[str, str]] = set()


def raise_if_required(warnings: list[ToolWarning]) -> None:
    """Raise what is wrong with a server that is required.

    Raises:
        ToolServerError: something is.
    """
    for each in warnings:
        about = "" if each.tool is None else f"tool {each.tool!r}: "
        todo = "mend it, or register it without required=True"
        raise ToolServerError(f"{about}{each.reason} ({each.code}); {todo}", each.server)


async def warn(warnings: list[ToolWarning], run: LedgerRun | None) -> None:
    """Write warnings down, each once in a part of a run."""
    for each in warnings:
        if run is None:
            _LOG.warning("%s", each.sentence)
            continue
        name = f"warning:{sha256(canonical(each.to_json()).encode()).hexdigest()[:24]}"
        own = run.course.invocation_id, name
        written = run.opened.share(_Written).keys
        if own not in written:
            written.add(own)
            _LOG.warning("%s", each.sentence, extra={"antiphon.thread.id": run.thread_id})
            part = DataPart(data={"type": _TYPE, **each.to_json()})
            await run.note(Message(policy=RUNTIME_POLICY, payload=PartsPayload(parts=(part,))), key=name)
