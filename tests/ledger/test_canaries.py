"""G23, S7: 200 shapes of secrets in 12 places of messages, and none in the database, its log of writes, logs, traces, answers.

Each secret holds a word that nothing else holds, so one search finds whatever is left of any of them. The same search finds
them everywhere if nothing is redacted: a search that finds nothing proves nothing. In `make test` some of the secrets, in
`make chaos` all.
"""

import asyncio
import json
import logging
import os
import re
from collections.abc import AsyncGenerator, Iterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from string import ascii_letters, ascii_uppercase, digits
from typing import Any
from urllib.parse import quote

import httpx2
import pytest
from tests.ledger.test_redaction import PLACES
from tests.postgres import Server, running_postgres
from tests.runtime.actors import Ping, Pong
from tests.telemetry.watch import Watch

from antiphon.errors import DeliveryError
from antiphon.ledger import STANDARD_REDACTION, Ledger, Snapshot
from antiphon.ledger._redaction import Redacting
from antiphon.ledger.postgres._ledger import PostgresLedger
from antiphon.runtime import Actor, Context, ModelOperation, Settings, System, describe, handles
from antiphon.server import ServerLimits, ServeSettings, serving
from antiphon.server._api import ENDPOINTS

WORD = "zQ7xK9vB"
"""Stands in each secret; no other text of a test run has it."""
SHARE = 1 if os.environ.get("ANTIPHON_CHAOS") else 27
"""Of so many secrets, one is planted."""
_RANDOM = Random(23)


def _text(length: int, letters: str = ascii_letters + digits) -> str:
    """Return a text of so many letters with the word in it."""
    word = WORD if letters != ascii_uppercase + digits else WORD.upper()
    rest = "".join(_RANDOM.choices(letters, k=length - len(word)))
    return rest[:4] + word + rest[4:]


def _card() -> str:
    """Return the number of a card that nobody has, with a correct check digit."""
    number = "4" + "".join(_RANDOM.choices(digits, k=14))
    doubled = [int(letter) * 2 if place % 2 == 0 else int(letter) for place, letter in enumerate(number)]
    return number + str(-sum(each - 9 if each > 9 else each for each in doubled) % 10)


def _shapes() -> dict[str, str]:
    """Return one text of each kind."""
    return {
        "openai": f"sk-proj-{_text(40)}",
        "anthropic": f"sk-ant-api03-{_text(36)}",
        "stripe": f"sk_live_{_text(24)}",
        "aws": f"AKIA{_text(16, ascii_uppercase + digits)}",
        "github": f"ghp_{_text(36)}",
        "github fine": f"github_pat_{_text(30)}",
        "gitlab": f"glpat-{_text(20)}",
        "google": f"AIza{_text(35)}",
        "google oauth": f"ya29.{_text(30)}",
        "slack": f"xoxb-{_RANDOM.randrange(10**11, 10**12)}-{_text(20)}",
        "hugging face": f"hf_{_text(30)}",
        "npm": f"npm_{_text(36)}",
        "pypi": f"pypi-{_text(32)}",
        "jwt": f"eyJ{_text(20)}.{_text(24)}.{_text(30)}",
        "header": f"Authorization: Bearer {_text(24)}1",
        "dsn": f"postgres://app:{_text(16)}@db.internal:5432/x",
        "private key": f"-----BEGIN RSA PRIVATE KEY-----\n{_text(60)}\n-----END RSA PRIVATE KEY-----",
        "assignment": f"password={_text(16)}",
        "card": _card(),
        "registered": f"stage/{_text(12)}/\N{BIRD}",
    }


CONTEXTS = {
    "alone": "{}",
    "sentence": "use {} please",
    "line": "first\n{}\nlast",
    "tab": "name\t{}",
    "brackets": "({})",
    "other letters": "ключ {} \N{BIRD}",
    "long": "word " * 200 + "{} " + "word " * 200,
    "JSON": "JSON",
    "JSON twice": "JSON twice",
    "percent": "percent",
}


def _in_context(context: str, text: str) -> str:
    if context == "percent":
        return f"https://e.example/?q={quote(text, safe='')}"
    if context.startswith("JSON"):
        once = json.dumps({"a": [text]})
        return json.dumps({"b": once}) if context.endswith("twice") else once
    return CONTEXTS[context].format(text)


@dataclass(frozen=True)
class Canary:
    """A secret, and the text that it stands in."""

    name: str
    secret: str
    text: str


CANARIES = [
    Canary(f"{shape}, {context}", secret, _in_context(context, secret))
    for context in CONTEXTS
    for shape, secret in _shapes().items()
]
PLANTED = CANARIES[::SHARE]
REGISTERED = {f"canary-{number}": each.secret for number, each in enumerate(CANARIES) if each.name.startswith("registered")}
_CARDS = [each.secret.encode() for each in CANARIES if each.name.startswith("card")]
_FOUND = re.compile(b"|".join([WORD.encode(), WORD.upper().encode(), *_CARDS]))


def test_there_are_200_shapes_and_12_places() -> None:
    assert (len(CANARIES), len({each.text for each in CANARIES}), len(PLACES)) == (200, 200, 12)
    for each in CANARIES:
        assert _FOUND.search(each.text.encode()), each.name


class Keeper(Actor):
    """Meets a secret in a message, in an effect, in what it tells a model, in its state, and in the words of an error."""

    @handles
    async def ping(self, ping: Ping, context: Context) -> Pong:
        async def look(key: str) -> str:
            return f"seen: {ping.text}"

        seen = await context.effect("look", {"text": ping.text}, look)
        messages = tuple(place(ping.text) for place in PLACES.values())
        describe(ModelOperation("m", input=messages, output=messages))
        if len(ping.text) % 2:
            raise ValueError(ping.text)
        return Pong(text=seen)


@dataclass
class Seen:
    """Everything that left the process, by where it went."""

    answers: bytes = b""
    traces: bytes = b""
    logs: bytes = b""
    files: dict[str, bytes] = field(default_factory=dict[str, bytes])

    def left(self) -> dict[str, int]:
        """Return how often a secret is in each of them."""
        every = {"answers": self.answers, "traces": self.traces, "logs": self.logs, **self.files}
        return {where: len(_FOUND.findall(data)) for where, data in every.items()}


async def _plant(ledger: Ledger, watch: Watch) -> None:
    """Put each secret in each place: in messages with snapshots, and through the runtime."""
    await asyncio.gather(*(_append(ledger, number, canary) for number, canary in enumerate(PLANTED)))
    await ledger.search("please")
    async with System(ledger, settings=Settings(attempts=2), observer=watch.telemetry) as system:
        keeper = system.spawn("keeper/1", Keeper)
        for number, canary in enumerate(PLANTED):
            try:
                await system.ask(keeper, Ping(text=canary.text), thread_id=f"run{number}")
            except DeliveryError as exc:
                logging.getLogger("canaries").warning("failed: %s", exc)


async def _append(ledger: Ledger, number: int, canary: Canary) -> None:
    for place, (name, made) in enumerate(PLACES.items()):
        message = made(canary.text).model_copy(update={"id": f"m{number}-{place}"})
        snapshot = Snapshot("fold", {name: [canary.text]})
        await ledger.append(f"t{number}", [message], allow_foreign=True, snapshot=snapshot)


@asynccontextmanager
async def _client(ledger: Ledger) -> AsyncGenerator[httpx2.AsyncClient]:
    limits = ServerLimits(requests_per_second=10_000, failures_per_second=1_000)
    async with serving(ledger, ServeSettings(port=0, model="scripted", limits=limits)) as server:
        assert server.token_file is not None
        headers = {"authorization": f"Bearer {server.token_file.read_text().strip()}"}
        async with httpx2.AsyncClient(base_url=server.url, headers=headers, timeout=60) as client:
            yield client


async def _answers(ledger: Ledger) -> bytes:
    """Return the answers of each endpoint that only reads, for each thread."""
    threads = [f"{kind}{number}" for number in range(len(PLANTED)) for kind in ("t", "run")]
    found: list[bytes] = []
    async with _client(ledger) as client:

        async def ask(path: str, name: str) -> bytes:
            query = {"q": "please"} if path == "/api/search" else {}
            got = await client.get(path.format(thread_id=name, other="t0"), params=query)
            assert got.status_code < 500, (path, got.text)
            return got.content

        for path in (endpoint.path for endpoint in ENDPOINTS if endpoint.method == "GET"):
            names = threads if "{thread_id}" in path else threads[:1]
            for some in (names[start : start + 8] for start in range(0, len(names), 8)):
                found += await asyncio.gather(*(ask(path, name) for name in some))
    assert len(found) > 8 * len(threads)
    return b"\n".join(found)


def _files(server: Server) -> Iterator[tuple[str, bytes]]:
    """Yield what the stopped server has left on the disk."""
    every = [path for path in server.data.rglob("*") if path.is_file()]
    yield "database", b"\n".join(path.read_bytes() for path in every if "base" in path.parts)
    yield "log of writes", b"\n".join(path.read_bytes() for path in every if "pg_wal" in path.parts)
    yield "log of the server", (server.data / "log").read_bytes()


async def _seen(server: Server, redaction: Redacting, caplog: pytest.LogCaptureFixture) -> Seen:
    watch, seen = Watch(record_content=True), Seen()
    with caplog.at_level(logging.DEBUG):
        async with PostgresLedger.open(server.url, redaction=redaction) as ledger:
            await _plant(ledger, watch)
            seen.answers = await _answers(ledger)
            assert (await ledger.verify()).is_whole
        formatter = logging.Formatter("%(message)s")
        seen.logs = "\n".join(formatter.format(each) + repr(vars(each)) for each in caplog.records).encode()
    seen.traces = "\n".join(span.to_json() for span in watch.spans).encode()
    server.sql("CHECKPOINT")
    server.stop("fast")
    seen.files = dict(_files(server))
    server.start()  # the fixture stops it
    return seen


@pytest.mark.slow
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("is_redacted", [True, False])
async def test_no_canary_is_in_any_file_log_trace_or_answer(
    is_redacted: bool, caplog: pytest.LogCaptureFixture, tmp_path: Path, record_property: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not is_redacted:
        monkeypatch.setattr(f"{__name__}.PLANTED", PLANTED[:4])
    with running_postgres() as server:
        rules = STANDARD_REDACTION.with_secrets(REGISTERED) if is_redacted else "off"
        seen = await _seen(server, rules, caplog)
    left = seen.left()
    if is_redacted:
        assert sum(left.values()) == 0, left
        assert all(b"[redacted:" in each for each in (seen.answers, seen.traces, seen.files["log of writes"]))
        record_property("G23", f"PostgreSQL: {len(PLANTED)} canaries in {len(PLACES)} places, 0 found: {', '.join(left)}")
    else:
        assert all(left[where] for where in ("answers", "traces", "database", "log of writes")), left
