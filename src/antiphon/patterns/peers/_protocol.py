"""What peers say to each other, as actors: asking, answering, and asking somebody to ask."""

from __future__ import annotations

from typing import Final

from antiphon.messages.keys import key_of, kind_of
from antiphon.protocol import Reply, Request

__all__ = [
    "KIND",
    "PATTERN",
    "DelegateToPeer",
    "InvokePeer",
    "PeerAnswered",
    "PeerHeard",
    "address_of",
    "peer_at",
]

KIND: Final = "peer"
PATTERN: Final = "peers"
"""What the ledger calls threads of this pattern."""


class PeerAnswered(Reply, frozen=True, type="PEER_ANSWERED"):
    """What a peer has answered."""

    content: str
    completion_time: float
    """Seconds that it took."""
    untrusted: str | None = None
    """Where it comes from, if the peer has read what strangers wrote."""


class InvokePeer(Request[PeerAnswered], frozen=True, type="INVOKE_PEER", family="agent"):
    """Do something, and answer. Who asks is whom the runtime saw asking."""

    request: str
    depth: int = 0
    """How many peers stand before it; 0: a user asks."""
    context_message_ids: tuple[str, ...] = ()
    """Messages of the thread that are passed on, by id."""
    untrusted: str | None = None
    """Where the words come from, if whoever asks has read what strangers wrote."""
    task_id: str | None = None
    """The task that the caller says it is part of; whom this peer asks is told the same."""
    message_id: str | None = None
    """The message of the thread that is the request, if that is more than words."""


class PeerHeard(Reply, frozen=True, type="PEER_HEARD"):
    """What came back to a peer that asked another: an answer or an error, as it stands in the thread."""

    message_id: str


class DelegateToPeer(Request[PeerHeard], frozen=True, type="DELEGATE_TO_PEER", family="agent"):
    """Ask another peer, without a model that decides so."""

    target: str
    request: str
    context_message_ids: tuple[str, ...] = ()
    task_id: str | None = None
    """The task that the caller says it is part of."""
    message_id: str | None = None
    """The id of the `agent_call` that this is, if the caller has written one."""


def address_of(name: str) -> str:
    """Return where a peer lives."""
    return f"{KIND}/{name}"


def peer_at(address: str) -> str | None:
    """Return which peer lives at an address; None: none does."""
    return (key_of(address) or None) if kind_of(address) == KIND else None
