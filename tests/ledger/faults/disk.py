"""A disk that can lose power: every operation of SQLite is written down, and can be undone as a power cut would.

What was synced is there. What was written since may be there, or not, or in part: by sectors of 512 bytes, in any
combination. That a file is gone is sure when its folder was synced, which SQLite does when it first syncs a new journal.
A sync that failed is worse than none: what it should have written stays visible to everybody, and no later sync brings
it to the disk, as Linux does it; only writing it again does.
"""

import shutil
import tempfile
from collections.abc import Callable, Iterator
from itertools import count
from pathlib import Path
from random import Random
from typing import Any, NamedTuple

import apsw

SECTOR = 512


class Op(NamedTuple):
    """Something that was done to a file."""

    kind: str
    """write, truncate, sync, unsynced (a sync that failed), delete, folder (a sync of the folder)."""
    file: str
    offset: int = 0
    data: bytes = b""


class Disk:
    """Files in memory, reached through a VFS, with a log of what was done to them and faults to come."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.folder = Path(tempfile.mkdtemp(dir="/dev/shm" if Path("/dev/shm").is_dir() else None))
        self.log: list[Op] = []
        self.fault: Callable[[str, str], Exception | None] = lambda kind, file: None
        """Asked before each write and sync: an exception to raise instead."""
        self._vfs = _Vfs(self)

    def path(self, name: str = "ledger.db") -> Path:
        return self.folder / name

    def close(self) -> None:
        self._vfs.unregister()
        shutil.rmtree(self.folder, ignore_errors=True)

    def cuts(self, seeds: int, most: int | None = None) -> Iterator[tuple[int, dict[str, bytes]]]:
        """Yield what is on the disk after a power cut: after each operation, so many times with other luck.

        `most`: only so many, spread evenly over all of them.
        """
        total = len(self.log) * seeds
        wanted = total if most is None else min(most, total)
        numbers = count(wanted - 1, wanted)
        durable: dict[str, bytes] = {}
        pending: dict[str, list[Op]] = {}
        doomed: dict[str, list[Op]] = {}
        for place, op in enumerate(self.log, start=1):
            _take(op, durable, pending, doomed)
            for seed in (each for each in range(seeds) if next(numbers) % total < wanted):
                yield place, _image(durable, pending, Random(f"{place} {seed}") if seed > 1 else None, keep=seed == 1)


def _take(op: Op, durable: dict[str, bytes], pending: dict[str, list[Op]], doomed: dict[str, list[Op]]) -> None:
    if op.kind == "folder":
        for file, ops in pending.items():
            if deletions := [place for place, each in enumerate(ops) if each.kind == "delete"]:
                durable.pop(file, None)
                del ops[: deletions[-1] + 1]
        return
    waiting = pending.setdefault(op.file, [])
    if op.kind == "sync":
        content: bytes | None = durable.get(op.file, b"")
        for each in waiting:
            if each not in doomed.get(op.file, ()):
                content = _applied(content, each)
        waiting.clear()
        if content is None:
            durable.pop(op.file, None)
        else:
            durable[op.file] = content
    elif op.kind == "unsynced":
        doomed.setdefault(op.file, []).extend(waiting)
        waiting.clear()
    else:
        waiting.append(op)


def _applied(content: bytes | None, op: Op) -> bytes | None:
    content = content or b""
    if op.kind == "delete":
        return None
    if op.kind == "truncate":
        return content[: op.offset].ljust(op.offset, b"\0")
    end = op.offset + len(op.data)
    return content[: op.offset].ljust(op.offset, b"\0") + op.data + content[end:]


def _image(durable: dict[str, bytes], pending: dict[str, list[Op]], luck: Random | None, *, keep: bool) -> dict[str, bytes]:
    image: dict[str, bytes] = {}
    for file in durable.keys() | pending.keys():
        content: bytes | None = durable.get(file)
        for op in pending.get(file, ()):
            for part in _survivors(op, luck, keep):
                content = _applied(content, part)
        if content is not None:
            image[file] = content
    return image


def _survivors(op: Op, luck: Random | None, keep: bool) -> list[Op]:
    """Return what is left of an operation that was not synced."""
    if luck is None:
        return [op] if keep else []
    fate = luck.random()
    if fate < 0.4:
        return [op]
    if fate < 0.7 or op.kind != "write":
        return []
    first = SECTOR - op.offset % SECTOR
    starts = [0, *range(first, len(op.data), SECTOR)]
    pieces = [
        Op("write", op.file, op.offset + a, op.data[a:b]) for a, b in zip(starts, [*starts[1:], len(op.data)], strict=True)
    ]
    return [piece for piece in pieces if luck.random() < 0.5]


class _Vfs(apsw.VFS):
    def __init__(self, disk: Disk) -> None:
        self._disk = disk
        super().__init__(disk.name, "")

    def xOpen(self, name: Any, flags: list[int]) -> Any:
        if name is None:
            return super().xOpen(name, flags)
        return _File(self._disk, name, flags)

    def xDelete(self, filename: str, syncdir: bool) -> None:
        super().xDelete(filename, syncdir)
        file = Path(filename).name
        self._disk.log.append(Op("delete", file))
        if syncdir:
            self._disk.log.append(Op("folder", file))


class _File(apsw.VFSFile):
    def __init__(self, disk: Disk, name: Any, flags: list[int]) -> None:
        self._disk = disk
        path = Path(name if isinstance(name, str) else name.filename())
        self._file = path.name
        self._is_new = not path.exists() and not self._file.endswith(".db")
        super().__init__("", name, flags)

    def excepthook(self, *exc: Any) -> None:
        """Keep quiet about a fault where SQLite has nobody to tell, as when it closes a file."""

    def xWrite(self, data: bytes, offset: int) -> None:
        if fault := self._disk.fault("write", self._file):
            raise fault
        super().xWrite(data, offset)
        self._disk.log.append(Op("write", self._file, offset, bytes(data)))

    def xTruncate(self, newsize: int) -> None:
        super().xTruncate(newsize)
        self._disk.log.append(Op("truncate", self._file, newsize))

    def xSync(self, flags: int) -> None:
        if fault := self._disk.fault("sync", self._file):
            self._disk.log.append(Op("unsynced", self._file))
            raise fault
        self._disk.log.append(Op("sync", self._file))
        if self._is_new:
            self._disk.log.append(Op("folder", self._file))
            self._is_new = False
