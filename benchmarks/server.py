"""The server: a page of messages, and what a chat completion costs beside LiteLLM's proxy. Times are on the clock on the wall.

- *a page*: GET of 100 messages from a thread of 5,000, one at a time and 20 at a time;
- *a completion*: POST to `/v1/chat/completions`, 100 in flight. LiteLLM's proxy answers from its mock, which asks nobody; the
  server runs six phases on the scripted model, and records each of them. So the figures say what each adds to a model's time,
  not which is the better proxy: one passes an answer on, the other writes a thread of some 60 records. The proxy needs
  `litellm[proxy]`, one of whose packages has a licence of its own: install it elsewhere, and give its command as LITELLM.

`ARGS=server:page` and `server:completions` run one of them. Both servers are processes of their own.
"""

from __future__ import annotations

import asyncio
import os
import re
import subprocess
import sys
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from statistics import median, quantiles
from tempfile import TemporaryDirectory
from time import perf_counter, sleep
from urllib.error import URLError
from urllib.request import urlopen

import httpx

from antiphon import MessageBuilder
from antiphon.ledger import open_ledger

__all__ = ["report"]

THREAD = "long"
MESSAGES = 5_000
PAGES = 400
COMPLETIONS = 300
IN_FLIGHT = 100
BODY = {"model": "postchain", "messages": [{"role": "user", "content": "What is 17 * 23?"}]}


def report(part: str) -> None:
    """Print the tables."""
    with TemporaryDirectory() as folder:
        if part in "page":
            asyncio.run(_pages(Path(folder)))
        if part in "completions":
            asyncio.run(_completions(Path(folder)))


# ---------------------------------------------------------------- a page


async def _pages(folder: Path) -> None:
    async with open_ledger(f"sqlite:///{folder / 'ledger.db'}", create=True) as ledger:
        said = [
            MessageBuilder(policy="ada").add_text(f"message {number} " + "x" * 300).to_message() for number in range(MESSAGES)
        ]
        for start in range(0, MESSAGES, 500):
            await ledger.append(THREAD, said[start : start + 500])
    print("\n### a page of 100 messages\n\n| at once | requests/s | p50 ms | p99 ms |\n|---|---|---|---|")
    with _antiphon(folder) as (url, token):
        async with httpx.AsyncClient(base_url=url, headers={"authorization": f"Bearer {token}"}, timeout=60) as client:

            async def get(number: int) -> None:
                place = (number * 97) % (MESSAGES - 100)
                answer = await client.get(f"/api/threads/{THREAD}/messages?after={place}&limit=100")
                answer.raise_for_status()

            for at_once in (1, 20):
                _print(str(at_once), *await _timed(get, PAGES, at_once))


# ---------------------------------------------------------------- a completion


async def _completions(folder: Path) -> None:
    print(f"\n### chat completions, {IN_FLIGHT} in flight\n\n| server | requests/s | p50 ms | p99 ms |\n|---|---|---|---|")
    with _antiphon(folder) as (url, token):
        _print("antiphon, six phases", *await _asked(f"{url}/v1", token, "postchain"))
    try:
        with _litellm(folder) as url:
            _print("LiteLLM's proxy, its mock", *await _asked(f"{url}/v1", "sk-benchmark", "mock"))
    except (OSError, RuntimeError) as exc:
        print(f"| LiteLLM's proxy | not measured: {exc} | | |")


async def _asked(url: str, token: str, model: str) -> tuple[float, list[float]]:
    async with httpx.AsyncClient(
        headers={"authorization": f"Bearer {token}"}, timeout=300, limits=httpx.Limits(max_connections=IN_FLIGHT)
    ) as client:

        async def post(_: int) -> None:
            answer = await client.post(f"{url}/chat/completions", json={**BODY, "model": model})
            answer.raise_for_status()

        await post(0)
        return await _timed(post, COMPLETIONS, IN_FLIGHT)


async def _timed(work: Callable[[int], Awaitable[None]], count: int, at_once: int) -> tuple[float, list[float]]:
    """Return how many were done a second, and the seconds of each."""
    times, room = list[float](), asyncio.Semaphore(at_once)

    async def each(number: int) -> None:
        async with room:
            began = perf_counter()
            await work(number)
            times.append(perf_counter() - began)

    began = perf_counter()
    await asyncio.gather(*(each(number) for number in range(count)))
    return count / (perf_counter() - began), times


def _print(name: str, rate: float, times: list[float]) -> None:
    print(f"| {name} | {rate:.0f} | {median(times) * 1e3:.1f} | {quantiles(times, n=100)[98] * 1e3:.1f} |", flush=True)


# ---------------------------------------------------------------- the servers


@contextmanager
def _process(*arguments: str, folder: Path) -> Iterator[subprocess.Popen[bytes]]:
    environment = {**os.environ, "XDG_CONFIG_HOME": str(folder / "config"), "ANTIPHON_MODEL": "scripted"}
    process = subprocess.Popen(arguments, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, cwd=folder, env=environment)
    try:
        yield process
    finally:
        process.kill()
        process.communicate()


_SERVER = """
import asyncio
from antiphon.ledger import open_ledger
from antiphon.server import ServeSettings, ServerLimits, serving

async def main():
    limits = ServerLimits(requests_per_second=1e6, runs=1000)  # what is measured is the server, not its limits
    async with open_ledger("sqlite:///ledger.db", create=True) as ledger:
        async with serving(ledger, ServeSettings(port=0, model="scripted", limits=limits)) as server:
            print(server.url, flush=True)
            print("token:", server.token_file, flush=True)
            await asyncio.Event().wait()

asyncio.run(main())
"""


@contextmanager
def _antiphon(folder: Path) -> Iterator[tuple[str, str]]:
    with _process(sys.executable, "-c", _SERVER, folder=folder) as process:
        assert process.stdout is not None
        url = re.search(r"http://\S+", process.stdout.readline().decode())
        file = Path(process.stdout.readline().decode().strip().removeprefix("token: "))
        assert url is not None
        yield url[0], file.read_text().strip()


@contextmanager
def _litellm(folder: Path) -> Iterator[str]:
    """Start LiteLLM's proxy with a model that answers by itself.

    Raises:
        RuntimeError: it does not start.
    """
    (folder / "litellm.yaml").write_text(
        "model_list:\n  - model_name: mock\n    litellm_params:\n      model: openai/mock\n      api_key: none\n"
        "      mock_response: Scripted answer, no language model was asked. 391.\n"
        "general_settings:\n  master_key: sk-benchmark\n"
    )
    program = Path(os.environ.get("LITELLM") or Path(sys.executable).parent / "litellm")
    if not program.exists():
        raise RuntimeError("the proxy is not installed; LITELLM is the path of one in another environment")
    port = "48231"
    arguments = (str(program), "--config", "litellm.yaml", "--port", port, "--host", "127.0.0.1", "--telemetry", "False")
    with _process(*arguments, folder=folder) as process:
        for _ in range(240):
            if process.poll() is not None:
                raise RuntimeError("the proxy ends at its start; litellm[proxy] may be missing")
            try:
                urlopen(f"http://127.0.0.1:{port}/health/liveliness", timeout=5).close()
            except (URLError, OSError):
                sleep(0.5)
            else:
                yield f"http://127.0.0.1:{port}"
                return
        raise RuntimeError("the proxy does not start within two minutes")
