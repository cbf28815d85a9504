"""The examples of the documents that the formats come from: their shapes, that our examples have them all, and that they run.

The documents are not part of this repository. Their examples are kept as facts: `seeds/shapes.json` has, for each document,
every call and every message that it shows, by names of fields and types of values. The files beside it are examples of our own
with these shapes, and tests of what they do. Where the documents lie beside the checkout, they are compared and run as well.
"""

import ast
import json
import re
import textwrap
from collections.abc import Iterator
from datetime import datetime
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Dict, List, Literal, Optional  # noqa: UP035 (the documents use them)

import pytest
from pydantic import BaseModel, HttpUrl

from antiphon import messages, protocol
from antiphon.dialects import agent_framework, atlas, marsys
from antiphon.dialects.agent_framework import constants, message_builder
from antiphon.messages import MessageBuilder

HERE = Path(__file__).parent / "seeds"
TESTS = HERE.parents[1]
SHAPES: dict[str, list[str]] = json.loads((HERE / "shapes.json").read_text())
OURS = {
    "000": [HERE / "test_choir_examples.py"],
    "001": [HERE / "test_marsys_examples.py", TESTS / "patterns" / "peers" / "test_peers_processors.py"],
    "002": [HERE / "test_options_examples.py"],
    "003": [HERE / "test_agent_framework_examples.py"],
    "004": [HERE / "test_atlas_examples.py", TESTS / "patterns" / "workers" / "test_workers_seed.py"],
}

# ---------------------------------------------------------------- shapes

CALLS = re.compile(
    r"Message|Response|ErrorResponse|StructuredMessage|ToolCapableAgent|AgentToolkit|create_\w+|add_\w+|from_\w+|to_\w+"
    r"|response_to|continue_step|success|process_structured_message"
)
"""What the documents call that is built here; what a block defines itself is not."""
TELLING = ("type", "role", "kind")
"""Fields whose value says what a message is."""
OWN = ("args", "arguments", "result")
"""Fields that hold what a tool takes or gives, which is everybody's own."""


def shapes_in(code: str) -> Iterator[str]:
    """Return the calls and the messages in some code, by the names of what is given and the types of the values."""
    tree = ast.parse(code)
    defined = {node.name for node in ast.walk(tree) if isinstance(node, ast.FunctionDef | ast.ClassDef)}
    inside = {id(each) for node in tree.body if isinstance(node, ast.ClassDef) for each in ast.walk(node)}
    for node in ast.walk(tree):
        if id(node) in inside:
            continue
        if isinstance(node, ast.Call) and CALLS.fullmatch(name := ast.unparse(node.func).split(".")[-1]):
            if name not in defined:
                named = sorted((each.arg or "**", shape_of(each.value, each.arg)) for each in node.keywords)
                yield json.dumps([name, [shape_of(each) for each in node.args], dict(named)])
        elif isinstance(node, ast.Dict) and {"type", "role"} & {getattr(key, "value", None) for key in node.keys}:
            yield json.dumps(shape_of(node))


def shape_of(node: ast.expr, field: str | None = None) -> Any:
    """Return the shape of a value: keys of objects, kinds of items, types of everything else."""
    match node:
        case ast.Dict() if field in OWN:
            return "object"
        case ast.Dict(keys=keys, values=values):
            names = [str(getattr(key, "value", "**")) for key in keys]
            return {
                name: shape_of(value, name)
                for name, value in sorted(zip(names, values, strict=True), key=lambda each: each[0])
            }
        case ast.List(elts=items):
            found = [shape_of(item) for item in items]
            return [each for number, each in enumerate(found) if each not in found[:number]]
        case ast.Constant(value=str(text)) if field in TELLING:
            return text
        case ast.Constant(value=value):
            return "null" if value is None else type(value).__name__
        case ast.Name(id="true"):  # one block is JSON in the place of Python
            return "bool"
        case _:
            return "value"


def shapes_of(codes: list[str]) -> set[str]:
    return {shape for code in codes for shape in shapes_in(code)}


def test_our_examples_have_every_shape_of_the_documents() -> None:
    """CH-037, MA-043, MA-044, AF-040, AT-017: by names of fields and types of values; no example of theirs is missing here."""
    # Mutant: any field of any example in `seeds/` is left out or renamed -> red.
    missing = {
        name: sorted(set(shapes) - shapes_of([path.read_text() for path in OURS[name]])) for name, shapes in SHAPES.items()
    }

    assert missing == {name: [] for name in OURS}
    assert sum(len(shapes) for shapes in SHAPES.values()) > 80
    for name, blocks in documents().items():
        assert sorted(shapes_of([block for block in blocks if is_example(block)])) == SHAPES[name], name


# ---------------------------------------------------------------- the documents themselves

SEEDS = Path(__file__).parents[3] / "shared" / "seeds"
FORMATS = {"000": protocol, "001": marsys, "002": messages, "003": agent_framework, "004": atlas}
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


def documents() -> dict[str, list[str]]:
    """Return the Python blocks of each document that lies beside the checkout; of none, if none does."""
    found: dict[str, list[str]] = {}
    for path in sorted(SEEDS.glob("00*")) if SEEDS.is_dir() else ():
        code = re.findall(r"```python\n(.*?)```", path.read_text(), re.DOTALL)
        found[path.name[:3]] = [textwrap.dedent(block) for block in code]
    return found


def is_example(block: str) -> bool:
    """Whether a block can be read and is no table."""
    try:
        ast.parse(block)
    except SyntaxError:  # a method that is wrongly indented
        return False
    return '"content": Any' not in block


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
    if name == "001":
        given["message"] = marsys.Message("assistant", "I am here.")
    if name == "002":
        last = MessageBuilder.next_step(None, policy="user").add_text("Hello.").to_message()
        urls = {"url_1": "https://a.example/1", "url_2": "https://a.example/2"}
        given |= {"last_message": last, "results": [], **urls, "BaseModel": BaseModel, "HttpUrl": HttpUrl}
    agent = SimpleNamespace(_input_message_processor=lambda: None, name="agent")
    typing: dict[str, Any] = {"Any": Any, "Dict": Dict, "List": List, "Optional": Optional, "Literal": Literal}  # noqa: UP006
    return {**given, **typing, "json": json, "datetime": datetime, "agent": agent}


SAMPLE = """
from src.agents.memory import Message

first = Message(role="user", content="Is the bridge open?")
again = Message.from_response_dict({"content": "Yes."}, processor=agent._input_message_processor())
"""
"""A block as the documents have them: it imports from the origin, and takes an agent for granted."""


def test_a_block_of_a_document_runs_with_only_its_imports_changed() -> None:
    """CH-037, MA-043, MA-044, AF-040, AT-017: one of our own, and every block of the documents that are there."""
    for name, blocks in {"001": [SAMPLE], **documents()}.items():
        state = surroundings(name)
        for number, code in enumerate(blocks):
            if not any(mark in code for mark in LATER):
                exec(compile(imported(code), f"seed {name}, block {number}", "exec"), state)
    own = surroundings("001")
    exec(compile(imported(SAMPLE), "our own block", "exec"), own)
    assert (own["first"].role, own["again"].content) == ("user", "Yes.")


@pytest.mark.parametrize("name", OURS)
def test_nothing_here_depends_on_the_documents(name: str) -> None:
    """What a bare clone has is enough: our examples name no place outside of the repository."""
    for path in OURS[name]:
        assert re.findall(r"parents\[[4-9]\]|shared.{0,3}seeds|pytest\.skip", path.read_text()) == []
