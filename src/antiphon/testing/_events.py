"""What the processes of a run did and observed, as events that a test compares with the ledger."""

from __future__ import annotations

from dataclasses import dataclass
from hashlib import sha256
from typing import Literal, TypeAlias

from antiphon.messages import Message
from antiphon.messages._unchecked import house_bytes

What: TypeAlias = Literal[
    "inv",  # it is about to append: id, content, epoch
    "ok",  # the append was acknowledged: id
    "fail",  # the append was refused: id. With neither, the outcome is unknown
    "claim",  # the thread was claimed: epoch
    "read",  # the thread was read, from `began` on: ids
    "rx",  # a message came out of a tail of all threads: id
    "fx",  # an effect starts, recorded by the tool itself: id (its invocation), key, is_once, and the epoch if it knows it
    "fxend",  # it has ended: id, content (of its result)
    "park",  # a call was handed to a person: id (its invocation)
    "pause",  # acknowledged for the thread
    "resume",
    "terminate",
    "fault",  # a fault has really happened: content is its kind
]


@dataclass(frozen=True, slots=True, kw_only=True)
class Event:
    """An action or observation of a process."""

    what: What
    at: float
    who: str = ""
    thread: str = ""
    id: str = ""
    content: str = ""
    """A digest of the message (see `content_of`)."""
    key: str = ""
    epoch: int = 0
    is_once: bool = False
    """Whether the effect must not start twice."""
    began: float = 0.0
    ids: tuple[str, ...] = ()


def content_of(message: Message) -> str:
    """Return a digest of the policy and the payload of a message, without its other fields."""
    return sha256(message.policy.encode() + b"\n" + house_bytes(message.payload)).hexdigest()[:16]
