"""Conversations from elsewhere as Pydantic AI takes them: it loads what is written, dumps it the same, and runs on it."""

import asyncio
from datetime import UTC, datetime
from typing import Any

import pytest
from hypothesis import given
from pydantic_ai import Agent
from pydantic_ai import messages as pai
from pydantic_ai.models.function import AgentInfo, FunctionModel
from tests.dialects.conversations import conversations
from tests.dialects.pydantic_ai.histories import NOON
from tests.dialects.pydantic_ai.saying import PYDANTIC_AI, answered, called, parts_of, said, shown, written
from tests.providers.samples import SAMPLES
from tests.providers.types import problems

from antiphon import Conversation, MediaPart, Message, TextPart, convert, decode, encode
from antiphon.dialects.pydantic_ai import DIALECT
from antiphon.messages import Citation, DataPart, ForeignPart, OptionCallPayload, ReasoningPart, Tool, Usage
from antiphon.messages._json_values import canonical

IMAGE = MediaPart(modality="image", url="https://example.com/a.png")
PIXEL = MediaPart(modality="image", url="data:image/png;base64,+/8=")


def losses(*history: Message, **settings: Any) -> set[str]:
    return {loss.what for loss in encode(Conversation(history, **settings), PYDANTIC_AI).losses}


# ---------------------------------------------------------------- all of it


@pytest.mark.slow
@given(conversations())
def test_any_conversation_is_valid_and_reads_back_as_it_was_written(conversation: Conversation) -> None:
    value = encode(conversation, PYDANTIC_AI).value
    again = encode(decode(value, PYDANTIC_AI), PYDANTIC_AI)

    assert not problems(PYDANTIC_AI, "request", value)
    assert canonical(again.value) == canonical(value)
    assert not again.losses


@pytest.mark.slow
@given(conversations())
def test_a_longer_history_begins_as_a_shorter_one_does(conversation: Conversation) -> None:
    whole = encode(conversation, PYDANTIC_AI).value
    for end in range(len(conversation)):
        begun = conversation[:end]
        if not begun.open_calls() and not _is_cut(conversation, end):
            value = encode(begun, PYDANTIC_AI).value
            assert canonical(whole[: len(value)]) == canonical(value)


def _is_cut(conversation: Conversation, end: int) -> bool:
    """Whether a turn goes on after the cut, or a later message belongs to an earlier call."""
    turns = {message.turn_id for message in conversation[:end]} - {None}
    rest = conversation[end:]
    return any(message.turn_id in turns or message.kind == "option_result" for message in rest)


@pytest.mark.parametrize("sample", [each for each in SAMPLES if each.kind != "stream"], ids=str)
def test_every_sample_of_every_provider_becomes_a_history(sample: Any) -> None:
    converted = convert(sample.body, source=sample.dialect, target=PYDANTIC_AI)
    again = decode(converted.value, PYDANTIC_AI)

    assert not problems(PYDANTIC_AI, "request", converted.value)
    assert not encode(again, PYDANTIC_AI).losses


def test_an_agent_goes_on_from_what_is_written() -> None:
    """Pydantic AI joins the requests that stand next to each other, and finds each call's result."""
    heard: list[pai.ModelMessage] = []

    def answer(messages: list[pai.ModelMessage], info: AgentInfo) -> pai.ModelResponse:
        heard.extend(messages)
        return pai.ModelResponse(parts=[pai.TextPart("done")])

    units = written(
        said("Be brief.", "system"),
        said("hi"),
        called("a"),
        called("b"),
        answered("b"),
        answered("a", is_error=True, error_type="Timeout", error_message="late"),
        said("and then?"),
    )
    history = pai.ModelMessagesTypeAdapter.validate_python(units)
    result = asyncio.run(Agent(FunctionModel(answer)).run("Go on.", message_history=history))

    assert result.output == "done"
    assert [[part.part_kind for part in message.parts] for message in heard] == [
        ["system-prompt", "user-prompt"],
        ["tool-call", "tool-call"],
        ["tool-return", "tool-return", "user-prompt", "user-prompt"],
    ]


# ---------------------------------------------------------------- who says what


def test_role_hints_become_requests_and_responses() -> None:
    """OP-054: what the assistant says is a response; a system prompt may stand anywhere."""
    units = written(
        said("Be brief.", "system"),
        said("hi", "alice", role_hint_for_llm="user"),
        said("hello", "planner", role_hint_for_llm="assistant"),
        said("Now be loud.", "system"),
    )

    assert [(unit["kind"], unit["parts"][0]["part_kind"]) for unit in units] == [
        ("request", "system-prompt"),
        ("request", "user-prompt"),
        ("response", "text"),
        ("request", "system-prompt"),
    ]
    assert losses(said("hi", "alice", role_hint_for_llm="user")) == {"speaker"}


def test_the_viewpoint_decides_whose_words_are_the_assistants() -> None:
    units = written(said("a", "planner"), said("b", "writer"), as_policy="writer")

    assert [unit["kind"] for unit in units] == ["request", "response"]


def test_an_utterance_is_one_response_and_its_results_one_request() -> None:
    """OP-057."""
    turn = {"turn_id": "t"}
    units = written(
        said("Looking.", "assistant", **turn), called("a", **turn), called("b", **turn), answered("b"), answered("a")
    )

    assert [[part["part_kind"] for part in unit["parts"]] for unit in units] == [
        ["text", "tool-call", "tool-call"],
        ["tool-return", "tool-return"],
    ]


def test_a_call_without_a_result_is_left_out_and_so_is_a_result_without_a_call() -> None:
    """OP-058: never half a pair."""
    units = written(said("hi"), called("a"), said("never mind"), answered("b"))

    assert [part["part_kind"] for part in parts_of(units)] == ["user-prompt", "user-prompt"]


def test_a_result_that_came_late_stands_after_its_call() -> None:
    units = written(called("a"), said("well?"), answered("a"))

    assert [part["part_kind"] for part in parts_of(units)] == ["tool-call", "tool-return", "user-prompt"]


def test_messages_that_are_empty_here_are_left_out() -> None:
    gemini = ForeignPart(dialect="gemini", value={"x": 1})

    assert written(*(shown(*parts, policy=who) for who in ("user", "assistant", "system") for parts in ((), (gemini,)))) == []
    assert losses(shown(gemini)) == {"message"}


def test_words_of_a_user_and_a_call_in_one_turn_are_a_request_and_a_response() -> None:
    """A viewpoint may put two sides into one turn."""
    units = written(said("hi", "user", turn_id="t"), called("a", "user", turn_id="t"), answered("a"))

    assert [unit["kind"] for unit in units] == ["request", "response", "request"]


def test_each_text_stays_a_piece_of_its_own() -> None:
    two = (TextPart(text="one"), TextPart(text=""))
    (asked, told) = written(shown(*two), shown(*two, policy="assistant"))

    assert asked["parts"][0]["content"] == ["one", ""]
    assert [part["content"] for part in told["parts"]] == ["one", ""]


# ---------------------------------------------------------------- times, usage, threads


def test_times_are_kept_and_where_there_is_none_a_fixed_one_says_so() -> None:
    """There is no clock in a dialect: the same conversation is always written the same."""
    units = written(said("hi", created_at=NOON), said("hello", "assistant"), said("bye", "assistant", created_at=NOON))

    assert units[0]["timestamp"] is None
    assert units[0]["parts"][0]["timestamp"] == "2026-11-15T12:00:00Z"
    assert [unit["timestamp"] for unit in units[1:]] == ["1970-01-01T00:00:00Z", "2026-11-15T12:00:00Z"]
    assert [message.created_at for message in decode(units, PYDANTIC_AI)] == [NOON, None, NOON]
    assert losses(said("hi", created_at=datetime(1970, 1, 1, tzinfo=UTC))) == {"time"}


def test_usage_and_thread_have_their_place() -> None:
    usage = Usage(input_tokens=9, output_tokens=2, cache_read_tokens=4, reasoning_tokens=1, cost="0.10")
    (unit,) = written(said("hi", "assistant", usage=usage, thread_id="t-1"))

    assert unit["usage"]["input_tokens"] == 9
    assert unit["usage"]["output_reasoning_tokens"] == 1
    assert unit["usage"]["cost"] == "0.10"
    assert unit["conversation_id"] == "t-1"
    assert not losses(said("hi", "assistant", usage=usage, thread_id="t-1"))
    assert losses(said("hi", "assistant", usage=Usage(input_tokens=0))) == {"usage"}


def test_tools_have_no_place_in_a_history_and_are_reported_as_lost() -> None:
    assert losses(said("hi"), tools=(Tool(name="search"),)) == {"tools"}
    assert encode(Conversation([said("hi")], tools=[Tool(name="search")]), PYDANTIC_AI).value == written(said("hi"))
    assert DIALECT.read_tool({"name": "search"}) is None


# ---------------------------------------------------------------- parts


def test_parts_become_pieces_of_content() -> None:
    """OP-055: in their order, data as data."""
    parts = (TextPart(text="look"), IMAGE, PIXEL, DataPart(data={"a": "<b>"}), TextPart(text="there"))
    ((prompt,),) = (unit["parts"] for unit in written(shown(*parts)))

    assert [each if isinstance(each, str) else each["kind"] for each in prompt["content"]] == [
        "look",
        "image-url",
        "binary",
        "structured-content",
        "there",
    ]
    assert prompt["content"][2]["data"] == "-_8="
    assert prompt["content"][3]["content"] == '{"a":"\\u003cb\\u003e"}'
    assert not losses(shown(*parts))


def test_media_get_labels_on_request() -> None:
    """OP-056: counted through the conversation."""
    units = written(shown(IMAGE, PIXEL), shown(IMAGE, TextPart(text="?")), media_labels=True)
    contents = [part["content"] for part in parts_of(units)]

    assert [[each for each in content if isinstance(each, str)] for content in contents] == [
        ["Media 1:", "Media 2:"],
        ["Media 3:", "?"],
    ]


@pytest.mark.parametrize("owner", ["openai-chat", "openai-responses", PYDANTIC_AI])
def test_the_detail_that_a_part_asks_for_goes_along(owner: str) -> None:
    """OP-064."""
    image = IMAGE.model_copy(update={"metadata": {owner: {"detail": "low"}}})
    ((prompt,),) = (unit["parts"] for unit in written(shown(image)))

    assert prompt["content"][0]["vendor_metadata"] == {"detail": "low"}


@pytest.mark.parametrize(
    ("part", "kind"),
    [
        (IMAGE, "image-url"),
        (MediaPart(modality="audio", url="https://example.com/a"), "audio-url"),
        (MediaPart(modality="video", url="gs://bucket/a.mp4"), "video-url"),
        (MediaPart(modality="document", url="s3://bucket/a.pdf"), "document-url"),
        (MediaPart(modality="document", url="data:text/plain;charset=utf-8;base64,aGk="), "binary"),
        (MediaPart(modality="document", url="data:text/plain,hello"), "document-url"),
        (MediaPart(modality="image", url="data:image/png;base64,not base64"), "image-url"),
        (MediaPart(modality="image", url="urn:anthropic-file:file_1"), "uploaded-file"),
        (MediaPart(modality="document", url="urn:openai-file:file%201", mime="text/plain"), "uploaded-file"),
    ],
)
def test_every_medium_has_a_kind_that_keeps_it_whole(part: MediaPart, kind: str) -> None:
    ((prompt,),) = (unit["parts"] for unit in written(shown(part)))

    assert prompt["content"][0]["kind"] == kind
    assert not losses(shown(part))


def test_a_file_of_an_unknown_provider_becomes_text() -> None:
    voice = MediaPart(modality="audio", url="urn:openai-audio:audio_1")
    ((prompt,),) = (unit["parts"] for unit in written(shown(voice)))

    assert prompt["content"] == "[audio, not shown]"
    assert losses(shown(voice)) == {"media", "text"}


def test_an_answer_holds_files_as_bytes_and_other_media_as_text() -> None:
    (unit,) = written(shown(PIXEL, IMAGE, policy="assistant"))

    assert [part["part_kind"] for part in unit["parts"]] == ["file", "text"]
    assert unit["parts"][1]["content"] == "[image: https://example.com/a.png]"
    assert losses(shown(PIXEL, IMAGE, policy="assistant")) == {"media", "text"}


def test_instructions_are_words_and_tell_of_what_they_show() -> None:
    (unit,) = written(shown(TextPart(text="Look:"), IMAGE, DataPart(data=[1]), policy="system"))

    assert unit["parts"][0]["content"] == "Look:\n[image: https://example.com/a.png]\n[1]"


def test_thoughts_of_other_providers_come_without_their_proof() -> None:
    """A proof is replayed only to its owner."""
    mine = ReasoningPart(text="b", signature="sig", metadata={PYDANTIC_AI: {"provider_name": "anthropic"}})
    parts = (
        ReasoningPart(text="a", signature="sig", metadata={"anthropic-messages": {}}),
        mine,
        ReasoningPart(signature="only"),
    )
    (unit,) = written(shown(*parts, policy="assistant"))

    assert [(part["content"], part["signature"], part["provider_name"]) for part in unit["parts"]] == [
        ("a", None, None),
        ("b", "sig", "anthropic"),
    ]


def test_citations_have_a_source_and_an_anchor() -> None:
    cited = [
        Citation(url="https://a.example", title="A", quote="q", start=0, end=2),
        Citation(source="doc-1", title="D"),
        Citation(quote="words"),
    ]
    text = TextPart(text="hello", citations=(*cited, Citation(), Citation(url="https://b.example", start=3, end=3)))
    (unit,) = written(shown(text, policy="assistant"))

    assert [(each["sources"][0]["kind"], each["anchor"]) for each in unit["parts"][0]["citations"]] == [
        ("web", {"start": 0, "end": 2, "kind": "content"}),
        ("document", None),
        ("document", None),
        ("web", None),
    ]
    assert not losses(shown(TextPart(text="hello", citations=tuple(cited)), policy="assistant"))
    assert losses(shown(text, policy="assistant")) == {"citations"}


# ---------------------------------------------------------------- calls and results


def test_argument_text_is_kept_as_it_was_written() -> None:
    payloads = [
        OptionCallPayload(invocation_id="a", option_name="search", arguments={}, arguments_text='{"q": '),
        OptionCallPayload(invocation_id="b", option_name="search", arguments={"q": 1}, arguments_text='{"q":  1}'),
    ]
    calls = [Message(policy="assistant", payload=payload) for payload in payloads]
    (unit, _) = written(*calls, answered("a"), answered("b"))

    assert [part["args"] for part in unit["parts"]] == ['{"q": ', '{"q":  1}']


@pytest.mark.parametrize(
    "result", ["", "found", None, 7, True, {"a": [1]}, [], [{"kind": "image-url", "url": "https://x.example"}]]
)
def test_a_result_stays_the_json_that_it_is(result: Any) -> None:
    history = (called("a"), answered("a", result=result))

    assert written(*history)[1]["parts"][0]["content"] == result
    assert not losses(*history)


def test_a_result_shows_files_and_vouches_for_them() -> None:
    """The digests let Pydantic AI load them as files: it would drop none, and send them as such."""
    upload = MediaPart(modality="document", url="urn:openai-file:f")
    units = written(called("a"), answered("a", parts=(TextPart(text="see"), IMAGE, PIXEL, upload)))
    (result,) = units[1]["parts"]
    (loaded,) = pai.ModelMessagesTypeAdapter.validate_python(units)[1].parts

    assert len(result["content_file_digests"]) == 2
    assert isinstance(loaded, pai.ToolReturnPart)
    assert [type(file) for file in loaded.files] == [pai.ImageUrl, pai.BinaryImage, pai.UploadedFile]


def test_one_file_is_the_content_itself() -> None:
    history = (called("a"), answered("a", parts=(IMAGE,)))

    assert written(*history)[1]["parts"][0]["content"]["kind"] == "image-url"
    assert not losses(*history)


def test_a_result_and_its_media_are_one_list_which_is_reported() -> None:
    history = (called("a"), answered("a", result={"n": 1}, parts=(IMAGE,)))

    assert written(*history)[1]["parts"][0]["content"][0] == {"n": 1}
    assert losses(*history) == {"result", "data"}


def test_errors_are_readable_and_flagged() -> None:
    """OP-061: never null; one that may be tried again says so."""
    late = {"is_error": True, "error_type": "Timeout", "error_message": "late"}
    units = written(
        *(called(name) for name in "abcd"),
        answered("a", **late),
        answered("b", **late, retryable=True),
        answered("c", is_error=True, error_type="Error", error_message=""),
        answered("d", **late, result={"after": 5}, parts=(IMAGE,)),
    )
    found = [(part["outcome"], part["content"]) for part in units[1]["parts"]]

    assert found[:3] == [("failed", "Timeout: late"), ("retried", "Timeout: late"), ("failed", "")]
    assert found[3][1][0] == 'Timeout: late\n{"after":5}'
    assert not losses(called("b"), answered("b", **late, retryable=True))
    assert losses(called("b"), answered("b", **late, retryable=False)) == {"retryable"}


def test_an_id_that_is_used_again_is_made_another() -> None:
    units = written(called("a"), answered("a"), called("a"), answered("a"))
    ids = [part["tool_call_id"] for part in parts_of(units)]

    assert ids[0] == ids[1] != ids[2] == ids[3]


# ---------------------------------------------------------------- a part of ours that was made by hand


def test_a_cache_point_can_be_set_by_hand() -> None:
    point = ForeignPart(dialect=PYDANTIC_AI, value={"kind": "cache-point", "ttl": "5m"})
    ((prompt,),) = (unit["parts"] for unit in written(shown(TextPart(text="long"), point)))

    assert prompt["content"] == ["long", {"kind": "cache-point", "ttl": "5m"}]


def test_words_around_a_part_that_stands_alone_are_prompts_before_and_after_it() -> None:
    news = {"part_kind": "tool-availability-delta", "tools_added": ["b"], "tool_call_id": None}
    spoken = TextPart(text="two", metadata={PYDANTIC_AI: {"part": {"kind": "speech"}}})
    (unit,) = written(
        shown(TextPart(text="one"), spoken, ForeignPart(dialect=PYDANTIC_AI, value=news), TextPart(text="three"))
    )

    assert [part["part_kind"] for part in unit["parts"]] == ["user-prompt", "speech", "tool-availability-delta", "user-prompt"]


def test_foreign_parts_of_another_format_in_a_result_are_left_out() -> None:
    other = ForeignPart(dialect="gemini", value={"x": 1})
    own = ForeignPart(dialect=PYDANTIC_AI, value={"x": 1})
    history = (called("a"), answered("a", parts=(other, own, ReasoningPart(text="hm"), TextPart(text="so"))))

    assert written(*history)[1]["parts"][0]["content"] == [{"x": 1}, "so"]
    assert "foreign" in losses(*history)


def test_a_part_that_belongs_to_the_other_side_is_not_written_there() -> None:
    """A viewpoint makes the assistant's words a user's; its provider's own tools cannot go along."""
    native = DIALECT.decode(
        [
            {
                "kind": "response",
                "parts": [
                    {"part_kind": "text", "content": "found"},
                    {"part_kind": "builtin-tool-call", "tool_name": "web", "args": None, "tool_call_id": "s"},
                ],
            }
        ]
    )
    bare = Conversation(message.model_copy(update={"metadata": {}}) for message in native)
    value = encode(bare, PYDANTIC_AI, as_policy="other").value

    assert [part["part_kind"] for part in parts_of(value)] == ["user-prompt"]
    assert not problems(PYDANTIC_AI, "request", value)
