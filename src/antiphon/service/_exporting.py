"""Out of a ledger, threads as JSON Lines: in the house format, as values of a dialect, or as decisions for training.

And into it, documents that agents search.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, TypeAlias

from antiphon._listeners import listener
from antiphon.dialects import Loss, encode
from antiphon.errors import DialectError, EncodeError, RetrievalError, ServiceError
from antiphon.ledger import Ledger, Log, Record, ThreadSummary, replay
from antiphon.messages import Conversation, Message, dumps
from antiphon.messages._json_values import write
from antiphon.service._values import EncodedValue, LossValue

if TYPE_CHECKING:
    from antiphon.retrieval import AddedDocument, Document, Passage, Passages

OnLosses: TypeAlias = "Callable[[str, Sequence[Loss]], None]"
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
    ledger: Log,
    thread: ThreadSummary,
    form: ExportForm = ExportForm(),  # noqa: B008 (frozen)
    on_losses: OnLosses | None = None,
) -> AsyncIterator[bytes]:
    """Yield the lines of a thread. `on_losses` is called with each list of losses.

    Raises:
        EncodeError: the dialect cannot express the thread at all; `where` begins with the thread.
    """
    on_losses = listener(on_losses)
    if form.trajectories:
        async for value in _decisions(ledger, thread, form, on_losses):
            yield write(value) + b"\n"
    elif form.dialect == "house":
        async for line in _house(ledger, thread):
            yield line
    else:
        conversation = await replay(ledger, thread.thread_id)
        yield write(_encoded(thread, [_within(thread, message) for message in conversation], form, on_losses)) + b"\n"


def encode_window(records: Iterable[Record], form: ExportForm) -> EncodedValue:
    """Return records in the dialect of a form, with the losses. The value is plain JSON."""
    try:
        encoded = encode(Conversation(record.message for record in records), form.dialect, as_policy=form.as_policy)
    except LookupError as exc:
        raise EncodeError(str(exc.args[0]), dialect=form.dialect) from exc
    losses = tuple(LossValue.model_validate(loss) for loss in encoded.losses)
    return EncodedValue.model_construct(dialect=form.dialect, value=encoded.value, losses=losses)


async def trajectory_bytes(ledger: Log, thread: ThreadSummary, form: ExportForm) -> int:
    """Return about how many bytes the decisions of a thread take: each repeats the messages before it."""
    from antiphon.patterns._decisions import decisions_of  # noqa: PLC0415 (needs the extra `agents`)

    sizes: dict[str, int] = {}
    """By message: later decisions observe it again, and so do agents that quote it."""
    total = 0
    for decision in await decisions_of(ledger, thread.thread_id):
        for message in (*decision.observed(form.window), *decision.actions, *decision.results):
            if message.id not in sizes:
                sizes[message.id] = len(dumps(message))
            total += sizes[message.id]
    return total


async def _house(ledger: Log, thread: ThreadSummary) -> AsyncIterator[bytes]:
    """Yield the bytes as they are stored; those that a branch shares, with the branch as their thread."""
    yield _HEADER
    async for record in ledger.read(thread.thread_id):
        message = record.message  # decoded first: an invalid row is not passed on
        is_own = message.thread_id == thread.thread_id
        yield (record.body if is_own else dumps(_within(thread, message))) + b"\n"


async def _decisions(
    ledger: Log, thread: ThreadSummary, form: ExportForm, on_losses: OnLosses | None
) -> AsyncIterator[dict[str, Any]]:
    """Yield what `export_transitions` returns; in another dialect, with the messages encoded."""
    from antiphon.patterns._decisions import decisions_of, export_transitions  # noqa: PLC0415 (needs the extra `agents`)

    if form.dialect == "house":
        async for plain in export_transitions(ledger, thread.thread_id, window=form.window):
            yield plain
        return
    for decision in await decisions_of(ledger, thread.thread_id):
        # Calls and results are encoded together: no provider's format has one without the other.
        acts = _encoded(thread, [*decision.actions, *decision.results], form, on_losses)
        observations = _encoded(thread, decision.observed(form.window), form, on_losses)
        yield {**decision.labels(), "observations": observations, "decision": acts, "reward": decision.reward}


def _encoded(thread: ThreadSummary, messages: Iterable[Message], form: ExportForm, on_losses: OnLosses | None) -> Any:
    try:
        encoded = encode(Conversation(messages), form.dialect, as_policy=form.as_policy)
    except LookupError as exc:
        raise EncodeError(str(exc.args[0]), dialect=form.dialect, where=thread.thread_id) from exc
    except DialectError as exc:
        where = ": ".join(filter(None, (thread.thread_id, exc.where)))
        raise EncodeError(exc.reason, dialect=exc.dialect, where=where) from exc
    # Hardly any format names the thread, and the caller knows which one it exports.
    losses = [loss for loss in encoded.losses if loss.what != "thread_id"]
    if losses and on_losses is not None:
        on_losses(thread.thread_id, losses)
    return encoded.value


def _within(thread: ThreadSummary, message: Message) -> Message:
    """Return a message as one of this thread; a shared message of a branch names the origin."""
    return message if message.thread_id == thread.thread_id else message.model_copy(update={"thread_id": thread.thread_id})


# ---------------------------------------------------------------- documents

_AT_ONCE: Final = 8
"""Files of a folder that are read and stored at the same time: so many share one wait for the disk."""
_BETWEEN: Final = 200
"""Files of a folder after which their passages go into the index."""


@dataclass(frozen=True, slots=True)
class AddedFiles:
    """The result of adding the files of folders."""

    documents: tuple[AddedDocument, ...]
    left_out: tuple[str, ...] = ()
    """Why files could not be read; each begins with the name of the file."""


async def add_documents(
    ledger: Ledger,
    texts: Mapping[str, str | Document],
    progress: Callable[[int, int], None] | None = None,
    *,
    language: str | None = None,
) -> tuple[AddedDocument, ...]:
    """Store documents, by their source. An unchanged one is not stored again; a changed one replaces the earlier text."""
    from antiphon.retrieval import KnowledgeBase  # noqa: PLC0415 (needs the extra `retrieval`)

    progress = listener(progress)
    documents = KnowledgeBase(ledger)
    added: list[AddedDocument] = []
    for source, text in texts.items():
        plain, kind = (text, None) if isinstance(text, str) else (text.text, text.kind)
        added.append(await documents.add(source, plain, kind=kind, language=language))
        if progress is not None:
            progress(len(added), len(texts))
    return tuple(added)


async def add_files(
    ledger: Ledger,
    paths: Sequence[Path],
    progress: Callable[[int, int], None] | None = None,
    *,
    encoding: str = "utf-8-sig",
    language: str | None = None,
) -> AddedFiles:
    """Store files as documents, a few at a time. A file that cannot be read is left out.

    Raises:
        LedgerError: the ledger cannot be written. The files before are stored; adding them again takes up where it ended.
    """
    from antiphon.retrieval import KnowledgeBase, read_document  # noqa: PLC0415 (needs the extra `retrieval`)

    progress = listener(progress)
    base = KnowledgeBase(ledger)
    added: list[AddedDocument] = []
    left_out: list[str] = []

    async def add(path: Path) -> None:
        try:
            data = await asyncio.to_thread(_bytes_of, path)
            document = await asyncio.to_thread(read_document, data, str(path), encoding=encoding)
            added.append(await base.add(str(path), document.text, kind=document.kind, language=language))
        except RetrievalError as exc:
            left_out.append(str(exc))
        except (OSError, ValueError) as exc:  # it is gone, or nothing in it is text
            left_out.append(f"{path}: {exc}")

    for start in range(0, len(paths), _AT_ONCE):
        await asyncio.gather(*map(add, paths[start : start + _AT_ONCE]))
        done = min(start + _AT_ONCE, len(paths))
        if progress is not None:
            progress(done, len(paths))
        if done % _BETWEEN < _AT_ONCE or done == len(paths):
            await base.refresh()
    return AddedFiles(tuple(sorted(added, key=lambda document: document.source)), tuple(sorted(left_out)))


def _bytes_of(path: Path) -> bytes:
    from antiphon.retrieval._documents import LARGEST_DOCUMENT  # noqa: PLC0415

    with path.open("rb") as file:
        return file.read(LARGEST_DOCUMENT + 1)  # no more: a device has no size, and no end


async def remove_documents(ledger: Ledger, sources: Iterable[str], *, erase: bool = False) -> dict[str, bool]:
    """Remove documents, and return which of them there were. `erase` deletes their bytes too."""
    from antiphon.retrieval import KnowledgeBase  # noqa: PLC0415 (needs the extra `retrieval`)

    base = KnowledgeBase(ledger)
    try:
        return {source: await base.remove(source, erase=erase) for source in sources}
    except ValueError as exc:
        raise ServiceError(str(exc)) from exc


async def list_documents(ledger: Ledger) -> tuple[AddedDocument, ...]:
    """Return the documents of a ledger, by name."""
    from antiphon.retrieval import KnowledgeBase  # noqa: PLC0415 (needs the extra `retrieval`)

    return await KnowledgeBase(ledger).documents()


async def search_documents(ledger: Ledger, question: str, *, limit: int = 5, source: str | None = None) -> Passages:
    """Find passages as the tool `knowledge_base` does, the best first; `source` is a pattern for the documents."""
    from antiphon.retrieval import KnowledgeBase, PassageFilter  # noqa: PLC0415 (needs the extra `retrieval`)

    return await KnowledgeBase(ledger).search(question, limit, PassageFilter(source=source))


@dataclass(frozen=True, slots=True)
class ShownPassage:
    """A passage, and the lines of its document around it."""

    passage: Passage
    lines: tuple[tuple[int, str], ...]
    """Each with its number; empty if the place of the passage is unknown."""


async def show_passage(ledger: Ledger, id: str, *, around: int = 5) -> ShownPassage | None:
    """Return the passage of a citation with the lines around it; None if there is none of that id."""
    from antiphon.retrieval import KnowledgeBase  # noqa: PLC0415 (needs the extra `retrieval`)

    base = KnowledgeBase(ledger)
    passage = await base.passage(id)
    return None if passage is None else ShownPassage(passage, await base.around(passage, around))
