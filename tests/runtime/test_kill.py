"""Processes that are killed, on a ledger in a file: at each named step, at any time, told to end, or out of memory.

F13, F14, F16, F17; what must hold is G1, G6-G9, G13.
"""

import asyncio
import random
import signal
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from tests.runtime.counts import count
from tests.runtime.processes import Processes
from tests.runtime.worker import FENCED, THREADS, Bank, Shop

from antiphon.ledger import open_ledger
from antiphon.messages import OptionCallPayload
from antiphon.runtime import Parked, System

pytest.importorskip("apsw")

PLACES = [
    f"{when} {name}"
    for name in ("WORKER_ORDER", "WORKER_PAY", "pay", "=pay", "=WORKER_PAY", "=WORKER_ORDER")
    for when in ("before", "after")
]
KILLED, TOLD = -signal.SIGKILL, 128 + signal.SIGTERM


@pytest.fixture(scope="module")
def processes() -> Iterator[Processes]:
    with Processes() as processes:
        yield processes


def _folders(tmp_path: Path, number: int) -> Iterator[Path]:
    for each in range(number):
        folder = tmp_path / str(each)
        folder.mkdir()
        yield folder


def _witnessed(folder: Path) -> Counter[str]:
    path = folder / "witness"
    return Counter(path.read_text().splitlines() if path.exists() else [])


async def _look(folder: Path) -> tuple[tuple[Parked, ...], dict[str, int]]:
    """Return what is parked, and by thread how many calls are open and are no part of what is parked."""
    async with open_ledger(f"sqlite:///{folder}/ledger.db") as ledger:
        assert (await ledger.verify()).is_whole
        async with System(ledger) as system:
            parked = await system.parked()
        found: dict[str, int] = {}
        for number in range(THREADS):
            rows = [record.message for record in await ledger.open_calls(f"t{number}")]
            options = [row.payload.option_name for row in rows if isinstance(row.payload, OptionCallPayload)]
            found[f"t{number}"] = 0 if "PARK" in options else len(rows)
    return parked, found


def _check(folder: Path) -> tuple[Parked, ...]:
    witnessed = _witnessed(folder)
    started = {line: count for line, count in witnessed.items() if line.startswith("fx ")}
    parked, still_open = asyncio.run(_look(folder))
    assert all(count == 1 for count in started.values()), started  # R6: at most one start, ever
    assert not any(still_open.values()), still_open  # R10: nothing neither finished nor parked
    done = {line.split()[1] for line in witnessed if line.startswith("ok ")}
    waits = {f"m{each.thread_id[1:]}" for each in parked}
    assert done | waits == {f"m{number}" for number in range(THREADS)}
    return parked


@pytest.mark.slow
@pytest.mark.parametrize("place", PLACES)
def test_a_process_killed_at_a_step_leaves_threads_that_the_next_one_finishes(
    place: str, processes: Processes, tmp_path: Path
) -> None:
    """F13."""
    assert processes.run(tmp_path, place) == KILLED
    assert processes.run(tmp_path) == 0

    parked = _check(tmp_path)
    unknown = [line for line in _witnessed(tmp_path) if line.startswith("fx ")]
    assert len(unknown) + len(parked) >= THREADS
    if place not in ("after pay", "before =pay"):
        assert not [each for each in parked if f"fx {each.evidence['effect']}" not in unknown]


@pytest.mark.slow
def test_an_effect_that_was_cut_off_is_parked_with_the_evidence_and_settled(processes: Processes, tmp_path: Path) -> None:
    assert processes.run(tmp_path, "in pay") == KILLED
    assert processes.run(tmp_path) == 0
    parked = _check(tmp_path)

    async def settle() -> None:
        async with open_ledger(f"sqlite:///{tmp_path}/ledger.db") as ledger, System(ledger) as system:
            system.register("shop", Shop)
            system.register("bank", Bank)
            for each in parked:
                await system.settle(each.thread_id, each.invocation_id, result="receipt found in the bank's books")
            await system.recover()
            async with asyncio.timeout(10):
                while any([await ledger.open_calls(each.thread_id) for each in parked]):  # noqa: ASYNC110
                    await asyncio.sleep(0.01)

    assert {each.evidence["option"] for each in parked} == {"pay"}
    asyncio.run(settle())
    assert asyncio.run(_look(tmp_path))[0] == ()


@pytest.mark.slow
def test_a_process_killed_at_any_time_loses_nothing(processes: Processes, tmp_path: Path) -> None:
    """F13: three lives are cut off while they work, each at a moment that is drawn; the fourth finishes."""
    chance = random.Random(13)
    killed = 0
    for folder in _folders(tmp_path, count("F13")):
        for _ in range(3):
            pid = processes.start(folder)
            processes.wait_for("busy")
            time.sleep(chance.random() * 0.04)  # the moment is the fault
            processes.signal(pid, signal.SIGKILL)
            killed += processes.end() == KILLED
        assert processes.run(folder) == 0
        _check(folder)
    assert killed >= count("F13")  # R0: it was not over before


# ---------------------------------------------------------------- thought dead


@pytest.fixture(scope="module")
def others() -> Iterator[Processes]:
    """Processes beside those of `processes`."""
    with Processes() as others:
        yield others


@pytest.mark.slow
@pytest.mark.parametrize("place", ["stop", "stop ask"])
def test_a_process_that_was_stopped_while_another_took_its_thread_over_starts_no_effect(
    place: str, processes: Processes, others: Processes, tmp_path: Path
) -> None:
    """F14, G8: SIGSTOP right before it starts an effect of an earlier life, SIGCONT when another process has done it all.

    It ends in time: what it has in hand ends with `FencedError`. Only who asks after that was found out gets the answer.
    """
    for folder in _folders(tmp_path, count("F14")):
        assert processes.run(folder, "idempotent in pay") == KILLED
        pid = processes.start(folder, f"idempotent {place}")
        processes.wait_for("stopped")
        assert others.run(folder, "idempotent") == 0
        before = _witnessed(folder)
        assert before["fx m0/1/pay"] == 2  # the killed process, and the other
        processes.signal(pid, signal.SIGCONT)
        assert processes.end() in (FENCED, 0)  # 0: its caller has the answer of the new owner, from the ledger
        after = _witnessed(folder)
        assert after["fx m0/1/pay"] == 2
        assert asyncio.run(_look(folder))[1]["t0"] == 0


# ---------------------------------------------------------------- told to end


@pytest.mark.slow
def test_a_stopping_process_finishes_its_running_effects_and_leaves_the_rest(processes: Processes, tmp_path: Path) -> None:
    """F16: SIGTERM while an effect runs. It ends within its grace, so nothing is parked or counted as a crash."""
    for folder in _folders(tmp_path, count("F16")):
        pid = processes.start(folder, "slow 0.5")
        processes.wait_for("busy")
        processes.signal(pid, signal.SIGTERM)
        assert processes.end() == TOLD
        witnessed = _witnessed(folder)
        assert sum(line.startswith("fx ") for line in witnessed) == sum(line.startswith("fxend ") for line in witnessed)
        assert processes.run(folder) == 0
        assert _check(folder) == ()


@pytest.mark.slow
@pytest.mark.parametrize(("second", "code"), [(signal.SIGTERM, TOLD), (signal.SIGINT, TOLD), (signal.SIGKILL, KILLED)])
def test_a_process_that_is_hurried_while_it_ends_loses_nothing(
    second: signal.Signals, code: int, processes: Processes, tmp_path: Path
) -> None:
    """F16: a second signal, or SIGKILL, in the middle of the end. What was being done is parked, as after a crash."""
    for folder in _folders(tmp_path, count("F16")):
        pid = processes.start(folder, "slow 60")
        processes.wait_for("busy")
        processes.signal(pid, signal.SIGTERM)
        processes.wait_for("ending")
        processes.signal(pid, second)
        assert processes.end() == code
        assert processes.run(folder) == 0
        (parked,) = _check(folder)
        assert parked.evidence["option"] == "pay"


# ---------------------------------------------------------------- out of memory


@contextmanager
def _cgroup(name: str, limit: int) -> Iterator[Path]:
    """A cgroup whose processes are killed when they take more memory; of either version."""
    for root, files in (("memory", ("memory.limit_in_bytes",)), ("", ("memory.max", "memory.swap.max"))):
        path = Path("/sys/fs/cgroup", root, name)
        try:
            path.mkdir()
        except OSError:
            continue
        try:
            (path / files[0]).write_text(str(limit))
            for file in files[1:]:
                (path / file).write_text("0")
            yield path
        except OSError as exc:
            pytest.skip(f"this machine lets nobody limit memory: {exc}")
        finally:
            path.rmdir()
        return
    pytest.skip("this machine lets nobody make a cgroup: run it as root, or in a container")


@pytest.mark.slow
def test_a_process_that_is_killed_for_its_memory_loses_nothing(processes: Processes, tmp_path: Path) -> None:
    """F17: an effect takes all there is, and the kernel kills the process in the middle of it."""
    for folder in _folders(tmp_path, count("F17")):
        with _cgroup(f"antiphon-{folder.parent.name[-20:]}-{folder.name}", 64 * 2**20) as cgroup:
            assert processes.run(folder, f"greedy {cgroup}") == KILLED
        assert processes.run(folder) == 0
        (parked,) = _check(folder)
        assert parked.evidence["option"] == "pay"
