"""The keys of encrypted threads: store, look up, delete and rotate them.

`thread_keys` has a row for each encrypted thread, with its wrapped key, or without it if it was forgotten. The row of thread 0
is the key of the ledger, or of the tenant. A key is looked up in the transaction that uses it, so a `forget` in another
process takes effect at once; only unwrapped keys are cached (see `ledger._encryption`).
"""

from __future__ import annotations

from collections.abc import Sequence

from antiphon.errors import ForgottenError
from antiphon.ledger._encryption import (
    LEDGER_KEY,
    EncryptionStatus,
    MasterKey,
    ThreadKey,
    WrappedKey,
    not_indexable,
    to_forget,
    wrong_master_key,
)
from antiphon.ledger._ownership import forgotten
from antiphon.ledger._sql.statements import Verb, keyring, row, rows, value, write, write_one
from antiphon.ledger._stored import Thread, checksum_of

_KEY = "SELECT master, wrapped FROM antiphon.thread_keys WHERE tenant = $1 AND thread = $2"
_NAMED = """
SELECT t.thread_id, k.master, k.wrapped FROM antiphon.thread_keys AS k
JOIN antiphon.threads AS t ON t.tenant = k.tenant AND t.key = k.thread WHERE k.tenant = $1 AND k.thread = $2
"""
_ALL = """
SELECT k.thread, coalesce(t.thread_id, ''), k.master, k.wrapped FROM antiphon.thread_keys AS k
LEFT JOIN antiphon.threads AS t ON t.tenant = k.tenant AND t.key = k.thread WHERE k.tenant = $1
ORDER BY k.thread FOR UPDATE OF k
"""
_COVERED = """
SELECT 1 FROM antiphon.threads AS t JOIN antiphon.thread_keys AS k ON k.tenant = t.tenant AND k.thread = t.key
WHERE t.tenant = $1 AND (t.thread_id = $2 OR t.thread_id >= $2 || '/' AND t.thread_id < $2 || '0') LIMIT 1
"""
"""`0` is the character after the slash."""
_HELD = "SELECT master FROM antiphon.thread_keys WHERE tenant = $1 AND thread = $2 FOR KEY SHARE"
_INSERT = "INSERT INTO antiphon.thread_keys (tenant, thread, master, wrapped, checksum) VALUES ($1, $2, $3, $4, $5)"
_UPDATE = "UPDATE antiphon.thread_keys SET master = $3, wrapped = $4, checksum = $5 WHERE tenant = $1 AND thread = $2"
_STATUS = "SELECT count(*), count(*) - count(wrapped) FROM antiphon.thread_keys WHERE tenant = $1 AND thread <> $2"
_LEDGER = 0
"""In place of a thread: the key of the ledger."""


def find_key(thread: int) -> Verb[WrappedKey | None]:
    """Return the wrapped key of a thread; None if it is not encrypted."""
    columns = yield from row(_KEY, thread)
    return None if columns is None else WrappedKey(*columns)


def ledger_key() -> Verb[WrappedKey | None]:
    """Return the ledger's own key; None if no thread was ever encrypted."""
    return (yield from find_key(_LEDGER))


def thread_key(thread: int) -> Verb[ThreadKey | None]:
    """Return the key of a thread; None if it is not encrypted."""
    columns = yield from row(_NAMED, thread)
    return None if columns is None else (yield from keyring()).key(columns[0], WrappedKey(columns[1], columns[2]))


def check_remembered(thread: Thread) -> Verb[None]:
    """Refuse a thread whose key was deleted."""
    key = yield from find_key(thread.key)
    if key is not None and key.wrapped is None:
        raise ForgottenError(thread.state.thread_id)


def check_collection(name: str) -> Verb[None]:
    """Refuse a collection with an encrypted thread."""
    if (yield from value(_COVERED, name)):
        raise not_indexable(name)


def hold_master(key: WrappedKey) -> Verb[None]:
    """Lock the master key of a new key until the end of the transaction: `rotate` waits for it.

    Otherwise a key that is stored during a rotation would stay wrapped with the old master key, which is then discarded.

    Raises:
        EncryptionError: another master key has taken its place.
    """
    master = yield from value(_HELD, _LEDGER)
    if master is not None and master != key.master:
        raise wrong_master_key(key.master, master)


def store_key(thread: int, key: WrappedKey) -> Verb[None]:
    """Store the key of a new thread. With the first one, the ledger gets a key of its own."""
    if (yield from ledger_key()) is None:
        keys = yield from keyring()
        blinding = keys.new_key(LEDGER_KEY)
        # Another process may do the same: this waits for its transaction, and the first key stays.
        yield from write(f"{_INSERT} ON CONFLICT DO NOTHING", _LEDGER, *blinding, key_checksum(_LEDGER, blinding))
        keys.check((yield from ledger_key()))
    yield from write_one(_INSERT, thread, *key, key_checksum(thread, key))


def key_checksum(thread: int, key: WrappedKey) -> int:
    """Return the checksum of a row of `thread_keys`."""
    return checksum_of((thread, *key))


def blinded(option_name: str) -> Verb[str | None]:
    """Return the hashed name of an option in encrypted threads; None without the master key, or without such threads."""
    keys = yield from keyring()
    blinding = None if keys.master is None else (yield from ledger_key())
    return None if blinding is None else keys.blind(blinding, option_name)


# ---------------------------------------------------------------- changes


def forget_keys(family: Sequence[Thread], *, with_branches: bool) -> Verb[list[Thread]]:
    """Delete the keys of a thread and its branches, and return the threads whose rows must be written."""
    keys: dict[str, WrappedKey | None] = {}
    for thread in family:
        keys[thread.state.thread_id] = yield from find_key(thread.key)
    names = to_forget(list(keys.items()), with_branches=with_branches)
    changed: list[Thread] = []
    for thread in family:
        key = keys[thread.state.thread_id]
        if key is None or thread.state.thread_id not in names:
            continue
        yield from _update(thread.key, WrappedKey(key.master, None))
        yield from write("DELETE FROM antiphon.open_calls WHERE tenant = $1 AND thread = $2", thread.key)
        yield from write("DELETE FROM antiphon.snapshots WHERE tenant = $1 AND thread = $2", thread.key)
        changed.append(thread._replace(state=forgotten(thread.state), open_calls=0))
    return changed


def _update(thread: int, key: WrappedKey) -> Verb[None]:
    yield from write_one(_UPDATE, thread, *key, key_checksum(thread, key))


def rotate(new: MasterKey) -> Verb[int]:
    """Wrap all keys with another master key, and return how many threads have one."""
    count = 0
    keys = yield from keyring()
    # A statement of its own: it waits for transactions that store a new key (`hold_master`), and the next one sees their keys.
    yield from row(f"{_KEY} FOR UPDATE", _LEDGER)
    for thread, name, master, wrapped in (yield from rows(_ALL)):
        key = keys.rewrapped(LEDGER_KEY if thread == _LEDGER else name, WrappedKey(master, wrapped), new)
        yield from _update(thread, key)
        count += thread != _LEDGER and wrapped is not None
    return count


def encryption() -> Verb[EncryptionStatus | None]:
    """Return how much is encrypted."""
    blinding = yield from ledger_key()
    if blinding is None:
        return (yield from keyring()).unused
    encrypted, forgotten_ones = (yield from rows(_STATUS, _LEDGER))[0]
    return EncryptionStatus(blinding.master, encrypted, forgotten_ones)
