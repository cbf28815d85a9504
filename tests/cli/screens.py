"""What a person sees: a terminal of some size, with the command in it, as text and as a picture.

`Screen` understands what Rich and prompt_toolkit write: text, colours, and moves of the cursor. Lines that leave the top are
kept, as a terminal's scroll-back has them.
"""

import fcntl
import io
import os
import pty
import re
import select
import struct
import subprocess
import sys
import termios
import time
from collections.abc import Callable
from itertools import groupby
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from rich.console import Console
from rich.text import Text
from tests import forked
from tests.cli.running import COMMAND, PLAIN

_PIECE = re.compile(
    r"\x1b\[(?P<args>[?>=]?[\d;]*)(?P<verb>[A-Za-z])|\x1b\][^\x07\x1b]*(?:\x07|\x1b\\)|\x1b[=>78c]|(?P<other>.)", re.DOTALL
)
_CUT = re.compile(r"\x1b(\[[?>=]?[\d;]*|\][^\x07\x1b]*)?$")
"""A sequence whose end is still to come."""
_FONT = re.compile(r"\s*@font-face \{.*?\}", re.DOTALL)


class Screen:
    """A terminal's picture."""

    def __init__(self, columns: int = 80, rows: int = 40) -> None:
        self.columns, self.rows = columns, rows
        self._lines: list[list[tuple[str, str]]] = [[]]
        self._row = self._column = 0
        self._style, self._rest = "", ""
        self.answers: list[bytes] = []
        """What the terminal answers when it is asked where the cursor is."""

    def write(self, text: str) -> None:
        text = self._rest + text
        cut = _CUT.search(text)
        self._rest = cut[0] if cut else ""
        for piece in _PIECE.finditer(text[: len(text) - len(self._rest)]):
            if piece["verb"]:
                self._control(piece["args"], piece["verb"])
            elif piece["other"]:
                self._put(piece["other"])

    def _put(self, character: str) -> None:
        match character:
            case "\r":
                self._column = 0
            case "\n":
                self._move(self._row + 1)
            case "\b":
                self._column = max(0, self._column - 1)
            case "\x07":
                pass
            case _:
                if self._column == self.columns:
                    self._column = 0
                    self._move(self._row + 1)
                line = self._lines[self._row]
                line += [(" ", "")] * (self._column + 1 - len(line))
                line[self._column] = (character, self._style)
                self._column += 1

    def _move(self, row: int) -> None:
        self._row = max(0, row)
        while len(self._lines) <= self._row:
            self._lines.append([])

    def _control(self, args: str, verb: str) -> None:
        numbers = [int(each) for each in args.split(";") if each.isdigit()]
        count = numbers[0] if numbers else 1
        top = max(0, len(self._lines) - self.rows)
        match verb:
            case "m":
                self._style = (
                    "" if args in ("", "0") else f"{self._style};{args}".lstrip(";") if not args.startswith("0;") else args
                )
            case "A":
                self._move(max(top, self._row - count))
            case "B":
                self._move(self._row + count)
            case "C":
                self._column += count
            case "D":
                self._column = max(0, self._column - count)
            case "G":
                self._column = count - 1
            case "H":
                self._move(top + (numbers[0] - 1 if numbers else 0))
                self._column = numbers[1] - 1 if len(numbers) > 1 else 0
            case "K":
                self._erase_line(numbers[0] if numbers else 0)
            case "J":
                self._erase_line(0)
                del self._lines[self._row + 1 :]
            case "n" if args == "6":
                self.answers.append(f"\x1b[{self._row - top + 1};{self._column + 1}R".encode())
            case _:
                pass

    def _erase_line(self, how: int) -> None:
        line = self._lines[self._row]
        if how == 0:
            del line[self._column :]
        elif how == 2:
            line.clear()

    @property
    def lines(self) -> list[str]:
        return ["".join(character for character, _ in line).rstrip() for line in self._lines]

    @property
    def text(self) -> str:
        return "\n".join(self.lines).rstrip("\n")

    def picture(self, title: str, stable: Callable[[str], str] = lambda text: text) -> str:
        """Return the screen as SVG. `stable` replaces what is another in each run by something of the same width."""
        console = Console(record=True, width=self.columns, file=io.StringIO(), force_terminal=True, legacy_windows=False)
        lines = self._lines[: len(self.text.split("\n"))]
        shown = stable(self.text).split("\n")
        for line, text in zip(lines, shown, strict=True):
            styles = [*(style for _, style in line), *[""] * len(text)]
            runs = groupby(zip(text, styles, strict=False), key=lambda each: each[1])
            whole = "".join(f"\x1b[0m\x1b[{style}m{''.join(each for each, _ in run)}" for style, run in runs)
            console.print(Text.from_ansi(f"{whole}\x1b[0m"), soft_wrap=True)
        return _FONT.sub("", console.export_svg(title=title, unique_id="t"))


class Terminal:
    """A command in a real terminal of its own: what is typed, and what is on the screen."""

    def __init__(
        self, *arguments: str | Path, columns: int = 80, rows: int = 40, folder: Path | None = None, **more: str
    ) -> None:
        self._ours, theirs = pty.openpty()
        fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))
        modes = termios.tcgetattr(theirs)
        modes[3] |= termios.NOFLSH  # else Ctrl-C throws away what was written and is not read yet, also half a picture
        termios.tcsetattr(theirs, termios.TCSANOW, modes)
        environment = {**PLAIN, "TERM": "xterm-256color", "PYTHONPATH": os.environ.get("PYTHONPATH", ""), **more}
        self.screen = Screen(columns, rows)
        self._written = b""
        streams: dict[str, Any] = {"stdin": theirs, "stdout": theirs, "stderr": theirs}
        given = {"env": environment, "cwd": folder or Path.cwd(), **streams}
        if arguments[:1] == ("bash",):
            own = [str(each) for each in arguments]
            self.process: subprocess.Popen[Any] = subprocess.Popen(own, start_new_session=True, **given)
        else:
            command = arguments if arguments[:1] == (sys.executable,) else (*COMMAND, *arguments)
            self.process = forked.Forked([str(each) for each in command], start_new_session=True, **given)
        os.close(theirs)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait()
        os.close(self._ours)

    def type(self, text: str) -> None:
        """Type something; `\\r` is Enter, `\\x03` is Ctrl-C."""
        os.write(self._ours, text.encode())

    def until(self, text: str, within: float = 60.0) -> str:
        """Wait until a text is on the screen, and return the screen."""
        return self.until_seen(lambda screen: text in screen, f"{text!r}", within)

    def until_seen(self, is_it: Callable[[str], bool], what: str, within: float = 60.0) -> str:
        end = time.monotonic() + within
        while not is_it(self.screen.text):
            left = end - time.monotonic()
            if left <= 0 or not self._read(left):
                raise AssertionError(f"{what} is not on the screen:\n{self.screen.text}")
        return self.screen.text

    def ended(self, within: float = 60.0) -> tuple[int, str]:
        """Wait for the end; return the exit code, and the screen."""
        end = time.monotonic() + within
        while self._read(end - time.monotonic()):
            assert time.monotonic() < end, self.screen.text
        return self.process.wait(), self.screen.text

    def _read(self, within: float) -> bool:
        """Read what is there, at most so long; False: there is nothing more to come."""
        if not select.select([self._ours], [], [], max(within, 0.0))[0]:
            return True
        try:
            piece = os.read(self._ours, 65536)
        except OSError:  # as Linux says that the other end is closed
            return False
        self._written += piece
        try:
            text, self._written = self._written.decode(), b""
        except UnicodeDecodeError as exc:  # a character whose end is still to come
            text, self._written = self._written[: exc.start].decode(), self._written[exc.start :]
        self.screen.write(text)
        for answer in self.screen.answers:
            os.write(self._ours, answer)
        self.screen.answers.clear()
        return bool(piece)
