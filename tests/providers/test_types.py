"""What the providers' types accept is what the formats allow, and nothing besides."""

from collections.abc import Iterator
from typing import Any

import pytest
from tests.providers.samples import DIALECTS, SAMPLES, Sample, samples
from tests.providers.types import as_request, differences, in_one_spelling, problems, pydantic_ai_load_dump

VENDORS = {
    "openai-chat--04-response-two-choices": [
        "choices.0.message.tool_calls.0.extra_content: Extra inputs are not permitted",
        "choices.0.message.reasoning_content: Extra inputs are not permitted",
    ]
}
"""Extensions of compatible servers, which OpenAI's own types do not know."""

OPEN = {
    "openai-chat": {"parameters", "extra_content"},
    "openai-responses": {"parameters", "metadata"},
    "anthropic-messages": {"input", "input_schema"},
    "gemini": {"args", "response", "parametersJsonSchema"},
    "pydantic-ai": {"args", "metadata", "provider_details", "usage", "vendor_metadata"},
}
"""Below these keys the format itself takes any key: JSON schemas, arguments, results, notes."""

PLAIN_RESULTS = {
    ("pydantic-ai--01-parallel-tools-error-retry", (2, "parts", 1, "content")),
    ("pydantic-ai--02-media-and-files-in-results", (2, "parts", 0, "content", 3)),
}
"""What a tool of Pydantic AI returned: any JSON."""

Path = tuple[str | int, ...]


def _objects(value: Any, path: Path = ()) -> Iterator[Path]:
    """Yield where objects are, at every depth."""
    if isinstance(value, dict):
        yield path
    if isinstance(value, dict | list):
        members = value.items() if isinstance(value, dict) else enumerate(value)
        for key, member in members:
            yield from _objects(member, (*path, key))


def _at(value: Any, path: Path) -> Any:
    for step in path:
        value = value[step]
    return value


def _faults_of_a_planted_key(sample: Sample, path: Path) -> list[str]:
    body = sample.body
    _at(body, path)["planted"] = 1 if sample.dialect == "pydantic-ai" else "here"  # what their open places take
    return [each for each in problems(sample.dialect, sample.kind, body) if each not in VENDORS.get(sample.name, [])]


def _is_open(sample: Sample, path: Path) -> bool:
    return not OPEN[sample.dialect].isdisjoint(path) or (sample.name, path) in PLAIN_RESULTS


@pytest.mark.parametrize("sample", SAMPLES, ids=str)
def test_every_sample_is_valid(sample: Sample) -> None:
    assert problems(sample.dialect, sample.kind, sample.body) == VENDORS.get(sample.name, [])


@pytest.mark.slow
@pytest.mark.parametrize("sample", SAMPLES, ids=str)
def test_an_unknown_key_is_refused_at_every_depth(sample: Sample) -> None:
    for path in _objects(sample.body):
        faults = _faults_of_a_planted_key(sample, path)

        assert bool(faults) is not _is_open(sample, path), path
        if faults and sample.dialect != "pydantic-ai":
            assert f"{'.'.join(map(str, (*path, 'planted')))}: Extra inputs are not permitted" in faults
            assert len(faults) <= 2


def test_the_fault_is_named_where_it_is_and_once() -> None:
    """Also inside of unions, where each of the types tried complains."""
    body = samples("openai-chat", "request")[0].body
    body["messages"][2]["tool_calls"][1]["function"]["strict"] = True
    body["messages"][0]["content"][0] = {"type": "text"}
    del body["messages"][3]["tool_call_id"]
    body["messages"][1]["role"] = "robot"

    found = problems("openai-chat", "request", body)

    assert found[0] == "messages.0.content.0.text: Field required"
    assert "messages.1.role: Input should be 'user'" in found
    assert found[-2:] == [
        "messages.2.tool_calls.1.function.strict: Extra inputs are not permitted",
        "messages.3.tool_call_id: Field required",
    ]


@pytest.mark.parametrize(
    ("part", "fault"),
    [
        ({"inline_data": {"mimeType": "image/png", "data": "AA=="}}, "inline_data: Extra inputs are not permitted"),
        ({"inlineData": {"mime_type": "image/png", "data": "AA=="}}, "inlineData.mime_type: Extra inputs are not permitted"),
        ({"text": "a", "thought": "true"}, "thought: Input should be a valid boolean"),
        (
            {"text": "a", "thoughtSignature": "!"},
            "thoughtSignature: Data should be valid base64: Invalid symbol 33, offset 0.",
        ),
    ],
)
def test_gemini_is_read_as_its_service_writes_it(part: Any, fault: str) -> None:
    assert problems("gemini", "request", as_request("gemini", [{"parts": [part]}])) == [f"contents.0.parts.0.{fault}"]


def test_a_name_that_gemini_does_not_know_is_a_fault() -> None:
    part = {"text": "a", "mediaResolution": {"level": "ENORMOUS"}}

    assert problems("gemini", "request", as_request("gemini", [{"parts": [part]}])) == [
        "ENORMOUS is not a valid PartMediaResolutionLevel"
    ]


def test_both_spellings_of_gemini_are_the_same_data() -> None:
    snake = [{"parts": [{"inline_data": {"mime_type": "image/png", "data": "-_8="}}]}]
    camel = [{"parts": [{"inlineData": {"mimeType": "image/png", "data": "+/8="}}]}]

    ours, theirs = (in_one_spelling("gemini", "request", as_request("gemini", each)) for each in (camel, snake))

    assert differences(ours, theirs) == []
    assert ours["contents"] == [{"parts": [{"inlineData": {"mimeType": "image/png", "data": "-_8="}}]}]


@pytest.mark.parametrize("dialect", ["openai-chat", "openai-responses", "anthropic-messages", "gemini"])
def test_a_bare_list_is_a_request_with_the_settings_that_a_caller_chooses(dialect: str) -> None:
    turn = {"role": "user", "parts": [{"text": "hi"}]} if dialect == "gemini" else {"role": "user", "content": "hi"}

    assert problems(dialect, "request", as_request(dialect, [turn])) == []
    assert problems(dialect, "request", as_request(dialect, [turn | {"robot": 1}])) != []


def test_pydantic_ai_gives_back_what_it_loads() -> None:
    for sample in samples("pydantic-ai"):
        assert differences(sample.body, pydantic_ai_load_dump(sample.body, sample.kind)) == []


def test_data_that_pydantic_ai_would_write_differently_is_a_fault() -> None:
    """It writes every default, and drops unknown keys."""
    assert problems("pydantic-ai", "request", [{"kind": "request", "parts": [], "mood": "good"}])[0] == "$[0].mood: was lost"
    assert problems("pydantic-ai", "request", [{"kind": "letter"}]) != []


def test_numbers_that_are_equal_may_differ_as_data() -> None:
    assert differences({"a": [1, 2.0, True]}, {"a": [1.0, 2.0, 1]}) == ["$.a[0]: 1 became 1.0", "$.a[2]: True became 1"]
    assert differences([1], [1, 2]) == ["$: [1] became [1, 2]"]
    assert differences({"a": None}, {}) == ["$.a: was lost"]


@pytest.mark.slow
@pytest.mark.parametrize("dialect", DIALECTS)
@pytest.mark.parametrize("value", [float("inf"), float("nan"), "\ud800"])
def test_data_that_cannot_be_sent_is_a_fault(dialect: str, value: Any) -> None:
    """An SDK would fail before it sends the request."""
    (fault,) = problems(dialect, "request", [value])

    assert fault.startswith("body: ")
