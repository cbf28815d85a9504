"""Decoders on broken data: thousands of samples with something wrong in them, as values and as bytes.

Whatever comes, a decoder either reads it and gives the same data back, or says where it is wrong, in less than a second.
`ANTIPHON_FUZZ` says how many inputs; `make chaos` takes 100,000.
"""

import copy
import os
from collections.abc import Callable, Iterator
from random import Random
from time import process_time
from typing import Any

import orjson
import pytest
from tests.dialects.samples import SAMPLES
from tests.providers.samples import DIALECTS, samples

from antiphon import decode, encode
from antiphon.errors import DecodeError
from antiphon.messages._json_values import JsonError, canonical, parse

INPUTS = int(os.environ.get("ANTIPHON_FUZZ", "5000"))
BODIES: dict[str, list[Any]] = {
    **{name: [units, *units] for name, units in SAMPLES.items()},
    **{name: [each.body for each in samples(name) if each.kind != "stream"] for name in DIALECTS},
}
ODD: list[Any] = [
    None,
    True,
    0,
    -1,
    1.5,
    2**70,
    "",
    "x",
    "\x00",
    "user",
    "a" * 600,
    [],
    [[]],
    {},
    {"type": "text"},
    {"x": [None]},
]


def places(value: Any) -> Iterator[tuple[Any, Any]]:
    """Every container in a value, with each of its keys or indexes."""
    for key in list(value) if isinstance(value, dict) else range(len(value)) if isinstance(value, list) else ():
        yield value, key
        yield from places(value[key])


def take_away(box: Any, key: Any, random: Random) -> None:
    del box[key]


def put_something_odd(box: Any, key: Any, random: Random) -> None:
    box[key] = copy.deepcopy(random.choice(ODD))


def wrap(box: Any, key: Any, random: Random) -> None:
    box[key] = random.choice([[box[key]], {"type": box[key]}, {"text": box[key]}])


def say_twice(box: Any, key: Any, random: Random) -> None:
    if isinstance(box, list):
        box.insert(key, copy.deepcopy(box[key]))
    else:
        box[f"{key}_"] = copy.deepcopy(box[key])


def swap(box: Any, key: Any, random: Random) -> None:
    other = random.choice(list(box) if isinstance(box, dict) else range(len(box)))
    box[key], box[other] = box[other], box[key]


FAULTS: list[Callable[[Any, Any, Random], None]] = [take_away, put_something_odd, wrap, say_twice, swap]


def broken(body: Any, random: Random) -> Any:
    """The body with one to three things wrong in it."""
    holder = [copy.deepcopy(body)]
    for _ in range(random.randint(1, 3)):
        box, key = random.choice(list(places(holder)))
        random.choice(FAULTS)(box, key, random)
        if not holder:
            return None
    return holder[0]


def broken_text(body: Any, random: Random) -> bytes:
    """The text of the body, with a byte changed, cut out or put in, or cut off."""
    text = bytearray(orjson.dumps(body))
    place = random.randrange(len(text))
    match random.randrange(4):
        case 0:
            text[place] = random.randrange(256)
        case 1:
            del text[place : place + random.randint(1, 9)]
        case 2:
            text[place:place] = random.choice([b"null", b"[", b"}", b'"', b"\\ud800", b"\xff", b"1e999", b",", b"\x00"])
        case _:
            del text[place:]
    return bytes(text)


def outcome(name: str, data: Any) -> str:
    """Decode, and return the outcome; any outcome but the two good ones is raised."""
    try:
        conversation = decode(data, name)
    except DecodeError:
        return "refused"
    value = parse(data) if isinstance(data, bytes) else data
    assert canonical(encode(conversation, name).value) == canonical(value)
    return "the same"


@pytest.mark.slow
@pytest.mark.parametrize("name", BODIES)
def test_broken_data_is_refused_or_comes_back_the_same(name: str) -> None:
    random = Random(f"{name} 1")
    seen = {"refused": 0, "the same": 0}
    for count in range(INPUTS // len(BODIES)):
        body = random.choice(BODIES[name])
        data = broken_text(body, random) if count % 3 == 2 else broken(body, random)
        begun = process_time()
        try:
            seen[outcome(name, data)] += 1
        except JsonError:
            continue
        except Exception as exc:
            raise AssertionError(f"{name}: {data!r}") from exc
        assert process_time() - begun < 1, data
    assert all(seen.values()), seen
