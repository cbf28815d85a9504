"""Export of the decisions of a thread of any pattern as training data. It needs only a ledger."""

from antiphon.patterns.decisions._decisions import RUN, Decision, DecisionReward, ThreadTop, decisions_of, export_transitions

__all__ = ["RUN", "Decision", "DecisionReward", "ThreadTop", "decisions_of", "export_transitions"]
