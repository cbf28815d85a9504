"""Sources: relevance as arithmetic over words, observations of earlier threads, the knowledge base, tool results; and quotes.

Relevance needs no model: the same words always give the same number. An observation records the question, its topics and the
relevant sources; a search finds only the observations of one user. A tool that returns passages with ids gives one item for
each passage, the same item that a search would give. Any other tool result is one verbatim item.

**Answers from quotes** are for a chain whose model is too small to write prose. Such an answer contains no text of the model.
Code finds the quotes and scores them (`antiphon.retrieval`). Where several have about the same score, the model chooses: it
gives a number, and a grammar allows no other output. Where there is nothing to choose, it is not asked. The answer is
assembled from results of tools and verbatim quotes, or states that the sources have no answer. `by` records who has chosen:
`agent` or `code`.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any, Final, Literal, cast

from pydantic import BaseModel, Field, create_model
from pydantic_ai import Embedder
from pydantic_ai.exceptions import UserError
from pydantic_core import to_jsonable_python

from antiphon.errors import ConfigError
from antiphon.ledger import Ledger, Record
from antiphon.messages import JsonObject, Message, PartsPayload, TextPart, thaw
from antiphon.messages._json_values import as_text
from antiphon.patterns.postchain._config import ChainConfig
from antiphon.patterns.postchain._context import MENTIONED, Item, Link, PhasePrompt, PhaseWork
from antiphon.protocol import Phase, ToolCall
from antiphon.retrieval import LIKELY, FoundAnswer, KnowledgeBase, Retriever, find_answers, open_retriever, quote
from antiphon.retrieval._answers import rate_answers
from antiphon.retrieval._language import detect_language, is_stop_word, stem_of, telling_words
from antiphon.retrieval._quotes import relevance as share_of_words

# ---------------------------------------------------------------- sources

_NAME = re.compile(r"`([^`\s]{2,60})`|\b([A-Z][\w-]+(?:[ ][A-Z][\w-]+){0,3})\b|\b(\w+_\w+)\b")
_MOST_GOALS = 20


def significant(text: str) -> tuple[str, ...]:
    """Return the significant words of a text, each once, as stems, so that different forms of a word are equal."""
    language = detect_language(text)
    return tuple(dict.fromkeys(stem_of(word, language) for word in telling_words(text) if not is_stop_word(word, language)))


def relevance(question: str, text: str, heading: Sequence[str] = ()) -> float:
    """Return the share of the significant words of a question that a text has, including its headings; from 0 to 1."""
    return share_of_words(question, text, heading=heading)


def quote_of(question: str, text: str) -> str:
    """Return the smallest run of sentences, rows or code lines of a text that holds the answer to a question."""
    return quote(question, text).text


def goals_in(question: str) -> tuple[str, ...]:
    """Return the goals of a question, one sentence each, at most twenty; the first is the primary one."""
    sentences = (sentence.strip() for sentence in re.split(r"(?<=[.!?])\s+|\n+", question))
    goals = tuple(dict.fromkeys(sentence for sentence in sentences if significant(sentence)))
    return goals[:_MOST_GOALS] or (question.strip(),)


def entities_in(text: str, limit: int) -> tuple[str, ...]:
    """Return the names in a text, the most frequent first: words in backticks, capitalised words, and identifiers."""
    names = (next(group for group in match.groups() if group) for match in _NAME.finditer(text))
    counts = Counter(name for name in names if len(name) > 1 and not is_stop_word(name, "en"))
    return tuple(name for name, _ in counts.most_common(limit))


HEARSAY: Final = 0.5
"""The weight of an observation relative to a passage of the same relevance: it has the words of a question, and no answer."""

_NAMESPACE: Final = "postchain"
_LOOKED_AT: Final = 50
_WORDS: Final = 50
"""The maximum number of words of a question that are searched, each separately."""


@dataclass(frozen=True, slots=True)
class Observation:
    """An observation of a thread."""

    id: str
    """The id of its message in the ledger."""
    thread_id: str
    question: str
    text: str
    entities: tuple[str, ...]
    links: tuple[Link, ...]


class Observations:
    """The observations in the threads of a ledger."""

    def __init__(self, ledger: Ledger) -> None:
        self._ledger = ledger

    async def search(
        self, question: str, *, user_id: str, limit: int = 5, without_thread: str | None = None
    ) -> tuple[Observation, ...]:
        """Return the observations of a user's threads about a question, the best first."""
        observations: dict[str, Observation] = {}
        for word in telling_words(question)[:_WORDS]:
            for hit in await self._ledger.search(f'"{_MARK}" {_beginning(word)}*', limit=_LOOKED_AT):
                observation = _read(hit.record, user_id)
                if observation is not None and observation.thread_id != without_thread:
                    observations[observation.id] = observation
        best = sorted(observations.values(), key=lambda observation: -relevance(question, observation.text))
        return tuple(best[:limit])

    async def in_thread(self, thread_id: str) -> tuple[Observation, ...]:
        """Return the observations of one thread, in order."""
        records = [record async for record in self._ledger.read(thread_id)]
        return tuple(observation for record in records if (observation := _read(record, None)) is not None)


_SHORTEST_STEM: Final = 4


def _beginning(word: str) -> str:
    """Return the common prefix of the singular and the plural of a word: the ledger's search knows words, not stems."""
    folded = word.casefold()
    return folded.removesuffix("s") if len(folded) >= _SHORTEST_STEM else folded


_MARK: Final = "observed in answer to"
"""The prefix of every observation, which few other texts have."""


def observation_message(
    by: str, user_id: str, question: str, entities: tuple[str, ...], links: tuple[Link, ...], *, notes: str = ""
) -> Message:
    """Return an observation as a message; `notes` is the text of an agent."""
    topics = f"It is about {', '.join(entities)}." if entities else ""
    related = " ".join(f"It has to do with {link.linked_to} ({link.strength:g})." for link in links)
    observation: dict[str, Any] = {
        "user_id": user_id,
        "question": question,
        "entities": list(entities),
        "links": [link.model_dump(mode="json") for link in links],
    }
    text = " ".join(part for part in (f"Observed in answer to: {question}", notes, topics, related) if part)
    return Message(
        policy=by,
        payload=PartsPayload(parts=(TextPart(text=text),)),
        lane="control",
        metadata={_NAMESPACE: {"observation": observation}},
    )


def _read(record: Record, user_id: str | None) -> Observation | None:
    message = record.message
    metadata = message.metadata.get(_NAMESPACE)
    fields: Any = metadata.get("observation") if isinstance(metadata, JsonObject) else None
    if message.lane != "control" or fields is None or user_id not in (None, fields["user_id"]):
        return None
    links = tuple(Link.model_validate(dict(link)) for link in fields["links"])
    return Observation(message.id, message.thread_id or "", fields["question"], message.text, tuple(fields["entities"]), links)


def configured_retriever(config: ChainConfig, ledger: Ledger) -> Retriever:
    """Return the retriever of a configuration: one of a package, or the documents of the ledger."""
    if config.retriever is not None and config.embedder is not None:
        raise ConfigError("`embedder` is for the documents of the ledger, and `retriever` replaces them: remove one")
    try:
        if config.retriever is not None:
            return open_retriever(config.retriever, ledger)
        embedder = None if config.embedder is None else Embedder(config.embedder, defer_model_check=False)
        return KnowledgeBase(ledger, embedder=embedder)
    except (ImportError, TypeError, UserError, ValueError) as exc:
        name, value = ("embedder", config.embedder) if config.retriever is None else ("retriever", config.retriever)
        raise ConfigError(f"{name} = {value!r}: {exc}") from exc


async def find_knowledge(retriever: Retriever, question: str, limit: int) -> list[Item]:
    """Return the passages of a retriever about a question, each with its best quote and the score of that quote.

    The score counts words. So it chooses the passages only if the retriever finds by words alone: a paraphrase has few.
    Otherwise the passages stay in the order of the retriever.
    """
    if isinstance(retriever, KnowledgeBase) and not retriever.finds_by_meaning:
        answers = await find_answers(retriever, question, limit)
    else:
        passages = await retriever.search(question, limit)
        places = {passage.id: place for place, passage in enumerate(passages)}
        answers = tuple(sorted(rate_answers(question, passages), key=lambda answer: places[answer.passage.id]))
    return [
        Item(
            id=answer.passage.id,
            source="knowledge",
            title=answer.passage.source,
            text=_around(answer),
            priority=answer.score,
            heading=answer.passage.heading,
            quote=answer.quote.text,
            lines=None if answer.passage.lines is None else answer.quote.lines,
        )
        for answer in answers
    ]


def _around(answer: FoundAnswer) -> str:
    """Return the part of a passage for the context: its beginning, unless the quote is further down."""
    text = answer.passage.text
    begin = 0 if answer.passage.lines is None else answer.quote.lines[0] - answer.passage.lines[0]
    before = "\n".join(text.split("\n")[:begin])
    if len(before) + len(answer.quote.text) <= MENTIONED - 1:
        return text[:MENTIONED]
    return text[len(before) + 1 :][:MENTIONED]


_LONGEST_TITLE: Final = 120


def brief(result: Any) -> Any:
    """Return the result of a tool as plain JSON, cut to the limit of the context."""
    plain = to_jsonable_python(result, fallback=str)
    if _has_matches(plain):
        return [{**match, "text": match["text"][:MENTIONED]} for match in plain]
    text = as_text(plain)
    return plain if len(text) <= MENTIONED else text[:MENTIONED]


def items_given(calls: Iterable[ToolCall], question: str) -> list[Item]:
    """Return the items from tool calls; a call that failed, or found nothing, has none."""
    items: list[Item] = []
    for call in calls:
        result: Any = thaw(call.result)
        if _has_matches(result):
            items += [_match_item(match, question) for match in result]
        elif result not in (None, "", [], {}):
            items.append(Item(id=call.id or "", source="tool", title=_title(call), text=as_text(result), priority=1.0))
    return items


def _has_matches(result: Any) -> bool:
    """Whether a result is a list of matches: passages of documents, or earlier messages."""
    if not isinstance(result, list) or not result:
        return False
    return all(
        isinstance(item, dict)
        and all(isinstance(cast("dict[str, Any]", item).get(name), str) for name in ("id", "text"))
        and ("source" in item or "thread" in item)
        for item in cast("list[Any]", result)
    )


def _match_item(match: dict[str, Any], question: str) -> Item:
    text: str = match["text"]
    score = relevance(question, text, str(match.get("heading", "")).split(" > "))
    if "source" in match:
        return Item(id=match["id"], source="knowledge", title=str(match["source"]), text=text, priority=score)
    return Item(id=match["id"], source="memory", title=f"said in {match['thread']}", text=text, priority=score)


def _title(call: ToolCall) -> str:
    """Return a call for display: `calculator(expression='2 + 3')`."""
    arguments: Any = thaw(call.arguments)
    named = cast("dict[str, Any]", arguments) if isinstance(arguments, dict) else {}
    listed = ", ".join(f"{name}={value!r}" for name, value in named.items())
    title = f"{call.name}({listed})".replace("\n", " ")
    return title if len(title) <= _LONGEST_TITLE else f"{title[: _LONGEST_TITLE - 2]}…)"


# ---------------------------------------------------------------- answers from quotes

QUOTED: Final = "quotes"
"""The recorded `outputs` in the configuration of an agent that only chooses."""
NOT_IN_SOURCES: Final = "Not in the sources."
"""The answer to a question that no source answers, or its beginning."""
USED: Final = "used"
"""The tag of a source that the agent of the experience phase relies on: code does not treat it as noise."""
PICKED: Final = "picked"
"""The tag of the source that a model has chosen from several."""

_NEAR: Final = 0.08
"""The largest difference between the scores of quotes that count as equal."""
_BESIDE: Final = 0.15
"""The largest difference from the best score with which a quote is also cited."""
_MOST: Final = 3
"""The maximum number of quotes to choose from, and to cite."""
_LONGEST_LINE: Final = 160
"""The most characters of a quote in an answer that refuses."""
_MOST_NAMES: Final = 4
"""The most names that the contribution of the observation phase lists."""
_NONE: Final = "none"
_EDGES: Final = "| \n"
"""The characters around a row of a table."""


# ---------------------------------------------------------------- quotes: the choice


@cache
def choice_of(number: int) -> type[BaseModel]:
    """Return the form with which a model chooses one of some numbered sources; without any, it has one possible output."""
    names = tuple(map(str, range(1, number + 1))) or (_NONE,)
    description = "The number of the source that answers the question."
    offered: Any = Literal[names]
    return create_model("Choice", source=(offered, Field(description=description)))


def likely_items(work: PhaseWork) -> tuple[Item, ...]:
    """Return the passages with a quote that probably answers the question: the chosen one first, then the best."""
    items = [item for item in work.sources if item.quote and item.priority >= LIKELY]
    return tuple(sorted(items, key=lambda item: (PICKED not in item.tags, -item.priority)))


def to_choose_from(work: PhaseWork) -> tuple[Item, ...]:
    """Return the passages whose quotes have about the same score; none, if a tool has given the answer."""
    likely = likely_items(work)
    if not likely or any(item.source == "tool" for item in work.sources):
        return ()
    return tuple(item for item in likely if item.priority >= likely[0].priority - _NEAR)


def choice_prompt(work: PhaseWork, *, is_choosing: bool) -> PhasePrompt:
    """Return the prompt of an agent: the question, and the quotes by number; only the best one, unless it chooses."""
    text, places = work.question, list[tuple[str, int, int]]()
    for number, item in enumerate(to_choose_from(work)[: _MOST if is_choosing else 1], 1):
        text += "" if places else "\n\nSources:"
        text += f"\n[{number}] {' > '.join(item.heading[-2:])}: "
        places.append((item.id, len(text), len(text) + len(item.quote)))
        text += item.quote
    return PhasePrompt(text, tuple(places))


# ---------------------------------------------------------------- quotes: the answer


def quoted_answer(work: PhaseWork) -> tuple[str, list[dict[str, object]]]:
    """Return the answer, and its citations: results of tools, and the quote that answers the question."""
    tools = [item for item in work.sources if item.source == "tool"]
    likely = likely_items(work)
    near = [item for item in likely if item.priority >= likely[0].priority - _BESIDE][:_MOST]
    cited = tools or near
    citations = [citation(number, item) for number, item in enumerate(cited, 1)]
    lines = [f"{item.title} gave {item.text} [{number}]" for number, item in enumerate(tools, 1)]
    if not tools and likely:
        heading = f"{likely[0].heading[-1]}: " if likely[0].heading else ""  # the quote may depend on it
        lines = [f"{heading}{likely[0].quote.strip(_EDGES)} [1]"]
    return "\n".join(lines) or _refusal(work), citations


def _refusal(work: PhaseWork) -> str:
    """Return the answer to a question that no source answers, with the nearest quotes: a reader may find the answer there."""
    knowledge = [item for item in work.sources if item.source == "knowledge"]
    nearest = sorted(knowledge, key=lambda item: -item.priority)[:_MOST]
    lines = [f"- {place_of(citation(0, item))}: {_short(item.quote.strip(_EDGES))}" for item in nearest]
    return "\n".join([f"{NOT_IN_SOURCES} Nearest:", *lines]) if lines else NOT_IN_SOURCES


def _short(quote: str) -> str:
    """Return a quote as one line."""
    line = " ".join(quote.split())
    return line if len(line) <= _LONGEST_LINE else f"{line[: _LONGEST_LINE - 1]}…"


def citation(number: int, item: Item, quote: str | None = None) -> dict[str, object]:
    """Return a citation; where the source has them, with the headings above the quote and its lines."""
    text = quote if quote is not None else item.quote or item.text
    cited: dict[str, object] = {"number": number, "id": item.id, "source": item.title, "quote": text}
    if item.heading:
        cited["heading"] = list(item.heading)
    if item.lines is not None:
        cited["lines"] = list(item.lines)
    return {**cited, "relevance": item.priority}


def place_of(cited: Mapping[str, Any]) -> str:
    """Return the origin of a citation, for display: `docs/runtime.md > Supervision, line 96`."""
    headings, lines = cited.get("heading") or (), tuple(cited.get("lines") or ())
    place = " > ".join((str(cited["source"]), *(str(heading) for heading in headings[-1:])))
    if not lines:
        return place
    return f"{place}, line {lines[0]}" if lines[0] == lines[-1] else f"{place}, lines {lines[0]}-{lines[-1]}"


# ---------------------------------------------------------------- quotes: contributions of phases


def contribution(phase: Phase, output: Mapping[str, Any]) -> str:
    """Return the contribution of a phase as one line, from its output."""
    text = _contribution(phase, output)
    model = str(output.get("model") or "the model")
    return f"{text}; chosen by {model}" if output.get("picked") else text


def _contribution(phase: Phase, output: Mapping[str, Any]) -> str:
    citations = output.get("citations") or ()
    match phase:
        case "action":
            calls = [str(call["name"]) for call in output.get("tool_calls") or ()]
            return f"called {', '.join(calls)}" if calls else "no tool fits the question"
        case "experience":
            best = f"; the best is {place_of(citations[0])} ({citations[0]['relevance']:.2f})" if citations else ""
            return f"{_count(len(citations), 'passage')} found{best}"
        case "intention":
            by_source: dict[str, float] = output.get("scores") or {}
            scores = ", ".join(f"{score:.2f}" for score in sorted(by_source.values(), reverse=True)) or "none"
            return f"{_count(len(output.get('goals') or ()), 'goal')}; scores {scores}"
        case "observation":
            names = [str(name) for name in output.get("entities") or ()]
            shown = ", ".join(names[:_MOST_NAMES]) or "no names"
            return f"recorded for later threads: {shown}{', …' if len(names) > _MOST_NAMES else ''}"
        case "understanding":
            retained = [name for name in output.get("retained") or () if not str(name).startswith(("user", "action"))]
            return f"{_count(len(retained), 'source')} kept, {len(output.get('released') or ())} released"
        case "yield":
            return f"{_count(len(citations), 'citation')}; confidence {output.get('confidence') or 0.0:.2f}"


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}{'' if number == 1 else 's'}"
