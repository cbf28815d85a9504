"""AT-061: agents, models and tools in real durable runs, traced as the GenAI conventions of OpenTelemetry say."""

import asyncio
from types import SimpleNamespace
from typing import Any, cast

import orjson
import pytest
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import SpanKind, StatusCode
from pydantic_ai import Agent, ModelRetry
from pydantic_ai.capabilities import Instrumentation
from pydantic_ai.exceptions import ModelHTTPError, ToolFailed
from pydantic_ai.models.instrumented import InstrumentationSettings
from tests.agents.durability.agents import Desk, call, script
from tests.telemetry.watch import Watch, tree

from antiphon.agents import LedgerDurability
from antiphon.agents._observers import provider_of
from antiphon.agents.toolkit import Toolkit
from antiphon.durable import ledger_run
from antiphon.errors import ParkedError
from antiphon.ledger import Redaction
from antiphon.ledger.memory import MemoryLedger
from antiphon.runtime import ModelOperation
from antiphon.telemetry import CountOnce
from antiphon.telemetry._conventions import attributes_of

TOKEN = "correct-horse-battery-staple"
Turns = tuple[Any, ...]


async def weather(city: str) -> str:
    """Look out of the window."""
    if city == "nowhere":
        raise ToolFailed("there is no such place")
    if city == "atlantis":
        raise OSError("under water")
    return f"{city}: rain, says {TOKEN}"


async def pay(amount: int) -> str:
    """Must not be done twice."""
    await asyncio.sleep(3600)
    return "paid"


class Office:
    """An agent on a ledger, whose tools are its own or those of a toolkit, and who watches it."""

    def __init__(self, *turns: Any, toolkit: bool, watch: Watch | None = None, ledger: MemoryLedger | None = None) -> None:
        self.watch = watch or Watch()
        self.ledger = ledger or MemoryLedger()
        self.desk = Desk()
        self.toolkit = Toolkit([weather]) if toolkit else None
        self.model = script(self.desk, *turns, name="gpt-4o-mini")
        if self.toolkit is not None:
            self.toolkit.add(pay, timeout=0.02)
            self.toolkit.grant("clerk")

    def agent(self, **more: Any) -> Agent[None, str]:
        capabilities: list[Any] = [LedgerDurability(self.ledger, name="clerk"), *more.pop("capabilities", ())]
        if self.toolkit is not None:
            capabilities.append(self.toolkit.capability("clerk"))
        about = {"name": "clerk", "description": "Answers the phone.", **more}
        agent: Agent[None, str] = Agent(self.model, capabilities=capabilities, **about)
        if self.toolkit is None:
            agent.tool_plain(weather)
            agent.tool_plain(pay, timeout=0.02)
        return agent

    def run(self, **more: Any) -> str:
        async def main() -> str:
            async with ledger_run("t", name="desk", ledger=self.ledger, observer=self.watch.telemetry):
                return (await self.agent(**more).run("How is it outside?")).output

        return asyncio.run(main())


def of(span: ReadableSpan, prefix: str = "gen_ai.") -> dict[str, Any]:
    return {name: value for name, value in (span.attributes or {}).items() if name.startswith(prefix)}


both = pytest.mark.parametrize("toolkit", [False, True], ids=["own", "toolkit"])
LOOK = (call("weather", "c1", city="Oslo"),)


@pytest.mark.slow
@both
def test_a_run_is_invoke_agent_with_chat_and_execute_tool_below_it(toolkit: bool) -> None:
    """AT-061: names, kinds and attributes as the conventions have them; content is not among them."""
    # Mutant: give `ToolkitCallEffect` no operation (agents/toolkit/_execution.py) -> this test is red: `effect weather`.
    # Mutant: return `await running()` at once in `observed_agent` (agents/_observers.py) -> this test is red.
    office = Office(LOOK, ("It rains.",), toolkit=toolkit)
    assert office.run(model_settings={"temperature": 0.5}) == "It rains."

    watch = office.watch
    ours = [span for span in watch.spans if of(span)]
    below = {"chat gpt-4o-mini": {}, "execute_tool weather": {}, "chat gpt-4o-mini 3": {}}
    assert tree(watch.spans)["ledger_run desk"]["invoke_agent clerk"] == below
    agent, tool = watch.span("invoke_agent clerk"), watch.span("execute_tool weather")
    first, second = [span for span in ours if span.name.startswith("chat")]
    assert [span.kind for span in (agent, first, tool)] == [SpanKind.INTERNAL, SpanKind.CLIENT, SpanKind.INTERNAL]
    assert {span.status.status_code for span in ours} == {StatusCode.UNSET}
    assert of(agent) == {
        "gen_ai.operation.name": "invoke_agent",
        "gen_ai.provider.name": "function",
        "gen_ai.agent.name": "clerk",
        "gen_ai.agent.id": "clerk",
        "gen_ai.agent.description": "Answers the phone.",
        "gen_ai.conversation.id": "t",
        "gen_ai.request.model": "gpt-4o-mini",
        "gen_ai.usage.input_tokens": 200,
        "gen_ai.usage.output_tokens": 20,
    }
    assert of(agent, "antiphon.effects") == {"antiphon.effects.done": 3, "antiphon.effects.replayed": 0}
    assert (
        of(first)
        == of(second)
        == {
            "gen_ai.operation.name": "chat",
            "gen_ai.provider.name": "function",
            "gen_ai.conversation.id": "t",
            "gen_ai.request.model": "gpt-4o-mini",
            "gen_ai.request.temperature": 0.5,
            "gen_ai.response.model": "gpt-4o-mini",
            "gen_ai.usage.input_tokens": 100,
            "gen_ai.usage.output_tokens": 10,
        }
    )
    assert of(tool) == {
        "gen_ai.operation.name": "execute_tool",
        "gen_ai.conversation.id": "t",
        "gen_ai.tool.name": "weather",
        "gen_ai.tool.type": "function",
        "gen_ai.tool.call.id": "c1",
        "gen_ai.tool.description": "Look out of the window.",
    }


@both
@pytest.mark.parametrize("city", ["nowhere", "atlantis"])
def test_a_tool_that_fails_is_an_error_with_a_code_also_where_the_run_goes_on(city: str, toolkit: bool) -> None:
    """AT-061: what a tool returns as its failure is a failure of its span; the text of it is not recorded."""
    # Mutant: leave `error_type` out in `ToolCallEffect.returned` (agents/durability/_tool_call.py) -> red for `own`.
    office = Office((call("weather", "c1", city=city),), ("Nobody knows.",), toolkit=toolkit)
    is_fatal = city == "atlantis" and not toolkit
    if is_fatal:
        with pytest.raises(Exception, match="under water"):
            office.run()
    else:
        assert office.run() == "Nobody knows."

    tool = office.watch.span("execute_tool weather")
    assert tool.status.status_code is StatusCode.ERROR
    code = "OSError" if city == "atlantis" else "TOOL_FAILED"
    assert of(tool, "error") == {"error.type": "TOOL_ERROR" if is_fatal else code}
    agent = office.watch.span("invoke_agent clerk")
    assert (agent.status.status_code is StatusCode.ERROR) == is_fatal
    assert "under water" not in "".join(span.to_json() for span in office.watch.spans)


@both
def test_a_call_whose_outcome_nobody_knows_is_an_error_and_the_run_is_parked(toolkit: bool) -> None:
    """AT-061, G7: the span of the call ends with UNKNOWN_OUTCOME, that of the agent with PARKED."""
    office = Office((call("pay", "c1", amount=3),), ("Paid.",), toolkit=toolkit)
    with pytest.raises(ParkedError):
        office.run()

    assert of(office.watch.span("execute_tool pay"), "error") == {"error.type": "UNKNOWN_OUTCOME"}
    assert of(office.watch.span("invoke_agent clerk"), "error") == {"error.type": "PARKED"}

    before = len(office.watch.spans)
    with pytest.raises(ParkedError):
        office.run()
    again, run = office.watch.spans[before:]  # nothing is started, so there are no spans but those of the agent and the run
    assert (again.name, run.name) == ("invoke_agent clerk", "ledger_run desk")
    assert of(again, "antiphon.effects") == {"antiphon.effects.done": 0, "antiphon.effects.replayed": 1}
    assert of(run, "error") == {"error.type": "PARKED"}


@both
def test_a_replayed_step_has_no_span_and_is_not_paid_for_twice(toolkit: bool) -> None:
    """AT-061, G9: a run that ended is one span that says how much of it was replayed, without tokens and in no metric."""
    # Mutant: do not call `hooks.replayed()` (runtime/_effects.py, `_perform`) -> this test is red.
    office = Office(LOOK, ("It rains.",), toolkit=toolkit)
    office.run()
    before, metric = len(office.watch.spans), "gen_ai.invoke_agent.duration"
    counted = [count for count, _ in office.watch.points(metric).values()]
    assert office.run() == "It rains."

    (again,) = [span for span in office.watch.spans[before:] if of(span)]
    assert again.name == "invoke_agent clerk"
    assert of(again, "antiphon.effects") == {"antiphon.effects.done": 0, "antiphon.effects.replayed": 3}
    assert of(again, "gen_ai.usage") == {}
    assert [count for count, _ in office.watch.points(metric).values()] == counted == [1]


def test_a_run_that_goes_on_has_spans_and_tokens_only_of_the_rest() -> None:
    """AT-061, G9: the first life asked once and called a tool; the second one asks once more."""
    ledger, watch = MemoryLedger(), Watch()
    failing = ModelHTTPError(500, "gpt-4o-mini")
    with pytest.raises(ModelHTTPError):
        Office(LOOK, failing, toolkit=True, watch=watch, ledger=ledger).run()
    chats = [span for span in watch.spans if span.name == "chat gpt-4o-mini"]
    assert [of(span, "error") for span in chats] == [{}, {"error.type": "MODEL_HTTP_ERROR"}]
    assert of(chats[1])["gen_ai.provider.name"] == "function"

    before = len(watch.spans)
    assert Office(LOOK, ("It rains.",), toolkit=True, watch=watch, ledger=ledger).run() == "It rains."
    later = [span for span in watch.spans[before:] if of(span)]
    assert [span.name for span in later] == ["chat gpt-4o-mini", "invoke_agent clerk"]
    assert of(later[1], "antiphon.effects") == {"antiphon.effects.done": 1, "antiphon.effects.replayed": 2}
    assert of(later[1], "gen_ai.usage") == {"gen_ai.usage.input_tokens": 100, "gen_ai.usage.output_tokens": 10}
    assert len({span.context.trace_id for span in watch.spans}) == 1


def test_the_check_of_arguments_is_no_execution_of_the_tool() -> None:
    """AT-061: a tool that asks for other arguments was executed once for each call, and a retry is its failure."""

    def strict(city: str) -> str:
        raise ModelRetry("which one?")

    office = Office((call("strict", "c1", city="Paris"),), ("Never mind.",), toolkit=False)

    async def main() -> str:
        async with ledger_run("t", ledger=office.ledger, observer=office.watch.telemetry):
            agent = office.agent()
            agent.tool_plain(strict)
            return (await agent.run("Go.")).output

    assert asyncio.run(main()) == "Never mind."
    assert of(office.watch.span("execute_tool strict"), "error") == {"error.type": "MODEL_RETRY"}


@both
def test_content_is_recorded_only_when_asked_for_and_without_secrets(toolkit: bool) -> None:
    """AT-061, G23, S7: prompts, arguments and results are opt-in, and redacted as the thread's ledger does it."""
    # Mutant: set the text as it is in `Spans.end` (telemetry/_telemetry.py), without `redacted` -> this test is red.
    rules = Redaction(secrets={"pass": TOKEN})
    silent = Office(LOOK, (f"It rains, {TOKEN}.",), toolkit=toolkit, ledger=MemoryLedger(redaction=rules))
    silent.run()
    said = "".join(span.to_json() for span in silent.watch.spans)
    assert not any(word in said for word in ("Oslo", "rain", "outside", TOKEN))

    watch = Watch(record_content=True)
    office = Office(LOOK, (f"It rains, {TOKEN}.",), toolkit=toolkit, watch=watch, ledger=MemoryLedger(redaction=rules))
    office.run()
    assert TOKEN not in "".join(span.to_json() for span in watch.spans)
    tool = of(watch.span("execute_tool weather"), "gen_ai.tool.call.")
    assert orjson.loads(tool["gen_ai.tool.call.arguments"]) == {"city": "Oslo"}
    assert orjson.loads(tool["gen_ai.tool.call.result"]) == "Oslo: rain, says [redacted:pass]"
    first, second = [of(span) for span in watch.spans if span.name.startswith("chat")]
    assert "How is it outside?" in first["gen_ai.input.messages"]
    assert "[redacted:pass]" in second["gen_ai.input.messages"]
    (asked,), (answered,) = (orjson.loads(each["gen_ai.output.messages"]) for each in (first, second))
    assert (asked["role"], asked["finish_reason"]) == ("assistant", "tool_call")
    assert answered["parts"] == [{"type": "text", "content": "It rains, [redacted:pass]."}]


@both
def test_a_run_is_a_span_that_says_how_much_of_it_was_replayed(toolkit: bool) -> None:
    """The first life dies in its second request, the second one finishes, the third one reads what is recorded."""
    # Mutant: do not add to `around` in `Hooks.operation` (runtime/_reporting.py) -> this test is red.
    ledger, watch = MemoryLedger(), Watch()
    with pytest.raises(ModelHTTPError):
        Office(LOOK, ModelHTTPError(500, "gpt-4o-mini"), toolkit=toolkit, watch=watch, ledger=ledger).run()
    for _ in range(2):
        Office(LOOK, ("It rains.",), toolkit=toolkit, watch=watch, ledger=ledger).run()

    runs = [span for span in watch.spans if span.name == "ledger_run desk"]
    known = {"antiphon.run.name": "desk", "antiphon.run.id": "run", "antiphon.thread.id": "t"}
    assert [of(span, "antiphon") for span in runs] == [
        {**known, "antiphon.run.attempt": 1, "antiphon.effects.done": 3, "antiphon.effects.replayed": 0},
        {**known, "antiphon.run.attempt": 2, "antiphon.effects.done": 1, "antiphon.effects.replayed": 2},
        {**known, "antiphon.replayed": True, "antiphon.effects.done": 0, "antiphon.effects.replayed": 3},
    ]
    assert [of(span, "error") for span in runs] == [{"error.type": "ModelHTTPError"}, {}, {}]
    assert not any(of(span) for span in runs)
    assert len({span.context.trace_id for span in watch.spans}) == 1


@pytest.mark.slow
@both
def test_spans_of_pydantic_ai_are_marked_where_a_step_is_recorded_and_count_once(toolkit: bool) -> None:
    """A dashboard that sums the exported tokens gets those of the requests that were made."""
    # Mutant: return the span as it is in `_without_tokens` (telemetry/_telemetry.py) -> this test is red.
    ledger, exporter = MemoryLedger(), InMemorySpanExporter()
    provider = TracerProvider(shutdown_on_exit=False)
    provider.add_span_processor(SimpleSpanProcessor(CountOnce(exporter)))
    settings = InstrumentationSettings(tracer_provider=provider, include_content=False)

    async def main(*turns: Any) -> None:
        async with ledger_run("t", ledger=ledger):  # without an observer of ours
            office = Office(*turns, toolkit=toolkit, ledger=ledger)
            await office.agent(capabilities=[Instrumentation(settings=settings)]).run("How is it outside?")

    with pytest.raises(ModelHTTPError):
        asyncio.run(main(LOOK, ModelHTTPError(500, "gpt-4o-mini")))
    first = len(exporter.get_finished_spans())
    asyncio.run(main(LOOK, ("It rains.",)))
    second = len(exporter.get_finished_spans())
    asyncio.run(main(LOOK, ("It rains.",)))

    spans = exporter.get_finished_spans()
    chats = [span for span in spans if span.name.startswith("chat")]
    assert sum(of(span).get("gen_ai.usage.input_tokens", 0) for span in chats) == 200
    steps = [of(span, "antiphon.") for span in spans[first:second] if not span.name.startswith("invoke_agent")]
    own = {"antiphon.replayed": True}
    assert steps == [own, own, {}]
    assert of(spans[-1]) | {"gen_ai.operation.name": "invoke_agent"} == of(spans[-1])
    assert of(spans[-1], "antiphon.") == own
    assert of(spans[-1], "gen_ai.aggregated_usage") == {}
    assert spans[-1].end_time is not None
    assert spans[-1].instrumentation_scope == spans[0].instrumentation_scope
    assert CountOnce(exporter).force_flush()
    provider.shutdown()


@both
def test_with_spans_of_pydantic_ai_ours_are_effects_below_them(toolkit: bool) -> None:
    """AT-061: one span of each name, one count of the tokens."""
    office = Office(LOOK, ("It rains.",), toolkit=toolkit)
    settings = InstrumentationSettings(tracer_provider=office.watch.tracers, include_content=False)
    office.run(capabilities=[Instrumentation(settings=settings)])

    names = [span.name for span in office.watch.spans if of(span).get("gen_ai.operation.name")]
    assert sorted(names) == ["chat gpt-4o-mini", "chat gpt-4o-mini", "execute_tool weather", "invoke_agent clerk"]
    (theirs,) = [span for span in office.watch.spans if span.name == "execute_tool weather"]
    of_it = [span for span in office.watch.spans if span.parent is not None and span.parent.span_id == theirs.context.span_id]
    assert [span.name.partition(" ")[0] for span in of_it] == ["effect"]
    assert office.watch.points("gen_ai.client.token.usage") == {}


@both
def test_without_an_observer_a_run_is_the_same_and_nothing_is_traced(toolkit: bool) -> None:
    """AT-061: no-op when off; the rows of the thread do not differ."""

    async def rows(office: Office) -> list[tuple[str, str, str]]:
        return [(row.message.lane, row.message.kind, row.message.id) async for row in office.ledger.read("t")]

    on, off = Office(LOOK, ("It rains.",), toolkit=toolkit), Office(LOOK, ("It rains.",), toolkit=toolkit)
    on.run()

    async def unwatched() -> None:
        async with ledger_run("t", ledger=off.ledger):
            await off.agent().run("How is it outside?")

    asyncio.run(unwatched())
    assert asyncio.run(rows(on)) == asyncio.run(rows(off))
    assert off.watch.spans == ()


@pytest.mark.slow
def test_agents_in_parallel_and_streams_have_their_own_below_them() -> None:
    """AT-061: what runs at the same time is told apart; a streamed answer is one request."""
    office = Office(LOOK, ("It rains.",), toolkit=True)

    async def main() -> None:
        async with ledger_run("t", name="desk", ledger=office.ledger, observer=office.watch.telemetry):
            agent = office.agent()
            await asyncio.gather(agent.run("one"), agent.run("two"))
            async with agent.run_stream("three") as result:
                assert (await result.get_output()).strip() == "It rains."

    asyncio.run(main())
    below = {"chat gpt-4o-mini": {}, "execute_tool weather": {}, "chat gpt-4o-mini 3": {}}
    assert list(tree(office.watch.spans)["ledger_run desk"].values()) == [below, below, below]
    streamed = [span for span in office.watch.spans if of(span).get("gen_ai.request.stream")]
    assert [span.name for span in streamed] == ["chat gpt-4o-mini", "chat gpt-4o-mini"]


@pytest.mark.parametrize(
    ("url", "server"),
    [
        ("https://api.openai.com/v1/", {"server.address": "api.openai.com", "server.port": 443}),
        ("http://key:secret@127.0.0.1:8080/v1?key=secret", {"server.address": "127.0.0.1", "server.port": 8080}),
        ("https://[broken", {}),
        ("https://host:many/", {}),
        (None, {}),
    ],
)
def test_of_a_service_only_host_and_port_are_recorded(url: str | None, server: dict[str, Any]) -> None:
    """S7: a URL may have a key in it."""
    found = attributes_of(ModelOperation("m", url=url))

    assert {name: value for name, value in found.items() if name.startswith("server")} == server


@pytest.mark.parametrize(
    ("system", "provider"),
    [("google-cloud", "gcp.vertex_ai"), ("fallback:mistral,openai", "mistral_ai"), ("openai", "openai")],
)
def test_providers_are_named_as_the_conventions_name_them(system: str, provider: str) -> None:
    """AT-061: of a fallback, the model that is asked first."""
    context = cast("Any", SimpleNamespace(model=SimpleNamespace(system=system)))

    assert provider_of(context) == provider
