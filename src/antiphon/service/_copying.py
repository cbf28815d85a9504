"""Copy threads from one ledger to another, with their times, hashes, forks and media. The source keeps its rows, fenced.

**Order.** The source marks a thread as moved; then the target stores it, in one transaction. So both ledgers can never start
an effect of the same thread. If the process dies in between, the thread continues in neither; the same command completes the
copy. If the target already has the thread, with the same rows, the thread is only marked.

**Proof.** A hash chain has no key, so anyone could have written its rows. Journal rows decide which effects run again, so they
are copied only if a head that was stored elsewhere proves them, or if the caller trusts the source.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from antiphon._listeners import listener
from antiphon.errors import LedgerCorruptError, OwnedError, RestoreRefusedError, SetupError, ThreadMovedError
from antiphon.ledger import Head, Ledger, ThreadFilter, ThreadSummary, journal_of
from antiphon.ledger._listing import SYSTEM_PATTERN
from antiphon.service._threads import all_threads, find_thread, is_forgotten


@dataclass(frozen=True, slots=True)
class CopiedThread:
    """A thread that is in the target now."""

    thread_id: str
    messages: int
    was_there: bool
    """Whether the target had it already."""


@dataclass(frozen=True, slots=True)
class CopyPlan:
    """The threads to copy, origins before their branches, and which of them the target has."""

    threads: tuple[ThreadSummary, ...]
    present: frozenset[str]


async def copy_threads(
    source: Ledger,
    target: Ledger,
    names: Sequence[str] = (),
    *,
    heads: Iterable[Head] = (),
    trust_source: bool = False,
    progress: Callable[[int, int], None] | None = None,
) -> tuple[CopiedThread, ...]:
    """Copy threads, and mark them as moved in the source; without names, all threads except system and forgotten ones.

    `heads` prove the rows of the journal (see `antiphon verify --save-heads`); with `trust_source` they need no proof. Both
    sides are verified. Repeating the call is harmless. `progress` is called with the numbers of copied and of chosen threads.

    Raises:
        LedgerCorruptError: a thread of the source was altered, or the target does not have what was written.
        OwnedError: a living host owns a thread.
        EncryptionError: a thread is encrypted, and the target was opened without its master key; repeat the copy with it.
        RestoreRefusedError: a thread cannot be copied, or was changed during the copy: repeat it, with new heads.
        ThreadMovedError: a thread was moved to another ledger before.
        UnknownThreadError: the source has no such thread.
    """
    progress = listener(progress)
    proofs = {head.thread_id: head for head in heads}
    plan = await plan_copy(source, target, names, heads=proofs.values(), trust_source=trust_source)
    copied: list[CopiedThread] = []
    for summary in plan.threads:
        name = summary.thread_id
        standing = await source.move(name, to=place_of_ledger(target))
        head = await source.head(name)
        if name not in plan.present:
            journal = replace(await journal_of(source, name), standing=standing)
            await target.restore([journal], [proofs.get(name, head)])
        await _check_whole(target, name, head)
        copied.append(CopiedThread(name, head.seq, name in plan.present))
        if progress is not None:
            progress(len(copied), len(plan.threads))
    return tuple(copied)


async def plan_copy(
    source: Ledger,
    target: Ledger,
    names: Sequence[str] = (),
    *,
    heads: Iterable[Head] = (),
    trust_source: bool = False,
    to: str | None = None,
) -> CopyPlan:
    """Check that threads can be copied, and return what is to do. Nothing is changed. For the errors, see `copy_threads`.

    `to` is the URL of the target, if `target` only stands for a ledger that does not exist yet.
    """
    to = to or place_of_ledger(target)
    if place_of_ledger(source) == to:
        raise SetupError(f"both ledgers are {to}; name another one to copy to")
    proofs = {head.thread_id: head for head in heads}
    summaries = await _chosen(source, names)
    forgotten = {thread.thread_id for thread in summaries if await is_forgotten(source, thread.thread_id)}
    if names and forgotten:
        raise RestoreRefusedError("its key was forgotten, so there is nothing left to copy; leave it out", min(forgotten))
    summaries = [thread for thread in summaries if thread.thread_id not in forgotten]
    to_copy = {thread.thread_id for thread in summaries}
    living = {host.host.name: host for host in await source.hosts() if host.is_alive}
    ours, theirs = await source.keys.status(), await target.keys.status()
    has_other_key = ours is not None and theirs is not None and ours.master != theirs.master
    present: set[str] = set()
    for summary in summaries:
        name = summary.thread_id
        if summary.owner in living:
            advice = "stop it there, or wait, then copy it"
            raise OwnedError(name, summary.owner or "", living[summary.owner or ""].until, advice)
        if summary.moved_to not in (None, to):
            raise ThreadMovedError(name, summary.moved_to)
        origin = summary.forked_from
        if origin is not None and origin not in to_copy and await target.thread(origin) is None:
            raise RestoreRefusedError(f"it is a branch of {origin!r}; copy that too, or first", name)
        if await _is_there(source, target, name):
            present.add(name)
        elif not trust_source:
            await _check_proven(source, name, proofs)
        if name not in present and has_other_key and await source.keys.of(name) is not None:
            raise RestoreRefusedError("it is encrypted, and the target has another master key; rotate one of them first", name)
        await _check_whole(source, name, proofs.get(name))
    return CopyPlan(tuple(summaries), frozenset(present))


def place_of_ledger(ledger: Ledger) -> str:
    """Return the URL of a ledger, by which a moved thread names it; a ledger in memory has none."""
    return getattr(ledger, "url", None) or "memory:"


async def _chosen(source: Ledger, names: Sequence[str]) -> list[ThreadSummary]:
    """Return the threads to copy, origins before their branches."""
    if names:
        summaries = [await find_thread(source, name) for name in dict.fromkeys(names)]
    else:
        listed = all_threads(source, ThreadFilter(system=False), "created_at")
        # By name too: a source may give `system/tokens` another pattern, and so hand out tokens of the target.
        summaries = [thread async for thread in listed if not thread.thread_id.startswith(f"{SYSTEM_PATTERN}/")]
    return _origins_first({thread.thread_id: thread for thread in summaries})


def _origins_first(by_id: Mapping[str, ThreadSummary]) -> list[ThreadSummary]:
    order: dict[str, ThreadSummary] = {}
    for first in by_id:
        name, line = first, dict[str, None]()
        while name in by_id and name not in order and name not in line:
            line[name] = None
            name = by_id[name].forked_from or ""
        order |= {thread_id: by_id[thread_id] for thread_id in reversed(line)}
    return list(order.values())


async def _is_there(source: Ledger, target: Ledger, name: str) -> bool:
    """Whether the target has the thread, with all rows of the source and perhaps later ones."""
    ours, theirs = await source.head(name), await target.head(name)
    if await target.thread(name) is None:
        return False
    if theirs.seq >= ours.seq:
        rows = [record.hash async for record in target.read(name, after=ours.seq - 1, before=ours.seq + 1)]
        if rows == [ours.hash] or (ours.seq == 0 and theirs.seq == 0):
            return True
    raise RestoreRefusedError("the target has another thread of this name; delete it there, or choose other threads", name)


async def _check_proven(source: Ledger, name: str, proofs: Mapping[str, Head]) -> None:
    """Refuse rows of the journal that no head proves."""
    if name in proofs:
        if proofs[name] != await source.head(name):
            raise RestoreRefusedError("its head is not the one that was kept; take the heads again", name)
        return
    async for record in source.read(name):
        if record.message.lane != "talk":
            advice = "give signed heads (--heads), or trust the source (--trust-source)"
            reason = f"row {record.seq} is of the journal, and no head proves it; {advice}"
            raise RestoreRefusedError(reason, name)


async def _check_whole(ledger: Ledger, name: str, head: Head | None) -> None:
    verification = await ledger.verify(name, heads=[] if head is None else [head])
    for damage in verification.damages:
        raise LedgerCorruptError(f"in {place_of_ledger(ledger)}: {damage.what}", name, damage.seq)
