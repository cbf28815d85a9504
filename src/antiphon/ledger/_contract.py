"""Ledger: what every store of messages promises, in prose and as a protocol. `antiphon.testing.check_ledger` proves it.

**Durable.** When `append` returns, the messages are there for good: after a crash at any instruction, and, in a store on disk,
after a power cut. If it raises, or the process dies, they are there as a whole or not at all, and appending them again
gives exactly one copy: the same id with the same bytes is not written again, with others it is refused.

**In order.** The messages of a thread have `seq` 1, 2, 3, … without a gap. All readers see the same order, none sees a
message before the one that precedes it, and what was acknowledged before an append began stands before it.

**Together.** The messages of one append, its outbox entries, its snapshot and the thread's status are committed together.

**One owner.** `claim` gives an epoch. From then on, an append must bring the latest one; it is compared in the same
transaction, so a worker that has lost the thread cannot write, however late it notices. That holds for every append, also
for one that changes nothing, because it is empty or there already. All others use `post`.

**Without secrets.** What looks like a secret is taken out before anything is stored, unless the ledger was told otherwise, and
what was stored is what comes back. A thread goes on as it began, redacted or not. Names are refused and not rewritten.

**Unaltered.** What was stored comes back byte for byte, with a chain of hashes over it. What was altered in the store is
found when it is read, named, and never handed out.

Reading an unknown thread returns no messages. A ledger belongs to the event loop it was opened in.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterable
from datetime import datetime
from pathlib import Path
from typing import Protocol, TypeVar, overload

from antiphon.ledger._chain import Record
from antiphon.ledger._redaction import Redaction
from antiphon.ledger._values import (
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
    Undelivered,
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
        outbox: Iterable[Message] = (),
        snapshot: Snapshot | None = None,
        status: str | None = None,
        pattern: str | None = None,
        allow_foreign: bool = False,
        outside: bool = False,
    ) -> tuple[Record, ...]:
        """Write messages to the end of a thread, and return them as stored once that is durable.

        A message without a thread gets this one. `expected_version` is how many messages the caller believes are there.
        `outbox` are messages for elsewhere, kept until someone reports them as delivered. `allow_foreign` admits histories
        that do not keep the rules for calls, results and ids. Cancelling the caller does not withdraw it.

        `outside` says that the messages come from a file or from another program: they are stored as talk. Rows of the other
        lanes become foreign history, which nothing acts on, after the talk; calls that are still open get an error result.
        What is returned are then all records that this stores.

        Raises:
            AppendConflictError: the thread has another length than expected.
            AppendRefusedError: a message breaks a rule.
            FencedError: the thread is claimed, and `epoch` is not its owner's.
            LedgerUnavailableError: the store is locked, full or failing.
            SecretNameError: a name, a status or a pattern looks like a secret, and the thread is redacted.
            ValueError: a message is of another thread, or a name is none.
        """
        ...

    async def post(self, thread_id: str, message: Message, *, by: str | None = None) -> Record:
        """Append one addressed message, as anyone may, whether the thread is claimed or not.

        `by` is the name of an author outside: the message is stored under that name, as talk (see `append`).

        Raises:
            AppendRefusedError: it breaks a rule.
            LedgerUnavailableError: the store is locked, full or failing.
            SecretNameError: the name of the thread looks like a secret, and the thread is redacted.
            ValueError: it is addressed to nobody, of the journal, or of another thread; or `by` is a name of the machine.
        """
        ...

    async def claim(self, thread_id: str) -> int:
        """Become the owner of a thread: return a new epoch, which every append from now on must bring.

        Raises:
            LedgerUnavailableError: the store is locked, full or failing.
            SecretNameError: there is no such thread, and its name looks like a secret.
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
        or none. They have no owner; status, pattern, snapshots and the outbox are not in the rows, so they are not restored.

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

    # ------------------------------------------------------------ outbox

    async def undelivered(self, limit: int = 100) -> tuple[Undelivered, ...]:
        """Return the oldest outbox entries that were not reported as delivered, in the order of commits."""
        ...

    async def delivered(self, entries: Iterable[Undelivered]) -> None:
        """Report outbox entries as delivered; they are not kept any longer."""
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
