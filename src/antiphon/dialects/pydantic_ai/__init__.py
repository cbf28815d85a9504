"""Pydantic AI: message histories as its `ModelMessagesTypeAdapter` stores them."""

from antiphon.dialects import _body_dialect
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
    together=_write.together,
    invocation_in=_write.invocation_in,
    options=_write.OPTIONS,
    reasons={
        "speaker": "a request is the user's, a response the assistant's; there are no names",
        "usage": "a response counts, and a count of zero is the same as none",
        "media": "a response holds files as bytes only, and instructions none",
        "time": "what is said in one response has one time, and 1970-01-01T00:00:00Z stands for none",
        "result": "what a tool returned and what it shows are one content",
        "error": "an error is said in words",
        "retryable": "it says that a call is to be made again, never that it is not",
    },
)
