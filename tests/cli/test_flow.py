"""`antiphon check --flow`: a stored thread or a file is judged by a flow, and the first message that is off it is named."""

import asyncio
import json
from pathlib import Path

import pytest
from tests.cli.running import run, save, save_house
from tests.runtime import choir

from antiphon.ledger import open_ledger
from antiphon.messages import Message
from antiphon.protocol import CreateThread, StartThread
from antiphon.protocol.flows import FLOWS, flow_data, read_flow
from antiphon.runtime import System

ATLAS = {"content": "Hi", "metadata": {"type": "query"}, "source_agent": "user", "target_agent": "agent"}


@pytest.fixture(scope="module")
def ledger(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A ledger with a thread that actors have run."""
    url = f"sqlite:///{tmp_path_factory.mktemp('flow')}/ledger.db"

    async def main() -> None:
        async with open_ledger(url) as ledger, System(ledger) as system:
            choir.host(system)
            ended = asyncio.Event()
            system.watch(lambda record: "THREAD_RESULT" in str(record.message.parts) and ended.set())
            create = CreateThread(user_id="u", initial_input="hello")
            await system.ask("thread/1", create, thread_id="t", sender=choir.CLIENT)
            await system.ask("thread/1", StartThread(thread_id="t"), thread_id="t", sender=choir.CLIENT)
            await ended.wait()

    asyncio.run(main())
    return url


def _stored(url: str) -> list[Message]:
    async def read() -> list[Message]:
        async with open_ledger(url) as ledger:
            return [record.message async for record in ledger.read("t")]

    return asyncio.run(read())


@pytest.mark.parametrize("flow", ["thread-execution", "phase-processing", "error-handling"])
def test_a_thread_of_a_ledger_is_judged(ledger: str, flow: str) -> None:
    """CH-111 to CH-114, as anybody can look at it later."""
    result = run("check", "t", "--ledger", ledger, "--flow", flow)

    assert (result.exit_code, result.stderr) == (0, "")
    assert result.stdout.startswith(f"t: conforms to {flow}, in ")
    assert result.stdout.endswith("messages. It is complete.\n")
    assert run("check", "t", "--flow", flow, ANTIPHON_LEDGER=ledger).stdout == result.stdout


def test_the_first_message_that_is_off_the_flow_is_named(ledger: str, tmp_path: Path) -> None:
    messages = _stored(ledger)
    started = next(place for place, message in enumerate(messages) if "START_THREAD" in str(message.payload))
    file = save_house(tmp_path / "chat.json", messages[:started] + messages[started + 1 :])
    result = run("check", file, "--from", "house", "--flow", "thread-execution")

    off = messages[started + 1 :][0]
    assert result.exit_code == 1
    first, expected = result.stdout.splitlines()
    assert first.startswith(f"{file}: message ")
    assert "does not fit the flow thread-execution (id " in first
    assert expected == "    expected: client -> thread: START_THREAD"
    found = json.loads(run("check", file, "--from", "house", "--flow", "thread-execution", "--format", "json").stdout)
    named = next(message for message in messages if message.id == found["message_id"])
    assert (found["flow"], found["state"]) == ("thread-execution", "violated")
    assert messages.index(named) - 1 == found["position"] >= messages.index(off) - 1


def test_a_file_that_is_on_its_way_conforms_and_says_what_may_come_next(tmp_path: Path) -> None:
    file = save(tmp_path / "chat.json", [ATLAS])
    result = run("check", file, "--from", "atlas", "--flow", "request-response")

    assert result.exit_code == 0
    assert result.stdout == (
        f"{file}: conforms to request-response, in 1 messages. It is on its way; next: agent -> user: said\n"
    )


def test_a_flow_of_ones_own_is_a_file(tmp_path: Path) -> None:
    flow = {"name": "one-word", "pattern": {"from": "user", "to": "agent", "says": "said"}, "roles": {"user": "user"}}
    own = save(tmp_path / "flow.json", flow)
    file = save(tmp_path / "chat.json", [ATLAS, ATLAS])
    result = run("check", file, "--from", "atlas", "--flow", own)

    assert result.exit_code == 1
    assert "message 1 does not fit the flow one-word" in result.stdout
    assert result.stdout.endswith("    expected: nothing more\n")


@pytest.mark.parametrize("flow", FLOWS, ids=lambda flow: flow.name)
def test_every_flow_can_be_written_down_and_read(flow: object) -> None:
    assert read_flow(json.loads(json.dumps(flow_data(flow)))) == flow  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("flow", "sentence"),
    [
        ([], "a flow is an object with name and pattern"),
        ({"name": "x", "pattern": {}, "more": 1}, "a flow is an object with name and pattern"),
        ({"name": "x", "pattern": {}}, "pattern: a pattern is a step with from, to and says"),
        ({"name": "x", "pattern": {"choice": [{"from": "a"}]}}, "pattern.choice[0]: a pattern is a step"),
        ({"name": "x", "pattern": {"sequence": {}}}, "pattern.sequence: a list of patterns"),
        ({"name": "x", "pattern": {"repeat": [], "least": -1}}, "pattern.least: a whole number from 0 to 100, not -1"),
        ({"name": "x", "pattern": {"sequence": []}, "roles": {"a": 1}}, "about is a text, and roles an object of texts"),
        ({"name": "x", "pattern": {"from": "a", "to": "b", "says": "c", "where": 1}}, "pattern.where: an object"),
    ],
)
def test_an_invalid_flow_is_refused_with_the_place(flow: object, sentence: str, tmp_path: Path) -> None:
    own = save(tmp_path / "flow.json", flow)
    result = run("check", save(tmp_path / "chat.json", [ATLAS]), "--from", "atlas", "--flow", own)

    assert result.exit_code == 2
    assert sentence in result.stderr


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (("--flow", "dance"), "--flow dance: there is no flow 'dance'; there are thread-execution"),
        (("--flow", "collaboration", "--ledger", "sqlite:///x.db", "--from", "atlas"), "give one of them"),
        (("--ledger", "sqlite:///x.db"), "--ledger goes with --flow"),
        (("--flow", "nowhere.json"), "nowhere.json: No such file or directory"),
    ],
)
def test_wrong_combinations_of_options_are_reported(arguments: tuple[str, ...], sentence: str, tmp_path: Path) -> None:
    result = run("check", save(tmp_path / "chat.json", [ATLAS]), *arguments)

    assert result.exit_code == 2
    assert sentence in result.stderr


def test_an_unknown_thread_is_reported(ledger: str) -> None:
    result = run("check", "nobody", "--ledger", ledger, "--flow", "collaboration")

    assert result.exit_code == 2
    assert "no thread is called 'nobody'" in result.stderr
