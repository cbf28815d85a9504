"""Encryption of threads: master keys, the key of a thread, and the stored form of encrypted data.

**Keys.** Each encrypted thread has its own *data key*, 256 random bits. The store keeps it *wrapped*: encrypted with the
master key, which is never stored. `forget` deletes the wrapped key, so that nobody can decrypt the messages. The ledger has
one more key, for names in an index (see `Keyring.blind`); unwrapping it shows whether a master key is correct.

**Stored form.** A message has its *house bytes*, and its *stored bytes*, which the hash chain covers. In a thread without
encryption both are the same. In an encrypted thread the stored bytes are

    mark (1 byte), nonce (12 bytes), digest of the message's id (16 bytes), AES-256-GCM of the house bytes

House bytes begin with `{`, and sealed (encrypted) bytes with the mark, so the first byte shows which they are. The thread, the
position and the digest of the message's id are associated data: sealed bytes that are moved elsewhere do not decrypt. The
digest is keyed, so it reveals nothing to a reader of the file.

**Nonces** are 96 random bits from the operating system. A counter, or the position of the message, would reuse a nonce after a
rolled-back append, when another message takes its position. With one key for each thread, the chance that a nonce
repeats is below 2**-32 after four billion messages of one thread.

`cryptography` is an extra: it is imported with the first master key. Without it, what makes or checks a key raises
`ModuleNotFoundError`. What uses the key of a thread raises `ForgottenError` if it was deleted, `LedgerCorruptError` if it was
altered, `NoMasterKeyError` if no master key is given, and another `EncryptionError` if it is the wrong one.
"""

from __future__ import annotations

import os
import re
import stat
from base64 import b64decode, b64encode
from binascii import Error as NotBase64
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from hashlib import blake2b
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Final, Literal, NamedTuple, TypeAlias

import orjson
from typing_extensions import override

from antiphon.errors import (
    EncryptionError,
    ForgottenError,
    LedgerCorruptError,
    NoMasterKeyError,
    NotSearchableError,
)
from antiphon.ledger._records import OpenCall

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.ciphers.aead import AESGCM

KEY_VARIABLE: Final = "ANTIPHON_KEY"
KEY_FILE_VARIABLE: Final = "ANTIPHON_KEY_FILE"
_KEY_BYTES: Final = 32
_NONCE: Final = 12
_ID_DIGEST: Final = 16
_MARK: Final = b"\x01"
_BODY: Final = 1 + _NONCE + _ID_DIGEST
_ID: Final = re.compile(rb'\{"antiphon":\d+,"id":"([^"\\]*)"')
_MOST_KEYS: Final = 10_000
"""Threads whose keys are remembered."""
LEDGER_KEY: Final = ""
"""The name under which the ledger's own key is wrapped: no thread can have it."""
WITHHELD: Final = "not stored, because the thread is encrypted"
"""The reason that is stored for a build that cannot continue an encrypted thread."""

WrapFunction: TypeAlias = Callable[[bytes, str], bytes]
"""Takes a key and the name of its thread, and returns it wrapped, or unwrapped."""


def is_sealed(stored: bytes) -> bool:
    """Whether stored bytes are encrypted."""
    return stored[:1] == _MARK


class WrappedKey(NamedTuple):
    """The key of a thread as it is stored."""

    master: str
    """The id of the master key that wraps it."""
    wrapped: bytes | None
    """The wrapped key; None if `forget` deleted it."""


# ---------------------------------------------------------------- master keys


class MasterKey:
    """The key that wraps the keys of threads. It is never stored with the ledger."""

    __slots__ = ("_unwrap", "_wrap", "id")

    def __init__(self, key: bytes) -> None:
        """Take a key of 32 random bytes.

        Raises:
            ValueError: it has another length.
        """
        if len(key) != _KEY_BYTES:
            raise ValueError(f"a master key has {_KEY_BYTES} bytes, not {len(key)}; `antiphon key make FILE` makes one")
        cipher = _cipher(key)
        self.id = blake2b(key, digest_size=6, person=b"antiphon key id").hexdigest()
        """Names the key in errors and in the ledger. It reveals nothing about the key."""
        self._wrap: WrapFunction = lambda inner, name: _seal(cipher, inner, _associated_with_key(name))
        self._unwrap: WrapFunction = lambda wrapped, name: _open(cipher, wrapped, _associated_with_key(name))

    @classmethod
    def from_text(cls, text: str) -> MasterKey:
        """Return the key in a text: 32 bytes as base64, as `antiphon key` writes them.

        Raises:
            ValueError: it is not such a text.
        """
        try:
            key = b64decode(text.strip(), validate=True)
        except (NotBase64, ValueError):
            raise ValueError("a master key is 32 bytes as base64; `antiphon key make FILE` makes one") from None
        return cls(key)

    @classmethod
    def from_file(cls, path: str | Path) -> MasterKey:
        """Return the key in a file that only its owner may read.

        Raises:
            ValueError: the file cannot be read, others may read it, or it holds no key.
        """
        return cls.from_text(_secret_text(Path(path)))

    @classmethod
    def from_environment(cls) -> MasterKey | None:
        """Return the key that the environment names: the text in `ANTIPHON_KEY`, or the file in `ANTIPHON_KEY_FILE`.

        Raises:
            ValueError: both are set, or the key is not valid.
        """
        text, path = os.environ.get(KEY_VARIABLE), os.environ.get(KEY_FILE_VARIABLE)
        if text and path:
            raise ValueError(f"{KEY_VARIABLE} and {KEY_FILE_VARIABLE} are both set; unset one of them")
        if path:
            return cls.from_file(path)
        return cls.from_text(text) if text else None

    @classmethod
    def from_functions(cls, id: str, wrap: WrapFunction, unwrap: WrapFunction) -> MasterKey:
        """Return a key that another service keeps. Each function takes a key and the name of its thread.

        They are called once for each new thread, and when a thread is first used. Calls may come from several threads.
        `unwrap` raises ValueError if the key is not the one that wrapped, or the name is another.
        """
        master_key = cls(_random(_KEY_BYTES))
        master_key.id, master_key._wrap, master_key._unwrap = id, wrap, unwrap
        return master_key

    @staticmethod
    def generate() -> str:
        """Return a new key as text, for `from_text` or a key file."""
        return b64encode(_random(_KEY_BYTES)).decode()

    def wrap(self, key: bytes, thread_id: str) -> WrappedKey:
        """Wrap the key of a thread."""
        return WrappedKey(self.id, self._wrap(key, thread_id))

    def unwrap(self, wrapped: WrappedKey, thread_id: str) -> bytes:
        """Return the key of a thread."""
        name = thread_id or None
        if wrapped.wrapped is None:
            raise ForgottenError(thread_id)
        if wrapped.master != self.id:
            raise wrong_master_key(self.id, wrapped.master, name)
        try:
            return self._unwrap(wrapped.wrapped, thread_id)
        except ValueError as exc:
            raise LedgerCorruptError("its wrapped key was altered; restore a backup", name) from exc

    @override
    def __repr__(self) -> str:
        return f"<MasterKey {self.id}>"


Mastering: TypeAlias = MasterKey | Literal["off"] | None
"""The master key of a ledger; None for the key that the environment names, if any; "off" for none."""


def _secret_text(path: Path) -> str:
    """Return the text of a file that only its owner may read.

    Raises:
        ValueError: it cannot be read, or others may read it.
    """
    try:
        mode, text = path.stat().st_mode, path.read_text("ascii")
    except (OSError, UnicodeDecodeError) as exc:
        reason = exc.strerror if isinstance(exc, OSError) else "it is not text"
        raise ValueError(f"the key file {str(path)!r} cannot be read: {reason}; check the path") from exc
    if stat.S_IMODE(mode) & 0o077:
        raise ValueError(f"others may read the key file {str(path)!r}; run `chmod 600` on it")
    return text


def _associated_with_key(thread_id: str) -> bytes:
    return b"antiphon key\n" + thread_id.encode()


@lru_cache(maxsize=1)
def _needs_crypto() -> None:
    try:
        import_module("cryptography")
    except ModuleNotFoundError as exc:
        raise ModuleNotFoundError('encryption needs cryptography: pip install "antiphon[crypto]"', name=exc.name) from exc


def _cipher(key: bytes) -> AESGCM:
    _needs_crypto()
    from cryptography.hazmat.primitives.ciphers import aead  # noqa: PLC0415 (an extra)

    return aead.AESGCM(key)


def _random(count: int) -> bytes:
    return os.urandom(count)  # noqa: TID251 (not from the port: a seeded one would repeat keys and nonces)


def _seal(cipher: AESGCM, text: bytes, associated: bytes) -> bytes:
    nonce = _random(_NONCE)
    return nonce + cipher.encrypt(nonce, text, associated)


def _open(cipher: AESGCM, sealed: bytes, associated: bytes) -> bytes:
    return _decrypted(cipher, sealed[:_NONCE], sealed[_NONCE:], associated)


def _decrypted(cipher: AESGCM, nonce: bytes, sealed: bytes, associated: bytes) -> bytes:
    from cryptography.exceptions import InvalidTag  # noqa: PLC0415 (an extra; it was imported with the key)

    try:
        return cipher.decrypt(nonce, sealed, associated)
    except (InvalidTag, ValueError):
        raise ValueError("it was altered, or another key sealed it") from None


# ---------------------------------------------------------------- signatures

_PRIVATE, _PUBLIC = "ed25519-private:", "ed25519-public:"
_SIGNED = b"antiphon heads\n"


class SigningKey:
    """An Ed25519 key that signs heads. Its public part, stored elsewhere, verifies the signature."""

    __slots__ = ("_key", "public")

    def __init__(self, seed: bytes) -> None:
        """Take 32 random bytes.

        Raises:
            ValueError: it has another length.
        """
        self._key = _ed25519().Ed25519PrivateKey.from_private_bytes(seed)
        self.public = _PUBLIC + b64encode(self._key.public_key().public_bytes_raw()).decode()
        """The public part, as text."""

    @classmethod
    def from_file(cls, path: str | Path) -> SigningKey:
        """Return the key in a file that only its owner may read.

        Raises:
            ValueError: the file cannot be read, others may read it, or it holds no such key.
        """
        text = _secret_text(Path(path)).strip()
        try:
            if text.startswith(_PRIVATE):
                return cls(b64decode(text.removeprefix(_PRIVATE), validate=True))
        except ValueError:
            pass
        raise ValueError(f"{str(path)!r} holds no key for signatures; `antiphon key make FILE --signing` makes one")

    @staticmethod
    def generate() -> str:
        """Return a new key as text, for a key file."""
        return _PRIVATE + b64encode(_random(_KEY_BYTES)).decode()

    def sign(self, text: bytes) -> str:
        """Return the signature of a text."""
        return b64encode(self._key.sign(_SIGNED + text)).decode()


def is_signed(text: bytes, signature: str, public: str) -> bool:
    """Whether the key with this public part has signed a text."""
    from cryptography.exceptions import InvalidSignature  # noqa: PLC0415 (an extra)

    try:
        key = _ed25519().Ed25519PublicKey.from_public_bytes(b64decode(public.removeprefix(_PUBLIC), validate=True))
        key.verify(b64decode(signature, validate=True), _SIGNED + text)
    except (InvalidSignature, ValueError):
        return False
    return True


def _ed25519() -> ModuleType:
    _needs_crypto()
    from cryptography.hazmat.primitives.asymmetric import ed25519  # noqa: PLC0415 (an extra)

    return ed25519


# ---------------------------------------------------------------- the key of a thread


class ThreadKey:
    """The key of one thread: seals its messages, open calls and snapshots, and opens them."""

    __slots__ = ("_cipher", "_id_key", "_message", "_name", "thread_id")

    def __init__(self, thread_id: str, key: bytes) -> None:
        self.thread_id = thread_id
        self._cipher = _cipher(key)
        self._id_key = blake2b(key, digest_size=_KEY_BYTES, person=b"antiphon ids").digest()
        self._name = thread_id.encode()
        self._message = b"antiphon message\n" + self._name + b"\n"

    def seal(self, seq: int, message_id: str, body: bytes) -> bytes:
        """Return the stored bytes of a message."""
        nonce, digest = _random(_NONCE), self._digest(message_id.encode())
        associated = b"%s%d\n%s" % (self._message, seq, digest)
        return _MARK + nonce + digest + self._cipher.encrypt(nonce, body, associated)

    def open(self, seq: int, stored: bytes) -> bytes:
        """Return the house bytes of a message.

        Raises:
            LedgerCorruptError: it is not sealed, was altered, or was moved from another place.
        """
        if not is_sealed(stored):
            raise LedgerCorruptError("it is not encrypted, although its thread is", self.thread_id, seq)
        digest = stored[1 + _NONCE : _BODY]
        try:
            associated = b"%s%d\n%s" % (self._message, seq, digest)
            body = _decrypted(self._cipher, stored[1 : 1 + _NONCE], stored[_BODY:], associated)
        except ValueError:
            body = b""
        id_match = _ID.match(body)
        if not body or (id_match is not None and self._digest(id_match[1]) != digest):
            reason = "it cannot be decrypted with the key of its thread: it was altered, or moved from another position"
            raise LedgerCorruptError(reason, self.thread_id, seq)
        return body

    def _digest(self, message_id: bytes) -> bytes:
        return blake2b(message_id, key=self._id_key, digest_size=_ID_DIGEST).digest()

    def seal_call(self, call: OpenCall) -> bytes:
        """Return an open call as it is stored."""
        return _MARK + _seal(self._cipher, orjson.dumps(tuple(call)[1:]), self._associated("call", str(call.seq)))

    def open_call(self, seq: int, stored: bytes) -> OpenCall:
        """Return an open call."""
        is_effect, invocation_id, option_name, turn = orjson.loads(self._opened(stored, "call", str(seq), seq))
        return OpenCall(seq, is_effect, invocation_id, option_name, turn)

    def seal_snapshot(self, fold: str, seq: int, state: bytes) -> bytes:
        """Return the state of a snapshot as it is stored."""
        return _MARK + _seal(self._cipher, state, self._associated("snapshot", f"{seq}\n{fold}"))

    def open_snapshot(self, fold: str, seq: int, stored: bytes) -> bytes:
        """Return the state of a snapshot."""
        return self._opened(stored, "snapshot", f"{seq}\n{fold}", seq)

    def _associated(self, what: str, place: str) -> bytes:
        return b"antiphon %s\n%s\n%s" % (what.encode(), self._name, place.encode())

    def _opened(self, stored: bytes, what: str, place: str, seq: int) -> bytes:
        try:
            return _open(self._cipher, stored[1:], self._associated(what, place))
        except ValueError:
            raise LedgerCorruptError(f"its {what} cannot be decrypted with its key", self.thread_id, seq) from None


# ---------------------------------------------------------------- the keyring of a ledger


@dataclass(frozen=True, slots=True)
class EncryptionStatus:
    """How much of a ledger is encrypted."""

    master: str
    """The id of the master key that wraps its keys."""
    threads: int
    """Encrypted threads, including forgotten ones."""
    forgotten: int
    """Threads whose key was deleted."""


class Keyring:
    """The keys of an open ledger: its master key, and a cache of unwrapped thread keys."""

    def __init__(self, master: MasterKey | None = None) -> None:
        self.master = master
        """The master key that wraps new keys."""
        self._masters = {} if master is None else {master.id: master}
        """The master keys that unwrap keys, by id: during a rotation, both."""
        self._keys: dict[tuple[str, WrappedKey], ThreadKey] = {}
        self._blind: tuple[WrappedKey, bytes] | None = None

    @classmethod
    def of(cls, setting: Mastering) -> Keyring:
        """Return the keyring of a ledger that is opened.

        Raises:
            TypeError: the value is not a master key.
            ValueError: the key that the environment names is not valid.
        """
        if setting is None:
            return cls(MasterKey.from_environment())
        if isinstance(setting, MasterKey):
            return cls(setting)
        if setting == "off":
            return cls()
        raise TypeError(f'master_key is a MasterKey, "off" or None, not {type(setting).__name__}')

    @property
    def unused(self) -> EncryptionStatus | None:
        """The status of a ledger that has no encrypted thread yet; None without a master key."""
        return None if self.master is None else EncryptionStatus(self.master.id, 0, 0)

    def needed(self, thread_id: str | None = None) -> MasterKey:
        """Return the master key."""
        if self.master is None:
            raise NoMasterKeyError(thread_id)
        return self.master

    def new_key(self, thread_id: str) -> WrappedKey:
        """Make the key of a new thread, and return it wrapped."""
        key = _random(_KEY_BYTES)
        wrapped = self.needed(thread_id or None).wrap(key, thread_id)
        if thread_id != LEDGER_KEY:
            self._remember(thread_id, wrapped, ThreadKey(thread_id, key))
        return wrapped

    def key(self, thread_id: str, wrapped: WrappedKey) -> ThreadKey:
        """Return the key of a thread."""
        cached = self._keys.get((thread_id, wrapped))
        return cached or self._remember(thread_id, wrapped, ThreadKey(thread_id, self._unwrapped(thread_id, wrapped)))

    def _unwrapped(self, thread_id: str, wrapped: WrappedKey) -> bytes:
        if wrapped.wrapped is None:
            raise ForgottenError(thread_id)
        master = self.needed(thread_id or None)
        return self._masters.get(wrapped.master, master).unwrap(wrapped, thread_id)

    def key_to_write(
        self, thread_id: str, wrapped: WrappedKey | None, ledger_key: WrappedKey | None, *, is_new: bool
    ) -> tuple[WrappedKey | None, ThreadKey | None]:
        """Return the key of a thread that is written to; for a new thread, a new key if the ledger has a master key.

        A thread that has messages without encryption stays without. `ledger_key` is that of the ledger, if it has one.
        """
        if wrapped is None and is_new and (self.master is not None or ledger_key is not None):
            self.needed(thread_id)
            self.check(ledger_key)
            wrapped = self.new_key(thread_id)
        return wrapped, None if wrapped is None else self.key(thread_id, wrapped)

    def _remember(self, thread_id: str, wrapped: WrappedKey, key: ThreadKey) -> ThreadKey:
        if len(self._keys) >= _MOST_KEYS:
            self._keys.clear()
        self._keys[thread_id, wrapped] = key
        return key

    def drop(self) -> None:
        """Drop the keys that are remembered."""
        self._keys.clear()

    def begin_rotation(self, new: MasterKey) -> None:
        """Accept keys that another master key wraps."""
        self.needed()
        self._masters[new.id] = new

    def end_rotation(self, new: MasterKey) -> None:
        """Use another master key from now on, and it alone."""
        self.master, self._masters = new, {new.id: new}
        self.drop()

    def check(self, ledger_key: WrappedKey | None) -> None:
        """Check the master key against the key of the ledger, if it has one."""
        if ledger_key is not None and self.master is not None:
            self._blinding(ledger_key)

    def _blinding(self, ledger_key: WrappedKey) -> bytes:
        if self._blind is None or self._blind[0] != ledger_key:
            self._blind = ledger_key, self._unwrapped(LEDGER_KEY, ledger_key)
        return self._blind[1]

    def blind(self, ledger_key: WrappedKey, name: str) -> str:
        """Return the keyed hash of a name, for an index. Without the master key, nobody can tell the name."""
        return "~" + blake2b(name.encode(), key=self._blinding(ledger_key), digest_size=16).hexdigest()

    def rewrapped(self, thread_id: str, wrapped: WrappedKey, new: MasterKey) -> WrappedKey:
        """Return the key of a thread, wrapped by another master key. A forgotten one stays forgotten."""
        if wrapped.wrapped is None:
            return WrappedKey(new.id, None)
        return new.wrap(self._unwrapped(thread_id, wrapped), thread_id)


def not_searchable(thread_id: str) -> NotSearchableError:
    """Return the error for a search in an encrypted thread."""
    return NotSearchableError("it is encrypted, and an index of its words would be readable; read it instead", thread_id)


def wrong_master_key(actual: str, expected: str, thread_id: str | None = None) -> EncryptionError:
    """Return the error for a master key that is not the one that wraps the keys: the id of each."""
    reason = f"the master key that is given ({actual}) is not the one that wraps its keys ({expected}); give that one"
    return EncryptionError(reason, thread_id, code="WRONG_MASTER_KEY")


def not_indexable(name: str) -> NotSearchableError:
    """Return the error for an index of terms over encrypted threads."""
    reason = f"the collection {name!r} is encrypted, and an index of its terms would be readable"
    return NotSearchableError(f"{reason}; keep it in a ledger without encryption")


def to_forget(family: Sequence[tuple[str, WrappedKey | None]], *, with_branches: bool) -> tuple[str, ...]:
    """Return which threads are forgotten, given the name and the key of a thread, then those of its branches.

    Raises:
        ForgottenError: the thread was forgotten before.
        EncryptionError: it is not encrypted.
        ValueError: branches share its messages, and `with_branches` is False.
    """
    name, key = family[0]
    if key is None:
        raise EncryptionError("it is not encrypted, so there is no key to forget; delete it instead", name)
    if key.wrapped is None:
        raise ForgottenError(name)
    names = tuple(thread_id for thread_id, wrapped in family if wrapped is not None and wrapped.wrapped is not None)
    if len(names) > 1 and not with_branches:
        raise ValueError(f"{', '.join(map(repr, names[1:]))} share its messages; forget them first, or with_branches=True")
    return names
