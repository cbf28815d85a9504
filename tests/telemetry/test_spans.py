"""Spans: a trace a thread, a span a message, effects and operations below; and no content unless it is asked for."""

import asyncio
from collections.abc import Callable
from typing import Any

import pytest
from opentelemetry import trace
from opentelemetry.sdk.trace.sampling import ALWAYS_OFF, ParentBased, TraceIdRatioBased
from opentelemetry.trace import SpanKind, StatusCode
from tests.runtime.actors import Do, Done, Note, Ping, Pong, Probe, Stubborn, Via, virtually
from tests.telemetry.watch import Watch, tree

from antiphon.errors import DeliveryError, EffectFailedError, RefusedError
from antiphon.ledger.memory import MemoryLedger
from antiphon.messages import Message, OptionCallPayload, OptionResultPayload, PartsPayload, TextPart, Usage
from antiphon.protocol import Heartbeat
from antiphon.runtime import (
    Actor,
    AgentOperation,
    Budget,
    Context,
    ModelOperation,
    Operation,
    Settings,
    System,
    ToolOperation,
    describe,
    handles,
    system_thread,
)
from antiphon.runtime._effects import Effect
from antiphon.runtime._journal import Journal, observe
from antiphon.runtime._lease import Lease
from antiphon.runtime._work import OpenWork
from antiphon.telemetry._telemetry import Telemetry, read_traceparent

SECRET = "the walrus was Paul"


def call(option: str, **arguments: str) -> Message:
    payload = OptionCallPayload(invocation_id=f"call-{option}", option_name=option, arguments=arguments)
    return Message(policy="me", payload=payload)


def text(policy: str, words: str, role: Any = "user") -> Message:
    return Message(policy=policy, payload=PartsPayload(parts=(TextPart(text=words),)), role_hint_for_llm=role)


def watched(watch: Watch, act: Callable[[System], Any], **actors: Callable[[], Actor]) -> None:
    async def main() -> None:
        async with System(observer=watch.telemetry) as system:
            for kind, factory in {"probe": Probe, **actors}.items():
                system.register(kind, factory)
            await act(system)

    virtually(main())


# ---------------------------------------------------------------- the tree


def test_messages_that_follow_from_a_message_are_below_it_in_the_trace() -> None:
    watch = Watch()

    async def act(system: System) -> None:
        await system.ask("probe/1", Via(to="probe/2", text="hi"), thread_id="t")
        await system.tell("probe/1", Note(text="hi"), thread_id="t")
        await system.ask("probe/1", Ping(text="hi"), thread_id="other")

    watched(watch, act)

    of_thread = [span for span in watch.spans if (span.attributes or {})["antiphon.thread.id"] == "t"]
    assert tree(of_thread) == {"probe TEST_VIA": {"probe TEST_PING": {}}, "probe TEST_NOTE": {}}
    assert len({span.context.trace_id for span in of_thread}) == 1
    assert len({span.context.trace_id for span in watch.spans}) == 2


# Mutant: `outside` (of the runtime's envelopes) correlates by the step what has no correlation id, or the place of a delivery
# (_reporting.py), from which the ids of spans are made, has the step in it -> this test is red.
@pytest.mark.parametrize("step", [0, 7, 2**40])
def test_a_trace_does_not_depend_on_step_numbers(step: int) -> None:
    """OP-021: the same spans under the same ids, below each other as before; rows are correlated alike, and keep the step."""

    def traced(number: int | None) -> tuple[list[Any], list[Any], list[int | None]]:
        watch, ledger = Watch(), MemoryLedger()

        async def main() -> None:
            async with System(ledger, observer=watch.telemetry) as system:
                system.register("probe", Probe)
                for name, to in (("one", "probe/2"), ("two", "probe/3")):
                    payload = OptionCallPayload(
                        invocation_id=name, option_name="TEST_VIA", arguments={"to": to, "text": "hi", "how": "ask"}
                    )
                    asked = Message(id=name, policy="me", payload=payload, step_num=number, lane="control", thread_id="t")
                    await system.ask("probe/1", asked)

        virtually(main())
        spans = [(each.name, each.context.trace_id, each.context.span_id, each.parent) for each in watch.spans]
        rows = asyncio.run(_rows(ledger))
        return spans, [(row.id, row.correlation_id, row.parent_id) for row in rows], [row.step_num for row in rows]

    spans, rows, steps = traced(step)
    expected = traced(None)

    assert (spans, rows) == expected[:2]
    assert len(spans) == 4
    assert len({trace_id for _, trace_id, _, _ in spans}) == 1
    assert [each for each in steps if each is not None] != []
    assert expected[2] == [None] * len(steps)


async def _rows(ledger: MemoryLedger) -> list[Message]:
    return [record.message async for record in ledger.read("t")]


def test_the_trace_of_a_thread_is_the_same_in_every_process_and_version() -> None:
    """Pinned: a thread may be finished by a later version than began it."""
    watch = Watch()

    async def act(system: System) -> None:
        await system.ask("probe/1", Ping(text="hi"), thread_id="order-42", id="m1")

    watched(watch, act)

    context = watch.span("probe TEST_PING").context
    assert f"{context.trace_id:032x}" == "6a728e62f71c9e599a2cbf81f478e8d0"
    assert f"{context.span_id:016x}" == "44f546bf7e727407"


def test_outside_of_threads_an_exchange_is_a_trace() -> None:
    watch = Watch()

    async def act(system: System) -> None:
        await system.ask("probe/1", Via(to="probe/2", text="hi"))
        await system.ask("probe/1", Via(to="probe/2", text="hi"))

    watched(watch, act)

    assert len({span.context.trace_id for span in watch.spans}) == 2
    assert list(tree(watch.spans).values()) == [{"probe TEST_PING": {}}, {"probe TEST_PING": {}}]


def test_a_message_that_is_passed_on_has_a_span_with_each_actor() -> None:
    watch = Watch()

    async def act(system: System) -> None:
        await system.ask("probe/1", Via(to="other/2", text="hi", how="forward"), thread_id="t")

    class Other(Probe):
        @handles
        async def via(self, request: Via, context: Context) -> Pong:
            return Pong(text="here")

    watched(watch, act, other=Other)

    assert tree(watch.spans) == {"probe TEST_VIA": {}, "other TEST_VIA": {}}


def test_a_request_of_an_actor_to_itself_is_below_the_handled_message() -> None:
    watch = Watch()

    async def act(system: System) -> None:
        await system.ask("probe/1", Via(to="probe/1", text="hi"), thread_id="t")

    watched(watch, act)

    assert tree(watch.spans) == {"probe TEST_VIA": {"probe TEST_PING": {}}}


def test_a_failure_and_the_restart_are_seen_and_each_delivery_has_its_span() -> None:
    watch = Watch()

    class Shaky(Actor):
        @handles
        async def ping(self, ping: Ping, context: Context) -> Pong:
            if context.attempt == 1:
                raise ValueError(SECRET)
            return Pong(text="now")

    async def act(system: System) -> None:
        await system.ask("shaky/1", Ping(text=SECRET), thread_id="t")

    watched(watch, act, shaky=Shaky)

    failed, handled = [span for span in watch.spans if span.name == "shaky TEST_PING"]
    assert failed.status.status_code is StatusCode.ERROR
    assert failed.status.description is None  # its words may be those of a message
    assert (failed.attributes or {})["error.type"] == "ValueError"
    assert handled.status.status_code is StatusCode.UNSET
    assert (handled.attributes or {})["antiphon.message.attempt"] == 2
    assert handled.context.span_id != failed.context.span_id
    cared = [span for span in watch.spans if (span.attributes or {})["antiphon.thread.id"] == system_thread("shaky/1")]
    assert tree(cared) == {"system ERROR_NOTIFICATION": {"shaky RESTART": {}}}
    assert SECRET not in "".join(span.to_json() for span in watch.spans)


@pytest.mark.parametrize(
    ("said", "error"),
    [
        (Do(what="refuse"), "NOT_TODAY"),
        (Do(what="wait", seconds=60.0), "TIMEOUT"),
        (Do(what="fail"), "ValueError"),
        (Do(what="cancel"), "CancelledError"),
    ],
)
def test_an_error_sets_the_status_and_its_code_or_class(said: Do, error: str) -> None:
    watch = Watch()

    async def act(system: System) -> None:
        with pytest.raises(DeliveryError):
            await system.ask("probe/1", said, within=1.0)

    watched(watch, act)

    span = watch.span("probe TEST_DO")
    assert span.status.status_code is StatusCode.ERROR
    assert (span.attributes or {})["error.type"] == error


def test_an_error_result_of_an_actor_that_speaks_the_core_is_an_error() -> None:
    watch = Watch()

    class Sad(Actor):
        async def hear(self, message: Message, context: Context) -> OptionResultPayload:
            call = message.invocation_id or ""
            return OptionResultPayload(
                invocation_id=call, option_name="look", is_error=True, error_type="NOPE", error_message=SECRET
            )

    async def act(system: System) -> None:
        with pytest.raises(RefusedError):
            await system.ask("sad/1", call("look", at=SECRET))

    watched(watch, act, sad=Sad)

    assert (watch.span("sad look").attributes or {})["error.type"] == "NOPE"


def test_heartbeats_leave_no_span() -> None:
    watch = Watch()

    async def act(system: System) -> None:
        await system.ask("probe/1", Heartbeat())

    watched(watch, act)

    assert watch.spans == ()


# ---------------------------------------------------------------- other traces


def test_the_span_of_an_outside_caller_is_linked_and_stored_with_the_message() -> None:
    watch = Watch()

    async def act(system: System) -> None:
        with watch.tracers.get_tracer("web").start_as_current_span("request"):
            await system.ask("probe/1", Via(to="probe/2", text="hi"), thread_id="t")
            await system.ask("stubborn/1", call("look"), thread_id="t")
        written.extend([record.message async for record in system.ledger.read("t")])

    written: list[Message] = []
    watched(watch, act, stubborn=Stubborn)

    outside = watch.span("request").context
    for name in ("probe TEST_VIA", "stubborn look"):
        assert [link.context.span_id for link in watch.span(name).links] == [outside.span_id]
    assert watch.span("probe TEST_PING").links == ()
    assert written[0].metadata["antiphon"]["traceparent"] == (
        f"00-{outside.trace_id:032x}-{outside.span_id:016x}-{outside.trace_flags:02x}"
    )


def test_a_message_into_another_thread_is_in_its_trace_with_a_link() -> None:
    watch = Watch()

    class Gossip(Actor):
        @handles
        async def ping(self, ping: Ping, context: Context) -> Pong:
            await context.ask("stubborn/1", call("look").model_copy(update={"thread_id": "other"}))
            return Pong(text="done")

    async def act(system: System) -> None:
        await system.ask("gossip/1", Ping(text="hi"), thread_id="t")

    watched(watch, act, gossip=Gossip, stubborn=Stubborn)

    told = watch.span("stubborn look")
    assert told.parent is None
    assert [link.context for link in told.links] == [watch.span("gossip TEST_PING").context]
    assert told.context.trace_id != watch.span("gossip TEST_PING").context.trace_id


def test_an_effect_outside_of_actors_is_in_the_trace_of_its_thread() -> None:
    watch = Watch()

    class Run:
        """A run that no actor makes, as far as an effect must know it."""

        delivery = None
        is_over = False
        thread_id = "t"
        invocation_id = "run-1"
        to = "me"
        attempt = 1
        inside = ()
        work = OpenWork()

        def next_key(self, name: str | None = None) -> str:
            return name or "1"

        evicted = None

        def wait(self, change: int) -> None:
            pass

    async def done(key: str) -> str:
        return "done"

    async def never(reason: str, evidence: object) -> None:
        raise AssertionError(reason)

    async def main() -> None:
        ledger = MemoryLedger()
        journal = Journal(Lease(ledger, Settings(), tuple), Budget())
        observe(journal, watch.telemetry)
        with watch.tracers.get_tracer("app").start_as_current_span("script"):
            await Effect(journal, Run(), "alone", {}, effects="once", park=never).perform(done)
        await Effect(journal, Run(), "again", {}, effects="once", park=never).perform(done)

    async def handled(system: System) -> None:
        await system.ask("probe/1", Ping(text="hi"), thread_id="t")

    virtually(main())
    watched(watch, handled)

    alone = watch.span("effect alone")
    assert alone.parent is None
    assert [link.context for link in alone.links] == [watch.span("script").context]
    assert alone.context.trace_id == watch.span("probe TEST_PING").context.trace_id
    assert watch.span("effect again").links == ()


def test_without_a_span_around_nothing_is_added_to_the_message() -> None:
    async def written(watch: Watch | None) -> Message:
        async with System(observer=None if watch is None else watch.telemetry) as system:
            system.register("probe", Probe)
            await system.ask("probe/1", Ping(text="hi"), thread_id="t", id="m1")
            (call, *_) = [record.message async for record in system.ledger.read("t")]
            return call

    assert virtually(written(Watch())).metadata.keys() == virtually(written(None)).metadata.keys()


@pytest.mark.virtual_time
async def test_a_message_for_another_host_is_linked_there_to_the_span_that_was_current() -> None:
    here, there = Watch(), Watch()

    ledger = MemoryLedger()
    async with System(ledger, observer=here.telemetry) as near, System(ledger, observer=there.telemetry) as far:
        for system in (near, far):
            system.register("probe", Probe)
        await far.ask("probe/1", Ping(text="mine"), thread_id="t")
        with here.tracers.get_tracer("web").start_as_current_span("request"):
            assert await near.ask("probe/1", Ping(text="hi"), thread_id="t") == Pong(text="hi!")

    (link,) = there.spans[-1].links
    assert (there.spans[-1].name, link.context.span_id) == ("probe TEST_PING", here.span("request").context.span_id)


@pytest.mark.parametrize("text", ["", "00-0-0-00", f"00-{0:032x}-{1:016x}-01", f"01-{1:032x}-{1:016x}-01"])
def test_an_invalid_traceparent_is_not_linked(text: str) -> None:
    assert read_traceparent(text) is None


def test_a_trace_is_sampled_as_a_whole() -> None:
    watch = Watch(sampler=ParentBased(TraceIdRatioBased(0.5)))

    async def act(system: System) -> None:
        for number in range(40):
            await system.ask("probe/1", Via(to="probe/2", text="hi"), thread_id=f"t{number}")

    watched(watch, act)

    names = [span.name for span in watch.spans]
    assert names.count("probe TEST_VIA") == names.count("probe TEST_PING")
    assert 5 < names.count("probe TEST_VIA") < 35
    nothing = Watch(sampler=ALWAYS_OFF)
    watched(nothing, act)
    assert nothing.spans == ()


def test_other_tracers_choose_their_own_ids() -> None:
    """A provider that is not the SDK's is used as it is."""

    async def main() -> Pong:
        async with System(observer=Telemetry(trace.NoOpTracerProvider())) as system:
            system.register("probe", Probe)
            return await system.ask("probe/1", Ping(text="hi"), thread_id="t")

    assert virtually(main()) == Pong(text="hi!")


# ---------------------------------------------------------------- effects and operations


class Doer(Actor):
    """Does effects as an agent would: asks a model, then runs a tool."""

    @handles
    async def do(self, request: Do, context: Context) -> Done:
        describe(AgentOperation("planner", id="ag-1", model="small"))
        await context.effect("think", {"prompt": SECRET}, self._think, effects="none", operation=ModelOperation("small"))
        await context.effect("look", {"at": SECRET}, self._look)
        await context.effect("plain", {"at": SECRET}, self._plain, effects="idempotent")
        return Done(said=(SECRET,))

    async def _think(self, key: str) -> str:
        said, answered = text("user", SECRET), text("planner", SECRET, role="assistant")
        describe(
            ModelOperation(
                "small",
                provider="openai",
                settings={"temperature": 0.5, "max_tokens": 9, "unheard_of": SECRET},
                response_model="small-1",
                response_id="r1",
                finish_reasons=("stop",),
                usage=Usage(input_tokens=7, output_tokens=3, cache_read_tokens=2, cache_write_tokens=1, reasoning_tokens=1),
                input=(said,),
                output=(answered,),
            )
        )
        return SECRET

    async def _look(self, key: str) -> str:
        describe(ToolOperation("get_weather", call_id="c1", arguments={"city": SECRET}, result=SECRET))
        return SECRET

    async def _plain(self, key: str) -> str:
        return SECRET


def _done(watch: Watch) -> None:
    async def act(system: System) -> None:
        await system.ask("doer/1", Do(what="nothing"), thread_id="t")

    watched(watch, act, doer=Doer)


def test_effects_are_below_their_message_and_named_by_the_conventions() -> None:
    watch = Watch()
    _done(watch)

    assert tree(watch.spans) == {
        "invoke_agent planner": {"chat small": {}, "execute_tool get_weather": {}, "effect plain": {}}
    }
    chat, tool = watch.span("chat small"), watch.span("execute_tool get_weather")
    assert chat.kind is SpanKind.CLIENT
    assert tool.kind is SpanKind.INTERNAL
    assert dict(chat.attributes or {}) == {
        "antiphon.effect.effects": "none",
        "antiphon.effect.key": "think",
        "antiphon.thread.id": "t",
        "gen_ai.conversation.id": "t",
        "gen_ai.operation.name": "chat",
        "gen_ai.provider.name": "openai",
        "gen_ai.request.max_tokens": 9,
        "gen_ai.request.model": "small",
        "gen_ai.request.temperature": 0.5,
        "gen_ai.response.finish_reasons": ("stop",),
        "gen_ai.response.id": "r1",
        "gen_ai.response.model": "small-1",
        "gen_ai.usage.cache_read.input_tokens": 2,
        "gen_ai.usage.cache_creation.input_tokens": 1,
        "gen_ai.usage.input_tokens": 7,
        "gen_ai.usage.output_tokens": 3,
        "gen_ai.usage.reasoning.output_tokens": 1,
    }
    assert {name: value for name, value in (tool.attributes or {}).items() if name.startswith("gen_ai")} == {
        "gen_ai.conversation.id": "t",
        "gen_ai.operation.name": "execute_tool",
        "gen_ai.tool.call.id": "c1",
        "gen_ai.tool.name": "get_weather",
        "gen_ai.tool.type": "function",
    }
    agent = watch.span("invoke_agent planner").attributes or {}
    assert {agent["gen_ai.agent.name"], agent["gen_ai.agent.id"], agent["gen_ai.request.model"]} == {
        "planner",
        "ag-1",
        "small",
    }


def test_content_is_recorded_only_when_asked_for() -> None:
    silent, told = Watch(), Watch(record_content=True)
    _done(silent)
    _done(told)

    assert SECRET not in "".join(span.to_json() for span in silent.spans)
    shown = {name for span in told.spans for name, value in (span.attributes or {}).items() if SECRET in str(value)}
    assert shown == {
        "antiphon.effect.arguments",
        "antiphon.effect.result",
        "antiphon.message.result",
        "gen_ai.input.messages",
        "gen_ai.output.messages",
        "gen_ai.tool.call.arguments",
        "gen_ai.tool.call.result",
    }
    assert (told.span("chat small").attributes or {})["gen_ai.input.messages"] == (
        '[{"role":"user","parts":[{"type":"text","content":"the walrus was Paul"}],"name":"user"}]'
    )


def test_an_effect_that_fails_is_an_error_and_one_that_is_recorded_leaves_no_span() -> None:
    watch = Watch()

    class Clumsy(Actor):
        @handles
        async def ping(self, ping: Ping, context: Context) -> Pong:
            async def well(key: str) -> str:
                return "well"

            async def badly(key: str) -> str:
                raise OSError(SECRET)

            await context.effect("well", {}, well)
            with pytest.raises(EffectFailedError):
                await context.effect("badly", {}, badly)
            if context.attempt == 1:
                raise ValueError("once more")
            return Pong(text="done")

    async def act(system: System) -> None:
        await system.ask("clumsy/1", Ping(text="hi"), thread_id="t")

    watched(watch, act, clumsy=Clumsy)

    effects = [span for span in watch.spans if span.name.startswith("effect")]
    assert [span.name for span in effects] == ["effect well", "effect badly"]
    assert (effects[1].attributes or {})["error.type"] == "OSError"
    assert effects[1].status.status_code is StatusCode.ERROR
    assert SECRET not in "".join(span.to_json() for span in watch.spans)


def test_spans_of_other_instrumentations_are_below_ours() -> None:
    """Such as those of an HTTP client or of Pydantic AI."""
    watch = Watch()

    class Client(Actor):
        @handles
        async def ping(self, ping: Ping, context: Context) -> Pong:
            async def get(key: str) -> str:
                with watch.tracers.get_tracer("http").start_as_current_span("GET"):
                    await asyncio.sleep(1)
                return "got"

            return Pong(text=await context.effect("fetch", {}, get))

    async def act(system: System) -> None:
        await asyncio.gather(*(system.ask(f"client/{n}", Ping(text="hi"), thread_id=f"t{n}") for n in range(3)))

    watched(watch, act, client=Client)

    for number in range(3):
        of = {
            span.context.trace_id for span in watch.spans if (span.attributes or {}).get("antiphon.thread.id") == f"t{number}"
        }
        spans = [span for span in watch.spans if span.context.trace_id in of]
        assert tree(spans) == {"client TEST_PING": {"effect fetch": {"GET": {}}}}


@pytest.mark.parametrize("operation", [ModelOperation("m"), ToolOperation("t"), AgentOperation("a")])
def test_without_an_observer_a_description_does_nothing(operation: Operation) -> None:
    describe(operation)


def test_a_call_that_is_not_typed_has_its_option_as_its_type() -> None:
    watch = Watch()

    async def act(system: System) -> None:
        await system.tell("stubborn/1", text("me", "hi"), thread_id="t")
        await system.ask("stubborn/1", call("look"), thread_id="t")

    watched(watch, act, stubborn=Stubborn)

    assert tree(watch.spans) == {"stubborn talk": {}, "stubborn look": {}}
