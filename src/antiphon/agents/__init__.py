"""Pydantic AI agents made durable, with toolkits, permissions, approvals and models.

The names below are imported when first used, so that what is not used costs nothing.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from antiphon._lazy import lazy_names as _lazy_names

if TYPE_CHECKING:
    from antiphon.agents._budget import AgentBudget, Amount
    from antiphon.agents._guards import ThreadGuards
    from antiphon.agents._run import CurrentEffect, LedgerRun, current_effect, current_run, ledger_run, run_scope
    from antiphon.agents.durability import (
        Delta,
        LedgerConversationStore,
        LedgerDurability,
        NotDone,
        Reconcile,
        Unsettled,
        listen,
    )
    from antiphon.agents.models import model
    from antiphon.agents.toolkit import Toolkit
    from antiphon.messages.keys import as_key

__all__ = [
    "AgentBudget",
    "Amount",
    "CurrentEffect",
    "Delta",
    "LedgerConversationStore",
    "LedgerDurability",
    "LedgerRun",
    "NotDone",
    "Reconcile",
    "ThreadGuards",
    "Toolkit",
    "Unsettled",
    "as_key",
    "current_effect",
    "current_run",
    "ledger_run",
    "listen",
    "model",
    "run_scope",
]

_HERE = "antiphon.agents"
_HOME = {
    **dict.fromkeys(__all__, f"{_HERE}.durability"),
    **dict.fromkeys(("AgentBudget", "Amount"), f"{_HERE}._budget"),
    **dict.fromkeys(
        ("CurrentEffect", "LedgerRun", "current_effect", "current_run", "ledger_run", "run_scope"), f"{_HERE}._run"
    ),
    "ThreadGuards": f"{_HERE}._guards",
    "Toolkit": f"{_HERE}.toolkit",
    "as_key": "antiphon.messages.keys",
    "model": f"{_HERE}.models",
}

__getattr__, __dir__ = _lazy_names(__name__, _HOME, needs={"pydantic_ai": 'Pydantic AI: pip install "antiphon[agents]"'})
