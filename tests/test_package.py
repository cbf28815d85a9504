"""What is shipped: a wheel that works in an environment with nothing but its own dependencies."""

import os
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
USE = """
import antiphon
from antiphon import Message, PartsPayload, TextPart, dumps, loads

message = Message(policy="user", payload=PartsPayload(parts=(TextPart(text="hi"),)))
assert loads(dumps(message)) == message
print(antiphon.__version__, antiphon.__file__)
"""


def run(*command: str | Path, **environment: str) -> str:
    done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=ROOT, env={**os.environ, **environment})
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("dist")
    run(sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", folder)
    (wheel,) = folder.glob("*.whl")
    return wheel


@pytest.mark.slow
def test_the_wheel_works_without_what_we_develop_with(wheel: Path, tmp_path: Path) -> None:
    uv = Path(sys.executable).with_name("uv")
    python = tmp_path / "env" / "bin" / "python"
    run(uv, "venv", "--python", sys.executable, tmp_path / "env")
    run(uv, "pip", "install", "--python", python, wheel)

    printed = run(python, "-I", "-c", USE)
    installed = run(uv, "pip", "freeze", "--python", python)

    assert str(tmp_path) in printed
    assert "hypothesis==" not in installed
    assert len(installed.split()) < 12


@pytest.mark.slow
def test_the_wheel_holds_the_package_and_its_types(wheel: Path) -> None:
    names = zipfile.ZipFile(wheel).namelist()

    assert "antiphon/py.typed" in names
    assert any(name.endswith("licenses/LICENSE") for name in names)
    assert not [name for name in names if name.startswith(("tests", "benchmarks", "docs"))]
