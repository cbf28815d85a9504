"""A pytest plugin that lets tests of another version of Pydantic AI be collected: `pytest -p missing_names`.

Such tests import names that the installed version does not have. A whole file then cannot be collected, although most of its
tests do not use them. So each missing name is an empty class: the tests that use it fail, as they are and with durable agents.
"""

import ast
import os
import sys
from importlib import import_module
from pathlib import Path
from types import ModuleType


def _provide(module: str, names: list[str]) -> None:
    """Put an empty class in the place of each name that a module does not have."""
    try:
        found = import_module(module)
    except ModuleNotFoundError as exc:
        if exc.name != module:
            return  # a package that is not installed: the tests that need it are skipped
        found = sys.modules[module] = ModuleType(module)
    except Exception:  # noqa: BLE001 (the import of the test itself says what is wrong)
        return
    for name in names:
        if not hasattr(found, name):
            try:
                import_module(f"{module}.{name}")
            except ModuleNotFoundError:
                setattr(found, name, type(name, (), {}))


for _path in os.environ["FOREIGN_FILES"].split(os.pathsep):
    for _node in ast.walk(ast.parse(Path(_path).read_text(encoding="utf-8"))):
        if isinstance(_node, ast.ImportFrom) and (_node.module or "").partition(".")[0] in ("pydantic_ai", "pydantic_graph"):
            _provide(_node.module or "", [each.name for each in _node.names])
