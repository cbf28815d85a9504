"""How much memory an idle actor takes: run as a program, `python -m benchmarks.actors._idle antiphon 100000 asked`.

It prints by how many bytes an actor its process has grown.
"""

from __future__ import annotations

import gc
import os
import sys
from collections.abc import Callable
from importlib import import_module
from pathlib import Path

from benchmarks.actors._troupe import Troupe

__all__ = ["TROUPES"]

TROUPES = {
    "antiphon": "antiphon_:AntiphonTroupe",
    "asyncio": "asyncio_:AsyncioTroupe",
    "autogen": "autogen_:AutogenTroupe",
    "autogen-routed": "autogen_:RoutedTroupe",
    "pykka": "pykka_:PykkaTroupe",
    "thespian": "thespian_:ThespianTroupe",
}
"""By a short name, where the class is: a process imports only its own."""

WARM_UP = 100


def main(name: str, count: int, is_asked: bool) -> None:
    module, _, kind = TROUPES[name].partition(":")
    make: Callable[[], Troupe] = getattr(import_module(f"benchmarks.actors.{module}"), kind)
    troupe = make()
    troupe.ask(troupe.begin([f"first-{number}" for number in range(WARM_UP)]))
    names = [str(number) for number in range(count)]
    before = _resident()
    handles = troupe.begin(names)
    if is_asked:
        troupe.ask(handles)
    del handles
    print((_resident() - before) / count, flush=True)
    os._exit(0)  # to end a hundred thousand actors in good order takes long, and tells nothing


def _resident() -> int:
    gc.collect()
    pages = Path("/proc/self/statm").read_text(encoding="ascii").split()[1]
    return int(pages) * os.sysconf("SC_PAGE_SIZE")


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), "asked" in sys.argv[3:])
