"""What contents mean in the core."""

from datetime import UTC, datetime
from typing import Any

import pytest
from tests.dialects.gemini.bodies import BODIES, PIXEL
from tests.providers.samples import samples

from antiphon import Conversation
from antiphon.dialects import get
from antiphon.errors import DecodeError
from antiphon.messages import Citation, ForeignPart, MediaPart, OptionResultPayload, ReasoningPart, TextPart, Usage

GEMINI = get("gemini")


def said(*parts: dict[str, Any], role: str = "user") -> Any:
    """The parts of one message that a content of these parts is read as."""
    return GEMINI.decode([{"role": role, "parts": list(parts)}])[0].parts


def results(conversation: Conversation) -> list[OptionResultPayload]:
    return [m.payload for m in conversation if isinstance(m.payload, OptionResultPayload)]


def outcome(response: dict[str, Any]) -> OptionResultPayload:
    return results(GEMINI.decode([{"role": "user", "parts": [{"functionResponse": {"name": "f", "response": response}}]}]))[0]


# ---------------------------------------------------------------- who speaks


def test_roles_are_speakers_and_none_is_the_user() -> None:
    """OP-054."""
    contents = [{"role": "user", "parts": []}, {"role": "model", "parts": []}, {"parts": []}, {"role": "", "parts": []}]
    conversation = GEMINI.decode(contents)

    assert [message.policy for message in conversation] == ["user", "assistant", "user", "user"]
    assert [message.role_hint_for_llm for message in conversation] == ["user", "assistant", "user", "user"]


def test_an_answer_without_a_role_is_the_models() -> None:
    assert GEMINI.decode(BODIES["no role"])[0].policy == "assistant"


def test_instructions_come_first_as_the_systems() -> None:
    conversation = GEMINI.decode(samples("gemini", "request")[0].body)

    assert (conversation[0].policy, conversation[0].role_hint_for_llm) == ("system", "system")
    assert conversation[0].parts == (TextPart(text="Be terse."), TextPart(text="SI units."))


def test_of_several_candidates_the_first_is_the_conversation() -> None:
    body = samples("gemini", "response")[0].body

    assert len(body["candidates"]) == 2
    assert [message.kind for message in GEMINI.decode(body)] == ["parts"]


@pytest.mark.parametrize("name", ["blocked prompt", "no candidates", "nothing but a reason"])
def test_a_response_without_an_answer_has_no_message(name: str) -> None:
    assert len(GEMINI.decode(BODIES[name])) == 0


# ---------------------------------------------------------------- what is said


def test_thoughts_are_reasoning_with_their_proof() -> None:
    thought, other = said(
        {"text": "hm", "thought": True, "thoughtSignature": "AQ=="}, {"text": "hm", "thought": True}, role="model"
    )

    assert isinstance(thought, ReasoningPart)
    assert isinstance(other, ReasoningPart)
    assert (thought.text, thought.signature, other.signature) == ("hm", "AQ==", None)
    assert all("gemini" in part.metadata for part in (thought, other))


def test_an_empty_text_that_holds_a_signature_is_a_part_of_its_own() -> None:
    text, proof = said({"text": "Oslo"}, {"text": "", "thoughtSignature": "AQ=="}, role="model")

    assert (text.text, proof.text) == ("Oslo", "")
    assert proof.metadata["gemini"] == {"thoughtSignature": "AQ=="}


def test_media_are_urls_with_their_type_and_settings() -> None:
    """OP-055, OP-064."""
    inline, file, bucket, named = said(
        {"inlineData": {"mimeType": "image/png", "data": PIXEL, "displayName": "dot"}, "mediaResolution": {"level": "X"}},
        {"fileData": {"mimeType": "video/*", "fileUri": "https://v.example/w?v=1"}, "videoMetadata": {"fps": 0.5}},
        {"fileData": {"mimeType": "application/pdf", "fileUri": "gs://b/x.pdf"}},
        {"fileData": {"mimeType": "audio/mpeg", "fileUri": "files/a b"}},
    )

    assert (inline.modality, inline.url, inline.prompt_hint) == ("image", f"data:image/png;base64,{PIXEL}", "dot")
    assert inline.metadata["gemini"]["mediaResolution"] == {"level": "X"}
    assert (file.modality, file.url, file.mime) == ("video", "https://v.example/w?v=1", "video/*")
    assert file.metadata["gemini"]["videoMetadata"] == {"fps": 0.5}
    assert (bucket.modality, bucket.url) == ("document", "gs://b/x.pdf")
    assert (named.modality, named.url) == ("audio", "urn:gemini-file:files%2Fa%20b")


def test_bytes_are_in_the_alphabet_that_all_others_read() -> None:
    (part,) = said({"inlineData": {"mimeType": "image/png", "data": "-_8="}})

    assert part.url == "data:image/png;base64,+/8="


def test_a_type_with_parameters_is_kept_whole() -> None:
    (part,) = said({"inlineData": {"mimeType": "audio/L16;codec=pcm;rate=24000", "data": "AAAA"}})

    assert (part.modality, part.mime) == ("audio", "audio/L16;codec=pcm;rate=24000")


@pytest.mark.parametrize(
    "part",
    [
        {"executableCode": {"language": "PYTHON", "code": "1"}},
        {"toolCall": {"id": "1", "toolType": "X"}},
        {"newThing": 1},
        {},
        {"thoughtSignature": "AQ=="},
        {"text": "a", "fileData": {"mimeType": "image/png", "fileUri": "gs://b/x"}},
        {"inlineData": {"mimeType": "image/png", "data": PIXEL}, "thought": True},
        {"inlineData": {"mimeType": "image/png"}},
        {"fileData": {"mimeType": "image/png", "fileUri": 'gs://b/"'}},
    ],
)
def test_parts_that_the_core_cannot_express_are_kept_whole_in_their_place(part: dict[str, Any]) -> None:
    assert said({"text": "a"}, part, {"text": "b"}, role="model")[1] == ForeignPart(dialect="gemini", value=part)


@pytest.mark.parametrize(
    "call",
    [
        {"name": "f", "willContinue": True},
        {"name": "f", "partialArgs": [{"jsonPath": "$.q", "stringValue": "a"}]},
        {"name": "f", "will_continue": True, "partial_args": []},
        {"args": {}},
    ],
)
def test_half_a_call_is_no_call(call: dict[str, Any]) -> None:
    conversation = GEMINI.decode([{"role": "model", "parts": [{"functionCall": call}]}])

    assert [message.kind for message in conversation] == ["parts"]
    assert conversation[0].parts == (ForeignPart(dialect="gemini", value={"functionCall": call}),)


# ---------------------------------------------------------------- calls and results


def test_words_and_calls_of_one_content_are_one_turn_in_their_order() -> None:
    parts = [{"text": "a"}, {"functionCall": {"name": "f"}}, {"text": "b"}, {"functionCall": {"name": "g"}}]
    conversation = GEMINI.decode([{"role": "model", "parts": parts}])

    assert [message.kind for message in conversation] == ["parts", "option_call", "parts", "option_call"]
    assert len({message.turn_id for message in conversation}) == 1
    assert conversation[0].turn_id is not None


def test_results_have_no_turn_and_words_beside_them_stay_in_order() -> None:
    conversation = GEMINI.decode(BODIES["results between words"])

    assert [message.kind for message in conversation[2:6]] == ["parts", "option_result", "parts", "option_result"]
    assert {message.turn_id for message in conversation[2:]} == {None}


def test_results_are_paired_by_id_in_any_order() -> None:
    """OP-057."""
    conversation = GEMINI.decode(samples("gemini", "request")[0].body)
    pairs = [(conversation[call].invocation_id, conversation[result].invocation_id) for call, result in conversation.pairs()]

    assert sorted(pairs) == [("fc-1", "fc-1"), ("fc-2", "fc-2"), ("fc-3", "fc-3")]
    assert [result.invocation_id for result in results(conversation)] == ["fc-3", "fc-1", "fc-2"]


def test_without_ids_results_are_paired_by_name_in_the_order_of_the_calls() -> None:
    """OP-057: the ids that are made for them are the same each time."""
    body = BODIES["snake case, as clients write it"]
    conversation = GEMINI.decode(body)
    calls = [m.invocation_id for m in conversation if m.kind == "option_call"]

    assert [result.invocation_id for result in results(conversation)] == calls
    assert len(set(calls)) == 2
    assert calls == [m.invocation_id for m in GEMINI.decode(body) if m.kind == "option_call"]


def test_a_result_with_an_id_that_no_call_has_answers_one_without() -> None:
    """Some clients give results an id even where the call had none."""
    conversation = GEMINI.decode(BODIES["results between words"])
    first, second, orphan = results(conversation)

    assert (first.invocation_id, second.invocation_id) == (conversation[1].invocation_id, "1")
    assert second.option_name == "f"
    assert conversation.orphans() == (conversation[6],)
    assert orphan.option_name == "g"


def test_a_call_that_nobody_answered_is_not_answered_later() -> None:
    """A result without an id is for the turn before it, not for an open call of the same name further up."""
    call = {"role": "model", "parts": [{"functionCall": {"name": "f"}}]}
    contents = [call, {"parts": [{"text": "?"}]}, call, {"parts": [{"functionResponse": {"name": "f", "response": {}}}]}]
    conversation = GEMINI.decode(contents)

    assert conversation.pairs() == ((2, 3),)


def test_arguments_are_objects_and_may_be_absent() -> None:
    parts = [{"functionCall": {"name": "f", "args": {"d": 1.0, "n": 2**60}}}, {"functionCall": {"name": "f"}}]
    first, second = GEMINI.decode([{"role": "model", "parts": parts}])

    assert first.payload.arguments == {"d": 1.0, "n": 2**60}
    assert second.payload.arguments == {}


@pytest.mark.parametrize(
    ("response", "expected"),
    [
        ({"output": "09:00Z"}, "09:00Z"),
        ({"output": None}, None),
        ({"output": {"output": 1}}, {"output": 1}),
        ({"t": -3, "error": None}, {"t": -3, "error": None}),
        ({"ok": 1, "error": False}, {"ok": 1, "error": False}),
        ({"output": 1, "more": 2}, {"output": 1, "more": 2}),
        ({}, {}),
    ],
)
def test_a_response_is_what_its_output_is_or_itself(response: dict[str, Any], expected: Any) -> None:
    read = outcome(response)

    assert read.result == expected
    assert not read.is_error


@pytest.mark.parametrize(
    ("response", "kind", "message", "details"),
    [
        ({"error": "503 upstream"}, "Error", "503 upstream", None),
        ({"error": "Timeout: 5 s"}, "Timeout", "5 s", None),
        ({"error": {"code": 503}}, "Error", '{"code":503}', None),
        ({"error": "no", "retry": True}, "Error", "no", {"retry": True}),
        ({"error": "no", "output": [1]}, "Error", "no", [1]),
        ({"error": ""}, "Error", "", None),
    ],
)
def test_a_response_with_an_error_is_an_error(response: dict[str, Any], kind: str, message: str, details: Any) -> None:
    """OP-061."""
    read = outcome(response)

    assert read.is_error
    assert (read.error_type, read.error_message, read.result) == (kind, message, details)


def test_media_of_a_result_are_its_parts() -> None:
    (result,) = results(GEMINI.decode(samples("gemini", "request")[1].body))

    assert result.result == "see picture"
    assert [part.modality for part in result.parts if isinstance(part, MediaPart)] == ["image", "document"]


def test_names_that_were_given_instead_are_read_as_ours() -> None:
    contents = [
        {"role": "model", "parts": [{"functionCall": {"name": "x_search", "id": "c1"}}]},
        {"role": "user", "parts": [{"functionResponse": {"name": "x_search", "id": "c1", "response": {}}}]},
    ]
    call, result = GEMINI.decode(contents, aliases={"x_search": "web search!"})

    assert call.payload.option_name == result.payload.option_name == result.policy == "web search!"


# ---------------------------------------------------------------- facts of a response


def test_usage_counts_thoughts_and_the_prompts_of_tools() -> None:
    (message,) = GEMINI.decode(samples("gemini", "response")[0].body)

    assert message.usage == Usage(input_tokens=13, output_tokens=26, cache_read_tokens=4, reasoning_tokens=20)
    assert message.id == "resp1"
    assert message.created_at == datetime(2026, 11, 15, 9, tzinfo=UTC)


def test_nanoseconds_are_cut_and_no_time_is_none() -> None:
    body = BODIES["no role"]

    assert GEMINI.decode(body)[0].created_at == datetime(2026, 11, 15, 9, 0, 0, 123456, tzinfo=UTC)
    for odd in ("yesterday", 7, "2026-11-15T09:00:00", "0001-01-01T00:00:00+14:00"):
        assert GEMINI.decode({**body, "createTime": odd})[0].created_at is None


def test_citations_count_characters_where_the_service_counts_bytes() -> None:
    """`Været` has five characters and six bytes; the second source ends inside the text."""
    (message,) = GEMINI.decode(samples("gemini", "response")[0].body)
    _, text, rest = message.parts
    assert isinstance(text, TextPart)
    assert isinstance(rest, TextPart)

    assert text.citations == (
        Citation(url="https://example.org", title="Ex", start=0, end=11),
        Citation(url="https://example.org/l", start=0, end=4),
    )
    assert text.text[0:11] == "Været: sol."
    assert rest.citations == ()


def test_citations_of_all_sources_stand_on_the_part_that_they_are_about() -> None:
    candidate = {
        "content": {"parts": [{"text": "é"}, {"text": "thought", "thought": True}, {"text": "ééé"}]},
        "groundingMetadata": {
            "groundingChunks": [
                {"retrievedContext": {"uri": "gs://b/doc", "title": "Doc", "documentName": "docs/1"}},
                {"maps": {"uri": "https://m.example", "title": "Map"}},
                {"image": {"sourceUri": "https://i.example"}},
            ],
            "groundingSupports": [
                {"segment": {"endIndex": 2}, "groundingChunkIndices": [0, 1, 9]},
                {"segment": {"partIndex": 2, "startIndex": 2, "endIndex": 99}, "groundingChunkIndices": [2]},
                {"segment": {"partIndex": 1, "endIndex": 2}, "groundingChunkIndices": [0]},
            ],
        },
        "citationMetadata": {
            "citationSources": [{"startIndex": 4, "endIndex": 6, "uri": "https://s.example"}, {"startIndex": 99}]
        },
    }
    first, _, last = GEMINI.decode({"candidates": [candidate]})[0].parts
    assert isinstance(first, TextPart)
    assert isinstance(last, TextPart)

    assert first.citations == (
        Citation(url="gs://b/doc", title="Doc", source="docs/1", start=0, end=1),
        Citation(url="https://m.example", title="Map", start=0, end=1),
    )
    assert last.citations == (
        Citation(url="https://i.example", start=1, end=3),
        Citation(url="https://s.example", start=1, end=2),
    )


# ---------------------------------------------------------------- what is wrong


@pytest.mark.parametrize(
    ("body", "error"),
    [
        (7, "gemini: expected a request with contents, a response with candidates, or a list of contents"),
        ({"messages": []}, "gemini: expected a request with contents, a response with candidates, or a list of contents"),
        ([7], "gemini at [0]: expected an object, found a number"),
        ([{"candidates": []}], "gemini at [0]: expected a content with parts"),
        (
            {"contents": [{"role": "assistant"}]},
            "gemini at contents[0].role: unknown role 'assistant'; expected user or model",
        ),
        ({"contents": [{"role": 1}]}, "gemini at contents[0].role: expected text, found a number"),
        ({"contents": [{"parts": "x"}]}, "gemini at contents[0].parts: expected a list, found text"),
        ({"contents": [{"parts": ["hi"]}]}, "gemini at contents[0].parts[0]: expected an object, found text"),
        ({"contents": [{"parts": [{"text": 1}]}]}, "gemini at contents[0].parts[0].text: expected text, found a number"),
        ({"contents": [], "systemInstruction": "Be kind."}, "gemini at systemInstruction: expected a content, found text"),
        (
            {"contents": [], "systemInstruction": {"parts": [{"text": []}]}},
            "gemini at systemInstruction.parts[0].text: expected text, found a list",
        ),
        (
            {"contents": [], "tools": [{"functionDeclarations": {}}]},
            "gemini at tools[0].functionDeclarations: expected a list, found an object",
        ),
        (
            {"candidates": [{"content": {"parts": [{"functionCall": {"name": "f", "args": "{}"}}]}}]},
            "gemini at candidates[0].content.parts[0].functionCall.args: expected an object, found text",
        ),
        ({"candidates": [{"content": "hi"}]}, "gemini at candidates[0].content: expected an object, found text"),
        ([{"parts": [{"functionCall": 1}]}], "gemini at [0].parts[0].functionCall: expected an object, found a number"),
        (
            [{"parts": [{"functionResponse": {"name": "f", "response": []}}]}],
            "gemini at [0].parts[0].functionResponse.response: expected an object, found a list",
        ),
        (
            [{"parts": [{"functionResponse": {"name": "f", "parts": [1]}}]}],
            "gemini at [0].parts[0].functionResponse.parts[0]: expected an object, found a number",
        ),
    ],
)
def test_a_fault_is_reported_with_its_place(body: Any, error: str) -> None:
    with pytest.raises(DecodeError) as caught:
        GEMINI.decode(body)

    assert str(caught.value) == error
