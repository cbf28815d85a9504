"""How much one message may hold: a frozen value with stated defaults, and the way to replace it for a while."""

from __future__ import annotations

from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Generator

__all__ = ["Limits", "current_limits", "use_limits"]

MIB = 1024 * 1024
_MOST_DEPTH = 200


@dataclass(frozen=True, slots=True)
class Limits:
    """What is refused as too much, at construction and by `loads`."""

    message_bytes: int = MIB
    """The house form of one message, in bytes, without the `data:` URLs of its media, and those in the metadata of parts."""

    data_url_bytes: int = 32 * MIB
    """All `data:` URLs of one message together, in bytes."""

    depth: int = 64
    """How many containers may be nested in one JSON value; `{}` has depth 1. Metadata may be 16 deeper.
    At most 200, a little before parsers give up."""

    nodes: int = 100_000
    """How many values one JSON value may be made of: about ten times the input in memory, at the size above."""

    def __post_init__(self) -> None:
        if min(self.message_bytes, self.data_url_bytes, self.nodes) < 0:
            raise ValueError(f"a limit is not negative: {self}")
        if not 1 <= self.depth <= _MOST_DEPTH:
            raise ValueError(f"depth must be 1 to {_MOST_DEPTH}, not {self.depth}")


DEFAULT_LIMITS = Limits()
NO_LIMITS = Limits(message_bytes=2**62, data_url_bytes=2**62, depth=_MOST_DEPTH, nodes=2**62)
"""For what has been let in before, under whatever limits."""

_limits: ContextVar[Limits] = ContextVar("antiphon_limits", default=DEFAULT_LIMITS)

current_limits = _limits.get


@contextmanager
def use_limits(limits: Limits) -> Generator[Limits]:
    """Apply other limits to every message made or loaded inside the `with` block (in this task or thread)."""
    token = _limits.set(limits)
    try:
        yield limits
    finally:
        _limits.reset(token)
