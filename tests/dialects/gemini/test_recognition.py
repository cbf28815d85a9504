"""Which data is recognised as generateContent, and which is not."""

from typing import Any

import pytest
from tests.dialects.gemini.bodies import BODIES, REQUESTS, RESPONSES
from tests.dialects.samples import SAMPLES
from tests.providers.samples import samples

from antiphon.dialects import detect, get

GEMINI = get("gemini")


@pytest.mark.parametrize("sample", [each for each in samples("gemini") if each.kind != "stream"], ids=str)
def test_its_own_samples_are_recognised_and_by_no_other(sample: Any) -> None:
    assert detect(sample.body).name == "gemini"


@pytest.mark.parametrize(
    "name", [*REQUESTS, "blocked prompt", "nothing but a reason", "no role", "a bare list", "one content"]
)
def test_its_forms_are_recognised(name: str) -> None:
    assert GEMINI.recognise(BODIES[name])


def test_each_reason_says_what_was_seen() -> None:
    seen = {
        GEMINI.recognise(body)
        for body in (BODIES["a bare list"], BODIES["blocked prompt"], *REQUESTS.values(), RESPONSES["no role"])
    }

    assert seen == {
        "contents with parts of generateContent",
        "a response to a prompt that was blocked",
        "a request with contents of parts",
        "a response with candidates",
    }


@pytest.mark.parametrize("sample", [each for each in samples() if each.dialect != "gemini"], ids=str)
def test_samples_of_other_providers_are_not_recognised(sample: Any) -> None:
    assert GEMINI.recognise(sample.body) is None


@pytest.mark.parametrize("name", SAMPLES)
def test_samples_of_the_seeds_are_not_recognised(name: str) -> None:
    assert GEMINI.recognise(SAMPLES[name]) is None
    assert all(GEMINI.recognise(unit) is None for unit in SAMPLES[name])


@pytest.mark.parametrize(
    "data",
    [
        None,
        7,
        "text",
        [],
        {},
        [[]],
        {"contents": []},
        {"contents": ["hi"]},
        {"contents": [{"role": "assistant", "parts": [{"text": "hi"}]}]},
        {"candidates": ["Smith", "Jones"]},
        {"candidates": [{"name": "Smith"}]},
        [{"role": "user", "parts": []}],
        [{"role": "user", "parts": [{"kind": "text", "content": "hi"}]}],
        [{"kind": "request", "parts": [{"part_kind": "user-prompt", "content": "hi"}]}],
    ],
)
def test_other_data_is_not_recognised(data: Any) -> None:
    assert GEMINI.recognise(data) is None
