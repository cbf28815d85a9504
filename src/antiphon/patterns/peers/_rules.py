"""Rules: whether a peer may ask another now. The order of the lines is the order of the checks."""

from __future__ import annotations

from typing import Final

from antiphon.patterns.peers._letters import Refusal
from antiphon.patterns.peers._registry import PeerRegistry
from antiphon.patterns.peers._spec import Limits, PeerSpec, allows

__all__ = ["MAX_DEPTH", "MAX_INTERACTIONS", "PEER_NOT_ALLOWED", "PEER_NOT_FOUND", "find_refusal"]

PEER_NOT_FOUND: Final = "PEER_NOT_FOUND"
PEER_NOT_ALLOWED: Final = "PEER_NOT_ALLOWED"
MAX_DEPTH: Final = "MAX_DEPTH"
MAX_INTERACTIONS: Final = "MAX_INTERACTIONS"


def find_refusal(
    registry: PeerRegistry, limits: Limits, caller: PeerSpec, target: str, *, depth: int, interactions: int
) -> Refusal | None:
    """Return why a call is not to be made that would be at this depth, after so many others; None: it is."""
    if target not in registry:
        return Refusal(PEER_NOT_FOUND, f"there is no agent {target!r}; there are {', '.join(registry.names)}")
    if not allows(caller, target):
        allowed = ", ".join(name for name in registry.names if allows(caller, name)) or "nobody"
        return Refusal(PEER_NOT_ALLOWED, f"{caller.name!r} may not ask {target!r}; it may ask {allowed}")
    if depth > limits.max_depth:
        return Refusal(MAX_DEPTH, f"agents ask each other {limits.max_depth} deep already; answer with what you have")
    if interactions >= limits.max_interactions:
        done = f"agents have asked each other {interactions} times for this task"
        return Refusal(MAX_INTERACTIONS, f"{done}, which is as often as they may; answer with what you have")
    return None
