"""A durable program needs no more of a store than `Owners`: no search, no branches, no keys, no proof. F13; G9."""

from typing import Any

import pytest
from typing_extensions import get_protocol_members

from antiphon.durable import LedgerRun, program, runs
from antiphon.ledger import Ledger, Owners
from antiphon.ledger.memory import MemoryLedger


class OnlyOwners:
    """A handle that has nothing but the members of `Owners`."""

    def __init__(self, ledger: Ledger) -> None:
        self._ledger = ledger

    def __getattr__(self, name: str) -> Any:
        if name not in get_protocol_members(Owners):
            raise AttributeError(f"{name!r} is no member of Owners")
        return getattr(self._ledger, name)


steps: list[str] = []


def done(step: str) -> str:
    steps.append(step)
    return step


@program("errand")
async def errand(run: LedgerRun) -> list[str]:
    order = await run.effect("look", {}, lambda key: done("look"), effects="none")
    if done("between") and steps.count("between") == 1:
        raise OSError("the program ends here")
    sent = await run.effect("send", {"order": order}, lambda key: done("send"), effects="idempotent")
    return [order, sent]


async def test_a_program_that_failed_continues_on_owners() -> None:
    ledger: Any = OnlyOwners(MemoryLedger())
    with pytest.raises(AttributeError):
        ledger.search  # noqa: B018
    with pytest.raises(OSError, match="ends here"):
        await errand.run("t", {}, ledger=ledger)
    assert await errand.run("t", {}, ledger=ledger) == ["look", "send"]
    assert steps == ["look", "between", "between", "send"]
    assert [run.status for run in await runs(ledger, "t", with_ended=True)] == ["completed"]
