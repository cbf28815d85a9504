"""Letters: what passes between two peers, in the form of MARSYS, as messages of the thread.

An `agent_call` is an option call whose option is a peer; the `agent_response` or `error` that answers it is its result. An
error that answers no call, because the call was refused, is something said by whoever wanted to call. Beside the form stands
who wrote to whom, so that nobody has to read the form to know.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final, NamedTuple

from antiphon.dialects import decode, encode, marsys
from antiphon.ledger import Record
from antiphon.messages import Conversation, JsonObject, Message, thaw

__all__ = ["Exchange", "Letter", "Refusal", "dated", "letter_of", "marsys_form"]

_OWN: Final = "peers"
_DIALECT: Final = "marsys"


class Refusal(NamedTuple):
    """Why a call was not made, or what became of it instead of an answer."""

    error_type: str
    reason: str
    retryable: bool = False


class Letter(NamedTuple):
    """Who wrote to whom, in which exchange."""

    task_id: str
    caller: str
    callee: str
    untrusted: str | None


@dataclass(frozen=True, slots=True)
class Exchange:
    """One peer that asks another."""

    task_id: str
    """What pairs the call with what answers it."""
    root: str
    """The task that it is part of: what the user asked."""
    caller: str
    callee: str
    request: str
    depth: int
    untrusted: str | None = None

    def call(self) -> Message:
        """Return that it asks."""
        return self._message(self._call, untrusted=self.untrusted)

    def response(self, content: str, completion_time: float, untrusted: str | None) -> Message:
        """Return what is answered."""
        more = {"completion_time": completion_time}
        unit = {"role": "agent_response", "content": content, "name": self.callee, "metadata": self._about(**more)}
        return self._message(self._call, unit, untrusted=untrusted)

    def failure(self, failed: Refusal) -> Message:
        """Return what became of the call instead of an answer."""
        return self._message(self._call, self._error(failed))

    def refused(self, refusal: Refusal) -> Message:
        """Return that the call is not made, and why."""
        return self._message(self._error(refusal))

    @property
    def _call(self) -> dict[str, Any]:
        metadata = self._about(depth=self.depth)
        return {"role": "agent_call", "content": self.request, "name": self.callee, "metadata": metadata}

    def _error(self, refusal: Refusal) -> dict[str, Any]:
        metadata = self._about(error_type=refusal.error_type, retryable=refusal.retryable)
        return {"role": "error", "content": refusal.reason, "name": self.caller, "metadata": metadata}

    def _about(self, **more: Any) -> dict[str, Any]:
        return {"caller": self.caller, "callee": self.callee, "task_id": self.task_id, **more}

    def _message(self, *units: dict[str, Any], untrusted: str | None = None) -> Message:
        """Return the last of the units, read after those before it, as a message of the task."""
        message = decode(list(units), _DIALECT)[-1]
        own: dict[str, Any] = {"task_id": self.task_id, "caller": self.caller, "callee": self.callee}
        if untrusted is not None:
            own["untrusted"] = untrusted
        metadata = {name: thaw(value) for name, value in message.metadata.items()}
        return message.model_copy(update={"correlation_id": self.root, "metadata": {**metadata, _OWN: own}})


def letter_of(message: Message) -> Letter | None:
    """Return who wrote to whom, if a message is a letter."""
    own = message.metadata.get(_OWN)
    if message.lane != "talk" or not isinstance(own, JsonObject):
        return None
    untrusted = own.get("untrusted")
    match own.get("task_id"), own.get("caller"), own.get("callee"):
        case (str(task_id), str(caller), str(callee)):
            return Letter(task_id, caller, callee, untrusted if isinstance(untrusted, str) else None)
        case _:
            return None  # of a history from elsewhere


def dated(record: Record) -> Message:
    """Return a message of a thread with a time: a letter has none of its own, it was written when it was recorded."""
    message = record.message
    return message if message.created_at is not None else message.model_copy(update={"created_at": record.recorded_at})


def marsys_form(messages: Conversation) -> list[marsys.Message]:
    """Return messages of a thread as MARSYS has them."""
    units: Any = encode(messages, _DIALECT).value
    return [marsys.Message.from_dict(unit) for unit in units]
