"""`python -m antiphon`, and the `antiphon` command: the command line if its extra is installed, else what to install."""

import errno
import gc
import os
import sys
from pathlib import Path
from typing import TextIO

__all__ = ["main"]


def readable(arguments: list[str]) -> list[str]:
    """Return the arguments as text. A locale without UTF-8 hides what was typed, and the name of a file may be any bytes."""
    return [_readable(argument) for argument in arguments]


def _readable(argument: str) -> str:
    try:
        argument.encode()
    except UnicodeEncodeError:
        if Path(argument).exists():
            return argument
        try:
            return os.fsencode(argument).decode()
        except UnicodeDecodeError as exc:
            shown = argument.encode("utf-8", "surrogateescape").decode("utf-8", "backslashreplace")
            sys.stderr.write(f"antiphon: an argument is not text in UTF-8: {shown}, byte {exc.start}\n")
            sys.exit(2)
    return argument


def main() -> None:
    """Run the command line."""
    # Python looks for garbage after every 700 new objects. Modules are hundreds of thousands, and none of them is garbage:
    # that was a fifth of the time of a start.
    gc.set_threshold(50_000, 20, 50)
    _open_closed()
    try:
        try:
            from antiphon.cli import app  # noqa: PLC0415 (so that what is missing can be said without a traceback)
        except ModuleNotFoundError as exc:
            sys.exit(f"antiphon: {exc}")
        app(readable(sys.argv[1:]), prog_name="antiphon")
    except KeyboardInterrupt:
        sys.exit(130)  # before a command begins, or after it has told everything
    except RuntimeError as exc:
        if not _is_after_interrupt(exc):
            raise
        sys.exit(130)
    except OSError as exc:
        if exc.errno not in _FULL or exc.filename is not None:
            raise
        sys.stderr.write(f"the output cannot be written: {exc.strerror}\n")
        sys.exit(2)
    finally:
        for stream in (sys.stdout, sys.stderr):
            _finish(stream)


def _is_after_interrupt(error: RuntimeError) -> bool:
    """Whether Ctrl-C came while asyncio closed its loop: asyncio then raises an error of its own, about the stopped loop."""
    return isinstance(error.__context__, KeyboardInterrupt)


def _open_closed() -> None:
    """Open the null device in place of each standard stream that is closed: commands write to them.

    The null device gets the lowest free descriptor, so no file of a command becomes stdin, stdout or stderr.
    """
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        if getattr(sys, name) is None:
            setattr(sys, name, open(os.devnull, mode, encoding="utf-8"))  # noqa: SIM115 (until the process ends)


_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
"""What a write to stdout says, if that is a file on a full disk."""


def _finish(stream: TextIO | None) -> None:
    """Write what is left. What cannot be written is dropped: Python would print an error and exit with a code of its own."""
    if stream is None:
        return
    try:
        stream.flush()
    except (OSError, ValueError):
        os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())


if __name__ == "__main__":
    main()
