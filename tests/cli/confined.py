"""Runs a shell with a disk or with rights of its own: `python -m tests.cli.confined HOW SCENE`, in a folder of its own.

HOW is `disk`: the scene may mount disks, which nobody else sees; or `modes`: the modes of files bind it, also as root.
The scene is for bash. `antiphon` in it is the command, which is forked from this process and has its disks and rights.
"""

import ctypes
import os
import sys
from pathlib import Path

from tests.forked import serve_beside, shell_command

_LIBC = ctypes.CDLL(None, use_errno=True)
_NEW_USERS, _NEW_DISKS, _PRIVATE = 0x10000000, 0x00020000, 0x44000
_OVERRIDE_MODES = 1
"""The capability CAP_DAC_OVERRIDE."""
_DROP_FROM_BOUNDS = 24


def _own_disks() -> None:
    user, group = os.getuid(), os.getgid()
    _done(_LIBC.unshare(_NEW_USERS | _NEW_DISKS))
    Path("/proc/self/setgroups").write_text("deny")
    Path("/proc/self/uid_map").write_text(f"0 {user} 1")
    Path("/proc/self/gid_map").write_text(f"0 {group} 1")
    _done(_LIBC.mount(b"none", b"/", None, _PRIVATE, None))


def _bound_by_modes() -> None:
    if os.geteuid():
        return
    header = (ctypes.c_uint32 * 2)(0x20080522, 0)
    sets = (ctypes.c_uint32 * 6)()  # effective, permitted, inheritable: the lower half, then the upper
    _done(_LIBC.capget(header, sets))
    for number in range(3):
        sets[number] &= ~(1 << _OVERRIDE_MODES)
    _done(_LIBC.prctl(_DROP_FROM_BOUNDS, _OVERRIDE_MODES, 0, 0, 0))  # a program that root starts has all within bounds
    _done(_LIBC.capset(header, sets))


def _done(result: int) -> None:
    if result:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))


def main(how: str, scene: str) -> None:
    folder = Path.cwd()
    {"disk": _own_disks, "modes": _bound_by_modes}[how]()
    commands = folder / "commands"
    commands.mkdir(exist_ok=True)
    server = commands / str(os.getpid())  # the one of an earlier scene may still be about to end
    shell_command(commands / "antiphon", server=server)
    serve_beside(server)
    os.execvpe("bash", ["bash", "-c", scene], {**os.environ, "PATH": f"{commands}:{os.environ['PATH']}"})


if __name__ == "__main__":
    main(*sys.argv[1:])
