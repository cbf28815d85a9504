"""What the actors of this pattern say to each other: structured messages of Atlas, asked and answered.

A handler that runs again must say the same again, so what is asked has no time of its own: it is that of the row.
"""

from __future__ import annotations

from datetime import datetime
from typing import Any, Final

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


def to_wire(message: StructuredMessage) -> dict[str, Any]:
    """Return a message as it is asked: without its time."""
    return {name: value for name, value in message.to_dict().items() if name != "timestamp"}


def from_wire(data: Any, asked_at: datetime | None) -> StructuredMessage:
    """Return the message that `to_wire` gave, of the time when it was asked."""
    time = {} if asked_at is None else {"timestamp": asked_at.timestamp()}
    return StructuredMessage.from_dict({**time, **thaw(data)})
