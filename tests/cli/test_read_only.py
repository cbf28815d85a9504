"""Ledgers that may only be read: by the mode of the file and of its folder, and with a log that a killed process has left."""

import asyncio
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests import forked
from tests.cli.ledgers import text, with_chat
from tests.cli.running import PLAIN

from antiphon.errors import LedgerUnavailableError
from antiphon.ledger import open_ledger

pytest.importorskip("apsw")

READS = """
set -e
for read in "threads" "show chat" "status chat" "export chat" "verify --save-heads heads.json"; do
  antiphon $read --ledger kept/ledger.db
done
antiphon pause chat --ledger kept/ledger.db || echo "exit code $?"
"""


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[Path]:
    kept = tmp_path / "kept"
    kept.mkdir()
    with_chat(kept)
    yield tmp_path
    kept.chmod(0o755)


def protect(kept: Path, mode: int) -> None:
    for file in kept.iterdir():
        file.chmod(0o444)
    kept.chmod(mode)


def bound(folder: Path, scene: str) -> subprocess.CompletedProcess[str]:
    """Run a scene of the shell whom the modes of files bind, also as root."""
    return forked.run([sys.executable, "-m", "tests.cli.confined", "modes", scene], cwd=folder, env=PLAIN, text=True)


@pytest.mark.slow
@pytest.mark.parametrize("mode", [0o755, 0o555], ids=["file", "folder"])
def test_a_ledger_that_may_only_be_read_is_read(folder: Path, mode: int) -> None:
    protect(folder / "kept", mode)
    before = sorted(each.name for each in (folder / "kept").iterdir())

    done = bound(folder, READS)

    assert "threads: 1, messages: 5; no damage found" in done.stdout
    assert done.stdout.count("Is it warm in Oslo?") == 3  # the table, the transcript, the export
    assert done.stdout.endswith("exit code 2\n")
    assert "cannot be written to: attempt to write a readonly database; look at who may write the file" in done.stderr
    assert len(done.stderr.splitlines()) == 1
    assert sorted(each.name for each in (folder / "kept").iterdir()) == before  # nothing is left beside it


@pytest.mark.slow
def test_a_log_that_a_killed_process_has_left_is_read_too(folder: Path) -> None:
    """What is only in the log is not ignored; where it cannot be read, that is said."""

    async def leave_log() -> None:
        async with open_ledger(f"sqlite:///{folder}/kept/ledger.db") as ledger:
            await ledger.append("late", [text("in the log")])
            for end in ("", "-wal", "-shm"):  # as a kill would leave them: closing copies the log into the file
                shutil.copy(folder / f"kept/ledger.db{end}", folder / f"ledger.db{end}")

    asyncio.run(leave_log())
    shutil.rmtree(folder / "kept")
    (folder / "kept").mkdir()
    for end in ("", "-wal", "-shm"):
        shutil.move(folder / f"ledger.db{end}", folder / f"kept/ledger.db{end}")
    protect(folder / "kept", 0o555)
    command = "antiphon show late --ledger kept/ledger.db"

    whole = bound(folder, command)
    (folder / "kept").chmod(0o755)
    (folder / "kept/ledger.db-shm").unlink()
    (folder / "kept").chmod(0o555)
    without = bound(folder, command)

    assert (whole.returncode, "in the log" in whole.stdout) == (0, True)
    assert (without.returncode, without.stdout) == (2, "")
    assert without.stderr == (
        "the log 'kept/ledger.db-wal' cannot be read in a folder that cannot be written; "
        "copy both files to another folder, and read them there\n"
    )


@pytest.mark.slow
@pytest.mark.parametrize("mode", [0o755, 0o555], ids=["file", "folder"])
def test_a_ledger_that_may_only_be_read_is_backed_up(folder: Path, mode: int) -> None:
    """It said that the copy could not be written: "attempt to write a readonly database"."""
    protect(folder / "kept", mode)

    done = bound(folder, "antiphon backup copy.db --ledger kept/ledger.db && antiphon verify --ledger copy.db")

    assert done.returncode == 0, done.stderr
    assert "threads: 1, messages: 5; no damage found" in done.stdout


@pytest.mark.slow
def test_a_backup_to_a_folder_that_cannot_be_written_says_what_to_do(folder: Path) -> None:
    protect(folder / "kept", 0o555)

    done = bound(folder, "antiphon backup kept/copy.db --ledger kept/ledger.db")

    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith("the backup 'kept/copy.db' cannot be written: ")
    assert done.stderr.endswith("; choose a folder that this process may write\n")


async def test_a_program_reads_and_is_refused_when_it_writes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """For root as well, where `access` says so: on a disk that is mounted read-only."""
    url = f"sqlite:///{tmp_path}/ledger.db"
    async with open_ledger(url) as ledger:
        await ledger.append("t", [text("kept")])
    monkeypatch.setattr(os, "access", lambda path, mode: mode != os.W_OK)

    async with open_ledger(url, create=False) as ledger:
        assert [record.message.parts async for record in ledger.read("t")] == [text("kept").parts]
        with pytest.raises(LedgerUnavailableError, match="cannot be written to"):
            await ledger.append("t", [text("more")])
        assert (await ledger.head("t")).seq == 1
