"""The commands that run threads: live on stderr, the answer on stdout; interrupted, killed, and told from another process."""

import asyncio
import json
import os
import shlex
import signal
import sys
from pathlib import Path

import pytest
from tests import forked
from tests.cli.running import run as command
from tests.cli.running import start
from tests.cli.screens import Terminal
from tests.patterns.chains import QUESTION, TEA, Witness, chain_on, known, said_in
from tests.patterns.test_life import Held
from tests.patterns.test_pause import check_nothing_begins_while_it_rests

from antiphon.cli._live import interruptible
from antiphon.ledger import open_ledger
from antiphon.protocol import PHASES
from antiphon.service import ChainRunner, pause_thread, terminate_thread

pytest.importorskip("apsw")

KILLED = """
import asyncio, os, signal, sys
from antiphon.ledger import open_ledger
from antiphon.patterns.postchain import PostChain

async def main():
    async with open_ledger(sys.argv[1]) as ledger:
        async with PostChain(ledger, model="scripted") as chain:
            def kill(record):
                if getattr(record.message.payload, "option_name", "") == sys.argv[2]:
                    os.kill(os.getpid(), signal.SIGKILL)
            chain.system.watch(kill)
            await chain.run("How hot is green tea steeped?")

asyncio.run(main())
"""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "tea.md").write_text(TEA)
    return tmp_path


@pytest.mark.slow
def test_a_question_is_answered_with_exact_citations(folder: Path) -> None:
    """The six phases live on stderr; stdout is the answer; what is cited is in the ledger under that id, word for word."""
    done = command("run", QUESTION, "--model", "scripted", "--add", "tea.md")

    assert done.exit_code == 0
    assert [line.removeprefix("● ") for line in done.stderr.splitlines() if line.startswith("● ")] == list(PHASES)
    answer, sources = done.stdout.split("\n\nSources:\n")
    assert answer == "Tea: Green tea is steeped at 80 degrees for two minutes. [1]"
    assert "no language model was asked" in done.stderr
    assert "(kb-" in sources
    assert "Green tea is steeped at 80 degrees for two minutes." in sources
    thread_id = done.stderr.split("thread ")[1].split(";")[0]
    assert f"thread {thread_id}: completed; " in done.stderr
    assert "; kept in antiphon.db\n" in done.stderr
    contributed = [line.split(" s  ", 1)[1] for line in done.stderr.splitlines() if line.startswith("  ✓ ")]
    assert len(contributed) == len(PHASES)
    assert contributed[1].startswith("1 passage found; the best is tea.md > Tea, line ")
    hints = [shlex.split(line)[-2:] for line in done.stderr.partition("try next:\n")[2].splitlines()]
    assert [hint[0] for hint in hints[:3]] == ["show", "replay", "fork"]
    assert {hint[1] for hint in hints[:3]} == {thread_id}
    assert hints[3][-1:] == ["threads"]
    assert [command(*hint).exit_code for hint in hints[:3]] == [0, 0, 0]
    assert thread_id in command("threads").stdout


DEEP = "a = " + "[" * 100_000


@pytest.mark.parametrize("arguments", [("run", "Why?"), ("chat",)])
@pytest.mark.parametrize("text", [DEEP, "model = 3", "modle = 'x'", "model ="])
def test_an_invalid_configuration_is_reported_in_one_line(folder: Path, arguments: tuple[str, ...], text: str) -> None:
    """G21: a file that the folder has is refused like one that an option names."""
    (folder / "antiphon.toml").write_text(text)
    done = command(*arguments, stdin="Why?\n", ANTIPHON_CONFIG="", ANTIPHON_MODEL="")

    assert done.exit_code == 2
    assert done.stderr.startswith("antiphon.toml: ")
    assert len(done.stderr.splitlines()) == 1


@pytest.mark.parametrize(
    ("option", "text"), [("--config", DEEP), ("--team", DEEP), ("--add", " \n"), ("--config", "[[["), ("--team", "[[[")]
)
def test_an_invalid_file_that_is_named_is_reported_in_one_line(folder: Path, option: str, text: str) -> None:
    (folder / "named").write_text(text)
    done = command("run", "Why?", "--model", "scripted", option, "named")

    assert done.exit_code in (1, 2)
    assert done.stderr.startswith("named: ")
    assert len(done.stderr.splitlines()) == 1


def test_a_document_without_an_end_is_not_read_for_ever(folder: Path) -> None:
    done = command("run", "Why?", "--model", "scripted", "--add", "/dev/zero")

    assert (done.exit_code, done.stderr) == (2, "/dev/zero: more than 20 MB; divide it\n")


@pytest.mark.slow
def test_programs_get_json_and_nothing_else(folder: Path) -> None:
    done = command("run", QUESTION, "--model", "scripted", "--add", "tea.md", "--json")
    result = json.loads(done.stdout)

    assert (done.stderr, result["status"], result["models"]) == ("", "completed", ["scripted:postchain"])
    (citation,) = result["citations"]
    assert citation["quote"] == "Green tea is steeped at 80 degrees for two minutes."
    again = command("run", "And coffee?", "--thread", result["thread_id"], "--model", "scripted", "--json")
    assert json.loads(again.stdout)["thread_id"] == result["thread_id"]
    status = json.loads(command("status", result["thread_id"], "--json").stdout)
    assert (status["status"], status["turn"], status["phases_remaining"]) == ("completed", 2, [])
    assert command("run", QUESTION, "--model", "scripted", "--quiet").stderr == ""


@pytest.mark.slow
def test_stored_threads_are_held_against_the_installed_code(folder: Path) -> None:
    (folder / "plain.toml").write_text("max_sources = 4\n")
    command("run", QUESTION, "--model", "scripted", "--add", "tea.md", "--quiet", "--config", "plain.toml")
    assert command("replay", "--against").stderr == "threads: 1; with differences: 0\n"
    (folder / "chain.toml").write_text('max_sources = 4\n[phases.yield]\nsystem_prompt = "You are the last phase."\n')
    done = command("replay", "--against", "--config", "chain.toml")
    assert done.exit_code == 1
    assert "PREPARE_CONTEXT to yield/1: another context.messages, another context.metadata.agent.prompt" in done.stderr
    assert command("replay").exit_code == 2


@pytest.mark.slow
def test_the_model_of_a_configuration_is_used(folder: Path) -> None:
    """It goes before that of the environment, also for an existing thread; `--model` goes before it."""
    (folder / "chain.toml").write_text('model = "scripted"\n')
    (folder / "other.toml").write_text('model = "openai:gpt-4o"\n')
    refused = command("run", QUESTION, "--config", "other.toml", OPENAI_API_KEY="")
    assert (refused.exit_code, refused.stderr.count("\n"), "OPENAI_API_KEY" in refused.stderr) == (2, 1, True)
    assert not (folder / "antiphon.db").exists()

    done = command("run", QUESTION, "--config", "chain.toml", "--json", ANTIPHON_MODEL="no-such:model")
    assert json.loads(done.stdout)["models"] == ["scripted:postchain"], done.stderr
    thread = json.loads(done.stdout)["thread_id"]
    for arguments in (("--thread", thread, "--config", "other.toml"), ("--config", "chain.toml", "--model", "openai:gpt-4o")):
        refused = command("run", QUESTION, *arguments, OPENAI_API_KEY="")
        assert (refused.exit_code, "OPENAI_API_KEY" in refused.stderr) == (2, True)


@pytest.mark.slow
def test_a_configuration_keeps_the_settings_for_the_small_model(folder: Path) -> None:
    """Unless it chooses other outputs: then it is used as it is."""
    (folder / "few.toml").write_text("max_sources = 4\n")
    (folder / "prose.toml").write_text('outputs = "typed"\n')
    done = command("run", QUESTION, "--model", "scripted", "--add", "tea.md", "--config", "few.toml", "--name", "few")
    assert done.stdout.startswith("Tea: Green tea is steeped at 80 degrees for two minutes. [1]\n")
    assert "quotes and tool results are exact" in done.stderr
    done = command("run", QUESTION, "--model", "scripted", "--config", "prose.toml")
    assert done.exit_code == 0
    assert "quotes and tool results are exact" not in done.stderr
    assert command("replay", "--against").stderr == "threads: 2; with differences: 0\n"
    assert command("replay", "few", "--against", "--config", "few.toml").stderr == "threads: 1; with differences: 0\n"


@pytest.mark.slow
def test_a_talk_is_one_thread(folder: Path) -> None:
    done = command("chat", "--model", "scripted", stdin="How hot is green tea?\n\nAnd coffee?\n")

    assert done.exit_code == 0
    assert done.stdout == "Not in the sources.\nNot in the sources.\n"
    (thread,) = json.loads(command("threads", "--json").stdout)
    assert thread["status"] == "completed"


def test_a_command_that_cannot_be_executed_says_why_in_one_line(folder: Path) -> None:
    assert "none.db: there is no such ledger" in command("status", "nobody", "--ledger", "sqlite:///none.db").stderr
    for wrong in (("--add", "none.md", "--model", "scripted"), ("--model", "no-such:model"), ("--files", ".")):
        refused = command("run", QUESTION, *wrong)
        assert (refused.exit_code, refused.stderr.count("\n")) == (2, 1)
        assert wrong[1] in refused.stderr or "--files goes with --team" in refused.stderr
    assert command("run", " ").stderr == "the question is empty; ask something\n"
    assert not (folder / "antiphon.db").exists()  # nothing has begun


@pytest.mark.slow
def test_a_missing_thread_or_one_of_another_pattern_is_reported_in_one_line(folder: Path) -> None:
    command("knowledge", "add", "tea.md")
    moves = (("resume",), ("run", QUESTION, "--model", "scripted", "--thread"))
    for move in (*moves, ("pause",), ("terminate",)):
        unknown = command(*move, "nobody")
        assert unknown.exit_code == 2
        assert unknown.stderr.startswith("no thread is called 'nobody'; `antiphon threads` lists them")
    for move in moves:
        other = command(*move, "knowledge")
        assert other.exit_code == 2
        assert other.stderr.startswith("thread 'knowledge/kb-")
        assert "' does not go through six phases; " in other.stderr
    status = [line.split(maxsplit=1) for line in command("status", "knowledge").stdout.splitlines()]
    assert status[0][1].startswith("id   knowledge/kb-")
    assert status[1:3] == [["pattern", "knowledge"], ["messages", "2"]]


@pytest.mark.slow
def test_a_thread_that_was_imported_goes_on(folder: Path) -> None:
    (folder / "said.json").write_text('[{"role": "user", "content": "Hello"}, {"role": "assistant", "content": "Hi."}]')
    command("import", "said.json", "--thread", "t")
    for question in ("How hot is green tea?", "And coffee?"):
        done = command("run", question, "--model", "scripted", "--thread", "t", "--json")
        assert (done.exit_code, json.loads(done.stdout)["status"]) == (0, "completed"), done.stderr
    (thread,) = json.loads(command("threads", "--json").stdout)
    assert (thread["thread_id"], thread["status"]) == ("t", "completed")


@pytest.mark.slow
def test_show_prints_the_talk_and_the_protocol_on_request(folder: Path) -> None:
    """`antiphon show` is what a newcomer tries first: the words and the tools, not two letters a phase."""
    result = json.loads(command("run", QUESTION, "--model", "scripted", "--add", "tea.md", "--json").stdout)
    shown, everything = (command("show", result["thread_id"], *more) for more in ((), ("--all",)))

    talk = [line.removeprefix("  │ ") for line in shown.stdout.splitlines() if line.startswith("  │ ")]
    assert talk[0] == QUESTION
    assert "Tea: Green tea is steeped at 80 degrees for two minutes. [1]" in talk
    assert not {"none", "1"} & set(talk)  # what a model may choose from is not what it says
    assert "PROCESS_PHASE" not in shown.stdout
    assert shown.stderr.startswith("messages of the protocol and the journal that are not shown: ")
    assert "PROCESS_PHASE" in everything.stdout
    assert everything.stderr == ""
    assert " UTC\n" in command("status", result["thread_id"]).stdout


@pytest.mark.slow
def test_ctrl_c_at_the_prompt_ends_a_talk(folder: Path) -> None:
    """Nobody has to press Enter first; and no banner of others stands in what is shown."""
    with Terminal("chat", "--model", "scripted", folder=folder) as terminal:
        terminal.until(">")
        terminal.type("Hello\n")
        terminal.until("Not in the sources.")
        terminal.until_seen(lambda text: text.endswith("\n>"), "another prompt")
        terminal.process.send_signal(signal.SIGINT)
        code, written = terminal.ended()

    assert code == 0
    assert "try next:" in written
    assert "pydantic-ai v" not in written


@pytest.mark.slow
@pytest.mark.parametrize("place", ["PREPARE_CONTEXT", "retrieve"])
def test_a_killed_thread_is_resumed(folder: Path, place: str) -> None:
    """kill -9, then `antiphon resume`: finished steps are not repeated."""
    script = folder / "killed.py"
    script.write_text(KILLED)
    died = forked.run([sys.executable, script, "sqlite:///antiphon.db", place])
    assert died.returncode == -signal.SIGKILL
    (thread,) = [t for t in json.loads(command("threads", "--json").stdout) if t["status"]]
    assert thread["status"] == "stopped"

    done = command("resume", thread["thread_id"], "--model", "scripted", "--json")

    assert json.loads(done.stdout)["status"] == "completed"
    shown = [json.loads(line) for line in command("replay", thread["thread_id"], "--json").stdout.splitlines()]
    assert [event["phase"] for event in shown if event["kind"] == "phase_began"] == list(PHASES)
    assert [event["phase"] for event in shown if event["kind"] == "phase_ended"] == list(PHASES)


@pytest.mark.slow
async def test_ctrl_c_pauses_and_resume_goes_on() -> None:
    ledger = await known()
    witness = Witness(on_request=(held := Held("intention")))
    async with chain_on(ledger, witness) as chain:
        with interruptible() as stop:
            asking = asyncio.create_task(ChainRunner(chain).ask(QUESTION, stop=stop))
            await held.reached.wait()
            os.kill(os.getpid(), signal.SIGINT)
            report = await asking
        thread_id = report.thread_id
        assert report.was_interrupted
        assert (await chain.status(thread_id)).status == "paused"
        held.released.set()
        report = await ChainRunner(chain).resume(thread_id)
        assert (report.was_interrupted, report.status) == (False, "completed")
        assert (await chain.result(thread_id)).status == "completed"
        check_nothing_begins_while_it_rests(await said_in(ledger, thread_id))


@pytest.mark.slow
async def test_a_thread_is_paused_and_terminated_from_another_process(tmp_path: Path) -> None:
    """By its host, to which the request is posted; where no host lives, by the process that asks."""
    url = f"sqlite:///{tmp_path}/ledger.db"

    async with open_ledger(url) as ledger, open_ledger(url) as elsewhere:
        await known(ledger)
        witness = Witness(on_request=(held := Held("intention")))
        async with chain_on(ledger, witness) as chain:
            thread_id = await chain.create(QUESTION)
            await chain.start(thread_id)
            await held.reached.wait()
            paused = await pause_thread(elsewhere, thread_id)
            assert (paused["type"], paused["data"]["current_phase"]) == ("THREAD_PAUSED", "intention")
            assert paused["message_id"]
            assert (await chain.life(thread_id)).status == "paused"
            held.released.set()
        ended = await terminate_thread(elsewhere, thread_id, "enough")
        assert (ended["type"], ended["data"]["status"]) == ("THREAD_TERMINATED", "terminated")
        check_nothing_begins_while_it_rests(await said_in(elsewhere, thread_id))


@pytest.mark.slow
def test_piped_output_is_only_the_answer(folder: Path) -> None:
    done = start("run", QUESTION, "--model", "scripted", "--add", "tea.md")

    assert done.returncode == 0
    assert done.stdout.decode().startswith("Tea: Green tea is steeped at 80 degrees")
    assert "\x1b" not in done.stdout.decode() + done.stderr.decode()
