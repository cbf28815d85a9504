"""Out of a ledger, threads as JSON Lines: in the house format, as values of a dialect, or as decisions for training.

And into it, documents that agents search.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, TypeAlias

from antiphon.dialects import Loss, encode
from antiphon.errors import DialectError, EncodeError
from antiphon.ledger import Ledger, ThreadSummary
from antiphon.messages import Conversation, Message, dumps
from antiphon.messages.json_values import write

if TYPE_CHECKING:
    from antiphon.retrieval import AddedDocument, Passages

HearLosses: TypeAlias = "Callable[[str, Sequence[Loss]], None]"
"""A function that takes a thread and the facts that its export loses."""

_HEADER: Final = dumps(Conversation())
"""The first line of a conversation in the house format; a ledger has no more to say about a thread."""


@dataclass(frozen=True, slots=True)
class ExportForm:
    """How threads are written."""

    dialect: str = "house"
    as_policy: str | None = None
    """Who becomes the assistant, in formats with only one."""
    trajectories: bool = False
    """A line for each decision; it needs the extra `agents`."""
    window: int | None = None
    """How many of the latest messages the observations of a decision have, besides instructions; None: all."""


async def export_lines(
    ledger: Ledger,
    thread: ThreadSummary,
    form: ExportForm = ExportForm(),  # noqa: B008 (frozen)
    hear: HearLosses | None = None,
) -> AsyncIterator[bytes]:
    """Yield the lines of a thread. `hear` is called with each list of losses.

    Raises:
        EncodeError: the dialect cannot express the thread at all; `where` begins with the thread.
        LedgerError: the ledger cannot be read.
    """
    if form.trajectories:
        async for value in _decisions(ledger, thread, form, hear):
            yield write(value) + b"\n"
    elif form.dialect == "house":
        async for line in _house(ledger, thread):
            yield line
    else:
        conversation = await ledger.replay(thread.thread_id)
        yield write(_encoded(thread, [_within(thread, message) for message in conversation], form, hear)) + b"\n"


async def trajectory_bytes(ledger: Ledger, thread: ThreadSummary, form: ExportForm) -> int:
    """Return about how many bytes the decisions of a thread take: each repeats the messages before it.

    Raises:
        LedgerError: the ledger cannot be read.
    """
    from antiphon.patterns.decisions import decisions_of  # noqa: PLC0415 (needs the extra `agents`)

    known: dict[str, tuple[int, int]] = {}
    """By the first message of a loop: how many messages were measured, and their bytes. Later decisions see more of it."""
    total = 0
    for each in await decisions_of(ledger, thread.thread_id):
        seen = each.observations
        count, size = known.get(seen[0].id, (0, 0)) if seen else (0, 0)
        size += sum(len(dumps(message)) for message in seen[count:])
        if seen:
            known[seen[0].id] = (len(seen), size)
        total += size if form.window is None or len(seen) <= form.window else size * form.window // len(seen)
        total += sum(len(dumps(message)) for message in (*each.actions, *each.results))
    return total


async def _house(ledger: Ledger, thread: ThreadSummary) -> AsyncIterator[bytes]:
    """Yield the bytes as they are stored; those that a branch shares, with the branch as their thread."""
    yield _HEADER
    async for record in ledger.read(thread.thread_id):
        message = record.message  # decoded first: an invalid row is not passed on
        is_own = message.thread_id == thread.thread_id
        yield (record.body if is_own else dumps(_within(thread, message))) + b"\n"


async def _decisions(
    ledger: Ledger, thread: ThreadSummary, form: ExportForm, hear: HearLosses | None
) -> AsyncIterator[dict[str, Any]]:
    """Yield what `export_transitions` returns; in another dialect, with the messages encoded."""
    from antiphon.patterns.decisions import decisions_of, export_transitions  # noqa: PLC0415 (needs the extra `agents`)

    if form.dialect == "house":
        async for plain in export_transitions(ledger, thread.thread_id, window=form.window):
            yield plain
        return
    for each in await decisions_of(ledger, thread.thread_id):
        # Calls and results are encoded together: no provider's format has one without the other.
        decision = _encoded(thread, [*each.actions, *each.results], form, hear)
        observations = _encoded(thread, each.observed(form.window), form, hear)
        yield {**each.labels(), "observations": observations, "decision": decision, "reward": each.reward}


def _encoded(thread: ThreadSummary, messages: Iterable[Message], form: ExportForm, hear: HearLosses | None) -> Any:
    try:
        encoded = encode(Conversation(messages), form.dialect, as_policy=form.as_policy)
    except DialectError as exc:
        where = ": ".join(filter(None, (thread.thread_id, exc.where)))
        raise EncodeError(exc.reason, dialect=exc.dialect, where=where) from exc
    # Hardly any format names the thread, and the caller knows which one it exports.
    losses = [loss for loss in encoded.losses if loss.what != "thread_id"]
    if losses and hear is not None:
        hear(thread.thread_id, losses)
    return encoded.value


def _within(thread: ThreadSummary, message: Message) -> Message:
    """Return a message as one of this thread; a shared message of a branch names the origin."""
    return message if message.thread_id == thread.thread_id else message.model_copy(update={"thread_id": thread.thread_id})


# ---------------------------------------------------------------- documents


async def add_documents(
    ledger: Ledger, texts: Mapping[str, str], progress: Callable[[int, int], None] | None = None
) -> tuple[AddedDocument, ...]:
    """Store documents, by their source. An unchanged one is not stored again; a changed one replaces the earlier text."""
    from antiphon.retrieval import KnowledgeBase  # noqa: PLC0415 (needs the extra `retrieval`)

    documents = KnowledgeBase(ledger)
    added: list[AddedDocument] = []
    for source, text in texts.items():
        added.append(await documents.add(source, text))
        if progress is not None:
            progress(len(added), len(texts))
    return tuple(added)


async def search_documents(ledger: Ledger, question: str, *, limit: int = 5) -> Passages:
    """Find passages as the tool `knowledge_base` does, the best first."""
    from antiphon.retrieval import KnowledgeBase  # noqa: PLC0415 (needs the extra `retrieval`)

    return await KnowledgeBase(ledger).search(question, limit=limit)
