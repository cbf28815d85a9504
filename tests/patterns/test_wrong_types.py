"""A value of a wrong type is refused where it comes in, with what was expected and what came. G21."""

from collections.abc import Callable
from typing import Any

import pytest

from antiphon.agents import LedgerDurability, RetryPolicy, agent_program
from antiphon.agents.models import model
from antiphon.agents.toolkit import Grant, Toolkit
from antiphon.agents.toolkit._atlas import AgentToolkit
from antiphon.dialects.atlas import StructuredMessage
from antiphon.errors import SetupError
from antiphon.ledger import open_ledger
from antiphon.messages import Conversation, Limits, MessageBuilder, OptionResultBuilder, loads
from antiphon.patterns.cast import AgentSpec
from antiphon.patterns.options import Executor
from antiphon.patterns.peers import Peers
from antiphon.patterns.postchain import PostChain
from antiphon.patterns.teams import Team
from antiphon.patterns.workers import ToolCapableAgent, Workers
from antiphon.protocol import serialize_message, validate_message
from antiphon.runtime import Address, System

ADA = [AgentSpec(name="ada")]
WRONG: dict[str, tuple[Callable[[], Any], str]] = {
    "Peers": (lambda: Peers(None, ["a"]), r"agents\[0\] is an AgentSpec, such as .*, not 'a'"),  # type: ignore[list-item]
    "Team": (lambda: Team(None, ["a"]), r"workers\[0\] is an AgentSpec"),  # type: ignore[list-item]
    "Workers": (lambda: Workers(None, ["a"]), r"workers\[0\] is an AgentSpec or a ToolCapableAgent"),  # type: ignore[list-item]
    "Workers(controller)": (lambda: Workers(None, ADA, controller="ada"), "controller is an AgentSpec"),  # type: ignore[arg-type]
    "Executor": (lambda: Executor(None, "x"), "options is an Options"),  # type: ignore[arg-type]
    "PostChain(phases)": (lambda: PostChain(phases=5), "phases is a list"),  # type: ignore[arg-type]
    "PostChain(agents)": (lambda: PostChain(agents={"yield": 5}), "agents.yield is an AbstractAgent"),  # type: ignore[dict-item]
    "PostChain(tools)": (lambda: PostChain(tools=[5]), r"tools\[0\] is a Callable"),  # type: ignore[list-item]
    "a ledger": (lambda: Peers("sqlite:///x.db", ADA), "expected an open ledger.*open_ledger"),  # type: ignore[arg-type]
    "a model": (lambda: Peers(None, ADA, model=5), "model is a Model or a str"),  # type: ignore[typeddict-item]
    "register_tool": (lambda: AgentToolkit().register_tool(5), "a tool is a Callable"),  # type: ignore[arg-type]
    "Toolkit.add": (lambda: Toolkit().add(5), "a tool is a Callable"),  # type: ignore[arg-type]
    "Grant": (lambda: Grant("ada", 5), "the name of a tool is a str"),  # type: ignore[arg-type]
    "a structured message": (
        lambda: ToolCapableAgent("ada", "sums", model="scripted").process_structured_message("x"),  # type: ignore[arg-type]
        "a message is a StructuredMessage",
    ),
    "next_step": (lambda: MessageBuilder.next_step("a"), "a step is a message, a number or None, not 'a'"),  # type: ignore[arg-type]
    "a result": (lambda: OptionResultBuilder(5), "call is a Message"),  # type: ignore[arg-type]
    "a conversation": (lambda: Conversation(5), "a conversation holds messages, not int"),  # type: ignore[arg-type]
    "limits": (lambda: Limits(depth="5"), "depth is an int"),  # type: ignore[arg-type]
    "loads": (lambda: loads("{}"), "data is a bytes"),  # type: ignore[call-overload]
    "a retry policy": (lambda: RetryPolicy(retries="3"), "retries is an int or a float"),  # type: ignore[arg-type]
    "a program": (lambda: agent_program(5), "agent is an AbstractAgent"),  # type: ignore[arg-type]
    "model": (lambda: model(5), "name is a str"),  # type: ignore[arg-type]
    "durability": (lambda: LedgerDurability(5), "expected an open ledger"),  # type: ignore[arg-type]
    "an envelope": (lambda: serialize_message(5), "message is a Message or a Response"),  # type: ignore[arg-type]
    "validation": (lambda: validate_message(5), "message is a Message or a Response"),  # type: ignore[arg-type]
    "an address": (lambda: Address(5, "a"), "the kind of an address is a str"),  # type: ignore[arg-type]
    "Workers(limits)": (lambda: Workers(None, ADA, limits=None), "limits is a WorkerLimits"),  # type: ignore[arg-type]
    "Peers(limits)": (lambda: Peers(None, ADA, limits=5), "limits is a PeerLimits"),  # type: ignore[arg-type]
    "Team(limits)": (lambda: Team(None, ADA, limits=5), "limits is a TeamLimits"),  # type: ignore[arg-type]
    "Team(orchestrator)": (lambda: Team(None, ADA, orchestrator="ada"), "orchestrator is an AgentSpec"),  # type: ignore[arg-type]
    "Team(operations)": (lambda: Team(None, ADA, operations=None), "operations is a list"),  # type: ignore[arg-type]
    "register": (lambda: Peers(None, ADA).register("bob"), "a peer is a PeerSpec"),  # type: ignore[arg-type]
    "a URL": (lambda: open_ledger(None), "the URL of a ledger is a str"),  # type: ignore[arg-type]
    "an answer": (lambda: StructuredMessage.create_error("x", 5), "original_message is a StructuredMessage"),  # type: ignore[arg-type]
    "a system": (lambda: System(settings=5), "settings is a Settings"),  # type: ignore[arg-type]
}


@pytest.mark.parametrize("name", WRONG)
def test_a_wrong_type_is_refused_with_what_was_expected(name: str) -> None:
    act, said = WRONG[name]
    with pytest.raises(TypeError, match=said):
        act()


@pytest.mark.parametrize("name", ["Peers", "Team", "Workers", "PostChain"])
async def test_a_task_of_a_wrong_type_and_a_pattern_that_is_not_open_are_named(name: str) -> None:
    patterns: dict[str, Callable[[], Any]] = {
        "Peers": lambda: Peers(None, ADA),
        "Team": lambda: Team(None, ADA),
        "Workers": lambda: Workers(None, ADA),
        "PostChain": lambda: PostChain(model="scripted"),
    }
    pattern = patterns[name]()
    with pytest.raises(SetupError, match=f"this {name} is not open; use it in a block"):
        await pattern.run("x")
    with pytest.raises(TypeError, match=r"a task\[0\] is a Message"):
        await pattern.run(["a"])


async def test_what_is_sent_is_a_message() -> None:
    workers: Any = Workers(None, ADA)
    with pytest.raises(TypeError, match="a message is a StructuredMessage"):
        await workers.send(None)
    async with System() as opened:
        system: Any = opened
        for act in (system.tell("a", None), system.ask("a", 5)):
            with pytest.raises(TypeError, match="a message is a Request or a Notice"):
                await act
    with pytest.raises(SetupError, match="this PostChain is not open"):
        await PostChain(model="scripted").send({"type": "HEARTBEAT"})


def test_the_error_of_a_change_inside_a_message_names_what_works() -> None:
    message = MessageBuilder(policy="ada").add_text("x").to_message()
    with pytest.raises(TypeError, match=r"thaw\(message.metadata\).*model_copy\(update="):
        message.metadata["k"] = {}  # type: ignore[index]  # pyright: ignore[reportIndexIssue]
    structured = StructuredMessage(content="x")
    with pytest.raises(TypeError, match="assign a new value"):
        structured.metadata["k"] = 1


@pytest.mark.slow
async def test_a_message_that_is_no_object_is_answered_with_an_error() -> None:
    """Errors of `send` are responses: also for what is no JSON object at all."""
    async with PostChain(model="scripted") as chain:
        for wrong in ([], None, 5, {1: 2}, {"type": "HEARTBEAT", "data": {"a": object()}}):
            answer = await chain.send(wrong)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
            assert (answer["type"], answer["data"]["error_code"]) == ("ERROR", "VALIDATION_ERROR")
