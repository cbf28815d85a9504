"""Secrets are taken out before anything is stored (S7, G23): registered values, well-known shapes and names of keys."""

import base64
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.ledger.histories import everything, said, with_ledger
from tests.strategies import messages

from antiphon import (
    Citation,
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
from antiphon.ledger import STANDARD_REDACTION, Ledger, Redaction, Snapshot

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
def test_what_stands_under_the_name_of_a_secret_is_not_stored(key: str) -> None:
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


@pytest.mark.parametrize(
    "text",
    [
        "The token budget is 4096 tokens, and the password policy is strict.",
        "call 2026-01-31T12:00:00.123456Z and 4111 1111 1111 1112",
        "01a1dfc5-1379-721d-a160-634e9c079f94",
        "sk-learn, pk_test, basic training, bearer of news",
        "https://example.com/a:b?c=d@e",
    ],
)
def test_what_only_looks_a_little_like_a_secret_stays(text: str) -> None:
    assert STANDARD_REDACTION.text(text) == text


def test_a_value_that_is_too_short_cannot_be_registered() -> None:
    with pytest.raises(ValueError, match="'pin' has fewer than 6 characters"):
        Redaction(secrets={"pin": "1234"})


def test_the_rules_do_not_show_the_secrets() -> None:
    assert SECRET not in repr(RULES)


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
                outbox=[said(value)],
                snapshot=Snapshot("fold", {"state": [value]}),
            )
            answers += records[0].body
        await ledger.search("canary")
        assert len(await ledger.undelivered(1000)) == 200
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
