"""The processor time of a test, without the work that later tests of the same process share."""

import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.machinery import SourceFileLoader
from types import ModuleType

__all__ = ["share_imports", "shared_work", "used"]


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


def share_imports() -> None:
    """Treat the first import of each module as shared work, wherever it happens.

    Libraries import their heavy parts late: the first durable agent brings all of MCP, the first model name an SDK.
    """
    execute = SourceFileLoader.exec_module

    def exec_module(self: SourceFileLoader, module: ModuleType) -> None:
        with shared_work():
            execute(self, module)

    SourceFileLoader.exec_module = exec_module


def _processor_time() -> float:
    # Not resource.getrusage: on a loaded machine that waits for its turn, twice in each of eight thousand tests.
    children = os.times()
    return time.process_time() + children.children_user + children.children_system
