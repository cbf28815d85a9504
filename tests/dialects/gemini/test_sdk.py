"""google-genai, the provider's client library: we read its dumps, and it reads what we write, with the same meaning."""

from typing import Any

import pytest
from tests.dialects.gemini.bodies import PIXEL, REQUESTS, RESPONSES
from tests.providers.clients import google_genai
from tests.providers.samples import samples
from tests.providers.types import differences, problems

from antiphon import Conversation, decode, encode
from antiphon.messages import MediaPart, OptionCallPayload, OptionResultPayload, TextPart


def sdk_types() -> Any:
    """Import the SDK only where a test uses it: the import takes as long as fifty tests."""
    return google_genai().types


def contents() -> list[Any]:
    types = sdk_types()
    return [
        types.Content(
            role="user",
            parts=[types.Part.from_text(text="Look."), types.Part.from_uri(file_uri="gs://b/x.png", mime_type="image/png")],
        ),
        types.Content(role="model", parts=[types.Part.from_function_call(name="look", args={"at": "left"})]),
        types.Content(role="user", parts=[types.Part.from_function_response(name="look", response={"output": "a tree"})]),
        types.Content(role="model", parts=[types.Part.from_bytes(data=b"\xff\xfe\xfd", mime_type="image/png")]),
    ]


@pytest.mark.parametrize("name", REQUESTS)
def test_the_bodies_that_these_tests_call_requests_are_requests(name: str) -> None:
    """In either spelling, which is how its client reads them."""
    body = REQUESTS[name]

    assert [sdk_types().Content.model_validate(content) for content in body["contents"]]
    assert name.startswith("snake") or problems("gemini", "request", body) == []


@pytest.mark.parametrize("name", RESPONSES)
def test_the_bodies_that_these_tests_call_responses_are_responses(name: str) -> None:
    assert problems("gemini", "response", RESPONSES[name]) == []


@pytest.mark.parametrize("how", [{}, {"exclude_none": True}, {"by_alias": True}, {"by_alias": True, "exclude_unset": True}])
def test_dumps_of_the_sdk_come_back_in_their_own_spelling(how: dict[str, bool]) -> None:
    """With nulls or without, in snake or camel case, bytes in the URL-safe alphabet."""
    dumped = [content.model_dump(mode="json", **how) for content in contents()]
    conversation = decode(dumped, "gemini")

    assert differences(dumped, encode(conversation, "gemini").value) == []
    assert [message.kind for message in conversation] == ["parts", "option_call", "option_result", "parts"]
    picture = conversation[3].parts[0]
    assert isinstance(picture, MediaPart)
    assert "_" not in picture.url
    assert "-" not in picture.url


@pytest.mark.parametrize("sample", [each for each in samples("openai-chat") if each.kind == "request"], ids=str)
def test_the_sdk_reads_what_we_write_with_the_same_meaning(sample: Any) -> None:
    conversation = decode(sample.body, "openai-chat")
    value = encode(conversation, "gemini").value
    read = [sdk_types().Content.model_validate(content) for content in value["contents"]]
    calls = [part.function_call for content in read for part in content.parts if part.function_call]
    responses = [part.function_response for content in read for part in content.parts if part.function_response]
    heard = {part.text for content in read for part in content.parts if part.text}
    said = {
        part.text
        for m in conversation
        if m.kind == "parts" and m.role_hint_for_llm != "system"
        for part in m.parts
        if isinstance(part, TextPart)
    }

    assert [(each.id, each.name) for each in calls] == [
        (m.payload.invocation_id, m.payload.option_name) for m in conversation if isinstance(m.payload, OptionCallPayload)
    ]
    assert [each.id for each in responses] == [
        m.invocation_id for m in conversation if isinstance(m.payload, OptionResultPayload)
    ]
    assert said - {""} <= heard


def test_pictures_arrive_as_the_same_bytes() -> None:
    conversation = Conversation(decode([{"parts": [{"inlineData": {"mimeType": "image/png", "data": PIXEL}}]}], "gemini"))
    part = sdk_types().Content.model_validate(encode(conversation, "gemini").value["contents"][0]).parts[0]

    assert part.inline_data.data.startswith(b"\x89PNG")
