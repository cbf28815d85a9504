"""Bodies with a few things wrong: keys gone, values of another type at any depth, blocks twice."""

from collections.abc import Iterator
from copy import deepcopy
from typing import Any

from hypothesis import strategies as st
from tests.dialects.anthropic_messages.bodies import all_bodies
from tests.providers.samples import samples

__all__ = ["BODIES", "mutated"]

BODIES: dict[str, Any] = {
    **{sample.name: sample.body for sample in samples("anthropic-messages") if sample.kind != "stream"},
    **all_bodies(),
}

_ODD = st.sampled_from(
    [
        None,
        True,
        False,
        0,
        -1,
        1.5,
        2**70,
        "",
        " ",
        "x",
        "tool_use",
        "tool_result",
        "text",
        "image",
        "a\x00b",
        [],
        {},
        [None],
        [[]],
    ]
)


def _places(value: Any) -> Iterator[tuple[Any, Any]]:
    """Yield each container in a value with each of its keys."""
    pairs = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, inner in list(pairs):
        yield value, key
        yield from _places(inner)


@st.composite
def mutated(draw: st.DrawFn) -> Any:
    body = deepcopy(draw(st.sampled_from(list(BODIES.values()))))
    for _ in range(draw(st.integers(min_value=1, max_value=3))):
        places = list(_places(body))
        if not places:
            break
        box, key = places[draw(st.integers(min_value=0, max_value=len(places) - 1))]
        match draw(st.sampled_from(["delete", "replace", "swap", "twice"])):
            case "delete":
                del box[key]
            case "replace":
                box[key] = deepcopy(draw(_ODD))
            case "swap":
                other, name = places[draw(st.integers(min_value=0, max_value=len(places) - 1))]
                box[key] = deepcopy(other[name])
            case _ if isinstance(box, list):
                box.append(deepcopy(box[key]))
            case _:
                box[f"{key}2"] = deepcopy(box[key])
    return body
