"""The requests and limits of peers, and the flows of a star and of a pipeline, against which a thread can be checked."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from pydantic import BaseModel, ConfigDict, Field

from antiphon.messages.keys import key_of, kind_of
from antiphon.protocol import Reply, Request
from antiphon.protocol.flows import Choice, Flow, Pattern, Sequence, Step, choice, repeat, sequence

KIND: Final = "peer"
PATTERN: Final = "peers"
"""The name of the pattern in the ledger."""


class PeerAnswered(Reply, frozen=True, type="PEER_ANSWERED"):
    """The answer of a peer."""

    content: str
    completion_time: float
    """Seconds that it took."""
    untrusted: str | None = None
    """The source of untrusted content that the peer has read, if any."""


class InvokePeer(Request[PeerAnswered], frozen=True, type="INVOKE_PEER", family="agent"):
    """A request to a peer. The caller is the sender that the runtime recorded."""

    request: str
    depth: int = 0
    """The length of the chain of callers; 0: a user asks."""
    context_message_ids: tuple[str, ...] = ()
    """Messages of the thread that are passed on, by id."""
    untrusted: str | None = None
    """The source of untrusted content that the caller has read, if any."""
    task_id: str | None = None
    """The task that the caller names; this peer's own requests name the same."""
    message_id: str | None = None
    """The message of the thread that is the request, if it is more than text."""


class PeerHeard(Reply, frozen=True, type="PEER_HEARD"):
    """The recorded answer or error of a peer that was asked."""

    message_id: str


class DelegateToPeer(Request[PeerHeard], frozen=True, type="DELEGATE_TO_PEER", family="agent"):
    """Ask another peer, without a decision of a model."""

    target: str
    request: str
    context_message_ids: tuple[str, ...] = ()
    task_id: str | None = None
    """The task that the caller says it is part of."""
    message_id: str | None = None
    """The id of the caller's `agent_call`, if it wrote one."""


def address_of(name: str) -> str:
    """Return the address of a peer."""
    return f"{KIND}/{name}"


def peer_at(address: str) -> str | None:
    """Return the peer of an address; None: it is not the address of a peer."""
    return (key_of(address) or None) if kind_of(address) == KIND else None


# ---------------------------------------------------------------- limits


class PeerLimits(BaseModel):
    """The limits of peers in one task of a user."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    max_depth: int = Field(default=5, ge=0)
    """The maximum length of a chain of callers: a peer asks a peer that asks a peer, and so on."""
    max_interactions: int = Field(default=10, ge=0)
    """How often peers may ask each other, in all branches together."""
    remember: int = Field(default=5, ge=0)
    """How many of its earlier exchanges in a thread are in the prompt of a peer."""
    told: int = Field(default=50, ge=0)
    """How many added messages of its memory, and of each shared memory, are in the prompt of a peer."""
    within: float = Field(default=3600.0, gt=0)
    """Seconds that a peer may take to answer another, including approvals by people."""
    failures: int = Field(default=5, ge=1)
    """How many consecutive failures, in all threads, open the circuit breaker of a peer."""
    recovery: float = Field(default=60.0, ge=0)
    """Seconds after the last failure before the peer may be probed."""


# ---------------------------------------------------------------- flows


_USER = "user"


def star_flow(center: str, leaves: Iterable[str]) -> Flow:
    """A user asks the center, which asks the others, possibly concurrently, before it answers."""
    around = tuple(leaves)
    exchanges = [part for leaf in around for part in (_asks(center, leaf), _answers(leaf, center))]
    task = sequence(_asks(_USER, center), repeat(choice(*exchanges)), _answers(center, _USER))
    return Flow("star", f"{center} asks {', '.join(around)}, who ask nobody.", repeat(task, least=1), _roles(center, *around))


def pipeline_flow(*names: str) -> Flow:
    """A user asks the first peer, which asks the next before it answers, and so on; nobody asks out of turn."""
    about = f"Each asks the next: {', '.join(names)}."
    return Flow("pipeline", about, repeat(_nested(_USER, names), least=1), _roles(*names))


def _nested(caller: str, names: tuple[str, ...]) -> Sequence:
    """Return the flow in which the first peer is asked and may ask the second, and so on, and each answers."""
    first, *others = names
    inner: list[Pattern] = [repeat(_nested(first, tuple(others)))] if others else []
    return sequence(_asks(caller, first), *inner, _answers(first, caller))


def _asks(caller: str, callee: str) -> Step:
    return Step(caller, callee, InvokePeer.message_type)


def _answers(callee: str, caller: str) -> Choice:
    return choice(Step(callee, caller, PeerAnswered.message_type), Step(callee, caller, "ERROR"))


def _roles(*names: str) -> tuple[tuple[str, str], ...]:
    return ((_USER, _USER), *((name, address_of(name)) for name in names))
