"""Imports: the CPU time of a fresh process that imports and ends, above that of a bare Python."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from functools import partial

from benchmarks._harness import Goal, Table

__all__ = ["tables"]

BARE = "bare python"
PYDANTIC = "pydantic"

_MAKE = "from antiphon import Message, PartsPayload as P, TextPart as T; Message(policy='a', payload=P(parts=(T(text='b'),)))"
_LOAD = """from antiphon import loads; loads(b'{"antiphon":1,"id":"1","policy":"a","payload":{"kind":"parts","parts":[]}}')"""

PROGRAMS = {
    BARE: "pass",
    PYDANTIC: "from pydantic import BaseModel; BaseModel.model_config",
    "pydantic, a model defined": "from pydantic import BaseModel; type('A', (BaseModel,), {'__annotations__': {'x': int}})",
    "import antiphon": "import antiphon",
    "from antiphon import Message": "from antiphon import Message",
    "antiphon, a message made": _MAKE,
    "antiphon, a message loaded": _LOAD,
    "autogen-core": "import autogen_core",
    "langchain-core messages": "from langchain_core.messages import AIMessage",
    "pydantic-ai": "import pydantic_ai",
}


def tables(part: str = "") -> Iterator[Table]:
    """Make the one table there is."""
    if part not in "import":
        return
    for program in PROGRAMS.values():
        _cpu_seconds(program)  # writes the bytecode, and fills the disk cache
    yield Table(
        name="import",
        unit="ms",
        scale=1e3,
        baseline=PYDANTIC,
        candidates={name: partial(_cpu_seconds, program) for name, program in PROGRAMS.items()},
        floor=BARE,
        goals=(Goal("import antiphon", 0.1, PYDANTIC), Goal("from antiphon import Message", 1.8, PYDANTIC)),
        notes=("user and system time of the whole process, less that of a bare Python",),
        rounds=15,
    )


def _cpu_seconds(program: str) -> float:
    """Run a program in a process of its own. Isolated (-I): no PYTHON… variable reaches it, so bytecode may be cached."""
    child = subprocess.Popen([sys.executable, "-I", "-c", program])
    _, status, used = os.wait4(child.pid, 0)
    child.returncode = os.waitstatus_to_exitcode(status)
    if child.returncode:
        raise RuntimeError(f"this program failed: {program}")
    return used.ru_utime + used.ru_stime
