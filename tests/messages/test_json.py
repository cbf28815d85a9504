"""JSON values: refused where they are wrong, kept private, shown frozen."""

import copy
import json
import pickle
import time
from collections import OrderedDict, namedtuple
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import date
from decimal import Decimal
from enum import Enum, IntEnum, StrEnum
from typing import Any
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError
from tests import strategies

from antiphon import DataPart, OptionCallPayload
from antiphon.messages import JsonArray, JsonObject, Limits, thaw, use_limits
from antiphon.messages._json_values import JsonError, as_text, copy_checked, current_limits, own, unpacked


class Colour(Enum):
    RED = "red"


class Level(IntEnum):
    HIGH = 3


class Word(StrEnum):
    YES = "yes"


class Worst(Enum):
    NAN = float("nan")


class Name(str, Enum):  # noqa: UP042 (the old way is still in use)
    ALPHA = "alpha"


class Loud(str):
    __slots__ = ()

    def __str__(self) -> str:
        return "LOUD"


@dataclass
class Point:
    x: int


Pair = namedtuple("Pair", "a b")


class Anything:
    pass


class Reading(float):
    pass


def cycle() -> Any:
    loop: list[Any] = []
    loop.append({"again": loop})
    return loop


def nested(depth: int) -> Any:
    value: Any = []
    for _ in range(depth - 1):
        value = [value]
    return value


def path_of(value: Any) -> tuple[Any, ...]:
    with pytest.raises(ValidationError) as caught:
        DataPart(data=value)
    (error,) = caught.value.errors()
    assert error["loc"][0] == "data"
    return error["loc"][1:]


@pytest.mark.parametrize(
    "bad",
    [
        float("nan"),
        float("inf"),
        -float("inf"),
        Reading("nan"),
        Worst.NAN,
        {1, 2},
        frozenset(),
        b"bytes",
        bytearray(b"x"),
        1j,
        Decimal(1),
        date(2026, 1, 1),
        Point(1),
        Anything(),
        Anything,
        len,
        (x for x in ()),
        {"a": 1}.keys(),
        "lone \ud800",
        10**4300,
        -(10**4300),
        cycle(),
    ],
    ids=lambda value: type(value).__name__,
)
def test_a_value_that_is_not_json_is_refused_with_its_path(bad: Any) -> None:
    """S8: at construction, wherever it hides."""
    assert path_of(bad) == () or isinstance(bad, list)
    assert path_of({"rows": [1, {"cell": bad}]})[:3] == ("rows", 1, "cell")
    assert path_of({"none": None, "rows": [None, bad]})[:2] == ("rows", 1)


@pytest.mark.parametrize("key", [1, None, True, 1.5, ("a",), b"k", "\ud800"])
def test_a_key_that_is_no_text_is_refused(key: Any) -> None:
    assert path_of({"a": {key: 1}}) == ("a",)


@pytest.mark.parametrize(
    ("given_value", "kept"),
    [
        ((1, [2]), [1, [2]]),
        (Pair(1, 2), [1, 2]),
        (OrderedDict(b=1, a=2), {"b": 1, "a": 2}),
        (Colour.RED, "red"),
        ({Name.ALPHA: 1}, {"alpha": 1}),
        ([Loud("soft"), 2**70], ["soft", 2**70]),
        ({"x": Level.HIGH, "none": None}, {"x": 3, "none": None}),
        ([Word.YES], ["yes"]),
        ([UUID(int=1)], ["00000000-0000-0000-0000-000000000001"]),
        ({"none": None, "id": UUID(int=1)}, {"none": None, "id": "00000000-0000-0000-0000-000000000001"}),
        ([Reading(1.5)], [1.5]),
        (10**4299, 10**4299),
        ([JsonArray([1]), JsonObject({"a": []})], [[1], {"a": []}]),
    ],
)
def test_values_that_are_plainly_json_are_accepted(given_value: Any, kept: Any) -> None:
    """Tuples, enums, ids and our own views need no conversion by the caller."""
    part = DataPart(data=given_value)

    assert part.data == kept
    assert type(thaw(part.data)) is type(kept)


@pytest.mark.slow
@given(strategies.json_values)
def test_the_quick_way_and_the_slow_way_agree(value: Any) -> None:
    assert repr(unpacked(own(value))) == repr(copy_checked(value, current_limits()))


@given(
    st.recursive(
        st.sampled_from(
            [None, "null", 'say "null"', "", 0, True, 1.5, float("nan"), -float("inf"), Reading(1), Worst.NAN, Level.HIGH]
        ),
        lambda inner: st.lists(inner, max_size=3) | st.tuples(inner) | st.dictionaries(st.sampled_from(["null", "a"]), inner),
    )
)
def test_nan_is_found_among_any_nulls(value: Any) -> None:
    """S8: orjson writes NaN as it writes None, and both look like a text that says null."""
    assert taken_or_refused(lambda: unpacked(own(value))) == taken_or_refused(lambda: copy_checked(value, current_limits()))


def taken_or_refused(take: Callable[[], Any]) -> str:
    try:
        return repr(take())
    except JsonError as exc:
        return f"refused at {exc.path}"


@given(strategies.json_values)
def test_a_value_comes_back_as_it_was(value: Any) -> None:
    """`1`, `1.0` and `True` are three values, and -0.0 is not 0."""
    assert repr(thaw(DataPart(data=value).data)) == repr(value)


@pytest.mark.parametrize("depth", [1, 63, 64])
def test_a_value_may_be_as_deep_as_the_limit(depth: int) -> None:
    assert thaw(DataPart(data=nested(depth)).data) == nested(depth)
    assert OptionCallPayload(invocation_id="i", option_name="o", arguments={"a": nested(63)})


@pytest.mark.parametrize("depth", [65, 66, 199, 200, 253, 254, 255, 300, 900, 100_000])
def test_a_deeper_value_is_refused_at_once(depth: int) -> None:
    """S8: depth 65 and depth 100,000 alike, in less than a second."""
    value = nested(depth)
    start = time.process_time()

    with pytest.raises(ValidationError, match="nested deeper than 64"):
        DataPart(data=value)

    assert time.process_time() - start < 1


def test_a_wide_value_may_have_many_containers() -> None:
    """More containers than the depth limit are fine as long as they are not inside each other."""
    wide = [{"row": [index, {"deep": [index]}]} for index in range(500)]

    assert DataPart(data=wide).data == wide


@pytest.mark.slow
def test_too_many_values_are_refused() -> None:
    with pytest.raises(ValidationError, match="more than 100000 values"):
        DataPart(data=[0] * 100_001)
    with use_limits(Limits(nodes=3)), pytest.raises(ValidationError, match="more than 3 values"):
        DataPart(data=[1, 2, 3])


# ---------------------------------------------------------------- private


def test_a_callers_later_changes_do_not_reach_us() -> None:
    arguments: dict[str, Any] = {"list": [1], "none": None}
    call = OptionCallPayload(invocation_id="i", option_name="o", arguments=arguments)

    arguments["list"].append(2)
    arguments["more"] = True

    assert call.arguments == {"list": [1], "none": None}


def test_a_thawed_copy_is_the_callers_own() -> None:
    part = DataPart(data={"list": [1]})

    mine = thaw(part.data)
    mine["list"].append(2)

    assert part.data == {"list": [1]}
    assert thaw("text") == "text"


# ---------------------------------------------------------------- views


@pytest.fixture
def view() -> JsonObject:
    data = DataPart(data={"a": [1, {"b": None}], "c": 1.5}).data
    assert isinstance(data, JsonObject)
    return data


def test_an_object_is_read_like_a_dict(view: JsonObject) -> None:
    assert isinstance(view, Mapping)
    assert list(view) == ["a", "c"]
    assert len(view) == 2
    assert "a" in view
    assert "z" not in view
    assert view.get("z", 7) == 7
    assert {**view} == {"a": [1, {"b": None}], "c": 1.5}
    assert repr(view) == "{'a': [1, {'b': None}], 'c': 1.5}"
    with pytest.raises(KeyError):
        view["z"]


def test_an_array_is_read_like_a_list(view: JsonObject) -> None:
    array = view["a"]
    assert isinstance(array, JsonArray)
    assert isinstance(array, Sequence)
    assert array[0] == 1
    assert array[-1] == {"b": None}
    assert array[:1] == [1]
    assert list(array) == [1, {"b": None}]
    assert array != (1, {"b": None})
    assert array != "text"
    assert repr(array) == "[1, {'b': None}]"
    with pytest.raises(IndexError):
        array[5]


@pytest.mark.parametrize(
    "change",
    [
        lambda view: view.__setitem__("a", 1),
        lambda view: view["a"].append(1),
        lambda view: view["a"].__setitem__(0, 1),
        lambda view: view["a"][1].update(b=1),
        lambda view: view.pop("a"),
        lambda view: view.__delitem__("a"),
        lambda view: setattr(view, "extra", 1),
        lambda view: dict.__setitem__(view, "a", 1),
        lambda view: list.append(view["a"], 1),
    ],
)
def test_a_view_cannot_be_changed(view: JsonObject, change: Any) -> None:
    with pytest.raises((AttributeError, TypeError)):
        change(view)

    assert view == {"a": [1, {"b": None}], "c": 1.5}


def test_equality_is_that_of_json() -> None:
    one = DataPart(data={"n": 1, "m": [0.0]}).data

    assert one == {"m": [0.0], "n": 1}
    assert one != {"n": 1.0, "m": [0.0]}
    assert one != {"n": True, "m": [0.0]}
    assert one != {"n": 1, "m": [-0.0]}
    assert one != {"n": 1, "m": [{1}]}
    assert one != {"n": 1}
    assert one != 7
    assert hash(one) == hash(DataPart(data={"m": [0.0], "n": 1}).data)
    assert hash(DataPart(data=[1]).data) == hash(DataPart(data=[1]).data)


def test_views_copy_and_travel(view: JsonObject) -> None:
    array = view["a"]

    assert copy.copy(view) is view
    assert copy.deepcopy(view) is view
    assert copy.copy(array) is array
    assert copy.deepcopy(array) is array
    assert pickle.loads(pickle.dumps(view)) == view
    assert pickle.loads(pickle.dumps(array)) == array


@pytest.mark.slow
@given(st.lists(strategies.json_values))
def test_a_view_written_by_json_of_the_standard_library(values: list[Any]) -> None:
    assert json.loads(json.dumps(thaw(DataPart(data=values).data))) == json.loads(json.dumps(values))


def test_a_value_let_in_under_other_limits_stays_usable() -> None:
    """What is inside is inside: comparing, copying and pickling do not ask the limits of the moment."""
    with use_limits(Limits(depth=200)):
        part = DataPart(data=nested(150))

    assert part.data == part.data
    assert part.data == nested(150)
    assert thaw(part.data) == nested(150)
    assert pickle.loads(pickle.dumps(part)) == part
    with pytest.raises(ValueError, match="is not JSON"):
        thaw(float("nan"))


def test_depth_is_exact_for_small_and_large_values() -> None:
    for width in (1, 50, 500):
        inner: Any = [["x" * 100]] * width
        for _ in range(62):
            inner = [inner]
        assert DataPart(data=inner)
        with pytest.raises(ValidationError, match="nested deeper than 64"):
            DataPart(data=[inner])


def test_an_error_carries_reason_and_path() -> None:
    with pytest.raises(JsonError) as caught:
        own({"a": [float("nan")]})

    assert caught.value.path == ("a", 0)
    assert "nan is not JSON" in caught.value.reason


_CHANGES: list[Callable[[Any], object]] = [
    lambda data: data.__setitem__("k", 1),
    lambda data: data.__delitem__("k"),
    lambda data: data.update(k=1),
    lambda data: data.setdefault("k", 1),
    lambda data: data.pop("k"),
    lambda data: data.clear(),
    lambda data: data["list"].__setitem__(0, 1),
    lambda data: data["list"].append(1),
    lambda data: data["list"].sort(),
]


@pytest.mark.parametrize("change", _CHANGES)
def test_g21_every_attempt_to_change_a_value_names_the_remedy(change: Callable[[Any], object]) -> None:
    data: Any = DataPart(data={"k": 0, "list": [2, 1]}).data
    with pytest.raises((TypeError, AttributeError), match=r"cannot be changed: change a copy, `copy = thaw\("):
        change(data)
    with pytest.raises(AttributeError, match="'JsonObject' object has no attribute 'colour'"):
        _ = data.colour
    assert data == {"k": 0, "list": [2, 1]}


def test_a_value_for_a_reader_is_text_that_is_unchanged_or_json() -> None:
    assert [as_text(value) for value in ("as it is", {"a": [1]}, {"when": 1j})] == ["as it is", '{"a":[1]}', '{"when":"1j"}']
