"""How the tests start other processes."""

import random
import signal
import socket
from contextlib import suppress

__all__ = ["free_port", "have_children_handle_signals"]

SIGNALS = (signal.SIGINT, signal.SIGQUIT, signal.SIGTERM)
PORTS = range(20_000, 32_000)
"""Below those that Linux takes for the near end of a connection, of which thousands come and go in a test run."""


def have_children_handle_signals() -> None:
    """Start every child with default signal handlers, also where the tests run in the background.

    A shell without job control has its background jobs ignore SIGINT. A child inherits that a signal is ignored, but
    not that it is handled: so a handler here is the default there, for all children, however they are started.
    """
    for each in SIGNALS:
        if signal.getsignal(each) is signal.SIG_IGN:
            signal.signal(each, signal.default_int_handler)


def free_port() -> int:
    """Return a port of 127.0.0.1 that a server may listen at, also again after it was stopped.

    Nobody holds the port meanwhile. So it is chosen at random, for tests that run at once, and from a range in which the
    system itself takes none.
    """
    while True:
        port = random.SystemRandom().choice(PORTS)  # Hypothesis seeds the other one
        with socket.socket() as free, suppress(OSError):
            free.bind(("127.0.0.1", port))
            return port
