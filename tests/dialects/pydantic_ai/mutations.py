"""Histories with a few things wrong: keys gone, values of another type at any depth, one thing in place of another."""

from collections.abc import Iterator
from copy import deepcopy
from typing import Any

from hypothesis import strategies as st
from tests.dialects.pydantic_ai.histories import HISTORIES
from tests.providers.samples import samples

__all__ = ["ALL_HISTORIES", "mutated"]

ALL_HISTORIES: dict[str, Any] = {
    **{sample.name: sample.body for sample in samples("pydantic-ai") if sample.kind != "stream"},
    **HISTORIES,
}

_ODD = [
    None,
    True,
    0,
    -1,
    1.5,
    2**70,
    "",
    " ",
    "x",
    "tool-call",
    "binary",
    "failed",
    "a\x00b",
    [],
    {},
    [None],
    [[]],
    {"kind": 1},
]


def _places(value: Any) -> Iterator[tuple[Any, Any]]:
    """Yield each container in a value with each of its keys."""
    pairs = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, inner in list(pairs):
        yield value, key
        yield from _places(inner)


@st.composite
def mutated(draw: st.DrawFn) -> Any:
    """A history, or one unit of one, with one to three changes."""
    history = deepcopy(draw(st.sampled_from([each for each in ALL_HISTORIES.values() if each])))
    value = draw(st.sampled_from([history, *history]))
    for _ in range(draw(st.integers(min_value=1, max_value=3))):
        places = list(_places(value))
        if not places:
            break
        box, key = places[draw(st.integers(min_value=0, max_value=len(places) - 1))]
        match draw(st.sampled_from(["delete", "replace", "swap", "again"])):
            case "delete":
                del box[key]
            case "swap":
                other, name = places[draw(st.integers(min_value=0, max_value=len(places) - 1))]
                box[key] = deepcopy(other[name])
            case "again" if isinstance(box, list):
                box.insert(key, deepcopy(box[key]))
            case _:
                box[key] = deepcopy(draw(st.sampled_from(_ODD)))
    return value
