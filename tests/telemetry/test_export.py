"""What a real OTLP receiver gets: the spans of a thread over a crash, a restart and a recovery; metrics; no content."""

import asyncio
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from tests.runtime.actors import Ping, Probe
from tests.telemetry.receiver import Receiver, attributes, tree
from tests.telemetry.worker import SECRET

from antiphon.runtime import System
from antiphon.telemetry import configure

pytest.importorskip("apsw")

WORKER = Path(__file__).parent / "worker.py"


def _run(folder: Path, endpoint: str, *more: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, str(WORKER), str(folder / "ledger.db"), endpoint, *more]
    return subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)


@pytest.fixture(scope="module")
def received(tmp_path_factory: pytest.TempPathFactory) -> Receiver:
    """What a process sent that was killed in the middle of a thread, and the next one, in which an actor failed once."""
    folder = tmp_path_factory.mktemp("otlp")
    with Receiver() as receiver:
        killed = _run(folder, receiver.endpoint, "die")
        assert killed.returncode == -signal.SIGKILL, killed.stderr
        finished = _run(folder, receiver.endpoint)
        assert finished.returncode == 0, finished.stderr
    assert SECRET not in killed.stderr + finished.stderr  # logs have no bodies
    return receiver


@pytest.mark.slow
def test_a_thread_is_one_trace_over_a_crash_a_restart_and_a_recovery(received: Receiver) -> None:
    """The bank answered in the first process; its span hangs below that of the shop, which only the second one ended."""
    spans = [span for span in received.spans if attributes(span.attributes).get("antiphon.thread.id") == "order-42"]

    assert len({span.trace_id for span in spans}) == 1
    assert tree(spans) == {
        "shop OTLP_ORDER": {"bank OTLP_PAY": {"execute_tool book": {}}},
        "shop OTLP_ORDER again": {},
    }
    failed, finished = [span for span in spans if span.name == "shop OTLP_ORDER"]
    assert attributes(failed.attributes)["error.type"] == "ValueError"
    assert failed.status.code == failed.status.STATUS_CODE_ERROR
    assert attributes(failed.attributes)["antiphon.message.attempt"] == 2
    assert attributes(finished.attributes)["antiphon.message.attempt"] == 3
    assert finished.status.code == finished.status.STATUS_CODE_UNSET


@pytest.mark.slow
def test_the_decision_about_a_failure_is_a_trace_of_the_actors_own_thread(received: Receiver) -> None:
    spans = [span for span in received.spans if attributes(span.attributes).get("antiphon.thread.id") == "system/shop/1"]

    assert tree(spans) == {"system ERROR_NOTIFICATION": {"shop RESTART": {}}}


@pytest.mark.slow
def test_the_metrics_of_the_process_arrive(received: Receiver) -> None:
    restarts = received.metrics["antiphon.actor.restarts"].sum.data_points
    handled = received.metrics["antiphon.message.duration"].histogram.data_points

    assert [(attributes(point.attributes), point.as_int) for point in restarts] == [({"antiphon.actor.kind": "shop"}, 1)]
    assert {
        (found["antiphon.actor.kind"], found["antiphon.message.type"], found.get("error.type"))
        for found in (attributes(point.attributes) for point in handled)
    } == {
        ("shop", "OTLP_ORDER", "ValueError"),
        ("shop", "OTLP_ORDER", None),
        ("shop", "RESTART", None),
        ("system", "ERROR_NOTIFICATION", None),
    }


@pytest.mark.slow
def test_no_content_is_sent_unless_it_is_asked_for(received: Receiver) -> None:
    """G23: what people wrote is in the ledger, and not in traces, metrics or logs."""
    assert len(received.bodies) >= 3
    assert not [body for body in received.bodies if SECRET.encode() in body]
    assert received.services == {"shop"}


@pytest.mark.slow
def test_headers_and_content_are_sent_when_asked_for() -> None:
    async def main() -> None:
        async with System(observer=telemetry) as system:
            system.register("probe", Probe)
            await system.ask("probe/1", Ping(text=SECRET), thread_id="t")

    headers = {"x-key": "k"}
    with Receiver() as receiver, configure(f"{receiver.endpoint}/", headers=headers, record_content=True) as telemetry:
        asyncio.run(main())

    assert {headers["x-key"] for headers in receiver.headers} == {"k"}
    (span,) = receiver.spans
    assert SECRET in attributes(span.attributes)["antiphon.message.body"]
    assert SECRET in attributes(span.attributes)["antiphon.message.result"]


@pytest.mark.slow
def test_a_backend_that_is_not_there_harms_nobody() -> None:
    async def main() -> str:
        async with System(observer=telemetry) as system:
            system.register("probe", Probe)
            return (await system.ask("probe/1", Ping(text="hi"), thread_id="t")).text

    with Receiver() as gone:
        endpoint = gone.endpoint
    with configure(endpoint, within=0.1) as telemetry:
        assert asyncio.run(main()) == "hi!"
