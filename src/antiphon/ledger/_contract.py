"""Ledger: what every store of messages promises, in prose and as a protocol. `antiphon.testing.check_ledger` proves it.

**Durable.** When `append` returns, the messages are there for good: after a crash at any instruction, and, in a store on disk,
after a power cut. If it raises, or the process dies, they are there as a whole or not at all, and appending them again
gives exactly one copy: the same id with the same bytes is not written again, with others it is refused.

**In order.** The messages of a thread have `seq` 1, 2, 3, … without a gap. All readers see the same order, none sees a
message before the one that precedes it, and what was acknowledged before an append began stands before it.

**Together.** The messages of one append, its snapshot and the thread's status are committed together; so are a posted message
and the mark that its thread is due.

**One owner.** `claim` gives an epoch. From then on, an append must bring the latest one; it is compared in the same
transaction, so a host that has lost the thread cannot write, however late it notices. That holds for every append, also
for one that changes nothing, because it is empty or there already. All others use `post`.

**Hosts.** A process that runs threads is a host, and lives while it beats within its lease. A thread of a host that lives is
given to nobody else. A lease says who may claim a thread, never who may append: only the epoch does. So a host that slept past
its lease goes on with the threads that nobody has claimed since, and is fenced in all others. Clocks that jump end no lease.

**Due.** `post` marks its thread as due in its own transaction, and the mark stays until an owner reports that it has seen the
message. So a message that was posted and not taken up is found by `take` after any crash. `ledger/_ownership.py` has the
exact rules.

**Without secrets.** What looks like a secret is taken out before anything is stored, unless the ledger was told otherwise, and
what was stored is what comes back. A thread goes on as it began, redacted or not. Names are refused and not rewritten.

**Unaltered.** What was stored comes back byte for byte, with a chain of hashes over it. What was altered in the store is
found when it is read, named, and never handed out.

Reading an unknown thread returns no messages. A ledger belongs to the event loop it was opened in.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterable, Mapping
from datetime import datetime
from pathlib import Path
from types import MappingProxyType
from typing import Protocol, TypeVar, overload

from antiphon.ledger._chain import Record
from antiphon.ledger._hosts import Host, HostStatus, TakenThread, Woken
from antiphon.ledger._redaction import Redaction
from antiphon.ledger._values import (
    CallOrder,
    CallPage,
    Diff,
    Fold,
    Head,
    Hit,
    Snapshot,
    Tailed,
    ThreadFilter,
    ThreadJournal,
    ThreadOrder,
    ThreadPage,
    ThreadSummary,
    Verification,
)
from antiphon.messages import Conversation, Message, RewardFunction, Transition

StateT = TypeVar("StateT")


class Ledger(Protocol):
    """What was said, in threads, for good."""

    # ------------------------------------------------------------ writing

    async def redaction_of(self, thread_id: str) -> Redaction | None:
        """Return what is taken out of messages before they are stored in a thread; None if nothing is.

        It stays the same as long as the thread is there and the ledger is open. So a caller that cannot wait for an append
        knows what will be stored: `redaction.message(message)`.
        """
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
        """Write messages to the end of a thread, and return them as stored once that is durable.

        A message without a thread gets this one. `expected_version` is how many messages the caller believes are there.
        `allow_foreign` admits histories that do not keep the rules for calls, results and ids. Cancelling the caller does
        not withdraw it.

        `outside` says that the messages come from a file or from another program: they are stored as talk. Rows of the other
        lanes become foreign history, which nothing acts on, after the talk; calls that are still open get an error result.
        What is returned are then all records that this stores.

        Raises:
            AppendConflictError: the thread has another length than expected.
            AppendRefusedError: a message breaks a rule.
            FencedError: the thread was claimed, and `epoch` is not its owner's; or its owner has released it.
            LedgerUnavailableError: the store is locked, full or failing.
            SecretNameError: a name, a status or a pattern looks like a secret, and the thread is redacted.
            ValueError: a message is of another thread, or a name is none.
        """
        ...

    async def post(self, thread_id: str, message: Message, *, by: str | None = None) -> Record:
        """Append one addressed message, as anyone may, whether the thread is claimed or not, and mark the thread as due.

        A thread without a kind gets that of the first receiver's address.

        `by` is the name of an author outside: the message is stored under that name, as talk (see `append`).

        Raises:
            AppendRefusedError: it breaks a rule.
            LedgerUnavailableError: the store is locked, full or failing.
            SecretNameError: the name of the thread looks like a secret, and the thread is redacted.
            ValueError: it is addressed to nobody, of the journal, or of another thread; or `by` is a name of the machine.
        """
        ...

    # ------------------------------------------------------------ hosts and owners

    async def beat(self, host: Host) -> datetime:
        """Register a host, or renew its lease; return when the lease ends, by the port's clock.

        A host that slept past its lease may beat again: it keeps the threads that nobody has claimed since. A process that
        has the name of a host that does not live is another host: it does not get its threads.

        Raises:
            HostNameTakenError: another process of that name lives.
            LedgerUnavailableError: the store is locked, full or failing.
            SecretNameError: a name in it looks like a secret.
        """
        ...

    async def leave(self, host: Host) -> None:
        """End a host: its threads are free at once. It must not start anything afterwards; a later `beat` begins anew.

        To leave twice, or without a beat, is no error.

        Raises:
            LedgerUnavailableError: the store is locked, full or failing.
        """
        ...

    async def hosts(self) -> tuple[HostStatus, ...]:
        """Return all hosts by name: those that live, and those that do not and still own threads."""
        ...

    async def claim(self, thread_id: str, *, by: Host | None = None, kind: str | None = None) -> int:
        """Become the owner of a thread: return a new epoch, which every append from now on must bring.

        The epoch is always a new one, also for a host that owns the thread already: what it had begun under the old one is
        fenced. `kind` says what kind of host can run the thread: a kind of actor, or `run/<name>`. A host that claims a
        thread takes back that its build is unfit for it. Without `by`, the thread is taken from its owner, and has no host.

        Raises:
            OwnedError: another host that lives has it.
            UnknownHostError: the host has never beaten, or has left.
            HostExpiredError: its lease is over.
            LedgerUnavailableError: the store is locked, full or failing.
            SecretNameError: the kind looks like a secret, or there is no such thread and its name does.
            ValueError: a name is none.
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
        """Give a thread up: nobody owns it, and the next append needs a claim.

        `seen` is the place of the last message that the owner has taken up; a message that was posted after it leaves the
        thread due. `wake_at` is when the thread is due again. `unfit` is a build that cannot continue the thread, and `reason`
        says why: the thread is due at once, but `take` never gives it to a host of that build.

        Raises:
            FencedError: `epoch` is not that of the owner; nothing was changed.
            LedgerUnavailableError: the store is locked, full or failing.
            SecretNameError: the build looks like a secret.
            UnknownThreadError: there is no such thread.
            ValueError: `unfit` and `reason` are not given together, or the build is no name.
        """
        ...

    async def take(self, by: Host, *, kinds: Iterable[str | None] | None = None, limit: int = 10) -> tuple[TakenThread, ...]:
        """Claim threads that have something to do and no living owner, the longest due first; never two hosts the same.

        A thread has something to do if it was posted to and no owner has reported that as seen, if the `wake_at` of its
        release has come, or if its owner died and left open calls. `kinds` are those that the host can run, by default
        `by.kinds`; None among them is for threads without a kind. Threads that the host's build is unfit for are left out.
        A call that finds nothing writes nothing, so it may be repeated every second.

        Raises:
            UnknownHostError: the host has never beaten, or has left.
            HostExpiredError: its lease is over.
            LedgerUnavailableError: the store is locked, full or failing.
            ValueError: the limit is negative.
        """
        ...

    async def woken(self, by: Host, *, seen: Mapping[str, int] = MappingProxyType({})) -> tuple[Woken, ...]:
        """Return the host's threads that were posted to, each with the place of the last posted message.

        A thread is named again with every call until the host reports that it has taken up the message: `seen` maps threads
        to the place of the last message that was taken up, durably. Threads in it that the host does not own are ignored.
        Without `seen` nothing is written, so it may be called many times a second.

        Raises:
            LedgerUnavailableError: the store is locked, full or failing.
        """
        ...

    async def fork(
        self, thread_id: str, *, at: int | None = None, at_step: int | None = None, into: str | None = None
    ) -> ThreadSummary:
        """Begin a branch: a thread of its own that shares the messages up to and including `at` (or the last of a step).

        What is shared is not copied. Calls that are open there get a result of type `forked` in the branch, so that
        they are not run a second time. Without `at` and `at_step` it branches off at the end; without `into` it gets a new id.

        Raises:
            SecretNameError: `into` looks like a secret.
            UnknownThreadError: there is no such thread.
            ValueError: the place is not in the thread, or there is a thread called `into`.
        """
        ...

    async def restore(self, journals: Iterable[ThreadJournal], heads: Iterable[Head]) -> tuple[ThreadSummary, ...]:
        """Write rows that were read from a ledger back, with their times and hashes, into threads that do not exist.

        `heads` come from elsewhere than the rows (see `heads`): rows are taken only if their chain ends exactly at the head
        of their thread. A branch needs its origin, in the ledger or earlier among the journals. All threads are restored,
        or none. They have no owner. One with open requests is due, of the kind of the actor that the first was for. Status,
        pattern and snapshots are not in the rows, so they are not restored.

        Raises:
            RestoreRefusedError: a thread has no head, does not match it, or is there already; or its origin is not.
            LedgerUnavailableError: the store is locked, full or failing.
            ValueError: a thread's id is none.
        """
        ...

    async def delete(self, thread_id: str, *, with_branches: bool = False) -> tuple[str, ...]:
        """Remove a thread for good, and return the names of what was removed. Copies in backups stay.

        Raises:
            UnknownThreadError: there is no such thread.
            ValueError: branches share its messages, and they are not to be removed too.
        """
        ...

    async def expire(self, before: datetime) -> tuple[str, ...]:
        """Remove the threads that nothing was said in since a time; those that a younger branch needs stay."""
        ...

    # ------------------------------------------------------------ reading

    def read(self, thread_id: str, after: int = 0, before: int | None = None, reverse: bool = False) -> AsyncIterator[Record]:
        """Read a thread from `after` to `before`, neither included; `reverse` begins at the end.

        Raises:
            LedgerCorruptError: a message is not as it was written; those before it were given out.
            UnknownThreadError: it was deleted while it was read, and what is left cannot be given out.
        """
        ...

    async def head(self, thread_id: str) -> Head:
        """Return where a thread ends; `seq` is 0 for an empty thread."""
        ...

    async def heads(self) -> tuple[Head, ...]:
        """Return where every thread ends, to be kept somewhere else and given to `verify` later."""
        ...

    async def thread(self, thread_id: str) -> ThreadSummary | None:
        """Return what a thread amounts to; None if there is no such thread."""
        ...

    async def threads(
        self,
        filter: ThreadFilter = ThreadFilter(),  # noqa: B008 (frozen)
        order: ThreadOrder = "-updated_at",
        page: str | None = None,
        limit: int = 100,
    ) -> ThreadPage:
        """Return threads, newest first unless told otherwise; `page` is where another page said the next one begins."""
        ...

    def tail(self, after: str | None = None, *, thread_id: str | None = None) -> AsyncIterator[Tailed]:
        """Follow all threads, or one, in the order of commits: first what is there, then what comes, until you stop.

        Each record comes with a cursor. Going on from the last cursor, nothing is missed and nothing comes twice. Without
        one it begins at the beginning; `horizon()` is the cursor of the present.
        """
        ...

    async def horizon(self) -> str:
        """Return the cursor after which `tail` has only what is still to come."""
        ...

    async def by_invocation(self, invocation_id: str, *, thread_id: str | None = None) -> tuple[Record, ...]:
        """Return the calls and results of an invocation, of all threads or one, in the order of commits."""
        ...

    async def by_correlation(self, correlation_id: str, *, thread_id: str | None = None) -> tuple[Record, ...]:
        """Return the messages of an exchange, of all threads or one, in the order of commits."""
        ...

    async def open_calls(self, thread_id: str) -> tuple[Record, ...]:
        """Return the calls of all lanes that have no result yet, without reading the whole thread."""
        ...

    async def open_calls_of(
        self, option_name: str, *, order: CallOrder = "recorded_at", page: str | None = None, limit: int = 100
    ) -> CallPage:
        """Return the calls of one option without a result, of all threads and lanes, oldest first unless told otherwise.

        No other thread is read: to list approvals or parked effects takes the same time however many threads there are.

        Raises:
            LedgerCorruptError: a call is not as it was written.
            ValueError: the order, the page or the limit is none.
        """
        ...

    async def search(self, text: str, *, thread_id: str | None = None, limit: int = 20) -> tuple[Hit, ...]:
        """Find messages that have all the words, the best first.

        "Words in quotes" must follow each other; `begin*` is any word that begins so.
        """
        ...

    # ------------------------------------------------------------ replay

    @overload
    async def replay(self, thread_id: str, *, upto: int | None = None) -> Conversation: ...
    @overload
    async def replay(self, thread_id: str, fold: Fold[StateT], *, upto: int | None = None) -> StateT: ...
    async def replay(
        self, thread_id: str, fold: Fold[StateT] | None = None, *, upto: int | None = None
    ) -> Conversation | StateT:
        """Return the thread as a conversation, or what a fold makes of it, from its latest snapshot if there is one."""
        ...

    async def transitions(self, thread_id: str, *, reward: RewardFunction | None = None) -> tuple[Transition, ...]:
        """Return the thread collapsed into decisions: the observation, the actions chosen, their results.

        Each has the reward that was recorded for it (see `record_reward`), or the one that `reward` says, which is given
        the transition with the recorded one.
        """
        ...

    async def diff(self, left: str, right: str) -> Diff:
        """Compare two threads: how much is the same at the beginning, and what each goes on with."""
        ...

    # ------------------------------------------------------------ care

    async def verify(
        self,
        thread_id: str | None = None,
        *,
        heads: Iterable[Head] = (),
        progress: Callable[[int, int], None] | None = None,
    ) -> Verification:
        """Check all threads, or one: every hash, every place, everything that was derived from messages, media, and the store.

        With heads from before, also that each thread still has what it had then. `progress` is told how many messages have
        been looked at, and of how many.

        Raises:
            UnknownThreadError: there is no such thread.
        """
        ...

    async def backup(self, path: str | Path) -> None:
        """Write a copy that is consistent to a new file while the ledger goes on.

        Raises:
            FileExistsError: there is a file already.
            ValueError: the ledger has no file to copy.
        """
        ...
