"""A soak: hosts on PostgreSQL under load, with a fault every few seconds, and a table of what was lost (`make soak`).

It tests the hosts of this checkout on this machine, with a database of its own in a temporary folder. Every process records
what it does, and the record is compared with the ledger. Exit code 1: a rule is broken, a thread is stuck, or a host has ended
by itself. Ctrl-C ends the faults early; a second Ctrl-C ends the hosts and the database. The rules R0 to R12 are in
`witness.py`; A1 and A2, about approvals, are in `soak.py`.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import signal
import sys
from dataclasses import asdict
from functools import partial

from tools.soak.soak import SoakPlan, SoakResult, run_soak

from antiphon.errors import LedgerError, SetupError

_INTERRUPTED = 130
_SHOWN = 20
"""Breaches that are printed."""


def main(words: list[str] | None = None) -> int:
    """Run a soak, print its result, and return the exit code."""
    plan, as_json = _read(words)
    stop = asyncio.Event()
    try:
        result = asyncio.run(_run(plan, stop))
    except SetupError as exc:
        tell(str(exc))
        return 2
    except (asyncio.CancelledError, LedgerError):  # a query that is cancelled may fail instead
        if not stop.is_set():
            raise
        tell("interrupted before the result was known")
        return _INTERRUPTED
    if stop.is_set() and any(each.rule == "R0" for each in result.breaches):
        tell("stopped before the first order was acknowledged, so nothing was tested; let it run for longer")
        return _INTERRUPTED
    _print(result, as_json=as_json)
    return 0 if result.is_clean else 1


def tell(line: str) -> None:
    """Print a line to stderr, at once."""
    print(line, file=sys.stderr, flush=True)


def _read(words: list[str] | None) -> tuple[SoakPlan, bool]:
    """Return the plan that a command line names; what it leaves out is the default of the plan."""
    parser = argparse.ArgumentParser("tools.soak", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    option = partial(parser.add_argument, default=argparse.SUPPRESS)
    option("--seconds", type=float, help="how long to cause faults (60)")
    option("--every", type=float, help="seconds between two faults (5)")
    option("--hosts", type=int, help="how many hosts to run (3)")
    option("--rate", type=float, help="orders per second (10)")
    option("--threads", type=int, help="how many threads the orders go to (200)")
    option("--seed", type=int, help="chooses the faults: the same seed, the same sequence (0)")
    parser.add_argument("--json", action="store_true", help="print the counts and the broken rules as JSON")
    options = vars(parser.parse_args(words))
    as_json = options.pop("json")
    return SoakPlan(**options), as_json


async def _run(plan: SoakPlan, stop: asyncio.Event) -> SoakResult:
    loop, task = asyncio.get_running_loop(), asyncio.current_task()
    assert task is not None  # noqa: S101 (this is one)

    def interrupted() -> None:
        if stop.is_set():
            tell("ending the hosts and the database")
            task.cancel()
        else:
            tell("no more faults; waiting until all orders have ended")
            stop.set()

    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, interrupted)
    return await run_soak(plan, tell=tell, stop=stop)


def _print(result: SoakResult, *, as_json: bool) -> None:
    if as_json:
        breaches = [*map(asdict, result.breaches)]
        print(json.dumps({"is_clean": result.is_clean, "figures": result.figures, "breaches": breaches}))
    else:
        for name, number in result.figures.items():
            print(f"{number:<6} {name}")
        for breach in result.breaches[:_SHOWN]:
            tell(f"{breach.rule} {breach.thread} {breach.id}: {breach.what}")
    for line in () if result.is_clean else result.log:
        tell(line)


if __name__ == "__main__":
    sys.exit(main())
