"""Vault: sensitive arguments of tool calls that came with a message: kept in memory, and written down nowhere.

A process that ends takes them with it. A call that was begun with them is not begun again; one that was not is refused, and
whoever gave them may give them anew.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Mapping
from typing import Any, Final

from antiphon.agents.toolkit import ToolkitTool
from antiphon.dialects.atlas import StructuredMessage
from antiphon.patterns.workers._mind import shown

__all__ = ["Vault"]

_MOST: Final = 10_000
"""Of how many messages it keeps something; those that nobody came for are let go of, the oldest first."""


class Vault:
    """What was taken out of messages, by their ids."""

    def __init__(self) -> None:
        self._kept: OrderedDict[str, list[dict[str, Any]]] = OrderedDict()

    def take_out(self, message: StructuredMessage, tools: Mapping[str, ToolkitTool]) -> StructuredMessage:
        """Return a message as it may be written down, and keep the rest."""
        calls = message.tool_calls
        said = [{**call, "arguments": shown(call["arguments"], tools.get(call["name"]))} for call in calls]
        if said == calls:
            return message
        self._kept[message.message_id] = calls
        if len(self._kept) > _MOST:
            self._kept.popitem(last=False)
        cleaned = message.copy()
        cleaned.tool_calls = said
        return cleaned

    def put_back(self, message: StructuredMessage) -> StructuredMessage:
        """Return a message as it was before, as far as that is here."""
        calls = self._kept.get(message.message_id)
        if calls is None:
            return message
        whole = message.copy()
        whole.tool_calls = calls
        return whole

    def let_go(self, message: StructuredMessage) -> None:
        """Keep nothing of a message that is answered."""
        self._kept.pop(message.message_id, None)
