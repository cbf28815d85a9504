"""How often each fault is tried: a little in `make test`, as often as the tables say in `make chaos`."""

import os

COUNTS: dict[str, tuple[int, int, int]] = {
    # fault: make test, make chaos, ANTIPHON_CHAOS=nightly
    "F1": (100, 300, 5_000),
    "F2": (5_000, 20_000, 200_000),
    "F3": (0, 3, 30),  # needs root
    "F5": (2, 5, 200),
    "F6": (5, 20, 500),
    "F7": (12, 100, 2_000),
    "F8": (10, 50, 500),
    "F9": (2, 5, 50),
    "F10": (5, 50, 500),
    "F11": (3, 20, 200),
    "F12": (3, 60, 1_200),  # seconds
    "F28": (2, 20, 300),
    "F33": (60, 200, 5_000),
}


def count(fault: str) -> int:
    """Return how often to try a fault."""
    level = {"": 0, "ci": 1, "nightly": 2}[os.environ.get("ANTIPHON_CHAOS", "")]
    return COUNTS[fault][level]
