"""Replaying threads of six phases: their events from the ledger, and running them again on the installed code."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

from antiphon.errors import AntiphonError, LedgerError, PlaceError
from antiphon.ledger import Ledger
from antiphon.messages import OptionResultPayload, thaw
from antiphon.patterns.postchain import ChainConfig, ChainEvent, Divergence, event_of, rerun
from antiphon.service._models import LOCAL, for_small_model
from antiphon.service._settings import chain_config, settings_of
from antiphon.service._threads import find_thread, list_threads


@dataclass(frozen=True, slots=True)
class ReplayedEvent:
    """Something that happened in a thread, and when."""

    at: datetime
    event: ChainEvent

    def to_json(self) -> dict[str, Any]:
        """Return it as a JSON object."""
        event = self.event
        return {
            "seq": event.seq,
            "at": self.at,
            "kind": event.kind,
            "phase": event.phase,
            "text": event.text,
            "data": dict(event.data),
        }


async def replay_thread(ledger: Ledger, thread_id: str) -> tuple[ReplayedEvent, ...]:
    """Return what happened in a thread: phases, tools and answers, in their order. No model is called.

    Raises:
        UnknownThreadError: there is no such thread.
    """
    await find_thread(ledger, thread_id)
    found: list[ReplayedEvent] = []
    phase: Any = None
    async for record in ledger.read(thread_id):
        event = event_of(record.message, record.seq, phase)
        if event is not None:
            phase = event.phase or phase
            found.append(ReplayedEvent(record.recorded_at, event))
    return tuple(found)


@dataclass(frozen=True, slots=True)
class RerunReport:
    """The first difference between a stored thread and the same thread on the installed code; all None: there is none."""

    thread_id: str
    parts_at: int | None = None
    """The seq of the first message that is different."""
    what: str | None = None
    reason: str | None = None

    @property
    def differs(self) -> bool:
        return self.parts_at is not None

    def to_json(self) -> dict[str, Any]:
        """Return it as a JSON object."""
        return {"thread_id": self.thread_id, "parts_at": self.parts_at, "what": self.what, "reason": self.reason}


async def rerun_threads(
    ledger: Ledger, thread_id: str | None = None, *, config: Path | None = None
) -> tuple[RerunReport, ...]:
    """Run stored threads again on the installed code, with the recorded answers of models and tools.

    Without a thread, all that have ended. A thread that cannot run again counts as different.

    Raises:
        UnknownThreadError: there is no such thread.
        PlaceError: the thread has not ended.
        ChainConfigError: the configuration cannot be read.
        LedgerError: the ledger cannot be read.
    """
    chosen: dict[str, Any] = {} if config is None else {"config": ChainConfig.read(config)}
    return tuple([await _rerun(ledger, each, chosen) for each in ([thread_id] if thread_id else await _ended(ledger))])


async def _rerun(ledger: Ledger, thread_id: str, chosen: dict[str, Any]) -> RerunReport:
    await find_thread(ledger, thread_id)
    try:
        parts = await rerun(ledger, thread_id, **(chosen or await _settings_of(ledger, thread_id)))
    except ValueError as exc:
        raise PlaceError(str(exc), thread_id) from exc
    except LedgerError:
        raise
    except (AntiphonError, TimeoutError) as exc:  # the other threads are still worth a try
        parts = Divergence(1, "it cannot be run again", str(exc) or "it does not come to an end")
    return RerunReport(thread_id) if parts is None else RerunReport(thread_id, parts.seq, parts.what, parts.reason)


async def _settings_of(ledger: Ledger, thread_id: str) -> dict[str, Any]:
    """Return the settings of a thread: the recorded ones; of one without a configuration those of the local model, or none."""
    recorded = await settings_of(ledger, thread_id)
    if recorded is not None and recorded.config is not None:
        config = chain_config(recorded)
        return {"config": ChainConfig.read(config) if isinstance(config, Path) else config}
    async for record in ledger.read(thread_id, reverse=True):
        payload = record.message.payload if record.message.lane == "control" else None
        if isinstance(payload, OptionResultPayload) and payload.option_name == "PREPARE_CONTEXT" and not payload.is_error:
            prepared: Any = thaw(payload.result)
            is_small = prepared["context"]["metadata"]["agent"].get("model") == LOCAL
            return for_small_model() if is_small else {}
    return {}


async def _ended(ledger: Ledger) -> list[str]:
    threads = [each async for each in list_threads(ledger, order="created_at")]
    return [each.thread_id for each in threads if each.pattern == "postchain" and each.status in ("completed", "failed")]
