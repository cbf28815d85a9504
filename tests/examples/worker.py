"""Processes that run an example of `examples/durable` on a ledger in a file, and kill themselves at an append.

A place is `NAME`, `NAME before N` or `NAME after N`: the process is killed before or after its N-th append. With `changed`
before it, the instructions of the agent are other ones, and the program says `on_change="continue"`. What comes out is written
to the witness. See `tests/runtime/processes.py`.
"""

import asyncio
import json
import os
import sys
import traceback
from collections.abc import Sequence
from importlib import import_module
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, cast

from pydantic import TypeAdapter
from pydantic_ai.usage import RunUsage
from tests.runtime.worker import kill, serve

from antiphon.ledger import Ledger, Record, open_ledger
from antiphon.messages import Message

FOLDER = Path(__file__).parents[2] / "examples" / "durable"
PYTHON = "ANTIPHON_TESTS_PYTHON"
"""The variable with the interpreter for servers that an example starts."""
NAMES = sorted(path.stem for path in FOLDER.glob("*.py") if path.stem != "outside")


class Killing:
    """A ledger that counts its appends, and has its process killed at one.

    An append may fail because of another that is written at the same time, and is then made again. So those that begin and
    those that succeed are counted apart: otherwise a process that is to be killed after such an append would live on.
    """

    def __init__(self, ledger: Ledger, when: str, number: int) -> None:
        self._ledger = ledger
        self._when = when
        self._number = number
        self.count = 0
        self._succeeded = 0

    def __getattr__(self, name: str) -> Any:
        return getattr(self._ledger, name)

    async def append(self, thread_id: str, messages: Sequence[Message], **more: Any) -> tuple[Record, ...]:
        self.count += 1
        if (self._when, self._number) == ("before", self.count):
            kill()
        records = await self._ledger.append(thread_id, messages, **more)
        self._succeeded += 1
        if (self._when, self._number) == ("after", self._succeeded):
            kill()
        return records


async def main(path: str, witness: str, place: str) -> None:
    name, when, number = [*place.removeprefix("changed ").split(), "", "0"][:3]
    program = import_module(name)
    outside = import_module("outside").Outside(Path(f"{path}.outside"))
    more = {"instructions": f"Kindly: {program.INSTRUCTIONS}", "on_change": "continue"} if place.startswith("changed") else {}
    async with open_ledger(f"sqlite:///{path}") as ledger:
        killing = Killing(ledger, when, int(number or 0))
        answer, usage = await program.main(cast("Ledger", killing), outside, **more)
    used = TypeAdapter(RunUsage).dump_python(usage, mode="json", exclude_defaults=True)
    found = {"answer": answer, "usage": used, "appends": killing.count}
    Path(witness).write_text(json.dumps(found), encoding="utf-8")


def live(path: str, witness: str, place: str) -> int:
    try:
        asyncio.run(main(path, witness, place))
    except BaseException:  # noqa: BLE001 (whatever it is, the test shows it)
        traceback.print_exc()
        return 1
    return 0


def warm() -> None:
    """Run each example once: schemas are built when they are first used."""
    sys.path.insert(0, str(FOLDER))
    with TemporaryDirectory() as folder:
        for name in NAMES:
            live(f"{folder}/{name}", f"{folder}/{name}.witness", name)


if __name__ == "__main__":
    sys.executable = os.environ.get(PYTHON, sys.executable)
    warm()
    serve(live)
