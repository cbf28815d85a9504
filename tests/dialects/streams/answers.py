"""Streamed answers and what each would have been without streaming: the recorded samples, and more of the rare things."""

from copy import deepcopy
from typing import Any, NamedTuple

from tests.providers.samples import samples

__all__ = ["ANSWERS", "Answer", "answer", "answers"]


class Answer(NamedTuple):
    """The events of a streamed answer and its whole body."""

    name: str
    dialect: str
    events: list[Any]
    body: dict[str, Any]

    def __str__(self) -> str:
        return f"{self.dialect}: {self.name}"


ANSWERS: list[Answer] = []


def answers(dialect: str) -> list[Answer]:
    return [each for each in ANSWERS if each.dialect == dialect]


def answer(dialect: str, name: str) -> Answer:
    """Return an answer; a copy, so that a test may change it."""
    (found,) = [each for each in answers(dialect) if each.name == name]
    return deepcopy(found)


def _add(dialect: str, name: str, events: list[Any], body: dict[str, Any]) -> None:
    ANSWERS.append(Answer(name, dialect, events, body))


def _sample(dialect: str) -> list[Any]:
    (found,) = samples(dialect, "stream")
    return list(found.body)


# ---------------------------------------------------------------- openai-chat

_CHUNK = {"id": "chatcmpl-1", "object": "chat.completion.chunk", "created": 1794700801, "model": "m"}
_COMPLETION = {**_CHUNK, "object": "chat.completion"}


def _chunk(delta: Any, index: int = 0, finish: str | None = None, **also: Any) -> Any:
    choice_also = {key: also.pop(key) for key in ("logprobs",) if key in also}
    return {**_CHUNK, "choices": [{"index": index, "delta": delta, "finish_reason": finish, **choice_also}], **also}


def _token(text: str) -> Any:
    return {"token": text, "logprob": -0.5, "bytes": None, "top_logprobs": []}


_add(
    "openai-chat",
    "sample",
    _sample("openai-chat"),
    {
        "id": "chatcmpl-s1",
        "object": "chat.completion",
        "created": 1794700801,
        "model": "gpt-6-astra",
        "choices": [
            {
                "index": 0,
                "message": {
                    "role": "assistant",
                    "content": None,
                    "refusal": None,
                    "tool_calls": [
                        {
                            "id": "call_x",
                            "type": "function",
                            "function": {"name": "get_weather", "arguments": '{"city":"Oslo"}'},
                        },
                        {"id": "call_y", "type": "function", "function": {"name": "now", "arguments": "{}"}},
                    ],
                },
                "finish_reason": "tool_calls",
                "logprobs": None,
            }
        ],
        "usage": {"prompt_tokens": 9, "completion_tokens": 7, "total_tokens": 16},
    },
)
_add(
    "openai-chat",
    "two choices",
    [
        _chunk({"role": "assistant", "content": ""}, logprobs={"content": [], "refusal": None}),
        _chunk({"role": "assistant", "content": "", "refusal": None}, 1, logprobs=None),
        _chunk({"content": "Vær"}, logprobs={"content": [_token("V"), _token("ær")], "refusal": None}),
        _chunk({"refusal": "I "}, 1, logprobs=None),
        _chunk({"content": "et 🌦"}, logprobs={"content": [_token("et 🌦")], "refusal": None}),
        _chunk({"refusal": "cannot"}, 1, logprobs=None, service_tier="default"),
        _chunk({}, 1, "content_filter", logprobs=None),
        _chunk({}, 0, "stop", logprobs=None, system_fingerprint="fp"),
    ],
    {
        **_COMPLETION,
        "choices": [
            {
                "index": 0,
                "message": {"role": "assistant", "content": "Været 🌦"},
                "finish_reason": "stop",
                "logprobs": {"content": [_token("V"), _token("ær"), _token("et 🌦")], "refusal": None},
            },
            {
                "index": 1,
                "message": {"role": "assistant", "content": "", "refusal": "I cannot"},
                "finish_reason": "content_filter",
                "logprobs": None,
            },
        ],
        "service_tier": "default",
        "system_fingerprint": "fp",
    },
)
_add(
    "openai-chat",
    "a legacy function call",
    [
        _chunk({"role": "assistant", "content": None, "function_call": {"name": "f", "arguments": ""}}),
        _chunk({"function_call": {"arguments": '{"a": "\\u00'}}),
        _chunk({"function_call": {"arguments": 'e6"}'}}),
        _chunk({}, 0, "function_call"),
    ],
    {
        **_COMPLETION,
        "choices": [
            {
                "index": 0,
                "message": {
                    "role": "assistant",
                    "content": None,
                    "function_call": {"name": "f", "arguments": '{"a": "\\u00e6"}'},
                },
                "finish_reason": "function_call",
            }
        ],
    },
)
_add(
    "openai-chat",
    "a voice",
    [
        _chunk({"role": "assistant", "audio": {"id": "audio_1", "transcript": "Good "}}),
        _chunk({"audio": {"data": "UklG"}}),
        _chunk({"audio": {"transcript": "day", "data": "RgAA"}}),
        _chunk({"audio": {"expires_at": 1794704401}}),
        _chunk({}, 0, "stop"),
    ],
    {
        **_COMPLETION,
        "choices": [
            {
                "index": 0,
                "message": {
                    "role": "assistant",
                    "content": None,
                    "audio": {"id": "audio_1", "transcript": "Good day", "data": "UklGRgAA", "expires_at": 1794704401},
                },
                "finish_reason": "stop",
            }
        ],
    },
)
_add(
    "openai-chat",
    "compatible servers",
    [
        _chunk({"role": "assistant", "reasoning_content": "h"}),
        _chunk({"role": "assistant", "reasoning_content": "m"}),
        _chunk({"reasoning_details": [{"index": 0, "type": "reasoning.text", "format": "v1", "text": "h"}]}),
        _chunk({"reasoning_details": [{"index": 0, "type": "reasoning.text", "format": "v1", "text": "m", "signature": "S"}]}),
        _chunk({"tool_calls": [{"index": 0, "id": "a", "type": "function", "function": {"name": "f", "arguments": "{"}}]}),
        _chunk({"tool_calls": [{"index": 0, "id": "a", "type": "function", "function": {"name": "f", "arguments": "}"}}]}),
        _chunk({"tool_calls": [{"index": 0, "id": "b", "type": "function", "function": {"name": "g", "arguments": "{}"}}]}),
        _chunk({"tool_calls": [{"index": 1, "id": "c", "type": "custom", "custom": {"name": "h", "input": "x ="}}]}),
        _chunk(
            {"tool_calls": [{"index": 1, "custom": {"input": " 1"}, "extra_content": {"google": {"thought_signature": "T"}}}]}
        ),
        {**_CHUNK, "choices": [{"index": 0, "delta": {}, "finish_reason": "tool_calls", "stop_reason": None}]},
        {**_CHUNK, "choices": [], "usage": {"prompt_tokens": 1, "completion_tokens": 2, "total_tokens": 3}},
    ],
    {
        **_COMPLETION,
        "choices": [
            {
                "index": 0,
                "message": {
                    "role": "assistant",
                    "content": None,
                    "reasoning_content": "hm",
                    "reasoning_details": [
                        {"index": 0, "type": "reasoning.text", "format": "v1", "text": "hm", "signature": "S"}
                    ],
                    "tool_calls": [
                        {"id": "a", "type": "function", "function": {"name": "f", "arguments": "{}"}},
                        {"id": "b", "type": "function", "function": {"name": "g", "arguments": "{}"}},
                        {
                            "id": "c",
                            "type": "custom",
                            "custom": {"name": "h", "input": "x = 1"},
                            "extra_content": {"google": {"thought_signature": "T"}},
                        },
                    ],
                },
                "finish_reason": "tool_calls",
                "stop_reason": None,
            }
        ],
        "usage": {"prompt_tokens": 1, "completion_tokens": 2, "total_tokens": 3},
    },
)

# ---------------------------------------------------------------- openai-responses

_RESPONSE = {
    "id": "resp_1",
    "object": "response",
    "created_at": 1794700800.0,
    "error": None,
    "incomplete_details": None,
    "instructions": None,
    "model": "m",
    "parallel_tool_calls": True,
    "temperature": 1.0,
    "top_p": 1.0,
    "tool_choice": "auto",
    "tools": [],
    "metadata": {},
}
_USAGE = {
    "input_tokens": 5,
    "input_tokens_details": {"cached_tokens": 0, "cache_write_tokens": 0},
    "output_tokens": 9,
    "output_tokens_details": {"reasoning_tokens": 4},
    "total_tokens": 14,
}


def _numbered(*events: Any) -> list[Any]:
    return [{"type": f"response.{kind}", **event, "sequence_number": at} for at, (kind, event) in enumerate(events)]


def _in_item(index: int, item: str, **also: Any) -> Any:
    return {"output_index": index, "item_id": item, **also}


_citation = {"type": "url_citation", "start_index": 0, "end_index": 2, "title": "T", "url": "https://example.com"}
_reasoning = {
    "type": "reasoning",
    "id": "rs_1",
    "summary": [],
    "content": [{"type": "reasoning_text", "text": "raw thought"}],
    "encrypted_content": "gAAAA==",
    "status": "completed",
}
_said = {
    "type": "message",
    "id": "msg_1",
    "role": "assistant",
    "status": "completed",
    "content": [
        {"type": "output_text", "text": "Hå 🌦", "annotations": [_citation], "logprobs": []},
        {"type": "refusal", "refusal": "no more"},
    ],
}
_custom = {"type": "custom_tool_call", "id": "ctc_1", "call_id": "call_1", "name": "sh", "input": "ls -l"}
_cut_call = {
    "type": "function_call",
    "id": "fc_1",
    "call_id": "call_2",
    "name": "f",
    "arguments": '{"a": "b',
    "status": "incomplete",
}
_code = {
    "type": "code_interpreter_call",
    "id": "ci_1",
    "code": "1+1",
    "container_id": "cntr",
    "outputs": None,
    "status": "completed",
}
_output = [_reasoning, _said, _custom, _code, _cut_call]
_items = _numbered(
    ("created", {"response": {**_RESPONSE, "status": "queued", "output": []}}),
    ("in_progress", {"response": {**_RESPONSE, "status": "in_progress", "output": []}}),
    (
        "output_item.added",
        {"output_index": 0, "item": {"type": "reasoning", "id": "rs_1", "summary": [], "encrypted_content": "gA"}},
    ),
    ("content_part.added", _in_item(0, "rs_1", content_index=0, part={"type": "reasoning_text", "text": ""})),
    ("reasoning_text.delta", _in_item(0, "rs_1", content_index=0, delta="raw ")),
    ("reasoning_text.delta", _in_item(0, "rs_1", content_index=0, delta="thought")),
    ("reasoning_text.done", _in_item(0, "rs_1", content_index=0, text="raw thought")),
    (
        "output_item.added",
        {
            "output_index": 1,
            "item": {"type": "message", "id": "msg_1", "role": "assistant", "status": "in_progress", "content": []},
        },
    ),
    (
        "content_part.added",
        _in_item(1, "msg_1", content_index=0, part={"type": "output_text", "text": "", "annotations": [], "logprobs": []}),
    ),
    ("output_text.delta", _in_item(1, "msg_1", content_index=0, delta="Hå", logprobs=[])),
    ("output_item.done", {"output_index": 0, "item": _reasoning}),
    ("output_text.annotation.added", _in_item(1, "msg_1", content_index=0, annotation_index=0, annotation=_citation)),
    ("output_item.added", {"output_index": 2, "item": {**_custom, "input": ""}}),
    ("custom_tool_call_input.delta", _in_item(2, "ctc_1", delta="ls")),
    ("output_text.delta", _in_item(1, "msg_1", content_index=0, delta=" 🌦", logprobs=[])),
    ("output_text.done", _in_item(1, "msg_1", content_index=0, text="Hå 🌦", logprobs=[])),
    ("content_part.done", _in_item(1, "msg_1", content_index=0, part=_said["content"][0])),
    ("content_part.added", _in_item(1, "msg_1", content_index=1, part={"type": "refusal", "refusal": ""})),
    ("refusal.delta", _in_item(1, "msg_1", content_index=1, delta="no ")),
    ("refusal.delta", _in_item(1, "msg_1", content_index=1, delta="more")),
    ("refusal.done", _in_item(1, "msg_1", content_index=1, refusal="no more")),
    ("output_item.done", {"output_index": 1, "item": _said}),
    ("custom_tool_call_input.delta", _in_item(2, "ctc_1", delta=" -l")),
    ("custom_tool_call_input.done", _in_item(2, "ctc_1", input="ls -l")),
    ("output_item.done", {"output_index": 2, "item": _custom}),
    ("output_item.added", {"output_index": 3, "item": {**_code, "code": "", "status": "in_progress"}}),
    ("code_interpreter_call.in_progress", _in_item(3, "ci_1")),
    ("code_interpreter_call_code.delta", _in_item(3, "ci_1", delta="1+1")),
    ("code_interpreter_call_code.done", _in_item(3, "ci_1", code="1+1")),
    ("output_item.done", {"output_index": 3, "item": _code}),
    ("output_item.added", {"output_index": 4, "item": {**_cut_call, "arguments": "", "status": "in_progress"}}),
    ("function_call_arguments.delta", _in_item(4, "fc_1", delta='{"a": "b')),
    ("output_item.done", {"output_index": 4, "item": _cut_call}),
)
_ended = {
    **_RESPONSE,
    "status": "incomplete",
    "incomplete_details": {"reason": "max_output_tokens"},
    "output": _output,
    "usage": _USAGE,
}

_add("openai-responses", "sample", _sample("openai-responses"), _sample("openai-responses")[-1]["response"])
_add(
    "openai-responses",
    "all kinds of items",
    [*_items, {"type": "response.incomplete", "response": _ended, "sequence_number": len(_items)}],
    _ended,
)

# ---------------------------------------------------------------- anthropic-messages


def _started(**also: Any) -> Any:
    message = {"id": "msg_1", "type": "message", "role": "assistant", "model": "m", "content": []}
    return {
        "type": "message_start",
        "message": {
            **message,
            "stop_reason": None,
            "stop_sequence": None,
            "usage": {"input_tokens": 10, "output_tokens": 1, "cache_read_input_tokens": 3},
            **also,
        },
    }


def _block(index: int, block: Any, *deltas: Any) -> list[Any]:
    return [
        {"type": "content_block_start", "index": index, "content_block": block},
        *({"type": "content_block_delta", "index": index, "delta": delta} for delta in deltas),
        {"type": "content_block_stop", "index": index},
    ]


def _piece(kind: str, **said: Any) -> Any:
    return {"type": f"{kind}_delta", **said}


_place = {
    "type": "web_search_result_location",
    "cited_text": "c",
    "encrypted_index": "E",
    "title": None,
    "url": "https://example.com",
}
_found = {
    "type": "web_search_tool_result",
    "tool_use_id": "srvtoolu_1",
    "content": [
        {
            "type": "web_search_result",
            "encrypted_content": "X",
            "page_age": None,
            "title": "T",
            "url": "https://example.com",
        }
    ],
}
_sample_message = _sample("anthropic-messages")[0]["message"]
_sample_citation = _sample("anthropic-messages")[7]["delta"]["citation"]

_add(
    "anthropic-messages",
    "sample",
    _sample("anthropic-messages"),
    {
        **_sample_message,
        "content": [
            {"type": "thinking", "thinking": "hm", "signature": "EqQBCkgIARABGAIiQKz0x/Y+x/Y+x/Y+x/Y+x/Y+x/Y+=="},
            {"type": "text", "text": "See", "citations": [_sample_citation]},
            {"type": "tool_use", "id": "toolu_s", "name": "f", "input": {"a": 1.0}},
            {"type": "tool_use", "id": "toolu_s2", "name": "noargs", "input": {}},
        ],
        "stop_reason": "tool_use",
        "usage": {"input_tokens": 10, "output_tokens": 42},
    },
)
_add(
    "anthropic-messages",
    "a search by the server",
    [
        _started(),
        {"type": "ping"},
        *_block(0, {"type": "redacted_thinking", "data": "R"}),
        *_block(
            1,
            {"type": "server_tool_use", "id": "srvtoolu_1", "name": "web_search", "input": {}},
            _piece("input_json", partial_json=""),
            _piece("input_json", partial_json='{"query": "v\\u00'),
            _piece("input_json", partial_json='e6r", "n": 9007199254740993}'),
        ),
        *_block(2, _found),
        *_block(
            3,
            {"type": "text", "text": "", "citations": []},
            _piece("text", text="Væ"),
            _piece("citations", citation=_place),
            _piece("text", text="r 🌦"),
            _piece("citations", citation=_place),
        ),
        {
            "type": "message_delta",
            "delta": {"stop_reason": "pause_turn", "stop_sequence": None},
            "usage": {
                "output_tokens": 7,
                "input_tokens": 12,
                "server_tool_use": {"web_search_requests": 1, "web_fetch_requests": 0},
            },
        },
        {"type": "message_delta", "delta": {}, "usage": {"output_tokens": 8, "input_tokens": None}},
        {"type": "message_stop"},
    ],
    {
        **_started()["message"],
        "content": [
            {"type": "redacted_thinking", "data": "R"},
            {
                "type": "server_tool_use",
                "id": "srvtoolu_1",
                "name": "web_search",
                "input": {"query": "vær", "n": 9007199254740993},
            },
            _found,
            {"type": "text", "text": "Vær 🌦", "citations": [_place, _place]},
        ],
        "stop_reason": "pause_turn",
        "usage": {
            "input_tokens": 12,
            "output_tokens": 8,
            "cache_read_input_tokens": 3,
            "server_tool_use": {"web_search_requests": 1, "web_fetch_requests": 0},
        },
    },
)
_add(
    "anthropic-messages",
    "a refusal",
    [
        _started(),
        {
            "type": "message_delta",
            "delta": {
                "stop_reason": "refusal",
                "stop_sequence": None,
                "stop_details": {"type": "refusal", "category": None, "explanation": "no"},
            },
            "usage": {"output_tokens": 2},
        },
        {"type": "message_stop"},
    ],
    {
        **_started()["message"],
        "stop_reason": "refusal",
        "stop_details": {"type": "refusal", "category": None, "explanation": "no"},
        "usage": {"input_tokens": 10, "output_tokens": 2, "cache_read_input_tokens": 3},
    },
)

# ---------------------------------------------------------------- gemini


def _content(*parts: Any, index: int = 0, **also: Any) -> Any:
    return {"index": index, "content": {"role": "model", "parts": list(parts)}, **also}


_add(
    "gemini",
    "sample",
    _sample("gemini")[:-1],
    {
        "responseId": "s",
        "modelVersion": "gemini-4-pro",
        "candidates": [
            _content(
                {"text": "thinking", "thought": True},
                {"text": "Hello"},
                {
                    "functionCall": {"id": "x", "name": "f", "args": {"a": 1}},
                    "thoughtSignature": "CpwBAdHtim9/+w0XyZ4kQf/+",
                },
                {"functionCall": {"id": "y", "name": "g", "args": {"q": "abcd"}}},
                finishReason="STOP",
            )
        ],
        "usageMetadata": {
            "promptTokenCount": 5,
            "candidatesTokenCount": 9,
            "thoughtsTokenCount": 7,
            "totalTokenCount": 21,
        },
    },
)
_add("gemini", "a blocked prompt", _sample("gemini")[-1:], {"promptFeedback": {"blockReason": "PROHIBITED_CONTENT"}})
_add(
    "gemini",
    "signed and grounded",
    [
        {"responseId": "r", "candidates": [_content({"text": "Væ"}), _content({"text": "B"}, index=1)]},
        {"responseId": "r", "candidates": [_content({"text": "r "}, {"text": "🌦", "thoughtSignature": "U0lH"})]},
        {
            "responseId": "r",
            "candidates": [
                _content(
                    {"text": "after"},
                    {"inlineData": {"mimeType": "image/png", "data": "iVBO"}},
                    {"text": " more"},
                    citationMetadata={"citations": [{"startIndex": 0, "uri": "https://a.example"}]},
                )
            ],
        },
        {"responseId": "r", "candidates": [_content({"text": "2"}, index=1, finishReason="MAX_TOKENS")]},
        {
            "responseId": "r",
            "candidates": [
                _content(
                    {"text": "", "thoughtSignature": "RU5E"},
                    finishReason="STOP",
                    citationMetadata={"citations": [{"startIndex": 5, "uri": "https://b.example"}]},
                    groundingMetadata={
                        "groundingChunks": [{"web": {"uri": "https://a.example", "title": "A"}}],
                        "groundingSupports": [
                            {"segment": {"startIndex": 0, "endIndex": 6, "text": "Vær "}, "groundingChunkIndices": [0]}
                        ],
                    },
                )
            ],
            "usageMetadata": {"promptTokenCount": 2, "totalTokenCount": 4},
        },
    ],
    {
        "responseId": "r",
        "candidates": [
            _content(
                {"text": "Vær "},
                {"text": "🌦", "thoughtSignature": "U0lH"},
                {"text": "after"},
                {"inlineData": {"mimeType": "image/png", "data": "iVBO"}},
                {"text": " more"},
                {"text": "", "thoughtSignature": "RU5E"},
                finishReason="STOP",
                citationMetadata={
                    "citations": [
                        {"startIndex": 0, "uri": "https://a.example"},
                        {"startIndex": 5, "uri": "https://b.example"},
                    ]
                },
                groundingMetadata={
                    "groundingChunks": [{"web": {"uri": "https://a.example", "title": "A"}}],
                    "groundingSupports": [
                        {"segment": {"startIndex": 0, "endIndex": 6, "text": "Vær "}, "groundingChunkIndices": [0]}
                    ],
                },
            ),
            _content({"text": "B2"}, index=1, finishReason="MAX_TOKENS"),
        ],
        "usageMetadata": {"promptTokenCount": 2, "totalTokenCount": 4},
    },
)


def _at(path: str, **value: Any) -> Any:
    return {"jsonPath": path, **value}


def _calling(*values: Any, more: bool = True, **also: Any) -> Any:
    call = {**also, **({"partialArgs": list(values)} if values else {}), **({"willContinue": True} if more else {})}
    return {"candidates": [_content({"functionCall": call})]}


_add(
    "gemini",
    "arguments by path",
    [
        _calling(name="f", id="1"),
        _calling(_at("$.to[0].name", stringValue="Væ", willContinue=True)),
        _calling(_at("$.to[0].name", stringValue="r", willContinue=True), _at("$.to[0].name", stringValue="")),
        _calling(
            _at("$.to[1]", numberValue=2.5), _at("$.really", boolValue=False), _at("$['it\\'s']", nullValue="NULL_VALUE")
        ),
        _calling(_at('$["a.b"].c', stringValue="aa", willContinue=True)),
        _calling(_at('$["a.b"].c', stringValue="aa")),
        _calling(more=False),
        _calling(_at("$.x", numberValue=1.5), name="g", more=False),
        {"candidates": [_content({"text": ""}, finishReason="STOP")]},
    ],
    {
        "candidates": [
            _content(
                {
                    "functionCall": {
                        "id": "1",
                        "name": "f",
                        "args": {"to": [{"name": "Vær"}, 2.5], "really": False, "it's": None, "a.b": {"c": "aaaa"}},
                    }
                },
                {"functionCall": {"name": "g", "args": {"x": 1.5}}},
                finishReason="STOP",
            )
        ]
    },
)

# ---------------------------------------------------------------- pydantic-ai


def _part(kind: str, **said: Any) -> Any:
    common = {"id": None, "provider_name": None, "provider_details": None}
    own: dict[str, Any] = {
        "text": {"content": "", "citations": None},
        "thinking": {"content": "", "signature": None},
        "tool-call": {"tool_name": "", "args": None, "tool_call_id": "", "tool_kind": None},
        "builtin-tool-call": {"tool_name": "", "args": None, "tool_call_id": "", "tool_kind": None},
        "speech": {"speaker": "assistant", "transcript": None, "audio": None, "interrupted_at_ms": None, "timestamps": None},
    }[kind]
    return {**own, **common, **said, "part_kind": kind}


def _start(index: int, part: Any, before: str | None = None) -> Any:
    return {"index": index, "part": part, "previous_part_kind": before, "event_kind": "part_start"}


def _change(index: int, kind: str, **said: Any) -> Any:
    common = {} if kind == "speech" else {"provider_name": None, "provider_details": None}
    own: dict[str, Any] = {
        "text": {"content_delta": "", "citations_delta": None},
        "thinking": {"content_delta": None, "signature_delta": None},
        "tool_call": {"tool_name_delta": None, "args_delta": None, "tool_call_id": None},
        "speech": {"speaker": None, "transcript_delta": None, "transcript": None, "audio_chunk": None, "timestamps": None},
    }[kind]
    return {"index": index, "delta": {**own, **common, **said, "part_delta_kind": kind}, "event_kind": "part_delta"}


def _end(index: int, part: Any, after: str | None = None) -> Any:
    return {"index": index, "part": part, "next_part_kind": after, "event_kind": "part_end"}


_thought = _part("thinking", content="hm", signature="S2", provider_name="p", provider_details={"a": 1, "b": 2})
_words = _part("text", content="Vær 🌦", provider_name="p", provider_details={"c": 1})
_called = _part("tool-call", tool_name="f", args={"a": 1, "b": [2]}, tool_call_id="c1")

_add(
    "pydantic-ai",
    "sample",
    _sample("pydantic-ai"),
    {"parts": [_sample("pydantic-ai")[3]["part"], _sample("pydantic-ai")[6]["part"]], "kind": "response"},
)
_add(
    "pydantic-ai",
    "all kinds of changes",
    [
        _start(0, _part("thinking", content="h")),
        _change(0, "thinking", content_delta="m", signature_delta="S1", provider_name="p", provider_details={"a": 1}),
        _change(0, "thinking", signature_delta="S2", provider_details={"b": 2}),
        _end(0, _thought, "text"),
        _start(1, _part("text", content="V"), "thinking"),
        {"tool_name": None, "tool_call_id": None, "event_kind": "final_result"},
        _change(1, "text", content_delta="ær"),
        _change(1, "text", content_delta=" 🌦", provider_name="p", provider_details={"c": 1}),
        _end(1, _words, "tool-call"),
        _start(2, _part("tool-call", tool_name="f", args={"a": 1}, tool_call_id="c1"), "text"),
        _change(2, "tool_call", args_delta={"b": [2]}),
        _end(2, _called, "builtin-tool-call"),
        _start(3, _part("builtin-tool-call", tool_name="s", tool_call_id="c2", args='{"q"'), "tool-call"),
        _change(3, "tool_call", args_delta=":1}"),
        _end(3, _part("builtin-tool-call", tool_name="s", tool_call_id="c2", args='{"q":1}'), None),
        _change(1, "text", citations_delta=[]),
    ],
    {
        "parts": [
            _thought,
            {**_words, "citations": []},
            _called,
            _part("builtin-tool-call", tool_name="s", tool_call_id="c2", args='{"q":1}'),
        ],
        "kind": "response",
    },
)
