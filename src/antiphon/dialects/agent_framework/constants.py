"""The fourteen message types and the collections they form, as lists in the order of the format's specification.

The lists are for filtering, and may be changed: nothing here reads them. All of them are built from `FAMILIES`.
"""

from collections.abc import Mapping
from types import MappingProxyType
from typing import Final

__all__ = [
    "ACTION",
    "ALL_TYPES",
    "ASSISTANT_MESSAGE",
    "COMPLETION_TYPES",
    "CONTEXT_TYPES",
    "CONVERSATION_TYPES",
    "DELEGATION",
    "DELEGATION_TYPES",
    "DIRECTOR_CONTEXT",
    "ERROR",
    "EXECUTION_TRACE_TYPES",
    "FAMILIES",
    "FINAL",
    "INJECTED_CONTEXT",
    "OBSERVATION",
    "PLANNING_TYPES",
    "SCRIPT_PLAN",
    "STRATEGIC_PLAN",
    "SUGGESTED_PLAN",
    "SYNTHESIS",
    "TASK",
    "USER_MESSAGE",
]

USER_MESSAGE: Final = "user_message"
ASSISTANT_MESSAGE: Final = "assistant_message"

TASK: Final = "task"
ACTION: Final = "action"
OBSERVATION: Final = "observation"
ERROR: Final = "error"

FINAL: Final = "final"
SYNTHESIS: Final = "synthesis"

STRATEGIC_PLAN: Final = "strategic_plan"
SUGGESTED_PLAN: Final = "suggested_plan"
SCRIPT_PLAN: Final = "script_plan"

DIRECTOR_CONTEXT: Final = "director_context"
INJECTED_CONTEXT: Final = "injected_context"

DELEGATION: Final = "delegation"

FAMILIES: Final[Mapping[str, tuple[str, ...]]] = MappingProxyType(
    {
        "conversation": (USER_MESSAGE, ASSISTANT_MESSAGE),
        "execution trace": (TASK, ACTION, OBSERVATION, ERROR),
        "completion": (FINAL, SYNTHESIS),
        "planning": (STRATEGIC_PLAN, SUGGESTED_PLAN, SCRIPT_PLAN),
        "context": (DIRECTOR_CONTEXT, INJECTED_CONTEXT),
        "delegation": (DELEGATION,),
    }
)
"""Every type, in one family each."""

CONVERSATION_TYPES: Final[list[str]] = list(FAMILIES["conversation"])
EXECUTION_TRACE_TYPES: Final[list[str]] = list(FAMILIES["execution trace"])
COMPLETION_TYPES: Final[list[str]] = list(FAMILIES["completion"])
PLANNING_TYPES: Final[list[str]] = list(FAMILIES["planning"])
CONTEXT_TYPES: Final[list[str]] = list(FAMILIES["context"])
DELEGATION_TYPES: Final[list[str]] = list(FAMILIES["delegation"])
ALL_TYPES: Final[list[str]] = [kind for family in FAMILIES.values() for kind in family]
