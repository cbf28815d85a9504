"""The ledger: its contract, its stores, and the values that they take and return."""

from antiphon.ledger._contract import Ledger
from antiphon.ledger._encryption import EncryptionStatus, MasterKey, WrappedKey
from antiphon.ledger._hosts import Epoch, Host, HostStatus, LeaseClock, TakenThread, Unfit, Why, Woken
from antiphon.ledger._open import open_ledger
from antiphon.ledger._permits import Limit, LimitStatus, PermitGrant, PermitHolder, PermitWants
from antiphon.ledger._records import Record
from antiphon.ledger._redaction import STANDARD_REDACTION, Redaction, RedactionRules
from antiphon.ledger._request import is_foreign, is_not_executed
from antiphon.ledger._signals import Signals
from antiphon.ledger._terms import TermEntry, TermIndex, TermMatch, TermMatches, VectorSpace, VectorStore
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
    ThreadCount,
    ThreadFilter,
    ThreadJournal,
    ThreadOrder,
    ThreadPage,
    ThreadStanding,
    ThreadSummary,
    Verification,
)
from antiphon.ledger._verbs import Reward, record_reward, rewards_of

__all__ = [
    "STANDARD_REDACTION",
    "CallOrder",
    "CallPage",
    "Damage",
    "Diff",
    "EncryptionStatus",
    "Epoch",
    "Fold",
    "Head",
    "Hit",
    "Host",
    "HostStatus",
    "LeaseClock",
    "Ledger",
    "Limit",
    "LimitStatus",
    "MasterKey",
    "PermitGrant",
    "PermitHolder",
    "PermitWants",
    "Record",
    "Redaction",
    "RedactionRules",
    "Reward",
    "Signals",
    "Snapshot",
    "Tailed",
    "TakenThread",
    "TermEntry",
    "TermIndex",
    "TermMatch",
    "TermMatches",
    "ThreadCount",
    "ThreadFilter",
    "ThreadJournal",
    "ThreadOrder",
    "ThreadPage",
    "ThreadStanding",
    "ThreadSummary",
    "Unfit",
    "VectorSpace",
    "VectorStore",
    "Verification",
    "Why",
    "Woken",
    "WrappedKey",
    "is_foreign",
    "is_not_executed",
    "open_ledger",
    "record_reward",
    "rewards_of",
]
