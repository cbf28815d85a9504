"""Packages whose names are imported when first used, so that unused names cost nothing.

A package lists its public names once, in the stub `__init__.pyi` beside its `__init__.py`. Type checkers read the stub.
At run time this module reads the same stub to find the module that defines a name, as Scientific Python's SPEC 1 does.
It reads the stub when a name is first used: `import antiphon` itself imports no module but this one.
"""

import sys

TYPE_CHECKING = False  # as type checkers know it; importing `typing` would cost more than all the rest
if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from typing import Any


def lazy_names(
    package: str, *, needs: "Mapping[str, str] | None" = None
) -> "tuple[Callable[[str], Any], Callable[[], list[str]]]":
    """Return `__getattr__` and `__dir__` of a package.

    `needs` maps a top-level module to the hint shown if that module is not installed.
    """
    modules: dict[str, str] = {}

    def homes() -> dict[str, str]:
        if not modules:
            modules.update(_read_stub(package))
        return modules

    def get(name: str) -> "Any":
        if name == "__all__":
            return names()
        # Python asks a package for dunder names (`__path__`, `__wrapped__`); none of them is lazy.
        if name.startswith("__") or name not in homes():
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        from importlib import import_module  # noqa: PLC0415 (only when a name is first used)

        try:
            value = getattr(import_module(homes()[name]), name)
        except ModuleNotFoundError as exc:
            missing = (exc.name or "").partition(".")[0]
            if needs is None or missing not in needs:
                raise
            raise ModuleNotFoundError(f"{name} needs {needs[missing]}", name=exc.name) from exc
        setattr(sys.modules[package], name, value)
        return value

    def names() -> list[str]:
        return sorted(homes())

    return get, names


def _read_stub(package: str) -> dict[str, str]:
    """Return the module of each name that the package's stub imports as itself (`import A as A`)."""
    import ast  # noqa: PLC0415 (only when a name is first used)
    from pkgutil import get_data  # noqa: PLC0415

    stub = ast.parse(get_data(package, "__init__.pyi") or b"")
    imports = [node for node in stub.body if isinstance(node, ast.ImportFrom) and node.module is not None]
    return {name.name: node.module or "" for node in imports for name in node.names if name.asname == name.name}
