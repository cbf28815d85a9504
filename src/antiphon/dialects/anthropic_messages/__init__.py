"""Anthropic Messages: requests, responses and bare lists of messages."""

from antiphon.dialects import _body, _body_dialect
from antiphon.dialects.anthropic_messages import _read, _write

__all__ = ["DIALECT"]

DIALECT = _body_dialect.BodyDialect(
    name=_read.NAME,
    summary="Anthropic Messages: the API of Claude",
    open=_read.open_body,
    close=_write.close_body,
    read=_read.read,
    write=_write.write,
    recognise=_read.recognise,
    read_tool=_read.read_tool,
    write_tool=_write.write_tool,
    read_instructions=_read.read_instructions,
    write_instructions=_write.write_instructions,
    together=_body.joins_results,
    before=_write.before,
    invocation_in=_write.invocation_in,
    options=_write.OPTIONS,
    reasons={
        "speaker": "a message has a role and no name",
        "text": "blank text is omitted, other content is written as text, and a later instruction gets a prefix",
        "reasoning": "reasoning is sent only to the provider that signed it",
        "media": "only user messages and results can contain images and documents, in the forms that the service accepts",
        "citations": "a citation refers to a document of the request, or is signed by its provider",
        "foreign": "only its own dialect can write it, in its original role",
        "data": "a block contains text, not data",
        "time": "no message has a time",
        "usage": "only a response has usage",
    },
    wire=frozenset(
        {
            *("role", "content", "type", "id", "text", "name", "input", "tool_use_id", "is_error", "model"),
            *("stop_reason", "stop_sequence", "usage", "slot", "joined", "aliased", "blocks", "cache_control"),
            *("caller", "citations", "transformations", "signature"),
        }
    ),
)
