"""The requests and limits of peers, and the flows of a star and of a pipeline, which a thread can be checked against."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from pydantic import BaseModel, ConfigDict, Field

from antiphon.messages.keys import key_of, kind_of
from antiphon.protocol import Reply, Request
from antiphon.protocol.flows import Choice, Flow, Pattern, Sequence, Step, choice, repeat, sequence

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


# ---------------------------------------------------------------- limits


class PeerLimits(BaseModel):
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


# ---------------------------------------------------------------- flows


_USER = "user"


def star_flow(center: str, leaves: Iterable[str]) -> Flow:
    """A user asks the one in the middle, who asks the others, some of them at once, before it answers."""
    around = tuple(leaves)
    exchanges = [part for leaf in around for part in (_asks(center, leaf), _answers(leaf, center))]
    task = sequence(_asks(_USER, center), repeat(choice(*exchanges)), _answers(center, _USER))
    return Flow("star", f"{center} asks {', '.join(around)}, who ask nobody.", repeat(task, least=1), _roles(center, *around))


def pipeline_flow(*names: str) -> Flow:
    """A user asks the first, who asks the next before it answers, and so on; nobody asks out of turn."""
    about = f"Each asks the next: {', '.join(names)}."
    return Flow("pipeline", about, repeat(_nested(_USER, names), least=1), _roles(*names))


def _nested(caller: str, names: tuple[str, ...]) -> Sequence:
    """Return that somebody asks the first of some, who may ask the second, and so on, and that each answers."""
    first, *others = names
    inner: list[Pattern] = [repeat(_nested(first, tuple(others)))] if others else []
    return sequence(_asks(caller, first), *inner, _answers(first, caller))


def _asks(caller: str, callee: str) -> Step:
    return Step(caller, callee, InvokePeer.message_type)


def _answers(callee: str, caller: str) -> Choice:
    return choice(Step(callee, caller, PeerAnswered.message_type), Step(callee, caller, "ERROR"))


def _roles(*names: str) -> tuple[tuple[str, str], ...]:
    return ((_USER, _USER), *((name, address_of(name)) for name in names))
