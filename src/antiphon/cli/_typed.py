"""Lines that somebody types, or a pipe gives, waited for so that Ctrl-C ends the wait.

A thread that reads from a terminal cannot be interrupted, and holds up the end of the process until Enter is pressed. So the
event loop says when there is something to read, and it is read without the buffer of `sys.stdin`, which would hide lines from
the loop. A file is always ready, and one in memory has no number; both are simply read.
"""

from __future__ import annotations

import asyncio
import io
import os
import sys

import typer

from antiphon.cli._chains import interruptible

__all__ = ["Typed"]

_MUCH = 65536


class Typed:
    """Stdin, line by line."""

    def __init__(self) -> None:
        self._read = b""
        self._is_ended = False

    async def line(self) -> str | None:
        """Return the next line that is not empty; None at the end, and after Ctrl-C."""
        with interruptible() as interrupted:  # before anybody is asked to type
            if sys.stdin.isatty():
                typer.echo("> ", nl=False, err=True)
            while (line := await self._next(interrupted)) is not None:
                if line.strip():
                    return line.strip()
        return None

    async def _next(self, interrupted: asyncio.Event) -> str | None:
        try:
            number = sys.stdin.fileno()
        except io.UnsupportedOperation:
            return sys.stdin.readline() or None
        while b"\n" not in self._read and not self._is_ended:
            if not await _is_ready(number, interrupted):
                typer.echo(err=True)  # what comes next does not stand behind ^C
                return None
            piece = os.read(number, _MUCH)
            self._read += piece
            self._is_ended = not piece
        line, _, self._read = self._read.partition(b"\n")
        return line.decode(errors="replace") if line or not self._is_ended else None


async def _is_ready(number: int, interrupted: asyncio.Event) -> bool:
    """Wait until there is something to read, or the end of it; False: Ctrl-C was pressed."""
    loop, ready = asyncio.get_running_loop(), asyncio.Event()
    try:
        loop.add_reader(number, ready.set)
    except (NotImplementedError, OSError):  # not on this system, or a file
        return True
    try:
        waiting = [asyncio.ensure_future(event.wait()) for event in (ready, interrupted)]
        await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
        for each in waiting:
            each.cancel()
        return ready.is_set()
    finally:
        loop.remove_reader(number)
