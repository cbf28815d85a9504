"""Bodies of Responses with a few things wrong: keys gone, values of another type, items twice or in another order."""

from collections.abc import Iterator
from copy import deepcopy
from typing import Any

from hypothesis import strategies as st
from tests.dialects.openai_responses.items import one_of_each
from tests.providers.samples import samples

__all__ = ["mutated"]

_BODIES: list[Any] = [
    *(sample.body for sample in samples("openai-responses") if sample.kind != "stream"),
    one_of_each(),
    {"model": "m", "instructions": "Be brief.", "input": "hi"},
    *one_of_each(),
]
_ODD_SCALARS = [
    None,
    True,
    0,
    -1,
    1.5,
    2**53 + 1,
    2**70,
    1e300,
    "",
    " ",
    "x",
    "a\x00b",
    "data:,",
    "message",
    "reasoning",
    "user",
]
_ODD_BOXES = [[], {}, [None], [[]], {"type": []}, [{"type": "input_text"}], [{"type": "url_citation"}]]
_ODD = st.sampled_from([*_ODD_SCALARS, *_ODD_BOXES]).map(deepcopy)


def _places(value: Any) -> Iterator[tuple[Any, Any]]:
    """Yield each container in a value with each of its keys."""
    pairs = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, inner in list(pairs):
        yield value, key
        yield from _places(inner)


@st.composite
def mutated(draw: st.DrawFn) -> Any:
    """A body with up to three changes."""
    body = deepcopy(draw(st.sampled_from(_BODIES)))
    for _ in range(draw(st.integers(min_value=0, max_value=3))):
        places = list(_places(body))
        if not places:
            break
        box, key = places[draw(st.integers(min_value=0, max_value=len(places) - 1))]
        match draw(st.sampled_from(["odd", "odd", "gone", "copied", "moved"])):
            case "odd":
                box[key] = draw(_ODD)
            case "gone":
                del box[key]
            case "copied" if isinstance(box, list):
                box.insert(key, deepcopy(box[key]))
            case "moved" if isinstance(box, list):
                box.append(box.pop(key))
            case _:
                box["x-" + str(key) if isinstance(box, dict) else key] = draw(_ODD)
    return body
