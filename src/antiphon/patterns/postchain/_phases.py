"""The six phases, and the rules by which the last one answers or continues with another phase.

- action answers at once, with its tools. It does not change the user's text.
- experience finds sources in documents, and observations of earlier threads.
- intention names the goals, and scores each source against them.
- observation records data for later threads: the topics, and the sources that belong to them.
- understanding prunes irrelevant sources and shortens the rest to make room, but never a user's text.
- yield writes the answer with its citations, or names the phase to continue with.

The agent of a phase judges, in its typed output (`_outputs.py`). Where it does not, arithmetic over words decides
(`_retrieval.py`). `by` in the output of a phase records which: `agent` or `code`.

A turn ends after `max_cycles`; when it is confident enough; when another cycle has changed the confidence too little; and when
it would repeat itself without new sources. The agent of the last phase may name any phase to continue with: that takes
precedence over the rules that choose a phase, but not over those that limit the turn. A further cycle searches for information
that the last one has missed. The rules use no clock, no model and no ledger.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Sequence
from dataclasses import replace
from hashlib import blake2b
from typing import Any, NamedTuple

from typing_extensions import override

from antiphon.agents.durability._failures import is_outside
from antiphon.durable import ledger_run
from antiphon.errors import StoppedError
from antiphon.messages import Json, Message, PartsPayload, TextPart, thaw
from antiphon.patterns.postchain._cast import GO_ON_WITH
from antiphon.patterns.postchain._config import ChainConfig
from antiphon.patterns.postchain._context import (
    MENTIONED,
    Add,
    ChainContext,
    ContextOperation,
    Item,
    Link,
    PhasePrompt,
    PhaseWork,
    Prioritize,
    Prune,
    Tag,
    Transform,
    phase_prompt,
)
from antiphon.patterns.postchain._outputs import (
    ActionOutput,
    By,
    ExperienceOutput,
    IntentionOutput,
    ObservationOutput,
    UnderstandingOutput,
    YieldOutput,
    judgement,
    marked,
    without_marks,
)
from antiphon.patterns.postchain._phase import PhaseActor
from antiphon.patterns.postchain._retrieval import (
    HEARSAY,
    PICKED,
    USED,
    Observations,
    citation,
    entities_in,
    find_knowledge,
    goals_in,
    items_given,
    likely_items,
    observation_message,
    place_of,
    quote_of,
    quoted_answer,
    relevance,
    significant,
)
from antiphon.protocol import PHASES, AgentResult, ErrorCode, Phase, PhaseOutput, ToolCall
from antiphon.runtime import Context


class ActionPhaseActor(PhaseActor):
    """The immediate present: a first answer."""

    phase = "action"

    @override
    def prompt(self, work: PhaseWork) -> PhasePrompt:
        return PhasePrompt(work.question)

    @override
    async def conclude(
        self, work: PhaseWork, result: AgentResult, context: Context
    ) -> tuple[PhaseOutput, list[ContextOperation]]:
        judged = judgement(ActionOutput, self.phase, result)
        by = by_agent(judged is not None and judged.confidence is not None)
        confidence = result.confidence if result.confidence is not None else first_confidence(work.question, result)
        question = Add(item=Item(id="user-1", source="user", title="user", text=work.question, priority=1.0))
        answer = Item(id="action", source="agent", title="first answer", text=result.response[:MENTIONED])
        if by == "agent":
            answer = answer.model_copy(update={"priority": confidence})
        return self.output(result.response, confidence, by=by), [question, Add(item=answer)]


def by_agent(is_judged: bool) -> By:
    """Return who decided."""
    return "agent" if is_judged else "code"


def first_confidence(question: str, result: AgentResult) -> float:
    """Return the share of a question that its first answer covers; more, if a tool contributed."""
    from_tools = max((relevance(question, item.text) for item in items_given(result.tool_calls, question)), default=0.0)
    return max(from_tools, relevance(question, result.response) * HEARSAY)


class ExperiencePhaseActor(PhaseActor):
    """The remembered past: sources, found before the model is asked."""

    phase = "experience"

    @override
    async def gather(self, work: PhaseWork, context: Context) -> PhaseWork:
        async def look(key: str) -> Json:
            return [item.model_dump(mode="json", exclude_defaults=True) for item in await self._found(work)]

        arguments: dict[str, Json] = {"question": work.question}
        if work.search_for is not None:
            arguments["search_for"] = work.search_for
        items: list[Any] = await context.effect("retrieve", arguments, look, effects="none")
        return work.with_items(tuple(Item.model_validate(item) for item in items))

    async def _found(self, work: PhaseWork) -> list[Item]:
        ledger, limit, query = self.chain.ledger, self.chain.config.max_sources, work.search_for or work.question
        if not limit:
            return []
        observed = await Observations(ledger).search(query, user_id=work.user_id, limit=limit, without_thread=work.thread_id)
        remembered = [
            Item(
                id=observation.id,
                source="observation",
                title=f"observed in {observation.thread_id}",
                text=observation.text[:MENTIONED],
                priority=relevance(work.question, observation.text) * HEARSAY,
            )
            for observation in observed
        ]
        knowledge = await self._find_knowledge(query, limit)
        return sorted((*knowledge, *remembered), key=lambda item: -item.priority)[:limit]

    async def _find_knowledge(self, query: str, limit: int) -> list[Item]:
        """Return passages about a query. A retriever that fails outside is asked again, as a model is."""
        failures = 0
        while True:
            try:
                return await find_knowledge(self.chain.retriever, query, limit)
            except Exception as exc:
                failures += 1
                if not is_outside(exc):
                    raise
                if (pause := self.chain.config.patience.pause(exc, failures)) is None:
                    reason = f"the documents cannot be searched: {type(exc).__qualname__}: {exc}"
                    raise StoppedError(reason, cause=ErrorCode.AGENT_ERROR) from exc
            await asyncio.sleep(pause)

    @override
    def prompt(self, work: PhaseWork) -> PhasePrompt:
        config = self.chain.config
        return phase_prompt(work, room=config.context_limit, draft=config.drafts, with_remembered=True)

    @override
    async def conclude(
        self, work: PhaseWork, result: AgentResult, context: Context
    ) -> tuple[PhaseOutput, list[ContextOperation]]:
        judged = judgement(ExperienceOutput, self.phase, result)
        sources, used = work.search_results, () if judged is None else judged.used
        operations: list[ContextOperation] = [Add(item=item) for item in (*sources, *work.remembered)]
        operations += [Tag(target=item.id, tags=("retrieved",)) for item in sources]
        tags = (USED, PICKED) if work.is_quoted else (USED,)
        operations += [Tag(target=name, tags=tags) for name in used if name in work.context.items]
        best = max((item.priority for item in sources), default=0.0)
        fields: dict[str, Any] = {
            "citations": [_source_entry(item) for item in sources],
            "by": by_agent(bool(used) or (judged is not None and bool(judged.missing))),
        }
        if used:
            fields["used"] = list(used)
            if work.is_quoted:
                fields["picked"] = True
        if judged is not None and judged.missing:
            fields["missing"] = judged.missing
        if work.remembered:
            fields["observations"] = [{"id": item.id, "from": item.title} for item in work.remembered]
        return self.output(result.response, best, **fields), operations


ALIGNED, NOISE = 0.7, 0.3
"""The relevance from which on a source serves the goals, and below which it is irrelevant."""


def _source_entry(item: Item) -> dict[str, object]:
    """Return a citation without its quote, for sources before there is an answer."""
    return {name: value for name, value in citation(0, item).items() if name not in ("number", "quote")}


class IntentionPhaseActor(PhaseActor):
    """The desired future: goals, and the sources that serve them."""

    phase = "intention"

    @override
    async def conclude(
        self, work: PhaseWork, result: AgentResult, context: Context
    ) -> tuple[PhaseOutput, list[ContextOperation]]:
        judged = judgement(IntentionOutput, self.phase, result)
        goals = (() if judged is None else _goals(judged)) or goals_in(work.question)
        agent_scores = {} if judged is None else {score.source: score for score in judged.scores}
        scores = {
            item.id: agent_scores[item.id].score if item.id in agent_scores else _score(goals, item, work.question)
            for item in work.search_results
        }
        reasons = {name: agent_scores[name].reason for name in scores if name in agent_scores and agent_scores[name].reason}
        default = f"has to do with: {goals[0][:120]}"
        operations: list[ContextOperation] = [
            Prioritize(target=name, priority=score, reason=reasons.get(name, default)) for name, score in scores.items()
        ]
        operations += [Tag(target=name, tags=("aligned",)) for name, score in scores.items() if score >= ALIGNED]
        operations += [Tag(target=name, tags=("low_relevance",)) for name, score in scores.items() if score < NOISE]
        confidence = max(scores.values(), default=result.confidence or 0.0)
        fields: dict[str, Any] = {"goals": list(goals), "scores": scores, "by": by_agent(bool(judged and _goals(judged)))}
        if agent_scores:
            fields |= {"by": "agent", "reasons": reasons, "by_code": [name for name in scores if name not in agent_scores]}
        return self.output(result.response, confidence, **fields), operations


def _goals(judged: IntentionOutput) -> tuple[str, ...]:
    return tuple(dict.fromkeys(goal.strip() for goal in judged.goals if goal.strip()))


def _score(goals: tuple[str, ...], item: Item, question: str) -> float:
    """Return the relevance of an item to the goal that it serves best; the search has scored it by the question itself."""
    is_scored = item.quote and goals == goals_in(question)
    best = item.priority if is_scored else max(relevance(goal, item.text) for goal in goals)
    if USED in item.tags:
        return max(best, NOISE)
    return round(best * HEARSAY, 3) if item.source == "observation" else best


_ENTITIES = 12
_STRONG = 0.5
"""The strength from which on a link is kept."""


class ObservationPhaseActor(PhaseActor):
    """The future's memory: links and names, for later threads."""

    phase = "observation"

    @override
    async def conclude(
        self, work: PhaseWork, result: AgentResult, context: Context
    ) -> tuple[PhaseOutput, list[ContextOperation]]:
        judged = judgement(ObservationOutput, self.phase, result)
        links = self._links(work, judged)
        named = () if judged is None else tuple(dict.fromkeys(name.strip() for name in judged.entities if name.strip()))
        entities = named or entities_in("\n".join((work.question, *(item.text for item in work.cited))), _ENTITIES)
        is_judged = judged is not None and bool(judged.links or named)
        async with ledger_run(context) as run:
            notes = result.response[:MENTIONED] if is_judged else ""
            note = observation_message(context.address, work.user_id, work.question, entities, links, notes=notes)
            record = await run.note(note, key="observed")
        operations: list[ContextOperation] = [*links, *(Tag(target=link.linked_to, tags=("persist",)) for link in links)]
        confidence = max((link.strength for link in links), default=result.confidence or 0.0)
        fields: dict[str, Any] = {"entities": list(entities), "observation": record.message.id, "by": by_agent(is_judged)}
        return self.output(result.response, confidence, **fields), operations

    def _links(self, work: PhaseWork, judged: ObservationOutput | None) -> tuple[Link, ...]:
        """Return the kept links: those of the agent, or, if it has given none, those to relevant sources."""
        question_id = next((item.id for item in work.context if item.source == "user"), "user")
        if judged is not None and judged.links:
            relations = [(link.source, link.relationship, link.strength) for link in judged.links]
        else:
            relations = [(item.id, "is answered by", item.priority) for item in work.sources]
        return tuple(
            Link(target=question_id, linked_to=name, relationship=relationship, strength=strength)
            for name, relationship, strength in relations
            if strength >= _STRONG
        )


ROOM = 0.7
"""The share of the context limit that is used at most."""


class UnderstandingPhaseActor(PhaseActor):
    """Release: decides which sources are kept, shortened or released."""

    phase = "understanding"

    @override
    async def conclude(
        self, work: PhaseWork, result: AgentResult, context: Context
    ) -> tuple[PhaseOutput, list[ContextOperation]]:
        judged = judgement(UnderstandingOutput, self.phase, result)
        if judged is not None and not (judged.keep or judged.release):
            judged = None
        operations = self._operations(work, judged)
        remaining = replace(work, context=work.context.after(operations))
        confidence = max((item.priority for item in remaining.sources), default=result.confidence or 0.0)
        fields: dict[str, Any] = {
            "retained": [item.id for item in remaining.context],
            "released": [operation.target for operation in operations if isinstance(operation, Prune)],
            "by": by_agent(judged is not None),
        }
        if judged is not None:
            prunings = [operation for operation in operations if isinstance(operation, Prune)]
            fields["reasons"] = {pruning.target: pruning.reason for pruning in prunings}
        return self.output(result.response, confidence, **fields), operations

    def _operations(self, work: PhaseWork, judged: UnderstandingOutput | None) -> list[ContextOperation]:
        room = int(self.chain.config.context_limit * ROOM)
        if judged is None:
            return let_go(work.context, work.question, room)
        reasons = {reason.source: reason.reason for reason in judged.reasons}
        released: list[ContextOperation] = [
            Prune(target=name, reason=reasons.get(name) or "the agent has no need of it") for name in judged.release
        ]
        return released + make_room(work.context.after(released), work.question, room)


def let_go(context: ChainContext, question: str, room: int) -> list[ContextOperation]:
    """Return the items to release: irrelevant ones; then, the least relevant first, those that do not fit."""
    operations: list[ContextOperation] = [
        Prune(target=item.id, reason=f"relevance {item.priority:g} is below {NOISE:g}")
        for item in context
        if item.source not in ("user", "agent") and item.priority < NOISE
    ]
    return operations + make_room(context.after(operations), question, room)


def make_room(context: ChainContext, question: str, room: int) -> list[ContextOperation]:
    """Return the items to release because they do not fit, the least relevant first.

    Items of medium relevance are shortened before they are released. The text of users is not changed.
    """
    operations: list[ContextOperation] = []
    # Text of agents before sources, the less relevant first.
    candidates = sorted(
        (candidate for candidate in context if candidate.source != "user"),
        key=lambda item: (item.source != "agent", item.priority),
    )
    for item in candidates:
        if context.size <= room:
            break
        quote = quote_of(question, item.text)
        steps: list[ContextOperation] = [Prune(target=item.id, reason="there is no room")]
        if item.priority < ALIGNED and len(quote) < len(item.text):
            steps.insert(0, Transform(target=item.id, text=quote))
        for operation in steps:
            if context.size > room:
                operations.append(operation)
                context = context.after([operation])
    return operations


class YieldPhaseActor(PhaseActor):
    """Completion: one voice, with exact citations."""

    phase = "yield"

    @override
    async def conclude(
        self, work: PhaseWork, result: AgentResult, context: Context
    ) -> tuple[PhaseOutput, list[ContextOperation]]:
        judged = judgement(YieldOutput, self.phase, result)
        text, citations, removed = (*quoted_answer(work), ()) if work.is_quoted else cite(work, result.response, judged)
        known_text = "\n".join((text, *(item.text for item in work.cited)))
        confidence = result.confidence if judged is not None else None
        is_judged = confidence is not None
        if confidence is None:
            confidence = max((item.priority for item in work.cited), default=relevance(work.question, known_text) * 0.5)
        wish = wish_in(result.tool_calls) or _wish_of(judged)
        course = next_phase(work, confidence, self.chain.config, wish, order=self.chain.order)
        fields: dict[str, Any] = {"citations": citations, "rationale": course.rationale, "cycle": work.cycle}
        is_picked = work.is_quoted and any(PICKED in item.tags for item in likely_items(work))
        fields["by"] = by_agent(is_judged or is_picked or bool(marked(result.response) and judged is not None))
        if is_picked:
            fields["picked"] = True
        if removed:
            fields["removed_marks"] = list(removed)
        if course.seen:
            fields["seen"] = list(course.seen)
        if course.following is not None:
            fields["search_for"] = search_in(work, judged)
        if (judged is not None or work.is_quoted) and course.following is None:
            await _say_answer(text, context)
        if citations:
            lines = [f"[{shown['number']}] {place_of(shown)} ({shown['id']}): {shown['quote']}" for shown in citations]
            text = "\n".join((text, "", "Sources:", *lines))
        output = PhaseOutput(response=text, next_phase=course.following, confidence=confidence, **fields)
        return output, []


def cite(work: PhaseWork, text: str, judged: YieldOutput | None) -> tuple[str, list[dict[str, object]], tuple[int, ...]]:
    """Return an answer without marks that have no source, its citations, and the numbers of the removed marks.

    The marks of an agent with a typed output decide what is cited. Otherwise, and if it has set no mark, relevant sources and
    those with a mark are cited.
    """
    numbered = dict(enumerate(work.sources, 1))
    with_mark = [number for number in marked(text) if number in numbered]
    relevant_ids = {item.id for item in work.cited} if judged is None or not with_mark else set[str]()
    quotes = {} if judged is None else {quote.source: quote.text for quote in judged.quotes}
    citations: list[dict[str, object]] = []
    for number, item in numbered.items():
        if number in with_mark or item.id in relevant_ids:
            quote = quotes.get(item.id)
            text_of_quote = (item.quote or quote_of(work.question, item.text)) if quote is None else " ".join(quote.split())
            citations.append(citation(number, item, text_of_quote))
    cited_numbers = {shown["number"] for shown in citations}
    removed = tuple(number for number in marked(text) if number not in cited_numbers)
    return without_marks(text, removed), citations, removed


def search_in(work: PhaseWork, judged: YieldOutput | None) -> str:
    """Return the search terms of a further cycle: what agents missed, else the words of the question that no source has."""
    if judged is not None and judged.search_for:
        return judged.search_for
    if work.missing:
        return work.missing
    known_words = {word for item in work.cited for word in significant(item.text)}
    unknown_words = " ".join(word for word in significant(work.question) if word not in known_words)
    return unknown_words or " ".join(work.goals) or work.question


async def _say_answer(text: str, context: Context) -> None:
    """Write the answer to the thread as talk: in the talk of the agent with its model, it is part of the typed output."""
    message = Message(
        policy=PHASES[-1], payload=PartsPayload(parts=(TextPart(text=text),)), role_hint_for_llm="assistant", lane="talk"
    )
    async with ledger_run(context) as run:
        await run.say_soon(message, key="answer")


class NextStep(NamedTuple):
    """The continuation of a turn."""

    following: Phase | None
    """The next phase; None: the last phase answers."""
    rationale: str
    seen: tuple[str, ...] = ()
    """The digests of the states of this turn and the phases that followed."""


class RequestedPhase(NamedTuple):
    """The request of the agent of the last phase."""

    phase: Phase
    reason: str


def wish_in(calls: Iterable[ToolCall]) -> RequestedPhase | None:
    """Return the request of the agent of the last phase: the last accepted one."""
    for call in reversed(tuple(calls)):
        arguments: Any = thaw(call.arguments)
        if call.name == GO_ON_WITH and "result" in call.model_fields_set and arguments.get("phase") in PHASES:
            return RequestedPhase(arguments["phase"], str(arguments.get("reason")))
    return None


def _wish_of(judged: YieldOutput | None) -> RequestedPhase | None:
    if judged is None or judged.next_phase is None:
        return None
    return RequestedPhase(judged.next_phase, judged.search_for or "the answer is not good enough yet")


def next_phase(
    work: PhaseWork,
    confidence: float,
    config: ChainConfig,
    wish: RequestedPhase | None = None,
    *,
    order: Sequence[str] = PHASES,
) -> NextStep:
    """Return the phase to continue with, None to answer; and the reason. The first rule that applies decides.

    `order` has the phases of the chain: a rule whose phase is not among them continues with the first one of the six that is.
    """
    if work.cycle >= config.max_cycles:
        return NextStep(None, f"cycle {work.cycle} of {config.max_cycles} was the last")
    if wish is not None and wish.phase in order:
        return _unless_seen(work, wish.phase, f"the agent asked for it: {wish.reason}")
    if confidence >= config.enough_confidence:
        return NextStep(None, f"a confidence of {confidence:g} is enough")
    if work.confidences and abs(confidence - work.confidences[-1]) < config.least_change:
        return NextStep(None, f"another cycle changed the confidence by less than {config.least_change:g}")
    following, why = _missing(work, confidence, config)
    return _unless_seen(work, following if following in order else next(phase for phase in PHASES if phase in order), why)


def _missing(work: PhaseWork, confidence: float, config: ChainConfig) -> tuple[Phase, str]:
    """Return the phase that can provide the missing information, and that information."""
    if not work.cited:
        return "experience", "there is no source to rely on"
    if work.missing:
        return "experience", f"the sources do not say: {work.missing}"
    if work.context.size > config.context_limit:
        return "understanding", "there is more in the context than there is room for"
    return "action", f"a confidence of {confidence:g} is not enough"


def _unless_seen(work: PhaseWork, following: Phase, rationale: str) -> NextStep:
    """Continue, unless the turn has taken this step from the same state before: that would be a loop."""
    # Of the sources and the next phase. Text of agents does not count, because it adds no information.
    facts = sorted({f"{item.source}\0{item.title}\0{item.text}" for item in work.context if item.source != "agent"})
    digest = blake2b("\0\0".join((following, *facts)).encode(errors="replace"), digest_size=12).hexdigest()
    if digest in work.seen:
        cycle = work.seen.index(digest) + 1
        return NextStep(None, f"it would loop: since cycle {cycle} went on with {following}, nothing new was found", work.seen)
    return NextStep(following, rationale, (*work.seen, digest))
