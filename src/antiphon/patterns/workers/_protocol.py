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
"""The name of the pattern in lists of threads."""


class Answered(Reply, frozen=True, type="WORKERS_ANSWERED"):
    """The answer of an agent to a client."""

    message: Object


class AskAgent(Request[Answered], frozen=True, type="WORKERS_MESSAGE"):
    """A message of a client to the controller, or to a worker."""

    message: Object


class WorkerTaskDone(Reply, frozen=True, type="WORKERS_TASK_DONE"):
    """The end of a task: a result, or an error."""

    message: Object
    handed_on: bool = False
    """Whether another worker has finished it; then its answer is already in the thread."""
    untrusted: str | None = None
    """The source of untrusted content that it has read, if any."""


class DoWorkerTask(Request[WorkerTaskDone], frozen=True, type="WORKERS_TASK"):
    """A task for a worker, from the controller or from another worker."""

    message: Object
    untrusted: str | None = None
    """The source of untrusted content that the sender has read, if any."""
    history: str | None = None
    """The worker reads the history of the thread before this message; None: there is none."""


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
    """Return a message for a request: without its time."""
    return {name: value for name, value in message.to_dict().items() if name != "timestamp"}


def from_wire(data: Any, asked_at: datetime | None) -> StructuredMessage:
    """Return the message that `to_wire` wrote, with the time of the request."""
    time = {} if asked_at is None else {"timestamp": asked_at.timestamp()}
    return StructuredMessage.from_dict({**time, **thaw(data)})
