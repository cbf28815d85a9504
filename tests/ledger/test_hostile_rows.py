"""Forged rows, names that mean something elsewhere, and filters with SQL in them (S1, S2, S3, G21)."""

import asyncio
import base64
import json
import pickle
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.ledger.histories import everything, said, with_ledger
from tests.strategies import RESERVED, json_values

from antiphon import DataPart, Message, OptionCallPayload, PartsPayload, dumps
from antiphon.errors import AntiphonError
from antiphon.ledger import Ledger, ThreadFilter, diff, replay, transitions
from antiphon.ledger._admission import new_state
from antiphon.ledger._listing import terms_of, words_of
from antiphon.ledger._records import genesis, link
from antiphon.ledger._stored import Thread, message_checksum
from antiphon.ledger.memory import MemoryLedger
from antiphon.ledger.sqlite._connection import LedgerFile, connect
from antiphon.ledger.sqlite._driver import put_thread
from antiphon.messages import Limits, thaw, use_limits

TRACE = Path("antiphon-was-here")


class Bomb:
    def __reduce__(self) -> tuple[Any, ...]:
        return Path.touch, (TRACE,)


def body(payload: Any, **more: Any) -> bytes:
    return json.dumps({"antiphon": 1, "id": "x", "policy": "p", "payload": payload, "thread_id": "t", **more}).encode()


TEXT = {"kind": "parts", "parts": [{"kind": "text", "text": "hi"}]}
HOSTILE: dict[str, bytes] = {
    "a pickle": pickle.dumps(Bomb()),
    "a pickle in base64": base64.b64encode(pickle.dumps(Bomb())),
    "CVE-2025-64439": b'{"lc":2,"type":"constructor","id":["os","system"],"kwargs":{"command":"touch antiphon-was-here"}}',
    "CVE-2025-64439 inside": body({"lc": 2, "type": "constructor", "id": ["os", "system"], "args": ["true"]}),
    "CVE-2025-68664 inside": body({**TEXT, "lc": 1, "type": "secret", "id": ["PATH"]}),
    "msgpack ext": b"\xc7\x10\x05\x93\xa2os\xa6system\xa4true",
    "YAML tag": b"!!python/object/apply:os.system [true]",
    "jsonpickle": body({"py/object": "os.system", "py/reduce": [{"py/function": "os.system"}, {"py/tuple": ["true"]}]}),
    "a class by name": body({"__class__": "os.system", "kind": "parts", "parts": []}),
    "an unknown kind": body({"kind": "os.system"}),
    "an unknown part": body({"kind": "parts", "parts": [{"kind": "subprocess", "args": ["true"]}]}),
    "a later version": b'{"antiphon":99,"id":"x","policy":"p","payload":{}}',
    "a lone surrogate": b'{"antiphon":1,"id":"x","policy":"\\ud800","payload":{"kind":"parts","parts":[]}}',
    "duplicate keys": b'{"antiphon":1,"id":"x","id":"y","policy":"p","payload":{"kind":"parts","parts":[]}}',
    "deep": body({"kind": "parts", "parts": [{"kind": "data", "data": json.loads("[" * 900 + "]" * 900)}]}),
    "very deep": b'{"antiphon":1,"id":"x","policy":"p","payload":' + b"[" * 100_000 + b"]" * 100_000 + b"}",
    "a number of 5,000 digits": body(TEXT).replace(b'"thread_id"', b'"step_num":' + b"9" * 5000 + b',"thread_id"'),
    "NaN": body({"kind": "parts", "parts": [{"kind": "data", "data": float("nan")}]}),
    "nothing": b"",
    "zero bytes": b"\0" * 1000,
    "half a message": body(TEXT)[:40],
    "a list": b"[1,2,3]",
    "a conversation": b'{"antiphon":1,"conversation":{}}\n' + body(TEXT),
    "UTF-16": body(TEXT).decode().encode("utf-16"),
    "a byte order mark": b"\xef\xbb\xbf" + body(TEXT),
}


def plant(path: Path, content: bytes) -> None:
    """Write a row straight into the file, with a chain that fits it, as an attacker does who knows the format."""
    connection = connect(LedgerFile(str(path), 5), create=True)
    digest = link(genesis("t"), 1, content)
    state = new_state("t", 1)._replace(seq=1, hash=digest)
    put_thread(connection, Thread(0, state, 0, None, 0))
    row = (1, 1, 1, 7, 7, 7, None, 1, digest, None, content, message_checksum(1, digest))
    connection.run("INSERT INTO messages VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)", row)
    connection.close()


@pytest.mark.parametrize("name", HOSTILE)
def test_a_hostile_row_is_a_typed_error_or_plain_data(name: str, tmp_path: Path) -> None:
    """S1: read, replayed, searched, followed, forked, verified: no code runs, no environment is looked at, nothing hangs."""
    plant(tmp_path / "ledger.db", HOSTILE[name])

    async def look(ledger: Ledger) -> None:
        assert not (await ledger.verify()).is_whole
        (record,) = await everything(ledger)
        assert record.body == HOSTILE[name]
        for doing in (replay(ledger, "t"), transitions(ledger, "t"), diff(ledger, "t", "t"), ledger.find(invocation_id="x")):
            try:
                await doing
            except AntiphonError:
                continue
        await ledger.search("hi")
        async with asyncio.timeout(5):
            await anext(aiter(ledger.tail()))
        assert (await ledger.thread("t")) is not None

    with_ledger(tmp_path / "ledger.db", look)
    assert not TRACE.exists()


@given(st.binary(max_size=200))
def test_the_words_of_any_bytes_are_text(content: bytes) -> None:
    assert isinstance(words_of(content), str)


@given(st.text())
def test_anything_may_be_searched_for(typed: str) -> None:
    """S3: what is asked of the index is words between quotes, whatever was typed."""
    for term in terms_of(typed):
        assert all(word.isalnum() for word in term.words)


@pytest.mark.slow
@given(
    st.dictionaries(st.sampled_from([*RESERVED, "py/object", "__reduce__", "$schema", "hash", "id"]), json_values, max_size=5)
)
def test_reserved_words_in_user_data_come_back_as_a_plain_dict(data: dict[str, Any]) -> None:
    """S2: at every depth, in arguments and in data, through the ledger and back."""

    async def run() -> None:
        ledger = MemoryLedger()
        nested = {"kind": "option_call", "thread_id": "other", "seq": 7, "deep": [data, {"lc": data}]}
        call = Message(policy="p", payload=OptionCallPayload(invocation_id="i", option_name="o", arguments=nested))
        part = Message(policy="p", payload=PartsPayload(parts=(DataPart(data=nested),)))
        await ledger.append("t", [call, part])
        one, two = [record.message for record in await everything(ledger)]
        assert isinstance(one.payload, OptionCallPayload)
        assert thaw(one.payload.arguments) == json.loads(json.dumps(nested))
        assert type(thaw(one.payload.arguments)["deep"][0]) is dict
        assert two.payload == part.payload
        assert (one.thread_id, one.kind) == ("t", "option_call")

    with use_limits(Limits(depth=100)):
        asyncio.run(run())


INJECTIONS = [
    "x') OR '1'='1",
    "$.a' UNION SELECT",
    '";--',
    "'; DROP TABLE messages; --",
    "x\0y",
    "k" * 10_000,
    "\u202egnirts",
    "__proto__",
    "$[*]",
    "%" * 10_000,
    "a' AND (SELECT 1)='1",
    "1; ATTACH DATABASE '/tmp/x' AS x",
    "NEAR(a b)",
    '"',
    "words:x",
    "{a b}:c",
]


@pytest.mark.parametrize("text", INJECTIONS, ids=range(len(INJECTIONS)))
def test_sql_in_a_filter_is_a_text_like_any_other(text: str, tmp_path: Path) -> None:
    """S3: as a filter, a cursor, a page, an order, a name, a search: nothing found or a typed refusal, and nothing broken."""

    async def work(ledger: Ledger) -> None:
        await ledger.append("t", [said("quite ordinary")], status="running")
        assert (await ledger.threads(ThreadFilter(status=text, pattern=text, forked_from=text))).threads == ()
        assert await ledger.find(invocation_id=text) == ()
        assert await ledger.find(correlation_id=text, thread_id=text) == ()
        assert await everything(ledger, text) == []
        assert await ledger.search(text, thread_id=text) == ()
        await ledger.search(text)
        order: Any = text
        for doing in (
            ledger.threads(order=order),
            ledger.threads(page=text),
            anext(aiter(ledger.tail(text))),
            ledger.fork(text),
            ledger.delete(text),
            ledger.append("t", [], status=text) if "\0" in text or len(text) > 512 else ledger.threads(page=text),
        ):
            with pytest.raises((AntiphonError, ValueError)):
                await doing
        assert len(await everything(ledger)) == 1
        assert (await ledger.verify()).is_whole

    with_ledger(tmp_path / "ledger.db", work)


def test_a_row_of_a_version_to_come_is_kept_as_bytes_and_named(tmp_path: Path) -> None:
    """G11: it stops with the name of what it does not know, and does not guess."""
    later = dumps(said(thread_id="t")).replace(b'{"antiphon":1', b'{"antiphon":2')
    plant(tmp_path / "ledger.db", later)

    async def work(ledger: Ledger) -> None:
        (record,) = await everything(ledger)
        assert record.body == later
        with pytest.raises(AntiphonError, match="written in house format 2"):
            record.message  # noqa: B018

    with_ledger(tmp_path / "ledger.db", work)
