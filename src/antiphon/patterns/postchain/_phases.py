"""The six phases, and the rules by which the last one answers or continues with another phase.

- action answers at once, with its tools. It leaves the user's words as they are.
- experience finds sources, in documents and in earlier observations, and cites them by id.
- intention names the goals, and scores each source against them.
- observation records what later threads should find: the topics, and the sources that belong to them.
- understanding prunes irrelevant sources and shortens the rest to make room, but never a user's words.
- yield writes the answer with its citations, or names the phase to continue with.

A turn ends after `max_cycles`; when it is confident enough; when another cycle has changed the confidence too little; and when
it would repeat itself without new sources. If the agent of the last phase has the tool `go_on_with`, it may name any phase:
that counts before the rules that choose one, and after those that bound it. The rules use no clock, no model and no ledger.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from hashlib import blake2b
from typing import Any, NamedTuple

from typing_extensions import override

from antiphon.agents import ledger_run
from antiphon.messages import Json, thaw
from antiphon.patterns.postchain._cast import GO_ON_WITH
from antiphon.patterns.postchain._config import MENTIONED, ChainConfig
from antiphon.patterns.postchain._context import (
    Add,
    ChainContext,
    ContextOperation,
    Item,
    Link,
    PhaseWork,
    Prioritize,
    Prune,
    Tag,
    Transform,
)
from antiphon.patterns.postchain._phase import PhaseActor
from antiphon.patterns.postchain._retrieval import (
    HEARSAY,
    Observations,
    entities_in,
    find_knowledge,
    goals_in,
    observation_message,
    quote_of,
    relevance,
)
from antiphon.protocol import PHASES, AgentResult, Phase, PhaseOutput, ToolCall
from antiphon.runtime import Context


class ActionPhaseActor(PhaseActor):
    """The immediate present: a first answer."""

    phase = "action"

    @override
    def prompt(self, work: PhaseWork) -> str:
        return work.question

    @override
    async def conclude(
        self, work: PhaseWork, said: AgentResult, context: Context
    ) -> tuple[PhaseOutput, list[ContextOperation]]:
        asked = Add(item=Item(id="user-1", source="user", title="user", text=work.question, priority=1.0))
        answer = Add(item=Item(id="action", source="agent", title="first answer", text=said.response[:MENTIONED]))
        return self.output(said.response, said.confidence or 0.0), [asked, answer]


class ExperiencePhaseActor(PhaseActor):
    """The remembered past: what was found, before the model is asked."""

    phase = "experience"

    @override
    async def gather(self, work: PhaseWork, context: Context) -> PhaseWork:
        async def look(key: str) -> Json:
            return [item.model_dump(mode="json", exclude_defaults=True) for item in await self._found(work)]

        found: list[Any] = await context.effect("retrieve", {"question": work.question}, look, effects="none")
        return work.with_found(tuple(Item.model_validate(each) for each in found))

    async def _found(self, work: PhaseWork) -> list[Item]:
        ledger, limit = self.chain.ledger, self.chain.config.found
        if not limit:
            return []
        observed = await Observations(ledger).search(
            work.question, user_id=work.user_id, limit=limit, without_thread=work.thread_id
        )
        remembered = [
            Item(
                id=each.id,
                source="observation",
                title=f"observed in {each.thread_id}",
                text=each.text[:MENTIONED],
                priority=relevance(work.question, each.text) * HEARSAY,
            )
            for each in observed
        ]
        known = await find_knowledge(ledger, work.question, limit)
        return sorted((*known, *remembered), key=lambda item: -item.priority)[:limit]

    @override
    async def conclude(
        self, work: PhaseWork, said: AgentResult, context: Context
    ) -> tuple[PhaseOutput, list[ContextOperation]]:
        sources = work.found
        operations: list[ContextOperation] = [Add(item=item) for item in sources]
        operations += [Tag(target=item.id, tags=("retrieved",)) for item in sources]
        best = max((item.priority for item in sources), default=0.0)
        citations = [{"id": item.id, "source": item.title, "relevance": item.priority} for item in sources]
        return self.output(said.response, best, citations=citations), operations


ALIGNED, NOISE = 0.7, 0.3
"""From where on a source is what was looked for; below which it is beside the point."""


class IntentionPhaseActor(PhaseActor):
    """The desired future: goals, and what serves them."""

    phase = "intention"

    @override
    async def conclude(
        self, work: PhaseWork, said: AgentResult, context: Context
    ) -> tuple[PhaseOutput, list[ContextOperation]]:
        goals = goals_in(work.question)
        scores = {item.id: _score(goals, item) for item in work.found}
        operations: list[ContextOperation] = [
            Prioritize(target=name, priority=score, reason=f"has to do with: {goals[0][:120]}")
            for name, score in scores.items()
        ]
        operations += [Tag(target=name, tags=("aligned",)) for name, score in scores.items() if score >= ALIGNED]
        operations += [Tag(target=name, tags=("low_relevance",)) for name, score in scores.items() if score < NOISE]
        confidence = max(scores.values(), default=said.confidence or 0.0)
        return self.output(said.response, confidence, goals=list(goals), scores=scores), operations


def _score(goals: tuple[str, ...], item: Item) -> float:
    """Return how much an item has to do with the goal that it serves best."""
    best = max(relevance(goal, item.text) for goal in goals)
    return round(best * HEARSAY, 3) if item.source == "observation" else best


_ENTITIES = 12
_STRONG = 0.5
"""From where on a link is kept."""


class ObservationPhaseActor(PhaseActor):
    """The future's memory: links and names, for later threads."""

    phase = "observation"

    @override
    async def conclude(
        self, work: PhaseWork, said: AgentResult, context: Context
    ) -> tuple[PhaseOutput, list[ContextOperation]]:
        asked = next((item.id for item in work.context if item.source == "user"), "user")
        links = tuple(
            Link(target=asked, linked_to=item.id, relationship="is answered by", strength=item.priority)
            for item in work.sources
            if item.priority >= _STRONG
        )
        entities = entities_in("\n".join((work.question, *(item.text for item in work.cited))), _ENTITIES)
        async with ledger_run(context) as run:
            note = observation_message(context.address, work.user_id, work.question, entities, links)
            record = await run.note(note, key="observed")
        operations: list[ContextOperation] = [*links, *(Tag(target=link.linked_to, tags=("persist",)) for link in links)]
        confidence = max((link.strength for link in links), default=said.confidence or 0.0)
        output = self.output(said.response, confidence, entities=list(entities), observation=record.message.id)
        return output, operations


ROOM = 0.7
"""The share of the context limit that is used at most."""


class UnderstandingPhaseActor(PhaseActor):
    """Release: what is kept, what is shortened, what is let go of."""

    phase = "understanding"

    @override
    def prompt(self, work: PhaseWork) -> str:
        return super().prompt(replace(work, context=work.context.after(self._operations(work))))

    @override
    async def conclude(
        self, work: PhaseWork, said: AgentResult, context: Context
    ) -> tuple[PhaseOutput, list[ContextOperation]]:
        operations = self._operations(work)
        kept = replace(work, context=work.context.after(operations))
        confidence = max((item.priority for item in kept.sources), default=said.confidence or 0.0)
        released = [operation.target for operation in operations if isinstance(operation, Prune)]
        output = self.output(said.response, confidence, retained=[item.id for item in kept.context], released=released)
        return output, operations

    def _operations(self, work: PhaseWork) -> list[ContextOperation]:
        return let_go(work.context, work.question, int(self.chain.config.context_limit * ROOM))


def let_go(context: ChainContext, question: str, room: int) -> list[ContextOperation]:
    """Return what is to be let go of: what is beside the point; then, the least relevant first, what there is no room for.

    What is not quite what was looked for is shortened before it is let go of. The words of users are not touched.
    """
    operations: list[ContextOperation] = [
        Prune(target=item.id, reason=f"relevance {item.priority:g} is below {NOISE:g}")
        for item in context
        if item.source not in ("user", "agent") and item.priority < NOISE
    ]
    rest = context.after(operations)
    for item in sorted((each for each in rest if each.source != "user"), key=_worth):
        if rest.size <= room:
            break
        operation = _less(item, question)
        operations.append(operation)
        rest = rest.after([operation])
        if rest.size > room and isinstance(operation, Transform):
            operations.append(Prune(target=item.id, reason="there is no room"))
            rest = rest.after(operations[-1:])
    return operations


def _worth(item: Item) -> tuple[bool, float]:
    """Order by what is given up first: what agents have said before what was found, the less relevant first."""
    return item.source != "agent", item.priority


def _less(item: Item, question: str) -> ContextOperation:
    quote = quote_of(question, item.text)
    if item.priority < ALIGNED and len(quote) < len(item.text):
        return Transform(target=item.id, text=quote)
    return Prune(target=item.id, reason="there is no room")


class YieldPhaseActor(PhaseActor):
    """Completion: one voice, with exact citations."""

    phase = "yield"

    @override
    async def conclude(
        self, work: PhaseWork, said: AgentResult, context: Context
    ) -> tuple[PhaseOutput, list[ContextOperation]]:
        citations = [_citation(number, item, work.question) for number, item in enumerate(work.cited, 1)]
        known = "\n".join((said.response, *(item.text for item in work.cited)))
        confidence = max((item.priority for item in work.cited), default=relevance(work.question, known) * 0.5)
        course = next_phase(work, confidence, self.chain.config, wish_in(said.tool_calls))
        more: dict[str, Any] = {"citations": citations, "rationale": course.rationale, "cycle": work.cycle}
        if course.seen:
            more["seen"] = list(course.seen)
        response = _with_sources(said.response, citations)
        output = PhaseOutput(response=response, next_phase=course.following, confidence=confidence, **more)
        return output, []


def _citation(number: int, item: Item, question: str) -> dict[str, object]:
    quote = quote_of(question, item.text)
    return {"number": number, "id": item.id, "source": item.title, "quote": quote, "relevance": item.priority}


def _with_sources(text: str, citations: list[dict[str, object]]) -> str:
    if not citations:
        return text
    lines = [f"[{each['number']}] {each['source']} ({each['id']}): {each['quote']}" for each in citations]
    return "\n".join((text, "", "Sources:", *lines))


class NextStep(NamedTuple):
    """How a turn goes on."""

    following: Phase | None
    """None: it does not; the last phase answers."""
    rationale: str
    seen: tuple[str, ...] = ()
    """By digest, where this turn was and which way it went from there."""


class RequestedPhase(NamedTuple):
    """What the agent of the last phase has asked for."""

    phase: Phase
    reason: str


def wish_in(calls: Iterable[ToolCall]) -> RequestedPhase | None:
    """Return what the agent of the last phase has asked for: its last word, if it was taken."""
    for call in reversed(tuple(calls)):
        arguments: Any = thaw(call.arguments)
        if call.name == GO_ON_WITH and "result" in call.model_extra and arguments.get("phase") in PHASES:
            return RequestedPhase(arguments["phase"], str(arguments.get("reason")))
    return None


def next_phase(work: PhaseWork, confidence: float, config: ChainConfig, wish: RequestedPhase | None = None) -> NextStep:
    """Return with which phase to go on, None to answer; and why. The first rule that holds decides."""
    if work.cycle >= config.max_cycles:
        return NextStep(None, f"cycle {work.cycle} of {config.max_cycles} was the last")
    if wish is not None:
        return _unless_seen(work, wish.phase, f"the agent asked for it: {wish.reason}")
    if confidence >= config.enough_confidence:
        return NextStep(None, f"a confidence of {confidence:g} is enough")
    if work.confidences and abs(confidence - work.confidences[-1]) < config.least_change:
        return NextStep(None, f"another cycle changed the confidence by less than {config.least_change:g}")
    return _unless_seen(work, *_missing(work, confidence, config))


def _missing(work: PhaseWork, confidence: float, config: ChainConfig) -> tuple[Phase, str]:
    """Return which phase can give what is missing, and what that is."""
    if not work.cited:
        return "experience", "there is no source to rely on"
    if work.context.size > config.context_limit:
        return "understanding", "there is more in the context than there is room for"
    return "action", f"a confidence of {confidence:g} is not enough"


def _unless_seen(work: PhaseWork, following: Phase, rationale: str) -> NextStep:
    """Go on, unless the turn has gone this way from here before: then it is a loop, and would go round again."""
    here = _digest(work, following)
    if here in work.seen:
        cycle = work.seen.index(here) + 1
        return NextStep(None, f"it would loop: since cycle {cycle} went on with {following}, nothing new was found", work.seen)
    return NextStep(following, rationale, (*work.seen, here))


def _digest(work: PhaseWork, following: Phase) -> str:
    """Return a digest of the sources and the next phase. Text of agents does not count: it is nothing new."""
    known = sorted({f"{item.source}\0{item.title}\0{item.text}" for item in work.context if item.source != "agent"})
    return blake2b("\0\0".join((following, *known)).encode(errors="replace"), digest_size=12).hexdigest()
