"""Heed: results that strangers wrote are marked in the thread: whoever observes them later has read them."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Final

from antiphon.agents import LedgerRun
from antiphon.agents.toolkit.taint import Taint, current_taint
from antiphon.messages import JsonObject, Message

__all__ = ["heed", "marked"]

_OWN: Final = "antiphon"
_MARK: Final = "untrusted"


def taint_of(run: LedgerRun) -> Taint:
    """Return what the turn has read that is at work here."""
    return current_taint() or run.opened.share(Taint)


def marked(run: LedgerRun, results: Iterable[Message]) -> list[Message]:
    """Return results with the mark of what was read until they were there, if that was written by strangers."""
    source = taint_of(run).untrusted
    if source is None:
        return list(results)
    own: dict[str, Any] = {_OWN: {_MARK: source}}
    return [result.model_copy(update={"metadata": {**result.metadata, **own}}) for result in results]


def heed(run: LedgerRun, messages: Iterable[Message]) -> None:
    """Take into account that messages of the thread are read."""
    for message in messages:
        own = message.metadata.get(_OWN)
        if isinstance(own, JsonObject) and isinstance(source := own.get(_MARK), str):
            taint_of(run).mark(source)
