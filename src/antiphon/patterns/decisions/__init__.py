"""What was decided in a thread, whichever pattern ran it: training data. Needs nothing but a ledger."""

from antiphon.patterns.decisions._decisions import Decision, DecisionReward, decisions_of, export_transitions

__all__ = ["Decision", "DecisionReward", "decisions_of", "export_transitions"]
