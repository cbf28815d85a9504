"""A file system in a file, whose power is cut: what was not written through to the file is gone (F3). It needs root."""

import os
import shutil
import signal
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from tests.postgres import Server

_SIZE = "600M"


class Image:
    """A mounted file system in a file."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._file = folder / "0.img"
        self._cuts = 0
        self.mounted = folder / "mounted"

    def make(self) -> None:
        self.mounted.mkdir()
        _run("truncate", "-s", _SIZE, str(self._file))
        _run("mkfs.ext4", "-q", "-F", str(self._file))
        self._mount()

    def _mount(self) -> None:
        _run("mount", "-o", "loop", str(self._file), str(self.mounted))
        self.mounted.chmod(0o755)

    def cut_power(self, server: Server) -> None:
        """Stop everything in the middle of its work, and mount the file as it is at that moment instead.

        What only the memory of the machine holds is not in the copy, as after a power cut.
        """
        processes = _processes(server)
        for each in processes:
            os.kill(each, signal.SIGSTOP)
        self._cuts += 1
        before, self._file = self._file, self._folder / f"{self._cuts}.img"
        _run("cp", "--sparse=always", str(before), str(self._file))
        for each in processes:
            os.kill(each, signal.SIGKILL)
        self.unmount()
        before.unlink()
        self._mount()
        for each in (*server.data.glob("postmaster.pid"), *server.data.glob(".s.PGSQL.*")):
            each.unlink()  # after a real cut, no process has the number that they name

    def unmount(self) -> None:
        """Unmount it; the killed processes may take a moment to let go."""
        for _ in range(100):
            if not subprocess.run(["umount", str(self.mounted)], capture_output=True, timeout=60, check=False).returncode:
                return
            subprocess.run(["sleep", "0.1"], timeout=60, check=True)
        raise AssertionError(f"{self.mounted} is still in use")


def _processes(server: Server) -> list[int]:
    """Return the process of a server, and those that it has started: the first one first, so that it starts no others."""
    first = int((server.data / "postmaster.pid").read_text().split()[0])
    os.kill(first, signal.SIGSTOP)
    found = [first]
    for each in Path("/proc").glob("[0-9]*/stat"):
        with suppress(OSError):
            parent = int(each.read_text().rpartition(")")[2].split()[1])
            if parent == first:
                found.append(int(each.parent.name))
    return found


def _run(*words: str) -> None:
    done = subprocess.run(words, capture_output=True, text=True, timeout=120, check=False)
    assert not done.returncode, f"{words}: {done.stderr}"


@contextmanager
def mounted_image() -> Iterator[Image]:
    """Mount a new file system, and unmount it at the end."""
    folder = Path(tempfile.mkdtemp(prefix="antiphon-image-"))
    folder.chmod(0o755)  # the server is another user
    image = Image(folder)
    try:
        image.make()
        yield image
    finally:
        image.unmount()
        shutil.rmtree(folder)
