"""Runs commands in a process that cannot import some packages, as if an extra were not installed; prints what each said.

`python -m tests.cli.without PACKAGE,PACKAGE`, with the commands as JSON on stdin: a list of lists of words.
"""

import json
import sys
from collections.abc import Sequence
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any, cast


class Hiding(MetaPathFinder):
    """A finder of modules that does not find some packages."""

    def __init__(self, finder: Any, names: Sequence[str]) -> None:
        self._finder, self._names = finder, tuple(names)

    def find_spec(self, name: str, path: Any = None, target: ModuleType | None = None) -> ModuleSpec | None:
        if any(f"{name}.".startswith(f"{each}.") for each in self._names):
            return None
        return cast("ModuleSpec | None", self._finder.find_spec(name, path, target))

    def __getattr__(self, name: str) -> Any:
        return getattr(self._finder, name)  # such as what finds the versions of packages


def main() -> None:
    sys.meta_path[:] = [Hiding(finder, sys.argv[1].split(",")) for finder in sys.meta_path]
    import typer.testing
    from typer.testing import CliRunner

    from antiphon.cli import app

    commands = typer.testing._get_command(app)
    typer.testing._get_command = lambda _: commands  # Typer would build them all for each command

    for words in json.loads(sys.stdin.read()):
        done = CliRunner().invoke(app, words, input="hi\n", prog_name="antiphon")
        error = None if done.exception is None or isinstance(done.exception, SystemExit) else repr(done.exception)
        sys.stdout.write(f"{json.dumps([words, done.exit_code, done.stderr, error])}\n")
        sys.stdout.flush()


if __name__ == "__main__":
    main()
