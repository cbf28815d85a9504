"""What is wrong with a conversation, for a target or for any, and how to mend it.

`check` names what a provider would refuse, and `repair` puts it right: both by one table of rules, each with a code for ever.
"""

from antiphon.checks._findings import Change, Finding, Repaired, Severity, is_left_out, projected
from antiphon.checks._targets import TARGETS, Accepted, Spelling, Target
from antiphon.checks._verbs import check, repair
from antiphon.checks._view import PLACEHOLDER, same_breath, usual_role

__all__ = [
    "PLACEHOLDER",
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
    "same_breath",
    "usual_role",
]
