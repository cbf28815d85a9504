"""FlowReporter: watches the threads of a system, and reports the first message of each that a flow does not allow."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

from antiphon.protocol.flows import Flow, FlowWatch, Verdict

if TYPE_CHECKING:
    from antiphon.ledger import Record

__all__ = ["FlowReporter"]

_MOST = 10_000
"""Threads that are judged at once: one that was silent while so many others were not is judged no more."""


class FlowReporter:
    """Judges each thread by a flow, message by message."""

    def __init__(self, flow: Flow, report: Callable[[str, Verdict], None], roles: Mapping[str, str]) -> None:
        self._flow = flow
        self._report = report
        self._roles = roles
        self._watches: OrderedDict[str, FlowWatch | None] = OrderedDict()
        """By thread, the latest last; None where a violation was reported, or the beginning is not known."""

    def __call__(self, record: Record) -> None:
        thread_id = record.message.thread_id or ""
        if thread_id not in self._watches:
            self._watches[thread_id] = self._flow.watch(**self._roles) if record.seq == 1 else None
        self._watches.move_to_end(thread_id)
        if len(self._watches) > _MOST:
            self._watches.popitem(last=False)
        watch = self._watches[thread_id]
        if watch is None:
            return
        if not watch.takes(record.message):
            self._watches[thread_id] = None
            self._report(thread_id, watch.verdict)
