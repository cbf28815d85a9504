"""Gemini generateContent: requests, responses and bare lists of contents."""

from antiphon.dialects import _body, _body_dialect
from antiphon.dialects.gemini import _read, _wire, _write

__all__ = ["DIALECT"]

DIALECT = _body_dialect.BodyDialect(
    name=_wire.NAME,
    summary="Gemini generateContent",
    open=_wire.open_body,
    close=_wire.close_body,
    read=_read.read,
    write=_write.write,
    recognise=_wire.recognise,
    read_tool=_wire.read_tool,
    write_tool=_wire.write_tool,
    read_instructions=_read.read_instructions,
    write_instructions=_write.write_instructions,
    together=_body.joins_results,
    before=_write.before,
    invocation_in=_write.invocation_in,
    options=_write.OPTIONS,
    reasons={
        "speaker": "there are two speakers, the user and the model",
        "text": "other content is written as text, and empty text is omitted",
        "media": "a file that another provider stores is not available",
        "reasoning": "reasoning and signatures of another model are not accepted",
        "citations": "only a response has sources",
        "result": "the texts of a result become part of its output",
        "retryable": "an error has no field for `retryable`",
        "time": "a request has no times",
        "usage": "a request has no usage",
        "foreign": "only its own format can express it",
    },
    wire=frozenset(
        {
            *("role", "parts", "slot", "joined", "aliased", "no_id", "form", "snake", "urlSafe", "displayName"),
            *("thoughtSignature", "mediaResolution", "thought", "id", "name", "args"),
        }
    ),
)
