"""Run the documented programs with the lowest versions of all dependencies that `pyproject.toml` admits, or with the newest.

    python -m tools.floors lowest|newest

The wheel is installed as a user installs it, in an environment of its own, `.venv-lowest` or `.venv-newest`. It stays, and is
made again when the requirements change. What runs the programs is chosen afterwards, and changes no version of a dependency.
"""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).parents[1]
UV: Final = os.environ.get("UV", str(ROOT / ".uv" / "bin" / "uv"))
RESOLUTIONS: Final = {"lowest": "lowest-direct", "newest": "highest"}
RUNNERS: Final = ("pytest", "pytest-examples", "pytest-timeout", "pytest-xdist")
SHOWN: Final = ("ag-ui-protocol", "fastapi")
"""Packages of others that documented programs import, beside those of antiphon."""


def run(*command: str | Path) -> str:
    """Run a command, and stop with its output if it fails."""
    done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=ROOT)  # noqa: S603 (our own commands)
    if done.returncode:
        sys.exit(f"{' '.join(map(str, command))}\n{done.stdout}{done.stderr}")
    return done.stdout


def environment(which: str) -> Path:
    """Return the interpreter of the environment with the lowest or the newest versions; make it, if it is not there."""
    folder = ROOT / f".venv-{which}"
    python, stamp = folder / "bin" / "python", folder / "requirements"
    inputs = (ROOT / "pyproject.toml").read_bytes() + Path(__file__).read_bytes() + sys.version.encode()
    wanted = hashlib.sha256(inputs).hexdigest()
    if stamp.exists() and stamp.read_text() == wanted:
        return python
    print(f"setting up .venv-{which} ...", flush=True)
    run(UV, "venv", "--quiet", "--clear", "--python", sys.executable, folder)
    install = (UV, "pip", "install", "--quiet", "--python", python)
    resolution = ("--resolution", RESOLUTIONS[which])
    run(*install, *resolution, "-r", "pyproject.toml", "--extra", "all", *(("--upgrade",) if which == "newest" else ()))
    chosen = folder / "chosen.txt"
    chosen.write_text(run(UV, "pip", "freeze", "--python", python))
    run(*install, "--constraint", chosen, *RUNNERS, *SHOWN)
    stamp.write_text(wanted)
    return python


def try_out(which: str, wheel: Path) -> None:
    """Run the documented programs with a wheel and the lowest or the newest versions; stop if one of them fails."""
    python = environment(which)
    run(UV, "pip", "install", "--quiet", "--python", python, "--no-deps", "--reinstall", wheel)
    # Without the plugins and the set-up of our own tests, which need more than a user has.
    options = ("-q", "-n", "auto", "-p", "no:anyio", "-p", "no:cacheprovider", "--noconftest", "--tb=line")
    said = run(python, "-m", "pytest", *options, "tests/test_docs.py")
    print(f"{which} versions: {said.strip().splitlines()[-1]}")


def build(folder: Path) -> Path:
    """Build the wheel."""
    run(sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", folder)
    return next(folder.glob("*.whl"))


def main(which: str) -> None:
    """Build the wheel, and try it out."""
    if which not in RESOLUTIONS:
        sys.exit(f"python -m tools.floors {'|'.join(RESOLUTIONS)}")
    with tempfile.TemporaryDirectory() as folder:
        try_out(which, build(Path(folder)))


if __name__ == "__main__":
    main(*sys.argv[1:] or ["lowest"])
