"""The Python examples in the documents that the four formats come from, run with only their imports changed.

The documents are not part of this repository. If they lie beside the checkout (`shared/seeds`), every block is run; otherwise
the test says so. A block that cannot run here is listed with the reason.
"""

import ast
import json
import re
import textwrap
from datetime import datetime
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Dict, List, Optional  # noqa: UP035 (the documents use them)

import pytest

from antiphon.dialects import agent_framework, atlas, choir, marsys
from antiphon.dialects.agent_framework import constants, message_builder

SEEDS = Path(__file__).parents[3] / "shared" / "seeds"
FORMATS = {"000": choir, "001": marsys, "003": agent_framework, "004": atlas}
IMPORTS = {
    "src.agents.memory": marsys,
    "agent_framework.constants": constants,
    "agent_framework.utils.message_builder": message_builder,
    "atlas.agents.messaging.message": atlas,
}
LATER = {
    "await": "runs with real actors and agents in the tests of the runtime and of the patterns",
    "async def receive": "is an actor's method, wrongly indented",
    "async def send_message": "sends through an actor system",
    "ToolCapableAgent": "runs with a real agent in the tests of the workers",
    "class Message": "defines the class that is built here",
    "@dataclass": "defines the class that is built here",
    '"content": Any': "is a table in the form of a dict",
    '"is_global": true': "is JSON, not Python",
}


def blocks() -> list[tuple[str, int, str]]:
    found: list[tuple[str, int, str]] = []
    for name in FORMATS:
        for path in SEEDS.glob(f"{name}_*"):
            code = re.findall(r"```python\n(.*?)```", path.read_text(), re.DOTALL)
            found += [(name, number, textwrap.dedent(block)) for number, block in enumerate(code)]
    return found


def imported(code: str) -> str:
    """The code without imports of the origin's own modules, whose names are given to it instead."""
    tree = ast.parse(code)
    tree.body = [node for node in tree.body if not (isinstance(node, ast.ImportFrom) and node.module in IMPORTS)]
    return ast.unparse(tree)


def surroundings(name: str) -> dict[str, Any]:
    """What the text around the blocks takes for granted."""
    module = FORMATS[name]
    given: dict[str, Any] = {each: getattr(module, each) for each in module.__all__}
    if name == "003":
        given |= {each: getattr(where, each) for where in (constants, message_builder) for each in where.__all__}
    agent = SimpleNamespace(_input_message_processor=lambda: None, name="agent")
    typing: dict[str, Any] = {"Any": Any, "Dict": Dict, "List": List, "Optional": Optional}  # noqa: UP006
    return {**given, **typing, "json": json, "datetime": datetime, "agent": agent}


def test_every_block_runs_or_is_listed() -> None:
    """CH-037, MA-043, MA-044, AF-040, AT-017: the documents' own examples."""
    if not SEEDS.is_dir():
        pytest.skip(f"the documents are not at {SEEDS}: their examples were not run")
    ran = 0
    states: dict[str, dict[str, Any]] = {name: surroundings(name) for name in FORMATS}
    states["001"]["message"] = marsys.Message("assistant", "I am here.")
    for name, number, code in blocks():
        reason = next((reason for mark, reason in LATER.items() if mark in code), None)
        if reason is None:
            exec(compile(imported(code), f"seed {name}, block {number}", "exec"), states[name])
            ran += 1
    assert ran > 60
