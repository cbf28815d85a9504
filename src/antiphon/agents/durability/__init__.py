"""How a Pydantic AI agent is made durable: its operations are effects in a thread.

`LedgerDurability` is what a program uses. `ThreadTalk`, `RecordedLists`, `ToolFailures` and the functions below are for code
that makes its own effects in a run, as the toolkit and the patterns do.
"""

from antiphon.agents._observers import LiveDelta, listen
from antiphon.agents.durability._capability import LedgerDurability
from antiphon.agents.durability._failures import ToolFailure, ToolFailures
from antiphon.agents.durability._model_request import price_of
from antiphon.agents.durability._store import LedgerConversationStore
from antiphon.agents.durability._talk import ThreadTalk, as_messages, guards_of
from antiphon.agents.durability._tool_call import NotDone, Reconcile, RecordedLists, Unsettled

__all__ = [
    "LedgerConversationStore",
    "LedgerDurability",
    "LiveDelta",
    "NotDone",
    "Reconcile",
    "RecordedLists",
    "ThreadTalk",
    "ToolFailure",
    "ToolFailures",
    "Unsettled",
    "as_messages",
    "guards_of",
    "listen",
    "price_of",
]
