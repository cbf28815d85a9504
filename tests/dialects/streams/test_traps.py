"""Known oddities of the streams of each format, and of compatible servers."""

import json
from typing import Any

import pytest
from tests.dialects.streams.answers import answer
from tests.dialects.streams.framing import framed
from tests.dialects.streams.reading import read, read_events, told

from antiphon.dialects._stream import Stream
from antiphon.errors import DecodeError, StreamCutError

# ---------------------------------------------------------------- openai-chat


def _chunk(delta: Any, finish: str | None = None) -> Any:
    return {"choices": [{"index": 0, "delta": delta, "finish_reason": finish}]}


def _fragment(arguments: str, **also: Any) -> Any:
    name = also.pop("name", None)
    function = {"arguments": arguments, **({"name": name} if name else {})}
    return _chunk({"tool_calls": [{**also, "function": function}]})


def _calls(stream: Stream) -> list[tuple[str, str, str]]:
    calls = stream.body["choices"][0]["message"]["tool_calls"]
    return [(call["id"], call["function"]["name"], call["function"]["arguments"]) for call in calls]


def test_fragments_of_calls_are_known_by_index_not_by_arrival() -> None:
    events = [
        _fragment("", index=0, id="a", name="f"),
        _fragment('{"x"', index=0),
        _fragment("", index=1, id="b", name="g"),
        {
            "choices": [
                {
                    "delta": {
                        "tool_calls": [
                            {"index": 0, "function": {"arguments": ":1}"}},
                            {"index": 1, "function": {"arguments": "{}"}},
                        ]
                    }
                }
            ]
        },
        _chunk({}, "tool_calls"),
    ]

    assert _calls(read_events("openai-chat", events).stream) == [("a", "f", '{"x":1}'), ("b", "g", "{}")]


def test_a_repeated_name_and_id_are_used_once() -> None:
    events = [_fragment(text, index=0, id="a", type="function", name="f") for text in ("{", "}")]

    stream, deltas = read_events("openai-chat", [*events, _chunk({}, "tool_calls")])

    assert _calls(stream) == [("a", "f", "{}")]
    assert [delta.kind for delta in deltas] == ["call", "arguments", "arguments", "finish"]


def test_another_id_at_the_same_index_is_another_call() -> None:
    """Servers that put this format in front of Gemini give every call the index 0, or none."""
    for index in ({"index": 0}, {}):
        events = [_fragment(f'{{"n":{at}}}', id=f"call-{at}", name="f", **index) for at in range(3)]
        stream = read_events("openai-chat", [*events, _chunk({}, "tool_calls")]).stream
        assert _calls(stream) == [(f"call-{at}", "f", f'{{"n":{at}}}') for at in range(3)]


def test_calls_stand_in_the_order_of_their_indexes() -> None:
    events = [_fragment("{}", index=1, id="b", name="g"), _fragment("{}", index=0, id="a", name="f"), _chunk({}, "stop")]

    assert [call[0] for call in _calls(read_events("openai-chat", events).stream)] == ["a", "b"]


def test_a_call_is_reported_when_its_name_is_known_and_before_its_arguments() -> None:
    named = _chunk({"tool_calls": [{"index": 0, "function": {"name": "f"}}]})
    events = [_fragment("{", index=0, id="a"), _fragment("}", index=0), named, _chunk({}, "tool_calls")]

    deltas = read_events("openai-chat", events).deltas

    assert [(delta.kind, delta.option_name, delta.text) for delta in deltas[:2]] == [
        ("call", "f", ""),
        ("arguments", None, "{}"),
    ]


def test_a_stream_that_just_ends_is_whole_only_if_its_calls_are() -> None:
    """`[DONE]` without a finish reason: a proxy sends it also where what it passes on was cut."""
    begun = [_chunk({"content": "Hi"}), _fragment('{"a":', index=0, id="c", name="f")]

    whole = read("openai-chat", [framed([*begun, _fragment("1}", index=0)]), b"data: [DONE]\n\n"]).stream
    half = read("openai-chat", [framed(begun), b"data: [DONE]\n\n"]).stream

    assert _calls(whole) == [("c", "f", '{"a":1}')]
    assert whole.unfinished == ()
    assert half.unfinished == ("the call 'f' (c)",)
    with pytest.raises(StreamCutError, match=r"still open: the call 'f' \(c\)$"):
        half.finish()


def test_an_empty_finish_reason_is_none() -> None:
    """Some servers send it with every chunk."""
    stream = read_events("openai-chat", [_fragment("{", index=0, id="c", name="f"), _chunk({}, "")]).stream

    assert stream.unfinished == ("the call 'f' (c)", "the end of the answer")


def test_arguments_that_the_model_could_not_finish_are_kept_as_the_whole_answer_keeps_them() -> None:
    """`length`: the provider gives half the arguments, streamed or not. The message holds them as text, not as arguments."""
    events = [_fragment('{"a":', index=0, id="c", name="f"), _chunk({}, "length")]

    (message,) = read_events("openai-chat", events).stream.finish()

    assert message.payload.arguments == {}
    assert message.payload.arguments_text == '{"a":'


def test_a_last_event_without_its_empty_line_is_read() -> None:
    data = framed([_chunk({"content": "Hi"}), _chunk({}, "stop")])

    assert read("openai-chat", [data[:-2]]).stream.finish() == read("openai-chat", [data]).stream.finish()
    assert read("openai-chat", [framed([_chunk({"content": "Hi"})]) + b"data: [DONE]"]).stream.finish()


# ---------------------------------------------------------------- openai-responses


def test_encrypted_content_is_that_of_the_item_when_it_is_done() -> None:
    spoken = answer("openai-responses", "all kinds of items")

    before = read_events(spoken.dialect, spoken.events[:10]).stream
    stream, deltas = read_events(spoken.dialect, spoken.events)

    assert before.body["output"][0]["encrypted_content"] == "gA"
    assert before._assembler.body(only_complete=True)["output"] == before.body["output"][1:]
    assert stream.body["output"][0]["encrypted_content"] == "gAAAA=="
    assert [(delta.index, delta.text) for delta in deltas if delta.kind == "signature"] == [(0, "gAAAA==")]


@pytest.mark.parametrize("name", ["sample", "all kinds of items"])
def test_items_are_known_by_id_where_a_server_gives_no_index(name: str) -> None:
    spoken = answer("openai-responses", name)
    for event in spoken.events:
        for key in ("output_index", "sequence_number"):
            event.pop(key, None)
        if event.get("content_index") == 0:
            del event["content_index"]

    assert read_events(spoken.dialect, spoken.events).stream.body == spoken.body


@pytest.mark.parametrize(
    "gone", [(".delta",), (".delta", ".done"), (".delta", ".done", ".added"), ("_part.added", "_part.done")]
)
def test_the_deltas_add_up_whatever_a_server_leaves_out(gone: tuple[str, ...]) -> None:
    """Everything comes several times; text without a delta is returned when it comes as a whole."""
    spoken = answer("openai-responses", "all kinds of items")
    events = [event for event in spoken.events if not event["type"].endswith(gone)]

    stream, deltas = read_events(spoken.dialect, events)

    assert stream.body == spoken.body
    texts = [(kind, text) for (kind, _), text in told(deltas).items()]
    assert sorted(texts) == [
        ("arguments", "ls -l"),
        ("arguments", '{"a": "b'),
        ("reasoning", "raw thought"),
        ("refusal", "no more"),
        ("text", "Hå 🌦"),
    ]


def test_indexes_may_have_gaps() -> None:
    """An item that begins empty, and never comes."""
    spoken = answer("openai-responses", "sample")
    for event in spoken.events:
        if "output_index" in event:
            event["output_index"] *= 2
    empty = {"type": "response.output_item.added", "output_index": 1, "item": None}

    stream, deltas = read_events(spoken.dialect, [spoken.events[0], empty, *spoken.events[1:]])

    assert stream.body == spoken.body
    assert deltas == read_events(spoken.dialect, answer("openai-responses", "sample").events).deltas


def test_a_response_without_output_at_the_end_is_put_together_from_its_items() -> None:
    spoken = answer("openai-responses", "sample")
    spoken.events[-1]["response"]["output"] = []

    assert read_events(spoken.dialect, spoken.events).stream.body == spoken.body
    spoken.events.pop(-2)
    cut = read_events(spoken.dialect, spoken.events).stream
    assert cut.unfinished == ("the call 'f' (call_s)",)


def test_the_output_of_a_response_in_progress_is_used_once() -> None:
    """As where a stream is requested from the middle."""
    item = {"type": "message", "id": "msg_1", "role": "assistant", "content": [{"type": "output_text", "text": "Hi"}]}
    event = {"type": "response.in_progress", "response": {"id": "r", "status": "in_progress", "output": [item]}}
    more = {"type": "response.output_text.delta", "item_id": "msg_1", "delta": " there", "logprobs": [{"token": " there"}]}

    stream, deltas = read_events("openai-responses", [event, more, event, more])

    (part,) = stream.body["output"][0]["content"]
    assert part == {"type": "output_text", "text": "Hi there there", "logprobs": [{"token": " there"}] * 2}
    assert [delta.text for delta in deltas] == ["Hi", " there", " there"]


def test_a_part_that_nobody_knows_is_kept() -> None:
    spoken = answer("openai-responses", "sample")
    part = {"type": "hologram", "text": "?"}
    place = {"item_id": "msg_s", "output_index": 1, "content_index": 1}

    stream, deltas = read_events(
        spoken.dialect, [*spoken.events[:10], {"type": "response.content_part.added", **place, "part": part}]
    )

    assert stream.body["output"][1]["content"][1] == part
    assert deltas == read_events(spoken.dialect, spoken.events[:10]).deltas

    whole = {"type": "response.output_item.done", "output_index": 1, "item": stream.body["output"][1]}
    assert stream.add(whole) == ()
    assert stream.body["output"][1]["content"][1] == part


def test_the_last_sequence_number_is_what_to_go_on_from() -> None:
    spoken = answer("openai-responses", "sample")

    assert read_events(spoken.dialect, spoken.events[:7]).stream.last_event == "6"


# ---------------------------------------------------------------- anthropic-messages


def _message(*events: Any) -> list[Any]:
    start = {
        "id": "m",
        "type": "message",
        "role": "assistant",
        "content": [],
        "stop_reason": None,
        "usage": {"input_tokens": 1},
    }
    return [{"type": "message_start", "message": start}, *events]


def _tool_use(*texts: str, block: Any = None) -> list[Any]:
    block = block or {"type": "tool_use", "id": "t", "name": "f", "input": {}}
    deltas = [{"type": "input_json_delta", "partial_json": text} for text in texts]
    return [
        {"type": "content_block_start", "index": 0, "content_block": block},
        *({"type": "content_block_delta", "index": 0, "delta": delta} for delta in deltas),
        {"type": "content_block_stop", "index": 0},
    ]


STOPPED = {"type": "message_delta", "delta": {"stop_reason": "tool_use"}, "usage": {"output_tokens": 5}}
END = {"type": "message_stop"}


@pytest.mark.parametrize("texts", [(), ("",), ("", "")])
@pytest.mark.parametrize(
    "block", [{"type": "tool_use", "id": "t", "name": "f", "input": {}}, {"type": "tool_use", "id": "t", "name": "f"}]
)
def test_a_call_without_input_has_an_empty_one(texts: tuple[str, ...], block: Any) -> None:
    stream = read_events("anthropic-messages", _message(*_tool_use(*texts, block=block), STOPPED, END)).stream

    assert stream.body["content"][0]["input"] == {}


@pytest.mark.parametrize("text", ['{"a": "b', '{"a": 1}}', "[1]", '"x"', '{"a": 1, "a": 2}'])
def test_input_that_is_not_one_whole_object_is_never_a_call(text: str) -> None:
    """The model ran out of tokens, or was told to stream its input unchecked. An empty input would be another call."""
    events = _message(*_tool_use(text[:3], text[3:]), {**STOPPED, "delta": {"stop_reason": "max_tokens"}}, END)
    stream = read_events("anthropic-messages", events).stream

    assert stream.unfinished == ("the call 'f' (t)",)
    with pytest.raises(StreamCutError, match=r"the call 'f' \(t\)"):
        stream.finish()
    assert [message.kind for message in stream.so_far()] == ["parts"]
    assert stream._assembler.body(only_complete=True)["stop_reason"] == "max_tokens"


def test_the_last_event_may_get_lost() -> None:
    whole = read_events("anthropic-messages", _message(*_tool_use("{}"), STOPPED, END)).stream

    stream = read_events("anthropic-messages", _message(*_tool_use("{}"), STOPPED)).stream

    assert stream.finish() == whole.finish()


def test_the_end_of_the_message_ends_its_blocks() -> None:
    start, *rest, _ = _tool_use('{"a": ', "1}")

    stream = read_events("anthropic-messages", _message(start, *rest, END)).stream

    assert stream.body["content"][0]["input"] == {"a": 1}
    assert stream.unfinished == ()


def test_usage_is_a_total_and_null_says_nothing() -> None:
    more = {"type": "message_delta", "delta": {}, "usage": {"output_tokens": 9, "input_tokens": None}}

    stream, deltas = read_events("anthropic-messages", _message(STOPPED, more, END))

    assert stream.body["usage"] == {"input_tokens": 1, "output_tokens": 9}
    assert [delta.value for delta in deltas if delta.kind == "usage"] == [
        {"input_tokens": 1},
        {"input_tokens": 1, "output_tokens": 5},
        {"input_tokens": 1, "output_tokens": 9},
    ]


def test_missing_and_repeated_events_do_no_harm() -> None:
    """A change without usage, a block that stops twice."""
    start, *_, stop = _tool_use("{}")

    stream = read_events("anthropic-messages", _message(start, stop, stop, {**STOPPED, "usage": None}, END)).stream

    assert stream.body["usage"] == {"input_tokens": 1}
    assert stream.unfinished == ()


def test_facts_beside_the_delta_of_a_message_are_kept() -> None:
    event = {**STOPPED, "context_management": {"applied_edits": []}}

    assert read_events("anthropic-messages", _message(event)).stream.body["context_management"] == {"applied_edits": []}


def test_a_thought_is_left_out_until_it_is_signed() -> None:
    """A provider refuses a thought without its signature."""
    spoken = answer("anthropic-messages", "sample")

    stream = read_events("anthropic-messages", spoken.events[:4]).stream

    assert stream.unfinished == ("block 0 (thinking)", "the end of the answer")
    assert stream._assembler.body(only_complete=True)["content"] == []
    stream.add(spoken.events[4])
    assert stream._assembler.body(only_complete=True)["content"] == [spoken.body["content"][0]]


def test_a_kind_of_delta_that_nobody_knows_is_kept_in_its_block() -> None:
    deltas = [{"type": "poem_delta", "verse": "roses", "n": 1}, {"type": "poem_delta", "verse": " red", "n": 2, "x": None}]
    events = [
        {"type": "content_block_start", "index": 0, "content_block": {"type": "poem"}},
        *({"type": "content_block_delta", "index": 0, "delta": delta} for delta in deltas),
        {"type": "content_block_stop", "index": 0},
    ]

    stream = read_events("anthropic-messages", _message(*events)).stream

    assert stream.body["content"] == [{"type": "poem", "verse": "roses red", "n": 2, "x": None}]


# ---------------------------------------------------------------- gemini


def _parts(*parts: Any, finish: str | None = None) -> Any:
    candidate: dict[str, Any] = {"content": {"role": "model", "parts": list(parts)}}
    return {"candidates": [{**candidate, "finishReason": finish} if finish else candidate]}


def _joined(*parts: Any) -> Any:
    stream = read_events("gemini", [*(_parts(part) for part in parts), _parts(finish="STOP")]).stream
    return stream.body["candidates"][0]["content"]["parts"]


def test_texts_that_follow_each_other_are_one_unless_they_are_signed_or_of_another_kind() -> None:
    signed = {"text": "c", "thoughtSignature": "S"}
    thought = {"text": "d", "thought": True}

    assert _joined({"text": "a"}, {"text": "b"}) == [{"text": "ab"}]
    assert _joined({"text": "a"}, signed, {"text": "b"}) == [{"text": "a"}, signed, {"text": "b"}]
    assert _joined(signed, signed) == [signed, signed]
    assert _joined(thought, thought, {"text": "a"}) == [{"text": "dd", "thought": True}, {"text": "a"}]
    assert _joined({"text": "a", "partMetadata": {"k": 1}}, {"text": "b"}) == [
        {"text": "a", "partMetadata": {"k": 1}},
        {"text": "b"},
    ]


def test_an_empty_text_is_nothing_unless_it_is_signed_or_all_there_is() -> None:
    assert _joined({"text": ""}, {"text": "a"}, {"functionCall": {"name": "f"}}, {"text": ""}) == [
        {"text": "a"},
        {"functionCall": {"name": "f"}},
    ]
    assert _joined({"text": "a"}, {"text": "", "thoughtSignature": "S"}) == [
        {"text": "a"},
        {"text": "", "thoughtSignature": "S"},
    ]
    assert _joined({"text": ""}) == [{"text": ""}]


def test_a_call_that_another_interrupts_stays_open() -> None:
    events = [
        _parts(
            {"functionCall": {"name": "f", "willContinue": True, "partialArgs": [{"jsonPath": "$.a", "stringValue": "x"}]}}
        ),
        _parts({"functionCall": {"name": "g", "args": {}}}, finish="STOP"),
    ]

    stream = read_events("gemini", events).stream

    assert stream.unfinished == ("the call 'f'",)
    with pytest.raises(StreamCutError):
        stream.finish()
    assert stream._assembler.body(only_complete=True)["candidates"][0]["content"]["parts"] == [
        {"functionCall": {"name": "g", "args": {}}}
    ]


def test_a_call_whose_parts_repeat_its_id_goes_on() -> None:
    first = {"id": "1", "name": "f", "willContinue": True, "partialArgs": [{"jsonPath": "$.a", "stringValue": "x"}]}
    last = {"id": "1", "name": "f", "partialArgs": [{"jsonPath": "$.a", "stringValue": "y"}]}

    assert _joined({"functionCall": first}, {"functionCall": last, "thoughtSignature": "S"}) == [
        {"functionCall": {"id": "1", "name": "f", "args": {"a": "xy"}}, "thoughtSignature": "S"}
    ]


def test_a_blocked_prompt_is_a_whole_answer() -> None:
    stream, deltas = read_events("gemini", answer("gemini", "a blocked prompt").events)

    assert stream.unfinished == ()
    assert [(delta.kind, delta.text) for delta in deltas] == [("finish", "PROHIBITED_CONTENT")]


def test_the_tokens_of_each_chunk_are_added_and_a_list_of_all_is_not_added_twice() -> None:
    tokens = [{"token": "a", "logProbability": -1}, {"token": "a", "logProbability": -1}]
    cited = [{"uri": "https://a.example"}, {"uri": "https://b.example"}]
    events = [
        {
            "candidates": [
                {"logprobsResult": {"chosenCandidates": [tokens[at]]}, "citationMetadata": {"citations": cited[: at + 1]}}
            ]
        }
        for at in range(2)
    ]

    (candidate,) = read_events("gemini", events).stream.body["candidates"]

    assert candidate == {"logprobsResult": {"chosenCandidates": tokens}, "citationMetadata": {"citations": cited}}


# ---------------------------------------------------------------- pydantic-ai


def _start(part: Any, index: int = 0) -> Any:
    return {"event_kind": "part_start", "index": index, "part": part}


def _change(delta: Any, index: int = 0) -> Any:
    return {"event_kind": "part_delta", "index": index, "delta": delta}


def _end(part: Any, index: int = 0, after: str | None = None) -> Any:
    return {"event_kind": "part_end", "index": index, "part": part, "next_part_kind": after}


def test_a_signature_replaces_the_one_before() -> None:
    changes = [_change({"part_delta_kind": "thinking", "signature_delta": text}) for text in ("S1", "S2")]

    stream = read_events("pydantic-ai", [_start({"part_kind": "thinking", "content": ""}), *changes]).stream

    assert stream.body["parts"][0]["signature"] == "S2"


def test_the_end_is_where_no_other_part_follows() -> None:
    text = {"part_kind": "text", "content": "a"}

    assert read_events("pydantic-ai", [_start(text), _end(text, after="text")]).stream.unfinished == ("the end of the answer",)
    assert read_events("pydantic-ai", [_start(text), _end(text)]).stream.unfinished == ()


def test_a_part_that_begins_again_replaces_what_was_there() -> None:
    old, new = {"part_kind": "text", "content": "old"}, {"part_kind": "text", "content": "new"}

    stream, deltas = read_events("pydantic-ai", [_start(old), _start(new), _end(new)])

    assert stream.body["parts"] == [new]
    assert [(delta.index, delta.text) for delta in deltas] == [(0, "old"), (1, "new")]


def test_a_part_that_only_ends_is_one_delta() -> None:
    stream, deltas = read_events("pydantic-ai", [_end({"part_kind": "text", "content": "a"}), _end({"part_kind": "file"}, 1)])

    assert [part["part_kind"] for part in stream.body["parts"]] == ["text", "file"]
    assert [delta.text for delta in deltas] == ["a"]


def test_speech_is_heard_and_may_be_revised() -> None:
    begun = {"part_kind": "speech", "transcript": None, "audio": {"data": "QUI=", "media_type": "audio/pcm"}}
    changes = [
        {"part_delta_kind": "speech", "transcript_delta": "Good", "audio_chunk": "Q0Q="},
        {"part_delta_kind": "speech", "transcript_delta": " dog", "timestamps": [{"start_ms": 1}]},
        {"part_delta_kind": "speech", "transcript": "Good day", "timestamps": [{"start_ms": 2}]},
    ]

    stream, deltas = read_events("pydantic-ai", [_start(begun), *map(_change, changes)])

    assert stream.body["parts"] == [
        {
            "part_kind": "speech",
            "transcript": "Good day",
            "audio": {"data": "QUJDRA==", "media_type": "audio/pcm"},
            "timestamps": [{"start_ms": 1}, {"start_ms": 2}],
        }
    ]
    assert [delta.text for delta in deltas] == ["Good", " dog"]


def test_sound_that_is_no_base64_is_refused() -> None:
    begun = {"part_kind": "speech", "audio": {"data": "QUI="}}

    with pytest.raises(DecodeError, match="event 2: audio_chunk: expected sound in base64"):
        read_events("pydantic-ai", [_start(begun), _change({"part_delta_kind": "speech", "audio_chunk": "Q"})])


def test_citations_replace_those_before_and_may_come_after_the_end() -> None:
    part = {"part_kind": "text", "content": "a", "citations": None}
    changes = [_change({"part_delta_kind": "text", "content_delta": "", "citations_delta": [{"url": url}]}) for url in "xy"]

    stream, deltas = read_events("pydantic-ai", [_start(part), _end(part), *changes])

    assert stream.body["parts"][0]["citations"] == [{"url": "y"}]
    assert [delta.value for delta in deltas if delta.kind == "citation"] == [{"url": "x"}, {"url": "y"}]
    assert stream.unfinished == ()


def test_a_part_cut_off_says_so_in_the_response() -> None:
    stream = read_events("pydantic-ai", [_start({"part_kind": "text", "content": "a"})]).stream

    assert stream.body == {"parts": [{"part_kind": "text", "content": "a"}], "kind": "response", "state": "interrupted"}


def test_arguments_come_as_text_or_as_an_object_but_not_as_both() -> None:
    for first, second, words in (({"a": 1}, "x", "args: expected text"), ("{", {"a": 1}, "args: expected an object")):
        call = {"part_kind": "tool-call", "tool_name": "f", "tool_call_id": "c", "args": first}
        with pytest.raises(DecodeError, match=words):
            read_events("pydantic-ai", [_start(call), _change({"part_delta_kind": "tool_call", "args_delta": second})])


def test_a_name_may_come_piece_by_piece() -> None:
    call = {"part_kind": "tool-call", "tool_name": "get", "tool_call_id": "", "args": None}
    change = {"part_delta_kind": "tool_call", "tool_name_delta": "_it", "tool_call_id": "c", "args_delta": json.dumps({})}

    stream = read_events("pydantic-ai", [_start(call), _change(change)]).stream

    assert stream.body["parts"] == [{"part_kind": "tool-call", "tool_name": "get_it", "tool_call_id": "c", "args": "{}"}]
    assert stream.unfinished == ("the call 'get_it' (c)", "the end of the answer")
