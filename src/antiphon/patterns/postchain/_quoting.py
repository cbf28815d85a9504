"""Answers from quotes, for a chain whose model is too small to write prose.

Such an answer contains no text of the model. Code finds the quotes and scores them (`antiphon.retrieval`). Where several have
about the same score, the model chooses: it gives a number, and a grammar allows no other output. Where there is nothing to
choose, it is not asked. The answer is assembled from results of tools and verbatim quotes, or states that the sources have no
answer. `by` records who has chosen: `agent` or `code`.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from typing import Any, Final, Literal

from pydantic import BaseModel, Field, create_model

from antiphon.patterns.postchain._context import Item, PhasePrompt, PhaseWork
from antiphon.protocol import Phase
from antiphon.retrieval import LIKELY

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
_NONE: Final = "none"
_EDGES: Final = "| \n"
"""The characters around a row of a table."""


# ---------------------------------------------------------------- the choice


@cache
def choice_of(number: int) -> type[BaseModel]:
    """Return the form with which a model chooses one of some numbered sources; without any, it has one possible output."""
    names = tuple(str(each) for each in range(1, number + 1)) or (_NONE,)
    description = "The number of the source that answers the question."
    offered: Any = Literal[names]
    return create_model("Choice", source=(offered, Field(description=description)))


def likely_items(work: PhaseWork) -> tuple[Item, ...]:
    """Return the passages with a quote that probably answers the question: the chosen one first, then the best."""
    found = [item for item in work.sources if item.quote and item.priority >= LIKELY]
    return tuple(sorted(found, key=lambda item: (PICKED not in item.tags, -item.priority)))


def to_choose_from(work: PhaseWork) -> tuple[Item, ...]:
    """Return the passages whose quotes have about the same score; none, if a tool has given the answer."""
    found = likely_items(work)
    if not found or any(item.source == "tool" for item in work.sources):
        return ()
    return tuple(item for item in found if item.priority >= found[0].priority - _NEAR)


def choice_prompt(work: PhaseWork, *, is_choosing: bool) -> PhasePrompt:
    """Return the prompt of an agent: the question, and the quotes by number; only the best one, unless it chooses."""
    text, places = work.question, list[tuple[str, int, int]]()
    for number, item in enumerate(to_choose_from(work)[: _MOST if is_choosing else 1], 1):
        text += "" if places else "\n\nSources:"
        text += f"\n[{number}] {' > '.join(item.heading[-2:])}: "
        places.append((item.id, len(text), len(text) + len(item.quote)))
        text += item.quote
    return PhasePrompt(text, tuple(places))


# ---------------------------------------------------------------- the answer


def quoted_answer(work: PhaseWork) -> tuple[str, list[dict[str, object]]]:
    """Return the answer, and its citations: results of tools, and the quote that answers the question."""
    tools = [item for item in work.sources if item.source == "tool"]
    likely = likely_items(work)
    beside = [item for item in likely if item.priority >= likely[0].priority - _BESIDE][:_MOST]
    cited = tools or beside
    citations = [citation(number, item) for number, item in enumerate(cited, 1)]
    said = [f"{item.title} gave {item.text} [{number}]" for number, item in enumerate(tools, 1)]
    if not tools and likely:
        said = [f"{_below(likely[0])}{likely[0].quote.strip(_EDGES)} [1]"]
    return "\n".join(said) or _refusal(work), citations


def _below(item: Item) -> str:
    """Return the heading of a quote: the quote may depend on it."""
    return f"{item.heading[-1]}: " if item.heading else ""


def _refusal(work: PhaseWork) -> str:
    nearest = next((item for item in work.sources if item.source == "knowledge"), None)
    return NOT_IN_SOURCES if nearest is None else f"{NOT_IN_SOURCES} The nearest passage is {place_of(citation(0, nearest))}."


def citation(number: int, item: Item, quote: str | None = None) -> dict[str, object]:
    """Return a citation; where the source has them, with the headings above the quote and its lines."""
    said = quote if quote is not None else item.quote or item.text
    cited: dict[str, object] = {"number": number, "id": item.id, "source": item.title, "quote": said}
    if item.heading:
        cited["heading"] = list(item.heading)
    if item.lines is not None:
        cited["lines"] = list(item.lines)
    return {**cited, "relevance": item.priority}


def place_of(cited: Mapping[str, Any]) -> str:
    """Return the origin of a citation, for display: `docs/runtime.md > Supervision, line 96`."""
    headings, lines = cited.get("heading") or (), tuple(cited.get("lines") or ())
    place = " > ".join((str(cited["source"]), *(str(each) for each in headings[-1:])))
    if not lines:
        return place
    return f"{place}, line {lines[0]}" if lines[0] == lines[-1] else f"{place}, lines {lines[0]}-{lines[-1]}"


# ---------------------------------------------------------------- contributions of phases


def contribution(phase: Phase, output: Mapping[str, Any]) -> str:
    """Return the contribution of a phase as one line, from its output."""
    said = _CONTRIBUTIONS[phase](output)
    model = str(output.get("model") or "the model")
    return f"{said}; chosen by {model}" if output.get("picked") else said


def _of_action(output: Mapping[str, Any]) -> str:
    calls = [str(call["name"]) for call in output.get("tool_calls") or ()]
    return f"called {', '.join(calls)}" if calls else "no tool fits the question"


def _of_experience(output: Mapping[str, Any]) -> str:
    found = output.get("citations") or ()
    best = f"; the best is {place_of(found[0])} ({found[0]['relevance']:.2f})" if found else ""
    return f"{_count(len(found), 'passage')} found{best}"


def _of_intention(output: Mapping[str, Any]) -> str:
    given: dict[str, float] = output.get("scores") or {}
    scores = sorted(given.values(), reverse=True)
    goals = output.get("goals") or ()
    return f"{_count(len(goals), 'goal')}; scores {', '.join(f'{each:.2f}' for each in scores) or 'none'}"


def _of_observation(output: Mapping[str, Any]) -> str:
    names = [str(each) for each in output.get("entities") or ()]
    return f"recorded for later threads: {', '.join(names[:4]) or 'no names'}{', …' if len(names) > 4 else ''}"  # noqa: PLR2004


def _of_understanding(output: Mapping[str, Any]) -> str:
    kept = [each for each in output.get("retained") or () if not str(each).startswith(("user", "action"))]
    return f"{_count(len(kept), 'source')} kept, {len(output.get('released') or ())} released"


def _of_yield(output: Mapping[str, Any]) -> str:
    cited = output.get("citations") or ()
    return f"{_count(len(cited), 'citation')}; confidence {output.get('confidence') or 0.0:.2f}"


def _count(number: int, thing: str) -> str:
    return f"{number} {thing}{'' if number == 1 else 's'}"


_CONTRIBUTIONS: Final = {
    "action": _of_action,
    "experience": _of_experience,
    "intention": _of_intention,
    "observation": _of_observation,
    "understanding": _of_understanding,
    "yield": _of_yield,
}
