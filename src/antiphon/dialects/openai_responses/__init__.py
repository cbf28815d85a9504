"""OpenAI Responses: requests, responses and bare lists of items."""

from antiphon.dialects import _body_dialect
from antiphon.dialects.openai_responses import _read, _wire, _write

__all__ = ["DIALECT"]

DIALECT = _body_dialect.BodyDialect(
    name=_wire.NAME,
    summary="OpenAI Responses",
    open=_wire.open_body,
    close=_wire.close_body,
    read=_read.read,
    write=_write.write,
    recognise=_wire.recognise,
    read_tool=_wire.read_tool,
    write_tool=_wire.write_tool,
    read_instructions=_read.read_instructions,
    write_instructions=_write.write_instructions,
    slot_holds=1,
    together=_write.alone,
    options=_write.OPTIONS,
    reasons={
        "reasoning": "only the service's own reasoning may be sent back to it",
        "error": "an output has no error flag; it says so in words",
        "media": "images and files stand in what the user says and in results",
        "citations": "only messages that the service made have annotations",
        "text": "what cannot be shown is told in words",
        "data": "data are said as JSON text",
        "result": "an output is text or parts",
        "time": "a request has no times",
        "turn": "items that stand in a row are one turn",
        "speaker": "a message has a role and no name",
    },
)
