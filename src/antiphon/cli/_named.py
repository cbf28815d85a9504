"""A conversation by its name, which may be that of a file or of a thread.

With `--ledger` it is a thread, with `--from` a file. Otherwise a file that is there is meant, and if there is none, the thread
of that name in the ledger in use.
"""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from antiphon.cli._input import read_conversation, read_file
from antiphon.cli._ledger import VARIABLE, known_thread, ledger_in_use, missing_ledger, with_ledger
from antiphon.cli._screen import fail
from antiphon.messages import Conversation

if TYPE_CHECKING:
    from antiphon.ledger import Ledger

__all__ = ["find_conversation"]


def find_conversation(name: str, source: str | None, ledger: str | None) -> Conversation:
    """Return what a file or a thread says."""
    if ledger is not None and source is not None:
        fail("--from is the dialect of a file, and --ledger is where threads are; give one of them", code=2)
    if ledger is not None:
        return with_ledger(ledger, partial(_replayed, name=name))
    if source is not None or name == "-" or _is_file(name):
        return read_conversation(read_file(Path(name)), source)
    missing = missing_ledger(ledger_in_use(None))
    if missing is not None:
        nor = f"no ledger {missing} in which it could be a thread"
        fail(f"{name}: there is no such file, and {nor}; --ledger or {VARIABLE} names another", code=2)
    return with_ledger(None, partial(_replayed_unless_unknown, name=name))


def _is_file(name: str) -> bool:
    """Whether there is such a file: a folder is none, and a thread may well be called like one."""
    path = Path(name)
    try:
        return path.exists() and not path.is_dir()
    except OSError:  # it is too long for a file
        return False


async def _replayed_unless_unknown(ledger: Ledger, *, name: str) -> Conversation:
    if await ledger.thread(name) is None:
        fail(f"{name}: there is no such file, and no such thread; `antiphon threads` lists the threads", code=2)
    return await ledger.replay(name)


async def _replayed(ledger: Ledger, *, name: str) -> Conversation:
    await known_thread(ledger, name)
    return await ledger.replay(name)
