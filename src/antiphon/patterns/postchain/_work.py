"""PhaseWork: what a phase has to go by, read from its request; and how that is put before a model."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from antiphon.messages import thaw
from antiphon.patterns.postchain._operations import ChainContext, Item
from antiphon.protocol import ChatTurn, PhaseOutput, ProcessPhase

__all__ = ["PhaseWork", "items_to"]

_SHORTEST_DRAFT = 100
"""Characters below which a draft is not worth telling."""
_BEHIND = 0.7
"""From which share of the best one's relevance on a source is cited."""


@dataclass(frozen=True, slots=True)
class PhaseWork:
    """What a phase has to go by."""

    thread_id: str
    question: str
    user_id: str
    history: tuple[ChatTurn, ...]
    context: ChainContext
    previous: PhaseOutput | None
    cycle: int
    confidences: tuple[float, ...]
    """Of the cycles before this one, how sure their last phase was."""
    metadata: dict[str, Any]
    seen: tuple[str, ...] = ()
    """By digest, where this turn was and which way it went from there: so that it does not go round."""
    untrusted: str | None = None
    """Where something came from that strangers wrote and the thread has read; None: there was none."""

    @classmethod
    def of(cls, request: ProcessPhase) -> PhaseWork:
        """Read a request; whoever asks a phase by hand need not give more than the protocol wants."""
        context = request.context
        extra: dict[str, Any] = {} if context is None else {name: thaw(value) for name, value in context.model_extra.items()}
        previous = extra.get("previous_phase_output")
        items = [Item.model_validate(each) for each in extra.get("items", ())]
        return cls(
            thread_id=request.thread_id,
            question=request.input,
            user_id=(context.user_id if context is not None else None) or "",
            history=() if context is None else context.conversation_history,
            context=ChainContext({item.id: item for item in items}),
            previous=None if previous is None else PhaseOutput.model_validate(previous),
            cycle=int(extra.get("cycle", 1)),
            confidences=tuple(extra.get("confidences", ())),
            metadata=dict(extra.get("metadata") or {}),
            seen=tuple(extra.get("seen", ())),
            untrusted=extra.get("untrusted"),
        )

    @property
    def sources(self) -> tuple[Item, ...]:
        """What can be cited, the most relevant first."""
        found = [item for item in self.context if item.source not in ("user", "agent")]
        return tuple(sorted(found, key=lambda item: -item.priority))

    @property
    def found(self) -> tuple[Item, ...]:
        """The sources that were found; the others were given by tools, which somebody has asked for just that."""
        return tuple(item for item in self.sources if item.source != "tool")

    @property
    def cited(self) -> tuple[Item, ...]:
        """The sources that are cited: what tools gave; not what is beside the point, nor what is far behind the best one."""
        given = tuple(item for item in self.sources if item.source == "tool")
        found = [item for item in self.found if "low_relevance" not in item.tags]
        return (*given, *(item for item in found if item.priority >= found[0].priority * _BEHIND))

    def with_found(self, items: tuple[Item, ...]) -> PhaseWork:
        """Return it with more to go by."""
        return replace(self, context=ChainContext({**self.context.items, **{item.id: item for item in items}}))

    def prompt(self, *, room: int, draft: bool = False) -> str:
        """Return the question with what is known, for a model; `draft`: with what the phase before has said.

        The question comes first and whole: a small model repeats what it has read last. The rest has `room` characters: the
        best sources, then as much of the draft as there is room for.
        """
        sections = [self.question]
        if sources := self._listed(room):
            sections.append(sources)
            room -= len(sources) + 2
        if draft and self.previous is not None and room > _SHORTEST_DRAFT:
            sections.append(f"So far: {self.previous.response}"[: room - 2])
        return "\n\n".join(sections)

    def _listed(self, room: int) -> str:
        """Return the sources that are cited, numbered, as far as there is room; empty if there is none."""
        text = "Sources:"
        for number, item in enumerate(self.cited, 1):
            line = f"\n[{number}] {item.title}: {item.text}"
            if len(text) + len(line) + 2 > room:
                break
            text += line
        return text if "\n" in text else ""


def items_to(context: ChainContext) -> list[dict[str, Any]]:
    """Return the items of a context as plain JSON."""
    return [item.model_dump(mode="json", exclude_defaults=True) for item in context]
