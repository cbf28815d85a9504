"""Edges: names of the module, many threads, tools of others that say something of themselves, arguments that are none."""

import asyncio
import builtins
from datetime import timedelta
from typing import Any

import pytest
from pydantic_ai import AudioUrl, BinaryContent, DocumentUrl, FunctionToolset, ImageUrl, VideoUrl
from pydantic_ai.messages import ModelResponse, TextPart, ToolCallPart
from pydantic_ai.models.function import FunctionModel
from pydantic_ai.tools import Tool
from tests.agents.toolkit.kit import NOON, call, run_agent, script

import antiphon.agents.toolkit as module
from antiphon.agents.toolkit import Approval, Toolkit, answer, pending_approvals
from antiphon.durable import ledger_run
from antiphon.errors import NotWaitingError, ParkedError
from antiphon.ledger import Ledger, open_ledger
from antiphon.messages import MediaPart, Message, OptionCallPayload


def test_the_module_has_the_names_that_it_says() -> None:
    assert dir(module) == sorted(module.__all__)
    with pytest.raises(AttributeError, match="has no attribute 'Hammer'"):
        module.Hammer  # noqa: B018


@pytest.mark.slow
def test_questions_of_many_threads_are_found() -> None:
    """More than one page of them."""

    async def work() -> int:
        toolkit = Toolkit()

        def pay() -> None: ...

        toolkit.add(pay, approval=True, to=["clerk"])
        async with open_ledger("memory:") as ledger:
            for number in range(101):
                with pytest.raises(ParkedError):
                    await pay_in(toolkit, ledger, f"t{number}")
            return len(await pending_approvals(ledger))

    assert asyncio.run(work()) == 101


async def pay_in(toolkit: Toolkit, ledger: Ledger, thread: str) -> None:
    async with ledger_run(thread, ledger=ledger):
        await toolkit.call("clerk", "pay", {})


@pytest.mark.parametrize(
    "asked",
    [
        {},
        {"agent": "clerk", "tool": "pay", "arguments": {}, "digest": "d", "reason": "r", "expires_at": "soon"},
        {"agent": 1, "tool": "pay", "arguments": {}, "digest": "d", "reason": "r", "expires_at": "2030-01-01T00:00:00Z"},
        {"agent": "clerk", "tool": "pay", "arguments": [], "digest": "d", "reason": "r", "expires_at": "2030-01-01T00:00:00Z"},
    ],
)
async def test_a_row_that_only_looks_like_a_question_is_ignored(asked: dict[str, Any]) -> None:
    """S2: a history from elsewhere, stored unchanged; the list of questions skips it."""
    payload = OptionCallPayload(invocation_id="approval-x", option_name="APPROVE", arguments=asked)
    row = Message(policy="runtime", payload=payload, lane="control")

    async with open_ledger("memory:") as ledger:
        await ledger.append("t", [row], allow_foreign=True)
        assert await pending_approvals(ledger) == ()
        with pytest.raises(NotWaitingError, match="there is no approval"):
            await answer(ledger, "approval-x", principal="ada", approved=True)


def test_a_question_without_an_answer_says_no_to_nobody() -> None:
    asked = Approval("a", "t", "clerk", "pay", {}, "d", "why", NOON + timedelta(1))

    assert asked.standing("d") == "open"
    assert asked.words == "nobody said no"


def test_the_program_may_override_the_declared_effects_of_a_toolset() -> None:
    def look() -> None: ...

    theirs = FunctionToolset[Any]([Tool(look, metadata={"antiphon": {"effects": "none"}})])
    believed, told = Toolkit(), Toolkit()
    believed.add_toolset(theirs)
    told.add_toolset(theirs, effects="idempotent")

    assert asyncio.run(believed.tools())["look"].effects == "none"
    assert asyncio.run(told.tools())["look"].effects == "idempotent"


def test_a_schema_that_is_none_is_named() -> None:
    broken = Tool.from_schema(lambda: None, "broken", None, {"type": "nonsense"})

    with pytest.raises(ValueError, match="the arguments of 'broken': it is no JSON schema"):
        Toolkit([broken])


@pytest.mark.parametrize("arguments", ["[1, 2]", '"text"', "null", "{", ""])
def test_arguments_that_are_no_object_are_an_error_for_the_model(arguments: str) -> None:
    """F30: invalid JSON in a call."""
    done: list[str] = []

    def act(n: int) -> None:
        done.append("act")

    toolkit = Toolkit([act])
    toolkit.grant("clerk")

    def answer(messages: Any, info: Any) -> ModelResponse:
        is_first = len(messages) == 1
        return ModelResponse(parts=[ToolCallPart("act", arguments, tool_call_id="c1") if is_first else TextPart("sorry")])

    told = asyncio.run(run_agent(toolkit, FunctionModel(answer)))

    assert told[0][0] in ("failed", "retried")
    assert done == []


@pytest.mark.parametrize(
    ("shown", "stored"),
    [
        (MediaPart(modality="audio", url="https://a.example/b.mp3"), "audio"),
        (AudioUrl("https://a.example/b.mp3"), "audio"),
        (VideoUrl("https://a.example/b.mp4"), "video"),
        (DocumentUrl("https://a.example/b.pdf"), "document"),
        (ImageUrl("https://a.example/b.png"), "image"),
        (BinaryContent(b"x", media_type="audio/mpeg"), "audio"),
        (BinaryContent(b"x", media_type="video/mp4"), "video"),
    ],
)
async def test_media_of_every_kind_come_back_as_what_they_were(shown: Any, stored: str) -> None:
    """In the ledger as a part, and to the model as Pydantic AI has it, also when the program runs again."""
    toolkit = Toolkit()

    def show() -> Any:
        return shown

    toolkit.add(show, to=["clerk"])
    async with open_ledger("memory:") as ledger:
        told = [await run_agent(toolkit, script([call("show")]), ledger=ledger) for _ in range(2)]
    ((outcome, content),) = told[0]
    assert outcome == "success"
    assert stored in (content.media_type + str(type(content))).lower()
    assert told[0] == told[1]


def test_the_missing_extra_of_an_mcp_server_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    found = builtins.__import__

    def without(name: str, *rest: Any, **more: Any) -> Any:
        if name.startswith("fastmcp"):
            raise ImportError(name)
        return found(name, *rest, **more)

    monkeypatch.setattr(builtins, "__import__", without)

    with pytest.raises(ModuleNotFoundError, match=r'pip install "antiphon\[mcp\]"'):
        Toolkit().add_mcp("https://example.com/mcp")
