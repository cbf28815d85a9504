"""Pydantic AI agents made durable, with toolkits, permissions, approvals and models.

The names below are imported when first used, so that what is not used costs nothing.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from antiphon._lazy import lazy_names as _lazy_names

if TYPE_CHECKING:
    from antiphon.agents._budget import AgentBudget
    from antiphon.agents._run import CurrentEffect, LedgerRun, current_effect, current_run, ledger_run
    from antiphon.agents.durability import (
        LedgerConversationStore,
        LedgerDurability,
        LiveDelta,
        NotDone,
        Reconcile,
        Unsettled,
        listen,
    )
    from antiphon.agents.models import model
    from antiphon.agents.toolkit import Toolkit

__all__ = [
    "AgentBudget",
    "CurrentEffect",
    "LedgerConversationStore",
    "LedgerDurability",
    "LedgerRun",
    "LiveDelta",
    "NotDone",
    "Reconcile",
    "Toolkit",
    "Unsettled",
    "current_effect",
    "current_run",
    "ledger_run",
    "listen",
    "model",
]

_HERE = "antiphon.agents"
_HOME = {
    **dict.fromkeys(__all__, f"{_HERE}.durability"),
    "AgentBudget": f"{_HERE}._budget",
    **dict.fromkeys(("CurrentEffect", "LedgerRun", "current_effect", "current_run", "ledger_run"), f"{_HERE}._run"),
    "Toolkit": f"{_HERE}.toolkit",
    "model": f"{_HERE}.models",
}

__getattr__, __dir__ = _lazy_names(__name__, _HOME, needs={"pydantic_ai": 'Pydantic AI: pip install "antiphon[agents]"'})
