"""`knowledge_base` and `memory_retrieval`: tools that find documents and earlier messages by their words."""

from __future__ import annotations

from dataclasses import asdict
from functools import partial
from typing import Any, Literal, TypeAlias

from pydantic_ai import Tool
from typing_extensions import TypedDict

from antiphon.agents._run import current_run
from antiphon.agents.tools._knowledge import THREAD, KnowledgeBase, retrieve
from antiphon.ledger import Ledger, Record
from antiphon.messages import Message, OptionCallPayload, OptionResultPayload, PartsPayload, TextPart
from antiphon.messages.keys import as_key

READS: dict[str, Any] = {"antiphon": {"effects": "none", "untrusted": True, "allows_untrusted": True}}
"""The metadata of a tool that changes nothing, and whose result is untrusted."""

# ---------------------------------------------------------------- documents

_MOST_FOUND = 20


def knowledge_base(ledger: Ledger) -> Tool[Any]:
    """Return the tool that looks things up in the documents of a ledger."""
    documents = KnowledgeBase(ledger)

    async def look_up(query: str, limit: int = 5) -> list[dict[str, str]]:
        """Search the knowledge base: documents that were added for you. Cite what you use by the `id` of its passage.

        Args:
            query: A question, or the words to look for.
            limit: How many passages to return, 20 at most.
        """
        found = await documents.search(query, limit=max(1, min(limit, _MOST_FOUND)))
        return [asdict(passage) for passage in found]

    return Tool[Any](look_up, name="knowledge_base", metadata=READS)


# ---------------------------------------------------------------- earlier messages

Scope: TypeAlias = Literal["thread", "ledger"]
"""Which messages are found: those of the run's thread, or of every thread of the ledger."""

_LONGEST = 2000
"""Characters of a message that are shown."""
_OWN = frozenset({"memory_retrieval", "knowledge_base"})
"""Tools whose calls and results are not found: they only repeat other messages."""


class MemoryMatch(TypedDict):
    """A message that was found."""

    id: str
    """The id of the message, by which it is cited."""
    thread: str
    by: str
    said_at: str
    text: str


def memory_retrieval(ledger: Ledger, *, scope: Scope = "thread", thread_id: str | None = None) -> Tool[Any]:
    """Return the tool that looks up what was said before.

    With scope `thread` it sees `thread_id`, or the thread of the run that it is called in. With scope `ledger` it sees every
    thread, and so does every user of the agent: not for a ledger that several people share.
    """

    async def remember(query: str, limit: int = 5) -> list[MemoryMatch]:
        """Search what was said before. Cite what you use by its `id`.

        Args:
            query: A question, or the words to look for.
            limit: How many messages to return, 20 at most.
        """
        where = None if scope == "ledger" else _thread(thread_id)
        keep = partial(_is_memory, own=_own_words())
        records = await retrieve(ledger, query, thread_id=where, limit=max(1, min(limit, _MOST_FOUND)), keep=keep)
        return [_memory(record) for record in records]

    return Tool[Any](remember, name="memory_retrieval", metadata=READS)


def _thread(chosen: str | None) -> str:
    run = current_run()
    found = chosen or (run.thread_id if run is not None else None)
    if found is None:
        raise RuntimeError("memory_retrieval needs a run (`async with ledger_run(...)`), a thread_id, or scope='ledger'")
    return found


def _own_words() -> str | None:
    """Return the prefix of the parent ids of this run's messages, which are in the conversation anyway."""
    run = current_run()
    return None if run is None else f"{run.thread_id}/{as_key(run.id)}/"


async def _is_memory(record: Record, *, own: str | None) -> bool:
    message = record.message
    if message.lane != "talk" or message.thread_id == THREAD:
        return False
    if own is not None and (message.parent_id or "").startswith(own):
        return False
    payload = message.payload
    is_own = isinstance(payload, (OptionCallPayload, OptionResultPayload)) and payload.option_name in _OWN
    return not is_own and bool(_text(message))


def _memory(record: Record) -> MemoryMatch:
    message = record.message
    return MemoryMatch(
        id=message.id,
        thread=message.thread_id or "",
        by=message.policy,
        said_at=f"{record.recorded_at:%Y-%m-%dT%H:%M:%SZ}",
        text=_text(message)[:_LONGEST],
    )


def _text(message: Message) -> str:
    payload = message.payload
    if isinstance(payload, PartsPayload):
        return "\n".join(part.text for part in payload.parts if isinstance(part, TextPart))
    if isinstance(payload, OptionResultPayload):
        return str(payload.error_message or payload.result or "")
    return ""
