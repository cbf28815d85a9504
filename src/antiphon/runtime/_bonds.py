"""Bonds: who is told when an actor ends, and who falls with it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

from antiphon.protocol import Notice
from antiphon.runtime._failure import Failure

if TYPE_CHECKING:
    from antiphon.runtime._kernel import Kernel

__all__ = ["Bonds", "Down"]


class Down(Notice, frozen=True, type="DOWN", family="system"):
    """An actor that one monitors has ended; its supervisor may have begun it anew."""

    actor_id: str
    reason: Literal["failed", "stopped"]
    error_message: str | None = None


class Bonds:
    """Monitors and links. A monitor goes one way and tells; a link goes both ways, and a failure goes over it."""

    def __init__(self, kernel: Kernel) -> None:
        self._kernel = kernel
        self._monitors: dict[str, dict[str, None]] = {}
        self._links: dict[str, dict[str, None]] = {}

    def monitor(self, watcher: str, watched: str) -> None:
        """Tell the one when the other ends."""
        self._monitors.setdefault(watched, {})[watcher] = None

    def unmonitor(self, watcher: str, watched: str) -> None:
        """Tell it no more."""
        self._monitors.get(watched, {}).pop(watcher, None)

    def link(self, one: str, other: str) -> None:
        """Let each fail when the other does."""
        self._links.setdefault(one, {})[other] = None
        self._links.setdefault(other, {})[one] = None

    def down(self, address: str, failure: Failure | None) -> None:
        """See to those who wanted to know that an actor ended."""
        text = None if failure is None else f"{failure.error_type}: {failure.error_message}"
        notice = Down(actor_id=address, reason="stopped" if failure is None else "failed", error_message=text)
        for watcher in self._monitors.pop(address, {}):
            self._kernel.start(self._kernel.care.inform(watcher, notice, address))
        for other in self._links.pop(address, {}):
            self._links.get(other, {}).pop(address, None)
            if failure is not None:
                self._kernel.start(self._kernel.care.break_down(other, f"it is linked to {address}, which failed: {text}"))
