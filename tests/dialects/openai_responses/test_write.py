"""Conversations from elsewhere as OpenAI Responses accepts them: in short messages, without ids and foreign proofs."""

from typing import Any

import pytest
from tests.dialects.openai_responses.items import PIXEL
from tests.dialects.samples import SAMPLES as SEEDS
from tests.providers.samples import SAMPLES, samples
from tests.providers.types import as_request, problems

from antiphon import (
    Conversation,
    DataPart,
    ForeignPart,
    MediaPart,
    Message,
    OptionCallPayload,
    OptionResultPayload,
    PartsPayload,
    ReasoningPart,
    TextPart,
    decode,
    encode,
    repair,
)
from antiphon.messages import Citation, Part, Tool

RESPONSES = "openai-responses"
IMAGE = MediaPart(modality="image", url="https://example.com/a.png")


def said(*parts: Part | str, policy: str = "user", **fields: Any) -> Message:
    words = tuple(TextPart(text=part) if isinstance(part, str) else part for part in parts)
    return Message(policy=policy, payload=PartsPayload(parts=words), **fields)


def called(invocation: str, option: str = "search", **fields: Any) -> Message:
    payload = OptionCallPayload(invocation_id=invocation, option_name=option, arguments={"q": "x"})
    return Message(policy="assistant", payload=payload, **fields)


def answered(invocation: str, option: str = "search", **outcome: Any) -> Message:
    payload = OptionResultPayload(invocation_id=invocation, option_name=option, **(outcome or {"result": "found"}))
    return Message(policy=option, payload=payload)


def body(*history: Message, **options: Any) -> dict[str, Any]:
    """The request written, which the SDK's own types accept."""
    value = encode(Conversation(history), RESPONSES, **options).value
    assert problems(RESPONSES, "request", as_request(RESPONSES, value)) == []
    return dict(value)


def items(*history: Message, **options: Any) -> list[dict[str, Any]]:
    return list(body(*history, **options)["input"])


def losses(*history: Message) -> set[str]:
    return {loss.what for loss in encode(Conversation(history), RESPONSES).losses}


# ---------------------------------------------------------------- who says what


def test_role_hints_become_roles() -> None:
    """OP-054, OP-059: the hint decides, else the policy."""
    found = items(
        said("hi", policy="alice", role_hint_for_llm="user"),
        said("hello", policy="planner", role_hint_for_llm="assistant"),
        said("hm", policy="assistant"),
        said("be brief", policy="system"),
    )

    assert found == [
        {"role": "user", "content": "hi"},
        {"role": "assistant", "content": "hello"},
        {"role": "assistant", "content": "hm"},
        {"role": "system", "content": "be brief"},
    ]


def test_the_viewpoint_decides_whose_words_are_the_assistants() -> None:
    found = items(said("a", policy="planner"), said("b", policy="writer"), as_policy="writer")

    assert [unit["role"] for unit in found] == ["user", "assistant"]


def test_instructions_in_front_have_their_own_place_and_later_ones_are_items() -> None:
    """The place holds one message; so a second one loses nothing, and a longer history begins like a shorter one."""
    history = (
        said("Be brief.", policy="system"),
        said("Be kind.", policy="system"),
        said("hi"),
        said("Now rhyme.", policy="system"),
    )
    written = body(*history)

    assert written["instructions"] == "Be brief."
    assert [(unit["role"], unit["content"]) for unit in written["input"]] == [
        ("system", "Be kind."),
        ("user", "hi"),
        ("system", "Now rhyme."),
    ]
    assert losses(*history) == set()


def test_empty_messages_are_not_written() -> None:
    nothing = said(ForeignPart(dialect="gemini", value={"x": 1}))

    assert items(nothing, said("hi")) == [{"role": "user", "content": "hi"}]
    assert losses(nothing) == {"message"}
    assert items(said()) == [{"role": "user", "content": ""}]


# ---------------------------------------------------------------- parts


def test_parts_become_content_parts() -> None:
    """OP-055, OP-059: text and media in order; what cannot be shown is told in words, and that is reported."""
    message = said(
        "look",
        IMAGE,
        MediaPart(modality="image", url=f"data:image/png;base64,{PIXEL}"),
        MediaPart(modality="image", url="urn:openai-file:file-1"),
        MediaPart(modality="document", url="data:application/pdf;base64,AAAA", metadata={"file": {"name": "a.pdf"}}),
        MediaPart(modality="document", url="https://example.com/a.pdf"),
        MediaPart(modality="document", url="urn:openai-file:file-2"),
        MediaPart(modality="audio", url="data:audio/wav;base64,AAAA"),
        MediaPart(modality="image", url="gs://bucket/a.png"),
        DataPart(data={"a": 1}),
    )
    (unit,) = items(message)

    assert unit["content"] == [
        {"type": "input_text", "text": "look"},
        {"type": "input_image", "detail": "auto", "image_url": "https://example.com/a.png"},
        {"type": "input_image", "detail": "auto", "image_url": f"data:image/png;base64,{PIXEL}"},
        {"type": "input_image", "detail": "auto", "file_id": "file-1"},
        {"type": "input_file", "file_data": "data:application/pdf;base64,AAAA", "filename": "a.pdf"},
        {"type": "input_file", "file_url": "https://example.com/a.pdf"},
        {"type": "input_file", "file_id": "file-2"},
        {"type": "input_text", "text": "[audio, not shown]"},
        {"type": "input_text", "text": "[image, not shown]"},
        {"type": "input_text", "text": '{"a":1}'},
    ]
    assert losses(message) == {"media", "text", "data"}


@pytest.mark.parametrize(
    ("mime", "name"), [("application/pdf", "document.pdf"), ("text/plain", "document.txt"), ("a/b+c", "document.bin")]
)
def test_a_file_of_bytes_always_has_a_name(mime: str, name: str) -> None:
    """The service refuses one without."""
    (unit,) = items(said(MediaPart(modality="document", url=f"data:{mime};base64,AAAA")))

    assert unit["content"][0]["filename"] == name


def test_settings_of_parts_are_written() -> None:
    """OP-064: those noted here, or by the sibling that has the same; else those given for all."""
    low = IMAGE.model_copy(update={"metadata": {RESPONSES: {"detail": "low"}}})
    high = IMAGE.model_copy(update={"metadata": {"openai-chat": {"detail": "high"}}})
    cached = TextPart(text="long", metadata={RESPONSES: {"prompt_cache_breakpoint": {"mode": "explicit"}}})
    (unit,) = items(said(low, high, IMAGE, cached), image_detail="original")

    assert [part.get("detail") for part in unit["content"]] == ["low", "high", "original", None]
    assert unit["content"][3]["prompt_cache_breakpoint"] == {"mode": "explicit"}


def test_media_get_labels_on_request() -> None:
    """OP-056: counted through the conversation, results included."""
    found = items(
        said(IMAGE, IMAGE), called("c1"), answered("c1", parts=(IMAGE,)), said("yes", policy="assistant"), media_labels=True
    )

    labels = [part["text"] for part in (*found[0]["content"], *found[2]["output"]) if part["type"] == "input_text"]
    assert labels == ["Media 1:", "Media 2:", "Media 3:"]


def test_an_assistant_message_is_one_text() -> None:
    """A list would need the parts of the service's own messages, and those an id."""
    cited = TextPart(text="Yes.", citations=(Citation(url="https://example.com"),))
    message = said(cited, "No.", IMAGE, policy="assistant")

    assert items(message) == [{"role": "assistant", "content": "Yes.\nNo.\n[image: https://example.com/a.png]"}]
    assert losses(message) == {"citations", "text", "media"}
    assert losses(said("Yes.", "No.", policy="assistant")) == set()


# ---------------------------------------------------------------- thoughts


def test_reasoning_of_other_providers_is_not_written() -> None:
    message = said(ReasoningPart(text="hm", signature="s", encrypted_content="e"), "yes", policy="assistant")

    assert items(message) == [{"role": "assistant", "content": "yes"}]
    assert losses(message) == {"reasoning"}


def test_reasoning_of_our_own_goes_with_its_id_and_proof() -> None:
    """Also in a message that another program put together; without its id it is left out."""
    own = ReasoningPart(text="hm", encrypted_content="gAAA", metadata={RESPONSES: {"id": "rs_1", "in": "summary"}})
    more = ReasoningPart(text="ah", metadata={RESPONSES: {"in": "content"}})
    lost = ReasoningPart(text="hm", encrypted_content="gAAA", metadata={RESPONSES: {"id": None}})

    assert items(said("first", own, more, "then", policy="assistant")) == [
        {"role": "assistant", "content": "first"},
        {
            "type": "reasoning",
            "id": "rs_1",
            "summary": [{"type": "summary_text", "text": "hm"}],
            "content": [{"type": "reasoning_text", "text": "ah"}],
            "encrypted_content": "gAAA",
        },
        {"role": "assistant", "content": "then"},
    ]
    assert items(said(lost, "then", policy="assistant")) == [{"role": "assistant", "content": "then"}]
    assert items(said(own, "then", policy="assistant"), as_policy="other") == [{"role": "user", "content": "then"}]


# ---------------------------------------------------------------- calls and results


def test_calls_are_paired_with_results_and_open_ones_left_out() -> None:
    """OP-057, OP-058: an item each, without item ids; an incomplete call is not said, and that is reported."""
    history = (said("go"), called("c1"), called("c2"), called("c3"), said("wait"), answered("c2"), answered("c1"))
    found = items(*history)

    assert [(unit.get("type"), unit.get("call_id")) for unit in found] == [
        (None, None),
        ("function_call", "c1"),
        ("function_call", "c2"),
        ("function_call_output", "c2"),
        ("function_call_output", "c1"),
        (None, None),
    ]
    assert found[1] == {"type": "function_call", "call_id": "c1", "name": "search", "arguments": '{"q":"x"}'}
    reported = {(loss.message_id, loss.what) for loss in encode(Conversation(history), RESPONSES).losses}
    assert {(history[3].id, "message"), (history[5].id, "order"), (history[6].id, "order")} <= reported


def test_an_orphan_result_is_left_out_and_reported() -> None:
    assert items(said("go"), answered("gone")) == [{"role": "user", "content": "go"}]
    assert losses(said("go"), answered("gone")) == {"message"}


def test_an_error_is_readable() -> None:
    """OP-061: in words, with its details, never null; and that there is no flag is reported."""
    error = {"is_error": True, "error_type": "Timeout", "error_message": "took too long", "result": {"after": 30}}
    found = items(
        called("c1"),
        answered("c1", **error),
        called("c2"),
        answered("c2", is_error=True, error_type="Error", error_message="no", parts=(IMAGE,)),
        called("c3"),
        answered("c3", result=None),
    )

    assert found[1]["output"] == 'Timeout: took too long\n{"after":30}'
    assert [part["type"] for part in found[3]["output"]] == ["input_text", "input_image"]
    assert found[3]["output"][0]["text"] == "Error: no"
    assert found[5]["output"] == ""
    assert losses(called("c1"), answered("c1", **error)) == {"result", "error"}


def test_a_result_shows_media_in_place() -> None:
    (_, output) = items(called("c1"), answered("c1", result={"n": 1}, parts=(TextPart(text="chart"), IMAGE)))

    assert output["output"] == [
        {"type": "input_text", "text": '{"n":1}'},
        {"type": "input_text", "text": "chart"},
        {"type": "input_image", "detail": "auto", "image_url": "https://example.com/a.png"},
    ]


def test_a_result_whose_parts_cannot_be_said_is_empty_text() -> None:
    (_, output) = items(called("c1"), answered("c1", parts=(ReasoningPart(text="hm"),)))

    assert output["output"] == ""


@pytest.mark.parametrize(
    ("text", "written"), [(None, '{"q":"x"}'), ("", "{}"), ('{"q": "x" }', '{"q": "x" }'), ('{"q', '{"q')]
)
def test_arguments_are_the_text_that_was_written(text: str | None, written: str) -> None:
    payload = OptionCallPayload(
        invocation_id="c1", option_name="search", arguments={} if text in ("", '{"q') else {"q": "x"}, arguments_text=text
    )
    (call, _) = items(Message(policy="assistant", payload=payload), answered("c1"))

    assert call["arguments"] == written


def test_refused_ids_and_names_have_aliases_that_are_read_back() -> None:
    """Call and result together; two ids that begin alike stay two; tools are renamed with their calls."""
    long = "c" * 70
    messages = [
        called(f"{long}1", "get.weather", turn_id="t"),
        called(f"{long}2", "get.weather", turn_id="t"),
        answered(f"{long}1", "get.weather"),
        answered(f"{long}2", "get.weather"),
    ]
    history = Conversation(messages, tools=(Tool(name="get.weather"),))
    encoded = encode(history, RESPONSES)
    found = encoded.value["input"]
    ids = [unit["call_id"] for unit in found]

    assert len(set(ids)) == 2
    assert ids[:2] == ids[2:]
    assert all(len(each) <= 64 for each in ids)
    assert encoded.value["tools"][0]["name"] == found[0]["name"] != "get.weather"
    assert encoded.losses == ()
    back = decode(encoded.value, RESPONSES, aliases=encoded.aliases)
    assert [message.invocation_id for message in back] == [message.invocation_id for message in history]
    assert {message.payload.option_name for message in back if message.payload.kind != "parts"} == {"get.weather"}


def test_the_result_that_a_repair_gives_to_a_custom_call_has_its_type() -> None:
    """A custom call is answered by a custom output: the service finds no other."""
    native = decode([{"type": "custom_tool_call", "call_id": "c1", "name": "sh", "input": "ls"}], RESPONSES)
    mended = repair(native, RESPONSES).conversation
    call, output = encode(mended, RESPONSES).value

    assert call == {"type": "custom_tool_call", "call_id": "c1", "name": "sh", "input": "ls"}
    assert (output["type"], output["call_id"]) == ("custom_tool_call_output", "c1")


def test_custom_and_legacy_calls_of_the_sibling_are_calls() -> None:
    custom = {"id": "k1", "type": "custom", "custom": {"name": "shell", "input": "ls -l"}}
    history = decode(
        [
            {"role": "assistant", "content": None, "tool_calls": [custom]},
            {"role": "tool", "tool_call_id": "k1", "content": "a b"},
            {"role": "assistant", "content": None, "function_call": {"name": "now", "arguments": "{}"}},
            {"role": "function", "name": "now", "content": "noon"},
        ],
        "openai-chat",
    )
    encoded = encode(history, RESPONSES)

    assert [unit["type"] for unit in encoded.value["input"]] == ["function_call", "function_call_output"] * 2
    assert encoded.value["input"][0]["arguments"] == "ls -l"
    assert encoded.losses == ()


def test_tools_are_written_as_they_are() -> None:
    """Not strict, which they would be by default: a schema from elsewhere need not fulfil what strict asks for."""
    schema = {"type": "object", "properties": {"q": {"type": "string"}}}
    tools = (Tool(name="search", description="Finds.", parameters=schema), Tool(name="now"))
    value = encode(Conversation([said("hi")], tools=tools), RESPONSES).value

    assert problems(RESPONSES, "request", as_request(RESPONSES, value)) == []
    assert value["tools"] == [
        {"type": "function", "name": "search", "description": "Finds.", "parameters": schema, "strict": False},
        {"type": "function", "name": "now", "parameters": {"type": "object", "properties": {}}, "strict": False},
    ]


# ---------------------------------------------------------------- whole conversations


@pytest.mark.parametrize("sample", [each for each in SAMPLES if each.dialect != RESPONSES and each.kind != "stream"], ids=str)
def test_samples_of_other_providers_are_valid_here_and_stay_as_written(sample: Any) -> None:
    """OP-059."""
    _is_good(decode(sample.body, sample.dialect))


@pytest.mark.parametrize("name", SEEDS)
def test_samples_of_the_seeds_are_valid_here_and_stay_as_written(name: str) -> None:
    _is_good(decode(SEEDS[name], name))


@pytest.mark.parametrize("sample", [each for each in samples(RESPONSES) if each.kind != "stream"], ids=str)
def test_our_own_samples_without_the_notes_on_messages_are_valid(sample: Any) -> None:
    conversation = decode(sample.body, RESPONSES)
    bare = (message.model_copy(update={"metadata": {}}) for message in conversation)

    _is_good(Conversation(bare, tools=conversation.tools))


def _is_good(conversation: Conversation) -> None:
    encoded = encode(conversation, RESPONSES)
    assert problems(RESPONSES, "request", as_request(RESPONSES, encoded.value)) == []
    again = encode(decode(encoded.value, RESPONSES, aliases=encoded.aliases), RESPONSES)
    assert again.value == encoded.value
    assert again.losses == ()


def test_a_chat_history_means_the_same_here() -> None:
    """Nothing structural is lost; names of participants have no home."""
    sample = samples("openai-chat", "request")[0]
    encoded = encode(decode(sample.body, "openai-chat"), RESPONSES)

    assert {loss.what for loss in encoded.losses} == {"speaker", "model", "settings"}
