"""What the actors of a chain exchange: requests and their addresses, and the context of a turn.

**Requests and notices** that `antiphon.protocol` does not have are here.

**The context of a turn** has items, the operations of the phases on them, and the input of one phase. The context is the fold
of the operations. They are part of the output of the phase that made them, so they are recorded once. An operation is a
request: `ChainContext` declines operations that are not allowed. A user's text is never pruned or changed, unless the
operation records the user's consent.
"""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Annotated, Any, Final, Literal, TypeAlias, cast

from pydantic import BaseModel, ConfigDict, Field, TypeAdapter

from antiphon.messages import thaw
from antiphon.protocol import PHASES, ChatTurn, Notice, Phase, PhaseContext, PhaseOutput, ProcessPhase, Reply, Request
from antiphon.protocol._values import Object
from antiphon.runtime import system_thread

# ---------------------------------------------------------------- requests and addresses


def agent_of(phase: str) -> str:
    """Return the name of a phase's agent, which is its manager's address."""
    return f"agent/{phase}"


def phase_of_agent(agent_id: str, names: Iterable[str] = ()) -> Phase | None:
    """Return the phase whose agent has a name, one of the six or an `own` one; None if none has."""
    named = (phase for phase in (*PHASES, *names) if agent_id.partition(":")[0] == agent_of(phase))
    return cast("Phase | None", next(named, None))


def config_thread(phase: str) -> str:
    """Return the thread with the configuration messages of a phase's agent."""
    return system_thread(agent_of(phase))


def thread_of_message(message_id: str) -> str:
    """Return the thread id of a CREATE_THREAD; the same message gives the same thread."""
    digest = hashlib.blake2b(message_id.encode(errors="replace"), digest_size=10).digest()
    return f"t-{base64.b32encode(digest).decode().lower()}"


def thread_address(thread_id: str) -> str:
    """Return the address of a thread's actor."""
    return f"thread/{thread_id}"


CLIENT = "client/local"
"""The default sender."""

SUPERVISOR = "supervisor/agents"

DELEGATE: Final = "delegate/1"
"""The actor that runs the phases in threads of other patterns."""
OUTSIDE: Final = "client/outside"
"""The sender of messages from other processes."""


class RunThread(Notice, frozen=True, type="RUN_THREAD", family="thread"):
    """Run the phases, from the state of the thread."""

    thread_id: str


class ChainAnswered(Reply, frozen=True, type="CHAIN_ANSWERED"):
    """The phases are done."""

    thread_id: str
    result: Object
    """The data of the THREAD_RESULT of a completed thread."""


class AskChain(Request[ChainAnswered], frozen=True, type="ASK_CHAIN", family="thread"):
    """Run the phases once, in a thread of another pattern."""

    thread_id: str
    input: str


class OwnPhaseProcessed(Reply, frozen=True, type="OWN_PHASE_PROCESSED"):
    """A phase of the program is done."""

    thread_id: str
    phase: str
    output: PhaseOutput
    processing_time: float


class ProcessOwnPhase(Request[OwnPhaseProcessed], frozen=True, type="PROCESS_OWN_PHASE", family="phase"):
    """Run a phase of the program: PROCESS_PHASE, for phases that the protocol of Choir does not know.

    The field is not `phase_type`, which has one of the six in every message.
    """

    thread_id: str
    phase: str
    input: str
    context: PhaseContext | None = None


class ThreadSubscribed(Reply, frozen=True, type="THREAD_SUBSCRIBED"):
    """From now on, at the end of each turn."""

    thread_id: str
    subscriber: str


class SubscribeThread(Request[ThreadSubscribed], frozen=True, type="SUBSCRIBE_THREAD", family="thread"):
    """Subscribe to THREAD_RESULT."""

    thread_id: str


# ---------------------------------------------------------------- items and operations

MENTIONED: Final = 600
"""The maximum length of a source or an argument in the context, in characters."""

ItemSource: TypeAlias = Literal["user", "agent", "knowledge", "memory", "observation", "tool"]


class _Value(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class Item(_Value):
    """An item in the context of a turn."""

    id: str
    """The id by which it is cited: of a message in the ledger, or of a tool call; or the phase that wrote it."""
    source: ItemSource
    title: str = ""
    """Its origin, for display: a document, a thread."""
    text: str
    tags: tuple[str, ...] = ()
    priority: float = 0.0
    """Its relevance to the question, from 0 to 1."""
    heading: tuple[str, ...] = ()
    """The headings above it, from the title of the document to the nearest one."""
    quote: str = ""
    """The most relevant text of the passage, verbatim."""
    lines: tuple[int, int] | None = None
    """The first and the last line of the quote in its document."""


class Add(_Value):
    """Add an item to the context."""

    operation: Literal["ADD"] = "ADD"
    item: Item


class Tag(_Value):
    """Add a tag to an item."""

    operation: Literal["TAG"] = "TAG"
    target: str
    tags: tuple[str, ...] = Field(min_length=1)


class Prune(_Value):
    """Remove an item from the context; it stays in the ledger."""

    operation: Literal["PRUNE"] = "PRUNE"
    target: str
    reason: str
    consent: bool = False
    """Whether the user who wrote the text has agreed."""


class Transform(_Value):
    """Replace the text of an item."""

    operation: Literal["TRANSFORM"] = "TRANSFORM"
    target: str
    transformation: Literal["summarize"] = "summarize"
    text: str
    consent: bool = False


class Link(_Value):
    """Record that two items are related."""

    operation: Literal["LINK"] = "LINK"
    target: str
    linked_to: str
    relationship: str
    strength: float = Field(ge=0, le=1)


class Prioritize(_Value):
    """Set the relevance of an item to the question."""

    operation: Literal["PRIORITIZE"] = "PRIORITIZE"
    target: str
    priority: float = Field(ge=0, le=1)
    reason: str = ""


ContextOperation: TypeAlias = Annotated[Add | Tag | Prune | Transform | Link | Prioritize, Field(discriminator="operation")]

_OPERATIONS: TypeAdapter[tuple[ContextOperation, ...]] = TypeAdapter(tuple[ContextOperation, ...])


def operations_to(operations: Iterable[ContextOperation]) -> list[dict[str, Any]]:
    """Return operations as plain JSON."""
    return [operation.model_dump(mode="json", exclude_defaults=False) for operation in operations]


def operations_from(data: Any) -> tuple[ContextOperation, ...]:
    """Read operations."""
    return _OPERATIONS.validate_python(data)


@dataclass(frozen=True, slots=True)
class ChainContext:
    """The items of a turn, in the order in which they were added."""

    items: Mapping[str, Item] = field(default_factory=dict[str, Item])
    links: tuple[Link, ...] = ()
    declined: tuple[ContextOperation, ...] = ()
    """The operations that were not carried out."""

    def __iter__(self) -> Iterator[Item]:
        return iter(self.items.values())

    @property
    def size(self) -> int:
        """Its size in characters."""
        return sum(len(item.text) for item in self)

    def after(self, operations: Iterable[ContextOperation]) -> ChainContext:
        """Return the context after some operations."""
        context = self
        for operation in operations:
            context = context._after(operation)
        return context

    def _after(self, operation: ContextOperation) -> ChainContext:
        if isinstance(operation, Add):
            return self._with(operation.item)
        item = self.items.get(operation.target)
        is_cut = isinstance(operation, Prune | Transform) and not operation.consent
        if item is None or (item.source == "user" and is_cut):
            return ChainContext(self.items, self.links, (*self.declined, operation))
        match operation:
            case Tag():
                return self._with(item.model_copy(update={"tags": tuple(dict.fromkeys((*item.tags, *operation.tags)))}))
            case Prune():
                items = {name: value for name, value in self.items.items() if name != item.id}
                return ChainContext(items, self.links, self.declined)
            case Transform():
                tags = tuple(dict.fromkeys((*item.tags, operation.transformation)))
                return self._with(item.model_copy(update={"text": operation.text, "tags": tags}))
            case Prioritize():
                return self._with(item.model_copy(update={"priority": operation.priority}))
            case Link():
                return ChainContext(self.items, (*self.links, operation), self.declined)

    def _with(self, item: Item) -> ChainContext:
        return ChainContext({**self.items, item.id: item}, self.links, self.declined)


_NOT_SOURCES: Final = ("user", "agent", "observation", "memory")
"""The origins of items that are not sources: a user, an agent, or an earlier thread."""
_SHORTEST_DRAFT = 100
"""The least length of a draft that is passed on, in characters."""
_BEHIND = 0.7
"""A source is cited if its relevance is at least this share of the best one's."""


@dataclass(frozen=True, slots=True)
class PhaseWork:
    """The input of a phase."""

    thread_id: str
    question: str
    user_id: str
    history: tuple[ChatTurn, ...]
    context: ChainContext
    previous: PhaseOutput | None
    cycle: int
    confidences: tuple[float, ...]
    """The confidence of the last phase in each earlier cycle."""
    metadata: dict[str, Any]
    seen: tuple[str, ...] = ()
    """The digests of the states of this turn and the phases that followed, to detect a loop."""
    untrusted: str | None = None
    """The source of untrusted content that the thread has read; None: there was none."""

    outside: dict[str, Any] | None = None
    """The place of a history from elsewhere; see `ThreadLife.outside`."""

    goals: tuple[str, ...] = ()
    """The user's goals, as found by the intention phase."""
    missing: str | None = None
    """The information that, by the agent of the experience phase, no source has."""
    search_for: str | None = None
    """The search terms from the last cycle."""
    is_quoted: bool = False
    """Whether the agent of this phase only chooses, and answers are assembled from quotes; see `_retrieval.py`."""

    @classmethod
    def of(cls, request: ProcessPhase | ProcessOwnPhase) -> PhaseWork:
        """Read a request. What the chain adds is its enclosure; a request of a client has none."""
        context, extra = request.context, cast("dict[str, Any]", thaw(request.enclosure))
        previous = extra.get("previous_phase_output")
        items = [Item.model_validate(fields) for fields in extra.get("items", ())]
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
            outside=extra.get("outside"),
            goals=tuple(extra.get("goals", ())),
            missing=extra.get("missing"),
            search_for=extra.get("search_for"),
        )

    @property
    def sources(self) -> tuple[Item, ...]:
        """The items that can be cited, the most relevant first: documents and results of tools, not earlier talk."""
        items = [item for item in self.context if item.source not in _NOT_SOURCES]
        return tuple(sorted(items, key=lambda item: -item.priority))

    @property
    def remembered(self) -> tuple[Item, ...]:
        """Earlier observations and talk: they are listed separately from the sources, and never cited."""
        return tuple(item for item in self.context if item.source in _NOT_SOURCES[2:])

    @property
    def search_results(self) -> tuple[Item, ...]:
        """The sources that a search found; the others are results of tools."""
        return tuple(item for item in self.sources if item.source != "tool")

    @property
    def cited(self) -> tuple[Item, ...]:
        """The sources that are cited: results of tools, and sources that are relevant and not far behind the best one."""
        results = tuple(item for item in self.sources if item.source == "tool")
        searched = [item for item in self.search_results if "low_relevance" not in item.tags]
        return (*results, *(item for item in searched if item.priority >= searched[0].priority * _BEHIND))

    def with_items(self, items: tuple[Item, ...]) -> PhaseWork:
        """Return it with more items."""
        return replace(self, context=ChainContext({**self.context.items, **{item.id: item for item in items}}))


@dataclass(frozen=True, slots=True)
class PhasePrompt:
    """The prompt of an agent, and where its numbered sources are."""

    text: str
    places: tuple[tuple[str, int, int], ...] = ()
    """In the order of the numbers: the id of a source, and the start and the end of its text in the prompt."""


def phase_prompt(work: PhaseWork, *, room: int, draft: bool, with_remembered: bool = False) -> PhasePrompt:
    """Return the prompt of an agent.

    The question comes first and complete: a small model repeats the text that it has read last. The rest has `room`
    characters, the most important first: the goals, all sources by number, earlier observations, the missing information, and
    as much of the last answer as fits. An answer that its own agent doubts is not passed on.
    """
    prompt = _Prompt(work.question, len(work.question) + room)
    if work.goals:
        prompt.add("".join(("\n\nGoals:", *(f"\n- {goal}" for goal in work.goals))))
    prompt.add_sources(work.sources)
    if with_remembered:
        prompt.add_remembered(work.remembered)
    if work.missing:
        prompt.add(f"\n\nMissing so far: {work.missing}")
    if draft and work.previous is not None and prompt.room > _SHORTEST_DRAFT and not _is_doubted(work.previous):
        prompt.add(f"\n\nSo far: {work.previous.response}"[: prompt.room])
    return PhasePrompt(prompt.text, tuple(prompt.places))


class _Prompt:
    """Builds a prompt within a number of characters."""

    def __init__(self, text: str, most: int) -> None:
        self.text = text
        self.places: list[tuple[str, int, int]] = []
        self._most = most

    @property
    def room(self) -> int:
        return self._most - len(self.text)

    def add(self, section: str) -> bool:
        """Add a section, if all of it fits."""
        is_room = len(section) <= self.room
        if is_room:
            self.text += section
        return is_room

    def add_sources(self, items: Iterable[Item]) -> None:
        for number, item in enumerate(items, 1):
            heading = "" if self.places else "\n\nSources:"
            if not self.add(f"{heading}\n[{number}] {item.title}: {item.text}"):
                break
            self.places.append((item.id, len(self.text) - len(item.text), len(self.text)))

    def add_remembered(self, items: Iterable[Item]) -> None:
        heading = "\n\nObserved before; this is no source:"
        for item in items:
            if not self.add(f"{heading}\n- {item.text}"):
                break
            heading = ""


def _is_doubted(output: PhaseOutput) -> bool:
    """Whether an agent itself considers its answer probably wrong."""
    return output.by == "agent" and output.confidence is not None and output.confidence < DOUBTED


DOUBTED: Final = 0.3
"""Below this confidence, an answer is not passed on to the next agent."""


def items_to(context: ChainContext) -> list[dict[str, Any]]:
    """Return the items of a context as plain JSON."""
    return [item.model_dump(mode="json", exclude_defaults=True) for item in context]
