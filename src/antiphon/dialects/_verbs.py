"""The verbs that stand at the top of the package: decode, encode, convert."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from antiphon.dialects._api import Converts, Encoded, Losses
from antiphon.dialects._fresh import with_fresh_ids
from antiphon.dialects._registry import get
from antiphon.messages import Conversation

__all__ = ["convert", "decode", "encode"]


def decode(data: Any, dialect: str, *, aliases: Mapping[str, str] | None = None, fresh_ids: bool = False) -> Conversation:
    """Read a conversation from somebody's format: bytes, text, or parsed JSON.

    `aliases` are those of the `Encoded` that was sent, where the format refused some of our ids or names. What has no id
    of its own gets one from its place and content, so that reading the same data twice gives the same; `fresh_ids` gives
    new ones instead, for what was said just now: the same words said twice are two messages.

    Raises:
        DecodeError: the data is not that format; it says where and what was expected.
        LookupError: there is no dialect of that name.
    """
    read = get(dialect).decode(data, aliases=aliases) if aliases else get(dialect).decode(data)
    return with_fresh_ids(read, dialect) if fresh_ids else read


def encode(
    conversation: Conversation, dialect: str, as_policy: str | None = None, losses: Losses = "report", **options: Any
) -> Encoded:
    """Write a conversation in somebody's format, and report what the format cannot say.

    `as_policy` is the viewpoint: whose words are the assistant's.

    Raises:
        EncodeError: `losses="raise"`, and something would be lost.
        LookupError: there is no dialect of that name.
    """
    return get(dialect).encode(conversation, as_policy=as_policy, losses=losses, **options)


def convert(
    data: Any, *, source: str, target: str, losses: Losses = "report", as_policy: str | None = None, **options: Any
) -> Encoded:
    """Turn data in one format into another.

    Raises:
        DecodeError: the data is not in the source's format.
        EncodeError: `losses="raise"`, and something would be lost.
    """
    reader, writer = get(source), get(target)
    if (
        source == target
        or options
        or losses == "raise"
        or not isinstance(reader, Converts)
        or not isinstance(writer, Converts)
    ):
        return encode(reader.decode(data), target, as_policy, losses, **options)
    if not isinstance(data, bytes | str):
        return writer.encode(reader.skim(data), as_policy=as_policy)
    value, aliases = writer.write_away(reader.skim(data), as_policy)
    return Encoded(value, lambda: writer.encode(reader.skim(data), as_policy=as_policy).losses, aliases)
