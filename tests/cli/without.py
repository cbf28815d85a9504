"""Runs commands in a process that cannot import some packages, as if an extra were not installed; prints what each said.

`python -m tests.cli.without PACKAGE,PACKAGE`, with the commands as JSON on stdin: a list of lists of words.
"""

import json
import sys
from collections.abc import Sequence
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType


class Missing(MetaPathFinder):
    """Refuses packages as Python does that has not got them."""

    def __init__(self, names: Sequence[str]) -> None:
        self._names = tuple(names)

    def find_spec(self, name: str, path: object = None, target: ModuleType | None = None) -> ModuleSpec | None:
        if any(f"{name}.".startswith(f"{each}.") for each in self._names):
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)
        return None


def main() -> None:
    sys.meta_path.insert(0, Missing(sys.argv[1].split(",")))
    from typer.testing import CliRunner

    from antiphon.cli import app

    for words in json.loads(sys.stdin.read()):
        done = CliRunner().invoke(app, words, input="hi\n", prog_name="antiphon")
        error = None if done.exception is None or isinstance(done.exception, SystemExit) else repr(done.exception)
        sys.stdout.write(f"{json.dumps([words, done.exit_code, done.stderr, error])}\n")
        sys.stdout.flush()


if __name__ == "__main__":
    main()
