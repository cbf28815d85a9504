"""The tree of errors, as it is drawn and as it is."""

import importlib
import inspect
import pickle
import pkgutil
import re

import pytest

import antiphon
from antiphon import errors
from antiphon.errors import AntiphonError, DecodeError, DialectError

PUBLIC = [
    module.name
    for module in pkgutil.walk_packages(antiphon.__path__, "antiphon.")
    if not any(step.startswith("_") for step in module.name.split("."))
]


def test_the_tree_is_drawn_as_it_is() -> None:
    """The docstring of `errors.py` is the documentation; each line's indent is its depth."""
    drawn = re.findall(r"^([│├└─ ]*)(\w+Error)\b", errors.__doc__ or "", re.MULTILINE)
    real = {name: cls for name, cls in inspect.getmembers(errors, inspect.isclass) if issubclass(cls, Exception)}

    assert {name for _, name in drawn} == set(real) == set(errors.__all__)
    for indent, name in drawn:
        assert len(indent) // 4 == sum(issubclass(base, AntiphonError) for base in real[name].__mro__) - 1


@pytest.mark.parametrize("name", sorted(module for module in PUBLIC if module != "antiphon.errors"))
def test_every_public_error_is_in_the_tree(name: str) -> None:
    """In every package. One is no error of antiphon: a stuck test."""
    module = importlib.import_module(name)
    offered = {
        each for each in module.__all__ if isinstance(value := getattr(module, each), type) and issubclass(value, Exception)
    }
    warnings = {each for each in offered if issubclass(getattr(module, each), Warning)}

    assert offered - warnings - {"StuckError"} <= set(errors.__all__)


def test_an_error_says_where_and_what() -> None:
    error = DecodeError("not JSON", dialect="antiphon", where="line 2: payload")

    assert str(error) == "antiphon at line 2: payload: not JSON"
    assert str(DecodeError("empty", dialect="antiphon")) == "antiphon: empty"
    assert (error.reason, error.dialect, error.where, error.retryable) == ("not JSON", "antiphon", "line 2: payload", False)


@pytest.mark.parametrize("cls", [DialectError, DecodeError])
def test_an_error_survives_the_way_between_processes(cls: type[DialectError]) -> None:
    again = pickle.loads(pickle.dumps(cls("why", dialect="d", where="w")))

    assert type(again) is cls
    assert str(again) == "d at w: why"
