"""A failure of something outside stops the thread instead of failing it: it continues later, and nothing is paid twice."""

import asyncio
import json
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import pytest
from pydantic_ai import Agent
from pydantic_ai.exceptions import ModelHTTPError, UnexpectedModelBehavior
from pydantic_ai.models import StreamedResponse
from pydantic_ai.models.test import TestModel
from pydantic_ai.models.wrapper import WrapperModel
from tests.patterns.chains import said_in
from typing_extensions import override

from antiphon.agents import AgentBudget, LedgerDurability, agent_program
from antiphon.durable import ledger_run, recover_runs, runs
from antiphon.errors import RefusedError
from antiphon.ledger import Ledger, ThreadFilter
from antiphon.ledger.memory import MemoryLedger
from antiphon.messages import OptionCallPayload, OptionResultPayload, current_port
from antiphon.patterns.cast import AgentSpec, Patience, Pattern
from antiphon.patterns.options import Executor, Options
from antiphon.patterns.peers import Peers, PeerSpec
from antiphon.patterns.postchain import ChainConfig, PostChain
from antiphon.patterns.teams import Team
from antiphon.patterns.workers import Workers

TASK = "Say what you know of tea."
QUICK = Patience(attempts=2, backoff=0)
RETRIED = ChainConfig().restarts + 1
"""How often a phase asks its agent before it stops."""


@dataclass
class Provider:
    """Counts what it answers, and refuses while it is down."""

    answered: int = 0
    asked: int = 0
    fails_after: int | None = None
    """How many answers it gives before it is down; None: it is up."""
    failure: Exception = field(default_factory=lambda: ModelHTTPError(503, "counted", "down"))

    def ask(self) -> None:
        self.asked += 1
        if self.fails_after is not None and self.answered >= self.fails_after:
            raise self.failure
        self.answered += 1


class Counted(WrapperModel):
    """A model of such a provider."""

    def __init__(self, provider: Provider, calls: Sequence[str] = ()) -> None:
        super().__init__(TestModel(call_tools=list(calls)))
        self._provider = provider

    @override
    async def request(self, *given: Any, **more: Any) -> Any:
        self._provider.ask()
        return await super().request(*given, **more)

    @override
    @asynccontextmanager
    async def request_stream(self, *given: Any, **more: Any) -> AsyncGenerator[StreamedResponse]:
        self._provider.ask()
        async with super().request_stream(*given, **more) as stream:
            yield stream


def _chain(ledger: Ledger, **more: Any) -> Pattern:
    return PostChain(ledger, grace=0.05, recover=False, **more)


def _team(ledger: Ledger, **more: Any) -> Pattern:
    workers = [AgentSpec(name="cook"), AgentSpec(name="taster")]
    return Team(ledger, workers, orchestrator=AgentSpec(name="chef"), recover=False, **more)


def look() -> str:
    """Look at the tea."""
    return "It is green."


def _workers(ledger: Ledger, **more: Any) -> Pattern:
    chef = AgentSpec(name="chef", tools=("look",))
    return Workers(ledger, [AgentSpec(name="cook")], controller=chef, tools=[look], recover=False, **more)


def _peers(ledger: Ledger, **more: Any) -> Pattern:
    chef = PeerSpec(name="chef", tools=("look",))
    return Peers(ledger, [chef, PeerSpec(name="cook")], tools=[look], recover=False, **more)


def _options(ledger: Ledger, **more: Any) -> Pattern:
    options = Options()
    options.add_agent(AgentSpec(name="chef"), to=())
    options.add(look)
    return Executor(ledger, options, policy="chef", recover=False, **more)


PATTERNS: dict[str, Callable[..., Pattern]] = {
    "postchain": _chain,
    "teams": _team,
    "workers": _workers,
    "peers": _peers,
    "options": _options,
}
WITH_TOOL = frozenset({"workers", "peers", "options"})
"""Their first agent looks at the tea, then answers: two requests."""
each_pattern = pytest.mark.parametrize("name", PATTERNS)


async def _run(name: str, ledger: Ledger, provider: Provider, **more: Any) -> Any:
    """Do the task in a process of its own: in a new thread, or in the existing one."""
    model = Counted(provider, ("look",) if name in WITH_TOOL else ())
    async with PATTERNS[name](ledger, model=model, patience=QUICK, **more) as pattern:
        if isinstance(pattern, PostChain) and (await ledger.thread("t")) is not None:
            await pattern.resume("t")
            return await pattern.wait("t")
        return await pattern.run(TASK, thread_id="t")


async def _undisturbed(name: str) -> int:
    provider = Provider()
    assert (await _run(name, MemoryLedger(), provider)).status == "completed"
    return provider.answered


@pytest.mark.slow
@each_pattern
async def test_a_provider_that_is_down_stops_the_thread_and_nothing_is_paid_twice(name: str) -> None:
    """At each request: the attempt that failed is a row beside the open call, never its result; the work before it counts."""
    needed = await _undisturbed(name)
    for paid in range(needed):
        ledger, provider = MemoryLedger(), Provider(fails_after=paid)
        stopped = await _run(name, ledger, provider)
        assert (stopped.status, stopped.error_code, provider.answered) == ("stopped", "AGENT_ERROR", paid)
        assert "503" in (stopped.error_message or "")
        summary = await ledger.thread("t")
        assert summary is not None
        assert (summary.status, summary.open_calls > 0) == ("stopped", True)
        rows = await said_in(ledger, "t")
        failed = [row for row in rows if isinstance(row.payload, OptionResultPayload) and row.payload.is_error]
        assert failed == [] or name == "postchain"  # there it is an ERROR of the agent, to which the phase sends a RETRY
        (why,) = [row for row in rows if isinstance(row.payload, OptionCallPayload) and row.payload.option_name == "STOPPED"]
        assert why.parent_id in {row.message.invocation_id for row in await ledger.open_calls("t")}
        provider.fails_after = None
        done = await _run(name, ledger, provider)
        assert (done.status, provider.answered) == ("completed", needed)
        summary = await ledger.thread("t")
        assert summary is not None
        assert (summary.status, summary.open_calls) == ("completed", 0)


@pytest.mark.slow
@each_pattern
async def test_a_thread_that_is_resumed_too_early_stops_again(name: str) -> None:
    """As often as one likes: a stop is no crash, so it is never parked."""
    ledger, provider = MemoryLedger(), Provider(fails_after=0)
    each = 0
    for time in range(1, 8):
        assert (await _run(name, ledger, provider)).status == "stopped"
        each = each or provider.asked
        assert provider.asked == each * time  # it stops again after as many requests as the first time
    provider.fails_after = None
    assert (await _run(name, ledger, provider)).status == "completed"


@pytest.mark.slow
@each_pattern
async def test_a_stopped_thread_does_not_go_on_by_itself(name: str) -> None:
    """A host, or a program that recovers what others left, does not ask a provider that is down again and again."""
    ledger, provider = MemoryLedger(), Provider(fails_after=0)
    assert (await _run(name, ledger, provider)).status == "stopped"
    asked = provider.asked
    model = Counted(provider, ("look",) if name in WITH_TOOL else ())
    async with PATTERNS[name](ledger, model=model, patience=QUICK) as pattern:
        (left,) = (await ledger.threads(ThreadFilter(system=False))).threads
        epoch = await ledger.claim(left.thread_id)  # as a process that dies would leave it: open, and due
        await ledger.release(left.thread_id, epoch=epoch, wake_at=current_port().now())
        assert (await pattern.system.recover()).threads == 1
        await asyncio.sleep(0.05)
    assert provider.asked == asked
    summary = await ledger.thread("t")
    assert summary is not None
    assert summary.status == "stopped"


@pytest.mark.slow
@pytest.mark.parametrize(
    "failure",
    [
        ModelHTTPError(401, "counted", "no such key"),
        ModelHTTPError(429, "counted", "too many requests"),
        ModelHTTPError(500, "counted", "oops"),
        UnexpectedModelBehavior("an answer in another protocol"),
        ConnectionResetError("the stream was cut"),
        json.JSONDecodeError("wrong", "{", 0),
    ],
)
@each_pattern
async def test_every_failure_from_outside_stops(name: str, failure: Exception) -> None:
    ledger, provider = MemoryLedger(), Provider(fails_after=0, failure=failure)
    stopped = await _run(name, ledger, provider)
    assert stopped.status == "stopped"
    is_foreign = isinstance(failure, UnexpectedModelBehavior)  # the run itself has asked again: a RETRY would multiply that
    tries = RETRIED if name == "postchain" and not is_foreign else 1
    assert provider.asked == (1 if getattr(failure, "status_code", 0) == 401 else QUICK.attempts * tries)
    provider.fails_after = None
    assert (await _run(name, ledger, provider)).status == "completed"


@each_pattern
async def test_a_request_that_can_never_succeed_fails(name: str) -> None:
    """A request that the provider refuses as wrong is refused the next time as well."""
    ledger, provider = MemoryLedger(), Provider(fails_after=0, failure=ModelHTTPError(400, "counted", "wrong"))
    assert (await _run(name, ledger, provider)).status == "failed"


@pytest.mark.slow
@each_pattern
async def test_a_spent_budget_stops_and_a_new_one_goes_on(name: str) -> None:
    needed = await _undisturbed(name)
    assert needed > 1
    ledger, provider = MemoryLedger(), Provider()
    stopped = await _run(name, ledger, provider, thread_budget=AgentBudget(requests=1))
    assert (stopped.status, stopped.error_code, provider.answered) == ("stopped", "BUDGET_EXCEEDED", 1)
    assert "1 requests" in (stopped.error_message or "")
    again = await _run(name, ledger, provider, thread_budget=AgentBudget(requests=1))
    assert (again.status, provider.answered) == ("stopped", 1)
    done = await _run(name, ledger, provider, thread_budget=AgentBudget(requests=100))
    assert (done.status, provider.answered) == ("completed", needed)


@pytest.mark.slow
async def test_the_wire_of_the_seed_shows_a_stopped_thread_as_paused() -> None:
    ledger, provider = MemoryLedger(), Provider(fails_after=2)
    async with PostChain(ledger, model=Counted(provider), patience=QUICK, grace=0.05) as chain:
        assert (await chain.run(TASK, thread_id="t")).status == "stopped"
        status = await chain.status("t")
        assert status.status == "paused"
        assert "503" in status.model_extra["waiting_for"]["reason"]
        with pytest.raises(RefusedError):
            await chain.start("t", "Something else?")


# ---------------------------------------------------------------- runs of programs


async def test_a_run_that_an_outside_failure_ends_is_stopped_and_recovered() -> None:
    """A person continues it. A host does not, because it would ask the provider again and again."""
    ledger, provider = MemoryLedger(), Provider(fails_after=0)
    agent = Agent(Counted(provider), name="clerk", capabilities=[LedgerDurability(ledger)])
    with pytest.raises(ModelHTTPError):
        async with ledger_run("t", ledger=ledger, name="clerk", input=TASK):
            await agent.run(TASK)
    (run,) = await runs(ledger)
    summary = await ledger.thread("t")
    assert summary is not None
    assert (run.status, run.is_left, summary.status) == ("stopped", False, "stopped")
    assert "503" in (run.reason or "")
    provider.fails_after = None
    (done,) = await recover_runs(ledger, [agent_program(agent)])
    assert (done.status, provider.answered) == ("completed", 1)


async def test_a_run_that_ends_with_another_error_has_failed() -> None:
    ledger, provider = MemoryLedger(), Provider(fails_after=0, failure=ModelHTTPError(400, "counted", "wrong"))
    agent = Agent(Counted(provider), name="clerk", capabilities=[LedgerDurability(ledger)])
    with pytest.raises(ModelHTTPError):
        async with ledger_run("t", ledger=ledger):
            await agent.run(TASK)
    (run,) = await runs(ledger)
    assert run.status == "failed"
