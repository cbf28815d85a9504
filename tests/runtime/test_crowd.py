"""Many hosts on one ledger, in virtual time: what a host calls does not grow with the number of hosts."""

import pytest
from tests.runtime.crowd import Crowd, Seen, simulate_crowd

FEW, MANY = 16, 40
GROWS_AT_MOST = 1.2


def _seen(hosts: int) -> Seen:
    return simulate_crowd(Crowd(hosts, in_hand=1, thinks=0.2, seconds=2.0))


def _per_host(seen: Seen, hosts: int) -> float:
    return (seen.calls.total() - seen.calls["append"]) / hosts


@pytest.mark.slow
def test_the_calls_of_a_host_do_not_grow_with_the_number_of_hosts() -> None:
    """Each hint wakes the owner of a thread, or about sixteen hosts if it has none; with sixteen at most, it wakes all."""
    few, many = _seen(FEW), _seen(MANY)

    assert few.ended >= 20
    assert many.ended >= MANY / FEW * few.ended * 0.8  # three times the hosts do three times the work
    assert _per_host(many, MANY) < GROWS_AT_MOST * _per_host(few, FEW)
