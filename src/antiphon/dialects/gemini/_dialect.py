"""Gemini generateContent: requests, responses and bare lists of contents."""

from __future__ import annotations

from antiphon.dialects._body_dialect import BodyDialect
from antiphon.dialects.gemini._plain import write_plain
from antiphon.dialects.gemini._read import read, read_instructions
from antiphon.dialects.gemini._tools import read_tool, write_tool
from antiphon.dialects.gemini._wire import NAME, close_body, open_body, recognise
from antiphon.dialects.gemini._write import OPTIONS, before, invocation_in, together, write, write_instructions

__all__ = ["DIALECT"]

DIALECT = BodyDialect(
    name=NAME,
    summary="Gemini generateContent",
    open=open_body,
    close=close_body,
    read=read,
    write=write,
    write_plain=write_plain,
    recognise=recognise,
    read_tool=read_tool,
    write_tool=write_tool,
    read_instructions=read_instructions,
    write_instructions=write_instructions,
    together=together,
    before=before,
    invocation_in=invocation_in,
    options=OPTIONS,
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
