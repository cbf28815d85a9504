"""The decisions of a thread of any pattern, as training data. Only a ledger is needed."""

from antiphon.patterns.decisions._decisions import RUN, Decision, DecisionReward, ThreadTop, decisions_of, export_transitions

__all__ = ["RUN", "Decision", "DecisionReward", "ThreadTop", "decisions_of", "export_transitions"]
