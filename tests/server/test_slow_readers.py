"""F34: readers of the event stream that take nothing: what they cost the server, and a thread beside them."""

import asyncio
import os
import re
import sys
import time
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from tests.forked import Forked
from tests.server.running import say

from antiphon import service
from antiphon.ledger import Ledger, open_ledger

pytestmark = pytest.mark.slow

READERS = 1_000 if os.environ.get("ANTIPHON_CHAOS") else 50
MOST_BYTES = 30_000_000 + 170_000 * READERS
"""For 1,000 readers: 200 MB."""
MOST_TIMES = 1.1
TURNS = 5 if os.environ.get("ANTIPHON_CHAOS") else 1


def _memory(pid: int) -> int:
    """Return the resident memory of a process in bytes."""
    return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


async def _reader(port: int, token: str, receive: int = 4096) -> asyncio.StreamWriter:
    """Open a stream of all threads, and do not read it."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port, limit=receive)
    lines = ("GET /api/events HTTP/1.1", f"Host: 127.0.0.1:{port}", f"Authorization: Bearer {token}", "", "")
    writer.write("\r\n".join(lines).encode())
    await reader.readuntil(b"retry")
    writer.transport.pause_reading()  # type: ignore[attr-defined]
    return writer


@asynccontextmanager
async def _server(folder: Path, ledger: Ledger) -> AsyncGenerator[tuple[int, int, list[str]]]:
    tokens = [(await service.make_token(ledger, f"reader{number}")).text for number in range(-(-READERS // 100))]
    environment = {**os.environ, "XDG_CONFIG_HOME": str(folder / "config")}
    arguments = [sys.executable, "-m", "antiphon", "serve", "--port", "0", "--ledger", str(folder / "ledger.db")]
    server = Forked(arguments, stdout=-1, stderr=-3, env=environment)
    try:
        assert server.stdout is not None
        line = await asyncio.to_thread(server.stdout.readline)
        port = re.search(rb":(\d+)$", line.strip())
        assert port is not None
        yield server.pid, int(port[1]), tokens
    finally:
        server.kill()
        server.communicate()


async def _asked(ledger: Ledger) -> float:
    """Return the seconds in which a thread of six phases runs in this process."""
    async with service.open_chain(ledger, model="scripted") as runner:
        await runner.ask("What is 17 * 23?")  # the first one imports
        began = time.perf_counter()
        for _ in range(3):
            await runner.ask("What is 17 * 23?")
        return time.perf_counter() - began


@pytest.mark.skipif(not Path("/proc/self/statm").exists(), reason="reads the memory of a process")
def test_slow_readers_cost_little_memory_and_a_thread_beside_them_little_time(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """They all get the records of the thread that runs meanwhile, as far as their connections take them."""
    more, times = asyncio.run(_measured(tmp_path))
    ratio = times["beside"] / times["alone"]
    with capsys.disabled():
        sys.stdout.write(f"\n{READERS} slow readers: {more / 1e6:.1f} MB more; a thread beside them {ratio:.2f} x as long\n")
    assert more < MOST_BYTES, f"{more / 1e6:.1f} MB"
    if os.environ.get("ANTIPHON_CHAOS"):  # the machine of a test may be busy
        assert ratio < MOST_TIMES, times


async def _measured(folder: Path) -> tuple[int, dict[str, float]]:
    """Return how much memory the readers cost the server, and the shortest times of threads without and with them."""
    async with open_ledger(f"sqlite:///{folder}/ledger.db", create=True) as ledger:
        await say(ledger, "a", "1")
        async with _server(folder, ledger) as (pid, port, tokens):
            await asyncio.sleep(1)
            before, after, times = _memory(pid), 0, {"alone": 1e9, "beside": 1e9}
            for _ in range(TURNS):
                times["alone"] = min(times["alone"], await _asked(ledger))
                readers: list[asyncio.StreamWriter] = []
                for start in range(0, READERS, 50):
                    batch = (_reader(port, tokens[number // 100]) for number in range(start, start + 50))
                    readers += await asyncio.gather(*batch)
                times["beside"] = min(times["beside"], await _asked(ledger))
                after = max(after, _memory(pid))
                for each in readers:
                    each.transport.abort()
                await asyncio.sleep(0.5)  # the server forgets them
    return after - before, times
