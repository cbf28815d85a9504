"""A real server on a free loopback port, with a real ledger, in the process of the test; clients and raw requests for it."""

import asyncio
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path
from typing import Any

import httpx2

from antiphon import MessageBuilder
from antiphon.ledger import Ledger, open_ledger
from antiphon.server import ServerLimits, ServeSettings, serving

SPEAKING = f"scripted:{files('antiphon.patterns.postchain') / 'script.toml'}"
"""A model that writes sentences. The model `scripted` chooses quotes, so nobody hears words of it."""


@dataclass(frozen=True)
class Served:
    """A server, its ledger, and a client with all scopes."""

    ledger: Ledger
    url: str
    token: str
    client: httpx2.AsyncClient

    @property
    def port(self) -> int:
        return int(self.url.rpartition(":")[2])

    @property
    def host(self) -> str:
        return f"127.0.0.1:{self.port}"

    def as_token(self, text: str) -> httpx2.AsyncClient:
        return httpx2.AsyncClient(base_url=self.url, headers={"authorization": f"Bearer {text}"})

    async def raw(self, *lines: str, body: bytes = b"", ends: bool = False) -> tuple[int, bytes]:
        """Send a request as it is, and return the status and everything else that came back."""
        reader, writer = await asyncio.open_connection("127.0.0.1", self.port)
        try:
            writer.write("\r\n".join((*lines, "", "")).encode("latin-1") + body)
            await writer.drain()
            if ends:
                writer.write_eof()
            async with asyncio.timeout(10):
                status = await reader.readline()
                rest = await reader.read(100_000)
            return int(status.split()[1]) if status else 0, rest
        finally:
            writer.close()


@asynccontextmanager
async def served(
    folder: Path, *, limits: ServerLimits | None = None, model: str = "scripted", **more: Any
) -> AsyncGenerator[Served]:
    settings = ServeSettings(port=0, model=model, limits=limits or ServerLimits(), **more)
    place = f"sqlite:///{folder / 'ledger.db'}"
    async with open_ledger(place, create=True) as ledger, serving(ledger, settings) as server:
        assert server.token_file is not None
        token = server.token_file.read_text().strip()
        headers = {"authorization": f"Bearer {token}"}
        async with httpx2.AsyncClient(base_url=server.url, headers=headers, timeout=20) as client:
            yield Served(ledger, server.url, token, client)


async def say(ledger: Ledger, thread_id: str, *texts: str) -> None:
    """Append a message for each text."""
    for text in texts:
        await ledger.append(thread_id, [MessageBuilder(policy="ada").add_text(text).to_message()])
