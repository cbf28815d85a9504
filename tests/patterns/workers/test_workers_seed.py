"""The document's example of an agent with tools; that its unit tests notice when a key part breaks; what serialising costs."""

import inspect
import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from enum import StrEnum
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import Any, TypeAlias
from unittest import mock

import pytest
from benchmarks._atlas import BARE, RAW, candidates, tables
from tests.agents.toolkit import test_atlas as toolkit_tests
from tests.dialects.atlas import test_native as message_tests
from tests.loops import run
from tests.patterns.workers import test_workers_agent as agent_tests
from tests.patterns.workers import test_workers_reports as report_tests
from tests.patterns.workers import test_workers_run as run_tests
from tests.patterns.workers import test_workers_schedule as schedule_tests

from antiphon.agents.toolkit._atlas import AgentToolkit
from antiphon.dialects.atlas import MessageType, StructuredMessage
from antiphon.patterns.workers import Assigner, ToolCapableAgent, Workers

ROOT = Path(__file__).parents[3]


# ---------------------------------------------------------------- the example of the document


def test_an_agent_with_a_toolkit_answers_a_message_that_asks_for_tools(monkeypatch: pytest.MonkeyPatch) -> None:
    """AT-039, AT-040: as the document writes it, with the default model; what the message asks for is in the response."""
    monkeypatch.setenv("ANTIPHON_MODEL", "scripted")
    message = StructuredMessage.create_query("When does the ferry leave?", "user", "harbour_agent")
    message.add_tool_call("get_times", {"line": "F2"}, "call-1")
    message.add_tool_call("whistle", {}, "call-2")

    toolkit = AgentToolkit()
    toolkit.register_tool(get_times, effects="none")
    toolkit.grant_permission("harbour_agent", "get_times")
    agent = ToolCapableAgent(worker_id="harbour_agent", specialization="Ferries and their times", toolkit=toolkit)
    response = agent.process_structured_message(message)

    assert (response.source_agent, response.target_agent) == ("harbour_agent", "user")
    assert response.metadata["in_reply_to"] == message.task_id
    assert response.message_type == MessageType.RESPONSE
    assert [(each["call_id"], each["status"], each["result"]) for each in response.tool_results] == [
        ("call-1", "success", {"F2": [7, 8, 9]}),
        ("call-2", "error", None),
    ]
    assert "UNKNOWN_TOOL" in response.tool_results[1]["error"]
    assert response.content


def get_times(line: str) -> dict[str, list[int]]:
    """Say when a line leaves."""
    return {line: [7, 8, 9]}


# ---------------------------------------------------------------- unit tests for all key functionality

Test: TypeAlias = Callable[[], object]

KEY: dict[type, ModuleType | tuple[Test, ...]] = {
    StructuredMessage: message_tests,
    AgentToolkit: toolkit_tests,
    ToolCapableAgent: agent_tests,
    Assigner: (
        run_tests.test_a_policy_gives_tasks_side_by_side_and_gets_them_in_order,
        run_tests.test_the_taint_of_a_worker_reaches_the_caller_and_the_next_worker,
    ),
    Workers: (
        run_tests.test_a_policy_gives_tasks_side_by_side_and_gets_them_in_order,
        run_tests.test_a_worker_that_is_not_there_is_an_error_that_the_model_reads,
        report_tests.test_reports_of_tools_and_policies_are_sent_live_and_are_in_the_thread,
        schedule_tests.test_a_team_says_how_many_tasks_wait_by_worker,
    ),
}
"""The classes that the document's users work with, and their tests: a file, or those that are tried first."""
SLOW = ("test_workers_killed", "test_workers_local", "test_workers_seed")
"""Files that start processes, ask a real model, or are this one."""
MEMBERS = [(each, name) for each in KEY for name in vars(each) if not name.startswith("_")]


def _tests_of(cls: type) -> Iterator[Test]:
    """Return the tests of a class; first those that are named, then all others beside this file."""
    found = KEY[cls]
    if isinstance(found, ModuleType):
        yield from _tests_in(found)
        return
    yield from found
    for path in sorted(Path(__file__).parent.glob("test_workers_*.py")):
        if path.stem not in SLOW:
            yield from _tests_in(import_module(f"tests.patterns.workers.{path.stem}"))


def _tests_in(module: ModuleType) -> Iterator[Test]:
    """Return the tests of a module that need nothing, or a toolkit of its own."""
    for name, test in vars(module).items():
        if name.startswith("test_") and not hasattr(test, "hypothesis") and not hasattr(test, "pytestmark"):
            match list(inspect.signature(test).parameters):
                case []:
                    yield test
                case ["toolkit"] if module in KEY.values():
                    yield lambda test=test: test(_toolkit(module))


def _toolkit(module: ModuleType) -> AgentToolkit:
    made = AgentToolkit()
    made.register_tool(module.get_weather, effects="none")
    made.register_tool(module.divide if hasattr(module, "divide") else module.Divide())
    return made


def _do(test: Test) -> None:
    outcome = test()
    if inspect.iscoroutine(outcome):
        run(outcome)


def _noticing(cls: type) -> Test:
    """Return the unit test of a class that fails as things are."""
    for test in _tests_of(cls):
        try:
            _do(test)
        except (Exception, pytest.fail.Exception):  # noqa: BLE001 (in whatever way it fails)
            return test
    raise AssertionError(f"no unit test of {cls.__name__} fails")


def _like(old: object, function: Callable[..., Any]) -> Any:
    """Return a function as a member of the same kind as another."""
    if isinstance(old, property):
        return property(function)
    return classmethod(function) if isinstance(old, classmethod) else function


@pytest.fixture
def _no_model(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv("ANTIPHON_MODEL", raising=False)
    monkeypatch.chdir(tmp_path)


@pytest.mark.slow
@pytest.mark.usefixtures("_no_model")
@pytest.mark.filterwarnings("ignore::RuntimeWarning")  # a broken part leaves coroutines that nothing awaits
@pytest.mark.parametrize(("cls", "name"), MEMBERS, ids=[f"{cls.__name__}.{name}" for cls, name in MEMBERS])
def test_every_public_part_has_a_unit_test_that_fails_when_it_does_nothing(cls: type, name: str) -> None:
    """AT-062: every public part of the classes in turn; one that is added without a test fails here."""
    # Mutant: any public method without a test, such as `def shout(self): ...` in `StructuredMessage` -> red.
    with mock.patch.object(cls, name, _like(inspect.getattr_static(cls, name), lambda *_, **__: None)):
        test = _noticing(cls)
    _do(test)  # it passes where nothing is broken


def _without(message: StructuredMessage, *names: str) -> StructuredMessage:
    message.metadata = {name: value for name, value in message.metadata.items() if name not in names}
    return message


def _with(message: StructuredMessage, **fields: Any) -> StructuredMessage:
    for name, value in fields.items():
        setattr(message, name, value)
    return message


WRONG: dict[str, tuple[type, str, Callable[[Any], Any]]] = {
    "a response goes to nobody": (StructuredMessage, "create_response", lambda said: _with(said, target_agent="nobody")),
    "a response is of no type": (StructuredMessage, "create_response", lambda said: _without(said, "type")),
    "a response answers nothing": (StructuredMessage, "create_response", lambda said: _without(said, "in_reply_to")),
    "a response is of another task": (StructuredMessage, "create_response", lambda said: _with(said, task_id="another")),
    "an error is no error": (StructuredMessage, "create_error", lambda said: _without(said, "type")),
    "a task has no data": (StructuredMessage, "create_task", lambda said: _without(said, "priority")),
    "a call has another id": (StructuredMessage, "add_tool_call", lambda made: f"{made}x"),
    "a dict has no time": (StructuredMessage, "to_dict", lambda data: {**data, "timestamp": 0.0}),
    "JSON has no agents": (StructuredMessage, "from_json", lambda said: _with(said, source_agent=None)),
    "everybody may use everything": (AgentToolkit, "has_permission", lambda _: True),
    "a tool gives something else": (AgentToolkit, "execute_tool", lambda _: 0),
    "results are not in the answer": (
        ToolCapableAgent,
        "process_structured_message",
        lambda said: _with(said, tool_results=[]),
    ),
    "a task that failed is completed": (ToolCapableAgent, "process_task", lambda done: {**done, "status": "completed"}),
}


@pytest.mark.usefixtures("_no_model")
@pytest.mark.parametrize("what", WRONG)
def test_the_result_of_a_key_part_is_tested_by_value(what: str) -> None:
    """AT-062: a unit test fails where a part runs and returns a wrong value."""
    cls, name, change = WRONG[what]
    old = inspect.getattr_static(cls, name)
    function = old.__func__ if isinstance(old, classmethod) else old

    def changed(self: Any, *args: Any, **more: Any) -> Any:
        return change(function(self, *args, **more))

    with mock.patch.object(cls, name, _like(old, changed)):
        test = _noticing(cls)
    _do(test)


@pytest.mark.parametrize("kind", MessageType)
def test_every_type_of_message_is_tested_by_value(kind: MessageType) -> None:
    """AT-062, AT-009 … AT-016: a type that is written otherwise is noticed."""
    types = StrEnum("MessageType", {each.name: "other" if each is kind else each.value for each in MessageType})
    with mock.patch.object(message_tests, "MessageType", types):
        test = _noticing(StructuredMessage)
    _do(test)


# ---------------------------------------------------------------- what serialising costs


@pytest.mark.slow
def test_all_candidates_of_the_serialising_benchmark_write_the_same_message() -> None:
    """AT-060: the numbers are those of `make bench ARGS=codec:atlas`; each candidate writes and reads the same message."""
    written, read = candidates()["atlas write"], candidates()["atlas read"]

    assert len({json.dumps(json.loads(write()), sort_keys=True) for write in written.values()}) == 1
    assert read["antiphon"]().to_dict() == read[BARE]() == read[RAW]().model_dump()
    assert [table.name for table in tables("atlas write")] == ["atlas write"]


MEASURE = """
import json
from dataclasses import replace
from time import thread_time
from antiphon.dialects.atlas import StructuredMessage
from benchmarks._atlas import tables
from benchmarks._harness import keep_freed_memory, run

def many(count):
    message = StructuredMessage("go", task_id="t")
    for number in range(count):
        message.add_tool_call("look", {"at": number}, f"c{number}")
        message.add_tool_result("look", {"found": number}, f"c{number}")
    text = message.to_json()
    return {"write": message.to_json, "read": lambda: StructuredMessage.from_json(text)}

def least(function):
    times = []
    for _ in range(7):
        began = thread_time()
        function()
        times.append(thread_time() - began)
    return min(times)

keep_freed_memory()
found = {}
for table in tables():
    outcome = run(replace(table, rounds=5))
    found |= {table.name: outcome.ratio(goal.candidate, goal.of) / goal.at_most for goal in table.goals}
few, more = many(50), many(800)
for name in few:
    found[f"growth of {name}"] = least(more[name]) / least(few[name]) / 16
print(json.dumps(found))
"""
"""Measures in a process of its own, where nothing is traced: CPU time, in turns, against the bare `json` module."""


@pytest.mark.slow
def test_serialising_keeps_the_goals_of_its_benchmark_and_grows_with_the_message_alone() -> None:
    """AT-060: each message within a fixed number of times of bare `json`, and 16 times the tool calls take 16 times as long.

    The benchmark's goals are for a quiet machine; here half as much again is allowed.
    """
    # Mutant: `_message.StructuredMessage.to_json` reads what it wrote before it returns it -> red.
    # Mutant: `_message.StructuredMessage.from_json` reads twice -> red.
    # Mutant: `_message.StructuredMessage.to_dict` looks through all calls for each result -> red (growth).
    environment = {name: value for name, value in os.environ.items() if not name.startswith("COV_")}
    done = subprocess.run(
        [sys.executable, "-c", MEASURE], capture_output=True, text=True, check=True, cwd=ROOT, env=environment, timeout=120
    )

    found = json.loads(done.stdout)
    assert {"atlas write", "atlas read", "growth of write", "growth of read"} == set(found)
    assert {name: ratio for name, ratio in found.items() if ratio > 1.5} == {}
