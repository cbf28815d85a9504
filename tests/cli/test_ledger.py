"""The commands that look into a ledger: threads, show, tail, search, fork, diff."""

import json
import logging
import signal
import subprocess
from pathlib import Path
from typing import Any

import pytest
import typer
from inline_snapshot import snapshot
from tests.cli.ledgers import append, exchange, priced, text, with_chat, with_ledger
from tests.cli.running import CHAT, COMMAND, PLAIN, in_terminal, run, save
from tests.forked import Forked

from antiphon import TextPart
from antiphon.cli import _ledger
from antiphon.cli._live import program_name
from antiphon.errors import UnknownThreadError
from antiphon.ledger import Ledger
from antiphon.ledger._listing import SYSTEM_PATTERN

HOSTILE = "\x1b[2J\x1b]0;x\x07 a\u202eb \u200b[red]c[/red] :smile:"


@pytest.fixture
def url(tmp_path: Path) -> str:
    """The URL of a fresh ledger with one thread, `chat`."""
    return with_chat(tmp_path)


def answer(*arguments: Any, code: int = 0) -> Any:
    """Return what a command says to programs."""
    result = run(*arguments, "--json")
    assert (result.exit_code, result.stderr) == (code, "")
    return json.loads(result.stdout)


# ---------------------------------------------------------------- antiphon threads


def test_threads_are_listed_the_newest_first(url: str) -> None:
    append(url, "second", text("hi"), status="waiting")
    append(url, "third", text("ho"))
    append(url, "chat", text("again"))

    listed = [line.split() for line in run("threads", "--ledger", url).stdout.splitlines()]

    assert listed[0] == ["thread", "status", "messages", "updated", "(UTC)", "cost", "question"]
    assert [row[0] for row in listed[1:]] == ["chat", "third", "second"]
    assert listed[3][1:3] == ["waiting", "1"]
    assert [row[-1] for row in listed[1:]] == ["Oslo?", "ho", "hi"]


def test_threads_for_programs_are_objects(url: str) -> None:
    append(url, "dear", priced("a", "0.1"), priced("b", "0.2"), status="done", pattern="peers")

    dear, chat = answer("threads", "--ledger", url)

    assert list(dear)[:6] == ["thread_id", "status", "pattern", "kind", "messages", "open_calls"]
    assert dear["created_at"] == dear["updated_at"]
    assert dear["created_at"].endswith("Z")
    assert {name: dear[name] for name in dear if not name.endswith("_at")} == snapshot(
        {
            "thread_id": "dear",
            "status": "done",
            "messages": 2,
            "cost": 0.3,
            "pattern": "peers",
            "open_calls": 0,
            "input_tokens": 20,
            "output_tokens": 10,
            "forked_from": None,
            "owner": None,
            "kind": None,
            "unfit": [],
            "moved_to": None,
            "runs": [],
            "title": "a",
            "waits_for": None,
        }
    )
    assert (chat["thread_id"], chat["status"], chat["messages"], chat["cost"]) == ("chat", None, 5, 0)


def test_a_cost_keeps_every_digit(url: str) -> None:
    append(url, "dear", priced("a", "0.00000000000000000000000000012345678901234567890"))

    assert '"cost": 0.00000000000000000000000000012345678901234567890,' in run("threads", "--json", "--ledger", url).stdout
    assert "0.00000000000000000000000000012345678901234567890" in run("threads", "--ledger", url).stdout


def test_threads_of_the_system_are_listed_when_asked_for(url: str) -> None:
    append(url, "supervisor/1", text("restarted"), pattern=SYSTEM_PATTERN)

    assert [each["thread_id"] for each in answer("threads", "--ledger", url)] == ["chat"]
    assert [each["thread_id"] for each in answer("threads", "--all", "--ledger", url)] == ["supervisor/1", "chat"]


def test_threads_can_be_chosen(url: str) -> None:
    append(url, "a", text("hi"), status="waiting")
    append(url, "b", text("hi"), status="waiting")

    assert [each["thread_id"] for each in answer("threads", "--status", "waiting", "--ledger", url)] == ["b", "a"]
    assert [each["thread_id"] for each in answer("threads", "--limit", "2", "--ledger", url)] == ["b", "a"]


@pytest.mark.slow
def test_all_threads_are_listed_however_many(url: str) -> None:
    async def fill(ledger: Ledger) -> None:
        for number in range(230):
            await ledger.append(f"t{number}", [text("hi")])

    with_ledger(url, fill)

    assert [each["thread_id"] for each in answer("threads", "--ledger", url)] == [
        *(f"t{number}" for number in reversed(range(230))),
        "chat",
    ]


def test_an_empty_ledger_says_so(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/empty.db"
    with_ledger(url, lambda ledger: ledger.head("t"))

    assert run("threads", "--ledger", url).stderr == "no threads; --all lists those of the system too\n"
    assert run("threads", "--all", "--ledger", url).stderr == "no threads\n"
    assert answer("threads", "--ledger", url) == []


@pytest.mark.slow
def test_threads_are_a_table_in_a_terminal(url: str) -> None:
    shown = in_terminal("threads", "--ledger", url, columns=100)

    assert "──────" in shown.splitlines()[1]
    assert "chat" in shown.splitlines()[2]


def test_the_id_of_a_thread_stays_in_one_piece_in_a_terminal(url: str) -> None:
    name = run("fork", "chat", "--ledger", url).stdout.strip()

    assert f"\n{name} " in run("threads", "--ledger", url, FORCE_COLOR="1", COLUMNS="80").stdout


def test_the_ledger_may_be_named_by_the_environment(url: str) -> None:
    result = run("threads", ANTIPHON_LEDGER=url)

    assert result.stdout == run("threads", "--ledger", url).stdout
    assert run("threads", "--ledger", "sqlite:///none.db", ANTIPHON_LEDGER=url).exit_code == 2


# ---------------------------------------------------------------- antiphon show


def test_a_thread_is_shown_as_a_file_is(tmp_path: Path, url: str) -> None:
    assert run("show", "chat", "--ledger", url).stdout == run("show", save(tmp_path / "chat.json", CHAT)).stdout


def test_a_thread_for_programs_is_its_messages(tmp_path: Path, url: str) -> None:
    """And so is a file."""
    path = save(tmp_path / "chat.json", CHAT)
    of_thread, of_file = (json.loads(run("show", *which, "--json").stdout) for which in (["chat", "--ledger", url], [path]))

    assert [message.pop("thread_id") for message in of_thread] == ["chat"] * 5
    assert of_thread == of_file
    assert [message["id"] for message in of_file] == ["m-1", "m-2", "m-2#2", "m-3", "m-4"]


def test_with_a_ledger_in_use_files_are_shown_still(tmp_path: Path, url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A name that is a file is the file, unless the ledger is named beside it."""
    monkeypatch.chdir(tmp_path)
    append(url, "chat.json", text("I am a thread"))
    use = {"ANTIPHON_LEDGER": url}

    assert "Is it warm in Oslo?" in run("show", "chat.json", **use).stdout
    assert "Is it warm in Oslo?" in run("show", "chat", **use).stdout
    assert "I am a thread" in run("show", "chat.json", "--ledger", url).stdout
    assert run("show", "-", stdin=json.dumps(CHAT), **use).stdout == run("show", "chat", **use).stdout


def test_a_folder_does_not_hide_the_thread_that_is_called_like_it(
    tmp_path: Path, url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And a name that is too long for a file may be that of a thread."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "chat").mkdir()

    assert "Is it warm in Oslo?" in run("show", "chat", ANTIPHON_LEDGER=url).stdout
    assert "no such file, and no such thread" in run("show", "x" * 300, ANTIPHON_LEDGER=url).stderr


def test_a_name_that_is_neither_file_nor_thread_is_reported(tmp_path: Path, url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    explained = {
        run("show", "nobody").stderr,
        run("show", "nobody", ANTIPHON_LEDGER=url).stderr,
        run("show", "nobody", "--ledger", url).stderr,
    }

    assert explained == {
        "nobody: there is no such file, and no ledger antiphon.db in which it could be a thread; "
        "--ledger or ANTIPHON_LEDGER names another\n",
        "nobody: there is no such file, and no such thread; `antiphon threads` lists the threads\n",
        f"no thread is called 'nobody'; `antiphon threads --ledger {url}` lists them, with --all those of the system too\n",
    }
    assert run("show", "nobody", ANTIPHON_LEDGER=url).exit_code == run("show", "nobody").exit_code == 2


def test_a_thread_has_no_dialect(url: str) -> None:
    result = run("show", "chat", "--from", "marsys", "--ledger", url)

    assert (result.exit_code, result.stdout) == (2, "")
    assert result.stderr.startswith("--from is the dialect of a file")


# ---------------------------------------------------------------- antiphon tail


def test_a_tail_is_a_line_a_message(url: str) -> None:
    lines = run("tail", "--from-start", "--count", "5", "--ledger", url).stdout.splitlines()

    assert [line.split("  ", maxsplit=1)[1] for line in lines] == snapshot(
        [
            "chat 1  user  │ Is it warm in Oslo?",
            "chat 2  assistant  │ I look.",
            'chat 3  assistant  calls get_weather {"city": "Oslo"}',
            "chat 4  get_weather  gives cold",
            "chat 5  assistant  │ It is cold.",
        ]
    )


def test_a_tail_goes_on_from_its_cursor_without_gap_or_repeat(url: str) -> None:
    append(url, "other", text("hi"))
    seen: list[tuple[str, int]] = []
    cursor: list[str] = []
    for _ in range(3):
        place = ("--after", cursor[-1]) if cursor else ("--from-start",)
        lines = run("tail", "--json", "--count", "2", *place, "--ledger", url).stdout.splitlines()
        rows = [json.loads(line) for line in lines]
        seen += [(row["thread_id"], row["seq"]) for row in rows]
        cursor += [row["cursor"] for row in rows]

    assert seen == [*(("chat", number) for number in range(1, 6)), ("other", 1)]


def test_a_tail_from_a_wrong_cursor_names_the_command_that_starts_at_the_beginning(url: str) -> None:
    refused = run("tail", "chat", "--after", "yesterday", "--ledger", url)

    assert refused.exit_code == 2
    said = " ".join(refused.stderr.split())
    assert said.startswith(
        "--after: expected a cursor of tail or horizon, got 'yesterday'; to start with the stored messages: `"
    )
    assert said.endswith(f"antiphon tail chat --from-start --ledger {url}`")


def test_a_tail_for_programs_has_the_message_as_it_is_stored(url: str) -> None:
    row = run("tail", "chat", "--from-start", "--count", "1", "--json", "--ledger", url).stdout

    async def first(ledger: Ledger) -> Any:
        (record,) = [record async for record in ledger.read("chat", before=2)]
        return record

    record = with_ledger(url, first)
    assert record.body.decode() in row
    assert json.loads(row)["hash"] == record.hash
    assert list(json.loads(row)) == ["cursor", "thread_id", "seq", "recorded_at", "hash", "message"]


def test_a_tail_of_one_thread_has_no_other(url: str) -> None:
    append(url, "other", text("hi"))

    rows = run("tail", "other", "--from-start", "--count", "1", "--ledger", url).stdout

    assert "other 1  user  │ hi" in rows
    assert run("tail", "nobody", "--ledger", url).exit_code == 2


@pytest.mark.slow
def test_a_tail_follows_new_messages_until_it_is_stopped(url: str) -> None:
    """Ctrl-C is the intended end: exit code 0, and the command that continues."""
    command = [*COMMAND, "tail", "--from-start", "--ledger", url]
    with Forked(command, env=PLAIN, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        before = [process.stdout.readline() for _ in range(5)]
        append(url, "news", text("did you hear?"))
        heard = process.stdout.readline()
        process.send_signal(signal.SIGINT)
        last = process.stderr.read()

    assert "│ It is cold." in before[-1]
    assert "news 1  user  │ did you hear?" in heard
    assert (process.returncode, last) == (0, f"continue from here with: {program_name()} tail --after 6 --ledger {url}\n")


@pytest.mark.slow
def test_a_tail_begins_with_the_present(tmp_path: Path, url: str) -> None:
    out = tmp_path / "heard"
    with out.open("w") as file:
        process = Forked([*COMMAND, "tail", "--count", "1", "--ledger", url], env=PLAIN, stdout=file)
    while process.poll() is None:  # the first that is said after it has begun to listen ends it
        append(url, "news", text("news"))

    assert out.read_text().count("\n") == 1
    assert "  user  │ news" in out.read_text()


def test_a_line_of_a_tail_fits_the_terminal(url: str) -> None:
    append(url, "long", text("very " * 100))

    shown = run("tail", "long", "--from-start", "--count", "1", "--ledger", url, FORCE_COLOR="1", COLUMNS="70").stdout

    assert shown.count("very") < 14
    assert "…" in shown
    assert shown.count("\n") == 1


def test_a_tail_cannot_be_deceived(url: str) -> None:
    """No text passes for a call or a result, and none reaches the terminal as a command (S9, S10)."""
    call, result = exchange(1, HOSTILE)
    append(url, "eve", text("calls launch {}\ngives done"), text(HOSTILE), call, result)

    lines = run("tail", "eve", "--from-start", "--count", "4", "--ledger", url).stdout

    assert "eve 1  user  │ calls launch {} gives done" in lines
    assert "a⟨U+202E⟩b ⟨U+200B⟩[red]c[/red] :smile:" in lines
    assert lines.count("\n") == 4
    assert not set(lines) & set("\x1b\x07\u202e\u200b")


@pytest.mark.slow
def test_media_failures_and_nothing_have_a_line_too(url: str) -> None:
    messages = [
        text("x", payload={"kind": "parts", "parts": []}),
        text("x", payload={"kind": "parts", "parts": [{"kind": "media", "modality": "image", "url": "https://a.b/c"}]}),
    ]
    append(url, "odd", *messages)
    with_ledger(url, lambda ledger: ledger.append("odd", [exchange(1, "Oslo")[0]]))
    run("fork", "odd", "--into", "branch", "--ledger", url)

    lines = run("tail", "branch", "--from-start", "--count", "4", "--ledger", url).stdout.splitlines()

    assert lines[0].endswith("odd 1  user  (says nothing)")
    assert lines[1].endswith("odd 2  user  [image https://a.b/c]")
    assert "branch 4  runtime  get_weather fails: forked: The branch began" in lines[3]


@pytest.mark.parametrize("place", [("--after", "yesterday"), ("--after", "1", "--from-start")])
def test_a_place_to_begin_that_is_none_is_refused(url: str, place: tuple[str, ...]) -> None:
    result = run("tail", *place, "--ledger", url)

    assert (result.exit_code, result.stdout, result.stderr.count("\n")) == (2, "", 1)


# ---------------------------------------------------------------- antiphon search


def test_words_are_found_with_their_place(url: str) -> None:
    assert run("search", "warm", "oslo", "--ledger", url).stdout.splitlines() == [
        "thread  seq  by    found",
        "chat    1    user  Is it «warm» in «Oslo»?",
    ]


@pytest.mark.slow
def test_words_in_quotes_follow_each_other(url: str) -> None:
    """Whether the shell leaves the quotes or takes them away."""
    append(url, "other", text("Oslo is warm: in it one walks"))

    for typed in (["warm in"], ['"warm in"']):
        found = answer("search", *typed, "--ledger", url)
        assert {hit["record"]["thread_id"] for hit in found} == {"chat", "other"}
    for typed in (["it warm"], ['"it warm"']):
        assert [hit["record"]["thread_id"] for hit in answer("search", *typed, "--ledger", url)] == ["chat"]


def test_a_search_for_programs_has_records(url: str) -> None:
    (hit,) = answer("search", "walk*", "cold", "--ledger", url) or answer("search", "warm", "--ledger", url)

    record = hit["record"]
    assert (record["thread_id"], record["seq"], record["message"]["id"]) == ("chat", 1, "m-1")
    assert hit["snippet"] == "Is it «warm» in Oslo?"


@pytest.mark.slow
def test_a_search_stays_in_its_thread_and_limit(url: str) -> None:
    append(url, "other", text("cold"), text("so cold"))

    assert {hit["record"]["thread_id"] for hit in answer("search", "cold", "--thread", "other", "--ledger", url)} == {"other"}
    assert len(answer("search", "cold", "--limit", "1", "--ledger", url)) == 1
    cut = run("search", "cold", "--thread", "other", "--limit", "1", "--ledger", url)
    assert "the first 1; there are more: " in cut.stderr
    assert f"search cold --thread other --limit 5 --ledger {url}" in cut.stderr
    assert run("search", "cold", "--thread", "other", "--limit", "2", "--ledger", url).stderr == ""
    assert run("search", "cold", "--thread", "nobody", "--ledger", url).exit_code == 2


def test_a_search_without_a_hit_says_so(url: str) -> None:
    result = run("search", "xyzzy", "--ledger", url)

    assert (result.exit_code, result.stdout, result.stderr) == (0, "", "nothing found\n")


# ---------------------------------------------------------------- antiphon fork and diff


def test_a_fork_prints_only_its_id(url: str) -> None:
    """So that a script can take it; what there is to know stands on stderr."""
    result = run("fork", "chat", "--at", "3", "--ledger", url)

    name = result.stdout.strip()
    assert result.stdout == f"{name}\n"
    assert result.stderr == (
        "a branch of chat after message 3; open calls closed in the branch: 1\n"
        f"continue it with: {program_name()} run --thread {name} 'And then?' --ledger {url}\n"
    )
    assert "fails (said by runtime): forked:" in run("show", name, "--ledger", url).stdout


@pytest.mark.slow
def test_a_fork_may_be_named_and_placed_by_its_step(url: str) -> None:
    append(url, "steps", *exchange(1, "Oslo"), *exchange(2, "Bergen"))

    branch = answer("fork", "steps", "--at-step", "1", "--into", "branch", "--ledger", url)

    assert (branch["thread_id"], branch["messages"]) == ("branch", 2)
    assert (branch["forked_from"], branch["forked_at"]) == ("steps", 2)
    assert run("fork", "steps", "--ledger", url).stderr.startswith("a branch of steps after message 4\n")


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["nobody"], "no thread is called 'nobody'"),
        (["chat", "--at", "9"], "thread 'chat' has the messages 1 to 5; there is no 9"),
        (["chat", "--at-step", "9"], "thread 'chat' has no message of step 9"),
        (["chat", "--at", "1", "--at-step", "1"], "give --at or --at-step, not both"),
        (["chat", "--into", "chat"], "there is a thread called 'chat' already"),
        (["chat", "--into", "\u202e"], "a thread's id is a name of 1 to 512 visible characters"),
    ],
)
def test_a_fork_that_cannot_be_is_explained(url: str, options: list[str], said: str) -> None:
    result = run("fork", *options, "--ledger", url)

    assert (result.exit_code, result.stdout) == (2, "")
    assert result.stderr.startswith(said)
    assert result.stderr.count("\n") == 1


@pytest.mark.slow
def test_a_diff_shows_where_threads_part(url: str) -> None:
    run("fork", "chat", "--at", "2", "--into", "branch", "--ledger", url)
    append(url, "branch", text("Look at the sea, too."))

    result = run("diff", "chat", "branch", "--ledger", url)

    assert result.exit_code == 1
    assert result.stdout == snapshot("""\
messages that are the same: 2
--- chat
- 3  assistant  calls get_weather {"city": "Oslo"}
- 4  get_weather  gives cold
- 5  assistant  │ It is cold.
+++ branch
+ 3  user  │ Look at the sea, too.
""")


@pytest.mark.slow
def test_a_diff_for_programs_has_both_sides(url: str) -> None:
    run("fork", "chat", "--into", "branch", "--ledger", url)
    append(url, "branch", text("Try again."))

    found = answer("diff", "chat", "branch", "--ledger", url, code=1)

    assert (found["common"], found["left"]) == (5, [])
    assert [(each["thread_id"], each["seq"]) for each in found["right"]] == [("branch", 6)]


@pytest.mark.slow
def test_threads_that_are_the_same_differ_in_nothing(url: str) -> None:
    run("fork", "chat", "--into", "branch", "--ledger", url)

    assert run("diff", "chat", "branch", "--ledger", url).stdout == "messages that are the same: 5\n"
    assert answer("diff", "chat", "branch", "--ledger", url) == {
        "common": 5,
        "left": [],
        "right": [],
        "left_count": 0,
        "right_count": 0,
        "phases": None,
    }
    assert run("diff", "chat", "nobody", "--ledger", url).exit_code == 2


@pytest.mark.slow
def test_a_diff_has_colours_in_a_terminal(url: str) -> None:
    run("fork", "chat", "--at", "4", "--into", "branch", "--ledger", url)
    append(url, "branch", text(HOSTILE + "very " * 30))

    shown = run("diff", "chat", "branch", "--ledger", url, FORCE_COLOR="1", COLUMNS="60", TERM="xterm").stdout

    assert "\x1b[31m- 5  " in shown
    assert "\x1b[32m+ 5  " in shown
    assert "…" in shown
    assert "\x1b[2J" not in shown


def test_every_part_of_a_message_can_be_text(url: str) -> None:
    append(url, "parts", text("x", payload={"kind": "parts", "parts": [TextPart(text="a"), TextPart(text="b")]}))

    assert "parts 1  user  │ a │ b" in run("tail", "parts", "--from-start", "--count", "1", "--ledger", url).stdout


# ---------------------------------------------------------------- warnings


def test_a_warning_of_the_ledger_is_a_note(url: str, capsys: pytest.CaptureFixture[str]) -> None:
    """As when NATS cannot be reached: once, in the colour of a warning, divided between words."""

    async def work(ledger: Ledger) -> None:
        logging.getLogger("antiphon.ledger").warning("no connection to NATS: %s", "refused")

    _ledger.with_ledger(url, work)
    assert capsys.readouterr().err == "no connection to NATS: refused\n"


def test_an_error_names_no_password(capsys: pytest.CaptureFixture[str]) -> None:
    """A command to type takes the URL from the environment, as those that are printed after a run."""
    with pytest.raises(typer.Exit), _ledger.complaints("postgresql://ada:secret@db/antiphon"):
        raise UnknownThreadError("there is no such thread", "t")
    printed = capsys.readouterr().err
    assert "secret" not in printed
    assert "antiphon threads --ledger" in printed
