"""Python tools of a team file: `mytools.py:lookup`, a function of a Python file in the folder of the team file.

Code runs only if the caller allows exactly these bytes. So a file is read once: the bytes that are checked are the bytes that
run, even if the file changes meanwhile. A name is looked up only in that file: nothing is imported by name.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Iterable, Mapping
from hashlib import sha256
from importlib.abc import InspectLoader
from importlib.machinery import ModuleSpec
from importlib.util import module_from_spec
from pathlib import Path
from types import ModuleType
from typing import Any, Final, TypeAlias, cast

from pydantic_ai import Tool
from typing_extensions import override

from antiphon.agents.config import known_names, read_small
from antiphon.errors import SetupError

MayRun: TypeAlias = "Callable[[Path, bytes], bool]"
"""Whether the code of a Python file may run: it gets the path and the content."""

_TOOL: Final = re.compile(r"(?P<file>[A-Za-z0-9_-][A-Za-z0-9_.-]*\.py):(?P<name>[A-Za-z_][A-Za-z0-9_]*)")


def is_python_tool(tool: str) -> bool:
    """Whether a tool of a team file names a Python function. Other tools have no colon in their names.

    Raises:
        ValueError: it does, but the file is not in the folder of the team file.
    """
    if ":" not in tool:
        return False
    if _TOOL.fullmatch(tool) is None:
        raise ValueError(f"{tool!r}: a Python tool is FILE.py:FUNCTION, with a file in the folder of the team file")
    return True


def file_of(tool: str) -> str:
    """Return the name of the file of a Python tool."""
    return tool.partition(":")[0]


def function_of(tool: str) -> str:
    """Return the name of a tool for agents: for a Python tool, the name of the function."""
    return tool.partition(":")[2] or tool


def python_files(tools: Iterable[str], folder: Path) -> dict[str, bytes]:
    """Return the content of the Python files of tools, by name.

    Raises:
        SetupError: a file cannot be read, or is a link that leads out of the folder.
    """
    found: dict[str, bytes] = {}
    for name in dict.fromkeys(file_of(tool) for tool in tools if is_python_tool(tool)):
        path = folder / name
        try:
            if path.resolve(strict=True).parent != folder.resolve():
                raise SetupError(f"{name} is a link that leads out of the folder of the team file; copy the file")
            found[name] = read_small(path)
        except (OSError, ValueError) as exc:
            raise SetupError(f"{name}: {getattr(exc, 'strerror', None) or exc}") from exc
    return found


def python_tools(tools: Iterable[str], folder: Path, may_run: MayRun | None) -> dict[str, Callable[..., Any] | Tool[Any]]:
    """Return the functions of the Python tools among tools, by name.

    Raises:
        SetupError: a file cannot be read, may not run or fails, or has no such function.
    """
    named = [tool for tool in dict.fromkeys(tools) if is_python_tool(tool)]
    files = python_files(named, folder)
    for name, data in files.items():  # check all of them before any runs
        if may_run is None or not may_run(folder / name, data):
            raise SetupError(f"its tools run {name}, and nobody has allowed that file as it is now")
    modules = {name: _module(folder / name, data) for name, data in files.items()}
    return {function_of(tool): _function(tool, modules) for tool in named}


class _Code(InspectLoader):
    """The loader of a module whose source is already in memory."""

    def __init__(self, path: Path, data: bytes) -> None:
        self._path, self._data = path, data

    @override
    def get_source(self, fullname: str) -> str:
        return self._data.decode()

    @override
    def get_code(self, fullname: str) -> Any:
        return self.source_to_code(self._data, str(self._path))


def _module(path: Path, data: bytes) -> ModuleType:
    """Run the code of a file, once per process for the same content."""
    name = f"antiphon_team_{path.stem.replace('.', '_')}_{sha256(str(path).encode() + data).hexdigest()[:16]}"
    if name in sys.modules:
        return sys.modules[name]
    loader = _Code(path, data)
    module = module_from_spec(ModuleSpec(name, loader, origin=str(path)))
    module.__file__ = str(path)
    sys.modules[name] = module  # dataclasses look up the module of a class there while the code runs
    try:
        loader.exec_module(module)
    except (Exception, SystemExit) as exc:
        del sys.modules[name]
        raise SetupError(f"{path.name} cannot be run: {type(exc).__name__}: {exc}") from exc
    return module


def _function(tool: str, modules: Mapping[str, ModuleType]) -> Callable[..., Any] | Tool[Any]:
    name, module = function_of(tool), modules[file_of(tool)]
    found: Any = vars(module).get(name)
    if isinstance(found, Tool) or (callable(found) and not isinstance(found, type)):
        return cast("Callable[..., Any] | Tool[Any]", found)
    there = [each for each, value in vars(module).items() if callable(value) and not each.startswith("_")]
    raise SetupError(f"{file_of(tool)} has no function {name!r}{known_names(name, there, 'it has', 'none')}")
