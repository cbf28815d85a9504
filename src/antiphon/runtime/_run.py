"""run: a program with systems in it, as a process that ends in good order when it is told to."""

from __future__ import annotations

import asyncio
import gc
import signal
from collections.abc import Coroutine, Generator
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any, TypeVar
from weakref import WeakSet

if TYPE_CHECKING:
    from antiphon.runtime._kernel import Kernel

__all__ = ["OPEN", "run"]

ResultT = TypeVar("ResultT")

OPEN: WeakSet[Kernel] = WeakSet()
"""The systems that live, of all event loops."""

_SIGNALS = (signal.SIGTERM, signal.SIGINT)
_COLLECTED = (50_000, 20, 20)
"""How much is made before the garbage collector looks."""


def run(main: Coroutine[Any, Any, ResultT]) -> ResultT:
    """Run a program as `asyncio.run` does, and end it in good order when its process is told to.

    At the first SIGTERM or SIGINT the program is cancelled, so that its `async with System(…)` blocks end: each actor has
    its grace, and what threads have not finished is left to the next process. At the second, nobody has any grace, and
    what was being done is taken up as after a crash. A third kills the process.

    The garbage collector looks less often meanwhile: with a thousand threads at work, what Python has set takes as long as
    all the rest.

    Raises:
        SystemExit: it was told to end; the code is 128 and the number of the signal, as shells have it.
    """
    told: list[int] = []
    try:
        with _collecting_less():
            return asyncio.run(_until_told(main, told))
    except asyncio.CancelledError:
        if not told:
            raise
        raise SystemExit(128 + told[0]) from None


@contextmanager
def _collecting_less() -> Generator[None]:
    before = gc.get_threshold()
    gc.set_threshold(*_COLLECTED)
    gc.freeze()  # what was imported stays, and need not be looked at
    try:
        yield
    finally:
        gc.unfreeze()
        gc.set_threshold(*before)


async def _until_told(main: Coroutine[Any, Any, ResultT], told: list[int]) -> ResultT:
    loop, task = asyncio.get_running_loop(), asyncio.current_task()
    assert task is not None  # noqa: S101 (this is one)

    def tell(number: int) -> None:
        told.append(number)
        if len(told) > 1:
            _listen_no_more(loop)
        for kernel in tuple(OPEN):
            if kernel.loop is loop:
                kernel.begin_to_end()
        task.cancel()

    with suppress(NotImplementedError):  # of Windows, where nobody sends SIGTERM, and asyncio sees to Ctrl-C
        for number in _SIGNALS:
            loop.add_signal_handler(number, tell, number)
    try:
        return await main
    finally:
        _listen_no_more(loop)


def _listen_no_more(loop: asyncio.AbstractEventLoop) -> None:
    with suppress(NotImplementedError):
        for number in _SIGNALS:
            loop.remove_signal_handler(number)
