"""A call as it is judged: who wants which tool to do what, where. Its digest is what a person approves."""

from __future__ import annotations

from base64 import b32encode
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from hashlib import sha256
from typing import Any

from antiphon.agents.toolkit._schema import canonical

__all__ = ["Call"]


@dataclass(frozen=True)
class Call:
    """One call of a tool by an agent."""

    agent: str
    tool: str
    arguments: Mapping[str, Any] = field(default_factory=dict[str, Any])
    thread_id: str | None = None
    invocation_id: str = ""
    recorded: str | None = None
    """The digest that the thread has of it, where not all of the arguments are there any more."""

    @cached_property
    def digest(self) -> str:
        """The SHA-256 of the exact call: another argument, agent, thread or invocation gives another one.

        In base 32, because in hexadecimal one in some hundred looks like the number of a card, and would be redacted.
        """
        if self.recorded is not None:
            return self.recorded
        said = [self.agent, self.tool, dict(self.arguments), self.thread_id, self.invocation_id]
        return b32encode(sha256(canonical(said).encode()).digest()).decode().rstrip("=").lower()
