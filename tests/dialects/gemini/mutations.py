"""Bodies with a few things wrong: keys gone, respelled or added, values of another type at any depth, things twice."""

from collections.abc import Iterator
from copy import deepcopy
from typing import Any

from hypothesis import strategies as st
from tests.dialects.gemini.bodies import BODIES

__all__ = ["mutated", "places"]

_VALUES = st.sampled_from(
    [
        None,
        True,
        False,
        0,
        -1,
        1.5,
        2**60,
        2**70,
        "",
        " ",
        "x",
        "user",
        "model",
        "a\x00b",
        "\u200b",
        [],
        {},
        [None],
        {"a": 1},
        [[]],
    ]
)
_KEYS = st.sampled_from(["id", "thought", "text", "error", "output", "functionCall", "function_call", "role", ""])


def places(value: Any) -> Iterator[tuple[Any, Any]]:
    """Yield each container in a value with each of its keys."""
    pairs = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, inner in list(pairs):
        yield value, key
        yield from places(inner)


@st.composite
def mutated(draw: st.DrawFn) -> Any:
    body = deepcopy(draw(st.sampled_from(list(BODIES.values()))))
    for _ in range(draw(st.integers(min_value=1, max_value=3))):
        if not (found := list(places(body))):
            break
        box, key = found[draw(st.integers(min_value=0, max_value=len(found) - 1))]
        match draw(st.sampled_from(["delete", "replace", "swap", "twice", "add"])):
            case "delete":
                del box[key]
            case "replace":
                box[key] = draw(_VALUES)
            case "swap":
                other, name = found[draw(st.integers(min_value=0, max_value=len(found) - 1))]
                box[key] = deepcopy(other[name])
            case _ if isinstance(box, list):
                box.append(deepcopy(box[key]))
            case "twice":
                box[f"{key}2"] = deepcopy(box[key])
            case _:
                box[draw(_KEYS)] = draw(_VALUES)
    return body
