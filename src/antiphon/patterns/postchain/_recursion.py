"""Recursion: whether the last phase answers or a turn goes on with another phase, and why. No clock, no model, no ledger.

A turn ends after `max_cycles`; where it would go the same way again and has learnt nothing since; when it is confident
enough; and when another cycle has changed too little. Where the agent of the last phase has the tool `go_on_with`, it may name
any phase: that counts before the rules that choose one, and after those that bound it.
"""

from __future__ import annotations

from collections.abc import Iterable
from hashlib import blake2b
from typing import Any, Final, NamedTuple

from antiphon.messages import thaw
from antiphon.patterns.postchain._config import ChainConfig
from antiphon.patterns.postchain._work import PhaseWork
from antiphon.protocol import PHASES, Phase, ToolCall

__all__ = ["GO_ON_WITH", "Course", "go_on_with", "next_phase", "wish_in"]


class Course(NamedTuple):
    """How a turn goes on."""

    following: Phase | None
    """None: it does not; the last phase answers."""
    rationale: str
    seen: tuple[str, ...] = ()
    """By digest, where this turn was and which way it went from there."""


class Wish(NamedTuple):
    """What the agent of the last phase has asked for."""

    phase: Phase
    reason: str


async def go_on_with(phase: Phase, reason: str) -> str:
    """Do not answer yet: have the question go through another phase first.

    Args:
        phase: The phase to go on with, and all that follow it.
        reason: What is missing.
    """
    return f"after this, the thread goes on with {phase}, if it may"


GO_ON_WITH: Final = go_on_with.__name__
"""What the tool is called."""


def wish_in(calls: Iterable[ToolCall]) -> Wish | None:
    """Return what the agent of the last phase has asked for: its last word, if it was taken."""
    for call in reversed(tuple(calls)):
        arguments: Any = thaw(call.arguments)
        if call.name == GO_ON_WITH and "result" in call.model_extra and arguments.get("phase") in PHASES:
            return Wish(arguments["phase"], str(arguments.get("reason")))
    return None


def next_phase(work: PhaseWork, confidence: float, config: ChainConfig, wish: Wish | None = None) -> Course:
    """Return with which phase to go on, None to answer; and why. The first rule that holds decides."""
    if work.cycle >= config.max_cycles:
        return Course(None, f"cycle {work.cycle} of {config.max_cycles} was the last")
    if wish is not None:
        return _unless_seen(work, wish.phase, f"the agent asked for it: {wish.reason}")
    if confidence >= config.enough_confidence:
        return Course(None, f"a confidence of {confidence:g} is enough")
    if work.confidences and abs(confidence - work.confidences[-1]) < config.least_change:
        return Course(None, f"another cycle changed the confidence by less than {config.least_change:g}")
    return _unless_seen(work, *_missing(work, confidence, config))


def _missing(work: PhaseWork, confidence: float, config: ChainConfig) -> tuple[Phase, str]:
    """Return which phase can give what is missing, and what that is."""
    if not work.cited:
        return "experience", "there is no source to rely on"
    if work.context.size > config.context_limit:
        return "understanding", "there is more in the context than there is room for"
    return "action", f"a confidence of {confidence:g} is not enough"


def _unless_seen(work: PhaseWork, following: Phase, rationale: str) -> Course:
    """Go on, unless the turn has gone this way from here before: then it is a loop, and would go round again."""
    here = _digest(work, following)
    if here in work.seen:
        cycle = work.seen.index(here) + 1
        return Course(None, f"it would loop: since cycle {cycle} went on with {following}, nothing new was found", work.seen)
    return Course(following, rationale, (*work.seen, here))


def _digest(work: PhaseWork, following: Phase) -> str:
    """Return what stands for what is known and the way from here. What agents say of it, or how often, is nothing new."""
    known = sorted({f"{item.source}\0{item.title}\0{item.text}" for item in work.context if item.source != "agent"})
    return blake2b("\0\0".join((following, *known)).encode(errors="replace"), digest_size=12).hexdigest()
