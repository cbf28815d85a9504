"""A program with a durable run in thread `t`: it looks, waits for a line, pays once, and says how it ended.

Arguments: the URL of the ledger, the file that payments are written to, and the seconds between two beats.
"""

import asyncio
import sys
from pathlib import Path

from antiphon import open_ledger
from antiphon.durable import ledger_run
from antiphon.errors import AntiphonError
from antiphon.runtime import Settings, _lease


def say(text: str) -> None:
    sys.stdout.write(f"{text}\n")
    sys.stdout.flush()


async def main(url: str, payments: Path, heartbeat: float) -> None:
    async def look(key: str) -> str:
        return "seen"

    async def pay(key: str) -> str:
        with payments.open("a") as file:
            file.write("paid\n")
        return "paid"

    _lease._SETTINGS = Settings(heartbeat=heartbeat)
    try:
        async with open_ledger(url) as ledger, ledger_run("t", ledger=ledger, name="desk") as run:
            await run.effect("look", {}, look)
            say("open")
            await asyncio.to_thread(sys.stdin.readline)
            say(await run.effect("pay", {}, pay))
    except AntiphonError as exc:
        say(type(exc).__name__)


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1], Path(sys.argv[2]), float(sys.argv[3])))
