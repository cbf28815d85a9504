"""What a peer offers for a case, and the one way in which all peers with antiphon's fields are built."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from benchmarks._messages import Said

__all__ = ["Vocabulary", "Work"]


@dataclass(frozen=True)
class Work:
    """Three things to time. Each is ready to go: what it needs was made before."""

    construct: Callable[[], object]
    dump: Callable[[], object]
    load: Callable[[], object]


@dataclass(frozen=True)
class Vocabulary:
    """The classes of a peer that has antiphon's fields, by the names that the neutral messages use."""

    message: Callable[..., Any]
    payloads: dict[str, Callable[..., Any]]
    parts: dict[str, Callable[..., Any]]

    def build(self, said: Said) -> Any:
        """Call the constructors, innermost first, by keyword."""
        kind, content = said["kind"], said["content"]
        if kind == "parts":
            content = {"parts": tuple([self.parts[part["kind"]](**part["fields"]) for part in content["parts"]])}
        return self.message(payload=self.payloads[kind](**content), **said["envelope"])
