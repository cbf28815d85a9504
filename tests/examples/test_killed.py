"""The durable examples, killed at every step and started again: the same answer and usage, nothing done twice. F13, G9."""

import asyncio
import json
import os
import signal
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest
from pydantic_ai.conversation import Conversation
from pydantic_ai.messages import ModelMessage, ModelRequest, ModelResponse, TextPart, UserPromptPart
from pydantic_ai.usage import RunUsage
from tests import forked
from tests.examples.worker import FOLDER, NAMES, PYTHON
from tests.runtime.processes import Processes

from antiphon.agents import LedgerConversationStore
from antiphon.ledger import open_ledger

pytest.importorskip("apsw")

KILLED = -signal.SIGKILL
SLOW = {"chat_app", "mcp_server"}
"""Those that start a server in each life: at every third step. The others at every second one; in the long runs all at all."""
IS_LONG = bool(os.environ.get("ANTIPHON_CHAOS"))
PLACES = ("before", "after") if IS_LONG else ("before",)
"""Before an append is the place where most is done that is not recorded."""


@pytest.fixture(scope="module")
def processes(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Processes]:
    """Processes whose own children, the servers of an example, are forked as well."""
    python = tmp_path_factory.mktemp("bin") / "python"
    forked.interpreter(python)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv(PYTHON, str(python))
        with Processes(Path(__file__).parent / "worker.py") as processes:
            yield processes


def found(folder: Path) -> dict[str, Any]:
    """Return the output of the program, and the number of calls to each outside service."""
    said: dict[str, Any] = json.loads((folder / "witness").read_text())
    path = folder / "ledger.db.outside"
    lines = [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []
    assert not [line for line in lines if line["effects"] == "once" and line["time"] > 1]  # G7
    return {"answer": said["answer"], "usage": said["usage"], "done": sorted({line["what"] for line in lines})}


def test_each_example_says_how_it_is_started() -> None:
    for name in NAMES:
        assert f"python examples/durable/{name}.py" in (FOLDER / f"{name}.py").read_text()
    assert len(NAMES) == 12


@pytest.mark.slow
async def test_a_chat_goes_on_after_fifty_requests(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The usage of a conversation is that of all its turns; the limit of Pydantic AI must not end it for good."""
    monkeypatch.syspath_prepend(str(FOLDER))
    chat_app, outside = import_module("chat_app"), import_module("outside")
    said: list[ModelMessage] = [ModelRequest([UserPromptPart("Hello.")]), ModelResponse([TextPart("Hello.")])]
    async with open_ledger("memory:") as ledger:
        await LedgerConversationStore(ledger).save(
            Conversation(conversation_id="tea", messages=said, usage=RunUsage(requests=50))
        )
        chats = chat_app.Chats(ledger, outside.Outside(tmp_path / "outside"), "Sell.")
        words = [word async for word in chats.answer("tea", chat_app.Question(id="m51", text="What have I ordered?"))]
        assert "".join(words).startswith("You have ordered 0 of our teas so far.")
        assert (await chats.conversation("tea")).usage.requests == 51


@pytest.mark.slow
@pytest.mark.parametrize("name", NAMES)
def test_an_example_that_is_killed_at_any_step_ends_as_if_it_was_not(name: str, processes: Processes, tmp_path: Path) -> None:
    """Before an append, what was done since the last one is not recorded; after it, what it announces has not begun.

    How many appends there are depends on how quick the machine is: outcomes may travel together.
    """
    whole = tmp_path / "whole"
    whole.mkdir()
    assert processes.run(whole, name) == 0
    expected, kills = found(whole), 0
    for number in range(1, 100, 1 if IS_LONG else 3 if name in SLOW else 2):
        codes = [_killed(processes, tmp_path, expected, f"{name} {when} {number}") for when in PLACES]
        kills += codes.count(KILLED)
        if KILLED not in codes:  # it ended before that
            break
    assert kills >= 3
    assert processes.run(whole, name) == 0  # a finished run is read
    assert found(whole) == expected


def _killed(processes: Processes, folder: Path, expected: dict[str, Any], place: str) -> int:
    """Have a process killed, and another one finish its work; return how the first one ended."""
    own = folder / place.replace(" ", "-")
    own.mkdir()
    code = processes.run(own, place)
    if code == KILLED:
        assert processes.run(own, place.partition(" ")[0]) == 0
    assert found(own) == expected, place
    return code


def has_changed(folder: Path) -> bool:
    """Whether a row says that the program went on although it had changed."""
    return asyncio.run(_has_changed(folder))


async def _has_changed(folder: Path) -> bool:
    async with open_ledger(f"sqlite:///{folder}/ledger.db") as ledger:
        threads = [each.thread_id for each in (await ledger.threads()).threads]
        rows = [str(record.message.payload) for each in threads async for record in ledger.read(each)]
    return any("RUN_CHANGED" in row for row in rows)


@pytest.mark.slow
@pytest.mark.parametrize("name", NAMES)
def test_an_example_goes_on_under_a_changed_prompt(name: str, processes: Processes, tmp_path: Path) -> None:
    """It is killed, and deployed with other instructions, and a row says that it goes on under these. G11.

    After the first append that lets it meet its own recorded prompt; in the long runs after each append.
    """
    whole = tmp_path / "whole"
    whole.mkdir()
    assert processes.run(whole, name) == 0
    expected, changes = found(whole), 0
    for number in range(1 if IS_LONG else 2, 100):
        cut = tmp_path / str(number)
        cut.mkdir()
        if processes.run(cut, f"{name} after {number}") != KILLED:
            break  # it ended before that
        assert processes.run(cut, f"changed {name}") == 0
        assert found(cut) == expected, number
        changes += has_changed(cut)
        if changes and not IS_LONG:
            break
    assert changes
