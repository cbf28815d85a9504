"""Metrics: how long messages waited and took, what waits, what failed; tokens by the conventions."""

import asyncio
from typing import Any

import pytest
from tests.runtime.actors import Do, Ping, Probe, Stubborn, virtually
from tests.telemetry.test_spans import Doer, call
from tests.telemetry.watch import Watch

from antiphon.errors import DeliveryError, ParkedError, UndeliverableError
from antiphon.runtime import Settings, System


def test_messages_are_measured_by_kind_type_and_error() -> None:
    watch = Watch()

    async def main() -> None:
        async with System(observer=watch.telemetry) as system:
            system.register("probe", Probe)
            await asyncio.gather(*(system.ask("probe/1", Do(what="wait", seconds=2.0)) for _ in range(3)))
            with pytest.raises(DeliveryError):
                await system.ask("probe/1", Do(what="refuse"))

    virtually(main())

    kind = ("antiphon.actor.kind", "probe")
    type_ = ("antiphon.message.type", "TEST_DO")
    handled = watch.points("antiphon.message.duration")
    assert handled[kind, type_] == (3, pytest.approx(6.0, abs=0.01))
    assert handled[kind, type_, ("error.type", "NOT_TODAY")][0] == 1
    assert watch.points("antiphon.message.wait") == {(kind,): (4, pytest.approx(0 + 2 + 4, abs=0.01))}


@pytest.mark.virtual_time
async def test_a_type_that_anybody_can_make_up_makes_no_metric_of_its_own() -> None:
    watch = Watch()

    async with System(observer=watch.telemetry) as system:
        system.register("stubborn", Stubborn)
        for number in range(50):
            await system.ask("stubborn/1", call(f"made-up-{number}"))

    assert list(watch.points("antiphon.message.duration")) == [
        (("antiphon.actor.kind", "stubborn"), ("antiphon.message.type", "other"))
    ]


def test_waiting_messages_are_counted_at_each_collection() -> None:
    watch = Watch()

    async def main() -> None:
        async with System(observer=watch.telemetry) as system:
            system.register("probe", Probe)
            system.register("idle", Probe)
            async with asyncio.TaskGroup() as group:
                for _ in range(3):
                    group.create_task(system.ask("probe/1", Do(what="wait", seconds=1.0)))
                    group.create_task(system.ask("probe/2", Do(what="wait", seconds=1.0)))
                group.create_task(system.ask("idle/1", Ping(text="hi")))
                await asyncio.sleep(0.5)
                seen.append(watch.points("antiphon.mailbox.waiting"))
            seen.append(watch.points("antiphon.mailbox.waiting"))

    seen: list[dict[tuple[tuple[str, Any], ...], Any]] = []
    virtually(main())

    kind, idle, root = ((("antiphon.actor.kind", name),) for name in ("probe", "idle", "system"))
    assert [{**points, root: 0} for points in seen] == [{kind: 4, idle: 0, root: 0}, {kind: 0, idle: 0, root: 0}]
    assert watch.points("antiphon.mailbox.waiting") == {}  # the system has ended


def test_restarts_dead_letters_and_parked_messages_are_counted() -> None:
    watch = Watch()

    async def main() -> None:
        async with System(observer=watch.telemetry, settings=Settings(attempts=2)) as system:
            system.register("probe", Probe)
            with pytest.raises(ParkedError):
                await system.ask("probe/1", Do(what="fail"), thread_id="t")
            with pytest.raises(UndeliverableError):
                await system.ask("nobody/1", Ping(text="hi"))
            await system.ask("probe/1", Ping(text="hi"))

    virtually(main())

    kind = (("antiphon.actor.kind", "probe"),)
    assert watch.points("antiphon.actor.restarts") == {kind: 2}
    assert watch.points("antiphon.message.parked") == {kind: 1}
    assert watch.points("antiphon.dead_letters") == {(("antiphon.dead_letter.code", "ACTOR_NOT_FOUND"),): 1}


def test_effects_models_tools_agents_and_tokens_are_measured_by_the_conventions() -> None:
    watch = Watch()

    async def main() -> None:
        async with System(observer=watch.telemetry) as system:
            system.register("doer", Doer)
            await system.ask("doer/1", Do(what="nothing"), thread_id="t")

    virtually(main())

    model = (
        ("gen_ai.operation.name", "chat"),
        ("gen_ai.provider.name", "openai"),
        ("gen_ai.request.model", "small"),
        ("gen_ai.response.model", "small-1"),
    )
    tokens = watch.points("gen_ai.client.token.usage")
    assert tokens == {(*model, ("gen_ai.token.type", "input")): (1, 7), (*model, ("gen_ai.token.type", "output")): (1, 3)}
    assert watch.points("gen_ai.client.operation.duration")[model][0] == 1
    assert [dict(key) for key in watch.points("gen_ai.execute_tool.duration")] == [
        {"gen_ai.operation.name": "execute_tool", "gen_ai.tool.name": "get_weather", "gen_ai.tool.type": "function"}
    ]
    assert [dict(key)["gen_ai.agent.name"] for key in watch.points("gen_ai.invoke_agent.duration")] == ["planner"]
    assert {dict(key)["antiphon.effect.effects"] for key in watch.points("antiphon.effect.duration")} == {
        "none",
        "idempotent",
        "once",
    }


def test_the_buckets_are_those_of_the_conventions() -> None:
    watch = Watch()

    async def main() -> None:
        async with System(observer=watch.telemetry) as system:
            system.register("doer", Doer)
            await system.ask("doer/1", Do(what="nothing"), thread_id="t")

    virtually(main())

    data = watch.reader.get_metrics_data()
    assert data is not None
    metrics = [metric for scope in data.resource_metrics[0].scope_metrics for metric in scope.metrics]
    bounds = {
        metric.name: metric.data.data_points[0].explicit_bounds for metric in metrics if metric.name.startswith("gen_ai")
    }  # type: ignore[union-attr]
    assert bounds["gen_ai.client.token.usage"][:5] == (1, 4, 16, 64, 256)
    assert bounds["gen_ai.client.operation.duration"][:3] == (0.01, 0.02, 0.04)
    assert bounds["gen_ai.invoke_agent.duration"][-1] == 409.6
