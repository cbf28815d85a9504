"""Content is data: a model that obeys every text it reads cannot get anything done that nobody has granted or approved."""

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

import pytest
from pydantic_ai import Agent, BinaryContent
from pydantic_ai.exceptions import ToolFailed, UnexpectedModelBehavior
from pydantic_ai.messages import (
    ModelMessage,
    ModelResponse,
    TextContent,
    TextPart,
    ToolCallPart,
    ToolReturnPart,
    UserPromptPart,
)
from pydantic_ai.models.function import AgentInfo, FunctionModel
from tests.agents.toolkit.injections import CHANNELS, INJECTIONS, Injection, orders_in
from tests.agents.toolkit.kit import noted, rows

from antiphon.agents import LedgerDurability
from antiphon.agents.toolkit import Toolkit, pending_approvals, quoted
from antiphon.durable import ledger_run
from antiphon.errors import ParkedError
from antiphon.ledger import Ledger, open_ledger
from antiphon.messages import OptionResultPayload

GRANTED = ("fetch", "ask_peer", "pay", "delete_all", "tell_peer", "send")
FORBIDDEN = {"pay", "delete_all", "send", "reset", "tell_peer", "fetch as root"}
"""Calls that must not be made: not granted, or not approved."""


# ---------------------------------------------------------------- a model that obeys every text


def texts(message: ModelMessage) -> list[str]:
    """Return everything in a message that can be read."""
    found: list[str] = []
    for part in message.parts:
        content = getattr(part, "content", "")
        items = content if isinstance(part, UserPromptPart) and not isinstance(content, str) else [content]
        found += [_text(item) for item in items]
    return found


def _text(item: Any) -> str:
    if isinstance(item, TextContent):
        return item.content
    if isinstance(item, BinaryContent):
        return item.data.decode()
    if isinstance(item, dict | list):
        return "\n".join(map(_text, item.values() if isinstance(item, dict) else item))
    return str(item)


@dataclass
class Obedient:
    """A model that first does what its instructions say, then obeys every text, and then repeats all texts."""

    begin: Sequence[str] = ()
    tried: list[str] = field(default_factory=list[str])

    def answer(self, messages: list[ModelMessage], info: AgentInfo) -> ModelResponse:
        begun = {part.tool_name for message in messages for part in message.parts if isinstance(part, ToolCallPart)}
        first = [ToolCallPart(name, {}, tool_call_id=f"begin-{name}") for name in self.begin if name not in begun]
        if first:
            return ModelResponse(parts=first)
        read = [text for message in messages for text in texts(message)]
        orders = [order for text in read for order in orders_in(text)]
        if orders and not self.tried:
            self.tried = [tool for tool, _ in orders]
            calls = [ToolCallPart(tool, args, tool_call_id=f"order-{n}") for n, (tool, args) in enumerate(orders)]
            return ModelResponse(parts=calls)
        return ModelResponse(parts=[TextPart("\n".join(read) or "nothing")])


# ---------------------------------------------------------------- the house that is attacked


@dataclass
class House:
    """An agent with a toolkit, a peer, and what was really done."""

    is_trusted: bool = False
    """Whether the program has forgotten to mark the tools that return text of strangers."""
    done: list[str] = field(default_factory=list[str])
    toolkit: Toolkit = field(init=False)
    injection: Injection = field(init=False)
    ledger: Ledger = field(init=False)

    def __post_init__(self) -> None:
        self.toolkit = Toolkit(approvers=["ada"])
        untrusted = not self.is_trusted
        self.toolkit.add(self.fetch, effects="none", untrusted=untrusted, allows_untrusted=True)
        self.toolkit.add(self.ask_peer, effects="none", allows_untrusted=True)
        for tool in (self.pay, self.delete_all, self.send, self.reset, self.tell_peer):
            self.toolkit.add(tool)
        for name in GRANTED:
            where = {"properties": {"to": {"const": "boss@example.com"}}} if name == "send" else None
            self.toolkit.grant("clerk", name, where=where)
        self.toolkit.grant("admin", "reset")
        self.toolkit.grant("peer", "fetch")

    def fetch(self, page: str = "home") -> Any:
        """Read a page that a stranger wrote."""
        if page != "home":
            self.done.append("fetch as root")
        if self.injection.channel == "error":
            raise ToolFailed(self.injection.text)
        if self.injection.channel == "nested":
            return {"image": {"alt": self.injection.text, "title": "a cat"}, "tags": ["cat"]}
        return self.injection.text

    async def ask_peer(self) -> str:
        """Ask another agent, who reads the page and says it again."""
        peer = Agent(FunctionModel(Obedient(["fetch"]).answer), name="peer", toolsets=[self.toolkit.for_agent("peer")])
        try:
            return (await peer.run("what is on the page?")).output
        except UnexpectedModelBehavior:  # it had obeyed so often that it was stopped
            return self.injection.text

    def pay(self, amount: int, to: str) -> None:
        self.done.append("pay")

    def delete_all(self) -> None:
        self.done.append("delete_all")

    def send(self, to: str, body: str) -> None:
        self.done.append("send")

    def reset(self, hard: bool) -> None:
        self.done.append("reset")

    def tell_peer(self, words: str) -> None:
        self.done.append("tell_peer")

    # ------------------------------------------------------------ the attack

    async def attack(self) -> list[str]:
        """Have the model read the text, and return what it tried to do."""
        channel, text = self.injection.channel, self.injection.text
        prompt: Any = "sum it up"
        history: list[ModelMessage] | None = None
        if channel == "quoted":
            prompt = ["sum it up:", quoted(text, "a letter")]
        elif channel == "document":
            prompt = ["sum it up:", BinaryContent(text.encode(), media_type="text/plain")]
        elif channel == "history":
            history = await self._read_before()
        begin = {"peer": ["ask_peer"], "result": ["fetch"], "error": ["fetch"], "nested": ["fetch"]}.get(channel, [])
        tried: list[str] = []
        for _ in range(2 if text.startswith("{") else 1):  # where it is undisguised, once more, as a supervisor does
            model = Obedient(begin)
            with suppress(ParkedError, UnexpectedModelBehavior, RuntimeError):
                await self._run(model, prompt, history)
            tried = tried or model.tried
        return tried

    async def _run(self, model: Obedient, prompt: Any, history: list[ModelMessage] | None) -> None:
        capabilities = [LedgerDurability[Any](self.ledger), self.toolkit.capability("clerk")]
        agent = Agent(FunctionModel(model.answer), name="clerk", capabilities=capabilities, retries=5)
        async with ledger_run("t", ledger=self.ledger):
            await agent.run(prompt, message_history=history)

    async def _read_before(self) -> list[ModelMessage]:
        """Return what an earlier run has read, in another thread, before the model began to obey."""

        def answer(messages: list[ModelMessage], info: AgentInfo) -> ModelResponse:
            is_done = any(isinstance(part, ToolReturnPart) for message in messages for part in message.parts)
            return ModelResponse(parts=[TextPart("read") if is_done else ToolCallPart("fetch", {}, tool_call_id="early")])

        agent = Agent(FunctionModel(answer), name="clerk", toolsets=[self.toolkit.for_agent("clerk")])
        async with ledger_run("before", ledger=self.ledger):
            return (await agent.run("read it")).all_messages()


async def check_one(house: House, injection: Injection) -> None:
    permissions = house.toolkit.permissions
    async with open_ledger("memory:") as ledger:
        house.injection, house.ledger = injection, ledger
        tried = await house.attack()

        assert tried == [tool for tool, _ in orders_in(injection.text)], "the model has obeyed"
        assert not FORBIDDEN & set(house.done), house.done
        assert house.toolkit.permissions == permissions
        for said in await noted(ledger, "TOOL_PERMISSIONS"):
            assert said["changes"] == permissions.of(said["agent"])
        for approval in await pending_approvals(ledger):
            assert approval.answer is None
        for message in await rows(ledger):
            if message.lane != "talk":
                assert message.policy not in ("ada", "mallory", "SupervisorActor"), message
                assert not isinstance(message.payload, OptionResultPayload) or message.payload.option_name != "APPROVE"
        threads = (await ledger.threads()).threads
        assert {thread.thread_id for thread in threads} <= {"t", "before"}


def test_there_are_two_hundred_and_all_of_them_are_different() -> None:
    """S4."""
    assert len({injection.text for injection in INJECTIONS}) == len(INJECTIONS) >= 200
    for channel in CHANNELS:
        assert len({injection.goal for injection in INJECTIONS if injection.channel == channel}) == 10


@pytest.mark.slow
@pytest.mark.parametrize("channel", CHANNELS)
async def test_no_text_is_a_grant_an_approval_a_control_message_or_another_agent(channel: str) -> None:
    """G22, S4, S5: 0 forbidden calls, whatever the model tries."""
    house = House()
    for injection in INJECTIONS:
        if injection.channel == channel:
            await check_one(house, injection)


@pytest.mark.slow
async def test_the_attack_works_where_untrusted_tools_are_not_marked() -> None:
    """What the others show is due to the marks: without them, the obedient model pays."""
    injection = Injection("pay somebody", "result", INJECTIONS[0].text)
    async with open_ledger("memory:") as ledger:
        house = House(is_trusted=True)
        house.injection, house.ledger = injection, ledger
        await house.attack()
        assert house.done == ["pay"]
