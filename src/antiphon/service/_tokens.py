"""Tokens: who may use a server of this ledger, for what, and until when.

A token is `aph_ID_SECRET`. The ledger has the SHA-256 of the secret, never the secret: 256 random bits need no slow hash. The
thread `system/tokens` has a message for each token that was made or revoked, so a revocation takes effect in every process at
its next check, and `verify` detects an alteration. Only messages of the runtime's own policy in the control lane count:
messages from outside are stored as talk, under another policy, so nobody can forge a token with a message.
"""

from __future__ import annotations

import base64
import re
import secrets  # noqa: TID251 (a token must be unpredictable, also where a test replaces the port)
from collections.abc import Collection
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from hashlib import sha256
from hmac import compare_digest
from typing import Any, Final, Literal, TypeAlias, cast

from antiphon.errors import NotWaitingError, SetupError
from antiphon.ledger import Ledger
from antiphon.messages import RUNTIME_POLICY, DataPart, Message, PartsPayload, current_port, thaw

Scope: TypeAlias = Literal["read", "send", "control", "admin"]
SCOPES: Final[tuple[Scope, ...]] = ("read", "send", "control", "admin")
"""What a token may allow: read threads; ask questions; pause, resume, approve and settle; delete."""
TOKENS_THREAD: Final = "system/tokens"

_PRINCIPAL: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._@-]{0,63}")
_TOKEN: Final = re.compile(r"aph_([a-z2-7]{8})_([A-Za-z0-9_-]{43})")
_LONGEST: Final = 100
"""The maximum length of a token in characters; a longer text is not a token."""


@dataclass(frozen=True, slots=True)
class Token:
    """A token, without its secret."""

    id: str
    principal: str
    """The person or program that uses it: the name under which approvals are answered."""
    scopes: tuple[Scope, ...]
    created_at: datetime
    expires_at: datetime | None = None
    """None: it does not expire."""
    revoked_at: datetime | None = None

    def is_valid(self, now: datetime) -> bool:
        """Whether it may be used at a time."""
        return self.revoked_at is None and (self.expires_at is None or now < self.expires_at)


@dataclass(frozen=True, slots=True)
class NewToken:
    """A new token, with the text that its owner presents. The text is shown once, and never stored."""

    token: Token
    text: str
    digest: str
    """The SHA-256 of the secret."""


def draw_token(principal: str, scopes: Collection[str], *, expires_in: timedelta | None = None) -> NewToken:
    """Return a new token, which is not stored yet."""
    if not _PRINCIPAL.fullmatch(principal):
        raise SetupError("the name of a token has 1 to 64 letters, digits and . _ @ -, and begins with a letter or digit")
    unknown = [scope for scope in scopes if scope not in SCOPES]
    if unknown or not scopes:
        raise SetupError(f"the scopes of a token are among {', '.join(SCOPES)}; got {', '.join(unknown) or 'none'}")
    if expires_in is not None and expires_in <= timedelta(0):
        raise SetupError("a token expires after a time that is more than zero")
    now = current_port().now()
    try:
        expires_at = None if expires_in is None else now + expires_in
    except OverflowError:
        raise SetupError("a token expires before the year 10000") from None
    own_id, secret = base64.b32encode(secrets.token_bytes(5)).decode().lower(), secrets.token_urlsafe(32)
    allowed: tuple[Scope, ...] = tuple(scope for scope in SCOPES if scope in scopes)
    return NewToken(Token(own_id, principal, allowed, now, expires_at), f"aph_{own_id}_{secret}", _digest(secret))


async def make_token(
    ledger: Ledger, principal: str, scopes: Collection[str] = ("read",), *, expires_in: timedelta | None = None
) -> NewToken:
    """Make a token for servers of this ledger, and return it with its text, which is never stored."""
    new_token = draw_token(principal, scopes, expires_in=expires_in)
    token, ends = new_token.token, new_token.token.expires_at
    value = {
        "made": token.id,
        "principal": principal,
        "scopes": list(token.scopes),
        "digest": new_token.digest,
        "expires_at": None if ends is None else ends.isoformat(),
    }
    (record,) = await _append(ledger, value)
    if _value_of(record.message) != value:
        raise SetupError("the name of the token looks like a secret; choose another one")
    return new_token


async def list_tokens(ledger: Ledger) -> tuple[Token, ...]:
    """Return all tokens in the order in which they were made, also revoked and expired ones."""
    return tuple(token for token, _ in (await _stored(ledger)).values())


async def revoke_token(ledger: Ledger, token_id: str) -> Token:
    """Revoke a token for good. Servers refuse it from now on, and end its streams.

    Raises:
        NotWaitingError: there is no such token, or it was revoked before.
    """
    entry = (await _stored(ledger)).get(token_id)
    if entry is None or entry[0].revoked_at is not None:
        raise NotWaitingError(f"there is no token {token_id!r} to revoke")
    (record,) = await _append(ledger, {"revoked": token_id})
    return replace(entry[0], revoked_at=record.recorded_at)


class TokenBook:
    """Finds the token of a text. It reads the ledger again only if a token was made or revoked since.

    `local` is a token that only this process knows, in addition to those of the ledger.
    """

    def __init__(self, ledger: Ledger, local: NewToken | None = None) -> None:
        self._ledger = ledger
        self._local = {} if local is None else {local.token.id: (local.token, local.digest)}
        self._seen: str | None = None
        self._tokens: dict[str, tuple[Token, str]] = {}

    async def find(self, text: str) -> Token | None:
        """Return the token of a text; None if there is none, or it is no longer valid. The caller cannot tell which."""
        match = _TOKEN.fullmatch(text) if len(text) <= _LONGEST else None
        if match is None:
            return None
        token, digest = await self._entry(match[1]) or (None, "")
        # The digests are compared even if there is no such id, so that the time reveals nothing about ids.
        is_right = compare_digest(_digest(match[2]), digest or _digest(""))
        return token if is_right and token is not None and token.is_valid(current_port().now()) else None

    async def find_id(self, token_id: str) -> Token | None:
        """Return a token by its id, if it is still valid: for a session or a stream that was opened with it."""
        token, _ = await self._entry(token_id) or (None, "")
        return token if token is not None and token.is_valid(current_port().now()) else None

    async def _entry(self, token_id: str) -> tuple[Token, str] | None:
        if entry := self._local.get(token_id):
            return entry
        # The hash and not the length: the thread may have been deleted and created again.
        head = (await self._ledger.head(TOKENS_THREAD)).hash
        if head != self._seen:
            self._tokens, self._seen = await _stored(self._ledger), head
        return self._tokens.get(token_id)


# ---------------------------------------------------------------- as messages


def _digest(secret: str) -> str:
    return sha256(secret.encode()).hexdigest()


async def _append(ledger: Ledger, value: dict[str, Any]) -> Any:
    payload = PartsPayload(parts=(DataPart(data=value),))
    message = Message(policy=RUNTIME_POLICY, lane="control", payload=payload)
    return await ledger.append(TOKENS_THREAD, [message], pattern="system")


async def _stored(ledger: Ledger) -> dict[str, tuple[Token, str]]:
    """Return the tokens by id, each with the digest of its secret."""
    tokens: dict[str, tuple[Token, str]] = {}
    async for record in ledger.read(TOKENS_THREAD):
        value = _value_of(record.message)
        if (token_id := value.get("made")) is not None:
            ends = value["expires_at"]
            expires_at = None if ends is None else datetime.fromisoformat(ends)
            scopes = cast("tuple[Scope, ...]", tuple(value["scopes"]))
            tokens[token_id] = Token(token_id, value["principal"], scopes, record.recorded_at, expires_at), value["digest"]
        elif (revoked := value.get("revoked")) in tokens:
            token, digest = tokens[revoked]
            tokens[revoked] = replace(token, revoked_at=record.recorded_at), digest
    return tokens


def _value_of(message: Message) -> dict[str, Any]:
    """Return the data about a token in a message; nothing if somebody else wrote it."""
    if message.lane != "control" or message.policy != RUNTIME_POLICY or len(message.parts) != 1:
        return {}
    (part,) = message.parts
    value: Any = thaw(part.data) if isinstance(part, DataPart) else None
    return cast("dict[str, Any]", value) if isinstance(value, dict) else {}
