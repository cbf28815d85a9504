"""A disk that becomes full in the middle of a run: a real one, of a few hundred kilobytes, in a namespace of its own."""

import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from tests import forked
from tests.cli.running import PLAIN

pytest.importorskip("apsw")

ON_SMALL_DISK = ("unshare", "--map-root-user", "--mount", "/bin/bash", "-c")
TEAM = """
pattern = "peers"
model = "scripted:script.toml"
[[agents]]
name = "ada"
role = "leader"
tools = ["calculator"]
"""
CALL = '{ calls = [{ tool = "calculator", arguments = { expression = "17*23" } }] }'
SCRIPT = f'turns = [{", ".join([CALL] * 40)}, {{ text = "it is {{result}}" }}]'
SCENE = """
set -e
mount -t tmpfs -o size=20M none small
cp team.toml script.toml chat.json small
cd small
antiphon import chat.json
head -c $(($(df --output=avail -B1 . | tail -1) - ROOM)) /dev/zero > fill
antiphon run RUN --name t1 || echo "run: exit code $?"
antiphon threads | grep "^t1"
antiphon status t1 | grep status
rm fill
antiphon resume t1
antiphon verify
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    able = (
        shutil.which("unshare") and subprocess.run([*ON_SMALL_DISK, "true"], capture_output=True, check=False).returncode == 0
    )
    if not able:
        pytest.skip("no disk can be mounted here: unshare --map-root-user --mount is not allowed")
    (tmp_path / "small").mkdir()
    (tmp_path / "team.toml").write_text(TEAM)
    (tmp_path / "script.toml").write_text(SCRIPT)
    (tmp_path / "chat.json").write_text('[{"role": "user", "content": "Hello"}]')
    return tmp_path


@pytest.mark.slow
@pytest.mark.parametrize(
    ("words", "room", "answer"),
    [
        ('"What is 17 * 23?" --model scripted', 420_000, "calculator(expression='17 * 23') gave 391"),
        ('--team team.toml "Calculate."', 420_000, "it is 391"),
    ],
    ids=["six phases", "team"],
)
def test_a_run_on_a_full_disk_is_stopped_and_goes_on_when_there_is_space(
    folder: Path, words: str, room: int, answer: str
) -> None:
    """It is said once, with what to do; nothing is done twice, and nothing is lost."""
    scene = SCENE.replace("ROOM", str(room)).replace("RUN", words)
    done = forked.run([sys.executable, "-m", "tests.cli.confined", "disk", scene], cwd=folder, env=PLAIN, text=True)

    assert "run: exit code 4\n" in done.stdout, done.stderr
    assert done.stderr.count("there is no space left for 'antiphon.db'; make some, then try again") == 1
    assert "\nstopped: there is no space left" in done.stderr
    assert "resume t1\n" in done.stderr.partition("nothing is lost; when that is put right,")[2]
    assert done.returncode == 0, done.stderr
    assert answer in done.stdout
    assert "thread t1: completed" in done.stderr
    assert done.stdout.endswith("no damage found\n")
    assert "Traceback" not in done.stderr
    listed, status = done.stdout.splitlines()[3:5]
    assert (listed.split()[:2], status.split()) == (["t1", "stopped"], ["status", "stopped"])
