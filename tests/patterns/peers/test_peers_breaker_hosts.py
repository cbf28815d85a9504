"""A breaker reads what another host has recorded of a peer since it looked last."""

from antiphon.ledger.memory import MemoryLedger
from antiphon.patterns.peers import PeerLimits
from antiphon.patterns.peers._calls import Breaker
from antiphon.patterns.peers._letters import Exchange


async def test_failures_that_another_host_has_recorded_count() -> None:
    ledger, limits = MemoryLedger(), PeerLimits(failures=2)
    here, elsewhere = Breaker(ledger, limits), Breaker(ledger, limits)
    assert await here.state("clerk") == "closed"
    for number in range(2):
        await elsewhere.note(Exchange(f"e{number}", "root", "user", "clerk", "Do it.", 0), failed=True)
    assert await here.state("clerk") == "open"
    await elsewhere.note(Exchange("e2", "root", "user", "clerk", "Do it.", 0), failed=False)
    assert await here.state("clerk") == "closed"
