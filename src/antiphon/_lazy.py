"""Names of a package that are imported when first used, so that what is not used costs nothing."""

import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from typing import Any

__all__ = ["lazy_names"]


def lazy_names(
    package: str, homes: "Mapping[str, str]", *, needs: "Mapping[str, str] | None" = None
) -> "tuple[Callable[[str], Any], Callable[[], list[str]]]":
    """Return `__getattr__` and `__dir__` of a package. `homes` says by name where each is defined.

    `needs` says by top-level module what to tell somebody who does not have it installed.
    """

    def get(name: str) -> "Any":
        if name not in homes:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        from importlib import import_module  # noqa: PLC0415 (only when a name is first used)

        try:
            value = getattr(import_module(homes[name]), name)
        except ModuleNotFoundError as exc:
            missing = (exc.name or "").partition(".")[0]
            if needs is None or missing not in needs:
                raise
            raise ModuleNotFoundError(f"{name} needs {needs[missing]}", name=exc.name) from exc
        setattr(sys.modules[package], name, value)
        return value

    def names() -> list[str]:
        return sorted(homes)

    return get, names
