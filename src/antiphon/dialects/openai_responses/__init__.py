"""OpenAI Responses: requests, responses and bare lists of items."""

from antiphon.dialects import _body_dialect
from antiphon.dialects.openai_responses import _read, _write

__all__ = ["DIALECT"]

DIALECT = _body_dialect.BodyDialect(
    name=_read.NAME,
    summary="OpenAI Responses",
    open=_read.open_body,
    close=_write.close_body,
    read=_read.read,
    write=_write.write,
    recognise=_read.recognise,
    read_tool=_read.read_tool,
    write_tool=_write.write_tool,
    read_instructions=_read.read_instructions,
    write_instructions=_write.write_instructions,
    slot_holds=1,
    together=_write.alone,
    options=_write.OPTIONS,
    reasons={
        "reasoning": "only the service's own reasoning may be sent back to it",
        "error": "an output has no error flag; the error is written as text",
        "media": "only user messages and results can contain images and files",
        "citations": "only the service's own messages have annotations",
        "text": "content that the format does not accept is written as text",
        "data": "data is written as JSON text",
        "result": "an output is text or parts",
        "time": "a request has no times",
        "turn": "consecutive items are one turn",
        "speaker": "a message has a role and no name",
    },
    wire=frozenset(
        {
            *("role", "content", "type", "id", "item_id", "call_id", "name", "arguments", "input", "output"),
            *("status", "summary", "list", "in", "item", "slot", "joined", "aliased", "agent", "agent_message"),
            *("custom", "file", "refusal", "detail", "logprobs", "encrypted_content"),
            *("prompt_cache_breakpoint", "output_format"),
        }
    ),
)
