"""Pydantic AI agents made durable, with toolkits, permissions, approvals and models.

The names below are imported when first used, so that what is not used costs nothing.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from antiphon.agents._budget import AgentBudget
    from antiphon.agents._run import CurrentEffect, LedgerRun, current_effect, current_run, ledger_run
    from antiphon.agents._store import LedgerConversationStore
    from antiphon.agents.durability import Delta, LedgerDurability, NotDone, Reconcile, Unsettled, listen
    from antiphon.agents.models import model
    from antiphon.agents.toolkit import Toolkit

__all__ = [
    "AgentBudget",
    "CurrentEffect",
    "Delta",
    "LedgerConversationStore",
    "LedgerDurability",
    "LedgerRun",
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

_HOME = {
    **dict.fromkeys(__all__, "antiphon.agents._run"),
    "AgentBudget": "antiphon.agents._budget",
    "LedgerConversationStore": "antiphon.agents._store",
    **dict.fromkeys(
        ("Delta", "LedgerDurability", "NotDone", "Reconcile", "Unsettled", "listen"), "antiphon.agents.durability"
    ),
    "Toolkit": "antiphon.agents.toolkit",
    "model": "antiphon.agents.models",
}


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module 'antiphon.agents' has no attribute {name!r}")
    from importlib import import_module  # noqa: PLC0415 (only when a name is first used)

    try:
        value = getattr(import_module(_HOME[name]), name)
    except ModuleNotFoundError as exc:
        if exc.name is None or exc.name.partition(".")[0] != "pydantic_ai":
            raise
        raise ModuleNotFoundError(f'{name} needs Pydantic AI: pip install "antiphon[agents]"', name=exc.name) from exc
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return __all__
