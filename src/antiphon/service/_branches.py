"""Branches of threads: where to fork, forking, and how two threads differ."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from antiphon.errors import PlaceError
from antiphon.ledger import Diff, Ledger, ThreadSummary, diff
from antiphon.messages import OptionCallPayload
from antiphon.protocol import PHASES, ProcessPhase
from antiphon.service._life import chain_life
from antiphon.service._threads import find_thread, new_thread_id
from antiphon.service._values import PhaseDiffValue


@dataclass(frozen=True, slots=True)
class ForkPlace:
    """The place in a thread at which a branch begins; without `at` and `at_step`, the end."""

    thread_id: str
    at: str | None = None
    """The number of the last shared message, or a phase: the messages before its latest start are shared."""
    at_step: int | None = None
    """The messages up to the end of this step are shared."""
    into: str | None = None
    """The id of the branch; None: a new one."""


async def fork_thread(ledger: Ledger, place: ForkPlace) -> ThreadSummary:
    """Make a branch, and return it. Calls that are open at the place are closed in the branch with an error.

    Raises:
        PlaceError: the thread has no such place, or there is a thread with the id of the branch.
        SecretNameError: the id of the branch looks like a secret.
    """
    await find_thread(ledger, place.thread_id)
    at = await _seq_of(ledger, place)
    try:
        return await ledger.fork(place.thread_id, at=at, at_step=place.at_step, into=place.into or new_thread_id())
    except ValueError as exc:
        raise PlaceError(str(exc), place.thread_id) from exc


async def check_continues(ledger: Ledger, place: ForkPlace) -> None:
    """Refuse a place from which a branch of six phases does not continue by itself."""
    await find_thread(ledger, place.thread_id)
    life = await chain_life(ledger, place.thread_id, upto=await _seq_of(ledger, place))
    has_started = life is not None and life.status != "created"
    if place.at_step is None and (life is None or not has_started or life.is_over):
        state = "has not started" if life is None or not has_started else f"is {life.status}"
        raise PlaceError(f"at that place the thread {state}; choose one from which it continues", place.thread_id)


async def _seq_of(ledger: Ledger, place: ForkPlace) -> int | None:
    """Return the number of the last shared message; None if the place does not name one."""
    if place.at is None or place.at.isdecimal():
        return None if place.at is None else int(place.at)
    if place.at not in PHASES:
        reason = f"a place is the number of a message, or one of {', '.join(PHASES)}; not {place.at!r}"
        raise PlaceError(reason, place.thread_id)
    async for record in ledger.read(place.thread_id, reverse=True):
        message, payload = record.message, record.message.payload
        is_phase = isinstance(payload, OptionCallPayload) and payload.option_name == ProcessPhase.message_type
        if is_phase and message.to == (f"{place.at}/1",):
            return record.seq - 1
    raise PlaceError(f"thread {place.thread_id} has no phase {place.at}", place.thread_id)


# ---------------------------------------------------------------- differences


@dataclass(frozen=True, slots=True)
class ThreadDiff:
    """How two threads differ."""

    messages: Diff
    phases: tuple[PhaseDiffValue, ...] | None
    """Phase by phase; None unless both threads go through six phases."""

    @property
    def is_empty(self) -> bool:
        """Whether the threads are the same."""
        return not (self.messages.left or self.messages.right)


async def compare_threads(ledger: Ledger, left: str, right: str) -> ThreadDiff:
    """Compare two threads: the messages that they share at the start, and how each continues."""
    before, after = await _outputs(ledger, left), await _outputs(ledger, right)
    difference = await diff(ledger, left, right)
    if not before or not after:
        return ThreadDiff(difference, None)
    phases: list[PhaseDiffValue] = []
    for phase in dict.fromkeys((*before, *after)):
        (answer, model), (other_answer, other_model) = _answer(before, phase), _answer(after, phase)
        phases.append(PhaseDiffValue(phase=phase, left=answer, left_model=model, right=other_answer, right_model=other_model))
    return ThreadDiff(difference, tuple(phases))


async def _outputs(ledger: Ledger, thread_id: str) -> Mapping[str, Any]:
    summary = await find_thread(ledger, thread_id)
    if summary.pattern not in ("postchain", None):  # a branch has no pattern of its own before it continues
        return {}
    life = await chain_life(ledger, thread_id)
    return {} if life is None else life.outputs or {}


def _answer(outputs: Mapping[str, Any], phase: str) -> tuple[str | None, str | None]:
    """Return the response of a phase, and its model; without a response, the thread has no such phase."""
    output = outputs.get(phase)
    return (None, None) if output is None else (str(output["response"]), output.get("model") or None)
