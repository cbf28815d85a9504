"""The ledger: its contract, its stores, and the values that they take and return."""

from antiphon.ledger._chain import Record
from antiphon.ledger._contract import Ledger
from antiphon.ledger._hosts import Host, HostStatus, LeaseClock, TakenThread, Unfit, Why, Woken
from antiphon.ledger._listing import SYSTEM_PATTERN
from antiphon.ledger._open import check_opened, command_line, open_ledger
from antiphon.ledger._outside import from_outside, is_foreign, is_not_executed
from antiphon.ledger._redaction import STANDARD_REDACTION, Redacting, Redaction
from antiphon.ledger._rewards import Reward, record_reward, rewards_of
from antiphon.ledger._terms import MOST_TERMS, TermEntry, TermIndex, TermMatch, TermMatches, VectorSpace, VectorStore
from antiphon.ledger._values import (
    CallOrder,
    CallPage,
    Damage,
    Diff,
    Fold,
    Head,
    Hit,
    Snapshot,
    Tailed,
    ThreadFilter,
    ThreadJournal,
    ThreadOrder,
    ThreadPage,
    ThreadSummary,
    Verification,
)

__all__ = [
    "MOST_TERMS",
    "STANDARD_REDACTION",
    "SYSTEM_PATTERN",
    "CallOrder",
    "CallPage",
    "Damage",
    "Diff",
    "Fold",
    "Head",
    "Hit",
    "Host",
    "HostStatus",
    "LeaseClock",
    "Ledger",
    "Record",
    "Redacting",
    "Redaction",
    "Reward",
    "Snapshot",
    "Tailed",
    "TakenThread",
    "TermEntry",
    "TermIndex",
    "TermMatch",
    "TermMatches",
    "ThreadFilter",
    "ThreadJournal",
    "ThreadOrder",
    "ThreadPage",
    "ThreadSummary",
    "Unfit",
    "VectorSpace",
    "VectorStore",
    "Verification",
    "Why",
    "Woken",
    "check_opened",
    "command_line",
    "from_outside",
    "is_foreign",
    "is_not_executed",
    "open_ledger",
    "record_reward",
    "rewards_of",
]
