"""The promises of every message store, in prose and as protocols of three grades. `testing.check_ledger` checks a store.

A `Log` stores threads and reads them back. `Owners` also says which host may append to a thread, and which threads have work
to do. A `Ledger` has everything. A function takes the smallest grade that it needs: to replay, compare, follow or export a
thread, a `Log` is enough; durable programs run on `Owners`; `open_ledger` opens a `Ledger`. So a new store begins as a `Log`,
whose promises are the first four.

**Durable.** When `append` returns, the messages are stored for good: they survive a crash at any instruction and, in a store
on disk, a power cut. If it raises, or the process dies, either all of the messages are stored or none. Appending them again
leaves exactly one copy: a message with a known id and the same bytes is not written again; with other bytes it is refused.

**In order.** The messages of a thread have `seq` 1, 2, 3, … without a gap. All readers see the same order, and no reader sees
a message before its predecessor. A message that was acknowledged before an append began precedes the messages of that append.

**Atomic.** One transaction commits the messages of an append, its snapshot and the thread's status. One transaction commits
a posted message and the mark that its thread is due.

**Unaltered.** A stored message comes back byte for byte, and a chain of hashes covers it. A read checks the hashes: it names
an altered message and never returns it.

**One owner.** `claim` returns an epoch. From then on, every append must pass the latest epoch. The store compares it in the
transaction that writes, so a host that has lost the thread cannot write, however late it notices. This holds for every append,
including one that is empty or already stored. A caller that is not the owner uses `post`.

**Hosts.** A process that runs threads is a host. It is alive while it renews its lease with `beat`. No other host can claim
the thread of a host that is alive. A lease decides who may claim a thread; only the epoch decides who may append. So a host
that was suspended past its lease continues the threads that nobody has claimed since, and is fenced in the others. A clock
that jumps does not end a lease.

**Due.** `post` marks its thread as due in the same transaction. The mark stays until an owner reports the message as seen. So
`take` finds a posted message that no owner has handled, after any crash. `ledger/_ownership.py` has the exact rules.

**Limits.** A limit on model requests applies to all hosts of the ledger together. Permits are valid as long as the lease of
the host: those of a dead host are free, and its reservations of the daily budget count as spent. `ledger/_permits.py` has the
exact rules.

**Without secrets.** The ledger removes secrets before it stores a message, unless it was opened with `redaction="off"`.
Callers get the stored form back. A thread stays redacted or unredacted from its first message on. A name that looks like a
secret is refused, not rewritten. All hosts of a ledger redact by the same rules: a host with different rules is refused.

**Encrypted.** A ledger that is opened with a master key encrypts every new thread with a separate key. The chain covers the
stored bytes, so it can be verified without any key. The words of an encrypted thread are in no index. `forget` deletes the key
of a thread: its messages can no longer be read, and its chain stays intact.

**Derived indexes.** The indexes of words and of terms can be computed from the messages. `verify` checks them, and a store may
drop and rebuild them. A search sees every message that was committed before it began.

**Errors.** Any verb may raise `LedgerUnavailableError` (the store is locked, full or failing), `ValueError` (a name, a page or
a limit is not valid), `SecretNameError` (a name looks like a secret, and the thread is redacted) and, for an encrypted thread,
`EncryptionError` or `ForgottenError`. The text of a verb names only its others.

Reading an unknown thread returns no messages. A ledger belongs to the event loop it was opened in.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterable, Mapping
from datetime import datetime
from types import MappingProxyType
from typing import Protocol, overload

from antiphon.ledger._encryption import EncryptionStatus, MasterKey, WrappedKey
from antiphon.ledger._hosts import Epoch, Host, HostStatus, TakenThread, Woken
from antiphon.ledger._permits import Limit, LimitStatus, PermitGrant, PermitWants
from antiphon.ledger._records import Record
from antiphon.ledger._redaction import Redaction, RedactionRules
from antiphon.ledger._signals import Hints
from antiphon.ledger._terms import Terms
from antiphon.ledger._values import (
    CallOrder,
    CallPage,
    Head,
    Hit,
    Snapshot,
    Tailed,
    ThreadCount,
    ThreadFilter,
    ThreadJournal,
    ThreadOrder,
    ThreadPage,
    ThreadStanding,
    ThreadSummary,
    Verification,
)
from antiphon.messages import Json, Message

# ---------------------------------------------------------------- threads


class Log(Protocol):
    """A durable store of messages, in threads: the smallest grade."""

    async def append(
        self,
        thread_id: str,
        messages: Iterable[Message],
        *,
        expected_version: int | None = None,
        snapshot: Snapshot | None = None,
        status: str | None = None,
        pattern: str | None = None,
        allow_foreign: bool = False,
        outside: bool = False,
    ) -> tuple[Record, ...]:
        """Append messages to a thread, and return their records once they are durable.

        A message without a thread gets this one. `expected_version` is the number of messages that the caller expects in the
        thread. `allow_foreign` admits histories that break the rules for calls, results and ids. Cancelling the caller does
        not withdraw the append.

        `outside` says that the messages come from a file or from another program. They are stored as talk. Rows of the other
        lanes are stored after the talk as foreign history, which nothing acts on. Calls that are still open get an error
        result. The append then returns all records that it has stored.

        Raises:
            AppendConflictError: the thread has another length than expected.
            AppendRefusedError: a message breaks a rule.
            ValueError: a message belongs to another thread.
        """
        ...

    async def post(self, thread_id: str, message: Message, *, by: str | None = None) -> Record:
        """Append one addressed message, and mark the thread as due. The caller need not own the thread.

        A thread without a kind gets the kind of the first receiver's address.

        `by` is the name of an outside author: the message is stored under that name, as talk (see `append`).

        Raises:
            AppendRefusedError: it breaks a rule.
            ValueError: the message has no receiver, is in the effect lane, or belongs to another thread; or `by` is a reserved
                name.
        """
        ...

    def read(self, thread_id: str, after: int = 0, before: int | None = None, reverse: bool = False) -> AsyncIterator[Record]:
        """Read a thread from `after` to `before`, neither included; `reverse` begins at the end.

        Raises:
            LedgerCorruptError: a stored message was altered; the messages before it have been returned.
            UnknownThreadError: the thread was deleted during the read.
        """
        ...

    def tail(self, after: str | None = None, *, thread_id: str | None = None) -> AsyncIterator[Tailed]:
        """Follow all threads, or one, in the order of commits: first the stored records, then new ones, until you stop.

        Each record comes with a cursor. A tail that starts at the last cursor misses no record and repeats none. Without a
        cursor it starts at the first record; `horizon()` returns the cursor of the last commit. Records of forgotten threads
        are left out.
        """
        ...

    async def horizon(self) -> str:
        """Return the cursor of the last commit: a `tail` from there returns only later records."""
        ...

    async def head(self, thread_id: str) -> Head:
        """Return the head of a thread; `seq` is 0 for an empty thread."""
        ...

    async def thread(self, thread_id: str) -> ThreadSummary | None:
        """Return the summary of a thread; None if there is no such thread."""
        ...

    async def threads(self, *, page: str | None = None, limit: int = 100) -> ThreadPage:
        """Return a page of threads, the last changed first; `page` is the `next` of the page before."""
        ...

    async def find(
        self, *, invocation_id: str | None = None, correlation_id: str | None = None, thread_id: str | None = None
    ) -> tuple[Record, ...]:
        """Return the calls and results of an invocation, or the messages of an exchange, in the order of commits.

        They are those of all threads, or of one. Give one of the first two.
        """
        ...

    async def open_calls(self, thread_id: str) -> tuple[Record, ...]:
        """Return the calls of all lanes that have no result yet, without reading the whole thread."""
        ...

    async def snapshot(self, thread_id: str, fold: str, *, upto: int | None = None) -> tuple[int, Json] | None:
        """Return the place and the state of the latest snapshot of a fold, or of the latest up to a message; see `replay`."""
        ...


# ---------------------------------------------------------------- owners and hosts


class Limits(Protocol):
    """The limits of model requests for all hosts, and the permits that hosts lease under them."""

    async def set(self, limit: Limit) -> None:
        """Set the limits of a model for all hosts, or of all models together (`*`). A limit of nothing removes them.

        Hosts learn it within seconds. Running requests continue, and count.
        """
        ...

    async def status(self) -> tuple[LimitStatus, ...]:
        """Return all limits by model, with their use by the living hosts."""
        ...

    async def lease(self, by: Host, wants: Mapping[str, PermitWants]) -> Mapping[str, PermitGrant]:
        """Lease permits for model requests in bulk.

        `wants` has the running and waiting requests of the host, by model of a limit.

        The host grants the permits to its own requests. They are valid as long as its lease. Each call replaces the permits of
        the call before it, so it also returns permits; repeating a call is harmless. `ledger/_permits.py` has the exact rules.
        A model without a limit gets a grant without limits.

        Raises:
            HostError: the host has never beaten or has left, or its lease is over.
        """
        ...


class Redactions(Protocol):
    """The rules by which secrets are removed from messages before they are stored."""

    async def of(self, thread_id: str) -> Redaction | None:
        """Return the rules by which messages of a thread are redacted before they are stored; None if they are not redacted.

        The rules of a thread do not change while the ledger is open. So a caller that does not wait for an append knows the
        message that will be stored: `redaction.message(message)`.
        """
        ...

    async def rules(self) -> RedactionRules:
        """Return the digests of this handle's rules, and of the rules that the hosts of the ledger use."""
        ...

    async def adopt(self) -> RedactionRules:
        """Make the rules of this handle the rules of the ledger.

        The first host that registers does that automatically. Later hosts with different rules are refused. Stored messages do
        not change: a repeated message may then have different bytes, and is refused.

        Raises:
            OtherRedactionError: a host is alive; stop it first.
        """
        ...


class Owners(Log, Protocol):
    """A log whose threads have owners: hosts, which run them."""

    @property
    def hints(self) -> Hints:
        """What other processes say: that there may be work, or live text."""
        ...

    @property
    def limits(self) -> Limits:
        """The limits on model requests."""
        ...

    @property
    def redaction(self) -> Redactions:
        """The rules of redaction."""
        ...

    async def append(
        self,
        thread_id: str,
        messages: Iterable[Message],
        *,
        expected_version: int | None = None,
        epoch: int | None = None,
        snapshot: Snapshot | None = None,
        status: str | None = None,
        pattern: str | None = None,
        allow_foreign: bool = False,
        outside: bool = False,
    ) -> tuple[Record, ...]:
        """Append as to a `Log`; `epoch` is the latest epoch of the thread, if it was claimed.

        Raises:
            FencedError: the thread was claimed, and `epoch` is not its owner's; or its owner has released it.
        """
        ...

    async def threads(  # pyright: ignore[reportIncompatibleMethodOverride] (all parameters of a `Log` may be given by name)
        self,
        filter: ThreadFilter = ThreadFilter(),  # noqa: B008 (frozen)
        order: ThreadOrder = "-updated_at",
        page: str | None = None,
        limit: int = 100,
    ) -> ThreadPage:
        """Return a page of the threads that meet a filter; see `Log.threads`."""
        ...

    @overload
    async def open_calls(self, thread_id: str) -> tuple[Record, ...]: ...
    @overload
    async def open_calls(
        self, *, option: str, order: CallOrder = "recorded_at", page: str | None = None, limit: int = 100
    ) -> CallPage: ...
    async def open_calls(
        self,
        thread_id: str | None = None,
        *,
        option: str | None = None,
        order: CallOrder = "recorded_at",
        page: str | None = None,
        limit: int = 100,
    ) -> tuple[Record, ...] | CallPage:
        """Return the open calls of a thread; or, page by page, those of one option in all threads and lanes.

        Pages come from an index, so listing approvals or parked effects takes the same time however many threads there are.

        Raises:
            LedgerCorruptError: a stored call was altered.
        """
        ...

    async def beat(self, host: Host) -> datetime:
        """Register a host, or renew its lease; return when the lease ends, by the port's clock.

        A host that was suspended past its lease may beat again: it keeps the threads that nobody has claimed since. A new
        process with the name of a dead host is another host: it does not own the dead host's threads.

        Raises:
            HostError: another living process has that name.
            OtherRedactionError: the ledger was opened with other redaction rules than those of its hosts.
        """
        ...

    def renew(self, host: Host) -> bool:
        """Renew the lease of a host from another thread, while its event loop is blocked; return whether it was renewed.

        A lease that has ended, or a host that has left, is not renewed: only `beat` registers a host. The call waits for the
        store, and needs no event loop. A store that lives on the event loop itself returns False.
        """
        ...

    async def leave(self, host: Host) -> None:
        """Unregister a host: other hosts may take its threads at once. A later `beat` registers it again.

        The host must not start any work after the call. Leaving twice, or without a beat, is not an error.
        """
        ...

    async def hosts(self) -> tuple[HostStatus, ...]:
        """Return all hosts, sorted by name: those that are alive, and those that are dead and still own threads."""
        ...

    async def claim(self, thread_id: str, *, by: Host | None = None, kind: str | None = None) -> Epoch:
        """Become the owner of a thread, and return its new epoch, which every later append must pass.

        The epoch also says how many messages the thread had at the claim (`Epoch.seq`), and which other host owned it until
        then (`Epoch.taken_from`). A host that has left owns nothing.

        The epoch is new even if the host owns the thread already: appends under the old epoch are then fenced. `kind` is the
        kind of host that can run the thread: a kind of actor, or `run/<name>`. A claim removes the mark that the host's build
        is unfit for the thread. Without `by`, the claim takes the thread from its owner, and no host owns it.

        Raises:
            OwnedError: another living host owns it.
            HostError: the host has never beaten or has left, or its lease is over.
        """
        ...

    async def release(
        self,
        thread_id: str,
        *,
        epoch: int,
        seen: int | None = None,
        wake_at: datetime | None = None,
        unfit: str | None = None,
        reason: str | None = None,
    ) -> None:
        """Give up a thread: it has no owner then, and the next append needs a claim.

        `seen` is the place of the last message that the owner has handled; a message that was posted after it leaves the
        thread due. `wake_at` is when the thread is due again. `unfit` is a build that cannot continue the thread, and `reason`
        says why: the thread is due at once, but `take` never gives it to a host of that build.

        Raises:
            FencedError: `epoch` is not the owner's; nothing was changed.
            UnknownThreadError: there is no such thread.
            ValueError: only one of `unfit` and `reason` is given.
        """
        ...

    async def take(self, by: Host, *, kinds: Iterable[str | None] | None = None, limit: int = 10) -> tuple[TakenThread, ...]:
        """Claim threads that have work to do and no living owner, the longest due first. No two hosts get the same thread.

        A thread has work to do if it has a posted message that no owner has reported as seen, if the `wake_at` of its release
        has passed, or if its owner died and left open calls. `kinds` are the kinds that the host can run, by default
        `by.kinds`; None among them stands for threads without a kind. Threads that the host's build is unfit for are left
        out. A call that finds nothing writes nothing, so a host may repeat it every second.

        Raises:
            HostError: the host has never beaten or has left, or its lease is over.
        """
        ...

    async def woken(self, by: Host, *, seen: Mapping[str, int] = MappingProxyType({})) -> tuple[Woken, ...]:
        """Return the host's threads that have posted messages, each with the place of the last one.

        Every call returns a thread again until the host reports the message as seen: `seen` maps threads to the place of the
        last message that the host has durably handled. Threads in it that the host does not own are ignored. Without `seen`
        nothing is written, so a host may call this many times a second.
        """
        ...


# ---------------------------------------------------------------- everything


class Keys(Protocol):
    """The keys of encrypted threads."""

    async def status(self) -> EncryptionStatus | None:
        """Return how much of the ledger is encrypted; None if no thread was ever encrypted, and no master key is given."""
        ...

    async def of(self, thread_id: str) -> WrappedKey | None:
        """Return the key of an encrypted thread as it is stored; None for any other thread.

        A thread without messages is not encrypted, even if its first message will be.
        """
        ...

    async def forget(self, thread_id: str, *, with_branches: bool = False) -> tuple[str, ...]:
        """Delete the key of an encrypted thread, and return the ids of the threads that were forgotten.

        Its messages, media, open calls and snapshots can no longer be read, except in copies that include the key. Its chain
        stays, and `verify` checks it. Its owner is fenced, and no host takes it. Branches share its messages, so they are
        forgotten with it, or not at all. No master key is needed.

        Raises:
            UnknownThreadError: there is no such thread.
            ValueError: branches share its messages, and `with_branches` is False.
        """
        ...

    async def rotate(self, new: MasterKey) -> int:
        """Wrap the keys of all threads with another master key, and return how many. Messages are not rewritten.

        Processes that use the old master key get an `EncryptionError` from then on.

        Raises:
            NoMasterKeyError: the ledger was opened without its master key.
        """
        ...


class Ledger(Owners, Protocol):
    """Owners, and what people ask of a store: lists, searches, branches, copies, deletion, proof."""

    @property
    def keys(self) -> Keys:
        """The keys of encrypted threads."""
        ...

    @property
    def terms(self) -> Terms:
        """The indexes of terms and vectors, for retrieval."""
        ...

    # ------------------------------------------------------------ lists and searches

    async def count_threads(self, *, system: bool | None = None) -> tuple[ThreadCount, ...]:
        """Return how many threads there are of each status and pattern, sorted by both.

        `system` is that of a `ThreadFilter`: True counts only the threads of pattern `system`, False only the others.
        """
        ...

    async def search(self, text: str, *, thread_id: str | None = None, limit: int = 20) -> tuple[Hit, ...]:
        """Find messages that contain all the words, the best match first.

        "Words in quotes" must follow each other; `begin*` matches every word with that beginning. Encrypted threads are in
        no index, so a search of all threads does not find their messages; `keys.status` tells how many there are.

        Raises:
            NotSearchableError: `thread_id` is an encrypted thread.
        """
        ...

    # ------------------------------------------------------------ branches, copies, deletion

    async def fork(
        self, thread_id: str, *, at: int | None = None, at_step: int | None = None, into: str | None = None
    ) -> ThreadSummary:
        """Create a branch: a new thread that shares the messages up to and including `at` (or the last message of a step).

        Shared messages are not copied. Calls that are open at that place get a result of type `forked` in the branch, so that
        they do not run a second time. Without `at` and `at_step`, the branch starts at the end of the thread; without `into`,
        it gets a new id.

        Raises:
            UnknownThreadError: there is no such thread.
            ValueError: the place is not in the thread, or a thread called `into` exists.
        """
        ...

    async def restore(self, journals: Iterable[ThreadJournal], heads: Iterable[Head]) -> tuple[ThreadSummary, ...]:
        """Write rows that were read from a ledger, with their times and hashes, into threads that do not exist yet.

        Keep `heads` apart from the rows (see `heads_of`): the rows of a thread are accepted only if their chain ends exactly
        at its head. A branch needs its origin, in the ledger or among the journals. Either all threads are restored or
        none. A restored thread has no owner. A thread with open requests is due; its kind is the kind of the actor that the
        first request addresses. Status, pattern and snapshots are not in the rows, so they are not restored.

        Raises:
            RestoreRefusedError: a thread has no head, does not match it, or exists already; or its origin does not exist.
        """
        ...

    async def move(self, thread_id: str, *, to: str) -> ThreadStanding:
        """Mark a thread as moved to another ledger, whose URL is `to`; return its stored data other than its rows.

        From then on it cannot be claimed, taken, appended to or posted to here, and earlier owners are fenced: so no effect
        starts in both ledgers. It can still be read, forked and deleted. Repeating the call is harmless. This only marks the
        thread: `service.copy_threads` copies it.

        Raises:
            OwnedError: a living host owns it.
            ThreadMovedError: it was moved to another place before.
            UnknownThreadError: there is no such thread.
        """
        ...

    async def delete(self, thread_id: str, *, with_branches: bool = False) -> tuple[str, ...]:
        """Delete a thread for good, and return the ids of the deleted threads. Copies in backups stay.

        Raises:
            UnknownThreadError: there is no such thread.
            ValueError: branches share its messages, and `with_branches` is False.
        """
        ...

    async def expire(self, before: datetime) -> tuple[str, ...]:
        """Delete the threads whose last change is before a time, except those that a younger branch needs.

        In PostgreSQL, many threads are deleted in several transactions: if one fails, the threads of those before are gone.
        """
        ...

    # ------------------------------------------------------------ proof

    async def verify(
        self,
        thread_id: str | None = None,
        *,
        heads: Iterable[Head] = (),
        progress: Callable[[int, int], None] | None = None,
    ) -> Verification:
        """Check all threads, or one: every hash, every place, all derived data, the media, and the store itself.

        With earlier heads, also check that each thread still has the messages it had then. `progress` is called with the
        number of messages checked so far, and their total.

        Raises:
            UnknownThreadError: there is no such thread.
        """
        ...
