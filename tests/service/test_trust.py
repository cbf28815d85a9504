"""What a user trusts: files by their content, folders by their path, in a list that is the user's own."""

import os
from pathlib import Path

import pytest

from antiphon.errors import SetupError
from antiphon.service import distrust, is_trusted_content, trust_content, trust_list, trusted_files
from antiphon.service._trust import is_trusted, trust_file, trust_folder


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    return tmp_path


def test_a_file_is_trusted_with_its_content_and_not_with_another(home: Path) -> None:
    """S1: code runs only from what this user has seen. Another byte is another file; a copy is the same one."""
    team, copy = home / "team.toml", home / "copy.toml"
    team.write_text("a = 1\n")
    assert (is_trusted(team), trusted_files()) == (False, ())
    trusted = trust_file(team)
    copy.write_text("a = 1\n")
    assert (is_trusted(team), is_trusted(copy), is_trusted_content(b"a = 1\n")) == (True, True, True)
    assert (trusted_files(), trusted.path) == ((trusted,), str(team))
    team.write_text("a = 2\n")
    assert not is_trusted(team)
    assert is_trusted(copy)


def test_the_content_that_was_read_is_trusted_not_the_current_file(home: Path) -> None:
    team = home / "team.toml"
    team.write_text("changed = true\n")
    trust_content(b"shown = true\n", team)
    assert not is_trusted(team)
    assert is_trusted_content(b"shown = true\n")


def test_a_folder_is_trusted_by_its_path(home: Path) -> None:
    (home / "pages").mkdir()
    (home / "link").symlink_to(home / "pages")
    trust_folder(home / "link")
    assert is_trusted(home / "pages")
    assert not is_trusted(home)


def test_trust_is_taken_back_for_every_content_that_the_file_had(home: Path) -> None:
    team, odd = home / "team.toml", home / 'an "odd" näme\\ \x7f.toml'
    for text in ("a = 1\n", "a = 2\n"):
        team.write_text(text)
        trust_file(team)
    odd.write_text("b = 1\n")
    trust_file(odd)
    assert len(distrust(team)) == 2
    assert [each.path for each in trusted_files()] == [str(odd)]
    assert distrust(team) == ()


def test_the_list_is_the_user_s_own(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The list is private, and one that others can write, or that is no list, proves nothing. It is not made by reading."""
    team = home / "team.toml"
    team.write_text("a = 1\n")
    assert not is_trusted(team)
    assert not trust_list().exists()
    trust_file(team)
    assert trust_list() == home / "config" / "antiphon" / "trusted.toml"
    assert (trust_list().stat().st_mode & 0o777, trust_list().parent.stat().st_mode & 0o777) == (0o600, 0o700)
    trust_list().chmod(0o620)
    with pytest.raises(SetupError, match="other users can write it"):
        is_trusted(team)
    trust_list().chmod(0o600)
    trust_list().write_text("[[[")
    with pytest.raises(SetupError, match="not a list of trusted files"):
        trust_file(team)
    monkeypatch.setenv("XDG_CONFIG_HOME", "relative")
    assert trust_list() == Path.home() / ".config" / "antiphon" / "trusted.toml"


def test_a_list_that_cannot_be_written_keeps_what_it_has(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    one, two = home / "one.toml", home / "two.toml"
    one.write_text("a = 1\n")
    two.write_text("a = 2\n")
    trust_file(one)

    def full(number: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(SetupError, match="No space left on device"):
        trust_file(two)
    assert [each.path for each in trusted_files()] == [str(one)]
    assert [each.name for each in trust_list().parent.iterdir()] == ["trusted.toml"]


def test_a_missing_file_is_reported(home: Path) -> None:
    with pytest.raises(SetupError, match="No such file"):
        trust_file(home / "none.toml")
