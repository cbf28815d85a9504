"""The decision about a failure is a pure function: its arithmetic, and what holds for every history (G14, F20)."""

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from antiphon.runtime import Backoff, Supervision
from antiphon.runtime._supervision import Directive, concerned, decide

_NO_JITTER = Backoff(first=1.0, factor=2.0, most=30.0, jitter=0.0)


def test_the_defaults_are_as_documented() -> None:
    assert Supervision() == Supervision(
        strategy="one_for_one",
        intensity=3,
        period=5.0,
        on_failure="restart",
        on_block="ignore",
        beyond="escalate",
        backoff=Backoff(first=0.1, factor=2.0, most=30.0, jitter=0.1),
        heartbeat=None,
        misses=3,
    )


def test_restarts_are_counted_within_the_period_and_then_it_is_too_often() -> None:
    supervision = Supervision(intensity=2, period=10.0, backoff=_NO_JITTER)

    first = decide(supervision, "permanent", (), now=100.0, chance=0.5)
    second = decide(supervision, "permanent", first.history, now=105.0, chance=0.5)
    third = decide(supervision, "permanent", second.history, now=109.0, chance=0.5)
    later = decide(supervision, "permanent", second.history, now=112.0, chance=0.5)

    assert first == Directive("restart", 1.0, (100.0,))
    assert second == Directive("restart", 2.0, (100.0, 105.0))
    assert third == Directive("escalate", 0.0, (100.0, 105.0))
    assert later == Directive("restart", 2.0, (105.0, 112.0))


@pytest.mark.parametrize("action", ["stop", "escalate", "ignore"])
def test_only_restarts_are_counted(action: str) -> None:
    supervision = Supervision(on_failure=action)  # type: ignore[arg-type]

    assert decide(supervision, "permanent", (), now=1.0, chance=0.0) == Directive(action)  # type: ignore[arg-type]


def test_a_temporary_actor_is_never_restarted() -> None:
    assert decide(Supervision(), "temporary", (), now=1.0, chance=0.0).action == "stop"
    assert decide(Supervision(), "transient", (), now=1.0, chance=0.0).action == "restart"


def test_a_blocked_event_loop_has_its_own_decision() -> None:
    supervision = Supervision(on_block="restart")

    assert decide(Supervision(), "temporary", (), now=1.0, chance=0.0, blocked=True).action == "ignore"
    assert decide(supervision, "permanent", (), now=1.0, chance=0.0, blocked=True).action == "restart"


def test_the_strategy_decides_which_children_are_restarted() -> None:
    children = ("a", "b", "c")

    assert concerned("one_for_one", children, "b") == ("b",)
    assert concerned("one_for_all", children, "b") == ("a", "b", "c")
    assert concerned("rest_for_one", children, "b") == ("b", "c")
    assert concerned("one_for_all", children, "stranger") == ("stranger",)


@given(st.lists(st.floats(0, 20), max_size=60), st.integers(0, 5), st.floats(0.1, 50), st.floats(0, 0.99))
def test_there_are_never_more_restarts_in_a_period_than_allowed(
    gaps: list[float], intensity: int, period: float, chance: float
) -> None:
    """Restart intensity is bounded, whatever fails and when (G14)."""
    supervision = Supervision(intensity=intensity, period=period)
    now, history, restarts = 0.0, (), []
    for gap in gaps:
        now += gap
        decision = decide(supervision, "permanent", history, now=now, chance=chance)
        history = decision.history
        if decision.action == "restart":
            restarts.append(now)

    for time in restarts:
        assert sum(0 <= time - other <= period for other in restarts) <= intensity
    assert all(now - time <= period for time in history)


@given(st.floats(0, 0.99), st.floats(0.01, 5), st.floats(1, 4), st.floats(5, 60), st.floats(0, 0.5))
def test_delays_grow_to_the_longest_and_stay_within_the_jitter(
    chance: float, first: float, factor: float, most: float, jitter: float
) -> None:
    backoff = Backoff(first, factor, most, jitter)
    delays = [backoff.delay(count, chance) for count in range(1, 200)]

    assert all(later >= earlier for earlier, later in pairwise(delays))
    assert all(first * (1 - jitter) <= delay <= most * (1 + jitter) + 1e-9 for delay in delays)
