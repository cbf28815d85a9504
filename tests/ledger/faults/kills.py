"""F1: a process that appends is killed at its n-th system call, and another looks at what is left.

Run as `python -m tests.ledger.faults.kills FOLDER COUNT`. One process imports everything once; for each kill it forks a worker
that stops itself, strace takes hold of it and lets it go on, and at the n-th write or sync the kernel kills it. Without
strace the kill comes after some time instead. What the workers saw is in witnesses on another file system.
"""

import asyncio
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from random import Random
from typing import Any

from tests.ledger.faults.after import evidence_of, judged
from tests.ledger.histories import answered, at, called, said
from tools.soak.witness import Witness, read_events

from antiphon.testing import Event
from antiphon.testing._events import content_of

STRACE = shutil.which("strace")
CALLS = ("pwrite64", "fdatasync", "pwrite64", "pread64")
"""What SQLite does to the ledger's files; at which of them a worker dies goes round."""


def has_strace() -> bool:
    """Whether strace is there and may look at other processes."""
    if STRACE is None:
        return False
    done = subprocess.run([STRACE, "-o", os.devnull, "true"], capture_output=True, check=False)
    return done.returncode == 0


async def appending(path: Path, witness: Witness, name: str) -> None:
    """Append until killed: one thread of calls and results, and some others at the same time."""
    async with at(path, busy_timeout=20) as ledger:

        async def say(thread: str, *messages: Any) -> None:
            for message in messages:
                witness.say("inv", thread=thread, id=message.id, content=content_of(message))
            await ledger.append(thread, messages)
            for message in messages:
                witness.say("ok", thread=thread, id=message.id)

        for step in range(10_000):
            call = called()
            await say("a", said(f"{name} {step}"), call)
            await asyncio.gather(*(say(thread, said("x" * 900)) for thread in "bc"))
            await say("a", answered(call))


def worker(path: Path, seen: Path, name: str) -> int:
    """Fork a process that appends, and return its id; it waits until it is told to go on."""
    child = os.fork()
    if child:
        return child
    os.kill(os.getpid(), signal.SIGSTOP)
    try:
        asyncio.run(appending(path, Witness(seen, name), name))
    finally:
        os._exit(1)


def stopped(process: int) -> None:
    while os.waitpid(process, os.WUNTRACED)[1] == 0:
        pass


def kill_at(process: int, path: Path, call: str, number: int) -> bool:
    """Let a process go on until its n-th call of a kind on a ledger's files, and return whether that killed it."""
    command = [str(STRACE), "-f", "-qq", "-o", os.devnull, "-p", str(process), "-P", str(path), "-P", f"{path}-wal"]
    command += ["-e", f"trace={call}", "-e", f"inject={call}:signal=SIGKILL:when={number}"]
    tracer = subprocess.Popen(command, stderr=subprocess.DEVNULL)
    while f"TracerPid:\t{tracer.pid}\n" not in Path(f"/proc/{process}/status").read_text():
        if tracer.poll() is not None:
            break
        time.sleep(0.001)
    os.kill(process, signal.SIGCONT)
    landed = ended(process, within=5.0)
    tracer.wait()
    return landed


def kill_after(process: int, seconds: float) -> bool:
    os.kill(process, signal.SIGCONT)
    time.sleep(seconds)
    os.kill(process, signal.SIGKILL)
    return ended(process, within=5.0)


def ended(process: int, within: float) -> bool:
    """Wait for the end of a process; if it does not come, make it."""
    for _ in range(int(within * 1000)):
        done, status = os.waitpid(process, os.WNOHANG)
        if done:
            return os.WIFSIGNALED(status)
        time.sleep(0.001)
    os.kill(process, signal.SIGKILL)
    os.waitpid(process, 0)
    return False


def campaign(folder: Path, kills: int, killing: Callable[[int, Path, int], bool]) -> dict[str, Any]:
    """Kill workers of one ledger again and again, and look after each; every now and then begin a new ledger."""
    totals: dict[str, Any] = {
        "kills": 0,
        "landed": 0,
        "attempted": 0,
        "acknowledged": 0,
        "present": 0,
        "recovered": 0,
        "breaches": [],
    }
    per_ledger = 10
    with tempfile.TemporaryDirectory(dir="/dev/shm" if Path("/dev/shm").is_dir() else None) as elsewhere:
        for first in range(0, kills, per_ledger):
            path, witnesses = folder / f"ledger-{first}.db", Path(elsewhere) / str(first)
            witnesses.mkdir()
            for number in range(first, min(first + per_ledger, kills)):
                process = worker(path, witnesses / f"{number}.jsonl", str(number))
                stopped(process)
                totals["landed"] += killing(process, path, number)
                totals["kills"] += 1
                look(path, read_events(witnesses.iterdir()), totals)
            totals |= {key: totals[key] + value for key, value in counts(path, read_events(witnesses.iterdir())).items()}
            for leftover in folder.iterdir():
                leftover.unlink()
    return totals


def look(path: Path, events: list[Event], totals: dict[str, Any]) -> None:
    try:
        report = judged(events, evidence_of(path))
    except Exception as exc:  # noqa: BLE001 (whatever it is, it is a finding)
        totals["breaches"].append(repr(exc))
    else:
        totals["breaches"] += [str(breach) for breach in report.breaches]


def counts(path: Path, events: list[Event]) -> dict[str, int]:
    report = judged(events, evidence_of(path))
    return {key: report.counts[key] for key in ("attempted", "acknowledged", "present", "recovered")}


def main(folder: str, kills: str) -> None:
    random = Random(1)
    with_strace = has_strace()

    def killing(process: int, path: Path, number: int) -> bool:
        if with_strace:
            return kill_at(process, path, CALLS[number % len(CALLS)], 1 + number // len(CALLS))
        return kill_after(process, random.uniform(0.02, 0.3))

    totals = campaign(Path(folder), int(kills), killing)
    print(json.dumps({**totals, "by": "strace" if with_strace else "time"}))  # noqa: T201


if __name__ == "__main__":
    main(*sys.argv[1:])
