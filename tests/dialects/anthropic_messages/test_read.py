"""How blocks of Anthropic Messages are read, and how faults in them are reported."""

from typing import Any

import pytest
from tests.dialects.anthropic_messages.bodies import REQUESTS, RESPONSES
from tests.providers.samples import samples

from antiphon import Conversation, decode
from antiphon.dialects import get, names
from antiphon.errors import DecodeError
from antiphon.messages import (
    Citation,
    ForeignPart,
    MediaPart,
    Message,
    OptionCallPayload,
    OptionResultPayload,
    Part,
    ReasoningPart,
    TextPart,
    Usage,
)

NAME = "anthropic-messages"
SAMPLE = {sample.name.split("--")[1][:2]: sample.body for sample in samples(NAME)}


def _parts(block: dict[str, Any], role: str = "user") -> tuple[Part, ...]:
    return decode([{"role": role, "content": [block]}], NAME)[0].parts


def _outcome(**keys: Any) -> OptionResultPayload:
    block = {"type": "tool_result", "tool_use_id": "toolu_1", **keys}
    payload = decode([{"role": "user", "content": [block]}], NAME)[0].payload
    assert isinstance(payload, OptionResultPayload)
    return payload


def _kinds(conversation: Conversation) -> list[tuple[str, str, str | None]]:
    return [(message.kind, message.policy, message.role_hint_for_llm) for message in conversation]


# ---------------------------------------------------------------- messages


def test_roles_become_hints_and_policies() -> None:
    """OP-054: an option speaks in its own name, the instructions come first."""
    assert _kinds(decode(SAMPLE["01"], NAME)) == [
        ("parts", "system", "system"),
        ("parts", "user", "user"),
        ("parts", "assistant", "assistant"),
        ("option_call", "assistant", "assistant"),
        ("option_call", "assistant", "assistant"),
        ("option_call", "assistant", "assistant"),
        ("option_result", "radar", "tool"),
        ("option_result", "get_weather", "tool"),
        ("option_result", "get_weather", "tool"),
        ("parts", "user", "user"),
        ("parts", "assistant", "assistant"),
        ("parts", "user", "user"),
    ]


def test_the_blocks_of_one_assistant_message_are_one_turn() -> None:
    """Text between calls stays between them; results and lone messages have no turn."""
    conversation = decode(REQUESTS["server tools around a client's"], NAME)
    turn = conversation[1].turn_id
    assert turn is not None
    assert [(message.kind, message.turn_id) for message in conversation] == [
        ("parts", None),
        ("parts", turn),
        ("option_call", turn),
        ("parts", turn),
        ("option_result", None),
        ("parts", None),
    ]


def test_calls_and_results_pair_by_id_in_any_order() -> None:
    """OP-057"""
    conversation = decode(SAMPLE["01"], NAME)
    assert set(conversation.pairs()) == {(3, 8), (4, 7), (5, 6)}
    assert conversation.open_calls() == ()
    call = conversation[3].payload
    assert isinstance(call, OptionCallPayload)
    assert call.arguments == {"city": "Oslo", "precision": 1.0, "big": 9007199254740993}
    assert call.arguments_text is None


def test_a_response_has_its_id_and_what_it_cost() -> None:
    """In the format, `input_tokens` leaves out what the cache gave or took; in the core it is all of the prompt."""
    first, *more = decode(RESPONSES["thinking, text and a call"], NAME)
    assert first.id == first.turn_id == "msg_01Y"
    assert first.usage == Usage(input_tokens=10, output_tokens=5, cache_read_tokens=3)
    assert [(each.id, each.usage) for each in more] == [("msg_01Y#2", None)]
    usage = decode(SAMPLE["04"], NAME)[0].usage
    assert usage == Usage(
        input_tokens=2112, output_tokens=1, cache_read_tokens=2000, cache_write_tokens=100, reasoning_tokens=0
    )


@pytest.mark.parametrize("usage", [None, 7, {}, {"input_tokens": True, "output_tokens": -1}, {"input_tokens": 2**60}])
def test_usage_of_no_sense_is_not_counted(usage: Any) -> None:
    message = decode({**RESPONSES["thinking, text and a call"], "usage": usage}, NAME)[0]
    assert message.usage in (None, Usage())


def test_tools_of_the_caller_are_read_and_those_of_the_provider_kept() -> None:
    (tool,) = decode(REQUESTS["server tools around a client's"], NAME).tools
    assert (tool.name, tool.description, tool.parameters) == ("save", None, {"type": "object"})


# ---------------------------------------------------------------- blocks


@pytest.mark.parametrize(
    ("block", "expected"),
    [
        ({"type": "text", "text": "hi"}, TextPart(text="hi")),
        (
            {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": "AA=="}},
            MediaPart(modality="image", url="data:image/png;base64,AA=="),
        ),
        (
            {"type": "image", "source": {"type": "url", "url": "https://img.example/a"}},
            MediaPart(modality="image", url="https://img.example/a"),
        ),
        (
            {"type": "document", "source": {"type": "file", "file_id": "file/1"}, "title": "Report"},
            MediaPart(modality="document", url="urn:anthropic-file:file%2F1", prompt_hint="Report"),
        ),
        (
            {"type": "document", "source": {"type": "text", "media_type": "text/plain", "data": "é"}},
            MediaPart(modality="document", url="data:text/plain;base64,w6k="),
        ),
    ],
)
def test_text_and_media_are_parts(block: dict[str, Any], expected: Part) -> None:
    """OP-055"""
    assert _parts(block) == (expected,)


@pytest.mark.slow
def test_reasoning_keeps_its_proof_and_whose_it_is() -> None:
    mine = {NAME: dict[str, Any]()}
    thinking = {"type": "thinking", "thinking": "", "signature": "EqQB"}
    assert _parts(thinking, "assistant") == (ReasoningPart(signature="EqQB", metadata=mine),)
    redacted = {"type": "redacted_thinking", "data": "EmwK"}
    assert _parts(redacted, "assistant") == (ReasoningPart(encrypted_content="EmwK", metadata=mine),)


@pytest.mark.parametrize(
    "block",
    [
        {"type": "server_tool_use", "id": "srvtoolu_1", "name": "web_search", "input": {}},
        {"type": "of_next_year", "deep": [{"x": 1.0}]},
        {"no": "type"},
        {"type": "document", "source": {"type": "content", "content": "chunks"}},
        {"type": "image", "source": {"type": "url", "url": "ftp://old.example/a.png"}},
        {"type": "tool_result", "tool_use_id": "toolu_1"},
    ],
)
def test_blocks_that_the_core_cannot_express_are_kept_in_their_place(block: dict[str, Any]) -> None:
    content = [{"type": "text", "text": "a"}, block, {"type": "text", "text": "b"}]
    (message,) = decode([{"role": "assistant", "content": content}], NAME)
    assert message.parts == (TextPart(text="a"), ForeignPart(dialect=NAME, value=block), TextPart(text="b"))


def test_settings_of_a_block_are_notes_on_its_part() -> None:
    """OP-064: cache marks, the context of a document, what is done to an image."""
    mark = {"type": "ephemeral", "ttl": "1h"}
    source = {"type": "url", "url": "https://docs.example/a.pdf"}
    document = {"type": "document", "source": source, "context": "a draft", "citations": {"enabled": True}}
    assert _parts({"type": "text", "text": "hi", "cache_control": mark})[0].metadata == {NAME: {"cache_control": mark}}
    assert _parts(document)[0].metadata == {NAME: {"context": "a draft", "citations": {"enabled": True}}}
    image = {"type": "image", "source": source, "transformations": {"oversized_image": "error"}}
    assert _parts(image)[0].metadata == {NAME: {"transformations": {"oversized_image": "error"}}}


def test_a_citation_says_what_is_quoted_and_from_where() -> None:
    """It rests on all of its block, so there are no offsets; where the source is quoted from stays a note."""
    parts = decode(SAMPLE["02"], NAME)[2].parts
    cited = [part.citations for part in parts if isinstance(part, TextPart)]
    assert cited == [
        (),
        (
            Citation(
                quote="Grass is green.",
                metadata={
                    NAME: {
                        "type": "char_location",
                        "document_index": 1,
                        "document_title": None,
                        "start_char_index": 0,
                        "end_char_index": 15,
                    }
                },
            ),
        ),
        (
            Citation(
                title="Report",
                quote="green",
                metadata={NAME: {"type": "page_location", "document_index": 0, "start_page_number": 3, "end_page_number": 4}},
            ),
            Citation(
                title="KB 42",
                source="kb://42",
                quote="Water is wet.",
                metadata={
                    NAME: {
                        "type": "search_result_location",
                        "search_result_index": 0,
                        "start_block_index": 0,
                        "end_block_index": 1,
                    }
                },
            ),
        ),
        (),
    ]


# ---------------------------------------------------------------- results


@pytest.mark.parametrize(
    ("keys", "result"),
    [
        ({}, None),
        ({"content": None}, None),
        ({"content": ""}, ""),
        ({"content": "18 °C"}, "18 °C"),
        ({"content": [{"type": "text", "text": "18 °C"}]}, "18 °C"),
        ({"content": "x", "is_error": False}, "x"),
    ],
)
def test_a_result_that_is_one_text_is_that_text(keys: dict[str, Any], result: str | None) -> None:
    outcome = _outcome(**keys)
    assert (outcome.result, outcome.parts, outcome.is_error) == (result, (), False)


def test_a_result_of_several_blocks_shows_them_in_order() -> None:
    text, image = {"type": "text", "text": "09:00"}, {"type": "image", "source": {"type": "url", "url": "https://a.example/i"}}
    outcome = _outcome(content=[text, image])
    assert outcome.parts == (TextPart(text="09:00"), MediaPart(modality="image", url="https://a.example/i"))


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        ("upstream 503", ("Error", "upstream 503")),
        ("Timeout: no answer", ("Timeout", "no answer")),
        ([{"type": "text", "text": "a"}, {"type": "text", "text": "b"}], ("Error", "a\nb")),
        (None, ("Error", "")),
    ],
)
def test_an_error_is_read_as_one(content: Any, expected: tuple[str, str]) -> None:
    """OP-061"""
    outcome = _outcome(content=content, is_error=True)
    assert (outcome.is_error, (outcome.error_type, outcome.error_message)) == (True, expected)


# ---------------------------------------------------------------- what is wrong


@pytest.mark.parametrize(
    ("data", "where", "reason"),
    [
        (7, "", "expected a request with messages"),
        ({"messages": 7}, "", "expected a request with messages"),
        ([{"content": "x"}], "[0].role", "expected text, found nothing"),
        ({"messages": [7]}, "messages[0]", "expected an object, found a number"),
        ({"messages": [{"role": "tool"}]}, "messages[0].role", "unknown role 'tool'; expected one of user, assistant, system"),
        ({"messages": [{"role": "user"}]}, "messages[0].content", "expected text or a list of blocks, found nothing"),
        ({"role": "user", "content": [7]}, "content[0]", "expected a block, found a number"),
        ({"type": "message", "role": "assistant", "content": {}}, "content", "a list of blocks, found an object"),
        ({"messages": [], "system": 7}, "system", "expected text or a list of blocks, found a number"),
        ({"messages": [], "system": [{"type": "text"}]}, "system[0].text", "expected text, found nothing"),
        ([{"role": "user", "content": [{"type": "text", "text": 1}]}], "[0].content[0].text", "expected text"),
        ([{"role": "assistant", "content": [{"type": "thinking"}]}], "[0].content[0].thinking", "expected text"),
        ([{"role": "assistant", "content": [{"type": "redacted_thinking"}]}], "[0].content[0].data", "expected text"),
        ([{"role": "assistant", "content": [{"type": "tool_use", "id": "a"}]}], "[0].content[0].name", "expected text"),
        (
            [{"role": "assistant", "content": [{"type": "tool_use", "id": "a", "name": "f", "input": []}]}],
            "[0].content[0].input",
            "expected an object, found a list",
        ),
        ([{"role": "user", "content": [{"type": "tool_result"}]}], "[0].content[0].tool_use_id", "expected text"),
        (
            [{"role": "user", "content": [{"type": "tool_result", "tool_use_id": "a", "content": [7]}]}],
            "[0].content[0].content[0]",
            "expected a block, found a number",
        ),
        ([{"role": "assistant", "content": [{"type": "tool_use", "id": "a\x00", "name": "f"}]}], "[0]", "A name is"),
        ({"messages": [], "tools": [{"name": "f", "input_schema": {}, "description": 7}]}, "tools", "a tool"),
    ],
)
def test_a_fault_is_reported_with_its_place(data: Any, where: str, reason: str) -> None:
    with pytest.raises(DecodeError) as caught:
        decode(data, NAME)
    assert caught.value.where == where
    assert reason in str(caught.value)


# ---------------------------------------------------------------- recognising


@pytest.mark.parametrize("sample", [each for each in samples() if each.kind != "stream"], ids=str)
def test_it_recognises_its_own_samples_and_no_others(sample: Any) -> None:
    assert (get(NAME).recognise(sample.body) is not None) == (sample.dialect == NAME)


def test_it_recognises_a_part_of_a_history() -> None:
    messages = SAMPLE["01"]["messages"]
    recognise = get(NAME).recognise
    assert recognise(messages) == "messages with blocks of Anthropic Messages"
    assert recognise(messages[1]) == "messages with blocks of Anthropic Messages"
    assert recognise({"messages": messages}) == "a request of Anthropic Messages"
    assert recognise({"messages": messages[:1], "max_tokens": 5}) == "a request with messages and max_tokens"
    assert (
        recognise({"messages": messages[:1], "tools": [{"name": "f", "input_schema": {}}]})
        == "a request of Anthropic Messages"
    )


@pytest.mark.parametrize(
    "data",
    [
        None,
        "text",
        [],
        {},
        {"messages": []},
        {"messages": [{"role": "user", "content": "hi"}]},
        {"messages": [{"role": "tool", "content": "hi", "tool_call_id": "a"}], "max_tokens": 5},
        {"messages": [{"role": "user", "content": "hi"}], "max_tokens": 5, "tools": [{"type": "function", "function": {}}]},
        [{"role": "user", "content": "hi"}],
        [{"role": "assistant", "content": [{"type": "tool_use"}], "tool_calls": []}],
        {"type": "message", "role": "assistant", "content": []},
    ],
)
def test_it_claims_nothing_that_others_say_too(data: Any) -> None:
    assert get(NAME).recognise(data) is None


def test_it_is_among_the_dialects() -> None:
    assert NAME in names()


def test_ids_without_one_come_from_place_and_content() -> None:
    """Read twice, a history has the same ids; said twice, the same words are two messages."""
    history = [{"role": "user", "content": "hi"}, {"role": "user", "content": "hi"}]
    once, again = decode(history, NAME), decode(history, NAME)
    assert [message.id for message in once] == [message.id for message in again]
    assert len({message.id for message in once}) == 2


def test_an_alias_is_read_as_its_original() -> None:
    block = {"type": "tool_use", "id": "a_1", "name": "f_1", "input": {}}
    message: Message = get(NAME).decode([{"role": "assistant", "content": [block]}], aliases={"a_1": "a.1", "f_1": "f.1"})[0]
    assert isinstance(message.payload, OptionCallPayload)
    assert (message.payload.invocation_id, message.payload.option_name) == ("a.1", "f.1")
