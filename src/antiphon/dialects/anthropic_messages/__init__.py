"""Anthropic Messages: requests, responses and bare lists of messages."""

from antiphon.dialects import _body_dialect
from antiphon.dialects.anthropic_messages import _read, _wire, _write

__all__ = ["DIALECT"]

DIALECT = _body_dialect.BodyDialect(
    name=_wire.NAME,
    summary="Anthropic Messages: the API of Claude",
    open=_wire.open_body,
    close=_wire.close_body,
    read=_read.read,
    write=_write.write,
    write_plain=_write.write_plain,
    recognise=_wire.recognise,
    read_tool=_wire.read_tool,
    write_tool=_wire.write_tool,
    read_instructions=_read.read_instructions,
    write_instructions=_write.write_instructions,
    together=_write.together,
    before=_write.before,
    invocation_in=_write.invocation_in,
    options=_write.OPTIONS,
    reasons={
        "speaker": "a message has a role and no name",
        "text": "blank text is refused, what is no text is said in words, and a later instruction is marked as one",
        "reasoning": "reasoning goes only to the provider whose proof it carries",
        "media": "images and documents stand in messages and results of the user's only, in the forms that the service takes",
        "citations": "a citation names a place in a document of the request, or carries its provider's proof",
        "foreign": "only its own dialect can say it, in the role that it came in",
        "data": "a block holds text, and no other data",
        "time": "no message has a time",
        "usage": "only a response says what it cost",
    },
)
