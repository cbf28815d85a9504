"""How often each fault is tried: a little in `make test`, as often as the tables say in `make chaos`."""

import os

__all__ = ["count"]

_COUNTS: dict[str, tuple[int, int, int]] = {
    # fault: make test, make chaos, ANTIPHON_CHAOS=nightly
    "seeds": (300, 20_000, 200_000),  # worlds that are simulated
    "hosts": (300, 20_000, 200_000),  # worlds of three systems that are simulated
    "approvals": (80, 10_000, 100_000),  # such worlds, in which people answer approvals
    "storms": (40, 2_000, 50_000),  # of each of two ways
    "F13": (30, 300, 1_000),  # ledgers, each with three processes killed
    "F13 hosts": (1, 100, 3_000),  # ledgers, each with three hosts of which two are killed
    "frozen": (1, 10, 200),  # simulated worlds, of each place where a process with a run can be frozen
    "stopped": (0, 1, 1),  # whether a run is stopped at all points, in all ways, on both stores
    "threads": (60, 200, 200),  # in hand of one of three hosts that is killed
    "F14": (2, 20, 500),  # of each of two ways
    "F15": (1, 20, 200),
    "F16 hosts": (1, 20, 200),  # of each of three ways
    "F16": (5, 20, 200),  # of each of four ways
    "F17": (3, 20, 50),
    "F18": (1, 5, 50),
    "F19": (1, 100, 100),  # of each of fourteen ways
    "F20": (10, 100, 500),
    "overload": (1, 10, 60),  # seconds
    "PostgreSQL": (0, 20, 200),  # of each of seven faults of hosts and of the database
    "F27": (0, 10, 300),  # partitions of a host and the database
    "F29": (0, 5, 50),  # jumps of the clock of all hosts, on PostgreSQL; needs gcc
    "F35": (1, 5, 20),  # rolling updates, on PostgreSQL
    "F36": (0, 180, 3_600),  # seconds of faults at random, on PostgreSQL
}


def count(fault: str) -> int:
    """Return how often to try a fault."""
    level = {"": 0, "ci": 1, "nightly": 2}[os.environ.get("ANTIPHON_CHAOS", "")]
    return _COUNTS[fault][level]
