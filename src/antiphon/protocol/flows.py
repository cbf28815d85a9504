"""Flows: who may say what to whom, and when, as data that judges threads, live or stored."""

from antiphon.protocol._automaton import (
    Choice,
    Flow,
    FlowWatch,
    Pattern,
    Repeat,
    Sequence,
    Step,
    Verdict,
    choice,
    maybe,
    repeat,
    sequence,
)
from antiphon.protocol._flow_file import flow_data, read_flow
from antiphon.protocol._flows import FLOWS, find_flow

__all__ = [
    "FLOWS",
    "Choice",
    "Flow",
    "FlowWatch",
    "Pattern",
    "Repeat",
    "Sequence",
    "Step",
    "Verdict",
    "choice",
    "find_flow",
    "flow_data",
    "maybe",
    "read_flow",
    "repeat",
    "sequence",
]
