"""Telemetry: spans of controllers, workers, models and tools when it is on; nothing, and the same, when it is off."""

from typing import Any

import pytest
from tests.patterns.chains import run
from tests.patterns.workers.minds import calling, saying
from tests.telemetry.watch import Watch

from antiphon.dialects.atlas import StructuredMessage
from antiphon.ledger.memory import MemoryLedger
from antiphon.patterns.cast import AgentSpec
from antiphon.patterns.workers import Assigner, Workers


def count_words(text: str) -> int:
    """Count the words of a text."""
    return len(text.split())


async def _policy(query: StructuredMessage, assigner: Assigner) -> str:
    return (await assigner.assign("ada", query.content)).content


def _run(**observed: Any) -> list[tuple[str, str, str]]:
    async def main() -> list[tuple[str, str, str]]:
        ledger = MemoryLedger()
        ada = AgentSpec(name="ada", tools=("count_words",))
        model = calling(("count_words", {"text": "one two"}), then="It has {0} words.")
        async with Workers(ledger, [ada], controller=_policy, model=model, tools=[count_words], **observed) as workers:
            assert (await workers.run("one two", thread_id="t")).response == "It has 2 words."
        return [(each.message.lane, each.message.kind, each.message.policy) async for each in ledger.read("t")]

    return run(main())


@pytest.mark.slow
def test_when_it_is_on_a_thread_is_a_trace_and_when_it_is_off_there_is_nothing_and_all_is_the_same() -> None:
    """AT-061: the worker's span is below the controller's, its agent's below that, and the model's and the tool's below."""
    # Mutant: give `ModelRequestEffect` no operation (agents/durability/_model_request.py) -> red: `effect` instead of `chat`.
    # Mutant: `Hooks.begin` tells nobody (runtime/_reporting.py) -> this test is red: no spans.
    on = Watch()

    rows = _run(observer=on.telemetry)

    spans = {span.name: span for span in on.spans}
    controller, worker = spans["controller WORKERS_MESSAGE"], spans["worker WORKERS_TASK"]
    assert worker.parent is not None
    assert worker.parent.span_id == controller.context.span_id
    ada = spans["invoke_agent ada"]
    assert ada.parent is not None
    assert ada.parent.span_id == worker.context.span_id
    below = {span.name for span in on.spans if span.parent is not None and span.parent.span_id == ada.context.span_id}
    assert below == {"chat tests", "execute_tool count_words"}
    assert worker.context.trace_id == controller.context.trace_id

    count = len(on.spans)
    assert _run() == rows
    assert len(on.spans) == count


async def test_no_content_is_in_a_span() -> None:
    """AT-061, BP7: unless it is asked for."""
    watch = Watch()

    model = saying(lambda *_: "the walrus was Paul")
    async with Workers(None, [AgentSpec(name="ada")], controller=_policy, model=model, observer=watch.telemetry) as workers:
        await workers.run("who was the walrus?")

    assert watch.spans
    assert not [span for span in watch.spans if "walrus" in str(span.attributes)]
