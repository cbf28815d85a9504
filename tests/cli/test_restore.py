"""`antiphon export --journal`, `verify --save-heads` and `import --journal`: threads brought back, if heads prove them."""

import asyncio
import json
import signal
import subprocess
import sys
from contextlib import suppress
from pathlib import Path
from shutil import copy
from typing import Any

import pytest
import typer
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.cli.ledgers import append, exchange, text, with_chat, with_ledger
from tests.cli.running import run, said
from tests.forked import Forked

from antiphon import MediaPart
from antiphon.cli._journal import journals
from antiphon.cli._verify import read_heads
from antiphon.errors import RestoreRefusedError
from antiphon.ledger import Head, Ledger, Record, heads_of
from antiphon.ledger.memory import MemoryLedger


@pytest.fixture(scope="module")
def prepared(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The file of a ledger with the threads `chat`, `steps` and `branch`."""
    folder = tmp_path_factory.mktemp("prepared")
    url = with_chat(folder)
    append(url, "steps", *exchange(1, "Oslo"), exchange(2, "Bergen")[0], text("wait", lane="control"), status="running")
    run("fork", "steps", "--at", "3", "--into", "branch", "--ledger", url)
    return folder / "ledger.db"


@pytest.fixture
def url(tmp_path: Path, prepared: Path) -> str:
    """The URL of a copy of it."""
    copy(prepared, tmp_path / "ledger.db")
    return f"sqlite:///{tmp_path}/ledger.db"


def exported(tmp_path: Path, url: str, *names: str) -> tuple[Path, Path]:
    """Return a journal and its heads."""
    journal, heads = tmp_path / "journal.jsonl", tmp_path / "heads.json"
    done = run("export", *names, "--journal", "-o", journal, "--save-heads", heads, "--ledger", url)
    assert done.exit_code == 0, done.stderr
    return journal, heads


def everything(url: str) -> tuple[tuple[Head, ...], list[Record]]:
    async def read(ledger: Ledger) -> tuple[tuple[Head, ...], list[Record]]:
        heads = await heads_of(ledger)
        return heads, [record for head in heads async for record in ledger.read(head.thread_id)]

    return with_ledger(url, read)


@pytest.mark.slow
def test_a_journal_and_its_heads_bring_everything_back(tmp_path: Path, url: str) -> None:
    """G26: the same rows with the same times and hashes; branches, open calls and media too."""
    append(url, "picture", said(MediaPart(modality="image", url=f"data:image/png;base64,{'A' * 20_000}")))
    journal, heads = exported(tmp_path, url)
    again = f"sqlite:///{tmp_path}/again.db"

    done = run("import", journal, "--journal", "--heads", heads, "--json", "--ledger", again)

    assert done.exit_code == 0, done.stderr
    assert [(row["thread_id"], row["messages"], row["open_calls"]) for row in json.loads(done.stdout)] == [
        ("chat", 5, 0),
        ("steps", 4, 1),
        ("branch", 4, 0),
        ("picture", 1, 0),
    ]
    assert everything(again) == everything(url)
    assert run("verify", "--heads", heads, "--ledger", again).exit_code == 0
    for place, file in ((again, "again.json"), (url, "before.json")):
        assert run("verify", "--save-heads", tmp_path / file, "--ledger", place).exit_code == 0
    assert (tmp_path / "again.json").read_text() == (tmp_path / "before.json").read_text()


@pytest.mark.slow
def test_branches_may_stand_before_their_origin(tmp_path: Path, url: str) -> None:
    journal, heads = exported(tmp_path, url, "branch", "steps")
    again = f"sqlite:///{tmp_path}/again.db"

    assert run("import", journal, "--journal", "--heads", heads, "--ledger", again).exit_code == 0
    assert run("verify", "--ledger", again).exit_code == 0


def test_without_heads_nothing_is_restored_and_the_error_says_how_to_get_them(tmp_path: Path, url: str) -> None:
    """S14: a whole chain alone proves nothing."""
    journal, _ = exported(tmp_path, url)

    done = run("import", journal, "--journal", "--ledger", f"sqlite:///{tmp_path}/again.db")

    assert done.exit_code == 1
    assert done.stderr == (
        "thread 'chat': no head is given that proves its rows; run `antiphon verify --save-heads FILE` on the ledger "
        "that has the thread, and keep the file elsewhere\n"
    )
    assert not (tmp_path / "again.db").exists()


@pytest.mark.slow
def test_a_thread_that_is_there_is_left_as_it_is(tmp_path: Path, url: str) -> None:
    """All or nothing: also those that are not there stay away."""
    journal, heads = exported(tmp_path, url)
    assert run("delete", "chat", "--yes", "--ledger", url).exit_code == 0
    before = everything(url)

    done = run("import", journal, "--journal", "--heads", heads, "--ledger", url)

    assert (done.exit_code, done.stderr) == (
        1,
        "thread 'steps': there is such a thread already; delete it, or restore into another ledger\n",
    )
    assert everything(url) == before


@pytest.mark.parametrize("change", ["time", "word", "cut", "more", "swapped", "origin", "other heads", "old heads"])
def test_rows_that_the_heads_do_not_prove_are_refused(tmp_path: Path, url: str, change: str) -> None:
    """S14: one row changed, left out, added or moved; or heads of something else."""
    journal, heads = exported(tmp_path, url, "chat", "steps", "branch")
    lines = journal.read_bytes().splitlines(keepends=True)
    if change == "time":
        lines[2] = lines[2].replace(b'"recorded_at":"20', b'"recorded_at":"19')
    elif change == "word":
        lines[1] = lines[1].replace(b"Oslo", b"Rome")
    elif change == "cut":
        del lines[5]
    elif change == "more":
        lines.insert(6, lines[5].replace(b'"seq":5', b'"seq":6'))
    elif change == "swapped":
        lines[1], lines[2] = lines[2], lines[1]
    elif change == "origin":
        lines = lines[-2:]
    elif change == "other heads":
        heads.write_text(heads.read_text().replace('"hash": "', '"hash": "0'))
    else:
        append(url, "chat", text("and then"))
        run("export", "--journal", "-o", journal, "--ledger", url)
        lines = journal.read_bytes().splitlines(keepends=True)
    journal.write_bytes(b"".join(lines))

    done = run("import", journal, "--journal", "--heads", heads, "--ledger", f"sqlite:///{tmp_path}/again.db")

    assert (done.exit_code, done.stdout) == (1, "")
    assert done.stderr.startswith("thread '")
    assert not (tmp_path / "again.db").exists()


@pytest.mark.parametrize(
    "content",
    ["", "{", "[]", "1", '{"antiphon":1}', '{"antiphon_journal":1}', '{"antiphon_journal":2,"thread_id":"t"}']
    + [
        f'{{"antiphon_journal":1,"thread_id":"t"}}\n{row}'
        for row in ('{"seq":1}', "[]", '{"seq":1,"recorded_at":"x","hash":"","body":""}')
    ]
    + ['{"antiphon_journal":1,"thread_id":"a\\nb"}', '{"antiphon_journal":1,"thread_id":"t","forked_from":"t","forked_at":0}'],
)
def test_a_file_that_is_no_journal_is_refused_in_a_line(tmp_path: Path, content: str) -> None:
    """G21."""
    (tmp_path / "journal.jsonl").write_text(content)
    (tmp_path / "heads.json").write_text('[{"thread_id": "t", "seq": 1, "hash": "00"}]')

    done = run(
        "import",
        tmp_path / "journal.jsonl",
        "--journal",
        "--heads",
        tmp_path / "heads.json",
        "--ledger",
        f"sqlite:///{tmp_path}/l.db",
    )

    assert done.exit_code in (1, 2)
    assert done.stderr.count("\n") == 1
    assert not (tmp_path / "l.db").exists()


@pytest.mark.slow
def test_a_journal_is_no_conversation_and_the_other_way_round(tmp_path: Path, url: str) -> None:
    journal, heads = exported(tmp_path, url, "chat")
    run("export", "chat", "-o", tmp_path / "chat.jsonl", "--ledger", url)

    assert run("import", journal, "--ledger", url).exit_code == 2
    assert run("import", tmp_path / "chat.jsonl", "--journal", "--heads", heads, "--ledger", url).exit_code == 1
    assert run("export", "--journal", "--to", "openai-chat", "--ledger", url).exit_code == 2
    assert run("export", "--save-heads", heads, "--ledger", url).exit_code == 2


def test_media_elsewhere_are_reported(tmp_path: Path, url: str) -> None:
    append(url, "picture", said(MediaPart(modality="image", url="https://example.org/a.png")))

    done = run("export", "picture", "--journal", "-o", tmp_path / "j.jsonl", "--ledger", url)

    assert done.stderr == "media that messages name by URL are not in the file: 1\n"


def test_heads_of_one_thread_can_be_written(tmp_path: Path, url: str) -> None:
    assert run("verify", "chat", "--save-heads", tmp_path / "heads.json", "--ledger", url).exit_code == 0
    rows: list[dict[str, Any]] = json.loads((tmp_path / "heads.json").read_text())

    assert [row["thread_id"] for row in rows] == ["chat"]
    assert run("verify", "nobody", "--save-heads", tmp_path / "heads.json", "--ledger", url).exit_code == 2


@pytest.mark.slow
def test_a_restore_that_is_interrupted_has_restored_all_or_nothing(tmp_path: Path, url: str) -> None:
    """G2: Ctrl-C at some moment, and the same again."""
    for _ in range(5):
        append(url, "long", *(text(f"line {number}") for number in range(400)))
    journal, heads = exported(tmp_path, url)
    whole = everything(url)
    for number, delay in enumerate((0.05, 0.2)):
        target = f"sqlite:///{tmp_path}/{number}.db"
        command = [
            sys.executable,
            "-m",
            "antiphon",
            "import",
            str(journal),
            "--journal",
            "--heads",
            str(heads),
            "--ledger",
            target,
        ]
        with Forked(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as process:
            try:
                process.wait(timeout=delay)
            except subprocess.TimeoutExpired:
                process.send_signal(signal.SIGINT)
            process.wait(timeout=60)
        assert everything(target) in (((), []), whole)
        if everything(target) != whole:
            assert run("import", journal, "--journal", "--heads", heads, "--ledger", target).exit_code == 0
        assert everything(target) == whole


@pytest.fixture(scope="module")
def journal_of_chat(prepared: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, bytes, tuple[Head, ...]]:
    """A file for a journal, what is in it, and its heads."""
    journal, heads = exported(tmp_path_factory.mktemp("journal"), f"sqlite:///{prepared}", "chat")
    return journal, journal.read_bytes(), read_heads(heads)


@pytest.mark.slow
@given(data=st.data())
@settings(max_examples=300)
def test_no_changed_byte_of_a_journal_is_restored(
    journal_of_chat: tuple[Path, bytes, tuple[Head, ...]], data: st.DataObject
) -> None:
    """S14, G21: whatever is changed, the rows are those that the head proves, or there are none."""
    path, whole, heads = journal_of_chat
    changed = bytearray(whole)
    changed[data.draw(st.integers(0, len(whole) - 1))] = data.draw(st.integers(0, 255))
    path.write_bytes(changed)
    ledger = MemoryLedger()

    with suppress(typer.Exit, RestoreRefusedError, ValueError):
        asyncio.run(ledger.restore(list(journals(path)), heads))

    assert asyncio.run(heads_of(ledger)) in ((), heads)
