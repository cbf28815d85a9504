"""Names for libraries that build on agents: parts of runs, the talk of a thread, prices, approvals, settings of tools.

A program that runs agents needs only `antiphon.agents`. `antiphon.patterns` is built on this module: a pattern runs agents as
parts of its own run. These names may change with a minor version; stored rows keep their meaning.
"""

from antiphon.agents._deeds import counting_deeds, has_deeds, note_deed
from antiphon.agents._guards import SENSITIVE, ThreadGuards
from antiphon.agents._observers import publish_live
from antiphon.agents._tool_names import name_among, plainly_named
from antiphon.agents.durability import (
    ModelOutages,
    Quotation,
    ThreadTalk,
    as_messages,
    failed_call,
    is_outcome,
    is_recorded,
    is_tried,
    note_price,
    permitted,
    price_of,
    quoting,
)
from antiphon.agents.durability._failures import is_outside, may_pass
from antiphon.agents.toolkit._tool import declared_settings
from antiphon.durable._block import retried_run
from antiphon.durable._budget import Amount, Bounds, BudgetLimits
from antiphon.durable._run import run_scope
from antiphon.messages.keys import as_key

__all__ = [
    "SENSITIVE",
    "Amount",
    "Bounds",
    "BudgetLimits",
    "ModelOutages",
    "Quotation",
    "ThreadGuards",
    "ThreadTalk",
    "as_key",
    "as_messages",
    "counting_deeds",
    "declared_settings",
    "failed_call",
    "has_deeds",
    "is_outcome",
    "is_outside",
    "is_recorded",
    "is_tried",
    "may_pass",
    "name_among",
    "note_deed",
    "note_price",
    "permitted",
    "plainly_named",
    "price_of",
    "publish_live",
    "quoting",
    "retried_run",
    "run_scope",
]
