"""Dialects that packages of others add."""

from importlib.metadata import EntryPoint, EntryPoints

import pytest

from antiphon.dialects import _registry

GROUP = "antiphon.dialects"


@pytest.fixture
def twin(monkeypatch: pytest.MonkeyPatch) -> None:
    """As if a package were installed with a dialect that looks like MARSYS."""
    point = EntryPoint(name="twin", value="tests.cli.twin:DIALECT", group=GROUP)
    monkeypatch.setattr(_registry, "entry_points", EntryPoints([point]).select)


@pytest.fixture
def broken(monkeypatch: pytest.MonkeyPatch) -> None:
    """As if a package were installed whose dialect cannot be imported."""
    point = EntryPoint(name="broken", value="tests.cli.no_such_module:DIALECT", group=GROUP)
    monkeypatch.setattr(_registry, "entry_points", EntryPoints([point]).select)
