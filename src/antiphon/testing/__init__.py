"""What antiphon ships so that others can test theirs: fakes that are real, and checks of what is promised."""

from antiphon.testing._bus import BUS_CHECKS, MakeBus, check_bus
from antiphon.testing._dialects import check_dialect
from antiphon.testing._ledger import LEDGER_CHECKS, MakeLedger, check_ledger
from antiphon.testing._simulate import Drive, Faults, Host, Simulated, World, simulate
from antiphon.testing._virtual_time import CountingPort, StuckError, VirtualLoop, VirtualPort
from antiphon.testing._witness import Event, Evidence, Row, Witness, content_of, gather_evidence, read_events
from antiphon.testing._witness_rules import Breach, WitnessReport, check_witness

__all__ = [
    "BUS_CHECKS",
    "LEDGER_CHECKS",
    "Breach",
    "CountingPort",
    "Drive",
    "Event",
    "Evidence",
    "Faults",
    "Host",
    "MakeBus",
    "MakeLedger",
    "Row",
    "Simulated",
    "StuckError",
    "VirtualLoop",
    "VirtualPort",
    "Witness",
    "WitnessReport",
    "World",
    "check_bus",
    "check_dialect",
    "check_ledger",
    "check_witness",
    "content_of",
    "gather_evidence",
    "read_events",
    "simulate",
]
