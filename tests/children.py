"""How the tests start other processes."""

import signal

__all__ = ["have_children_handle_signals"]

SIGNALS = (signal.SIGINT, signal.SIGQUIT, signal.SIGTERM)


def have_children_handle_signals() -> None:
    """Start every child with default signal handlers, also where the tests run in the background.

    A shell without job control has its background jobs ignore SIGINT. A child inherits that a signal is ignored, but
    not that it is handled: so a handler here is the default there, for all children, however they are started.
    """
    for each in SIGNALS:
        if signal.getsignal(each) is signal.SIG_IGN:
            signal.signal(each, signal.default_int_handler)
