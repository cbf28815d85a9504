"""Makes the stored ledgers, on the commit whose environment runs this file: `OLD/.venv/bin/python make.py FOLDER [PROGRAM…]`.

Each program of `programs.py` runs in a process of its own for each state, and is killed with SIGKILL where the name says so.
The result is a file `PROGRAM.STATE.tar.xz` with the ledger as the process left it, its write-ahead log included, and the
witness.
"""

import asyncio
import io
import os
import signal
import sys
import tarfile
import tempfile
import traceback
from pathlib import Path

from programs import PROGRAMS, KillingLedger, Witness

from antiphon.errors import ParkedError
from antiphon.ledger import open_ledger
from antiphon.ledger.memory import MemoryLedger

FINISHED, PARKED, KILLED = 0, 3, -signal.SIGKILL
WITHOUT_APPROVALS = ("actors",)


def live(program: str, folder: Path, place: str = "", *, approval: bool = False) -> int:
    """Run a program in another process, and return the exit code."""
    child = os.fork()
    if child == 0:
        os._exit(_child(program, folder, place, approval))
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def _child(program: str, folder: Path, place: str, approval: bool) -> int:
    async def main() -> None:
        async with open_ledger(f"sqlite:///{folder}/ledger.db") as ledger:
            await PROGRAMS[program](KillingLedger(ledger, place), Witness(f"{folder}/witness", place), approval)

    try:
        asyncio.run(main())
    except ParkedError:
        return PARKED
    except BaseException:  # noqa: BLE001 (it is printed, and ends the making)
        traceback.print_exc()
        return 1
    return FINISHED


def make(program: str, state: str, out: Path) -> None:
    """Make one ledger, and store it."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        match state:
            case "waiting":
                assert live(program, folder, approval=True) == PARKED
            case "asked":
                assert live(program, folder, "at APPROVE", approval=True) == KILLED
            case "parked":
                assert live(program, folder, "in pay") == KILLED
                assert live(program, folder) == PARKED
            case _:
                assert live(program, folder, state.replace("-", " ")) == KILLED
        store(folder, out / f"{program}.{state}.tar.xz")


def store(folder: Path, path: Path) -> None:
    """Store what a process has left, without times and owners: the same content gives the same bytes."""
    with tarfile.open(path, "w:xz", preset=9) as tar:
        for name in ("ledger.db", "ledger.db-wal", "witness"):
            if (folder / name).exists():
                data = (folder / name).read_bytes()
                about = tarfile.TarInfo(name)
                about.size = len(data)
                tar.addfile(about, io.BytesIO(data))


def states_of(program: str, appends: int) -> list[str]:
    """Return the states of a program: killed at a third and at two thirds of its rows, in `pay`, and where it waits."""
    killed = [f"after-{appends * third // 3}" for third in (1, 2)]
    asking = [] if program in WITHOUT_APPROVALS else ["asked", "waiting"]
    return [*killed, "in-pay", "parked", *asking]


def appends_of(program: str) -> int:
    """Run a program to its end in this process, and count its appends. Children inherit what it has imported."""

    async def main() -> int:
        counting = KillingLedger(MemoryLedger())
        with tempfile.NamedTemporaryFile() as witness:
            await PROGRAMS[program](counting, Witness(witness.name), False)
        return counting.count

    return asyncio.run(main())


def main(out: str, *programs: str) -> None:
    Path(out).mkdir(exist_ok=True)
    for program in programs or PROGRAMS:
        for state in states_of(program, appends_of(program)):
            make(program, state, Path(out))
            sys.stdout.write(f"{program}.{state}\n")


if __name__ == "__main__":
    main(*sys.argv[1:])
