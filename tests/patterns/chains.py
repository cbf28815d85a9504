"""Chains for the tests: a model that records its requests, some knowledge, and a thread cut off at any of its rows."""

import asyncio
import re
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

from pydantic_ai.messages import ModelMessage, ModelResponse, TextPart, ToolCallPart, UserPromptPart
from pydantic_ai.models.function import AgentInfo, DeltaToolCall, DeltaToolCalls, FunctionModel
from tests.loops import run
from typing_extensions import override

from antiphon.ledger import Ledger, Record
from antiphon.ledger.memory import MemoryLedger
from antiphon.messages import DataPart, JsonObject, Message, OptionCallPayload, OptionResultPayload, current_port, thaw
from antiphon.patterns.postchain import ChainConfig, PostChain
from antiphon.protocol._messages import response_type_of
from antiphon.retrieval import KnowledgeBase
from antiphon.runtime._rows import enclosure_of

__all__ = ["QUESTION", "Teller", "Witness", "branch", "chain_on", "enclosed", "known", "run", "said_in", "types_of"]

_PIECE = re.compile(r"(?s).{1,9}")

QUESTION = "How hot is green tea steeped?"
TEA = "# Tea\n\nGreen tea is steeped at 80 degrees for two minutes.\n\n# Coffee\n\nCoffee is brewed at 93 degrees."


@dataclass
class Witness:
    """Records what happened outside of the ledger, and tells a model what to do beside answering."""

    asked: list[str] = field(default_factory=list)
    """By phase, each request to the model, in order."""
    told: dict[str, list[str]] = field(default_factory=dict)
    """By phase, what the model was asked, in order."""
    failures: list[Exception] = field(default_factory=list)
    """What the next requests fail with."""
    blanks: int = 0
    """How many requests are answered with nothing: the agent cannot go on with that."""
    blank_in: str = ""
    """Only requests with these words are answered so."""
    delay: float = 0.0
    """Seconds that an answer takes."""
    running: int = 0
    most: int = 0
    on_request: Callable[[str], Awaitable[None]] | None = None
    """Awaited while a request is under way."""
    text: str = ""
    """What the model says, if it is always the same."""
    judged: dict[str, list[Any]] = field(default_factory=dict)
    """By phase, the typed outputs that the model gives, one after the other, the last one from then on; without one, text."""


class Teller(FunctionModel):
    """A model that says which phase asked, and looks up its question first where it has the tool."""

    def __init__(self, witness: Witness | None = None, name: str = "teller") -> None:
        self.witness = witness or Witness()
        super().__init__(self._answer, stream_function=self._stream, model_name=name)

    async def _answer(self, messages: list[ModelMessage], info: AgentInfo) -> ModelResponse:
        witness, phase = self.witness, _phase(info)
        witness.asked.append(phase)
        witness.told.setdefault(phase, []).append(_question(messages))
        witness.running += 1
        witness.most = max(witness.most, witness.running)
        try:
            if witness.on_request is not None:
                await witness.on_request(phase)
            await asyncio.sleep(witness.delay)
            if witness.failures:
                raise witness.failures.pop(0)
        finally:
            witness.running -= 1
        if witness.blanks and witness.blank_in in str(messages):
            witness.blanks -= 1
            return ModelResponse([])
        tools = {tool.name for tool in info.function_tools}
        if "knowledge_base" in tools and not any(isinstance(message, ModelResponse) for message in messages):
            return ModelResponse(
                [ToolCallPart("knowledge_base", {"query": _question(messages)}, tool_call_id=f"call-{len(witness.asked)}")]
            )
        if info.output_tools and (given := witness.judged.get(phase)):
            output = given.pop(0) if len(given) > 1 else given[0]
            called = f"output-{len(witness.asked)}"
            return ModelResponse([ToolCallPart(info.output_tools[0].name, output, tool_call_id=called)])
        return ModelResponse([TextPart(witness.text or f"the {phase} phase says so")])

    async def _stream(self, messages: list[ModelMessage], info: AgentInfo) -> AsyncIterator[str | DeltaToolCalls]:
        for index, part in enumerate((await self._answer(messages, info)).parts):
            if isinstance(part, TextPart):
                for word in part.content.split(" "):
                    yield f"{word} "
            elif isinstance(part, ToolCallPart):
                name: str | None = part.tool_name
                for piece in _PIECE.findall(part.args_as_json_str()):
                    yield {index: DeltaToolCall(name, piece, tool_call_id=part.tool_call_id)}
                    name = None


def _phase(info: AgentInfo) -> str:
    return (info.instructions or "").partition("You are the ")[2].partition(" ")[0] or "another"


def _question(messages: Sequence[ModelMessage]) -> str:
    parts = [part for message in messages for part in message.parts if isinstance(part, UserPromptPart)]
    return str(parts[-1].content)


class NotingLedger(MemoryLedger):
    """Notes how long a thread was after each append: only there can a process have died."""

    def __init__(self) -> None:
        super().__init__()
        self.ends: dict[str, list[int]] = {}

    @override
    async def append(self, thread_id: str, messages: Iterable[Message], **more: Any) -> tuple[Record, ...]:
        records = await super().append(thread_id, messages, **more)
        if records:
            self.ends.setdefault(thread_id, []).append(records[-1].seq)
        return records


async def known(ledger: Ledger | None = None) -> Any:
    """Return a ledger that knows something about tea."""
    ledger = NotingLedger() if ledger is None else ledger
    await KnowledgeBase(ledger).add("docs/tea.md", TEA)
    return ledger


async def branch(ledger: Ledger, thread_id: str, upto: int, changed: Sequence[Message] | None = None) -> NotingLedger:
    """Return the ledger of a process that dies when a thread has so many rows; `changed`: other rows."""
    left = await known()
    rows = [record.message async for record in ledger.read(thread_id, before=upto + 1)]
    rows = rows if changed is None else list(changed[:upto])
    epoch = await left.claim(thread_id, kind="thread")
    await left.append(thread_id, rows, epoch=epoch, pattern="postchain", allow_foreign=True)
    await left.release(thread_id, epoch=epoch, wake_at=current_port().now())
    return left


@asynccontextmanager
async def chain_on(
    ledger: Ledger | None = None, witness: Witness | None = None, config: ChainConfig | None = None, **more: Any
) -> AsyncIterator[PostChain]:
    """Open a chain whose model notes when it is asked."""
    more = {"model": Teller(witness), "config": config or ChainConfig(backoff=0), "grace": 0.05, **more}
    async with PostChain(ledger or await known(), **more) as chain:
        yield chain


def enclosed(rows: Iterable[Message], option: str) -> list[dict[str, Any]]:
    """Return what the actors of a chain have added beside their requests of a type."""
    calls = [row for row in rows if isinstance(row.payload, OptionCallPayload) and row.payload.option_name == option]
    return [thaw(enclosure_of(row)) for row in calls]


async def said_in(ledger: Ledger, thread_id: str) -> list[Message]:
    return [record.message async for record in ledger.read(thread_id)]


def types_of(messages: Iterable[Message]) -> list[str]:
    """Return the messages between actors, as the document writes them: `sender -> receiver: TYPE`."""
    return [
        f"{_kind(message.policy)} -> {_kind(message.to[0])}: {kind}"
        for message in messages
        if message.lane == "control" and message.to and (kind := _type(message))
    ]


def _kind(address: str) -> str:
    return address.partition("/")[0]


def _type(message: Message) -> str:
    match message.payload:
        case OptionCallPayload(option_name=name):
            return name
        case OptionResultPayload(is_error=True):
            return "ERROR"
        case OptionResultPayload(option_name=name):
            return str((message.metadata.get("antiphon") or {}).get("response_type", response_type_of(name)))
        case _:
            match message.parts:
                case (DataPart(data=JsonObject() as data),):
                    return str(data.get("type", ""))
                case _:
                    return ""
