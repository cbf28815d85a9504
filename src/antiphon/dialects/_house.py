"""The house format as a dialect: nothing is lost, because it is the core itself."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, cast

from antiphon.dialects._api import Encoded, Losses
from antiphon.dialects._units import parsed
from antiphon.errors import DecodeError
from antiphon.messages import Conversation, Message, dumps, loads
from antiphon.messages._json import parse, write

__all__ = ["DIALECT"]


class HouseDialect:
    """What `dumps` writes: a conversation's first line and its messages, as a list of objects."""

    name = "house"
    summary = "antiphon's own format"

    def decode(self, data: Any, *, aliases: Mapping[str, str] | None = None) -> Conversation:
        if not isinstance(data, bytes | bytearray | str):
            lines = parsed(data, self.name)
            data = b"\n".join(write(line) for line in (cast("list[Any]", lines) if isinstance(lines, list) else [lines]))
        try:
            found = loads(data.encode() if isinstance(data, str) else bytes(data))
        except UnicodeEncodeError:
            raise DecodeError("a lone surrogate: it is no Unicode text", dialect=self.name) from None
        return Conversation([found]) if isinstance(found, Message) else found

    def encode(
        self, conversation: Conversation, *, as_policy: str | None = None, losses: Losses = "report", **options: Any
    ) -> Encoded:
        if options:
            raise TypeError(f"house has no option {min(options)!r}")
        return Encoded([parse(line) for line in dumps(conversation).splitlines()])

    def recognise(self, data: Any) -> str | None:
        first = cast("Any", data[0] if isinstance(data, list) and data else data)
        return "the key antiphon, with a version" if isinstance(first, dict) and "antiphon" in first else None


DIALECT = HouseDialect()
