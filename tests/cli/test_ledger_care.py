"""The commands that look after a ledger: verify, delete, backup; and what is said when it cannot be used."""

import json
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import apsw
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.cli.ledgers import append, exchange, text, with_chat, with_ledger
from tests.cli.running import CHAT, PLAIN, in_terminal, run, save, start
from tests.cli.screens import Terminal
from tests.ledger.test_hostile_rows import HOSTILE, plant

from antiphon.cli import _ledger, _threads


@pytest.fixture
def url(tmp_path: Path) -> str:
    """The URL of a fresh ledger with one thread, `chat`."""
    return with_chat(tmp_path)


def alter(url: str, *statements: str) -> None:
    """Change the file by SQL, without the ledger."""
    with closing(apsw.Connection(url.removeprefix("sqlite:///"))) as connection:
        for statement in statements:
            connection.execute(statement)


# ---------------------------------------------------------------- antiphon verify


def test_verify_confirms_a_whole_ledger(url: str) -> None:
    append(url, "other", text("hi"))

    assert run("verify", "--ledger", url).stdout == "threads: 2, messages: 6; no damage found\n"
    assert run("verify", "other", "--ledger", url).stdout == "threads: 1, messages: 1; no damage found\n"
    assert json.loads(run("verify", "--json", "--ledger", url).stdout) == {"threads": 2, "messages": 6, "damages": []}


def test_a_changed_byte_is_named(url: str) -> None:
    """S14: with the thread and the message, and exit code 1."""
    alter(url, "UPDATE messages SET body = CAST(replace(CAST(body AS TEXT), 'cold', 'warm') AS BLOB) WHERE seq = 4")

    result = run("verify", "--ledger", url)

    assert result.exit_code == 1
    heading, row = result.stdout.splitlines()
    assert heading.split() == ["thread", "seq", "damage"]
    assert row.split()[:2] == ["chat", "4"]
    assert "damaged: 1" in result.stderr
    (damage,) = json.loads(run("verify", "--json", "--ledger", url).stdout)["damages"]
    assert (damage["thread_id"], damage["seq"]) == ("chat", 4)


def test_altered_messages_are_not_shown(url: str) -> None:
    alter(url, "UPDATE messages SET body = CAST(replace(CAST(body AS TEXT), 'cold', 'warm') AS BLOB) WHERE seq = 4")

    result = run("show", "chat", "--ledger", url)

    assert (result.exit_code, result.stdout) == (1, "")
    assert result.stderr.startswith("thread 'chat' at seq 4: ")
    assert f"`antiphon verify --ledger {url}`" in result.stderr


@pytest.mark.slow
def test_a_cut_tail_is_found_by_the_heads_from_before(tmp_path: Path, url: str) -> None:
    """S14: a chain alone does not show it."""
    heads = tmp_path / "heads.json"
    append(url, "other", text("hi"))
    assert run("verify", "--save-heads", heads, "--ledger", url).exit_code == 0
    assert run("verify", "--heads", heads, "--ledger", url).exit_code == 0

    run("delete", "other", "--yes", "--ledger", url)

    assert run("verify", "--ledger", url).exit_code == 0
    result = run("verify", "--heads", heads, "--ledger", url)
    assert result.exit_code == 1
    assert "other" in result.stdout
    assert run("verify", "other", "--heads", heads, "--ledger", url).exit_code == 1
    assert run("verify", "other", "--ledger", url).exit_code == 2


def test_heads_are_only_saved_of_what_is_whole(tmp_path: Path, url: str) -> None:
    alter(url, "DELETE FROM messages WHERE seq = 2")
    heads = tmp_path / "heads.json"

    assert run("verify", "--save-heads", heads, "--ledger", url).exit_code == 1
    assert not heads.exists()


def test_the_heads_of_one_thread_can_be_saved(tmp_path: Path, url: str) -> None:
    append(url, "other", text("hi"))

    run("verify", "other", "--save-heads", tmp_path / "heads.json", "--ledger", url)

    (head,) = json.loads((tmp_path / "heads.json").read_text())
    assert (head["thread_id"], head["seq"], len(head["hash"])) == ("other", 1, 64)


@pytest.mark.parametrize("content", ["{}", "[1]", '[{"thread_id":"a","seq":"1","hash":"x"}]', '{"thread_id":1}'])
def test_heads_that_are_none_are_refused(tmp_path: Path, url: str, content: str) -> None:
    path = tmp_path / "heads.json"
    path.write_text(content)

    result = run("verify", "--heads", path, "--ledger", url)

    assert (result.exit_code, result.stderr) == (
        1,
        f"{path}: not a file of heads, as `antiphon verify --save-heads` writes it\n",
    )


# ---------------------------------------------------------------- antiphon delete


def test_a_thread_is_deleted_after_a_yes(url: str) -> None:
    append(url, "other", text("hi"))

    result = run("delete", "other", "--yes", "--ledger", url)

    assert (result.exit_code, result.stdout, result.stderr) == (0, "other\n", "")
    assert "other" not in run("threads", "--ledger", url).stdout
    assert run("show", "other", "--ledger", url).exit_code == 2


@pytest.mark.parametrize(
    ("answer", "said", "is_there"),
    [
        ("y\n", "", False),
        ("n\n", "nothing is deleted\n", True),
        ("\n", "nothing is deleted\n", True),
        ("", "nothing is deleted: there was no answer; --yes deletes without a question\n", True),
    ],
)
def test_delete_asks_before(url: str, answer: str, said: str, is_there: bool) -> None:
    result = run("delete", "chat", "--ledger", url, stdin=answer)

    assert result.exit_code == int(is_there)
    assert result.stderr.startswith("chat  (5 messages)\nDelete this for good? [y/N]")
    assert result.stderr.endswith(said)
    assert (run("show", "chat", "--ledger", url).exit_code == 0) == is_there


@pytest.mark.slow
def test_delete_asks_in_a_terminal(url: str) -> None:
    assert "Delete this for good? [y/N]" in in_terminal("delete", "chat", "--ledger", url, typed="y\n")
    assert run("show", "chat", "--ledger", url).exit_code == 2


@pytest.mark.slow
def test_branches_are_deleted_only_on_request(url: str) -> None:
    """Also the branches of branches; and a thread that is a branch takes nothing of its origin with it."""
    for origin, branch in (("chat", "a"), ("a", "b"), ("chat", "c")):
        run("fork", origin, "--into", branch, "--ledger", url)

    refused = run("delete", "chat", "--yes", "--ledger", url)
    assert (refused.exit_code, refused.stdout) == (1, "")
    assert refused.stderr.startswith("these branches share their messages: ")
    assert "with --with-branches they are deleted too" in refused.stderr

    assert run("delete", "c", "--yes", "--ledger", url).stdout == "c\n"
    assert run("delete", "chat", "--with-branches", "--yes", "--ledger", url).stdout == "b\na\nchat\n"
    assert json.loads(run("threads", "--json", "--ledger", url).stdout) == []


@pytest.mark.slow
def test_a_thread_with_hundreds_of_branches_is_deleted_with_all(url: str) -> None:
    async def fork(ledger: Any) -> None:
        for _ in range(130):
            await ledger.fork("chat")

    with_ledger(url, fork)

    gone = run("delete", "chat", "--with-branches", "--yes", "--ledger", url).stdout.splitlines()
    assert (len(gone), gone[-1]) == (131, "chat")


@pytest.mark.slow
def test_a_branch_that_appears_during_the_question_stops_the_deletion(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_threads, "ask_yes", lambda *about: run("fork", "chat", "--into", "late", "--ledger", url))

    result = run("delete", "chat", "chat", "--ledger", url)

    assert (result.exit_code, result.stdout) == (1, "")
    assert result.stderr == "chat  (5 messages)\nchat: it got a new branch meanwhile; list the branches again\n"
    assert run("show", "late", "--ledger", url).exit_code == 0


def test_nothing_is_deleted_if_one_of_them_is_unknown(url: str) -> None:
    assert run("delete", "chat", "nobody", "--yes", "--ledger", url).exit_code == 2
    assert run("show", "chat", "--ledger", url).exit_code == 0


# ---------------------------------------------------------------- antiphon backup


@pytest.mark.slow
def test_a_backup_is_a_ledger_like_the_other(tmp_path: Path, url: str) -> None:
    copy = tmp_path / "copy.db"

    result = run("backup", copy, "--ledger", url)

    assert (result.exit_code, result.stdout) == (0, "")
    assert result.stderr.startswith(f"{copy}: ")
    assert run("export", "--ledger", f"sqlite:///{copy}").stdout == run("export", "--ledger", url).stdout
    assert run("verify", "--ledger", f"sqlite:///{copy}").exit_code == 0


def test_a_backup_overwrites_nothing(tmp_path: Path, url: str) -> None:
    (tmp_path / "copy.db").write_text("dear to me")

    result = run("backup", tmp_path / "copy.db", "--ledger", url)

    assert (result.exit_code, result.stderr.count("\n")) == (2, 1)
    assert "is there already" in result.stderr
    assert (tmp_path / "copy.db").read_text() == "dear to me"


def test_a_backup_needs_its_folder(tmp_path: Path, url: str) -> None:
    result = run("backup", tmp_path / "none" / "copy.db", "--ledger", url)

    missing = f"there is no folder '{tmp_path}/none'; make it, or check the path"
    assert (result.exit_code, result.stderr) == (2, f"{tmp_path}/none/copy.db: {missing}\n")


# ---------------------------------------------------------------- a ledger that cannot be used

COMMANDS = [
    ("threads",),
    ("show", "chat"),
    ("tail", "--from-start", "--count", "1"),
    ("search", "cold"),
    ("fork", "chat"),
    ("diff", "chat", "chat"),
    ("verify",),
    ("export",),
    ("delete", "chat", "--yes"),
    ("backup", "copy.db"),
]
CHANGES = [("fork", "chat"), ("delete", "chat", "--yes"), ("search", "cold"), ("import", "chat.json", "--from", "marsys")]
each_command = pytest.mark.parametrize("command", COMMANDS, ids=lambda command: command[0])


def refusal(*arguments: str, **environment: str) -> str:
    """Return the one line that a command says before it ends with exit code 2."""
    result = run(*arguments, **environment)
    assert (result.exit_code, result.stdout, result.stderr.count("\n")) == (2, "", 1)
    return result.stderr


MORE = [
    *(
        ("parked",),
        ("settle", "chat", "call-1", "--retry"),
        ("approvals",),
        ("approve", "a", "--as", "ada"),
        ("deny", "a", "--as", "ada"),
    ),
    *(
        ("status", "chat"),
        ("replay", "chat"),
        ("replay", "--against"),
        ("resume", "chat"),
        ("pause", "chat"),
        ("terminate", "chat"),
    ),
    ("knowledge", "search", "cold"),
]
"""Those that know more than messages."""


@pytest.mark.slow
def test_without_a_ledger_every_command_says_which_it_looked_for_and_makes_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One rule: --ledger, else the environment, else the file of this folder; commands that only read create none."""
    monkeypatch.chdir(tmp_path)
    advice = "`antiphon run` and `antiphon import` make one, --ledger or ANTIPHON_LEDGER names another"
    missing = f"there is no ledger antiphon.db in this folder; {advice}\n"

    assert {refusal(*command) for command in [*COMMANDS, *MORE] if command[0] != "show"} == {missing}  # which shows files too
    assert refusal("threads", ANTIPHON_LEDGER="sqlite:///no.db") == (
        "no.db, which ANTIPHON_LEDGER names: there is no such ledger; check the path, "
        "or make one with `antiphon import FILE`\n"
    )
    assert not list(tmp_path.iterdir())


@pytest.mark.slow
def test_without_a_name_all_commands_use_the_ledger_of_the_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A command that writes creates it, unless the environment names another."""
    monkeypatch.chdir(tmp_path)
    save(tmp_path / "chat.json", CHAT)
    assert run("import", "chat.json", "--from", "marsys").exit_code == 0

    assert [path.name for path in tmp_path.glob("*.db")] == ["antiphon.db"]
    reading = [command for command in COMMANDS if command[0] != "delete"]
    assert {run(*command).exit_code for command in [*reading, ("parked",), ("approvals",)]} == {0}
    assert refusal("status", "nobody").startswith("no thread is called 'nobody'")
    assert run("import", "chat.json", "--from", "marsys", ANTIPHON_LEDGER="sqlite:///other.db").exit_code == 0
    assert run("delete", "chat", "--with-branches", "--yes").stdout.endswith("chat\n")
    assert run("search", "cold", ANTIPHON_LEDGER="sqlite:///other.db").stdout


@each_command
@pytest.mark.parametrize(
    ("given", "said"),
    [
        ("mysql://localhost/x", "a ledger's URL is memory:, sqlite:///path or postgresql://host/database"),
        ("sqlite://ledger.db", "; for a file, sqlite:///ledger.db"),
        ("sqlite:///", "a ledger's URL is memory:, sqlite:///path or postgresql://host/database"),
        ("memory:", "give the URL of a file, sqlite:///ledger.db"),
    ],
)
def test_a_wrong_url_is_answered_with_a_right_one(command: tuple[str, ...], given: str, said: str) -> None:
    assert said in refusal(*command, "--ledger", given)
    assert said in refusal(*command, ANTIPHON_LEDGER=given)


@pytest.mark.parametrize("given", ["ledger.db", "./ledger.db", "sqlite:///ledger.db"])
def test_a_path_is_as_good_as_a_url(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, given: str) -> None:
    monkeypatch.chdir(tmp_path)
    with_chat(tmp_path)

    assert run("threads", "--ledger", given).stdout == run("threads", "--ledger", str(tmp_path / "ledger.db")).stdout
    assert run("threads", ANTIPHON_LEDGER=given).exit_code == 0
    assert "none.db: there is no such ledger" in refusal("threads", "--ledger", "none.db")


@each_command
def test_a_missing_file_is_not_made(tmp_path: Path, command: tuple[str, ...], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert "none.db: there is no such ledger; check the path, or make one with `antiphon import FILE --ledger " in refusal(
        *command, "--ledger", "sqlite:///none.db"
    )
    assert not list(tmp_path.iterdir())


def test_an_absolute_path_with_three_slashes_is_put_right(url: str) -> None:
    slash = url.replace("sqlite:////", "sqlite:///")

    assert f"an absolute path has four slashes, {url}\n" in refusal("threads", "--ledger", slash)


def test_a_path_through_a_file_is_no_path(tmp_path: Path) -> None:
    path = save(tmp_path / "chat.json", CHAT)

    assert "check the path" in refusal("import", str(path), "--from", "marsys", "--ledger", f"sqlite:///{path}/ledger.db")


@each_command
def test_a_folder_is_no_ledger(tmp_path: Path, command: tuple[str, ...]) -> None:
    assert "is a folder, and a ledger is a file in one" in refusal(*command, "--ledger", f"sqlite:///{tmp_path}")


@each_command
def test_another_kind_of_file_is_refused(tmp_path: Path, command: tuple[str, ...], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "diary.db").write_text("Dear diary, " * 100)
    alter(f"sqlite:///{tmp_path}/shop.db", "CREATE TABLE orders (id)")

    diary, shop = (" ".join(refusal(*command, "--ledger", f"sqlite:///{name}.db").split()) for name in ("diary", "shop"))
    assert "is not a SQLite file, so not a ledger; check the path, or import" in diary
    assert "is a SQLite file of something else, not a ledger; check the path, or import" in shop
    assert all("`antiphon import FILE --ledger NEW.db`" in each for each in (diary, shop))


@each_command
def test_a_ledger_of_a_later_version_is_reported(url: str, command: tuple[str, ...]) -> None:
    alter(url, "PRAGMA user_version = 99")

    assert "has ledger format 99, and this antiphon has 1: " in refusal(*command, "--ledger", url)


@pytest.mark.slow
@pytest.mark.parametrize("command", CHANGES, ids=lambda command: command[0])
def test_a_locked_ledger_is_reported(
    tmp_path: Path, url: str, command: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(_ledger, "BUSY_SECONDS", 0.05)
    with closing(apsw.Connection(url.removeprefix("sqlite:///"))) as other:
        other.execute("BEGIN IMMEDIATE")

        said = refusal(*command, "--ledger", url)

        assert said.endswith("is locked by another process for too long; try again\n")
        assert run("show", "chat", "--ledger", url).exit_code == 0  # readers do not wait for the writer


class FullDisk(apsw.VFS):
    """The usual files, on a disk that takes nothing more."""

    def __init__(self, usual: str) -> None:
        super().__init__("full-disk", usual, makedefault=True)
        self.usual = usual

    def xOpen(self, name: Any, flags: list[int]) -> Any:
        class File(apsw.VFSFile):
            def xWrite(self, data: bytes, offset: int) -> None:
                raise apsw.FullError("no space left on device")

        return File(self.usual, name, flags)


@contextmanager
def full_disk() -> Iterator[None]:
    usual = apsw.vfs_names()[0]
    disk = FullDisk(usual)
    try:
        yield
    finally:
        apsw.set_default_vfs(usual)
        disk.unregister()


@pytest.mark.slow
@pytest.mark.parametrize("command", CHANGES, ids=lambda command: command[0])
def test_a_full_disk_is_reported(tmp_path: Path, url: str, command: tuple[str, ...], monkeypatch: pytest.MonkeyPatch) -> None:
    """Stored data is not harmed."""
    monkeypatch.chdir(tmp_path)
    append(url, "warm", text("so that there is a log"))
    before = run("export", "--ledger", url).stdout

    with full_disk():
        said = refusal(*command, "--ledger", url)
    assert "there is no space left for" in said
    assert "make some, then try again" in said

    assert run("export", "--ledger", url).stdout == before
    assert run("verify", "--ledger", url).exit_code == 0


def test_no_ledger_can_be_made_on_a_full_disk(tmp_path: Path) -> None:
    path = save(tmp_path / "chat.json", CHAT)

    with full_disk():
        said = refusal("import", str(path), "--from", "marsys", "--ledger", f"sqlite:///{tmp_path}/new.db")
    assert "there is no space left for" in said


def test_an_export_to_a_full_disk_says_so(url: str) -> None:
    append(url, "long", text("x" * 100_000))

    assert refusal("export", "-o", "/dev/full", "--ledger", url) == "/dev/full: No space left on device\n"


def test_an_export_to_a_place_that_is_none_says_so(tmp_path: Path, url: str) -> None:
    missing = f"there is no folder '{tmp_path}/none'; make it, or check the path"
    assert refusal("export", "-o", f"{tmp_path}/none/x", "--ledger", url) == f"{tmp_path}/none/x: {missing}\n"


@pytest.mark.parametrize("more", [[], ["--journal"]])
def test_an_export_that_stops_keeps_the_file_that_was_there(tmp_path: Path, url: str, more: list[str]) -> None:
    out = tmp_path / "out.jsonl"
    assert run("export", *more, "-o", out, "--ledger", url).exit_code == 0
    whole = out.read_bytes()
    alter(url, "UPDATE messages SET body = zeroblob(9) WHERE seq = 3")

    for path, kept in ((out, "the file is as it was"), (tmp_path / "new.jsonl", "nothing was written")):
        result = run("export", *more, "-o", path, "--ledger", url)
        first, second = result.stderr.splitlines()
        assert (result.exit_code, first) == (1, f"{path}: {kept}")
        assert second.startswith("thread 'chat' at seq 3: it was altered")

    assert out.read_bytes() == whole
    assert sorted(path.name for path in tmp_path.glob("*.jsonl")) == ["out.jsonl"]
    assert not list(tmp_path.glob(".antiphon*"))


@pytest.mark.slow
def test_a_disk_that_fails_in_the_middle_is_reported(tmp_path: Path, url: str) -> None:
    """A process that may write no larger file: everything is there as a whole, or nothing of it."""
    messages = [{"role": "user", "content": "x" * 50_000, "message_id": f"n-{number}"} for number in range(40)]
    path = save(tmp_path / "long.json", messages)

    command = f'ulimit -f 600; exec "{sys.executable}" -m antiphon import "{path}" --from marsys --ledger "{url}"'
    done = subprocess.run(["/bin/bash", "-c", command], env=PLAIN, capture_output=True, check=False, text=True)

    assert (done.returncode, done.stdout) == (2, "")
    assert "cannot be used at present" in done.stderr
    assert done.stderr.count("\n") == 1
    assert run("verify", "--ledger", url).stdout == "threads: 1, messages: 5; no damage found\n"


@pytest.mark.slow
def test_a_damaged_file_is_reported(tmp_path: Path, url: str) -> None:
    append(url, "long", *(text("x" * 5_000) for _ in range(20)))
    file = tmp_path / "ledger.db"
    content = bytearray(file.read_bytes())
    content[2048:] = b"\xff" * (len(content) - 2048)
    file.write_bytes(content)

    for command in COMMANDS[:8]:
        result = run(*command, "--ledger", url)
        assert result.exit_code in (1, 2), command
        assert result.stderr.count("\n") == 1, result.stderr
        assert result.stderr.count("verify") <= 1, "it is not told to verify what cannot be opened"


@pytest.mark.slow
def test_without_its_extra_it_says_what_to_install(url: str) -> None:
    code = f"import sys; sys.modules['apsw'] = None; sys.argv = ['', 'threads', '--ledger', {url!r}]\n"
    code += "from antiphon.__main__ import main; main()"
    done = subprocess.run([sys.executable, "-c", code], env=PLAIN, capture_output=True, check=False, text=True)

    assert (done.returncode, done.stderr) == (
        2,
        'this command needs packages that are not installed: pip install "antiphon[all]"\n',
    )


@pytest.mark.slow
@pytest.mark.parametrize("row", HOSTILE)
def test_a_row_that_is_no_message_is_not_handed_on(tmp_path: Path, row: str) -> None:
    """S1: shown, followed, exported and searched, it is a line of complaint, or nothing."""
    plant(tmp_path / "ledger.db", HOSTILE[row])
    url = f"sqlite:///{tmp_path}/ledger.db"

    for command in (("show", "t"), ("export", "t"), ("export", "t", "--to", "openai-chat"), ("diff", "t", "t"), ("verify",)):
        result = run(*command, "--ledger", url)
        assert (result.exit_code, result.stderr.count("\n")) == (1, 1) or command[0] == "diff", command
        assert command == ("verify",) or len(result.stdout.splitlines()) <= 1
    assert run("tail", "--from-start", "--count", "1", "--ledger", url).exit_code == 1
    assert run("search", "hi", "--ledger", url).exit_code in (0, 1)


@pytest.mark.slow
@given(name=st.text(), command=st.sampled_from(["fork", "diff", "verify", "export", "delete", "tail", "show"]))
@settings(max_examples=50, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_any_text_may_be_asked_for(url: str, name: str, command: str) -> None:
    """G21: a thread that is not there is said not to be, whatever it is called."""
    again = [name] if command == "diff" else []

    result = run(command, "--ledger", url, "--", name, *again)

    assert result.exit_code in (1, 2)
    assert result.stderr.count("\n") == 1
    assert not set(result.stderr) & set("\x1b\x07\u202e\u200b")


@pytest.mark.slow
def test_a_new_user_gets_along_on_a_fresh_file(tmp_path: Path) -> None:
    """As processes of their own; all commands in a row are in docs/cli.md, which is run too."""
    use = {"ANTIPHON_LEDGER": f"sqlite:///{tmp_path}/fresh/ledger.db"}
    save(tmp_path / "chat.json", CHAT)

    assert b"there is no such ledger" in start("threads", **use).stderr
    assert start("import", tmp_path / "chat.json", **use).stdout.splitlines()[1].split() == [b"chat", b"5", b"5"]
    branch = start("fork", "chat", "--at", "3", **use).stdout.decode().strip()
    assert start("delete", branch, stdin=b"y\n", **use).stdout.decode() == f"{branch}\n"


def test_calls_that_are_open_are_counted(url: str) -> None:
    append(url, "open", exchange(1, "Oslo")[0])

    (thread,) = json.loads(run("threads", "--limit", "1", "--json", "--ledger", url).stdout)
    assert (thread["thread_id"], thread["open_calls"]) == ("open", 1)


@pytest.mark.slow
def test_ctrl_c_at_a_question_says_that_nothing_is_done(tmp_path: Path) -> None:
    with_chat(tmp_path)
    with Terminal("delete", "chat", "--ledger", tmp_path / "ledger.db", folder=tmp_path) as terminal:
        terminal.until("Delete this for good? [y/N]")
        terminal.type("\x03")
        code, screen = terminal.ended()
    assert (code, screen.splitlines()[-1]) == (130, "nothing is deleted")
    assert run("show", "chat", "--ledger", tmp_path / "ledger.db").exit_code == 0


@pytest.mark.parametrize(
    ("command", "hint"),
    [
        (("resume", "--all"), "antiphon threads"),
        (("resume",), "antiphon threads"),
        (("limits",), "antiphon limits MODEL --at-once N"),
        (("limits", "m", "--remove"), "antiphon limits"),
        (("schedule", "list"), "antiphon schedule add NAME QUESTION --cron LINE"),
        (("knowledge", "list"), "antiphon knowledge add FILES"),
        (("show", "kb-2e3c9c8fb9-1-1"), "antiphon knowledge search WORDS"),
        (("replay",), "antiphon threads"),
        (("fork", "chat", "--at", "yield"), "antiphon show chat --all"),
        (("approve", "nothing", "--as", "ada"), "antiphon approvals"),
    ],
)
def test_a_command_to_type_names_the_ledger(url: str, command: tuple[str, ...], hint: str) -> None:
    """Otherwise it would be about another ledger."""
    assert f"{hint} --ledger {url}`" in run(*command, "--ledger", url).stderr


@pytest.mark.parametrize("command", ["import", "import --journal", "convert", "check", "repair", "show"])
def test_a_folder_is_no_file(tmp_path: Path, command: str) -> None:
    more = ("--to", "house") if command == "convert" else ()
    refused = run(*command.split(), tmp_path, *more, ANTIPHON_LEDGER=f"sqlite:///{tmp_path}/none.db")
    assert (refused.exit_code, refused.stderr.startswith(f"{tmp_path}: it is a folder")) == (2, True)
    assert not (tmp_path / "none.db").exists()


LONG = "x" * 300
"""A name that no file can have. The system says so for every question about it, as it does for a folder one may not enter."""


@pytest.mark.parametrize(
    "command",
    [
        ("threads", "--ledger", LONG),
        ("import", "chat.json", "--from", "marsys", "--ledger", LONG),
        ("import", LONG),
        ("convert", LONG, "--to", "house"),
        ("convert", "chat.json", "--from", "marsys", "--to", "house", "-o", LONG),
        ("verify", "--save-heads", LONG),
        ("backup", LONG),
        ("export", "-o", LONG),
        ("show", LONG),
        ("trust", LONG),
        ("knowledge", "add", LONG),
        ("run", "Hello?", "--add", LONG, "--model", "scripted"),
        ("local", "install", "--from", LONG),
    ],
)
def test_a_path_that_the_system_refuses_is_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, command: tuple[str, ...]
) -> None:
    monkeypatch.chdir(tmp_path)
    url = with_chat(tmp_path)

    refused = run(*command, ANTIPHON_LEDGER=url, ANTIPHON_CACHE=str(tmp_path))  # no installed model

    assert (refused.exit_code, refused.stderr.count("\n")) == (2, 1), refused.stderr
