"""The runtime's port: ids, the time and chance, from one place, so that a simulation can be exact.

How much time has passed is asked of the event loop, which a simulation brings too.
"""

from __future__ import annotations

import random  # noqa: TID251 (the one place)
from typing import Protocol

from antiphon.messages import Port, current_port

__all__ = ["RuntimePort", "port_in_use"]


class RuntimePort(Port, Protocol):
    """Where new ids, the time and chance come from."""

    def random(self) -> float:
        """Return a number from 0 to 1, 1 not included."""
        ...


class _Completed:
    """A port that has no chance of its own, with the machine's."""

    def __init__(self, port: Port) -> None:
        self.new_id = port.new_id
        self.now = port.now
        self.random = random.random


def port_in_use() -> RuntimePort:
    """Return the port that is in use, with chance."""
    port = current_port()
    return port if hasattr(port, "random") else _Completed(port)  # type: ignore[return-value]  # pyright: ignore[reportReturnType]
