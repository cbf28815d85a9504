"""The requests between the actors of this pattern, which carry structured messages of Atlas; and its limits.

A request has no timestamp: a handler that runs again must write the same request. Its time is that of the ledger row.
"""

from __future__ import annotations

from datetime import datetime
from typing import Any, Final

from pydantic import BaseModel, ConfigDict, Field

from antiphon.dialects.atlas import StructuredMessage
from antiphon.messages import thaw
from antiphon.protocol import Object, Reply, Request

PATTERN: Final = "workers"
"""What lists of threads call it."""


class Answered(Reply, frozen=True, type="WORKERS_ANSWERED"):
    """What an agent has answered to somebody outside."""

    message: Object


class AskAgent(Request[Answered], frozen=True, type="WORKERS_MESSAGE"):
    """A message of somebody outside to the controller, or to a worker."""

    message: Object


class WorkerTaskDone(Reply, frozen=True, type="WORKERS_TASK_DONE"):
    """What came of a task: a result, or an error."""

    message: Object
    handed_on: bool = False
    """Whether others have finished it; then what they said stands in the thread already."""
    untrusted: str | None = None
    """Where it has read what strangers wrote, if it has."""


class DoWorkerTask(Request[WorkerTaskDone], frozen=True, type="WORKERS_TASK"):
    """A task for a worker, or what another worker hands on."""

    message: Object
    untrusted: str | None = None
    """Where whoever gives it has read what strangers wrote, if so."""
    history: str | None = None
    """The message of the thread before which its history ends that the worker is told; None: there is none."""


# ---------------------------------------------------------------- limits


class WorkerLimits(BaseModel):
    """How much an agent of this pattern may do for one message, and in parallel."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    rounds: int = Field(default=8, ge=1)
    """How many requests to a model one answer may take."""
    at_once: int = Field(default=1, ge=1)
    """How many tasks each worker does in parallel."""


# ---------------------------------------------------------------- messages as JSON


def to_wire(message: StructuredMessage) -> dict[str, Any]:
    """Return a message as it is asked: without its time."""
    return {name: value for name, value in message.to_dict().items() if name != "timestamp"}


def from_wire(data: Any, asked_at: datetime | None) -> StructuredMessage:
    """Return the message that `to_wire` gave, of the time when it was asked."""
    time = {} if asked_at is None else {"timestamp": asked_at.timestamp()}
    return StructuredMessage.from_dict({**time, **thaw(data)})
