"""The well-known shapes of secrets: names of keys, and patterns of texts. Pure functions over texts.

Each rule is a pattern, and most rules have a hint: a pattern for Rust's regex engine that matches everything that the rule
matches, and often more. Nearly no text has a secret. So a text is first searched for all hints at once, at about 2 ns per
character, and then only for the rules whose hint was found. A hint also matches text that is escaped inside JSON, so the bytes
of a whole message are searched before they are parsed. Hints use classes of ASCII letters: Unicode classes with these counts
are too large for the engine's fast path, and take 500 times as long.

Every pattern takes linear time: either no match starts inside text that an earlier start has scanned without success, or the
scan is bounded.

A pattern also matches where the name of a key precedes other text, as in prose and in programs (`token: the smallest unit`,
`password: str`). `is_secret` decides by the text that follows.
"""

from __future__ import annotations

import re
from array import array
from base64 import b64decode
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import lru_cache
from typing import Any, Final, NamedTuple, cast
from urllib.parse import unquote

from pydantic_core import SchemaValidator, core_schema

MARK: Final = "[redacted:"
"""The beginning of the mark that replaces a secret."""

KEYS: Final = (
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
_ASSIGNED: Final = "|".join(key.replace("_", "[-_ ]?") for key in sorted(KEYS, key=len, reverse=True))

PATTERNS: Final[Mapping[str, str]] = {
    "private-key": r"-----BEGIN [A-Z0-9 ]{0,40}PRIVATE KEY-----"
    r"(?:(?!-----BEGIN).)*?(?:-----END [A-Z0-9 ]{0,40}PRIVATE KEY-----|\Z)",
    "url-password": r"(?<=://)[^\s/:@\"'?#]*:[^\s/\"'?#]+(?=@)",
    "jwt": r"(?<![A-Za-z0-9_-])eyJ[A-Za-z0-9_-]{6,}\.[A-Za-z0-9_-]{6,}\.[A-Za-z0-9_-]*",
    "api-key": r"(?<!\w)(?:sk|pk|rk)[-_](?=[A-Za-z0-9_-]{0,64}?[A-Za-z0-9]{16})[A-Za-z0-9_-]{16,}",
    "aws-key": r"(?<!\w)(?:AKIA|ASIA|AROA|AIDA)[A-Z0-9]{16}(?!\w)",
    "github-token": r"(?<!\w)(?:gh[pousr]_[A-Za-z0-9]{20,}|github_pat_[A-Za-z0-9_]{20,})",
    "gitlab-token": r"(?<!\w)glpat-[A-Za-z0-9_-]{16,}",
    "google-key": r"(?<!\w)(?:AIza[A-Za-z0-9_-]{35}(?![A-Za-z0-9_-])|ya29\.[A-Za-z0-9_-]{20,})",
    "slack-token": r"(?<!\w)xox[abeoprs]-[A-Za-z0-9-]{10,}|https://hooks\.slack\.com/services/[\w/]+",
    "huggingface-token": r"(?<!\w)hf_[A-Za-z0-9]{20,}",
    "npm-token": r"(?<!\w)npm_[A-Za-z0-9]{20,}",
    "pypi-token": r"(?<!\w)pypi-[A-Za-z0-9_-]{20,}",
    "authorization": r"(?ai:(?<!\w)(?P<scheme>bearer|basic|token)\s+)(?P<secret>[A-Za-z0-9_.~+/=-]{8,})",
    "assignment": rf"(?ai:(?<![a-z0-9])(?P<key>{_ASSIGNED})[\"'\\]*(?P<sign>[ \t]*(?:=>|[:=]=?)[ \t]*)[\"'\\]*)"
    r"""(?P<secret>(?<=\\["'])[^"'\\\n]+|(?<=")(?:[^"\\\n]|\\.)+|(?<=')(?:[^'\\\n]|\\.)+|[^\s"'\\,;&]{3,512})""",
    "card-number": r"(?<![\w.-])[2-6][0-9]{3}"
    r"(?:[0-9]{9,15}|(?P<gap>[ -])[0-9]{4}(?P=gap)[0-9]{4}(?P=gap)[0-9]{1,7}|[ -][0-9]{6}[ -][0-9]{4,5})(?![\w.-])",
}
"""Patterns by name. If one has a group `secret`, only that group is removed."""

_HINTS: Final[Mapping[str, str]] = {
    "private-key": "-----BEGIN ",
    "url-password": r"://[^\s/@]*:[^\s/]*@",
    "jwt": r"eyJ[A-Za-z0-9_-]{6,}\.",
    "api-key": r"(?:sk|pk|rk)[-_][A-Za-z0-9_-]{16}",
    "aws-key": "(?:AKIA|ASIA|AROA|AIDA)[A-Z0-9]{16}",
    "github-token": "gh[pousr]_[A-Za-z0-9]{20}|github_pat_",
    "gitlab-token": "glpat-",
    "google-key": r"AIza[A-Za-z0-9_-]{35}|ya29\.",
    "slack-token": r"xox[abeoprs]-|hooks\.slack",
    "huggingface-token": "hf_[A-Za-z0-9]{20}",
    "npm-token": "npm_[A-Za-z0-9]{20}",
    "pypi-token": "pypi-",
    "authorization": r"(?i:bearer|basic|token)[\s\\\x00-\x1f]",
    "assignment": rf"(?i:{_ASSIGNED})(?:[\"'\\\s]|\\[nrtfb])*[:=]",
    "card-number": r"(?:^|[^0-9A-Za-z_.-]|\\[nrtfb]|\\u[0-9A-Fa-f]{4})"
    "[2-6][0-9]{3}(?:[0-9]{9}|[ -][0-9]{4}[ -][0-9]{4}[ -][0-9]|[ -][0-9]{6}[ -][0-9]{4})",
}
"""A match of a hint may start before the secret: the fraction of a number looks like a card number, except for the dot."""


class Hint:
    """A pattern that tells in linear time whether a text may contain a secret."""

    __slots__ = ("_matches", "pattern")

    def __init__(self, pattern: str) -> None:
        self.pattern = pattern
        schema = core_schema.str_schema(pattern=pattern, regex_engine="rust-regex", strict=True)
        self._matches = SchemaValidator(schema).isinstance_python

    def is_in(self, text: str) -> bool:
        """Whether a text may contain it; True for text with a lone surrogate, which the engine cannot search."""
        return self._matches(text) or not (text.isascii() or _is_unicode(text))


def _is_unicode(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


@lru_cache(maxsize=64)
def _hint(pattern: str) -> Hint:
    return Hint(pattern)


_FAR: Final = 512
_REST: Final = re.compile(r"(?:(?!\[redacted:)[^\s\"'\\,;&])*")
"""The rest of a value that is not between quotes."""


class Span(NamedTuple):
    """A secret in a text."""

    start: int
    end: int
    name: str


class SecretRule(NamedTuple):
    """One way to find secrets in a text."""

    name: str
    pattern: re.Pattern[str]
    hint: Hint | None
    """It matches wherever the pattern could match; None if there is no hint."""

    def spans(self, text: str) -> Iterator[Span]:
        """Yield the secrets in a text."""
        if self.hint is not None and not self.hint.is_in(text):
            return
        accepts, at = _ACCEPTS.get(self.name, _always), 0
        while at <= len(text) and (match := self.pattern.search(text, at)):
            start, end = _secret_in(match)
            if start < end and MARK not in text[start:end] and accepts(match):
                end = _end_of(match, start, end)
                yield Span(start, end, self.name)
                at = max(end, match.end())
            else:
                at = max(start, match.start() + 1)  # a match that is not a secret may contain one


def _secret_in(match: re.Match[str]) -> tuple[int, int]:
    """Return the span of the secret in a match: the group `secret`, else the whole match."""
    start, end = match.span("secret") if "secret" in match.re.groupindex else (-1, -1)
    return match.span() if start < 0 else (start, end)


def _end_of(match: re.Match[str], start: int, end: int) -> int:
    """Return the end of a secret. A pattern matches only its beginning, because its length is bounded to stay linear."""
    if end - start < _FAR or "key" not in match.re.groupindex:
        return end
    rest = _REST.match(match.string, end)
    return end if rest is None else rest.end()


@lru_cache(maxsize=64)
def _rule(name: str, pattern: str) -> SecretRule:
    hint = _hint(_HINTS[name]) if PATTERNS.get(name) == pattern else None
    return SecretRule(name, re.compile(pattern, re.DOTALL), hint)


def rules_of(patterns: Mapping[str, str]) -> tuple[SecretRule, ...]:
    """Return the rules for some patterns."""
    return tuple(_rule(name, pattern) for name, pattern in patterns.items())


def hint_for(rules: Iterable[SecretRule], keys: Iterable[str]) -> Hint | None:
    """Return one hint for all rules and keys, also where they are percent-encoded; None if a rule has none."""
    patterns = [_PERCENT_HINT]
    for rule in rules:
        if rule.hint is None:
            return None
        patterns.append(rule.hint.pattern)
    return _hint("|".join([*patterns, *_key_hints(keys)]))


# ---------------------------------------------------------------- keys


def plain_key(key: str) -> str:
    """Return a key's name as it is compared: without case, `-`, `_` and spaces."""
    return key.lower().replace("-", "").replace("_", "").replace(" ", "")


def _key_hints(keys: Iterable[str]) -> Iterator[str]:
    """Yield hints for JSON that has one of some keys: before a colon, as a step of a path, or written in escapes."""
    spelled = [
        "[-_ ]*".join(letter if letter.isalnum() else rf"\x{{{ord(letter):x}}}" for letter in plain_key(key))
        for key in sorted(keys)
    ]
    if spelled:
        yield r"\\u[0-9A-Fa-f]{4}"
        yield rf"(?i:{'|'.join(spelled)})[-_ ]*\\*\"(?:[\s\\]|\\[nrtfb])*[:,\]]"


_SCHEMA: Final = frozenset(
    (
        *("type", "anyOf", "title", "description", "format", "minLength", "maxLength", "pattern", "writeOnly", "readOnly"),
        *("deprecated", "default", "const", "enum", "examples"),
    )
)
SCHEMA_VALUES: Final = frozenset(("default", "const", "enum", "examples"))
"""Keys of a JSON schema that hold example or fixed values."""
_TYPES: Final = frozenset(("string", "number", "integer", "boolean", "object", "array", "null"))


def is_schema(value: object) -> bool:
    """Whether the value of a secret key is a JSON schema of the value, not the value itself."""
    if not isinstance(value, dict):
        return False
    schema = cast("dict[str, Any]", value)
    choices: Any = schema.get("anyOf")
    if isinstance(choices, list) and "type" not in schema:
        return schema.keys() <= _SCHEMA and all(is_schema(choice) for choice in cast("list[Any]", choices))
    kind = schema.get("type")
    return schema.keys() <= _SCHEMA and "anyOf" not in schema and isinstance(kind, str) and kind in _TYPES


# ---------------------------------------------------------------- what follows a name


_SCHEMES: Final = frozenset(("bearer", "basic", "digest", "token", "negotiate", "apikey"))
_NO_VALUES: Final = frozenset(
    (
        *("any", "bool", "boolean", "bytes", "char", "false", "float", "int", "nil", "none", "null", "number", "object"),
        *("optional", "required", "str", "string", "text", "true", "undefined", "varchar"),
    )
)
_TEMPLATE: Final = re.compile(r"\$?\{+[^{}]*\}+|<[^<>]*>|%\(\w+\)s|\*+|\.\.\.|\$\w+")
_EXPRESSION: Final = re.compile(r"[A-Za-z_][\w.]*[(\[{]|[({\[<]|\$[\w{(]|[A-Za-z_]+(?:\.[A-Za-z_]+)+$")
_WORD: Final = re.compile("[A-Za-z_]+")
_NAME: Final = re.compile("_|[a-z][A-Z]")
"""An underscore or a capital inside a word: a name in a program, not a word of prose."""
_FEWEST_LETTERS: Final = 3
_FEWEST_DIGITS: Final = 8
"""Digits of the shortest number that is taken for a token; fewer are a count of tokens."""
_FEWEST_OF_TOKEN: Final = 16
"""Characters of the shortest text that is taken for a token because it follows that word."""


def _is_assigned(match: re.Match[str]) -> bool:
    """Whether the text after the name of a key is its value, and not a word of prose or of a program."""
    secret, key = match["secret"], match["key"]
    if match.string[match.start("secret") - 1] in "\"'":
        return secret[0] not in "),]};" and _TEMPLATE.fullmatch(secret) is None
    value = secret.rstrip(".:!?`)]}>")
    if _TEMPLATE.fullmatch(secret) or _EXPRESSION.match(value) or (key.lower() == "pwd" and value[:1] in "/~"):
        return False
    if value.isdigit() and "pass" not in key.lower():
        return len(value) >= _FEWEST_DIGITS
    return _WORD.fullmatch(value) is None or (_NAME.search(value) is None and _is_word_assigned(match, value.lower()))


def _is_word_assigned(match: re.Match[str], word: str) -> bool:
    """Whether a single word is a value: `password: swordfish` and `?token=abc`, not `token: the smallest` or `token=token`."""
    text, sign = match.string, match["sign"]
    before, after = text[max(0, match.start() - 1) : match.start()], text[match.end() : match.end() + 2]
    if len(word) < _FEWEST_LETTERS or word in _NO_VALUES or word in _SCHEMES or plain_key(word) in _PLAIN:
        return False
    if match.end("key") < match.start("sign"):
        return False  # a quoted key and an unquoted word: the word is the name of a variable
    if ":" in sign:
        return not after.lstrip(" ")[:1].isalpha() and after[:1] not in "=("
    return not sign.strip("=") and (not before or before in "_ \t\n;?&") and after[:1] in ("", " ", "\n", "\t", ";", "&")


_PLAIN: Final = frozenset(map(plain_key, KEYS))


def _is_authorization(match: re.Match[str]) -> bool:
    """Whether the text after a scheme looks like the credentials of a header; for `basic`, base64 of name and password."""
    scheme, secret = match["scheme"].lower(), match["secret"]
    if scheme == "bearer":
        return any(letter.isdigit() or letter == "=" for letter in secret)
    if scheme == "token":
        return len(secret) >= _FEWEST_OF_TOKEN and any(map(str.isdigit, secret)) and any(map(str.isalpha, secret))
    try:
        return b":" in b64decode(secret, validate=True)
    except ValueError:
        return False


_CARDS: Final = re.compile(
    r"4(?:\d{12}|\d{15}|\d{18})|(?:5[1-5]|2[2-7]|35|6[0245])\d{14}|3[47]\d{13}|3[068]\d{12}|6[2-9]\d{15,17}"
)
"""The prefixes of card numbers, with the lengths that each allows."""


def _is_card(match: re.Match[str]) -> bool:
    """Whether a number may be a card number: it has a known prefix and length, and a correct Luhn check digit."""
    number = match[0].replace(" ", "").replace("-", "")
    if _CARDS.fullmatch(number) is None:
        return False
    digits = [int(letter) for letter in reversed(number)]
    doubled = (sum(divmod(2 * digit, 10)) for digit in digits[1::2])
    return (sum(digits[::2]) + sum(doubled)) % 10 == 0


def _always(match: re.Match[str]) -> bool:
    return True


_ACCEPTS: Final[Mapping[str, Callable[[re.Match[str]], bool]]] = {
    "assignment": _is_assigned,
    "authorization": _is_authorization,
    "card-number": _is_card,
}


# ---------------------------------------------------------------- percent-encoding


_PERCENT_HINT: Final = "%[0-9A-Fa-f]{2}"
_PERCENT: Final = re.compile(f"(?:{_PERCENT_HINT})+")
_ROUNDS: Final = 3
"""How many layers of percent-encoding are decoded."""


def decoded(text: str) -> tuple[str, array[int]] | None:
    """Return a percent-encoded text decoded, and the position of each of its characters in the encoded text.

    Return None if nothing in it is encoded. The last position is that of the end.
    """
    if "%" not in text or _PERCENT.search(text) is None:
        return None
    places = array("L", range(len(text) + 1))
    for _ in range(_ROUNDS):
        if _PERCENT.search(text) is None:
            break
        text, places = _decoded_once(text, places)
    return text, places


def _decoded_once(text: str, places: array[int]) -> tuple[str, array[int]]:
    pieces: list[str] = []
    positions = array("L")
    end = 0
    for match in _PERCENT.finditer(text):
        pieces.append(text[end : match.start()])
        positions += places[end : match.start()]
        at = match.start()
        for letter, size in _letters(bytes.fromhex(match[0].replace("%", ""))):
            pieces.append(letter)
            positions.append(places[at])
            at += 3 * size
        end = match.end()
    return "".join([*pieces, text[end:]]), positions + places[end:]


def _letters(data: bytes) -> Iterator[tuple[str, int]]:
    """Yield the characters of bytes, each with its length in bytes; if they are not UTF-8, one character per byte."""
    try:
        yield from ((letter, len(letter.encode())) for letter in data.decode())
    except UnicodeDecodeError:
        yield from ((letter, 1) for letter in data.decode("ascii", "replace"))


# ---------------------------------------------------------------- URLs

_SCHEME: Final = re.compile(r"[^:/?#@]+:/+")
_HOST: Final = re.compile(r"(\[[^\]]*\]|[^:]*)(:\d*)?")
_FIELD: Final = re.compile(r"[\w.%+-]+=")
_FROM_PASSWORD: Final = re.compile(r"[?&](ssl)?password=.*", re.IGNORECASE | re.DOTALL)
_PASSWORDS: Final = frozenset({"password", "sslpassword"})
"""The parameters of a URL of PostgreSQL that are secrets."""


def without_password(url: str) -> str:
    """Return the URL of a server without its passwords, to show to a person. It need not be a valid URL.

    A person may forget to quote an `@`, a `/` or a `?` in a password. So a password ends at the last `@` that may end it.
    """
    if url.startswith("sqlite:"):
        return url  # a file has no password
    place, has_query, query = url.partition("?")
    if not all(map(_FIELD.match, query.split("&"))) or ("@" not in place and not _has_host(place)):
        place, has_query, query = _FROM_PASSWORD.sub("", url), "", ""  # the `?` or a `&` is of the password
    user, has_user, rest = place.rpartition("@")
    if has_user:
        scheme = _SCHEME.match(user)
        begin = 0 if scheme is None else scheme.end()
        place = f"{user[:begin]}{user[begin:].partition(':')[0]}@{rest}"
    shown = "&".join(
        parameter for parameter in query.split("&") if unquote(parameter.partition("=")[0]).lower() not in _PASSWORDS
    )
    return f"{place}?{shown}" if has_query and shown else place


def _has_host(place: str) -> bool:
    """Whether a URL without a user names a host, with a port or without: `u:secret` is no such host."""
    scheme = _SCHEME.match(place)
    hosts = place[0 if scheme is None else scheme.end() :].partition("/")[0]
    return all(_HOST.fullmatch(host) for host in hosts.split(","))
