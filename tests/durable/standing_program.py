"""A durable program in a process that cannot import Pydantic AI, OpenTelemetry or an HTTP client.

`start` runs the program on a file, and dies by SIGKILL where the environment says. `settle` records the outcome of a payment.
"""

import asyncio
import os
import signal
import sys
from importlib.abc import MetaPathFinder
from pathlib import Path

BLOCKED = ("pydantic_ai", "opentelemetry", "httpx", "httpx2")


class Blocked(MetaPathFinder):
    """Refuses to find these packages, as if they were not installed."""

    def find_spec(self, fullname: str, path: object, target: object = None) -> None:
        if fullname.partition(".")[0] in BLOCKED:
            raise ModuleNotFoundError(f"no module named {fullname!r}", name=fullname)


sys.meta_path.insert(0, Blocked())

from antiphon.durable import LedgerRun, program, runs  # noqa: E402 (after the finder)
from antiphon.ledger import open_ledger  # noqa: E402
from antiphon.runtime import System  # noqa: E402

FOLDER, DIES_AT = Path(sys.argv[2]), os.environ.get("DIES_AT")


def done(step: str) -> str:
    """Note that a step is done, and die in the middle of it, if it is the one."""
    with (FOLDER / "done.txt").open("a") as file:
        file.write(f"{step}\n")
    if step == DIES_AT:
        os.kill(os.getpid(), signal.SIGKILL)
    return step


@program("desk")
async def desk(run: LedgerRun) -> list[str]:
    done("begin")
    order = await run.effect("look", {}, lambda key: done("look"), effects="none")
    done("between")
    paid = await run.effect("pay", {"order": order}, lambda key: done("pay"), effects="once")
    sent = await run.effect("send", {"paid": paid}, lambda key: done("send"), effects="idempotent")
    return [order, paid, sent]


async def main() -> None:
    async with open_ledger(f"sqlite:///{FOLDER / 'desk.db'}") as ledger:
        if sys.argv[1] == "start":
            sys.stdout.write(f"{await desk.run('order', {'amount': 1}, ledger=ledger)}\n")
        else:
            async with System(ledger) as system:
                await system.settle("order", "order/run/pay", result="pay")
        sys.stdout.write(f"{[run.status for run in await runs(ledger, 'order', with_ended=True)]}\n")
    assert not [name for name in sys.modules if name.partition(".")[0] in BLOCKED]


asyncio.run(main())
