"""What was decided in a thread, whichever pattern ran it: training data. Needs nothing but a ledger."""

from antiphon.patterns.decisions._decisions import RUN, Decision, DecisionReward, ThreadTop, decisions_of, export_transitions

__all__ = ["RUN", "Decision", "DecisionReward", "ThreadTop", "decisions_of", "export_transitions"]
