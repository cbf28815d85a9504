"""The host's own message store: how a team reads the conversation from it, and hands over what was said.

The ledger stays the only truth of what a team does. What is read from the host is recorded there before anything follows from
it, so a turn that is taken up plans with the same. What was said is handed over when a turn has ended, each message at
least once: after a crash in between, or where the store fails, the same words in the same thread hand it over again.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from pydantic import ValidationError

from antiphon.dialects.agent_framework import BaseMessageStore, RecordingMessageStore, normalise_message
from antiphon.dialects.agent_framework.constants import CONVERSATION_TYPES, USER_MESSAGE
from antiphon.errors import RefusedError
from antiphon.protocol import ErrorCode

__all__ = ["hand_over", "read_conversation"]


async def read_conversation(store: BaseMessageStore, location: str, *, limit: int, request: str) -> list[dict[str, Any]]:
    """Return the latest messages of a conversation, without the request, which hosts may have written before they ask.

    The limit is not left to the store: some take it from the beginning.

    Raises:
        RefusedError: the store gives what are no messages of the format.
    """
    given = store.get_conversation_messages(location)
    given = given if isinstance(given, Sequence) else await given
    found = [entry for entry in map(_checked, given) if entry["type"] in CONVERSATION_TYPES]
    if found and (found[-1]["type"], found[-1]["content"]) == (USER_MESSAGE, request):
        found.pop()
    return found[max(0, len(found) - limit) :]


async def hand_over(store: RecordingMessageStore, location: str, entries: Iterable[dict[str, Any]]) -> None:
    """Give messages to a store that takes them, in order. What it raises is its own."""
    for entry in entries:
        if (added := store.add_message(location, entry)) is not None:
            await added


def _checked(entry: Mapping[str, Any]) -> dict[str, Any]:
    """Return what a message says, and where strangers' words in it come from. Its time is the host's, in any form."""
    said = {name: value for name, value in entry.items() if name != "timestamp" and value is not None}
    try:
        checked = normalise_message(said)
    except ValidationError as exc:
        first = exc.errors()[0]
        where = ".".join(map(str, first["loc"])) or "message"
        reason = f"the message store gave a message that is none: {where}: {first['msg']}"
        raise RefusedError(reason, ErrorCode.VALIDATION_ERROR) from exc
    return {name: checked[name] for name in ("type", "content", "metadata") if name in checked}
