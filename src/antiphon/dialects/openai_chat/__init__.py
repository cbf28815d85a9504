"""OpenAI Chat Completions: requests, responses and bare lists of messages."""

from antiphon.dialects import _body_dialect
from antiphon.dialects.openai_chat import _read, _write

__all__ = ["DIALECT"]

DIALECT = _body_dialect.BodyDialect(
    name=_read.NAME,
    summary="OpenAI Chat Completions, and servers compatible with it",
    open=_read.open_body,
    close=_write.close_body,
    read=_read.read,
    write=_write.write,
    recognise=_read.recognise,
    read_tool=_read.read_tool,
    write_tool=_write.write_tool,
    together=_write.together,
    invocation_in=_write.invocation_in,
    options=_write.OPTIONS,
    reasons={
        "reasoning": "Chat Completions has no field for reasoning",
        "error": "a tool message has no error flag; the error is written as text",
        "media": "only user messages can contain media",
        "time": "a request has no times",
    },
    wire=frozenset(
        {
            *("role", "content", "name", "tool_calls", "tool_call_id", "function_call", "function", "id"),
            *("type", "index", "arguments", "list", "key", "legacy", "custom", "aliased", "joined", "slot"),
            *("named", "refusal", "annotations", "detail", "audio", "logprobs", "prompt_cache_breakpoint"),
            *("reasoning_details", "thinking_blocks", "extra_content", "thought_signature"),
        }
    ),
)
