"""Redaction: what must never be written down, as data, and the one place where it is taken out.

A ledger only grows, so a secret in it cannot be edited away. Therefore messages are redacted before they are appended, and
whoever appended acts on what was stored. The same message always becomes the same one, so that appending again is no news.

Three kinds of rule, all over every text of a message, wherever it stands: registered values (also as base64, once or
twice, as hex or percent-encoded), patterns of well-known secrets, and names of keys whose value is never kept, also in JSON
inside a text. Base64 in a `data:` URL is searched for registered values only: in so many random letters every pattern matches
something.
"""

from __future__ import annotations

import re
from base64 import b64encode
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from types import MappingProxyType
from typing import Any, cast
from urllib.parse import quote

from antiphon.messages import Message, dumps, loads
from antiphon.messages._json import parse, write
from antiphon.messages._limits import NO_LIMITS

__all__ = ["STANDARD_REDACTION", "Redaction"]

_MEDIUM = re.compile(r"data:[^\s,]*;base64,\S*", re.IGNORECASE)
_IDS = ("id", "turn_id", "thread_id", "correlation_id", "in_reply_to", "parent_id")
_FEWEST = 6
"""Characters of the shortest value that may be registered: less would be found everywhere."""

_KEYS = (
    "api_key",
    "access_key",
    "access_token",
    "authorization",
    "client_secret",
    "cookie",
    "credential",
    "credentials",
    "id_token",
    "passphrase",
    "passwd",
    "password",
    "private_key",
    "proxy_authorization",
    "pwd",
    "refresh_token",
    "secret",
    "secret_access_key",
    "secret_key",
    "session_token",
    "set_cookie",
    "token",
    "x_api_key",
)
_ASSIGNED = "|".join(key.replace("_", "[-_ ]?") for key in sorted(_KEYS, key=len, reverse=True))

_PATTERNS = {
    "private-key": r"-----BEGIN [A-Z0-9 ]*PRIVATE KEY-----(?:(?!-----BEGIN).)*?(?:-----END [A-Z0-9 ]*PRIVATE KEY-----|\Z)",
    "url-password": r"(?<=://)[^\s/:@\"']*:[^\s/@\"']+(?=@)",
    "jwt": r"\beyJ[\w-]{6,}\.[\w-]{6,}\.[\w-]*",
    "api-key": r"\b(?:sk|pk|rk)[-_](?:[A-Za-z0-9]+[-_])*[A-Za-z0-9_-]{16,}",
    "aws-key": r"\b(?:AKIA|ASIA|AROA|AIDA)[A-Z0-9]{16}\b",
    "github-token": r"\b(?:gh[pousr]_[A-Za-z0-9]{20,}|github_pat_\w{20,})",
    "gitlab-token": r"\bglpat-[\w-]{16,}",
    "google-key": r"\b(?:AIza[\w-]{30,}|ya29\.[\w-]{20,})",
    "slack-token": r"\bxox[abeoprs]-[A-Za-z0-9-]{10,}|https://hooks\.slack\.com/services/[\w/]+",
    "huggingface-token": r"\bhf_[A-Za-z0-9]{20,}",
    "npm-token": r"\bnpm_[A-Za-z0-9]{20,}",
    "pypi-token": r"\bpypi-[\w-]{20,}",
    "authorization": r"(?i:\b(?:bearer|basic|digest|token)\s+)(?P<secret>(?=\S*[\d=])[\w.~+/=-]{8,})",
    "assignment": rf"(?i:(?<![a-z0-9])(?:{_ASSIGNED})[\"'\\]*\s*[:=]\s*[\"'\\]*)"
    r"""(?P<secret>(?<=")[^"\\\n]+|(?<=')[^'\\\n]+|[^\s"'\\,;&]{3,})""",
    "card-number": r"(?<![\d.-])\d(?:[ -]?\d){12,18}(?![\d.-])",
}


@dataclass(frozen=True)
class Redaction:
    """What is taken out of messages before they are stored, and under which name."""

    keys: frozenset[str] = frozenset()
    """The value under such a key is not kept. Case, `-` and `_` make no difference."""
    patterns: Mapping[str, str] = field(default_factory=dict[str, str])
    """Regular expressions by name. Where one has a group `secret`, only that is taken out.
    `card-number` also wants the check digit to be right."""
    secrets: Mapping[str, str] = field(default_factory=dict[str, str], repr=False)
    """Values that are known, by name."""

    def __post_init__(self) -> None:
        for name, value in self.secrets.items():
            if len(value) < _FEWEST:
                raise ValueError(f"the secret {name!r} has fewer than {_FEWEST} characters; it would be found everywhere")

    def with_secrets(self, secrets: Mapping[str, str]) -> Redaction:
        """Return the same rules and more values that must not be stored."""
        return Redaction(self.keys, self.patterns, {**self.secrets, **secrets})

    def message(self, message: Message) -> Message:
        """Return the message as it may be stored; the same one if there is nothing to take out."""
        body = dumps(message)
        form = parse(body)
        clean = write(self._identified(form, self.value(form)))
        return message if clean == body else loads(clean, Message, limits=NO_LIMITS)

    def _identified(self, form: Any, clean: Any) -> Any:
        """Return a message's clean form with its ids as they were, where they only look like the number of a card.

        One long number in ten has the check digit of one, and messages whose ids became the same would be taken for one.
        """
        names = {name: self._without_cards(form[name]) for name in _IDS if isinstance(form.get(name), str)}
        payload = form["payload"]
        if "invocation_id" in payload:
            clean["payload"]["invocation_id"] = self._without_cards(payload["invocation_id"])
        return {**clean, **names}

    def _without_cards(self, text: str) -> str:
        return self.text(text, but="card-number")

    def value(self, value: Any) -> Any:
        """Return a JSON value, made of plain dicts and lists, as it may be stored."""
        if isinstance(value, str):
            return self.text(value)
        if isinstance(value, dict):
            items = cast("dict[str, Any]", value).items()
            return {self.text(key): self._under(key, each) for key, each in items}
        if isinstance(value, list):
            return [self.value(each) for each in cast("list[Any]", value)]
        return value

    def _under(self, key: str, value: Any) -> Any:
        return _masked(value) if _plain(key) in self._plain_keys else self.value(value)

    def text(self, text: str, *, but: str | None = None) -> str:
        """Return a text as it may be stored; `but` is a pattern that is not looked for."""
        clean = self._registered.sub(self._mark_registered, text) if self.secrets else text
        if _MEDIUM.fullmatch(text):
            return clean
        clean = self._structured(clean)
        for name, pattern in self._compiled:
            if name != but:
                clean = pattern.sub(_marking(name), clean)
        return clean

    def _structured(self, text: str) -> str:
        """Return a text that is JSON without what stands under secret keys in it; if nothing does, as it is."""
        if not self.keys or text.lstrip()[:1] not in ("{", "["):
            return text
        try:
            value = parse(text.encode())
            clean = self.value(value)
        except (ValueError, RecursionError):  # not JSON, or nested so deep that nobody can have meant it
            return text
        return text if clean == value else write(clean).decode()

    @cached_property
    def _plain_keys(self) -> frozenset[str]:
        return frozenset(map(_plain, self.keys))

    @cached_property
    def _compiled(self) -> tuple[tuple[str, re.Pattern[str]], ...]:
        return tuple((name, re.compile(pattern, re.DOTALL)) for name, pattern in self.patterns.items())

    @cached_property
    def _names(self) -> dict[str, str]:
        return {spelling: name for name, value in self.secrets.items() for spelling in _spellings(value)}

    @cached_property
    def _registered(self) -> re.Pattern[str]:
        longest_first = sorted(self._names, key=lambda spelling: (-len(spelling), spelling))
        return re.compile("|".join(map(re.escape, longest_first)))

    def _mark_registered(self, match: re.Match[str]) -> str:
        return _marker(self._names[match[0]])


def _masked(value: Any) -> Any:
    """Return a value with everything in it taken out but its shape."""
    if isinstance(value, dict):
        items = cast("dict[str, Any]", value).items()
        return {key: _masked(each) for key, each in items}
    if isinstance(value, list):
        return [_masked(each) for each in cast("list[Any]", value)]
    return value if value is None or isinstance(value, bool) else _marker("key")


def _plain(key: str) -> str:
    return key.casefold().replace("-", "").replace("_", "").replace(" ", "")


def _marker(name: str) -> str:
    return f"[redacted:{name}]"


def _marking(name: str) -> Callable[[re.Match[str]], str]:
    marker = _marker(name)

    def mark(match: re.Match[str]) -> str:
        whole, secret = match[0], match.groupdict().get("secret", match[0])
        if "[redacted:" in secret or (name == "card-number" and not _has_check_digit(secret)):
            return whole
        return whole.removesuffix(secret) + marker

    return mark


def _has_check_digit(text: str) -> bool:
    """Whether the last digit of a number is the one that Luhn's rule gives."""
    digits = [int(letter) for letter in reversed(text) if letter.isdigit()]
    doubled = (sum(divmod(2 * digit, 10)) for digit in digits[1::2])
    return (sum(digits[::2]) + sum(doubled)) % 10 == 0


def _spellings(value: str) -> Iterator[str]:
    """Yield a value in all the forms that it may be written in."""
    data = value.encode()
    yield value
    yield quote(value, safe="")
    yield write(value)[1:-1].decode()  # as it stands in JSON inside a text
    yield data.hex()
    yield data.hex().upper()
    for once in _base64(data):
        yield once
        yield from _base64(once.encode())


def _base64(data: bytes) -> Iterator[str]:
    """Yield what is always there when data is somewhere in a base64 text: it may begin at each of three places."""
    for shift in range(3):
        bits = 8 * (shift + len(data))
        text = b64encode(b"\0" * shift + data).decode()[-(-8 * shift // 6) : bits // 6]
        yield text
        yield text.replace("+", "-").replace("/", "_")


STANDARD_REDACTION = Redaction(frozenset(_KEYS), MappingProxyType(_PATTERNS))
"""The shapes of secrets that are in wide use. `with_secrets` adds your own."""
