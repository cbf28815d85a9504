"""Threads: find, list, search, rate and delete them, and write them and their records as JSON."""

from __future__ import annotations

import base64
import hashlib
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Sequence
from contextlib import aclosing
from dataclasses import dataclass
from datetime import timedelta
from typing import Final, cast

from antiphon.errors import EncryptionError, ForgottenError, PlaceError, ServiceError, UnknownThreadError
from antiphon.ledger import (
    Hit,
    HostStatus,
    Ledger,
    Log,
    Record,
    RedactionRules,
    ThreadFilter,
    ThreadOrder,
    ThreadSummary,
    record_reward,
    replay,
)
from antiphon.ledger._open import command_line
from antiphon.ledger._values import Diagnosis, Maintained
from antiphon.messages import Conversation, Message, OptionCallPayload, TextPart, current_port

RUN_KIND: Final = "run/"
"""How the kinds of threads begin that are runs of programs."""
CHAIN_KIND: Final = "thread"
"""The kind of threads that go through six phases."""
LAST: Final = "last"
"""Stands for the most recent thread, wherever a person names one."""
_WITHOUT_QUESTIONS: Final = frozenset({"knowledge", "system"})
"""Patterns of threads in which nobody asks anything."""
_AT_THE_START: Final = 30
"""Messages among which the question of a thread is looked for."""
_CLIENT: Final = "client"
"""The kind of actor that asks for a person or a program."""
_QUESTION_FIELDS: Final = ("initial_input", "input", "task", "request", "question")
"""How the first requests of the patterns call what was asked."""
_SHORTEST: Final = 4
"""Characters that the beginning of an id has at least: a shorter text is rather a new name than an abbreviation."""
_SHOWN: Final = 5
"""Threads that an error names."""


async def find_thread(ledger: Log, thread_id: str) -> ThreadSummary:
    """Return the summary of a thread."""
    summary = await ledger.thread(thread_id)
    if summary is None:
        raise UnknownThreadError("there is no such thread", thread_id)
    return summary


async def resolve_thread(ledger: Ledger, reference: str) -> str:
    """Return the id of the thread that a person means: by its id, by a unique beginning of it, or by `last`.

    `last` is the thread with the most recent message. A text that fits no thread is returned as it is.

    Raises:
        UnknownThreadError: several threads begin so; the error names them.
    """
    if await ledger.thread(reference) is not None:
        return reference
    if reference == LAST:
        async for thread in list_threads(ledger):
            if thread.pattern not in _WITHOUT_QUESTIONS:
                return thread.thread_id
        return reference
    if len(reference) < _SHORTEST:
        return reference
    matches = [
        thread.thread_id async for thread in list_threads(ledger, with_system=True) if thread.thread_id.startswith(reference)
    ]
    if len(matches) > 1:
        rest = f" and {len(matches) - _SHOWN} more" if len(matches) > _SHOWN else ""
        reason = f"{len(matches)} threads begin with {reference!r}: {', '.join(matches[:_SHOWN])}{rest}; type more of the id"
        raise UnknownThreadError(reason, reference)
    return matches[0] if matches else reference


def new_thread_id() -> str:
    """Return the id of a new thread, short enough for a line of a list."""
    digest = hashlib.blake2b(current_port().new_id().encode(), digest_size=10).digest()
    return f"t-{base64.b32encode(digest).decode().lower()}"


async def check_new(ledger: Ledger, name: str) -> None:
    """Refuse a name for a new thread that another thread has."""
    if await ledger.thread(name) is not None:
        raise PlaceError(f"there is a thread called {name!r}; choose another name, or ask in that one with --thread", name)


async def question_of(ledger: Log, thread_id: str, *, messages: int = _AT_THE_START) -> str | None:
    """Return the first question or task of a thread; without one, the first text. None if there is none.

    Of an encrypted thread that cannot be read, it says so. `messages` is how many messages the thread has, if that is known:
    a short thread is then read at once.
    """
    try:
        return await _question_in(ledger, thread_id, min(messages, _AT_THE_START))
    except ForgottenError:
        return "(forgotten)"
    except EncryptionError:
        return "(encrypted)"


async def _question_in(ledger: Log, thread_id: str, messages: int) -> str | None:
    first: str | None = None
    # An iterator in the contract, a generator in fact: it is left at the question, so it is closed here.
    stream = cast("AsyncGenerator[Record, None]", ledger.read(thread_id, before=messages + 1))
    async with aclosing(stream) as records:
        async for record in records:
            if asked := _asked(record.message):
                return asked
            first = first or _text_of(record.message)
    return first


async def latest_question_of(ledger: Log, thread_id: str) -> str | None:
    """Return the last question or task that was given to a thread; None if it was given none."""
    question = None
    async for record in ledger.read(thread_id):
        message = record.message
        if message.lane == "control" and message.policy.partition("/")[0] == _CLIENT:
            question = _asked(message) or question
    return question


def _asked(message: Message) -> str | None:
    """Return the question that a message asks of agents, if it does."""
    if message.lane == "talk" and message.policy == "user":
        return _text_of(message)
    if message.lane == "control" and isinstance(message.payload, OptionCallPayload):
        values = (message.payload.arguments.get(name) for name in _QUESTION_FIELDS)
        return next((value for value in values if isinstance(value, str) and value), None)
    return None


def _text_of(message: Message) -> str | None:
    parts = message.parts if message.lane == "talk" else ()
    return " ".join(part.text for part in parts if isinstance(part, TextPart)) or None


async def list_threads(
    ledger: Ledger, *, with_system: bool = False, status: str | None = None, order: ThreadOrder = "-updated_at"
) -> AsyncIterator[ThreadSummary]:
    """Yield all threads, page by page. `with_system` includes the threads in which actors record their failures."""
    async for thread in all_threads(ledger, ThreadFilter(status=status, system=None if with_system else False), order):
        yield thread


def is_of_runs(thread: ThreadSummary) -> bool:
    """Whether a thread has the runs of a program."""
    return (thread.kind or "").startswith(RUN_KIND)


def is_document(thread: ThreadSummary) -> bool:
    """Whether a thread has the passages of one document, which agents search."""
    return thread.pattern == "knowledge" and "/" in thread.thread_id


async def all_threads(ledger: Ledger, query: ThreadFilter, order: ThreadOrder) -> AsyncIterator[ThreadSummary]:
    """Yield all threads of a filter, page by page."""
    page = await ledger.threads(query, order)
    while True:
        for thread in page.threads:
            yield thread
        if page.next is None:
            return
        page = await ledger.threads(query, order, page.next)


async def read_thread(ledger: Log, thread_id: str) -> Conversation:
    """Return the messages of a thread."""
    await find_thread(ledger, thread_id)
    return await replay(ledger, thread_id)


@dataclass(frozen=True, slots=True)
class RecordWindow:
    """A window of the records of a thread."""

    records: tuple[Record, ...]
    next: int | None
    """Give it as `after`, or in reverse as `before`, to continue; None at the end."""


async def read_window(
    ledger: Log, thread_id: str, after: int = 0, before: int | None = None, *, reverse: bool = False, limit: int = 100
) -> RecordWindow:
    """Return at most `limit` records between two places, neither included; `reverse` begins at the end."""
    await find_thread(ledger, thread_id)
    if not reverse and (before is None or before > after + limit + 1):
        before_here: int | None = after + limit + 1  # a store reads ahead, and nobody wants what is behind the window
    else:
        before_here = before
    records: list[Record] = []
    # An iterator in the contract, a generator in fact: it is left early, so it is closed here.
    async with aclosing(cast("AsyncGenerator[Record, None]", ledger.read(thread_id, after, before_here, reverse))) as stream:
        async for record in stream:
            records.append(record)
            if len(records) == limit:
                break
    last = records[-1].seq if len(records) == limit else None
    head = (await ledger.head(thread_id)).seq if last is not None else 0
    is_more = last is not None and (last > after + 1 if reverse else last + 1 < (head + 1 if before is None else before))
    return RecordWindow(tuple(records), last if is_more else None)


async def search_threads(ledger: Ledger, text: str, *, thread_id: str | None = None, limit: int = 20) -> tuple[Hit, ...]:
    """Find messages that contain all the words, in all threads or in one."""
    if thread_id is not None:
        await find_thread(ledger, thread_id)
    return await ledger.search(text, thread_id=thread_id, limit=limit)


async def rate_message(
    ledger: Log, thread_id: str, message_id: str, value: float, *, by: str, note: str | None = None
) -> None:
    """Record how good a message was, for training data. The last rating of a message counts.

    Raises:
        PlaceError: the thread has no such message, or the value is no finite number.
    """
    await find_thread(ledger, thread_id)
    try:
        await record_reward(ledger, thread_id, message_id, value, by=by, note=note)
    except ValueError as exc:
        raise PlaceError(str(exc), thread_id) from exc


# ---------------------------------------------------------------- deleting


async def with_branches(ledger: Ledger, thread_ids: Sequence[str]) -> tuple[ThreadSummary, ...]:
    """Return threads with all their branches, and the branches of those; each thread stands before its branches."""
    threads: dict[str, ThreadSummary] = {}
    waiting = [await find_thread(ledger, thread_id) for thread_id in thread_ids]
    while waiting:
        thread = waiting.pop()
        if thread.thread_id not in threads:
            threads[thread.thread_id] = thread
            waiting += [
                branch async for branch in all_threads(ledger, ThreadFilter(forked_from=thread.thread_id), "-updated_at")
            ]
    return tuple(threads.values())


async def delete_threads(ledger: Ledger, thread_ids: Sequence[str]) -> AsyncIterator[str]:
    """Delete threads permanently, and yield the id of each that is gone.

    A thread is deleted after its branches, so give them in the opposite order of `with_branches`. A branch that was made
    since then stops it: its messages are shared, and nobody has agreed to delete them.
    """
    async for thread_id in _one_by_one(ledger.delete, thread_ids):
        yield thread_id


async def forget_threads(ledger: Ledger, thread_ids: Sequence[str]) -> AsyncIterator[str]:
    """Throw away the keys of encrypted threads, and yield the id of each whose messages cannot be read any more.

    A thread is forgotten after its branches, so give them in the opposite order of `with_branches`.

    Raises:
        ForgottenError: the key of a thread was thrown away before.
        EncryptionError: a thread is not encrypted.
        ServiceError: a thread has a branch that is not forgotten.
    """
    async for thread_id in _one_by_one(ledger.keys.forget, thread_ids):
        yield thread_id


async def _one_by_one(change: Callable[[str], Awaitable[object]], thread_ids: Sequence[str]) -> AsyncIterator[str]:
    """Change threads, branches first, and yield the id of each that is done."""
    for thread_id in thread_ids:
        try:
            await change(thread_id)
        except ValueError as exc:
            raise ServiceError(f"{thread_id}: it got a new branch meanwhile; list the branches again", thread_id) from exc
        yield thread_id


async def forgettable(ledger: Ledger, thread_ids: Sequence[str]) -> tuple[ThreadSummary, ...]:
    """Return threads, and those of their branches that were not forgotten before, as `with_branches` does."""
    threads = await with_branches(ledger, thread_ids)
    for thread_id in thread_ids:
        if await ledger.keys.of(thread_id) is None:
            raise EncryptionError("it is not encrypted, so there is no key to forget; delete it instead", thread_id)
    return tuple(
        [thread for thread in threads if thread.thread_id in thread_ids or not await is_forgotten(ledger, thread.thread_id)]
    )


async def is_forgotten(ledger: Ledger, thread_id: str) -> bool:
    """Whether the key of a thread was thrown away."""
    key = await ledger.keys.of(thread_id)
    return key is not None and key.wrapped is None


async def unsearched_threads(ledger: Ledger) -> int:
    """Return how many threads a search of all threads leaves out, because they are encrypted."""
    status = await ledger.keys.status()
    return 0 if status is None else status.threads


def moved_reason(moved_to: str | None) -> str | None:
    """Return where a thread was moved to; None if it was not."""
    return None if moved_to is None else f"it was moved to {moved_to}, and continues there"


def hostless_reason(thread: ThreadSummary, hosts: Sequence[HostStatus], ledger: Ledger | None = None) -> str | None:
    """Return why what is open in a thread waits for a host, and what to do; None if nothing does, or a living host has it.

    `hosts` are those of the ledger. The commands name `ledger`, if it is given. A run of a program has its own reason.
    """
    kind = thread.kind
    if not thread.open_calls or kind is None or kind.startswith(RUN_KIND) or thread.moved_to is not None:
        return None
    if thread.status == "terminated":  # no host continues it
        return None
    living = [status.host for status in hosts if status.is_alive]
    if any(host.name == thread.owner or kind in host.kinds for host in living):
        return None
    if thread.status in ("paused", "stopped"):  # a host that takes it does not continue it
        return f"it is {thread.status}; continue it with `{command_line(ledger, 'resume', thread.thread_id)}`"
    start = command_line(ledger, "host", options="" if kind == CHAIN_KIND else "--team FILE")
    return (
        f"no living host has the kind {kind!r}; continue it with `{command_line(ledger, 'resume', thread.thread_id)}`, "
        f"or start a host that has it: `{start}`"
    )


def thread_of(record: Record) -> str:
    """Return the thread that a record was appended to. For a record that a branch shares, that is the origin."""
    return record.message.thread_id or ""


# ---------------------------------------------------------------- the condition of a ledger

_WAITING_LONG: Final = 60.0
"""Seconds that a thread may be due before someone should look why no host takes it."""


async def diagnose(ledger: Ledger) -> tuple[Diagnosis, ...]:
    """Examine a ledger: its store, its redaction, and threads that are due and that nobody takes. Nothing is written."""
    diagnoses = list(await ledger.diagnose()) if isinstance(ledger, Maintained) else []
    is_redacting = await ledger.redaction.of(new_thread_id()) is not None
    advice = "open it without redaction=off, or unset ANTIPHON_REDACTION: secrets in messages are stored as they are"
    diagnoses.append(Diagnosis("redaction", "on" if is_redacting else "off", None if is_redacting else advice))
    diagnoses.append(_rules_diagnosis(await ledger.redaction.rules()))
    status = await ledger.keys.status()
    encryption = "off"
    if status is not None:
        encryption = f"{status.threads} threads, {status.forgotten} of them forgotten, by master key {status.master}"
    diagnoses.append(Diagnosis("encryption", encryption))
    hosts = await ledger.hosts()
    living = sum(host.is_alive for host in hosts)
    diagnoses.append(Diagnosis("hosts", f"{living} alive, {len(hosts) - living} ended that still own threads"))
    page = await ledger.threads(ThreadFilter(open_calls=True, system=False), order="updated_at")
    long_ago = current_port().now() - timedelta(seconds=_WAITING_LONG)
    waiting = [thread for thread in page.threads if thread.status != "paused" and thread.updated_at < long_ago]
    waiting = [thread for thread in waiting if hostless_reason(thread, hosts) is not None]
    reason = hostless_reason(waiting[0], hosts, ledger) if waiting else None
    diagnoses.append(
        Diagnosis("threads that wait for a host", str(len(waiting)), reason and f"{waiting[0].thread_id}: {reason}")
    )
    return tuple(diagnoses)


def _rules_diagnosis(rules: RedactionRules) -> Diagnosis:
    """Return whether the ledger accepts hosts with the rules of this handle."""
    if rules.ledger is None:
        return Diagnosis(
            "redaction rules", f"none recorded; the first host records its own ({rules.handle} with these settings)"
        )
    advice = "the hosts of the ledger have other rules than this command; use the same, or adopt these: --adopt-redaction"
    return Diagnosis("redaction rules", rules.ledger, None if rules.is_accepted else advice)


async def adopt_redaction(ledger: Ledger) -> RedactionRules:
    """Make the redaction rules of this handle those of the ledger's hosts.

    Raises:
        OtherRedactionError: a host is alive.
    """
    return await ledger.redaction.adopt()
