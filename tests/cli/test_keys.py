"""`antiphon key`, `delete --keep-chain`, signed heads, and encrypted threads in the other commands (S7, S14)."""

import json
import sqlite3
from pathlib import Path

import pytest
from tests.cli.ledgers import append, text
from tests.cli.running import run

pytest.importorskip("apsw")
pytest.importorskip("cryptography")

WORD = "kanarie7c1f"


@pytest.fixture
def url(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """A ledger with an encrypted thread `secret`, whose key the environment names."""
    assert run("key", "make", tmp_path / "master.key").exit_code == 0
    monkeypatch.setenv("ANTIPHON_KEY_FILE", str(tmp_path / "master.key"))
    url = f"sqlite:///{tmp_path}/ledger.db"
    append(url, "secret", text(f"the word is {WORD}"), text("and more"))
    return url


def test_a_key_is_written_once_and_for_its_owner_alone(tmp_path: Path) -> None:
    done = run("key", "make", tmp_path / "master.key")
    assert (done.exit_code, (tmp_path / "master.key").stat().st_mode & 0o777) == (0, 0o600)
    assert (tmp_path / "master.key").read_text().strip() not in done.stdout + done.stderr
    before = (tmp_path / "master.key").read_text()
    again = run("key", "make", tmp_path / "master.key")
    assert (again.exit_code, (tmp_path / "master.key").read_text()) == (2, before)
    assert again.stderr == f"{tmp_path}/master.key is there already; a key is written to a new file\n"
    assert run("key", "make", tmp_path / "none" / "master.key").exit_code == 2


@pytest.mark.slow
def test_commands_read_with_the_key_and_not_without(url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert WORD in run("show", "secret", "--ledger", url).stdout
    assert WORD.encode() not in b"".join(each.read_bytes() for each in tmp_path.iterdir())
    found = run("search", WORD, "--ledger", url)
    assert "not searched, because they are encrypted: 1 threads" in found.stderr
    assert run("search", WORD, "--thread", "secret", "--ledger", url).exit_code == 2
    assert "1 threads, 0 of them forgotten" in run("doctor", "--ledger", url).stdout

    monkeypatch.delenv("ANTIPHON_KEY_FILE")
    unread = run("show", "secret", "--ledger", url)
    assert (unread.exit_code, len(unread.stderr.splitlines())) == (2, 1)
    assert "no master key is given; set ANTIPHON_KEY_FILE" in unread.stderr
    assert "(encrypted)" in run("threads", "--ledger", url).stdout
    assert run("verify", "--ledger", url).exit_code == 0

    run("key", "make", tmp_path / "other.key")
    before = (tmp_path / "ledger.db").read_bytes()
    monkeypatch.setenv("ANTIPHON_KEY_FILE", str(tmp_path / "other.key"))
    for command in (("threads",), ("show", "secret"), ("delete", "secret", "--yes")):
        refused = run(*command, "--ledger", url)
        assert (refused.exit_code, len(refused.stderr.splitlines())) == (2, 1)
        assert "is not the one that wraps its keys" in refused.stderr
    assert (tmp_path / "ledger.db").read_bytes() == before
    (tmp_path / "other.key").chmod(0o644)
    assert "run `chmod 600` on it" in run("threads", "--ledger", url).stderr


def test_a_ledger_that_is_not_encrypted_has_no_keys_to_rotate(tmp_path: Path) -> None:
    append(f"sqlite:///{tmp_path}/ledger.db", "plain", text("hello"))
    assert run("key", "make", tmp_path / "new.key").exit_code == 0
    done = run("key", "rotate", tmp_path / "new.key", "--ledger", tmp_path / "ledger.db")
    assert (done.exit_code, done.stderr) == (2, "the ledger is not encrypted: there are no keys to wrap\n")


@pytest.mark.slow
def test_rotated_keys_need_the_new_master_key(url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run("key", "make", tmp_path / "new.key")
    assert run("key", "rotate", tmp_path / "none.key", "--ledger", url).exit_code == 2
    done = run("key", "rotate", tmp_path / "new.key", "--ledger", url)
    assert (done.exit_code, done.stderr.startswith("re-encrypted 1 keys")) == (0, True)
    assert run("show", "secret", "--ledger", url).exit_code == 2
    monkeypatch.setenv("ANTIPHON_KEY_FILE", str(tmp_path / "new.key"))
    assert WORD in run("show", "secret", "--ledger", url).stdout


@pytest.mark.slow
def test_a_thread_is_forgotten_with_its_branches_after_a_question(url: str) -> None:
    append(url, "other", text("stays"))
    assert run("fork", "secret", "--at", "1", "--into", "branch", "--ledger", url).exit_code == 0
    alone = run("delete", "--keep-chain", "secret", "--yes", "--ledger", url)
    assert (alone.exit_code, "branch; with --with-branches they are deleted too" in alone.stderr) == (1, True)
    asked = run("delete", "--keep-chain", "secret", "--with-branches", "--ledger", url)
    assert (asked.exit_code, "nothing is deleted" in asked.stderr) == (1, True)
    assert WORD in run("show", "secret", "--ledger", url).stdout

    done = run("delete", "--keep-chain", "secret", "--with-branches", "--yes", "--ledger", url)
    assert (done.exit_code, done.stdout.split()) == (0, ["branch", "secret"])
    for command in (
        ("show", "secret"),
        ("show", "branch"),
        ("delete", "--keep-chain", "secret", "--yes"),
        ("export", "secret"),
    ):
        refused = run(*command, "--ledger", url)
        assert (refused.exit_code, len(refused.stderr.splitlines())) == (2, 1)
        assert "its key was forgotten, and its messages cannot be read any more" in refused.stderr
    assert "(forgotten)" in run("threads", "--ledger", url).stdout
    assert "stays" in run("show", "other", "--ledger", url).stdout
    assert run("verify", "--ledger", url).exit_code == 0


def test_a_plain_thread_has_no_key_to_forget(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/ledger.db"
    append(url, "plain", text("hello"))
    done = run("delete", "--keep-chain", "plain", "--ledger", url)  # it is said before anything is asked
    said = "thread 'plain': it is not encrypted, so there is no key to forget; delete it instead\n"
    assert (done.exit_code, done.stderr) == (2, said)


@pytest.mark.slow
def test_a_journal_stays_encrypted_and_is_restored_with_the_key(url: str, tmp_path: Path) -> None:
    journal, heads = tmp_path / "journal.jsonl", tmp_path / "heads.json"
    assert run("export", "secret", "--journal", "-o", journal, "--save-heads", heads, "--ledger", url).exit_code == 0
    assert WORD not in journal.read_text()
    copy = f"sqlite:///{tmp_path}/copy.db"
    done = run("import", journal, "--journal", "--heads", heads, "--ledger", copy)
    assert done.exit_code == 0, done.stderr
    assert WORD in run("show", "secret", "--ledger", copy).stdout
    assert run("verify", "--heads", heads, "--ledger", copy).exit_code == 0


# ---------------------------------------------------------------- signed heads


def test_signed_heads_prove_themselves_and_find_a_cut_tail_s14(url: str, tmp_path: Path) -> None:
    signing, heads = tmp_path / "heads.key", tmp_path / "heads.json"
    assert run("key", "make", signing, "--signing").exit_code == 0
    public = tmp_path / "heads.key.pub"
    assert run("verify", "--save-heads", heads, "--sign", signing, "--ledger", url).exit_code == 0
    assert run("verify", "--heads", heads, "--signer", public, "--ledger", url).exit_code == 0
    assert "--signer PUB checks whose key that is" in run("verify", "--heads", heads, "--ledger", url).stderr

    # Cut the tail as an attacker can who writes the file: the remaining chain is valid.
    file = sqlite3.connect(tmp_path / "ledger.db")
    file.executescript(
        """
DELETE FROM messages WHERE seq = 2;
UPDATE threads SET seq = 1, run = 1, hash = (SELECT hash FROM messages WHERE seq = 1);
"""
    )
    file.close()
    cut = run("verify", "--heads", heads, "--signer", public, "--ledger", url)
    assert (cut.exit_code, "it had 2 messages once, and has 1" in cut.stdout) == (1, True)

    # Nor can the head be changed to fit: the signature is of the heads as they were.
    value = json.loads(heads.read_text())
    value["heads"][0]["seq"] = 1
    heads.write_text(json.dumps(value))
    forged = run("verify", "--heads", heads, "--ledger", url)
    assert (forged.exit_code, "they were altered after they were signed" in forged.stderr) == (1, True)


def test_heads_of_another_key_or_without_a_signature_are_refused(url: str, tmp_path: Path) -> None:
    for name in ("one", "two"):
        run("key", "make", tmp_path / name, "--signing")
    heads, plain = tmp_path / "heads.json", tmp_path / "plain.json"
    run("verify", "--save-heads", heads, "--sign", tmp_path / "one", "--ledger", url)
    run("verify", "--save-heads", plain, "--ledger", url)
    other = run("verify", "--heads", heads, "--signer", tmp_path / "two.pub", "--ledger", url)
    assert (other.exit_code, f"and not by the key of {tmp_path}/two.pub" in other.stderr) == (1, True)
    unsigned = run("verify", "--heads", plain, "--signer", tmp_path / "one.pub", "--ledger", url)
    assert (unsigned.exit_code, "plain.json: not signed" in unsigned.stderr) == (1, True)
    assert run("verify", "--sign", tmp_path / "one", "--ledger", url).exit_code == 2
    no_key = run("verify", "--save-heads", tmp_path / "x", "--sign", tmp_path / "master.key", "--ledger", url)
    assert (no_key.exit_code, "holds no key for signatures" in no_key.stderr) == (2, True)
