"""`antiphon export` and `antiphon import`: threads to files and back, in the house format, in dialects, as decisions."""

import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.cli.ledgers import append, exchange, text, with_chat, with_ledger
from tests.cli.running import CHAT, COMMAND, PLAIN, in_terminal, run, said, save, start, tool_call
from tests.forked import Forked
from tests.strategies import messages

from antiphon import Conversation, MediaPart, TextPart, dumps, loads
from antiphon.cli._import import histories
from antiphon.cli._live import program_name
from antiphon.ledger import Ledger
from antiphon.ledger._listing import SYSTEM_PATTERN
from antiphon.messages import Tool
from antiphon.patterns._decisions import export_transitions


@pytest.fixture
def url(tmp_path: Path) -> str:
    """The URL of a fresh ledger with one thread, `chat`."""
    return with_chat(tmp_path)


def stored(url: str, thread_id: str) -> list[bytes]:
    async def read(ledger: Ledger) -> list[bytes]:
        return [record.body async for record in ledger.read(thread_id)]

    return with_ledger(url, read)


def taken_in(*arguments: str | Path, stdin: str | bytes = b"") -> list[tuple[str, int, int]]:
    """Return what `antiphon import` says of each thread: its id, how many messages, how many of them new."""
    result = run("import", *arguments, "--json", stdin=stdin)
    assert result.exit_code == 0, result.stderr
    return [(row["thread_id"], row["messages"], row["new"]) for row in json.loads(result.stdout)]


# ---------------------------------------------------------------- the house format


def test_a_thread_is_exported_byte_for_byte(url: str) -> None:
    """As a conversation that `loads` reads, and every other command."""
    exported = run("export", "chat", "--ledger", url).stdout_bytes

    assert exported.splitlines()[1:] == stored(url, "chat")
    assert dumps(loads(exported)) == exported
    assert run("show", "-", stdin=exported).stdout == run("show", "chat", "--ledger", url).stdout


@pytest.mark.slow
def test_a_whole_ledger_goes_through_a_file(tmp_path: Path, url: str) -> None:
    """The same threads, the same bytes, in the same order; a branch comes with what it shares."""
    append(
        url, "steps", *exchange(1, "Oslo"), *exchange(2, "Bergen"), text("Grüße \u2028 ✓", created_at="2026-01-31T12:00:00Z")
    )
    append(url, "picture", said(MediaPart(modality="image", url=f"data:image/png;base64,{'A' * 400_000}")))
    run("fork", "steps", "--at", "2", "--into", "branch", "--ledger", url)
    out, again = tmp_path / "all.jsonl", f"sqlite:///{tmp_path}/again.db"

    assert run("export", "-o", out, "--ledger", url).exit_code == 0
    assert taken_in(out, "--ledger", again) == [("chat", 5, 5), ("steps", 5, 5), ("picture", 1, 1), ("branch", 2, 2)]

    assert run("export", "--ledger", again).stdout_bytes == out.read_bytes()
    for name in ("chat", "steps", "picture"):
        assert stored(again, name) == stored(url, name)
    assert run("verify", "--ledger", again).exit_code == 0


def test_foreign_history_is_shown_when_asked_for(tmp_path: Path) -> None:
    """What people want to read is the talk; the rows of another ledger's journal are there too."""
    url, rows = f"sqlite:///{tmp_path}/new.db", [text("hello"), text("restarted", lane="control")]
    lines = b"\n".join(dumps(row.model_copy(update={"thread_id": "t"})) for row in rows)

    assert taken_in("-", "--ledger", url, stdin=lines) == [("t", 2, 2)]
    shown = run("show", "t", "--ledger", url)
    assert "hello" in shown.stdout
    assert "restarted" not in shown.stdout
    assert "not shown: 1; --all shows them" in shown.stderr
    assert "restarted" in run("show", "t", "--all", "--ledger", url).stdout


def test_an_import_twice_is_the_same_as_once(tmp_path: Path, url: str) -> None:
    before = stored(url, "chat")

    assert taken_in(tmp_path / "chat.json", "--ledger", url) == [("chat", 5, 0)]
    assert stored(url, "chat") == before


def test_a_history_that_has_grown_adds_what_is_new(tmp_path: Path, url: str) -> None:
    longer = save(tmp_path / "longer.json", [*CHAT, {"role": "user", "content": "And now?", "message_id": "m-5"}])

    assert taken_in(longer, "--thread", "chat", "--ledger", url) == [("chat", 6, 1)]


@pytest.mark.slow
def test_threads_of_the_system_are_exported_when_asked_for(url: str) -> None:
    append(url, "supervisor/1", text("restarted"), pattern=SYSTEM_PATTERN)

    assert b"restarted" not in run("export", "--ledger", url).stdout_bytes
    assert b"restarted" in run("export", "--all", "--ledger", url).stdout_bytes
    assert b"restarted" in run("export", "supervisor/1", "--ledger", url).stdout_bytes


@pytest.mark.slow
def test_a_thread_named_twice_is_exported_once(url: str) -> None:
    assert run("export", "chat", "chat", "--ledger", url).stdout == run("export", "chat", "--ledger", url).stdout
    assert run("export", "chat", "nobody", "--ledger", url).exit_code == 2


def test_lines_of_several_threads_find_their_own(tmp_path: Path) -> None:
    """Also without the lines that begin a conversation: as `antiphon tail --json` has them, say."""
    url = f"sqlite:///{tmp_path}/new.db"
    lines = [dumps(text(words, thread_id=name)) for words, name in (("a", "one"), ("b", "two"), ("c", "one"))]

    assert taken_in("-", "--ledger", url, stdin=b"\xef\xbb\xbf" + b"\n\n".join(lines)) == [("one", 2, 2), ("two", 1, 1)]
    assert stored(url, "one") == [lines[0], lines[2]]


@pytest.mark.slow
@given(st.lists(st.lists(messages, max_size=2).map(Conversation), max_size=3))
@settings(max_examples=50)
def test_conversations_one_after_the_other_are_read_one_by_one(
    tmp_path_factory: pytest.TempPathFactory, several: list[Conversation]
) -> None:
    path = tmp_path_factory.mktemp("several") / "all.jsonl"
    path.write_bytes(b"".join(map(dumps, several)) or dumps(Conversation()))

    found = list(histories(path, None, each_line=False))

    assert [each.conversation for each in found] == (several or [Conversation()])
    assert found[-1].end == path.stat().st_size


def test_a_line_that_is_wrong_is_named(tmp_path: Path, url: str) -> None:
    lines = run("export", "chat", "--ledger", url).stdout.splitlines()
    lines[3] = lines[3].replace('"option_call"', '"telegram"')
    (tmp_path / "bad.jsonl").write_text("\n".join(lines))

    result = run("import", tmp_path / "bad.jsonl", "--ledger", url)

    assert result.exit_code == 1
    assert result.stderr.startswith(f"{tmp_path}/bad.jsonl: line 4: payload")
    assert result.stderr.count("\n") == 1


# ---------------------------------------------------------------- other dialects


def test_an_export_in_another_dialect_is_a_line_a_thread(url: str) -> None:
    append(url, "other", said(TextPart(text="hi"), policy="user"))

    result = run("export", "--to", "openai-chat", "--ledger", url)

    bodies = [json.loads(line) for line in result.stdout.splitlines()]
    assert [len(body["messages"]) for body in bodies] == [4, 1]
    assert bodies[1] == {"messages": [{"role": "user", "content": "hi"}]}
    assert result.stderr == ""


def test_losses_of_one_thread_are_listed(url: str) -> None:
    result = run("export", "chat", "--to", "choir", "--ledger", url)

    assert result.exit_code == 0
    assert result.stdout.count("\n") == 1
    assert "choir cannot express everything; losses: " in result.stderr
    assert "\nm-2      turn  a Choir message has no place for it\n" in result.stderr
    assert "thread_id" not in result.stderr


def test_of_several_threads_those_that_lose_something_are_named(url: str) -> None:
    append(url, "other", text("hi"))

    result = run("export", "--to", "choir", "--ledger", url)

    assert result.stderr == "chat: choir cannot express everything; export it alone with --to to see what is lost\n"


def test_a_strict_export_writes_everything_or_nothing(tmp_path: Path, url: str) -> None:
    append(url, "other", text("hi"))
    out = tmp_path / "out.jsonl"

    refused = run("export", "other", "chat", "--to", "choir", "--strict", "-o", out, "--ledger", url)
    assert (refused.exit_code, refused.stdout, out.exists()) == (1, "", False)
    assert refused.stderr.endswith("nothing is written, because of --strict\n")

    assert run("export", "other", "--to", "choir", "--strict", "-o", out, "--ledger", url).exit_code == 0
    assert len(out.read_text().splitlines()) == 1


@pytest.mark.slow
def test_a_viewpoint_can_be_chosen(url: str) -> None:
    append(url, "peers", text("a", policy="ada", role_hint_for_llm="assistant"), text("b", policy="bob"))

    (line,) = run("export", "peers", "--to", "openai-chat", "--as-policy", "bob", "--ledger", url).stdout.splitlines()

    assert [message["role"] for message in json.loads(line)["messages"]] == ["user", "assistant"]


@pytest.mark.usefixtures("twin")
def test_a_refusal_of_a_dialect_is_reported_with_the_thread(url: str) -> None:
    append(url, "secret", text("unspeakable"))

    result = run("export", "secret", "--to", "twin", "--ledger", url)

    assert (result.exit_code, result.stderr) == (1, "secret: message m-1: it cannot be said at all\n")


@pytest.mark.slow
def test_lines_that_are_conversations_become_threads(tmp_path: Path, url: str) -> None:
    append(url, "other", text("hi"))
    out, again = tmp_path / "all.jsonl", f"sqlite:///{tmp_path}/again.db"
    run("export", "--to", "openai-chat", "-o", out, "--ledger", url)

    assert taken_in(out, "--each-line", "--ledger", again) == [("all-1", 5, 5), ("all-2", 1, 1)]
    assert run("export", "--to", "openai-chat", "--ledger", again).stdout_bytes == out.read_bytes()


def test_a_line_that_is_no_conversation_is_named(tmp_path: Path) -> None:
    path = tmp_path / "all.jsonl"
    path.write_text('{"messages":[]}\n{"messages":[{"role":"king"}]}\n')

    result = run("import", path, "--each-line", "--from", "openai-chat", "--ledger", f"sqlite:///{tmp_path}/new.db")

    assert result.exit_code == 1
    assert result.stderr.startswith(f"{path}: line 2: messages[0]")


def test_without_another_name_a_thread_is_called_like_its_file(tmp_path: Path, url: str) -> None:
    path = save(tmp_path / "monday.json", CHAT)

    assert taken_in(path, "--ledger", url) == [("monday", 5, 5)]
    assert taken_in(path, "--thread", "tuesday", "--ledger", url) == [("tuesday", 5, 5)]
    result = run("import", "-", "--ledger", url, stdin=json.dumps(CHAT))
    assert (result.exit_code, result.stderr.splitlines()[1]) == (2, "stdin: no thread is named in it; name one with --thread")


def test_fields_that_a_ledger_does_not_store_are_reported(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/new.db"
    request = {
        "model": "some-model",
        "messages": [{"role": "user", "content": "hi"}],
        "tools": [{"type": "function", "function": {"name": "look", "parameters": {"type": "object"}}}],
    }
    house = dumps(Conversation([said(TextPart(text="hi"))], tools=[Tool(name="look")], metadata={"app": {"x": 1}}))

    given = run("import", save(tmp_path / "request.json", request), "--from", "openai-chat", "--ledger", url)
    assert given.stderr == f"{tmp_path}/request.json: a ledger keeps messages; left out: the tools (1), model\n"
    given = run("import", "-", "--thread", "t", "--ledger", url, stdin=house)
    assert given.stderr == "stdin: line 1: a ledger keeps messages; left out: the tools (1), metadata of app\n"


# ---------------------------------------------------------------- decisions to learn from


@pytest.mark.slow
def test_trajectories_are_what_the_program_exports(url: str) -> None:
    """OP-022: a line a decision, with all that was known before it; the same that `export_transitions` gives, branches too."""
    append(url, "steps", text("go"), *exchange(1, "Oslo"), *exchange(2, "Bergen"))
    run("fork", "steps", "--into", "branch", "--ledger", url)

    async def exported(ledger: Ledger) -> list[Any]:
        return [each for name in ("steps", "branch") async for each in export_transitions(ledger, name)]

    lines = run("export", "steps", "branch", "--trajectories", "--ledger", url).stdout.splitlines()
    rows = [json.loads(line) for line in lines]
    assert rows == with_ledger(url, exported)
    assert [(row["thread_id"], row["step"], row["policy"]) for row in rows] == [
        (name, step, "assistant") for name in ("steps", "branch") for step in (1, 2)
    ]
    assert [len(row["observations"]) for row in rows] == [1, 3, 1, 3]
    assert {message["thread_id"] for message in rows[2]["observations"]} == {"branch"}
    assert [row["reward"] for row in rows] == [None] * 4


@pytest.mark.slow
def test_trajectories_have_the_rewards_that_were_recorded(url: str) -> None:
    """OP-022: by `antiphon reward`, later and by message id; in the house format and in a provider's words."""
    first, second = exchange(1, "Oslo"), exchange(2, "Bergen")
    append(url, "steps", text("go"), *first, *second)
    for message, value in ((first[0], "3"), (first[0], "0.5"), (second[1], "-1")):
        given = ("reward", "steps", "--as", "ann", "--note", "why not", "--ledger", url, "--", message.id, value)
        done = run(*given)
        assert (done.exit_code, done.stderr) == (0, f"recorded: {value} for {message.id}\n")
    for more in ((), ("--to", "openai-chat")):
        lines = run("export", "steps", "--trajectories", *more, "--ledger", url).stdout.splitlines()
        assert [json.loads(line)["reward"] for line in lines] == [0.5, -1.0]
    done = run("reward", "steps", "nowhere", "1", "--as", "ann", "--ledger", url)
    last = second[-1].id
    show = f"`{program_name()} show steps --json --ledger {url}` prints all messages with their ids"
    missing = f"thread 'steps': message 'nowhere' does not exist; its last one is {last!r}; {show}\n"
    assert (done.exit_code, done.stderr) == (2, missing)
    begun = run("reward", "steps", last[:-1], "1", "--as", "ann", "--ledger", url)
    assert f"is it {last!r}?" in begun.stderr
    assert (
        run("reward", "steps", last, "nan", "--as", "ann", "--ledger", url).stderr == "a reward is a finite number, not nan\n"
    )


def test_a_decision_that_is_not_over_says_so(url: str) -> None:
    append(url, "open", exchange(1, "Oslo")[0])

    (line,) = run("export", "open", "--trajectories", "--ledger", url).stdout.splitlines()

    assert json.loads(line)["is_complete"] is False
    assert json.loads(line)["results"] == []


def test_trajectories_can_be_in_a_provider_s_words(url: str) -> None:
    """What is said in the same utterance as a call is part of the decision."""
    (line,) = run("export", "chat", "--trajectories", "--to", "openai-chat", "--ledger", url).stdout.splitlines()

    row = json.loads(line)
    assert list(row) == ["thread_id", "policy", "step", "is_complete", "observations", "decision", "reward"]
    assert [message["role"] for message in row["observations"]["messages"]] == ["user"]
    assert row["decision"]["messages"] == [
        {"role": "assistant", "content": "I look.", "tool_calls": [tool_call("c-1", "get_weather", city="Oslo")]},
        {"role": "tool", "content": "cold", "tool_call_id": "c-1"},
    ]


@pytest.mark.slow
def test_a_window_keeps_the_latest_messages_of_an_observation(url: str) -> None:
    append(url, "long", *(each for step, city in enumerate("abcd") for each in (text(f"And {city}?"), *exchange(step, city))))

    def observed(*more: str) -> list[list[str]]:
        rows = run("export", "long", "--trajectories", "--ledger", url, *more).stdout.splitlines()
        return [[each["payload"]["kind"] for each in json.loads(row)["observations"]] for row in rows]

    assert [len(each) for each in observed()] == [1, 4, 7, 10]
    assert [len(each) for each in observed("--window", "4")] == [1, 4, 4, 4]
    assert observed("--window", "2")[-1] == ["parts"]  # a result is not separated from its call
    assert run("export", "long", "--window", "2", "--ledger", url).stderr == "--window goes with --trajectories\n"
    refused = run("export", "long", "--journal", "--window", "2", "--ledger", url)
    assert (refused.exit_code, "--window does not go with --journal" in refused.stderr) == (2, True)


@pytest.mark.slow
def test_decisions_of_a_gigabyte_are_announced_before_they_are_written(url: str) -> None:
    """Each repeats the messages before it: 2 MB of messages become a gigabyte."""
    append(url, "long", *(each for number in range(1000) for each in (text("x" * 2000), *exchange(number, str(number)))))
    command = [*COMMAND, "export", "long", "--trajectories", "--ledger", url]
    process = Forked(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=PLAIN)
    assert process.stderr is not None
    warning = process.stderr.readline().decode()
    process.kill()
    process.communicate()

    assert re.fullmatch(
        r"this writes about 1\.\d GB: each decision repeats the messages before it; --window N keeps only the latest N\n",
        warning,
    )
    windowed = start(*command[3:], "--window", "2")
    assert (windowed.returncode, windowed.stderr, windowed.stdout.count(b"\n")) == (0, b"", 1000)


@pytest.mark.slow
def test_trajectories_need_no_agents(url: str) -> None:
    """The package without `pydantic_ai` is enough."""
    code = "import sys; sys.modules['pydantic_ai'] = None; from antiphon.__main__ import main; main()"
    done = subprocess.run(
        [sys.executable, "-c", code, "export", "chat", "--trajectories", "--ledger", url], capture_output=True, check=False
    )

    assert (done.returncode, json.loads(done.stdout)["policy"]) == (0, "assistant")


# ---------------------------------------------------------------- what is refused


def test_a_history_that_does_not_fit_is_refused_as_a_whole(tmp_path: Path) -> None:
    """With the code of the check that finds it, and the ways out."""
    url = f"sqlite:///{tmp_path}/new.db"
    path = save(tmp_path / "cut.json", [CHAT[0], CHAT[2], CHAT[3]])

    result = run("import", path, "--from", "marsys", "--ledger", url)

    assert result.exit_code == 1
    assert result.stderr.startswith(f"{path}: message 'm-3': ")
    assert "(AP102); `antiphon repair` fixes what it can, --allow-foreign accepts it unchanged" in result.stderr
    assert stored(url, "cut") == []
    assert taken_in(path, "--from", "marsys", "--allow-foreign", "--ledger", url) == [("cut", 3, 3)]


def test_a_thread_with_an_owner_takes_nothing_in(tmp_path: Path, url: str) -> None:
    """G8: only the owner appends."""
    with_ledger(url, lambda ledger: ledger.claim("chat"))
    path = save(tmp_path / "more.json", [{"role": "user", "content": "hi", "message_id": "m-9"}])

    result = run("import", path, "--from", "marsys", "--thread", "chat", "--ledger", url)

    assert result.exit_code == 1
    assert result.stderr == "thread 'chat' has an owner, and nobody else may append to it; choose another with --thread\n"


def test_one_name_is_for_one_conversation(tmp_path: Path, url: str) -> None:
    append(url, "other", text("hi"))
    exported = run("export", "--ledger", url).stdout_bytes

    result = run("import", "-", "--thread", "both", "--ledger", url, stdin=exported)

    assert (result.exit_code, result.stderr) == (
        1,
        "stdin: line 7: --thread names one thread, and here another conversation begins\n",
    )


@pytest.mark.parametrize("name", ["nothing.json", ".", "bad.json", "unknown.json"])
def test_a_file_that_cannot_be_read_makes_no_ledger(tmp_path: Path, name: str) -> None:
    (tmp_path / "bad.json").write_text("{")
    (tmp_path / "unknown.json").write_text('{"hello":"world"}')

    result = run("import", tmp_path / name, "--ledger", f"sqlite:///{tmp_path}/new.db")

    assert result.exit_code in (1, 2)
    assert result.stderr.startswith(f"{tmp_path / name}: ")
    assert not (tmp_path / "new.db").exists()


def test_an_empty_import_is_reported(tmp_path: Path) -> None:
    result = run("import", "-", "--ledger", f"sqlite:///{tmp_path}/new.db", stdin=dumps(Conversation()))

    assert (result.exit_code, result.stdout, result.stderr) == (0, "", "no messages\n")


@pytest.mark.slow
def test_long_work_shows_how_far_it_is_in_a_terminal(tmp_path: Path, url: str) -> None:
    out = tmp_path / "all.jsonl"

    assert "exporting" in in_terminal("export", "-o", out, "--ledger", url, columns=100)
    assert "exporting" not in in_terminal("export", "--ledger", url, columns=100)
    for word, command, used in (
        ("importing", ("import", out), f"sqlite:///{tmp_path}/new.db"),
        ("verifying", ("verify",), url),
        ("searching", ("search", "cold"), url),
        ("copying", ("backup", tmp_path / "copy.db"), url),
    ):
        shown = run(*command, "--ledger", used, FORCE_COLOR="1", COLUMNS="100", TERM="xterm")  # as good as one
        assert (word in shown.stderr, word in shown.stdout, shown.exit_code) == (True, False, 0)


# ---------------------------------------------------------------- secrets

_KEY = "sk-proj-Ab3dEf6hIj9kLm2nOp5qRs8tUv1wXy4z"


@pytest.mark.parametrize(("said_so", "shown"), [(None, "[redacted:api-key]"), ("on", "[redacted:api-key]"), ("off", _KEY)])
def test_commands_redact_unless_the_environment_says_otherwise(
    said_so: str | None, shown: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """S7, G23."""
    if said_so is not None:
        monkeypatch.setenv("ANTIPHON_REDACTION", said_so)
    url = f"sqlite:///{tmp_path}/ledger.db"
    given = save(tmp_path / "chat.json", [{"role": "user", "content": f"it is {_KEY}"}])
    assert run("import", given, "--from", "marsys", "--thread", "t", "--ledger", url).exit_code == 0
    monkeypatch.delenv("ANTIPHON_REDACTION", raising=False)
    assert run("import", given, "--from", "marsys", "--thread", "t", "--ledger", url).exit_code == 0  # as the thread began
    assert [loads(body).text for body in stored(url, "t")] == [f"it is {shown}"]


def test_a_command_refuses_a_name_that_looks_like_a_secret(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """S7: and does not tell it."""
    url = with_chat(tmp_path)
    for command in (
        ("fork", "chat", "--into", _KEY),
        ("import", tmp_path / "chat.json", "--from", "marsys", "--thread", _KEY),
    ):
        result = run(*command, "--ledger", url)
        assert result.exit_code == 2
        assert "the name of a thread looks like a secret; choose another name, or set ANTIPHON_REDACTION=off" in result.stderr
        assert _KEY not in result.stderr
    monkeypatch.setenv("ANTIPHON_REDACTION", "no")
    result = run("threads", "--ledger", url)
    assert (result.exit_code, "ANTIPHON_REDACTION is on or off, not 'no'" in result.stderr) == (2, True)
