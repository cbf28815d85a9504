"""PeerSpec: how a peer is set up, and whom it may ask; Limits: how far peers may go together."""

from __future__ import annotations

from typing import Final, Literal, TypeAlias

from pydantic import BaseModel, ConfigDict, Field

from antiphon.patterns.cast import AgentSpec

__all__ = ["EVERYBODY", "INVOKE_AGENT", "AllowedPeers", "Limits", "PeerSpec", "allows"]

EVERYBODY: Final = "*"
INVOKE_AGENT: Final = "invoke_agent"
"""The tool by which a peer asks another."""

AllowedPeers: TypeAlias = tuple[str, ...] | Literal["*"]


class PeerSpec(AgentSpec):
    """How one peer is set up."""

    allowed_peers: AllowedPeers = ()
    """Whom it may ask, by name; `*` is everybody but itself."""
    shares: tuple[str, ...] = ()
    """The memories that it has in common with others, by name; see `Peers.shared`."""


class Limits(BaseModel):
    """How far peers may go in one task: what a user asked, with all that follows from it."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    max_depth: int = Field(default=5, ge=0)
    """How many may stand one behind the other: a peer that is asked by one that is asked, and so on."""
    max_interactions: int = Field(default=10, ge=0)
    """How often peers may ask each other, all branches together."""
    remember: int = Field(default=5, ge=0)
    """How many of its earlier exchanges in a thread a peer is told when it is asked again."""
    told: int = Field(default=50, ge=0)
    """How many messages that were added to its memory, and to each that it shares, a peer is told when it is asked."""
    within: float = Field(default=3600.0, gt=0)
    """Seconds that a peer may take to answer another, people whom it waits for included."""
    failures: int = Field(default=5, ge=1)
    """How often a peer may fail in a row, in whatever threads, before nobody asks it any more."""
    recovery: float = Field(default=60.0, ge=0)
    """Seconds after the last failure until one may try again."""


def allows(spec: PeerSpec, target: str) -> bool:
    """Whether a peer may ask another."""
    return target != spec.name if spec.allowed_peers == EVERYBODY else target in spec.allowed_peers
