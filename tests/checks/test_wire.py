"""Broken on the wire: real bodies with units and blocks lost, doubled and out of place, repaired and written again.

What is written is accepted twice: by the rules, read as the target's own words, and by the types of the target's SDK.
"""

from copy import deepcopy
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.providers.samples import DIALECTS, samples
from tests.providers.types import as_request, problems

from antiphon import Conversation, check, decode, encode, repair
from antiphon.errors import DecodeError

UNITS = {"openai-chat": "messages", "openai-responses": "input", "anthropic-messages": "messages", "gemini": "contents"}
INNER = ("content", "parts", "tool_calls")
BODIES = [(sample.dialect, sample.body) for sample in samples(kind="request")]


def units_of(dialect: str, body: Any) -> list[Any]:
    units: list[Any] = body[UNITS[dialect]] if dialect in UNITS else body
    return units


@st.composite
def broken_bodies(draw: st.DrawFn) -> tuple[str, Any]:
    dialect, body = draw(st.sampled_from(BODIES))
    body = deepcopy(body)
    for _ in range(draw(st.integers(min_value=1, max_value=4))):
        box = units_of(dialect, body)
        inner = [unit[key] for unit in box for key in INNER if isinstance(unit.get(key), list)]
        box = draw(st.sampled_from([box, *inner]))
        if box:
            break_one(draw, box)
    return dialect, body


def break_one(draw: st.DrawFn, box: list[Any]) -> None:
    places = st.integers(min_value=0, max_value=len(box) - 1)
    place, other = draw(places), draw(places)
    match draw(st.sampled_from(["lose", "double", "swap"])):
        case "lose":
            del box[place]
        case "double":
            box.insert(other, deepcopy(box[place]))
        case _:
            box[place], box[other] = box[other], box[place]


def errors(conversation: Conversation, target: str) -> list[str]:
    return [str(finding) for finding in check(conversation, target) if finding.severity == "error"]


@pytest.mark.slow
@given(broken_bodies(), st.sampled_from(DIALECTS))
def test_a_repaired_body_is_accepted_when_it_is_written(broken: tuple[str, Any], other: str) -> None:
    source, body = broken
    try:
        conversation = decode(body, source)
    except DecodeError:
        return
    for target in {source, other}:
        written = encode(repair(conversation, target).conversation, target).value
        assert problems(target, "request", as_request(target, written)) == []
        assert errors(decode(written, target), target) == []


@pytest.mark.parametrize("dialect", DIALECTS)
def test_no_real_request_is_refused(dialect: str) -> None:
    """No false alarm: the samples are accepted as they are, in their own format."""
    for sample in samples(dialect, "request"):
        conversation = decode(sample.body, dialect)
        assert errors(conversation, dialect) == [], sample
        assert repair(conversation, dialect).conversation is conversation
