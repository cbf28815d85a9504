"""What really fails reaches the supervisor: providers over HTTP, and tools. The client is told, and nothing is done twice.

CH-114: flow 3 of the seed. A server stands for the provider; the client is Pydantic AI's own, on OpenAI's SDK.
"""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from itertools import pairwise
from typing import Any

import pytest
from openai import AsyncOpenAI
from pydantic_ai import Tool
from pydantic_ai.exceptions import ModelHTTPError
from pydantic_ai.messages import ModelMessage, ModelResponse, ToolCallPart
from pydantic_ai.models import Model
from pydantic_ai.models.function import AgentInfo, FunctionModel
from pydantic_ai.models.openai import OpenAIChatModel
from pydantic_ai.providers.openai import OpenAIProvider
from tests.cli.fake_openai import FakeOpenAI, fake_openai
from tests.patterns.chains import QUESTION, NotingLedger, Witness, branch, chain_on, said_in, types_of

from antiphon.ledger import Ledger
from antiphon.messages import OptionResultPayload
from antiphon.patterns.postchain import ChainConfig, PostChain
from antiphon.patterns.postchain import _cast as chain_agents
from antiphon.patterns.postchain._context import SubscribeThread
from antiphon.protocol import AgentConfig, ErrorNotification
from antiphon.protocol.flows import find_flow
from antiphon.service import thread_status

RESTARTED = ["restart", "restart", "stop"]
"""The decisions about a failure that lasts, with the two restarts of the default configuration."""
PROMPT = 'You are the action phase.\nCALL pay {"amount": 5}\nCALL look {}'


class Desk:
    """Tools that count their calls; `look` only reads, and fails as often as it is told."""

    def __init__(self) -> None:
        self.paid = 0
        self.looked = 0
        self.failures = 0
        self.pay_fails = False

    async def pay(self, amount: int) -> str:
        """Pay an amount."""
        self.paid += 1
        if self.pay_fails:
            raise KeyError("no such account")
        return f"paid {amount}"

    async def look(self) -> str:
        """Look up the balance."""
        self.looked += 1
        if self.looked <= self.failures:
            raise KeyError("no such account")
        return "a balance"

    @property
    def tools(self) -> list[Tool[Any]]:
        return [Tool(self.pay), Tool(self.look, metadata={"antiphon": {"effects": "none"}})]


class Client:
    """Hears what the chain tells its clients."""

    def __init__(self) -> None:
        self.told: list[tuple[str, Any]] = []

    def hear(self, client: str, said: Any) -> None:
        if isinstance(said, ErrorNotification):
            details: Any = said.details
            self.told.append((client, details["action_taken"], details["cause"]))


def _model(fake: FakeOpenAI) -> Model:
    client = AsyncOpenAI(base_url=f"{fake.url}/v1", api_key="sk-fake", max_retries=0)
    return OpenAIChatModel("fake", provider=OpenAIProvider(openai_client=client))


@asynccontextmanager
async def _opened(
    model: Model, desk: Desk, client: Client, ledger: Ledger | None = None, seconds: float = 60.0
) -> AsyncIterator[PostChain]:
    """Open a chain whose first agent pays, looks, and then answers."""
    first = AgentConfig(tools=("pay", "look"), system_prompt=PROMPT)
    config = ChainConfig(attempts=1, backoff=0, timeout=seconds, outputs="text", max_sources=0, phases={"action": first})
    async with PostChain(ledger, config, model=model, tools=desk.tools, phases=["action", "yield"], grace=0.05) as chain:
        chain.on_message(client.hear)
        yield chain


async def _decisions(ledger: Ledger, thread_id: str) -> list[str]:
    payloads = [message.payload for message in await said_in(ledger, thread_id)]
    acknowledged = [
        each for each in payloads if isinstance(each, OptionResultPayload) and each.option_name == "ERROR_NOTIFICATION"
    ]
    return [str(each.result["action_taken"]) for each in acknowledged]  # type: ignore[index]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("failure", "decisions", "status"),
    [
        ("429", RESTARTED, "stopped"),
        ("500", RESTARTED, "stopped"),
        ("hang", RESTARTED, "stopped"),
        ("cut", RESTARTED, "stopped"),
        ("401", ["stop"], "stopped"),
        ("400", ["stop"], "failed"),
    ],
)
async def test_a_failing_provider_reaches_the_supervisor_and_the_client_and_nothing_is_done_twice(
    failure: str, decisions: list[str], status: str
) -> None:
    """CH-114, CH-091, CH-092, CH-093: the failure comes after a payment. A stopped thread goes on where it stopped."""
    desk, client = Desk(), Client()
    with fake_openai() as fake:
        fake.failure, fake.fails_after = failure, 2
        async with _opened(_model(fake), desk, client, seconds=1.0 if failure == "hang" else 60.0) as chain:
            thread_id = await chain.create(QUESTION)
            subscribe = SubscribeThread(thread_id=thread_id)
            await chain.system.ask(f"thread/{thread_id}", subscribe, thread_id=thread_id, sender="client/desk")
            await chain.start(thread_id)
            result = await chain.wait(thread_id)
            assert (result.status, await _decisions(chain.ledger, thread_id)) == (status, decisions)
            cause = "request" if failure == "400" else "provider"
            expected = [(to, action, cause) for action in decisions for to in ("client/local", "client/desk")]
            assert client.told == expected
            rows = await said_in(chain.ledger, thread_id)
            assert find_flow("error-handling").check(rows).state == "complete"
            report = await thread_status(chain.ledger, thread_id)
            assert str(result.error_message) in str(report.waits_for if status == "stopped" else report.error)
            if status == "stopped":
                fake.failure = None
                await chain.resume(thread_id)
                assert (await chain.wait(thread_id)).status == "completed"
                answered = fake.answered
                assert len(set(answered)) == len(answered)  # no request was answered, and paid for, twice
    assert (desk.paid, desk.looked) == (1, 1)


@pytest.mark.slow
async def test_a_retry_continues_the_run_after_a_provider_has_failed_for_a_while() -> None:
    desk, client = Desk(), Client()
    with fake_openai() as fake:
        fake.failure, fake.fails_after, fake.fails_for = "500", 1, 2
        async with _opened(_model(fake), desk, client) as chain:
            result = await chain.run(QUESTION)
            assert (result.status, await _decisions(chain.ledger, result.thread_id)) == ("completed", ["restart", "restart"])
            assert find_flow("error-handling").check(await said_in(chain.ledger, result.thread_id)).state == "complete"
        assert len(fake.asked) == len(set(fake.answered)) + 2
    assert (desk.paid, desk.looked) == (1, 1)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("failures", "pay_fails", "decisions", "status", "calls"),
    [
        (1, False, ["restart"], "completed", (1, 2)),
        (9, False, RESTARTED, "failed", (1, 3)),
        (0, True, ["stop"], "failed", (1, 0)),
    ],
    ids=["for a while", "always", "with effects"],
)
async def test_a_tool_that_raises_is_called_again_only_if_it_has_no_effects(
    failures: int, pay_fails: bool, decisions: list[str], status: str, calls: tuple[int, int]
) -> None:
    """CH-114: what the other tools have done is not done again, and the model is not asked again."""
    desk, client = Desk(), Client()
    desk.failures, desk.pay_fails = failures, pay_fails
    with fake_openai() as fake:
        async with _opened(_model(fake), desk, client) as chain:
            result = await chain.run(QUESTION)
            assert (result.status, await _decisions(chain.ledger, result.thread_id)) == (status, decisions)
            assert [told[1:] for told in client.told] == [(decision, "tool") for decision in decisions]
            assert status == "completed" or "no such account" in str(result.error_message)
        assert len(set(fake.answered)) == len(fake.answered)
    assert (desk.paid, desk.looked) == calls


@pytest.mark.slow
async def test_a_crash_between_an_error_and_its_end_leaves_one_decision_for_each_error() -> None:
    """G1, CH-114: the process dies at each row of flow 3; the next one decides what is not decided yet, once."""
    ledger, desk = NotingLedger(), Desk()
    with fake_openai() as fake:
        fake.failure, fake.fails_after, fake.fails_for = "500", 1, 1
        async with _opened(_model(fake), desk, Client(), ledger) as chain:
            thread_id = (await chain.run(QUESTION)).thread_id
        said = await said_in(ledger, thread_id)
        types = [types_of([message]) for message in said]
        first, last = types.index(["agent -> action: ERROR"]), types.index(["agent -> action: AGENT_RESPONSE"])
        for end in [end for end in ledger.ends[thread_id] if first < end <= last][::2]:
            left, again = await branch(ledger, thread_id, end), Desk()
            async with _opened(_model(fake), again, Client(), left) as chain:
                assert (await chain.wait(thread_id)).status == "completed"
            lines = types_of(await said_in(left, thread_id))
            once = (
                "agent -> action: ERROR",
                "action -> supervisor: ERROR_NOTIFICATION",
                "supervisor -> action: ERROR_ACKNOWLEDGED",
            )
            assert [lines.count(line) for line in once] == [1, 1, 1], end
            assert lines.count("action -> client: ERROR_NOTIFICATION") == 1, end
            assert again.paid == 0, end


@pytest.mark.virtual_time
@pytest.mark.slow
async def test_a_retry_waits_as_long_as_the_provider_asks_but_no_longer_than_the_longest_wait() -> None:
    """CH-122: else twice as long each time."""
    for seconds, waits, status in [("7", [7, 7], "stopped"), ("31", [], "stopped"), (None, [1, 2], "stopped")]:
        headers = None if seconds is None else {"Retry-After": seconds}
        busy = ModelHTTPError(429, "teller", headers=headers)
        times: list[float] = []

        async def note(phase: str, times: list[float] = times) -> None:
            times.append(asyncio.get_running_loop().time())

        witness = Witness(failures=[busy] * 9, on_request=note)
        async with chain_on(witness=witness, config=ChainConfig(attempts=1, backoff=1)) as chain:
            assert (await chain.run(QUESTION)).status == status
        assert [round(after - before) for before, after in pairwise(times)] == waits


@pytest.mark.slow
@pytest.mark.parametrize("way", ["a retry", "another attempt", "the fallback"])
async def test_an_agent_is_not_begun_anew_after_its_tools_have_done_something(
    way: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """G5: it would do it again."""
    desk = Desk()

    def answer(messages: list[ModelMessage], info: AgentInfo) -> ModelResponse:
        if not any(isinstance(message, ModelResponse) for message in messages):
            return ModelResponse([ToolCallPart("pay", {"amount": 5})])
        if way == "the fallback":
            raise ModelHTTPError(503, "teller")
        return ModelResponse([])  # not an answer

    monkeypatch.setattr(chain_agents, "named_model", lambda name, **more: FunctionModel(answer))
    config = ChainConfig(
        attempts=2 if way == "another attempt" else 1,
        backoff=0,
        outputs="text",
        fallback="other" if way == "the fallback" else None,
        phases={"action": AgentConfig(tools=("pay",))},
    )
    async with PostChain(config=config, model=FunctionModel(answer), tools=desk.tools, phases=["action", "yield"]) as chain:
        result = await chain.run(QUESTION)
        assert result.status == ("stopped" if way == "the fallback" else "failed")
    assert desk.paid == 1
