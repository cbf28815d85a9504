"""Plays for the tests: scripted agents, a ledger for them, and short forms of letters."""

from collections.abc import Callable, Iterable, Sequence
from typing import Any

from pydantic_ai.messages import (
    ModelMessage,
    ModelRequest,
    ModelResponse,
    TextPart,
    ToolCallPart,
    ToolReturnPart,
    UserPromptPart,
)
from pydantic_ai.models.function import AgentInfo, FunctionModel

from antiphon.dialects import marsys
from antiphon.ledger import Ledger
from antiphon.messages import Message
from antiphon.patterns.cast import Patience
from antiphon.patterns.peers import PeerSpec

__all__ = ["QUICK", "Hearing", "Play", "asks", "calls", "line", "says", "spec", "summary", "talk_in"]

QUICK = Patience(backoff=0, attempts=1)
Part = Callable[[str, Sequence[Any]], ModelResponse]
"""Returns an agent's next message from its last request and the tool results since."""


def says(text: str) -> ModelResponse:
    return ModelResponse([TextPart(text)])


def calls(*wanted: tuple[str, dict[str, Any]]) -> ModelResponse:
    """Call tools, all in one step."""
    return ModelResponse(
        [ToolCallPart(tool, given, tool_call_id=f"call-{number}") for number, (tool, given) in enumerate(wanted, 1)]
    )


def asks(*wanted: tuple[str, str], **more: Any) -> ModelResponse:
    """Ask several agents in one step: each a name and a request."""
    return calls(*(("invoke_agent", {"target": target, "request": request, **more}) for target, request in wanted))


def line(*steps: ModelResponse) -> Part:
    """Return a part that says one thing after the other, and in the end what its tools gave last."""

    def part(asked: str, given: Sequence[Any]) -> ModelResponse:
        groups = list(given)
        if len(groups) < len(steps):
            return steps[len(groups)]
        return says(" | ".join(summary(each) for each in groups[-1]))

    return part


def summary(given: Any) -> str:
    """Return what a tool gave, in a few words."""
    if isinstance(given, dict) and "role" in given:
        return f"{given['role']}:{given.get('error_type') or given['content']}"
    return str(given)


class Play(FunctionModel):
    """A model that plays several parts, by the first words of its instructions; it notes whom it was asked to play."""

    def __init__(self, **parts: Part) -> None:
        self.parts = parts
        self.asked: list[str] = []
        self.prompts: dict[str, list[str]] = {}
        super().__init__(self._play, model_name="play")

    async def _play(self, messages: list[ModelMessage], info: AgentInfo) -> ModelResponse:
        name = (info.instructions or "").partition("You are ")[2].partition(".")[0]
        asked, given = _since(messages)
        self.asked.append(name)
        self.prompts.setdefault(name, []).append(asked)
        return self.parts[name](asked, given)


def _since(messages: list[ModelMessage]) -> tuple[str, list[list[Any]]]:
    """Return what was last asked, and what tools have given since, step by step."""
    asked, given = "", []
    for message in messages:
        if not isinstance(message, ModelRequest):
            continue
        returned = [part.content for part in message.parts if isinstance(part, ToolReturnPart)]
        if returned:
            given.append(returned)
        for part in message.parts:
            if isinstance(part, UserPromptPart):
                asked, given = _text(part), []
    return asked, given


def _text(part: UserPromptPart) -> str:
    if isinstance(part.content, str):
        return part.content
    return "\n".join(each if isinstance(each, str) else getattr(each, "content", "") for each in part.content)


def spec(name: str, *allowed: str, **more: Any) -> PeerSpec:
    return PeerSpec(name=name, instructions=f"You are {name}.", allowed_peers=allowed, **more)


def heard(messages: list[ModelMessage]) -> list[str]:
    """Return what a model was told, part by part, in a few words."""
    return [f"{part.part_kind} {_words(part)}" for message in messages for part in message.parts]


def _words(part: Any) -> str:
    match part:
        case UserPromptPart():
            return _text(part)
        case ToolCallPart():
            return f"{part.tool_name}({part.args})"
        case _:
            return str(part.content)


class Hearing(Play):
    """The same, which also notes what each was told, request by request."""

    def __init__(self, **parts: Part) -> None:
        self.heard: dict[str, list[list[str]]] = {}
        super().__init__(**parts)

    async def _play(self, messages: list[ModelMessage], info: AgentInfo) -> ModelResponse:
        response = await super()._play(messages, info)
        self.heard.setdefault(self.asked[-1], []).append(heard(messages))
        return response


async def talk_in(ledger: Ledger, thread_id: str, lane: str = "talk") -> list[Message]:
    return [record.message async for record in ledger.read(thread_id) if record.message.lane == lane]


def briefly(letters: Iterable[marsys.Message]) -> list[str]:
    """Return letters in a few words: role, sender, receiver and text."""
    return [
        f"{each.role} {each.caller}>{(each.metadata or {})['callee']}: {each.error_type or each.content}" for each in letters
    ]
