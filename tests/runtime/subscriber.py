"""A subscriber in a process of its own, for tests that kill it: it says the text of each message that it has handled.

    python subscriber.py LEDGER CURSOR

After every 20 messages it waits for a line, so that it is not done before it is killed.
"""

import asyncio
import sys

from antiphon.ledger import open_ledger
from antiphon.runtime import Topic, subscribe


async def main(path: str, cursor: str) -> None:
    async with (
        open_ledger(f"sqlite:///{path}") as ledger,
        subscribe(ledger, Topic(type="MESSAGE", sender="shop/*"), cursor=cursor) as events,
    ):
        handled = 0
        async for event in events:
            sys.stdout.write(f"{event.record.message.text}\n")
            sys.stdout.flush()
            handled += 1
            if handled % 25 == 0:
                await events.commit()
            if handled % 20 == 0:
                await asyncio.to_thread(sys.stdin.readline)


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
