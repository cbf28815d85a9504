"""The journal's own rows: calls and results in the lane `effect`, which say what was begun and what came of it.

Each is a call that stays open as long as the thing is not settled, so that the open calls of a thread are all that
recovery needs to read. `parent_id` is the invocation that the row is about. They have no time of their own: the ledger
says when it took them in.

| option | open while |
|---|---|
| `DELIVER` | a message that was told has not been handled; it stands right before this row |
| `AGAIN` | a message was delivered again, and has not been handled; there is one for each time |
| `PARK` | a person must settle a message |
| `TIMER` | a timer runs |
| any other | an effect was begun, and its outcome is not known |

An effect that is started another time gets a row for each further attempt, which is no call and so is never open: the intent
stays the one thing to be ended. `correlation_id` is the effect.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from hashlib import sha256
from typing import TYPE_CHECKING, Any, Final

from antiphon.messages import (
    RUNTIME_POLICY,
    DataPart,
    Json,
    Message,
    OptionResultPayload,
    PartsPayload,
)
from antiphon.runtime._own import own_call, own_message, own_result

if TYPE_CHECKING:
    from antiphon.ledger import Ledger

__all__ = ["AGAIN", "DELIVER", "PARK", "TIMER", "again_id", "attempted", "begun", "child_id", "ended", "park_id", "unused"]

_LONG = 256
"""Characters of an id that leave room in a name for a key, and for the marks of the rows."""

DELIVER: Final = "DELIVER"
AGAIN: Final = "AGAIN"
PARK: Final = "PARK"
TIMER: Final = "TIMER"


def child_id(parent_id: str, key: str) -> str:
    """Return the id of what is said or done in the course of an invocation: the same whenever its handler runs."""
    if len(parent_id) > _LONG:  # a name has its limits, and a course may be deep
        parent_id = sha256(parent_id.encode()).hexdigest()
    return f"{parent_id}/{key}"


def again_id(invocation_id: str, attempt: int) -> str:
    """Return the invocation of the row that says which delivery of a message this is."""
    return f"{invocation_id}#{attempt}"


def park_id(invocation_id: str, time: int = 1) -> str:
    """Return the invocation of the row that parks a message, or an effect; `time` says for which time."""
    return f"{invocation_id}#park" if time == 1 else f"{invocation_id}#park{time}"


async def unused(ledger: Ledger, thread_id: str, name: Callable[[int], str], first: int) -> int:
    """Return the first number whose name the thread does not have.

    Rows that were ended keep their names: to begin one of the same name is refused, or taken for the one that ended.
    """
    while await ledger.by_invocation(name(first), thread_id=thread_id):
        first += 1
    return first


def begun(
    option: str,
    invocation_id: str,
    *,
    thread_id: str,
    parent_id: str | None = None,
    arguments: Mapping[str, Json] | None = None,
    policy: str = RUNTIME_POLICY,
) -> Message:
    """Return the row that says something was begun. The same thing gives the same row, so that it can be appended twice."""
    payload = own_call(invocation_id, option, dict(arguments or {}))
    return own_message(str(policy), payload, id=f"{invocation_id}@begun", thread_id=thread_id, parent_id=parent_id)


def attempted(effect: str, attempt: int, *, thread_id: str, policy: str) -> Message:
    """Return the row that says an effect is started another time; `attempt` is 2 for the first of them."""
    said = PartsPayload(parts=(DataPart(data={"type": "ATTEMPT", "data": {"attempt": attempt}}),))
    row_id = f"{effect}@attempt{attempt}"
    return own_message(str(policy), said, id=row_id, thread_id=thread_id, correlation_id=effect, parent_id=effect)


def ended(
    option: str,
    invocation_id: str,
    *,
    thread_id: str,
    parent_id: str | None = None,
    policy: str = RUNTIME_POLICY,
    **outcome: Any,
) -> Message:
    """Return the row that says what came of it; `outcome` are the fields of the result."""
    is_plain = outcome.keys() == {"result"}
    payload = (
        own_result(invocation_id, option, outcome["result"])
        if is_plain
        else OptionResultPayload(invocation_id=invocation_id, option_name=option, **outcome)
    )
    return own_message(str(policy), payload, id=f"{invocation_id}@ended", thread_id=thread_id, parent_id=parent_id)
