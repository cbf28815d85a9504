"""The processor time of a test, without the work that later tests of the same process share."""

import resource
from collections.abc import Iterator
from contextlib import contextmanager

__all__ = ["shared_work", "used"]


class _Shared:
    """Seconds of shared work so far, and how many of its blocks are open: only the outermost one is measured."""

    seconds = 0.0
    depth = 0


def used() -> float:
    """Return the seconds that this process and its finished children have used, without shared work.

    Processor time, because other programs load the machine too.
    """
    return _processor_time() - _Shared.seconds


@contextmanager
def shared_work() -> Iterator[None]:
    """Do what the first test pays for and all later ones get for free: import an SDK, build a validator.

    `make quick` limits the time of each test. Which test comes first is chance, so shared work counts for none.
    Also a decorator: below `functools.cache`, where only the first call does the work.
    """
    began = _processor_time()
    _Shared.depth += 1
    try:
        yield
    finally:
        _Shared.depth -= 1
        if not _Shared.depth:
            _Shared.seconds += _processor_time() - began


def _processor_time() -> float:
    both = (resource.getrusage(resource.RUSAGE_SELF), resource.getrusage(resource.RUSAGE_CHILDREN))
    return sum(each.ru_utime + each.ru_stime for each in both)
