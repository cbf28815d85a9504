"""Supervision: what becomes of an actor that has failed, as data and a pure function.

| setting | default | meaning |
|---|---|---|
| `strategy` | `one_for_one` | who is restarted: the one that failed; all children; it and those begun after it |
| `intensity`, `period` | 3 in 5 s | how many restarts are borne, of one child under `one_for_one`, else of all together |
| `on_failure` | `restart` | what is done: restart, replace, stop, escalate, ignore |
| `on_block` | `ignore` | what is done about one that blocks the event loop; what it did is not done again |
| `beyond` | `escalate` | what is done when it is too often: escalate or stop |
| `backoff` | 0.1 s, doubled up to 30 s | how long to wait before the n-th restart within the period |
| `heartbeat`, `misses` | none, 3 | how often children are asked whether they live, and how often they may be late |

A child that waits for an answer or an effect is not late: each of these has its own time limit.

The restarts of nested supervisors multiply: three in the child's supervisor, each answered three times by the one above.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, TypeAlias

from antiphon.runtime._props import RestartWhen

__all__ = ["Action", "Backoff", "Decision", "Strategy", "Supervision", "concerned", "decide"]

Strategy: TypeAlias = Literal["one_for_one", "one_for_all", "rest_for_one"]
Action: TypeAlias = Literal["restart", "replace", "stop", "escalate", "ignore"]
"""Restart: a new actor, the mailbox as it is. Replace: a new actor, the mailbox empty. Ignore: the same actor goes on."""


@dataclass(frozen=True, slots=True)
class Backoff:
    """How long to wait before a restart: longer each time, and not at the same moment as everybody else."""

    first: float = 0.1
    factor: float = 2.0
    most: float = 30.0
    jitter: float = 0.1
    """By which share of it a delay may be longer or shorter."""

    def delay(self, count: int, chance: float) -> float:
        """Return the seconds to wait before restart number `count`, from 1; `chance` is from 0 to 1."""
        exponent = min(count - 1, 64)  # beyond, every delay is the longest
        delay = min(self.most, self.first * self.factor**exponent)
        return delay * (1 + self.jitter * (2 * chance - 1))


@dataclass(frozen=True, slots=True)
class Supervision:
    """How a supervisor looks after its children."""

    strategy: Strategy = "one_for_one"
    intensity: int = 3
    period: float = 5.0
    on_failure: Action = "restart"
    on_block: Action = "ignore"
    beyond: Literal["escalate", "stop"] = "escalate"
    backoff: Backoff = Backoff()
    heartbeat: float | None = None
    misses: int = 3


@dataclass(frozen=True, slots=True)
class Decision:
    """What to do about a failure."""

    action: Action
    delay: float = 0.0
    """Seconds to wait before."""
    history: tuple[float, ...] = ()
    """When restarts were decided on, this one included, as far as they still count."""


def decide(
    supervision: Supervision,
    when: RestartWhen,
    history: Sequence[float],
    *,
    now: float,
    chance: float,
    blocked: bool = False,
) -> Decision:
    """Decide what becomes of an actor that has failed, or has blocked the event loop."""
    recent = tuple(time for time in history if now - time <= supervision.period)
    action = supervision.on_block if blocked else supervision.on_failure
    if when == "temporary" and not blocked:
        return Decision("stop", history=recent)
    if action not in ("restart", "replace"):
        return Decision(action, history=recent)
    if len(recent) >= supervision.intensity:
        return Decision(supervision.beyond, history=recent)
    count = len(recent) + 1
    return Decision(action, supervision.backoff.delay(count, chance), (*recent, now))


def concerned(strategy: Strategy, children: Sequence[str], failed: str) -> tuple[str, ...]:
    """Return who is restarted when one has failed, in the order in which they were begun."""
    if strategy == "one_for_one" or failed not in children:
        return (failed,)
    return tuple(children) if strategy == "one_for_all" else tuple(children[children.index(failed) :])
