"""Redaction: the rules for data that must never be stored, and the one place where it is removed.

A ledger is append-only, so a stored secret cannot be removed. Therefore messages are redacted before they are appended, and
the caller gets the stored form. Redaction is deterministic, so a repeated message has the same bytes and is not written twice.

Three kinds of rules apply to every text of a message: registered values (also in base64, encoded once or twice, in hex or
percent-encoded), patterns of well-known secrets (see `_secrets`), and names of keys whose value is never stored, also in JSON
inside a text and in the residue of a dialect. Percent-encoded text is searched too. Base64 in a `data:` URL is searched for
registered values only: in so many random letters every pattern would match something.

All rules mark spans of the original text first, and overlapping spans become one mark. If each rule changed the text at once,
a later rule could miss a secret of which an earlier rule has replaced a part.

**Digest.** The same message must always become the same bytes: a repeated message is recognised by them, and a continued run
compares them. So a ledger keeps a digest of the rules of its hosts, and a host with other rules is refused. Registered values
are not in the digest: each program knows its own.

Names of threads, folds, statuses and patterns identify a thread, so they are not rewritten: a name that looks like a secret is
refused.
"""

from __future__ import annotations

import re
from base64 import b64encode
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from hashlib import blake2b
from json.encoder import encode_basestring_ascii as ascii_json
from types import MappingProxyType
from typing import Any, Final, Literal, NamedTuple, TypeAlias, cast
from urllib.parse import quote
from zlib import crc32

from antiphon.errors import OtherRedactionError, SecretNameError
from antiphon.ledger._hosts import HostStatus
from antiphon.ledger._secrets import (
    KEYS,
    PATTERNS,
    SCHEMA_VALUES,
    Hint,
    SecretRule,
    Span,
    decoded,
    hint_for,
    is_schema,
    plain_key,
    rules_of,
)
from antiphon.messages import Message, dumps, loads
from antiphon.messages._json_values import parse, write
from antiphon.messages._settings import NO_LIMITS

_MEDIUM: Final = re.compile(r"data:[^\s,]*;base64,\S*", re.IGNORECASE)
_MEDIUM_INSIDE: Final = re.compile(r"data:[\w.+/;=-]{0,200};base64,[A-Za-z0-9+/=_-]*", re.IGNORECASE)
_IDS: Final = ("id", "turn_id", "thread_id", "correlation_id", "in_reply_to", "parent_id")
_CARD: Final = "card-number"
_ESCAPE: Final = re.compile(r"\\u([0-9a-f]{4})")
_CHANGE: Final = frozenset(("at", "is", "was", "add", "drop", "in"))
"""The fields of a change in the residue of a dialect: `at` is the path of keys to the changed value."""
_TAG: Final = "__atlas__"
"""The key of an object that represents a value of a type which JSON does not have; without its value it would be invalid."""
_ROUNDS: Final = 4
"""The most passes over a text: after a secret is removed, the text around it may match as another."""
_FEWEST: Final = 6
"""The least length of a registered value: a shorter one would be found everywhere."""


_PROCEDURE: Final = 1
"""Part of each digest. Increase it when a change of this module gives the same message other bytes under the same rules."""
_CHECK_BITS: Final = 15
_MOST_NAMES, _LONGEST_NAME = 4096, 64
"""Keys that are remembered as ordinary, and the length of the longest."""


@dataclass(frozen=True)
class Redaction:
    """The rules by which messages are redacted, each with the name that its mark shows."""

    keys: frozenset[str] = frozenset()
    """The value under such a key is not stored. Case, `-` and `_` make no difference."""
    patterns: Mapping[str, str] = field(default_factory=dict[str, str])
    """Regular expressions by name. If one has a group `secret`, only that group is removed.
    `card-number` also requires a correct check digit."""
    secrets: Mapping[str, str] = field(default_factory=dict[str, str], repr=False)
    """Registered values, by name."""

    def __post_init__(self) -> None:
        for name, value in self.secrets.items():
            if len(value) < _FEWEST:
                raise ValueError(f"the secret {name!r} has fewer than {_FEWEST} characters; it would be found everywhere")

    @cached_property
    def digest(self) -> int:
        """A number that stands for the keys and the patterns, without the registered values (see `is_digest`)."""
        return _digest([sorted(self._plain_keys), sorted(self.patterns.items())])

    def with_secrets(self, secrets: Mapping[str, str]) -> Redaction:
        """Return the same rules with more registered values."""
        return Redaction(self.keys, self.patterns, {**self.secrets, **secrets})

    def message(self, message: Message) -> Message:
        """Return the redacted message; the same object if there is nothing to remove."""
        body = dumps(message)
        clean = self.body(body)
        return message if clean is body else loads(clean, Message, limits=NO_LIMITS)

    def json(self, text: bytes) -> bytes:
        """Return the redacted JSON text; the same object if there is nothing to remove."""
        if self.is_clean(text.decode()):
            return text
        clean = write(self.value(parse(text)))
        return text if clean == text else clean

    def body(self, body: bytes) -> bytes:
        """Return the redacted bytes of a message; the same object if there is nothing to remove."""
        if self.is_clean(body.decode()):
            return body
        form = parse(body)
        clean = write(self._identified(form, self.value(form)))
        return body if clean == body else clean

    def _identified(self, form: Any, clean: Any) -> Any:
        """Return a redacted form in which ids that only look like card numbers are restored.

        Otherwise several messages could get the same id, and would count as repetitions.
        """
        names = {name: self._without_cards(form[name]) for name in _IDS if isinstance(form.get(name), str)}
        payload = form["payload"]
        if "invocation_id" in payload:
            clean["payload"]["invocation_id"] = self._without_cards(payload["invocation_id"])
        return {**clean, **names}

    def _without_cards(self, text: str) -> str:
        return self.text(text, but=_CARD)

    def is_secret(self, name: str) -> bool:
        """Whether a name looks like a secret. Card numbers are not searched: many ids are long numbers."""
        return not self.is_clean(name) and self._without_cards(name) != name

    def value(self, value: object) -> Any:
        """Return a redacted JSON value of plain dicts and lists."""
        if isinstance(value, str):
            return self.text(value)
        if isinstance(value, dict):
            items = cast("dict[str, Any]", value)
            if items.keys() <= _CHANGE and isinstance(items.get("at"), list):
                return self._change(items)
            plain = self._ordinary_keys
            return dict(
                (key, self.value(item)) if key in plain else (self._name(key), self._under(key, item))
                for key, item in items.items()
            )
        if isinstance(value, list):
            return [self.value(item) for item in cast("list[Any]", value)]
        return value

    def _name(self, key: str) -> str:
        """Return the redacted name of a key, and remember an ordinary one: most messages have the same few names."""
        clean = self.text(key)
        is_short = len(key) <= _LONGEST_NAME and len(self._ordinary_keys) < _MOST_NAMES
        if is_short and clean == key and plain_key(key) not in self._plain_keys:
            self._ordinary_keys.add(key)
        return clean

    def _change(self, change: dict[str, Any]) -> dict[str, Any]:
        """Return a redacted change of a dialect's residue: neither a value under a secret key nor its hash is stored."""
        steps = [step for step in change["at"] if isinstance(step, str)]
        is_secret = any(plain_key(step) in self._plain_keys for step in steps)
        return {
            key: _masked(field_value) if is_secret and key not in ("at", "in") else self.value(field_value)
            for key, field_value in change.items()
        }

    def _under(self, key: str, value: object) -> Any:
        plain = plain_key(key)
        if plain not in self._plain_keys or (plain == "pwd" and isinstance(value, str) and value[:1] in ("/", "~")):
            return self.value(value)
        if is_schema(value):
            items = cast("dict[str, Any]", value).items()
            return {name: _masked(inner) if name in SCHEMA_VALUES else self.value(inner) for name, inner in items}
        return _masked(value)

    # ------------------------------------------------------------ texts

    def text(self, text: str, *, but: str | None = None) -> str:
        """Return a redacted text; `but` is a pattern that is not applied."""
        if self.is_clean(text):
            return text
        if _MEDIUM.fullmatch(text):
            return _marked(text, self._registered_spans(text))
        rules = [rule for rule in self._rules if rule.name != but]
        clean = self._structured(text)
        for _ in range(_ROUNDS):
            before, clean = clean, self._marked(clean, rules)
            if clean == before:
                break
        return clean

    def _marked(self, text: str, rules: Iterable[SecretRule]) -> str:
        # Blanks in place of media keep the positions of all other text.
        searched = _MEDIUM_INSIDE.sub(lambda match: " " * len(match[0]), text) if ";base64," in text else text
        spans = [*self._registered_spans(text), *_spans(rules, searched)]
        return _marked(text, [*spans, *self._encoded_spans(rules, searched)])

    def is_clean(self, text: str) -> bool:
        """Whether a quick search finds no hint of a secret in a text or in a message's bytes."""
        return not self.secrets and self._hint is not None and not self._hint.is_in(text)

    def _structured(self, text: str) -> str:
        """Return a JSON text without the values of secret keys; any other text unchanged."""
        if not self.keys or text.lstrip()[:1] not in ("{", "["):
            return text
        try:
            value = parse(text.encode())
            clean = self.value(value)
        except (ValueError, RecursionError):  # not JSON, or nested too deep to be meant
            return text
        return text if clean == value else write(clean).decode()

    def _encoded_spans(self, rules: Iterable[SecretRule], text: str) -> Iterator[Span]:
        """Yield the spans of percent-encoded, or partly encoded, secrets in the original text."""
        encoded = decoded(text)
        if encoded is not None:
            plain, places = encoded
            for start, end, name in (*self._registered_spans(plain), *_spans(rules, plain)):
                yield Span(places[start], places[end], name)

    def _registered_spans(self, text: str) -> Iterator[Span]:
        if self.secrets:
            for match in self._registered.finditer(text):
                yield Span(*match.span(), self._names[match[0]])

    @cached_property
    def _ordinary_keys(self) -> set[str]:
        """Keys that are known to be ordinary: neither the name nor, because of the name, the value is a secret."""
        return set()

    @cached_property
    def _plain_keys(self) -> frozenset[str]:
        return frozenset(map(plain_key, self.keys))

    @cached_property
    def _rules(self) -> tuple[SecretRule, ...]:
        return rules_of(self.patterns)

    @cached_property
    def _hint(self) -> Hint | None:
        return hint_for(self._rules, self.keys)

    @cached_property
    def _names(self) -> dict[str, str]:
        return {spelling: name for name, value in self.secrets.items() for spelling in _spellings(value)}

    @cached_property
    def _registered(self) -> re.Pattern[str]:
        longest_first = sorted(self._names, key=lambda spelling: (-len(spelling), spelling))
        return re.compile("|".join(map(re.escape, longest_first)))


def _masked(value: object) -> Any:
    """Return a value of the same shape with all its contents masked."""
    if isinstance(value, dict):
        items = cast("dict[str, Any]", value)
        return _marker("key") if _TAG in items else {key: _masked(item) for key, item in items.items()}
    if isinstance(value, list):
        return [_masked(item) for item in cast("list[Any]", value)]
    return value if value is None or isinstance(value, bool) else _marker("key")


def _marker(name: str) -> str:
    return f"[redacted:{name}]"


def _spans(rules: Iterable[SecretRule], text: str) -> list[Span]:
    return [span for rule in rules for span in rule.spans(text)]


def _marked(text: str, spans: Iterable[Span]) -> str:
    """Return a text with a mark instead of each secret; overlapping secrets get one mark, with the name of the first found."""
    pieces: list[str] = []
    done = 0
    for start, end, name in _merged(spans):
        pieces += [text[done:start], _marker(name)]
        done = end
    return "".join([*pieces, text[done:]]) if pieces else text


def _merged(spans: Iterable[Span]) -> list[Span]:
    merged: list[tuple[int, Span]] = []
    for rank, span in sorted(enumerate(spans), key=lambda pair: (pair[1].start, pair[0])):
        if not merged or span.start >= merged[-1][1].end:
            merged.append((rank, span))
            continue
        first, last = merged[-1]
        name = last.name if first < rank else span.name
        merged[-1] = min(first, rank), Span(last.start, max(last.end, span.end), name)
    return [span for _, span in merged]


def _spellings(value: str) -> Iterator[str]:
    """Yield all spellings of a value."""
    data = value.encode()
    yield value
    yield quote(value, safe="")
    yield from _escaped(value)
    yield data.hex()
    yield data.hex().upper()
    for once in _base64(data):
        yield once
        yield from _base64(once.encode())


def _escaped(value: str) -> Iterator[str]:
    """Yield a value as spelled in JSON inside a text: escaped once or twice, with non-ASCII letters literal or escaped."""
    for once in (write(value)[1:-1].decode(), ascii_json(value)[1:-1]):
        yield once
        yield write(once)[1:-1].decode()
        if "\\u" in once:
            upper = _ESCAPE.sub(lambda match: "\\u" + match[1].upper(), once)
            yield upper
            yield write(upper)[1:-1].decode()


def _base64(data: bytes) -> Iterator[str]:
    """Yield the base64 text that data always produces inside a longer base64 text: it may begin at three offsets."""
    for shift in range(3):
        bits = 8 * (shift + len(data))
        text = b64encode(b"\0" * shift + data).decode()[-(-8 * shift // 6) : bits // 6]
        yield text
        yield text.replace("+", "-").replace("/", "_")


STANDARD_REDACTION = Redaction(frozenset(KEYS), MappingProxyType(dict(PATTERNS)))
"""Rules for the well-known shapes of secrets. `with_secrets` adds your own values."""

Redacting: TypeAlias = Redaction | Literal["off"] | None
"""The setting of a ledger: rules, "off", or None for `STANDARD_REDACTION`."""


def _digest(rules: object) -> int:
    hashed = blake2b(write([_PROCEDURE, rules]), digest_size=6).digest()
    return int.from_bytes(hashed, "big") << _CHECK_BITS | crc32(hashed) >> (32 - _CHECK_BITS)


def is_digest(number: int) -> bool:
    """Whether a stored number is a digest of rules: 48 bits and a check value of 15 bits; or 0, if there is none yet."""
    hashed = (number >> _CHECK_BITS).to_bytes(8, "big", signed=True)[2:]
    return number == 0 or (0 < number < 2**63 and number & (2**_CHECK_BITS - 1) == crc32(hashed) >> (32 - _CHECK_BITS))


def _shown(number: int) -> str:
    """Return a digest as text for display."""
    return f"{number >> _CHECK_BITS:012x}"


@dataclass(frozen=True, slots=True)
class RedactionRules:
    """The digests of the rules of a handle, and of the hosts of its ledger."""

    handle: str
    ledger: str | None
    """None if no host has ever registered: the first one sets them."""

    @property
    def is_accepted(self) -> bool:
        """Whether the ledger accepts a host with the rules of the handle."""
        return self.ledger in (None, self.handle)


class LedgerRedaction(NamedTuple):
    """The rules of an open ledger, and which threads they apply to.

    A thread stays redacted or unredacted as it began: otherwise a repeated message would have other bytes under the same id.
    """

    rules: Redaction | None = None
    """None if nothing is redacted."""

    @classmethod
    def of(cls, redaction: Redacting) -> LedgerRedaction:
        """Return the value for the `redaction` argument of `open`.

        Raises:
            TypeError: the argument is not rules, "off" or None.
        """
        if redaction is None:
            return cls(STANDARD_REDACTION)
        if redaction == "off":
            return cls()
        if not isinstance(redaction, Redaction):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise TypeError(f'redaction is a Redaction, "off", or None for the usual shapes, not {redaction!r}')
        return cls(redaction)

    @property
    def is_on(self) -> bool:
        """Whether a new thread is redacted."""
        return self.rules is not None

    @property
    def digest(self) -> int:
        """The digest of the rules."""
        return _digest("off") if self.rules is None else self.rules.digest

    def beside(self, stored: int) -> RedactionRules:
        """Return the digests of these rules and of the ledger's rules."""
        return RedactionRules(_shown(self.digest), _shown(stored) if stored else None)

    def check_digest(self, stored: int) -> None:
        """Refuse a host whose rules differ from the ledger's; a ledger without a digest has no rules yet."""
        if stored not in (0, self.digest):
            raise OtherRedactionError(
                f"the ledger has redaction rules {_shown(stored)}, and this program {_shown(self.digest)}: the same "
                "message would become other bytes; use the same rules, or adopt these with `antiphon doctor --adopt-redaction`"
            )

    def check_unused(self, hosts: Iterable[HostStatus]) -> None:
        """Refuse to change the rules of a ledger while a host is alive."""
        for status in hosts:
            if status.is_alive:
                raise OtherRedactionError(
                    f"host {status.host.name!r} is alive, and uses the present rules; stop it, then try again"
                )

    def for_thread(self, is_redacted: bool) -> Redaction | None:
        """Return the rules for a thread that is redacted, or is not."""
        return self.rules if is_redacted else None

    def check_name(self, name: str, what: str) -> None:
        """Refuse a name that looks like a secret."""
        if self.rules is not None and self.rules.is_secret(name):
            raise SecretNameError(what)
