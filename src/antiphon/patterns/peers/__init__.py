"""Peers: named agents that ask each other, within limits, each with a memory of its own; from MARSYS."""

from antiphon.patterns.peers._memory import PeerMemory
from antiphon.patterns.peers._peers import PeerAgent, Peers
from antiphon.patterns.peers._protocol import DelegateToPeer, InvokePeer, PeerAnswered, PeerHeard, pipeline_flow, star_flow
from antiphon.patterns.peers._registry import PeerLimits, PeerRegistry, PeerSpec, hierarchy, mesh, pipeline, star

__all__ = [
    "DelegateToPeer",
    "InvokePeer",
    "PeerAgent",
    "PeerAnswered",
    "PeerHeard",
    "PeerLimits",
    "PeerMemory",
    "PeerRegistry",
    "PeerSpec",
    "Peers",
    "hierarchy",
    "mesh",
    "pipeline",
    "pipeline_flow",
    "star",
    "star_flow",
]
