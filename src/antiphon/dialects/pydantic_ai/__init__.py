"""Pydantic AI: message histories as its `ModelMessagesTypeAdapter` stores them."""

from antiphon.dialects import _body, _body_dialect
from antiphon.dialects.pydantic_ai import _read, _wire, _write

__all__ = ["DIALECT"]

DIALECT = _body_dialect.BodyDialect(
    name=_wire.NAME,
    summary="the message history of Pydantic AI",
    open=_wire.open_body,
    close=_wire.close_body,
    read=_read.read,
    write=_write.write,
    recognise=_wire.recognise,
    read_tool=_wire.read_tool,
    write_tool=_wire.write_tool,
    together=_body.joins_results,
    invocation_in=_write.invocation_in,
    options=_write.OPTIONS,
    reasons={
        "speaker": "requests are from the user and responses from the assistant; there are no names",
        "usage": "only a response has usage, and a count of zero is not written",
        "media": "a response contains files as bytes only, and instructions contain none",
        "time": "a response has one time, and 1970-01-01T00:00:00Z means none",
        "result": "the return value and the media of a tool are one content",
        "error": "an error is written as text",
        "retryable": "it can mark a call as retryable, but not as final",
    },
    wire=frozenset(
        {
            *("kind", "parts", "part_kind", "content", "slot", "joined", "aliased", "instructions", "args"),
            *("retry", "list", "json", "outcome", "digests", "tag", "part", "id", "provider_name"),
            *("provider_response_id", "provider_url", "provider_details", "model_name", "run_id"),
            *("conversation_id", "timestamp", "finish_reason", "state", "usage", "thinking_tokens", "detail"),
            *("force_download", "identifier", "tool_kind"),
        }
    ),
)
