"""Finding messages by what they say about themselves."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from datetime import datetime
from typing import Any

from typing_extensions import TypedDict, Unpack

from antiphon.dialects.marsys._message import Message
from antiphon.dialects.marsys._values import read_time

__all__ = ["Criteria", "filter_messages"]


class Criteria(TypedDict, total=False):
    """What a message can be looked for by. A criterion that is given counts, also if it is None."""

    role: str
    name: str | None
    message_id: str
    chain_id: str
    after: datetime | str
    before: datetime | str


def _is_in_chain(message: Message, chain_id: str) -> bool:
    return chain_id in (message.chain_id, message.message_id)


_TESTS: dict[str, Callable[[Message, Any], bool]] = {
    "role": lambda message, role: message.role == role,
    "name": lambda message, name: message.name == name,
    "message_id": lambda message, message_id: message.message_id == message_id,
    "chain_id": _is_in_chain,
    "after": lambda message, time: message.timestamp > time,
    "before": lambda message, time: message.timestamp < time,
}


def filter_messages(messages: Iterable[Message], **criteria: Unpack[Criteria]) -> list[Message]:
    """Return the messages that meet all criteria, in their order.

    `after` and `before` leave out the moment itself; a time without a zone is UTC. `chain_id` finds the whole chain,
    the message that began it included.

    Raises:
        TypeError: there is no such criterion.
        ValueError: `after` or `before` is no time.
    """
    if unknown := criteria.keys() - _TESTS:
        raise TypeError(f"no criterion {min(unknown)!r}; there are {', '.join(_TESTS)}")
    wanted = {key: read_time(value) if key in ("after", "before") else value for key, value in criteria.items()}
    return [message for message in messages if all(_TESTS[key](message, value) for key, value in wanted.items())]
