"""Gemini generateContent: requests, responses and bare lists of contents."""

from antiphon.dialects import _body_dialect
from antiphon.dialects.gemini import _read, _wire, _write

__all__ = ["DIALECT"]

DIALECT = _body_dialect.BodyDialect(
    name=_wire.NAME,
    summary="Gemini generateContent",
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
        "speaker": "there are two speakers, the user and the model",
        "text": "what is no text is put in words, and an empty text is left out",
        "media": "a file that another provider holds is not there for this one",
        "reasoning": "what another model thought, and the proof of it, is not for this one",
        "citations": "sources stand beside a response only",
        "result": "what a result says in words besides is part of its output",
        "retryable": "an error has no word for whether to try again",
        "time": "a request has no times",
        "usage": "a request has no usage",
        "foreign": "only its own format can say it",
    },
)
