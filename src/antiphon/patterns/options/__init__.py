"""Policies choose options, options produce results: the executor runs every call that has no result.

| | |
|---|---|
| `Options` | what there is to choose, and who chooses: functions, policies, agents |
| `Executor` | the loop, durable: decide, run, append, until a decision calls nothing |
| `All`, `FirstSuccess`, `NOfM`, `Groups` | how the calls of one decision are run, as data |
| `RunPolicy`, `CompleteCalls` | what its actor can be asked by other actors, in their thread |
| `export_transitions` | the decisions of a thread as training data |
"""

from antiphon.patterns.decisions import export_transitions
from antiphon.patterns.options._executor import Executor
from antiphon.patterns.options._options import Choices, Decide, Options, Policy
from antiphon.patterns.options._protocol import CallsCompleted, CompleteCalls, ExecutorLimits, PolicyRan, RunPolicy
from antiphon.patterns.options._rules import All, FirstSuccess, Groups, NOfM, Rule, under

__all__ = [
    "All",
    "CallsCompleted",
    "Choices",
    "CompleteCalls",
    "Decide",
    "Executor",
    "ExecutorLimits",
    "FirstSuccess",
    "Groups",
    "NOfM",
    "Options",
    "Policy",
    "PolicyRan",
    "Rule",
    "RunPolicy",
    "export_transitions",
    "under",
]
