"""The seed's own block about agents, run with only its imports changed; and where the proof of each line is."""

import json
import re
from pathlib import Path

import pytest
from benchmarks._atlas import BARE, RAW, candidates, tables
from tests.dialects.test_seeds import SEEDS

from antiphon.agents.toolkit.atlas import AgentToolkit
from antiphon.dialects.atlas import MessageType, StructuredMessage
from antiphon.patterns.workers import ToolCapableAgent

TESTS = Path(__file__).parents[2]
LINES = [f"AT-{number:03}" for number in range(1, 64)]
KEY = {
    "StructuredMessage": "AT-001 AT-018 AT-026 AT-033",
    "MessageType": "AT-009 AT-016",
    "create_response, create_error, create_task": "AT-019 AT-023 AT-024",
    "to_dict, to_json, from_dict, from_json": "AT-029 AT-030 AT-031 AT-032",
    "AgentToolkit": "AT-035 AT-036 AT-038",
    "ToolCapableAgent": "AT-039 AT-040 AT-041",
    "process_message, process_task": "AT-058",
    "the four flows": "AT-043 AT-044 AT-045 AT-046",
    "routing": "AT-051 AT-056",
    "STATUS": "AT-063",
    "thread safety": "AT-059",
    "telemetry": "AT-061",
}
"""What the document calls its parts, and the lines that are about each."""
IMPORTS = ("atlas.agents.specialized.tool_agent", "atlas.tools.base")


def _named() -> dict[str, set[str]]:
    """Return by line the tests that name it: in a name or a docstring, in a file of tests."""
    found: dict[str, set[str]] = {}
    for path in TESTS.rglob("test_*.py"):
        text = path.read_text()
        starts = [(match.start(), match[1]) for match in re.finditer(r"^(?:async )?def (test_\w+)", text, re.MULTILINE)]
        ends = [start for start, _ in starts[1:]] + [len(text)] * bool(starts)
        for (start, name), end in zip(starts, ends, strict=True):
            for line in re.findall(r"AT-\d{3}", text[start:end]):
                found.setdefault(line, set()).add(name)
    return found


def test_every_line_of_the_document_is_named_by_a_test() -> None:
    """AT-062: what is key in the document has a test that would fail without it."""
    named = _named()

    assert [line for line in LINES if line not in named] == []
    for part, lines in KEY.items():
        assert all(named[line] for line in lines.split()), part


def test_the_block_about_tool_capable_agents_runs_as_it_is_written(monkeypatch: pytest.MonkeyPatch) -> None:
    """AT-039, AT-040: with the default model, and a message that asks for a tool."""
    if not SEEDS.is_dir():
        pytest.skip(f"the documents are not at {SEEDS}: the example was not run")
    (document,) = SEEDS.glob("004_*")
    blocks = re.findall(r"```python\n(.*?)```", document.read_text(), re.DOTALL)
    (block,) = [each for each in blocks if "ToolCapableAgent" in each]
    for module in IMPORTS:
        assert f"from {module} import" in block
        block = re.sub(rf"^from {re.escape(module)} import .*\n", "", block, flags=re.MULTILINE)
    monkeypatch.setenv("ANTIPHON_MODEL", "scripted")
    message = StructuredMessage.create_query("What's the weather in New York?", "user", "research_agent")
    message.add_tool_call("get_weather", {"location": "New York"}, "call-1")
    names = {"ToolCapableAgent": ToolCapableAgent, "AgentToolkit": AgentToolkit, "message": message}

    exec(compile(block, "seed 004", "exec"), names)

    response = names["response"]
    assert isinstance(response, StructuredMessage)
    assert (response.source_agent, response.target_agent) == ("research_agent", "user")
    assert response.metadata["in_reply_to"] == message.task_id
    assert response.message_type == MessageType.RESPONSE
    assert [(each["call_id"], each["status"]) for each in response.tool_results] == [("call-1", "error")]
    assert "UNKNOWN_TOOL" in response.tool_results[0]["error"]  # the document registers none
    assert response.content


def test_what_the_benchmark_of_serialising_compares_says_the_same() -> None:
    """AT-060: the numbers are those of `make bench ARGS=codec:atlas`; each candidate writes and reads the same message."""
    written, read = candidates()["atlas write"], candidates()["atlas read"]

    assert len({json.dumps(json.loads(write()), sort_keys=True) for write in written.values()}) == 1
    assert read["antiphon"]().to_dict() == read[BARE]() == read[RAW]().model_dump()
    assert [table.name for table in tables("atlas write")] == ["atlas write"]
