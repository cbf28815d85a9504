"""Secrets are taken out before anything is stored (S7, G23): registered values, well-known shapes and names of keys."""

import asyncio
import base64
import hashlib
import json
import random
import re
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any
from urllib.parse import quote, unquote
from uuid import UUID

import apsw
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.ledger.histories import everything, said, with_ledger
from tests.strategies import messages

from antiphon import (
    Citation,
    Conversation,
    DataPart,
    ForeignPart,
    MediaPart,
    Message,
    OptionCallPayload,
    OptionResultPayload,
    PartsPayload,
    ReasoningPart,
    TextPart,
    Usage,
    dumps,
)
from antiphon.dialects import decode, encode
from antiphon.dialects.atlas import StructuredMessage
from antiphon.errors import SecretNameError
from antiphon.ledger import (
    STANDARD_REDACTION,
    Head,
    Host,
    Ledger,
    Redaction,
    Snapshot,
    ThreadJournal,
    Verification,
    open_ledger,
)

SECRET = 'pl4y-Th3 "quiet"\\ One/+='
RULES = STANDARD_REDACTION.with_secrets({"stage-door": SECRET})

# Each is a whole secret or a text around one: what must not be stored, and the text that it is in.
SHAPES: dict[str, tuple[str, str]] = {
    "openai": (key := "sk-proj-Ab3dEf6hIj9kLm2nOp5qRs8tUv1wXy4z", f"use {key} please"),
    "openai old": (key := "sk-T3stT3stT3stT3stT3stT3BlbkFJ", f"key={key}"),
    "anthropic": (key := "sk-ant-api03-Zx9Yw8Vu7Ts6Rq5Po4Nm3Lk2Ji1Hg0Fe", key),
    "stripe": (key := "sk_" + "live_4eC39HqLyjWDarjtT1zdp7dc", key),
    "aws id": (key := "AKIAIOSFODNN7EXAMPLE", f"aws: {key}, eu-north-1"),
    "aws session": (key := "ASIAIOSFODNN7EXAMPLF", key),
    "github": (key := "ghp_16C7e42F292c6912E7710c838347Ae178B4a", f"git clone https://{key}@github.com/a/b"),
    "github fine": (key := "github_pat_11ABCDEFG0123456789_abcdefghij", key),
    "gitlab": (key := "glpat-ABCdef123456ghiJKL78", key),
    "google": (key := "AIzaSyD-9tSrke72PouQMnMX-a7eZSW0jkFMBWY", f"?key={key}&x=1"),
    "google oauth": (key := "ya29.a0AfH6SMBx1234567890abcdef", key),
    "slack": (key := "xoxb-" + "123456789012-abcdefGHIJKL", key),
    "slack hook": (key := "https://hooks.slack.com/" + "services/T000/B000/XXXXXXXX", key),
    "hugging face": (key := "hf_abcdefghijklmnopqrstuvwxyz", key),
    "npm": (key := "npm_abcdefghijklmnopqrstuvwxyz012345", key),
    "pypi": (key := "pypi-AgEIcHlwaS5vcmcCJDAwMDAwMDAw", key),
    "jwt": (key := "eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiIxMjM0In0.dozjgNryP4J3jVmNHl0w5N", f"token is {key}."),
    "bearer": ("s3cr3tv4lue1234", "Authorization: Bearer s3cr3tv4lue1234"),
    "bearer small": ("s3cr3tv4lue1234", "authorization: bearer s3cr3tv4lue1234"),
    "basic": ("dXNlcjpwYXNzd29yZA==", "Basic dXNlcjpwYXNzd29yZA=="),
    "dsn": ("hunter2hunter2", "postgres://app:hunter2hunter2@db.internal:5432/x"),
    "url login": ("pa55w0rd!", "https://user:pa55w0rd!@example.com/path"),
    "pem": ("MIIEowIBAAKCAQEA", "-----BEGIN RSA PRIVATE KEY-----\nMIIEowIBAAKCAQEA\n-----END RSA PRIVATE KEY-----"),
    "pem cut": ("MIIEowIBAAKCAQEA", "-----BEGIN PRIVATE KEY-----\nMIIEowIBAAKCAQEA"),
    "openssh": ("b3BlbnNzaC1rZXk", "-----BEGIN OPENSSH PRIVATE KEY-----\nb3BlbnNzaC1rZXk\n-----END OPENSSH PRIVATE KEY-----"),
    "cookie": ("abcdef123456", "Set-Cookie: abcdef123456"),
    "env line": ("correct-horse", "export DB_PASSWORD=correct-horse"),
    "yaml line": ("correct-horse", "password: correct-horse"),
    "json text": ("correct-horse", '{"api_key": "correct-horse", "n": 1}'),
    "query": ("correct-horse", "https://x.example/?access_token=correct-horse&n=1"),
    "card": ("4111 1111 1111 1111", "pay with 4111 1111 1111 1111 now"),
    "card close": ("5500005555555559", "5500005555555559"),
    "registered": (SECRET, f"it is {SECRET}!"),
    "registered b64": ((coded := base64.b64encode(SECRET.encode()).decode())[:24], f"x {coded} y"),
    "registered hex": (SECRET.encode().hex(), SECRET.encode().hex()),
    "registered url": (quote(SECRET, safe=""), f"https://e.example/?q={quote(SECRET, safe='')}"),
    "registered json": (json.dumps(SECRET)[1:-1], json.dumps({"a": SECRET})),
}

PLACES: dict[str, Callable[[str], Message]] = {
    "text": lambda text: Message(policy="u", payload=PartsPayload(parts=(TextPart(text=text),))),
    "reasoning": lambda text: Message(policy="u", payload=PartsPayload(parts=(ReasoningPart(text=text, signature=text),))),
    "data": lambda text: Message(policy="u", payload=PartsPayload(parts=(DataPart(data={"deep": [{"er": [text]}]}),))),
    "data key": lambda text: Message(policy="u", payload=PartsPayload(parts=(DataPart(data={text: 1}),))),
    "foreign": lambda text: Message(policy="u", payload=PartsPayload(parts=(ForeignPart(dialect="d", value=[text]),))),
    "citation": lambda text: Message(
        policy="u", payload=PartsPayload(parts=(TextPart(text="", citations=(Citation(quote=text),)),))
    ),
    "hint": lambda text: Message(
        policy="u", payload=PartsPayload(parts=(MediaPart(modality="image", url="data:,", prompt_hint=text),))
    ),
    "arguments": lambda text: Message(
        policy="u", payload=OptionCallPayload(invocation_id="i", option_name="o", arguments={"a": text}, arguments_text=text)
    ),
    "result": lambda text: Message(policy="u", payload=OptionResultPayload(invocation_id="i", option_name="o", result=[text])),
    "error": lambda text: Message(
        policy="u",
        payload=OptionResultPayload(
            invocation_id="i", option_name="o", is_error=True, error_type=text, error_message=f"Traceback: {text}"
        ),
    ),
    "metadata": lambda text: said(metadata={"ns": {"headers": {"x": text}}}),
    "usage": lambda text: said(usage=Usage(metadata={"ns": {"raw": text}})),
}


@pytest.mark.parametrize("place", PLACES)
def test_no_known_shape_of_a_secret_is_stored_anywhere(place: str) -> None:
    for name, (secret, text) in SHAPES.items():
        stored = dumps(RULES.message(PLACES[place](text))).decode()
        assert secret not in stored, (name, place, stored)
        assert json.dumps(secret)[1:-1] not in stored, (name, place, stored)
        assert "[redacted:" in stored


@pytest.mark.parametrize("key", ["password", "Password", "PASSWORD", "pass_word", "Pass-Word", "passWord"])
def test_a_value_under_the_name_of_a_secret_is_not_stored(key: str) -> None:
    rules = STANDARD_REDACTION
    marker = "[redacted:key]"
    for value, left in (("x", marker), (7, marker), (["a"], [marker]), ({"b": {"c": 1.5}}, {"b": {"c": marker}})):
        message = Message(
            policy="u", payload=OptionCallPayload(invocation_id="i", option_name="login", arguments={"deep": [{key: value}]})
        )
        payload = rules.message(message).payload
        assert isinstance(payload, OptionCallPayload)
        assert payload.arguments == {"deep": [{key: left}]}
    assert rules.value({key: None, "n": True}) == {key: None, "n": True}


@pytest.mark.parametrize("offset", range(3))
@pytest.mark.parametrize("times", [1, 2])
def test_a_registered_value_is_found_inside_base64(offset: int, times: int) -> None:
    """Wherever it begins inside the bytes, encoded once or twice, also in a picture."""
    coded = b"x" * offset + SECRET.encode() + b"and more"
    for _ in range(times):
        coded = base64.b64encode(coded)
    url = f"data:text/plain;base64,{coded.decode()}"

    message = RULES.message(Message(policy="u", payload=PartsPayload(parts=(MediaPart(modality="document", url=url),))))

    (part,) = message.parts
    assert isinstance(part, MediaPart)
    assert "[redacted:stage-door]" in part.url


@pytest.mark.slow
@given(messages)
def test_redaction_is_stable(message: Message) -> None:
    """The same message gives the same, and what was redacted once is not redacted further: a retry is no news."""
    once = RULES.message(message)

    assert dumps(RULES.message(message)) == dumps(once)
    assert RULES.message(once) is once


@given(st.text("abc 123.,:-_/@", max_size=80))
def test_ordinary_words_stay(text: str) -> None:
    if "@" not in text and "-" not in text:
        assert STANDARD_REDACTION.text(text) == text


# What ordinary texts and programs say, and no rule may change.
ORDINARY = (
    "The token budget is 4096 tokens, and the password policy is strict.",
    "Token: the smallest unit of text. Secret: nobody knows. Password: see the manual, page 12.",
    "call 2026-01-31T12:00:00.123456Z and 4111 1111 1111 1112",
    "01a1dfc5-1379-721d-a160-634e9c079f94",
    "sk-learn, pk_test, basic training, bearer of news, sk-learn-benchmark-suite-2026",
    "https://example.com/a:b?c=d@e and https://example.com:8080/path?x=me@y, 50% of 4 tokens, %20%41",
    "def login(user: str, password: str, token: Token | None = None) -> None:",
    "token = next(tokens); api_key=os.environ['OPENAI_API_KEY']; OpenAI(api_key=api_key, token=token)",
    "interface Login { password: string; token?: string } const token = await getToken(user1)",
    "password: ${DB_PASSWORD}, password = \"{password}\", <password>, headers = {'Authorization': auth}",
    "max_token=4096, token: 512, PWD=/home/ada, basic 3-dimensional, token 2026-01-31",
    "getpass.getpass('Password: ') and {Token: ''}",
    "ISBN 978-3-16-148410-0, at 1700000000000 ms, 1700000000000000000 ns, +49 30 1234567890",
    "digest 9f86d081884c7d659a2feaa0c55ad015a3bf4f1b2b0b822cd15d6c15b0f00a08",
    "https://x.example/a%20b?c=%7B%22a%22%3A1%7D",
)


@pytest.mark.parametrize("text", ORDINARY)
def test_text_that_only_resembles_a_secret_stays(text: str) -> None:
    assert STANDARD_REDACTION.text(text) == text


def test_ids_hashes_and_pictures_stay() -> None:
    """G23: no id, no hash and no base64 of 4,000 is taken for a secret, nor anything in a picture of 100 kB."""
    source = random.Random(23)
    for number in range(1000):
        name = str(number).encode()
        short = (str(UUID(int=source.getrandbits(128))), hashlib.sha256(name).hexdigest(), hashlib.sha1(name).hexdigest())
        for text in (*short, base64.b64encode(source.randbytes(48)).decode()):
            assert STANDARD_REDACTION.text(text) == text
    picture = base64.b64encode(source.randbytes(75_000)).decode()
    for text in (picture, f"data:image/png;base64,{picture}", f"![it](data:image/png;base64,{picture}) and more"):
        assert STANDARD_REDACTION.text(text) == text


def test_the_type_of_a_secret_key_stays() -> None:
    """The schema of a tool that takes a password says no password; its default would."""
    wanted = {"type": "string", "title": "Password", "minLength": 8}
    maybe = {"anyOf": [wanted, {"type": "null"}], "default": None}
    assert STANDARD_REDACTION.value({"password": wanted, "token": maybe}) == {"password": wanted, "token": maybe}
    for value, left in (
        ({"type": "string", "default": "hunter2"}, {"type": "string", "default": "[redacted:key]"}),
        ({"type": "hunter2"}, {"type": "[redacted:key]"}),
        ({"type": ["hunter2"]}, {"type": ["[redacted:key]"]}),
        ({"type": "string", "value": "hunter2"}, {"type": "[redacted:key]", "value": "[redacted:key]"}),
        ({"anyOf": ["hunter2"]}, {"anyOf": ["[redacted:key]"]}),
    ):
        assert STANDARD_REDACTION.value({"password": value}) == {"password": left}
    assert STANDARD_REDACTION.value({"pwd": "/home/ada"}) == {"pwd": "/home/ada"}
    assert STANDARD_REDACTION.value({"pwd": "hunter2"}) == {"pwd": "[redacted:key]"}


# ---------------------------------------------------------------- encoded


def percent(text: str, *, every: int = 1) -> str:
    """Return a text of which every so many characters are percent-encoded."""
    return "".join(
        letter if index % every else "".join(f"%{byte:02x}" for byte in letter.encode()) for index, letter in enumerate(text)
    )


@pytest.mark.parametrize("every", [1, 2, 5])
@pytest.mark.parametrize("times", [1, 2, 3])
@pytest.mark.parametrize("name", ["openai", "aws id", "github", "jwt", "bearer", "dsn", "query", "card", "registered", "pem"])
def test_a_secret_is_found_where_it_is_percent_encoded(name: str, every: int, times: int) -> None:
    """S7, G23: wholly or in part, and more than once."""
    secret, text = SHAPES[name]
    for _ in range(times):
        secret, text = percent(secret, every=every), percent(text, every=every)
    for spelled in (text, f"https://x.example/?q={text}", text.replace("%", "%25") if times < 3 else text):
        clean = RULES.text(spelled)
        assert "[redacted:" in clean
        assert unquote(unquote(unquote(unquote(clean)))).find(SHAPES[name][0]) < 0, clean


def test_percent_encoding_that_is_no_text_is_left_alone() -> None:
    text = "%ff%fe%80 caf%C3%A9 100%"
    assert RULES.text(text) == text
    assert RULES.text(f"{text} %ff{percent(SHAPES['openai'][0])}").endswith("%ff[redacted:api-key]")


# ---------------------------------------------------------------- what dialects note


@pytest.mark.parametrize("key", ["password", "Api-Key"])
@pytest.mark.parametrize("place", ["metadata", "arguments", "unknown", "text"])
def test_a_secret_key_is_found_in_what_a_dialect_notes(key: str, place: str) -> None:
    """S7, G23: what a unit says beyond the core is kept as changes at paths, where the key is a step of the path."""
    call = {"id": "c", "name": "login", "arguments": {"user": "ada"}, "extra": {key: "hunter2"}}
    unit: dict[str, Any] = {
        "metadata": {"content": "hi", "metadata": {"type": "query", key: "hunter2"}, "task_id": "t"},
        "arguments": {"content": "hi", "metadata": {"type": "tool_request"}, "task_id": "t", "tool_calls": [call]},
        "unknown": {"content": "hi", "metadata": {"type": "query"}, "task_id": "t", key: {"deep": ["hunter2"]}},
        "text": {"content": "hi", "metadata": {"type": "query", "raw": json.dumps({key: "hunter2"})}, "task_id": "t"},
    }[place]
    stored = [STANDARD_REDACTION.message(message) for message in decode([unit], "atlas")]

    assert not [message for message in stored if b"hunter2" in dumps(message)]
    assert [STANDARD_REDACTION.message(message) for message in stored] == stored
    written = json.dumps(encode(Conversation(stored), "atlas").value)
    assert "hunter2" not in written
    assert "[redacted:key]" in written


def test_a_structured_message_takes_a_hook_for_what_must_not_be_written_down() -> None:
    """AT-029, AT-053, BP7: on `to_dict` and `to_json`."""
    message = StructuredMessage("the key is sk-proj-abcdefghijklmnopqrst", {"password": "hunter2"}, tool_calls=[])
    message.add_tool_call("login", {"token": "hunter2"})
    message.update_metadata({"secret": b"hunter2", "credentials": {"pin": UUID(int=7)}})

    clean = message.to_dict(redact=STANDARD_REDACTION.value)

    assert clean["content"] == "the key is [redacted:api-key]"
    assert clean["metadata"]["password"] == "[redacted:key]"
    assert StructuredMessage.from_dict(clean).metadata["credentials"] == {"pin": "[redacted:key]"}
    assert clean["tool_calls"][0]["arguments"] == {"token": "[redacted:key]"}
    assert json.loads(message.to_json(redact=STANDARD_REDACTION.value)) == clean
    assert message.to_dict()["metadata"]["password"] == "hunter2"
    assert StructuredMessage.from_dict(clean).message_id == message.message_id


# ---------------------------------------------------------------- time

HOSTILE = {
    "jwt": "eyJ-",
    "api key": "sk-",
    "names": "token:",
    "quotes": 'token:"',
    "pem": "-----BEGIN PRIVATE KEY-----",
    "urls": "://a:",
    "logins": "a:@",
    "percent": "%41",
    "percent twice": "%2541",
    "schemes": "basic ",
    "cards": "4 ",
    "groups": "4111 1111 1111 1111 ",
    "brackets": "[",
    "json in json": '{"a":"',
    "media": "data:;base64,a token=abc123 ",
    "templates": "password=<",
    "expressions": "password={",
    "escapes": 'password="\\',
    "marks": "password=[redacted:",
    "runs": "token=a.b",
    "spaces": " ",
    "quote": '"',
}


@pytest.mark.parametrize("piece", HOSTILE.values(), ids=HOSTILE)
def test_no_text_takes_longer_than_in_proportion(piece: str) -> None:
    """G21: 50 kB of what a pattern begins with take about 30 ms; the patterns of before took seconds."""
    text = "token" + piece * (50_000 // len(piece))
    began = time.process_time()
    STANDARD_REDACTION.text(text)
    assert time.process_time() - began < 0.5


@pytest.mark.parametrize("text", [ORDINARY[0], "Zwölf Boxkämpfer jagen Viktor – 漢字かな交じり文、тест."])
def test_a_text_without_a_secret_is_looked_through_in_no_time(text: str) -> None:
    """Half a megabyte in 1 ms; if the hints together became too large for their engine, it would be a second."""
    long = text * (500_000 // len(text))
    began = time.process_time()
    assert STANDARD_REDACTION.text(long) == long
    assert time.process_time() - began < 0.2


@pytest.mark.parametrize("times", [1, 2])
@pytest.mark.parametrize("is_ascii", [True, False])
@pytest.mark.parametrize("is_upper", [True, False])
def test_a_registered_value_is_found_where_json_has_escaped_it(times: int, is_ascii: bool, is_upper: bool) -> None:
    """As in the words of an error that repeats the body of a request: the text around it is no JSON."""
    secret = 'Gänse "füßchen" \N{BIRD}'
    text = secret
    for _ in range(times):
        text = json.dumps({"a": text}, ensure_ascii=is_ascii)
    if is_upper:
        text = re.sub(r"\\u[0-9a-f]{4}", lambda match: "\\u" + match[0][2:].upper(), text)
    clean = Redaction(secrets={"geese": secret}).text(f"Traceback: {text}")
    assert "[redacted:geese]" in clean
    assert "nse" not in clean


def test_a_value_that_is_too_short_cannot_be_registered() -> None:
    with pytest.raises(ValueError, match="'pin' has fewer than 6 characters"):
        Redaction(secrets={"pin": "1234"})


def test_the_rules_do_not_show_the_secrets() -> None:
    assert SECRET not in repr(RULES)


@pytest.mark.slow
def test_200_canaries_are_nowhere_in_the_files(tmp_path: Path) -> None:
    """G23: 200 registered values, through every door of the ledger, then a look at every byte on the disk."""
    path = tmp_path / "ledger.db"
    canaries = {f"canary-{number}": f"canary/{number:03}/\N{BIRD}{number * 7919}" for number in range(200)}

    async def work(ledger: Ledger) -> bytes:
        answers = b""
        for number, (name, value) in enumerate(canaries.items()):
            place = list(PLACES.values())[number % len(PLACES)]
            message = place(f"{name} is {value}, they said").model_copy(update={"id": f"m{number}"})
            records = await ledger.append(
                f"t{number}",
                [message],
                allow_foreign=True,
                snapshot=Snapshot("fold", {"state": [value]}),
            )
            answers += records[0].body
        await ledger.search("canary")
        assert len((await ledger.threads(limit=1000)).threads) == 200
        await ledger.backup(tmp_path / "backup.db")
        return answers + on_disk()

    def on_disk() -> bytes:
        return b"".join(each.read_bytes() for each in tmp_path.iterdir())

    seen = with_ledger(path, work, redaction=STANDARD_REDACTION.with_secrets(canaries)) + on_disk()

    assert b"[redacted:canary-17]" in seen
    for value in canaries.values():
        for form in (value.encode(), json.dumps(value)[1:-1].encode(), base64.b64encode(value.encode())[:16]):
            assert form not in seen, value


def test_the_caller_gets_what_was_stored() -> None:
    async def work(ledger: Ledger) -> None:
        (record,) = await ledger.append("t", [said(f"it is {SECRET}")])
        assert record.message.text == "it is [redacted:stage-door]"
        assert await everything(ledger) == [record]
        again: Any = await ledger.append("t", [said(f"it is {SECRET}", id=record.message.id)])
        assert again == (record,)
        posted = await ledger.post("t", said(SECRET, to=("x",)))
        assert posted.message.text == "[redacted:stage-door]"

    with_ledger(None, work, redaction=RULES)


def test_foreign_history_is_redacted() -> None:
    """S7, S14: a row from outside that is kept as data has no secret in it either; twice is still once."""

    async def work(ledger: Ledger) -> None:
        rows = [said(f"the key {SECRET}", lane=lane) for lane in ("control", "effect", "talk")]
        for _ in range(2):
            records = await ledger.append("t", rows, outside=True)
            assert [record.seq for record in records] == [1, 2, 3]
            assert not any(b"pl4y" in record.body for record in records)
        assert len(await everything(ledger)) == 3

    with_ledger(None, work, redaction=RULES)


# ---------------------------------------------------------------- by default, and as a thread began

KEY = "sk-proj-Ab3dEf6hIj9kLm2nOp5qRs8tUv1wXy4z"
stores = pytest.mark.parametrize("is_file", [False, True], ids=["memory", "sqlite"])


def place(folder: Path, is_file: bool) -> Path | None:
    return folder / "ledger.db" if is_file else None


async def texts(ledger: Ledger, thread_id: str = "t") -> list[str]:
    return [record.message.text for record in await everything(ledger, thread_id)]


@stores
def test_a_ledger_redacts_unless_it_is_turned_off(tmp_path: Path, is_file: bool) -> None:
    """S7, G23."""

    async def work(ledger: Ledger) -> list[str]:
        await ledger.append("t", [said(f"it is {KEY}")])
        return await texts(ledger)

    url = f"sqlite:///{tmp_path}/other.db" if is_file else "memory:"

    async def opened() -> list[str]:
        async with open_ledger(url) as ledger:
            return await work(ledger)

    assert asyncio.run(opened()) == ["it is [redacted:api-key]"]
    assert with_ledger(place(tmp_path, is_file), work) == ["it is [redacted:api-key]"]
    assert with_ledger(place(tmp_path / "off", is_file), work, redaction="off") == [f"it is {KEY}"]
    with pytest.raises(TypeError, match='"off", or None for the usual shapes, not True'):
        with_ledger(place(tmp_path / "odd", is_file), work, redaction=True)


@stores
def test_a_name_that_looks_like_a_secret_is_refused(tmp_path: Path, is_file: bool) -> None:
    """S7, G23: it is neither stored nor rewritten, wherever it is given, and the error does not tell it."""

    async def work(ledger: Ledger) -> None:
        await ledger.append("t", [said()])
        odd = Snapshot(KEY, {})
        refused: dict[str, list[Awaitable[object]]] = {
            "the name of a thread": [
                ledger.append(KEY, [said()]),
                ledger.append(f"agents/{percent(KEY)}", []),
                ledger.append(KEY, [said(thread_id=KEY)]),
                ledger.post(KEY, said(to=("x",))),
                ledger.claim(KEY),
                ledger.fork("t", into=KEY),
            ],
            "the name of a host": [ledger.beat(Host(KEY, "1"))],
            "the build of a host": [ledger.beat(Host("h", KEY)), ledger.release("t", epoch=1, unfit=KEY, reason="x")],
            "the kind of a thread": [ledger.beat(Host("h", "1", (KEY,))), ledger.claim("t", kind=KEY)],
            "the status of a thread": [ledger.append("t", [], status=KEY), ledger.append("new", [said()], status=KEY)],
            "the pattern of a thread": [ledger.append("t", [said()], pattern=f"of-{KEY}")],
            "the name of a fold": [ledger.append("t", [said()], snapshot=odd)],
        }
        for what, asked in refused.items():
            for each in asked:
                with pytest.raises(SecretNameError) as found:
                    await each
                assert found.value.what == what
                assert KEY not in str(found.value)
        assert [each.thread_id for each in (await ledger.threads()).threads] == ["t"]
        assert (await ledger.verify()).is_whole
        await ledger.append("4111111111111111", [said()])  # many ids are long numbers

    with_ledger(place(tmp_path, is_file), work)
    if is_file:
        assert KEY.encode() not in b"".join(each.read_bytes() for each in tmp_path.iterdir())


def test_a_thread_goes_on_as_it_began(tmp_path: Path) -> None:
    """G2, S7: what was appended unredacted is no news when it is appended again, and its thread can go on under its name."""
    first, path = said(f"it is {KEY}"), tmp_path / "ledger.db"
    second = said(f"and {KEY}")

    async def begin(ledger: Ledger) -> None:
        for name in ("t", KEY):
            await ledger.append(name, [first], status="open")
        await ledger.claim("claimed")

    async def go_on(ledger: Ledger) -> None:
        for name in ("t", KEY):
            again, more = await ledger.append(name, [first, second], snapshot=Snapshot("f", [KEY]))
            assert (again.seq, again.message.text, more.message.text) == (1, f"it is {KEY}", f"and {KEY}")
            assert await ledger.redaction.of(name) is None
        assert await ledger.claim("claimed") == 2
        (record,) = await ledger.append("claimed", [first], epoch=2)
        assert KEY in record.message.text
        branch = await ledger.fork("t", into="branch")
        (record,) = await ledger.append(branch.thread_id, [said(KEY)])
        assert record.message.text == KEY
        (record,) = await ledger.append("new", [first])
        assert record.message.text == "it is [redacted:api-key]"
        assert (await ledger.append("new", [first]))[0] == record
        assert await ledger.redaction.of("new") is await ledger.redaction.of("nobody") is STANDARD_REDACTION
        await ledger.fork("new", into="new branch")
        assert (await ledger.append("new branch", [second]))[0].message.text == "and [redacted:api-key]"
        assert (await ledger.verify()).is_whole

    async def off_again(ledger: Ledger) -> None:
        assert await ledger.redaction.of("new") is None
        (record,) = await ledger.append("new", [second])
        assert record.message.text == f"and {KEY}"

    with_ledger(path, begin, redaction="off")
    with_ledger(path, go_on)
    with_ledger(path, off_again, redaction="off")


def test_a_thread_goes_on_as_it_began_in_memory_too() -> None:
    """The same on one ledger whose rules are taken from another: a branch is as redacted as what it rests on."""

    async def work(ledger: Ledger) -> None:
        await ledger.append("t", [said()])
        await ledger.fork("t", into="u")
        (record,) = await ledger.append("u", [said(KEY)])
        assert record.message.text == "[redacted:api-key]"
        assert await ledger.redaction.of("u") is STANDARD_REDACTION

    with_ledger(None, work)


def test_an_altered_redaction_mark_of_a_thread_is_found(tmp_path: Path) -> None:
    """G20."""
    path = tmp_path / "ledger.db"

    async def begin(ledger: Ledger) -> None:
        await ledger.append("t", [said()])

    async def look(ledger: Ledger) -> Verification:
        return await ledger.verify()

    with_ledger(path, begin)
    connection = apsw.Connection(str(path))
    connection.execute("UPDATE threads SET is_redacted = 0")
    assert not with_ledger(path, look).is_whole
    connection.execute("UPDATE threads SET is_redacted = 1")
    connection.close()
    assert with_ledger(path, look).is_whole


_CUT = (
    *'%"\\{}[@a',
    "%2",
    "sk-",
    "://",
    "4111",
    "password=",
    "token: ",
    "Bearer ",
    "[redacted:key]",
    "-----BEGIN PRIVATE KEY-----",
)
_WHOLE = (KEY, percent(KEY), percent(KEY, every=3), *(text for _, text in SHAPES.values()))
_PIECES = st.sampled_from([*_WHOLE, *_CUT, " ", "\n"])


@pytest.mark.slow
@settings(max_examples=150)
@given(st.lists(_PIECES, max_size=6).map("".join))
def test_redacted_text_is_not_redacted_further(text: str) -> None:
    """G2: of texts made of pieces of secrets, once is the same as twice, alone, in JSON inside a text and in a message."""
    for said_so in (text, json.dumps({"a": text}), f"see {text}"):
        once = RULES.text(said_so)
        assert RULES.text(once) == once
        message = RULES.message(said(said_so))
        assert RULES.message(message) is message
        assert message.text == once


_BEFORE = ("", ".", "-", "0", "0.", "x", "é", "\\", "\t", "\b", "\x1b", "\u2028", "\N{BIRD}", "data:,;base64,A", "\\u000a")
_NUMBERS = ("4111111111111111", "4111 1111 1111 1111", "3782-822463-10005", "5500005555555559", "0.23000000000000001")
_AROUND = st.sampled_from([*_WHOLE, *_CUT, *_BEFORE, *_NUMBERS, " ", "\n"])
_UNHINTED = Redaction(
    STANDARD_REDACTION.keys, {name: f"(?:){pattern}" for name, pattern in STANDARD_REDACTION.patterns.items()}
)
"""The standard rules, spelled so that none of them has a hint: each is tried on every text."""


@pytest.mark.slow
@settings(max_examples=150)
@given(st.lists(_AROUND, max_size=6).map("".join))
def test_the_first_look_misses_nothing(text: str) -> None:
    """A message that is called clean by its bytes has nothing in it that a look at each text of it would take out."""
    nested = json.dumps({"b": text, "c": json.dumps([text], ensure_ascii=False)}, ensure_ascii=False)
    for message in (said(text), said("", metadata={"ns": {"a": [text, json.dumps({"b": text}), nested]}})):
        assert dumps(_UNHINTED.message(message)) == dumps(STANDARD_REDACTION.message(message))


@pytest.mark.parametrize("number", _NUMBERS[:4])
@pytest.mark.parametrize("before", _BEFORE)
def test_a_card_number_is_found_after_any_letter(before: str, number: str) -> None:
    """A hint looks at the letter before the number, which JSON may have escaped, also twice."""
    for text in (before + number, f"{before}{number} and", json.dumps({"a": json.dumps([before + number])})):
        assert STANDARD_REDACTION.message(said(text)).text == _UNHINTED.message(said(text)).text
        assert STANDARD_REDACTION.text(text) == _UNHINTED.text(text)


def test_a_long_fraction_is_no_reason_to_look_twice() -> None:
    """Scores and coordinates have such fractions; to parse their messages took thirty times as long as the first look."""
    assert STANDARD_REDACTION.is_clean('{"score":0.23000000000000001,"at":[-136.5412345678901,5.4111111111111111]}')
    assert not STANDARD_REDACTION.is_clean('{"score":"23000000000000001"}')


@stores
@pytest.mark.parametrize("was_redacted", [True, False])
def test_a_restored_thread_goes_on_as_its_rows_are(tmp_path: Path, is_file: bool, was_redacted: bool) -> None:
    """G2, S7: redacted if the ledger redacts, unless its rows show that it was not."""

    async def journal(ledger: Ledger) -> tuple[ThreadJournal, Head]:
        await ledger.append("t", [said(f"it is {KEY}")])
        return ThreadJournal("t", tuple(await everything(ledger))), await ledger.head("t")

    rows, head = with_ledger(None, journal, redaction=None if was_redacted else "off")

    async def work(ledger: Ledger) -> None:
        await ledger.restore([rows], [head])
        (record,) = await ledger.append("t", [said(f"and {KEY}")])
        assert (KEY in record.message.text) is not was_redacted
        assert (await ledger.verify()).is_whole

    with_ledger(place(tmp_path, is_file), work)
