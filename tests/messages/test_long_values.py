"""Cutting: whatever it is, it fits afterwards, says that it was cut, and stays JSON of the same shape."""

from collections.abc import Callable
from time import process_time
from typing import Any

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from antiphon.messages import JsonObject, Limits, OptionResultPayload, use_limits
from antiphon.messages._json_values import write
from antiphon.messages._long_values import cut, cut_text

LEAF = st.none() | st.booleans() | st.integers(-(10**30), 10**30) | st.floats(allow_nan=False, allow_infinity=False)
TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=400)
VALUES = st.recursive(
    LEAF | TEXT, lambda inner: st.lists(inner, max_size=50) | st.dictionaries(TEXT, inner, max_size=20), max_leaves=100
)


@pytest.mark.slow
@given(VALUES, st.integers(128, 2000))
def test_any_cut_value_fits_and_is_cut_the_same_again(value: Any, most: int) -> None:
    shorter = cut(value, most)
    assert len(write(shorter)) <= most
    assert cut(shorter, most) == shorter
    assert cut(value, most) == shorter
    if len(write(value)) <= most // 2:
        assert shorter is value


@given(TEXT, st.integers(0, 500))
def test_a_text_is_cut_at_its_end_and_says_how_much_there_was(text: str, most: int) -> None:
    shorter = cut_text(text, most)
    if shorter != text:
        assert shorter == "[cut]" or f" of {len(text):,} characters]" in shorter
        assert len(orjson.dumps(shorter)) <= max(most, len('"[cut]"'))
    else:
        assert len(orjson.dumps(text)) <= max(most, len('"[cut]"'))


def test_control_characters_and_surrogates_count_as_what_they_take() -> None:
    assert cut_text("\0" * 100, 300) == "\0" * 43 + "… [cut after 43 of 100 characters]"
    assert cut_text("\ud800" * 100, 300).endswith("of 100 characters]")  # that it is no Unicode is for others to say
    assert cut_text("x" * 100, 30) == "[cut]"


def test_of_an_object_everything_small_stays_whole() -> None:
    """What a program looks for stands in small fields beside a large one."""
    value = {"kind": "page", "text": "x" * 5000, "more": {"title": "a", "body": "y" * 5000}, "status": "ok"}
    shorter = cut(value, 2000)
    assert (shorter["kind"], shorter["status"], shorter["more"]["title"]) == ("page", "ok", "a")
    assert shorter["text"].endswith(" of 5,000 characters]")
    assert shorter["more"]["body"].endswith(" of 5,000 characters]")


def test_of_a_long_array_the_first_items_stay_whole() -> None:
    rows = [{"id": number, "name": "n" * 40} for number in range(1000)]
    shorter = cut({"rows": rows, "status": "ok"}, 4000)
    *kept, mark = shorter["rows"]
    assert shorter["status"] == "ok"
    assert kept[:-1] == rows[: len(kept) - 1]
    assert mark == f"[cut after {len(kept)} of 1,000 items]"
    *kept, last = cut([*range(50), "x" * 5000], 1000)
    assert kept == list(range(50))
    assert last.endswith(" of 5,000 characters]")


def test_an_object_of_too_many_keys_says_so_under_a_key() -> None:
    shorter = cut({str(number): "x" * 200 for number in range(500)}, 3000)
    assert shorter["[cut]"] == f"after {len(shorter) - 1} of 500 keys"
    assert cut({"k" * 5000: 1}, 1000) == {"[cut]": "after 0 of 1 keys"}


def test_numbers_of_many_digits_are_left_out() -> None:
    assert cut([10**4000, 1, True, 0.5, "x"], 1000) == ["[cut]", 1, True, 0.5, "x"]


def test_a_value_that_is_no_json_is_left_to_the_constructor() -> None:
    odd = object()
    assert cut(odd, 128) is odd
    assert cut(12, 128) == 12
    assert cut([odd, "x" * 1000], 500)[0] is odd


@pytest.mark.parametrize("value", [[[[["x"]]]], {"a": {"b": {"c": {"d": 1}}}}, ((((1,),),),)])
def test_a_value_that_is_nested_too_deep_is_cut_there(value: Any) -> None:
    with use_limits(Limits(depth=3)):
        shorter = cut(value, 1000)
        assert "[cut: nested too deep]" in str(shorter)
        assert OptionResultPayload(invocation_id="i", option_name="o", result=shorter).result == shorter


@pytest.mark.parametrize(
    "value",
    [
        list(range(10_000)),
        [{"a": [1, 2, 3], "b": {}, "c": []} for _ in range(1000)],
        {"first": list(range(10_000)), "last": "kept"},
        {str(number): [number] for number in range(5000)},
        [[number] * 20 for number in range(20)],
        JsonObject({"a": list(range(1000))}),
    ],
)
def test_more_values_than_are_allowed_are_cut_to_the_number(value: Any) -> None:
    with use_limits(Limits(nodes=300)):
        shorter = cut(value, 100_000)
        assert "[cut" in str(shorter)
        assert cut(shorter, 100_000) == shorter
        assert OptionResultPayload(invocation_id="i", option_name="o", result=shorter).result == shorter


def test_a_limit_below_any_mark_still_gives_one() -> None:
    with use_limits(Limits(nodes=10)):
        assert cut([1, 2], 1000) == [1, 2]
        assert cut(list(range(20)), 1000) == "[cut]"
    assert cut(["x" * 1000], 1) == ["[cut after 0 of 1 items]"]


@pytest.mark.slow
@pytest.mark.parametrize(
    "make",
    [
        lambda: "x" * 50_000_000,
        lambda: ["x" * 1000] * 50_000,
        lambda: {"result": {"text": "\0" * 50_000_000, "status": "ok"}},
        lambda: [[1, 2]] * 8_000_000,
    ],
    ids=["text", "texts", "control characters", "numbers"],
)
def test_50_mb_are_cut_in_linear_time(make: Callable[[], Any]) -> None:
    """G21: half a second at most, of which others on the same machine must not make a failure."""
    value = make()
    began = process_time()
    shorter = cut(value, 900_000)
    assert process_time() - began < 5
    assert len(orjson.dumps(shorter)) <= 900_000
