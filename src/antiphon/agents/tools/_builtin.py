"""Built-in tools by their names in a configuration (`builtin_tools`): documents, earlier messages, and the web.

**Documents and earlier messages.** `knowledge_base` and `memory_retrieval` find them by their words. Documents are found by a
retriever (see `antiphon.retrieval`). Earlier messages have no such index: a ledger finds those that have all the words of a
query, but a question has words that no answer has. So `retrieve` queries the ledger several times: for all the words together,
and for each word separately. A record gets points for its rank in each list, more where the word is rare, and the best records
are returned.

**The web.** `web_search` and `web_fetch` are disabled unless `antiphon.toml` enables them. Searching is Pydantic AI's own
tool; fetching uses its download, which refuses every address that is not public, and checks again at every redirect: names are
resolved once, each address is checked (including IPv4 addresses inside IPv6), and the connection uses the checked address.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Awaitable, Callable, Iterable
from difflib import get_close_matches
from functools import partial
from math import log2
from typing import Any, Final, Literal, TypeAlias

import httpx2
from pydantic_ai import BinaryContent, ModelRetry, RunContext, Tool

# Its download checks every address that a page leads to; its own tool reads pages with a parser that takes quadratic time.
from pydantic_ai._ssrf import safe_download
from pydantic_ai._utils import is_text_like_media_type
from typing_extensions import TypedDict

from antiphon.agents._config import WebConfig, read_config
from antiphon.agents.tools._calculator import calculator
from antiphon.agents.tools._formats import text_in
from antiphon.durable._run import current_run
from antiphon.errors import SetupError
from antiphon.ledger import Ledger, Record
from antiphon.messages import Message, OptionCallPayload, OptionResultPayload
from antiphon.messages._keys import as_key
from antiphon.retrieval import KnowledgeBase, Passage, Retriever
from antiphon.retrieval._html import read_html

# ---------------------------------------------------------------- settings of tools that only read

READS: dict[str, Any] = {"antiphon": {"effects": "none", "untrusted": True, "allows_untrusted": True}}
"""The metadata of a tool that changes nothing, and whose result is untrusted."""

# ---------------------------------------------------------------- documents

_MOST_RESULTS = 20


def knowledge_base(ledger: Ledger, *, retriever: Retriever | None = None) -> Tool[Any]:
    """Return the tool that searches the documents of a ledger, or of a retriever."""
    documents = KnowledgeBase(ledger) if retriever is None else retriever

    async def look_up(query: str, limit: int = 5) -> list[dict[str, str]]:
        """Search the knowledge base: documents that were added for you. Cite what you use by the `id` of its passage.

        Args:
            query: A question, or the words to look for.
            limit: How many passages to return, 20 at most.
        """
        passages = await documents.search(query, limit=max(1, min(limit, _MOST_RESULTS)))
        return [passage_fields(passage) for passage in passages]

    return Tool[Any](look_up, name="knowledge_base", metadata=READS)


def passage_fields(passage: Passage) -> dict[str, str]:
    """Return a passage in the form for a model."""
    fields = {"id": passage.id, "source": passage.source}
    if passage.heading:
        fields["heading"] = " > ".join(passage.heading)
    if passage.lines is not None:
        fields["lines"] = f"{passage.lines[0]}-{passage.lines[1]}"
    return {**fields, "text": passage.text}


# ---------------------------------------------------------------- earlier messages

_WORD = re.compile(r"[^\W_]+")
_MOST_WORDS = 12
"""The maximum number of words of a question that are searched."""
_LOOKED_AT = 50
"""The maximum number of records of each list."""
_TOGETHER = 4.0
"""The weight of a record with all the words, relative to a record with one of them."""
_SHORTEST_STEM = 4
_EMPTY = frozenset(
    _WORD.findall(
        "a about an and are as at be by can do does for from has have how i in is it its me my of on or our please tell that"
        " the their there they this to was we were what when where which who whom whose why will with you your"
    )
)
"""Stop words: left out, unless there are no others."""


async def retrieve(
    ledger: Ledger, question: str, *, thread_id: str | None, limit: int, keep: Callable[[Record], Awaitable[bool]]
) -> list[Record]:
    """Return the best records that `keep` accepts, of one thread or all."""
    all_words = list(dict.fromkeys(word.casefold() for word in _WORD.findall(question)))
    words = [word for word in all_words if word not in _EMPTY][:_MOST_WORDS] or all_words[:_MOST_WORDS]
    if not words:
        return []
    points: dict[str, float] = {}
    records: dict[str, Record] = {}
    for typed, weight in [(" ".join(map(_stem, words)), _TOGETHER), *((_stem(word), 1.0) for word in words)]:
        hits = await ledger.search(typed, thread_id=thread_id, limit=_LOOKED_AT)
        for place, hit in enumerate(hits):
            records[hit.record.hash] = hit.record
            rarity = 1 / (1 + log2(1 + len(hits)))
            points[hit.record.hash] = points.get(hit.record.hash, 0.0) + weight * rarity / (1 + place)
    best: list[Record] = []
    for record_hash in sorted(records, key=lambda record_hash: -points[record_hash]):
        if len(best) == limit:
            break
        if await keep(records[record_hash]):
            best.append(records[record_hash])
    return best


def _stem(word: str) -> str:
    """Return the stem of a word, so that singular and plural match."""
    return f"{word.removesuffix('s')}*" if len(word) >= _SHORTEST_STEM else word


Scope: TypeAlias = Literal["thread", "ledger"]
"""Which messages are found: those of the run's thread, or of every thread of the ledger."""

_LONGEST_MEMORY = 2000
"""Characters of a message that are shown."""
_DOCUMENTS = "knowledge"
"""The thread of documents, and the prefix of the names of such threads."""
_SEARCH_TOOLS = frozenset({"memory_retrieval", "knowledge_base"})
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
    """Return the tool that searches earlier messages.

    With scope `thread`, it searches `thread_id`, or the thread of the current run. With scope `ledger`, it searches every
    thread, and so can every user of the agent: do not use it for a ledger that several people share.
    """

    async def remember(query: str, limit: int = 5) -> list[MemoryMatch]:
        """Search what was said before. Cite what you use by its `id`.

        Args:
            query: A question, or the words to look for.
            limit: How many messages to return, 20 at most.
        """
        run = current_run()
        where = None if scope == "ledger" else thread_id or (None if run is None else run.thread_id)
        if where is None and scope != "ledger":
            raise RuntimeError("memory_retrieval needs a run (`async with ledger_run(...)`), a thread_id, or scope='ledger'")
        # The parent ids of this run's messages begin like this; the conversation already contains them.
        keep = partial(_is_memory, run_prefix=None if run is None else f"{run.thread_id}/{as_key(run.id)}/")
        records = await retrieve(ledger, query, thread_id=where, limit=max(1, min(limit, _MOST_RESULTS)), keep=keep)
        return [_memory(record) for record in records]

    return Tool[Any](remember, name="memory_retrieval", metadata=READS)


async def _is_memory(record: Record, *, run_prefix: str | None) -> bool:
    message = record.message
    if message.lane != "talk" or (message.thread_id or "").partition("/")[0] == _DOCUMENTS:
        return False
    if run_prefix is not None and (message.parent_id or "").startswith(run_prefix):
        return False
    payload = message.payload
    is_search = isinstance(payload, (OptionCallPayload, OptionResultPayload)) and payload.option_name in _SEARCH_TOOLS
    return not is_search and bool(_text(message))


def _memory(record: Record) -> MemoryMatch:
    message = record.message
    return MemoryMatch(
        id=message.id,
        thread=message.thread_id or "",
        by=message.policy,
        said_at=f"{record.recorded_at:%Y-%m-%dT%H:%M:%SZ}",
        text=_text(message)[:_LONGEST_MEMORY],
    )


def _text(message: Message) -> str:
    payload = message.payload
    return str(payload.error_message or payload.result or "") if isinstance(payload, OptionResultPayload) else message.text


# ---------------------------------------------------------------- the web

_LONGEST: Final = 4_000
"""Characters of an address or a query."""
_INSTALL = 'pip install "antiphon[web]"'
_HTML: Final = frozenset({"text/html", "application/xhtml+xml"})


class WebPage(TypedDict):
    """A page of the web."""

    url: str
    title: str
    content: str
    """Its text, as Markdown."""


def _is_off(tool: str, line: str) -> SetupError:
    reason = f"{tool} is off, because its requests leave this machine"
    return SetupError(f"{reason}; to enable it, write `{line}` into the section [web] of antiphon.toml")


def web_fetch(config: WebConfig | None = None) -> Tool[Any]:
    """Return the tool that reads a page of the web, as Markdown.

    Raises:
        ConfigError: `antiphon.toml` is not valid.
        SetupError: it is not enabled.
    """
    settings = config or read_config().web
    if not settings.fetch:
        raise _is_off("web_fetch", "fetch = true")

    async def fetch(url: str) -> WebPage | BinaryContent:
        """Fetch a web page, and return its text as Markdown; other content is returned unchanged.

        Args:
            url: The address of the page.
        """
        try:
            response = await safe_download(
                url,
                timeout=settings.timeout,
                headers={"Accept": "text/markdown, text/html;q=0.9, */*;q=0.8"},
                allowed_domains=None if settings.allowed_domains is None else list(settings.allowed_domains),
                blocked_domains=list(settings.blocked_domains),
                max_bytes=settings.max_bytes,
            )
        except (ValueError, httpx2.InvalidURL, httpx2.HTTPStatusError, httpx2.RequestError) as exc:
            raise ModelRetry(f"Failed to fetch {url}: {exc}") from exc
        media_type = response.headers.get("content-type", "text/html").partition(";")[0].strip().casefold()
        if not is_text_like_media_type(media_type):
            return BinaryContent(response.content, media_type=media_type)
        # Not on the event loop: the server chooses how long the page is, and its charset.
        title, text = await asyncio.to_thread(_read_page, response.content, response.encoding or "utf-8", media_type)
        if len(text) > settings.max_characters:
            text = f"{text[: settings.max_characters]}\n\n[Content truncated]"
        return WebPage(url=url, title=title, content=text)

    return _ours(Tool[Any](fetch), "web_fetch", settings)


def _read_page(data: bytes, encoding: str, media_type: str) -> tuple[str, str]:
    """Return the title and the text of a page."""
    text = text_in(data, encoding)
    return read_html(text, with_links=True) if media_type in _HTML else ("", text.strip())


def web_search(config: WebConfig | None = None) -> Tool[Any]:
    """Return the tool that searches the web.

    Raises:
        ConfigError: `antiphon.toml` is not valid.
        ModuleNotFoundError: a package that it needs is not installed.
        SetupError: it is not enabled.
    """
    settings = config or read_config().web
    if settings.search is None:
        raise _is_off("web_search", 'search = "duckduckgo"')
    try:
        from pydantic_ai.common_tools.duckduckgo import duckduckgo_search_tool  # pyright: ignore[reportUnknownVariableType]  # noqa: PLC0415 (an extra)
    except ImportError as exc:
        raise ModuleNotFoundError(f"web_search needs ddgs: {_INSTALL}", name="ddgs") from exc
    return _ours(duckduckgo_search_tool(max_results=settings.max_results), "web_search", settings)


_METADATA: dict[str, Any] = {"antiphon": {"effects": "none", "untrusted": True, "allows_untrusted": False}}
"""It changes nothing. Its result is untrusted. Its arguments leave the machine: after untrusted input it needs an approval."""


def _ours(tool: Tool[Any], name: str, config: WebConfig) -> Tool[Any]:
    tool.name = name
    tool.metadata = _METADATA
    tool.args_validator = _check_lengths
    # A limit of the whole request: a server that sends byte by byte never exceeds a limit per read.
    tool.timeout = config.timeout
    return tool


def _check_lengths(_: RunContext[object], **arguments: Any) -> None:
    """Refuse an absurdly long address or query. Parsing a long address would block the event loop."""
    for name, value in arguments.items():
        if isinstance(value, str) and len(value) > _LONGEST:
            raise ModelRetry(f"{name} has {len(value)} characters; at most {_LONGEST} are sent")


# ---------------------------------------------------------------- by name

BUILTIN_TOOLS = ("calculator", "knowledge_base", "memory_retrieval", "web_fetch", "web_search")


def builtin_tools(
    names: Iterable[str],
    *,
    ledger: Ledger | None = None,
    memory: Scope = "thread",
    web: WebConfig | None = None,
    retriever: Retriever | None = None,
) -> list[Tool[Any]]:
    """Return the tools with these names. Tools that search a ledger need it; `retriever` finds other documents.

    Raises:
        ConfigError: `antiphon.toml` was needed, and is not valid.
        ModuleNotFoundError: a package that a tool needs is not installed.
        SetupError: a tool is not enabled.
        ValueError: there is no tool of a name, or it needs a ledger.
    """

    def of_ledger(make: Callable[[Ledger], Tool[Any]], name: str) -> Tool[Any]:
        if ledger is None:
            raise ValueError(f"{name} looks things up in a ledger: give one")
        return make(ledger)

    def made(name: str) -> Tool[Any]:
        match name:
            case "calculator":
                return calculator()
            case "knowledge_base":
                return of_ledger(lambda open_ledger: knowledge_base(open_ledger, retriever=retriever), name)
            case "memory_retrieval":
                return of_ledger(lambda open_ledger: memory_retrieval(open_ledger, scope=memory), name)
            case "web_fetch":
                return web_fetch(web)
            case "web_search":
                return web_search(web)
            case _:
                near = get_close_matches(name, BUILTIN_TOOLS, n=1)
                hint = f"; perhaps {near[0]!r}" if near else f"; there are {', '.join(BUILTIN_TOOLS)}"
                raise ValueError(f"no built-in tool is called {name!r}{hint}")

    return [made(name) for name in names]
