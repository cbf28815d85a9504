"""Output files: whole or not at all, with the old one kept; which existing files a command replaces."""

import os
from pathlib import Path

import pytest
from tests.cli.ledgers import with_chat
from tests.cli.running import CHAT, run, save


@pytest.fixture
def url(tmp_path: Path) -> str:
    return with_chat(tmp_path)


@pytest.mark.parametrize(
    ("first", "other"),
    [
        (("export",), ("export", "--journal")),
        (("export", "--journal"), ("export",)),
        (("export", "--to", "marsys"), ("export",)),
        (("export", "--trajectories"), ("export", "--journal")),
    ],
    ids=" ".join,
)
def test_an_earlier_output_is_replaced_and_another_file_is_not(
    first: tuple[str, ...], other: tuple[str, ...], tmp_path: Path, url: str
) -> None:
    out = tmp_path / "out"
    for _ in range(2):
        assert run(*first, "-o", out, "--ledger", url).exit_code == 0
    written = out.read_bytes()
    refused = run(*other, "-o", out, "--ledger", url)
    assert (refused.exit_code, out.read_bytes()) == (2, written)
    assert "there is a file of another kind; --force replaces it" in refused.stderr
    assert run(*other, "-o", out, "--force", "--ledger", url).exit_code == 0
    assert out.read_bytes() != written


@pytest.mark.parametrize("command", [("convert", "--to", "openai-chat"), ("repair", "--to", "openai-chat")], ids=" ".join)
def test_a_conversion_replaces_an_earlier_one_and_no_other_file(command: tuple[str, ...], tmp_path: Path) -> None:
    chat, out = save(tmp_path / "chat.json", CHAT), tmp_path / "out.json"
    for _ in range(2):
        assert run(*command, chat, "--from", "marsys", "-o", out).exit_code == 0
    for others in (b"Buy milk.", b'{"shopping": ["milk"]}', b"\xff\xfe\x00", b'{"antiphon":1}\n{"x":1}\n'):
        out.write_bytes(others)
        assert run(*command, chat, "--from", "marsys", "-o", out).exit_code == 2
        assert out.read_bytes() == others
    out.write_bytes(b"\n")
    assert run(*command, chat, "--from", "marsys", "-o", out).exit_code == 0


@pytest.mark.slow
def test_heads_are_saved_over_heads_only(tmp_path: Path, url: str) -> None:
    out = tmp_path / "heads.json"
    out.write_text("Buy milk.")
    for command in (("verify",), ("export", "--journal", "-o", tmp_path / "j")):
        assert run(*command, "--save-heads", out, "--ledger", url).exit_code == 2
        assert out.read_text() == "Buy milk."
    assert run("verify", "--save-heads", out, "--force", "--ledger", url).exit_code == 0
    assert run("verify", "--save-heads", out, "--ledger", url).exit_code == 0


def test_a_link_stays_and_the_permissions_of_the_file_stay(tmp_path: Path, url: str) -> None:
    real, link = tmp_path / "real.jsonl", tmp_path / "link.jsonl"
    real.touch()
    real.chmod(0o640)
    link.symlink_to(real)
    assert run("export", "-o", link, "--ledger", url).exit_code == 0
    assert link.is_symlink()
    assert real.read_bytes().startswith(b'{"antiphon":')
    assert real.stat().st_mode & 0o777 == 0o640


def test_a_new_file_has_the_permissions_that_the_user_s_mask_gives(tmp_path: Path, url: str) -> None:
    before = os.umask(0o027)
    try:
        assert run("export", "-o", tmp_path / "out", "--ledger", url).exit_code == 0
    finally:
        os.umask(before)
    assert (tmp_path / "out").stat().st_mode & 0o777 == 0o640


def test_a_folder_is_no_output(tmp_path: Path, url: str) -> None:
    done = run("export", "-o", tmp_path, "--ledger", url)
    assert (done.exit_code, done.stderr) == (2, f"{tmp_path}: it is a folder; name a file in it\n")
