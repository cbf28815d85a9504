"""The command line with a scripted model that counts its requests in a file, and waits while another file is there.

`ANTIPHON_TEST_HELD` is the folder of both: `requests` gets a line for each request, with a hash of the prompt; while `hold` is
there, no request is answered.
"""

import asyncio
import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from hashlib import sha256
from pathlib import Path
from typing import Any

from pydantic_ai.messages import ModelMessagesTypeAdapter

from antiphon.agents.models import ScriptedModel
from antiphon.cli import app

FOLDER = Path(os.environ["ANTIPHON_TEST_HELD"])


async def _held(messages: Any) -> None:
    plain = [{**each, "timestamp": None} for each in ModelMessagesTypeAdapter.dump_python(messages, mode="json")]
    with (FOLDER / "requests").open("a") as requests:
        requests.write(f"{sha256(repr(plain).encode()).hexdigest()[:16]}\n")
    while (FOLDER / "hold").exists():  # noqa: ASYNC110 (another process removes it)
        await asyncio.sleep(0.02)


_request, _stream = ScriptedModel.request, ScriptedModel.request_stream


async def request(self: ScriptedModel, messages: Any, *more: Any) -> Any:
    await _held(messages)
    return await _request(self, messages, *more)


@asynccontextmanager
async def stream(self: ScriptedModel, messages: Any, *more: Any) -> AsyncIterator[Any]:
    await _held(messages)
    async with _stream(self, messages, *more) as answer:
        yield answer


if __name__ == "__main__":
    setattr(ScriptedModel, "request", request)  # noqa: B010 (a method of the same shape)
    setattr(ScriptedModel, "request_stream", stream)  # noqa: B010
    app(prog_name="antiphon")
