"""Build the wheel and the sdist, and prove that each installs and works. Publishing stays by hand.

Run it as `make release`. It changes nothing but `dist/`.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from tools import floors

ROOT = Path(__file__).parents[1]
DIST = ROOT / "dist"
USE = """
import antiphon
from antiphon import check, decode

assert not check(decode([{"role": "user", "content": "Hi"}], "openai-chat"))
print(antiphon.__version__)
"""
LACKING = 'this command needs packages that are not installed: pip install "antiphon[all]"\n'


def try_out(archive: Path, folder: Path) -> str:
    """Install one archive into a new environment, use it there, and return the version that it says it has."""
    python = folder / "bin" / "python"
    floors.run(floors.UV, "venv", "--quiet", "--python", sys.executable, folder)
    floors.run(floors.UV, "pip", "install", "--quiet", "--python", python, f"antiphon[cli] @ {archive.as_uri()}")
    floors.run(folder / "bin" / "antiphon", "--help")
    version = floors.run(python, "-I", "-c", USE).strip()
    lacking = ask(folder)
    if (lacking.returncode, lacking.stderr) != (2, LACKING):
        sys.exit(f"without the extra `agents`, `antiphon run` says:\n{lacking.stdout}{lacking.stderr}")
    floors.run(floors.UV, "pip", "install", "--quiet", "--python", python, f"antiphon[all] @ {archive.as_uri()}")
    answered = ask(folder)
    if answered.returncode or "gave 391" not in answered.stdout:
        sys.exit(f"with the extra `all`, `antiphon run` says:\n{answered.stdout}{answered.stderr}")
    return version


def ask(folder: Path) -> subprocess.CompletedProcess[str]:
    """Ask a question, as a new user does."""
    command = [folder / "bin" / "antiphon", "run", "What is 17 * 23?", "--model", "scripted"]
    return subprocess.run(command, capture_output=True, text=True, check=False, cwd=folder)  # noqa: S603 (our own command)


def main() -> None:
    """Build, check and install both archives."""
    shutil.rmtree(DIST, ignore_errors=True)
    floors.run(sys.executable, "-m", "hatchling", "build", "-d", DIST)
    archives = sorted(DIST.iterdir())
    with tempfile.TemporaryDirectory() as folder:
        for archive in archives:
            version = try_out(archive, Path(folder) / archive.suffix[1:])
            if f"-{version}" not in archive.name:
                sys.exit(f"{archive.name} says that it is version {version}")
            print(f"{archive.relative_to(ROOT)}: installs and works")
    (wheel,) = DIST.glob("*.whl")
    for which in floors.RESOLUTIONS:
        floors.try_out(which, wheel)
    fragments = [path for path in (ROOT / "changelog.d").glob("*.md") if path.name not in {"README.md", "_template.md"}]
    if fragments:
        print(f"changelog.d has {len(fragments)} fragments: `.venv/bin/towncrier build` puts them into CHANGELOG.md first")
    print("To publish: .uv/bin/uv publish dist/*")


if __name__ == "__main__":
    main()
