"""Supervision: the rules for an actor that has failed, as data, and the decision as a pure function.

| setting | default | meaning |
|---|---|---|
| `strategy` | `one_for_one` | who is restarted: the failed child; all children; the failed child and those started after it |
| `intensity`, `period` | 3 in 5 s | how many restarts are allowed, of one child under `one_for_one`, else of all together |
| `on_failure` | `restart` | the action: restart, replace, stop, escalate, ignore |
| `on_block` | `ignore` | the action for a child that blocks the event loop; its message is not handled again |
| `beyond` | `escalate` | the action when there are too many restarts: escalate or stop |
| `backoff` | 0.1 s, doubled up to 30 s | the delay before the n-th restart within the period |
| `heartbeat`, `misses` | none, 3 | how often children are asked for a heartbeat, and how many they may miss |

The restarts of nested supervisors multiply: three in the child's supervisor, each answered three times by the one above.

The actor that applies these rules is `Supervisor` in `_supervisor.py`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, TypeAlias

RestartWhen: TypeAlias = Literal["permanent", "transient", "temporary"]
"""When an actor is restarted after it has ended: always; only after a failure; never."""

Strategy: TypeAlias = Literal["one_for_one", "one_for_all", "rest_for_one"]
Action: TypeAlias = Literal["restart", "replace", "stop", "escalate", "ignore"]
"""Restart: a new actor, the mailbox as it is. Replace: a new actor, the mailbox empty. Ignore: the same actor goes on."""


@dataclass(frozen=True, slots=True)
class Backoff:
    """The delay before a restart: longer each time, with jitter."""

    first: float = 0.1
    factor: float = 2.0
    most: float = 30.0
    jitter: float = 0.1
    """The share by which a delay may be longer or shorter."""

    def delay(self, count: int, chance: float) -> float:
        """Return the delay before restart number `count`, from 1; `chance` is a random number from 0 to 1."""
        exponent = min(count - 1, 64)  # beyond, every delay is the longest, and the power would overflow
        delay = min(self.most, self.first * self.factor**exponent)
        return delay * (1 + self.jitter * (2 * chance - 1))


@dataclass(frozen=True, slots=True)
class Supervision:
    """The rules of a supervisor."""

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
    """The decision about a failure."""

    action: Action
    delay: float = 0.0
    """Seconds to wait before the action."""
    history: tuple[float, ...] = ()
    """The times of the restarts that count, this one included."""


def decide(
    supervision: Supervision,
    when: RestartWhen,
    history: Sequence[float],
    *,
    now: float,
    chance: float,
    blocked: bool = False,
) -> Decision:
    """Decide about an actor that has failed, or has blocked the event loop."""
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
    """Return the children to restart when one has failed, in the order in which they were spawned."""
    if strategy == "one_for_one" or failed not in children:
        return (failed,)
    return tuple(children) if strategy == "one_for_all" else tuple(children[children.index(failed) :])
