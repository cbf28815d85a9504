"""Pydantic AI's histories there and back: what it stored comes back as it was, and as it would be but for an edit."""

import json
from typing import Any

import pytest
from pydantic_ai import messages as pai
from tests.dialects.pydantic_ai.histories import HISTORIES, NOON, dumped
from tests.dialects.pydantic_ai.mutations import ALL_HISTORIES
from tests.dialects.pydantic_ai.saying import PYDANTIC_AI, said
from tests.providers.samples import SAMPLES, samples
from tests.providers.types import differences, problems, pydantic_ai_load_dump

from antiphon import Conversation, Message, PartsPayload, TextPart, decode, encode
from antiphon.dialects import detect, get, pydantic_ai
from antiphon.errors import DecodeError
from antiphon.messages import DataPart, ForeignPart, MediaPart, OptionResultPayload, ReasoningPart
from antiphon.testing import check_dialect

DIALECT = get(PYDANTIC_AI)
DUMPED = ("everything", "returns", "failures", "rare", "repeating")


def edited(conversation: Conversation, place: int, **changes: Any) -> Conversation:
    """A conversation with one message changed."""
    message = conversation[place].model_copy(update=changes)
    return Conversation([*conversation[:place], message, *conversation[place + 1 :]], metadata=conversation.metadata)


def words(*texts: str) -> PartsPayload:
    return PartsPayload(parts=tuple(TextPart(text=text) for text in texts))


# ---------------------------------------------------------------- the same data


def test_a_message_that_is_edited_while_it_is_read_comes_back_as_it_came() -> None:
    history = ALL_HISTORIES["failures"]

    def named(message: Message) -> Message:
        if not isinstance(message.payload, OptionResultPayload) or not message.payload.is_error:
            return message
        return message.model_copy(
            update={"payload": message.payload.model_copy(update={"error_type": "NAMED", "retryable": True})}
        )

    read = pydantic_ai.DIALECT.decode(history, edit=named)
    assert "NAMED" in {message.payload.error_type for message in read if isinstance(message.payload, OptionResultPayload)}
    assert encode(read, PYDANTIC_AI).value == history


@pytest.mark.slow
@pytest.mark.parametrize("sample", [each for each in samples(PYDANTIC_AI) if each.kind != "stream"], ids=str)
def test_every_sample_keeps_all_promises(sample: Any) -> None:
    check_dialect(DIALECT, [sample.body])


@pytest.mark.slow
@pytest.mark.parametrize("name", [name for name in HISTORIES if name != "repeating"])
def test_every_kind_of_part_keeps_all_promises(name: str) -> None:
    check_dialect(DIALECT, [HISTORIES[name]])


@pytest.mark.parametrize("name", ALL_HISTORIES)
def test_a_history_and_each_unit_of_it_alone_come_back_as_they_came(name: str) -> None:
    for value in (ALL_HISTORIES[name], *ALL_HISTORIES[name]):
        encoded = encode(decode(value, PYDANTIC_AI), PYDANTIC_AI)

        assert not differences(value, encoded.value)
        assert not encoded.losses


@pytest.mark.parametrize("name", DUMPED)
def test_pydantic_ai_loads_its_history_after_we_wrote_it_without_our_notes(name: str) -> None:
    """So nothing that it needs is only in the namespace."""
    bare = Conversation(message.model_copy(update={"metadata": {}}) for message in decode(HISTORIES[name], PYDANTIC_AI))

    assert not problems(PYDANTIC_AI, "request", encode(bare, PYDANTIC_AI).value)


@pytest.mark.parametrize("name", DUMPED)
def test_little_is_kept_besides_what_the_core_says(name: str) -> None:
    """The residue holds facts of requests and responses, and no content."""
    patches = [each for message in decode(HISTORIES[name], PYDANTIC_AI) for each in _residue(message)]
    deep = [each["at"] for each in patches if each["at"][1] == "parts"]

    assert len(deep) <= 2


def _residue(message: Message) -> list[Any]:
    return list(message.metadata[PYDANTIC_AI].get("residue", ()))


def test_text_and_bytes_are_taken_as_well_as_parsed_json() -> None:
    history = HISTORIES["everything"]

    assert decode(json.dumps(history), PYDANTIC_AI) == decode(json.dumps(history).encode(), PYDANTIC_AI)


# ---------------------------------------------------------------- what a part becomes


def test_a_request_is_a_message_for_each_part_and_a_response_one_utterance() -> None:
    conversation = decode(samples(PYDANTIC_AI)[0].body, PYDANTIC_AI)

    assert [(message.policy, message.role_hint_for_llm, message.kind) for message in conversation] == [
        ("system", "system", "parts"),
        ("system", "system", "parts"),
        ("user", "user", "parts"),
        ("assistant", "assistant", "parts"),
        ("assistant", "assistant", "option_call"),
        ("assistant", "assistant", "option_call"),
        ("assistant", "assistant", "option_call"),
        ("now", "tool", "option_result"),
        ("get_weather", "tool", "option_result"),
        ("get_weather", "tool", "option_result"),
        ("assistant", "assistant", "parts"),
    ]
    assert len({message.turn_id for message in conversation[3:7]}) == 1
    assert {message.turn_id for message in (*conversation[:3], *conversation[7:])} == {None}
    assert conversation[0].thread_id == "conv-1"
    assert conversation[3].id == "msg_01"
    assert conversation[0].created_at == NOON.replace(hour=9, microsecond=123456)
    assert conversation[3].usage is not None
    assert conversation[3].usage.input_tokens == 2112
    assert conversation[10].usage is None


def test_arguments_stay_an_object_a_text_or_nothing() -> None:
    calls = decode(HISTORIES["everything"], PYDANTIC_AI).calls()
    arguments = [(call.payload.arguments, call.payload.arguments_text) for call in calls]

    assert arguments == [
        ({"city": "Oslo", "d": 1.0, "big": 2**60}, None),
        ({}, '{"city": "Bergen"'),
        ({"city": "Bergen"}, None),
        ({}, ""),
        ({}, None),
        ({"_raw": "x"}, None),
    ]


def test_of_five_outcomes_two_are_errors() -> None:
    """OP-061: a retry says that calling again may help."""
    results = [message.payload for message in decode(HISTORIES["everything"], PYDANTIC_AI) if message.kind == "option_result"]
    found = [(each.is_error, each.error_type, each.error_message, each.retryable, each.result) for each in results]

    assert found == [
        (False, None, None, None, "09:00Z"),
        (False, None, None, None, {"t": -3, "none": None}),
        (True, "Error", "bad", True, None),
        (True, "Timeout", "late", None, None),
        (False, None, None, None, "not allowed"),
        (False, None, None, None, None),
    ]


def test_files_in_a_return_are_media_and_what_only_looks_like_one_is_data() -> None:
    result = decode(samples(PYDANTIC_AI)[1].body, PYDANTIC_AI)[-1].payload

    assert isinstance(result, OptionResultPayload)
    assert [type(part) for part in result.parts] == [TextPart, MediaPart, MediaPart, DataPart]


def test_a_file_that_no_digest_vouches_for_stays_data() -> None:
    """As in Pydantic AI, where a tool could otherwise make it fetch anything."""
    image = {"kind": "image-url", "url": "https://x.example/a.png", "media_type": "image/png"}
    upload = {"kind": "uploaded-file", "file_id": "f", "provider_name": "openai"}
    part = {"part_kind": "tool-return", "tool_name": "t", "tool_call_id": "c"}
    results = [
        decode([{"kind": "request", "parts": [{**part, "content": content, **record}]}], PYDANTIC_AI)[0].payload
        for content in (image, {**image, "url": "file:///a.png"}, upload)
        for record in ({}, {"content_file_digests": []})
    ]

    assert [isinstance(each, OptionResultPayload) and bool(each.parts) for each in results] == [True, *[False] * 5]


def test_bytes_have_the_standard_alphabet_in_the_core() -> None:
    image = decode(samples(PYDANTIC_AI)[1].body, PYDANTIC_AI)[0].parts[2]

    assert isinstance(image, MediaPart)
    assert image.url == "data:image/png;base64,//777w=="


def test_a_thought_has_its_proof_and_says_who_gave_it() -> None:
    thoughts = [part for part in decode(HISTORIES["everything"], PYDANTIC_AI)[8].parts if isinstance(part, ReasoningPart)]

    assert [(each.text, each.signature, each.encrypted_content) for each in thoughts] == [
        ("two lookups", "EqQB==", None),
        ("", None, "EmwK"),
        ("", "gAAA", None),
        ("unsigned", None, None),
        ("", None, None),
    ]
    assert thoughts[0].metadata[PYDANTIC_AI] == {"provider_name": "anthropic"}


def test_parts_that_pydantic_ai_writes_itself_are_not_the_users() -> None:
    conversation = decode(HISTORIES["rare"], PYDANTIC_AI)
    by_itself = [message for message in conversation if message.policy == "runtime"]

    assert [type(message.parts[0]) for message in by_itself] == [
        TextPart,  # a summary of what was compacted
        ForeignPart,  # speech of which nothing was kept
        DataPart,  # errors of validation
        TextPart,
        *[ForeignPart] * 4,  # bookkeeping
    ]
    assert {message.role_hint_for_llm for message in by_itself} == {"user"}


def test_a_citation_of_several_sources_is_one_in_the_core_for_each() -> None:
    text = decode(HISTORIES["rare"], PYDANTIC_AI)[-1].parts[-1]

    assert isinstance(text, TextPart)
    assert [(each.url, each.source, each.title, each.quote, each.start, each.end) for each in text.citations] == [
        ("https://a.example", None, "A", "one", 0, 5),
        (None, "d1", "D", None, 0, 5),
        (None, None, None, "only words", 6, 11),
        ("https://b.example", None, None, None, None, None),
    ]


# ---------------------------------------------------------------- instructions


def test_instructions_are_said_where_they_change_and_not_between_a_call_and_its_result() -> None:
    conversation = decode(HISTORIES["repeating"], PYDANTIC_AI)
    spoken = [(place, message.text) for place, message in enumerate(conversation) if message.policy == "system"]

    assert [text for _, text in spoken] == ["A", "B", "A"]
    assert all(conversation[place + 1].policy == "user" for place, _ in spoken)


def test_new_instructions_beside_results_are_said_after_them() -> None:
    history = dumped(
        pai.ModelResponse(parts=[pai.ToolCallPart("t", {}, "c")], timestamp=NOON),
        pai.ModelRequest(parts=[pai.ToolReturnPart("t", "r", "c", timestamp=NOON)], instructions="Be kind."),
    )
    conversation = decode(history, PYDANTIC_AI)

    assert [message.kind for message in conversation] == ["option_call", "option_result", "parts"]
    assert encode(conversation, PYDANTIC_AI).value == history


def test_edited_instructions_hold_on_every_request_on_which_they_were() -> None:
    """Pydantic AI looks at the last request, so an edit that reached only the first would do nothing."""
    history = HISTORIES["repeating"]
    changed = encode(edited(decode(history, PYDANTIC_AI), 0, payload=words("C")), PYDANTIC_AI).value
    before = [unit["instructions"] for unit in history if unit["kind"] == "request"]

    assert [unit["instructions"] for unit in changed if unit["kind"] == "request"] == ["C"] * 4 + before[4:]
    assert [unit["parts"] for unit in changed] == [unit["parts"] for unit in history]


def test_instructions_hold_for_what_is_appended_from_elsewhere() -> None:
    history = dumped(pai.ModelRequest(parts=[pai.UserPromptPart("hi", timestamp=NOON)], instructions="Be kind."))
    longer = decode(history, PYDANTIC_AI).append(said("and then?"))
    value = encode(longer, PYDANTIC_AI).value

    assert [unit["instructions"] for unit in value] == ["Be kind.", "Be kind."]
    assert not problems(PYDANTIC_AI, "request", value)
    assert not encode(longer, PYDANTIC_AI).losses


def test_instructions_without_their_note_are_a_system_prompt() -> None:
    """The meaning does not hang on the namespace."""
    bare = Conversation(message.model_copy(update={"metadata": {}}) for message in decode(HISTORIES["repeating"], PYDANTIC_AI))
    encoded = encode(bare, PYDANTIC_AI)

    assert not encoded.losses
    assert encoded.value[0]["parts"][0]["content"] == "A"
    assert encoded.value[0]["parts"][0]["part_kind"] == "system-prompt"


# ---------------------------------------------------------------- edits


def test_a_result_that_is_edited_keeps_all_else_of_it() -> None:
    history = samples(PYDANTIC_AI)[0].body
    conversation = decode(history, PYDANTIC_AI)
    result = conversation[8].payload.model_copy(update={"result": {"t": 4}})
    value = encode(edited(conversation, 8, payload=result), PYDANTIC_AI).value

    assert value[2]["parts"][1] == {**history[2]["parts"][1], "content": {"t": 4}}
    assert [unit for place, unit in enumerate(value) if place != 2] == [
        each for place, each in enumerate(history) if place != 2
    ]


def test_an_error_that_came_as_json_is_json_again_unless_it_is_edited_to_words() -> None:
    errors = [{"type": "missing", "loc": ["a"], "msg": "Field required"}]
    history = dumped(
        pai.ModelResponse(parts=[pai.ToolCallPart("t", {}, "c")], timestamp=NOON),
        pai.ModelRequest(parts=[pai.ToolReturnPart("t", errors, "c", timestamp=NOON, outcome="retried")]),
    )
    conversation = decode(history, PYDANTIC_AI)
    changed = conversation[1].payload.model_copy(update={"error_message": "Give an a."})

    assert encode(conversation, PYDANTIC_AI).value == history
    assert encode(edited(conversation, 1, payload=changed), PYDANTIC_AI).value[1]["parts"][0]["content"] == "Give an a."


def test_a_part_that_moves_takes_its_proof_along() -> None:
    history = HISTORIES["everything"]
    conversation = decode(history, PYDANTIC_AI)
    turn = conversation[8]
    longer = PartsPayload(parts=(TextPart(text="Well."), *turn.parts))
    parts = encode(edited(conversation, 8, payload=longer), PYDANTIC_AI).value[1]["parts"]

    assert parts[0]["content"] == "Well."
    assert parts[1:] == history[1]["parts"]


def test_changing_the_written_value_does_not_change_the_conversation() -> None:
    conversation = decode(HISTORIES["everything"], PYDANTIC_AI)
    encode(conversation, PYDANTIC_AI).value[2]["parts"][1]["metadata"]["ms"] = 13
    encode(conversation, PYDANTIC_AI).value[0]["parts"][2]["content"][7]["vendor_metadata"]["detail"] = "high"

    assert encode(conversation, PYDANTIC_AI).value == HISTORIES["everything"]


# ---------------------------------------------------------------- what it is, and what it is not


@pytest.mark.parametrize("name", [name for name in ALL_HISTORIES if name != "empty"])
def test_a_history_is_recognised(name: str) -> None:
    assert detect(ALL_HISTORIES[name]).name == PYDANTIC_AI


@pytest.mark.parametrize("sample", [each for each in SAMPLES if each.dialect != PYDANTIC_AI or each.kind == "stream"], ids=str)
def test_data_of_other_frameworks_is_not_taken_for_a_history(sample: Any) -> None:
    assert DIALECT.recognise(sample.body) is None


@pytest.mark.parametrize(
    ("data", "where", "reason"),
    [
        ("7", "", "expected a list of requests and responses"),
        ({"parts": []}, "", "expected a list of requests and responses"),
        ([7], "[0]", "expected an object, found a number"),
        ([{"kind": "reply"}], "[0].kind", "expected 'request' or 'response', found 'reply'"),
        ([{"kind": "request"}], "[0].parts", "expected a list, found nothing"),
        ([{"kind": "request", "parts": [{}]}], "[0].parts[0].part_kind", "expected text, found nothing"),
        ([{"kind": "request", "parts": [], "instructions": []}], "[0].instructions", "expected text, found a list"),
        (
            [{"kind": "request", "parts": [{"part_kind": "user-prompt", "content": ["a", 7]}]}],
            "[0].parts[0].content[1]",
            "expected text or an object, found a number",
        ),
        (
            {"kind": "response", "parts": [{"part_kind": "tool-call", "tool_name": "t", "args": []}]},
            "parts[0].args",
            "expected an object or its text, found a list",
        ),
        (
            {"kind": "response", "parts": [{"part_kind": "tool-call", "tool_name": "t", "tool_call_id": 7}]},
            "parts[0].tool_call_id",
            "expected text, found a number",
        ),
        (
            {"kind": "request", "parts": [{"part_kind": "tool-return", "tool_name": "t", "tool_call_id": 7}]},
            "parts[0].tool_call_id",
            "expected text, found a number",
        ),
        (
            {"kind": "request", "parts": [{"part_kind": "tool-return", "content": ""}]},
            "parts[0].tool_name",
            "expected text, found nothing",
        ),
    ],
)
def test_a_fault_is_refused_with_its_place(data: Any, where: str, reason: str) -> None:
    with pytest.raises(DecodeError) as caught:
        decode(data, PYDANTIC_AI)

    assert caught.value.where == where
    assert reason in str(caught.value)


def test_pydantic_ai_agrees_that_the_histories_are_its_own() -> None:
    for name in DUMPED:
        assert not differences(HISTORIES[name], pydantic_ai_load_dump(HISTORIES[name]))
