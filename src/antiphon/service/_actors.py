"""The actors of a running system, and the messages that none of them will handle."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from antiphon.runtime import ActorView, DeadLetter, System


def actors(system: System) -> tuple[ActorView, ...]:
    """Return the actors of a system: address, supervisor, state, restarts, waiting messages, load."""
    return system.actors()


def actor_json(actor: ActorView) -> dict[str, Any]:
    """Return an actor as a JSON object."""
    return asdict(actor)


@dataclass(frozen=True, slots=True)
class DeadLetterReport:
    """The messages that no actor will handle."""

    latest: tuple[DeadLetter, ...]
    """The latest ones; `Settings.dead_letters` says how many are kept."""
    counts: Mapping[str, int]
    """The number of all of them, by error code."""

    @property
    def total(self) -> int:
        return sum(self.counts.values())

    def to_json(self) -> dict[str, Any]:
        """Return it as a JSON object, without the content of the messages."""
        latest = [
            {"message_id": each.message.id, "to": each.to, "code": each.code, "reason": each.reason, "at": each.at}
            for each in self.latest
        ]
        return {"total": self.total, "counts": dict(self.counts), "latest": latest}


def dead_letters(system: System) -> DeadLetterReport:
    """Return the dead letters of a system, with their counts."""
    return DeadLetterReport(system.dead_letters, system.dead_letter_counts)
