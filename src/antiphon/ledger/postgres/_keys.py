"""The keys of encrypted threads in a database: store, look up, delete and rotate them.

`thread_keys` has a row for each encrypted thread, with its wrapped key, or without it if it was forgotten. The row of thread 0
is the tenant's own key. A key is looked up in the transaction that uses it, so a `forget` in another process takes effect
at once; only unwrapped keys are cached (see `ledger._encryption`).
"""

from __future__ import annotations

from collections.abc import Sequence

from antiphon.errors import ForgottenError, WrongMasterKeyError
from antiphon.ledger._encryption import (
    LEDGER_KEY,
    EncryptionStatus,
    MasterKey,
    ThreadKey,
    WrappedKey,
    not_indexable,
    to_forget,
)
from antiphon.ledger._ownership import forgotten
from antiphon.ledger._stored import Thread
from antiphon.ledger.postgres._connection import Session

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
WHERE t.tenant = $1 AND (t.thread_id = $2 OR starts_with(t.thread_id, $2 || '/')) LIMIT 1
"""
_HELD = "SELECT master FROM antiphon.thread_keys WHERE tenant = $1 AND thread = $2 FOR KEY SHARE"
_INSERT = "INSERT INTO antiphon.thread_keys (tenant, thread, master, wrapped) VALUES ($1, $2, $3, $4)"
_UPDATE = "UPDATE antiphon.thread_keys SET master = $3, wrapped = $4 WHERE tenant = $1 AND thread = $2"
_LEDGER = 0
"""In place of a thread: the tenant's own key."""


async def find_key(session: Session, thread: int) -> WrappedKey | None:
    """Return the wrapped key of a thread; None if it is not encrypted."""
    row = await session.fetchrow(_KEY, thread)
    return None if row is None else WrappedKey(*row.values())


async def ledger_key(session: Session) -> WrappedKey | None:
    """Return the tenant's own key; None if no thread was ever encrypted."""
    return await find_key(session, _LEDGER)


async def thread_key(session: Session, thread: int) -> ThreadKey | None:
    """Return the key of a thread; None if it is not encrypted.

    Raises:
        EncryptionError: it was forgotten, or the master key is missing or wrong.
        LedgerCorruptError: it was altered.
    """
    row = await session.fetchrow(_NAMED, thread)
    return None if row is None else session.keyring.key(row[0], WrappedKey(row[1], row[2]))


async def check_remembered(session: Session, thread: Thread) -> None:
    """Refuse a thread whose key was deleted.

    Raises:
        ForgottenError: it was.
    """
    key = await find_key(session, thread.key)
    if key is not None and key.wrapped is None:
        raise ForgottenError(thread.state.thread_id)


async def check_collection(session: Session, name: str) -> None:
    """Refuse a collection with an encrypted thread.

    Raises:
        NotSearchableError: it has one.
    """
    if await session.fetchval(_COVERED, name):
        raise not_indexable(name)


async def hold_master(session: Session, key: WrappedKey) -> None:
    """Lock the master key of a new key until the end of the transaction: `rotate` waits for it.

    Otherwise a key that is stored during a rotation would stay wrapped with the old master key, which is then discarded.

    Raises:
        WrongMasterKeyError: another master key has taken its place.
    """
    master = await session.fetchval(_HELD, _LEDGER)
    if master is not None and master != key.master:
        raise WrongMasterKeyError(key.master, master)


async def store_key(session: Session, thread: int, key: WrappedKey) -> None:
    """Store the key of a new thread. With the first one, the tenant gets a key of its own."""
    if await ledger_key(session) is None:
        own = session.keyring.new_key(LEDGER_KEY)
        # Another process may do the same: this waits for its transaction, and the first key stays.
        await session.execute(f"{_INSERT} ON CONFLICT DO NOTHING", _LEDGER, *own)
        session.keyring.check(await ledger_key(session))
    await session.execute(_INSERT, thread, *key)


async def blinded(session: Session, option_name: str) -> str | None:
    """Return the hashed name of an option in encrypted threads; None without the master key, or without such threads."""
    blinding = None if session.keyring.master is None else await ledger_key(session)
    return None if blinding is None else session.keyring.blind(blinding, option_name)


# ---------------------------------------------------------------- changes


async def forget(session: Session, family: Sequence[Thread], *, with_branches: bool) -> list[Thread]:
    """Delete the keys of a thread and its branches, and return the threads whose rows must be written.

    Raises:
        ForgottenError: the thread was forgotten before.
        EncryptionError: it is not encrypted.
        ValueError: there are branches, and `with_branches` is False.
    """
    keys = {thread.state.thread_id: await find_key(session, thread.key) for thread in family}
    chosen = to_forget(list(keys.items()), with_branches=with_branches)
    changed: list[Thread] = []
    for thread in family:
        found = keys[thread.state.thread_id]
        if found is None or thread.state.thread_id not in chosen:
            continue
        await session.execute(_UPDATE, thread.key, found.master, None)
        await session.execute("DELETE FROM antiphon.open_calls WHERE tenant = $1 AND thread = $2", thread.key)
        await session.execute("DELETE FROM antiphon.snapshots WHERE tenant = $1 AND thread = $2", thread.key)
        changed.append(thread._replace(state=forgotten(thread.state), open_calls=0))
    return changed


async def rotate(session: Session, new: MasterKey) -> int:
    """Wrap all keys with another master key, and return how many threads have one."""
    count = 0
    # A statement of its own: it waits for transactions that store a new key (`hold_master`), and the next one sees their keys.
    await session.execute(f"{_KEY} FOR UPDATE", _LEDGER)
    for thread, name, master, wrapped in [tuple(row.values()) for row in await session.fetch(_ALL)]:
        key = session.keyring.rewrapped(LEDGER_KEY if thread == _LEDGER else name, WrappedKey(master, wrapped), new)
        await session.execute(_UPDATE, thread, *key)
        count += thread != _LEDGER and wrapped is not None
    return count


async def status(session: Session) -> EncryptionStatus | None:
    """Return how much is encrypted."""
    own = await ledger_key(session)
    sql = """
SELECT count(*), count(*) - count(wrapped) FROM antiphon.thread_keys WHERE tenant = $1 AND thread <> $2
"""
    row = await session.fetchrow(sql, _LEDGER)
    return session.keyring.unused if own is None or row is None else EncryptionStatus(own.master, *row.values())
