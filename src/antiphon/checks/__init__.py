"""What is wrong with a conversation, for a target or for any, and how to mend it.

`check` names what a provider would refuse, and `repair` puts it right: both by one table of rules, each with a code for ever.
"""

from antiphon.checks._finding import Change, Finding, Repaired, Severity
from antiphon.checks._marks import is_left_out, projected
from antiphon.checks._targets import TARGETS, Accepted, Spelling, Target
from antiphon.checks._verbs import check, repair

__all__ = [
    "TARGETS",
    "Accepted",
    "Change",
    "Finding",
    "Repaired",
    "Severity",
    "Spelling",
    "Target",
    "check",
    "is_left_out",
    "projected",
    "repair",
]
