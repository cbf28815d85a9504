"""OpenAI Chat Completions: requests, responses and bare lists of messages."""

from __future__ import annotations

from antiphon.dialects._body_dialect import BodyDialect
from antiphon.dialects.openai_chat._plain import write_plain
from antiphon.dialects.openai_chat._read import read
from antiphon.dialects.openai_chat._wire import NAME, close_body, open_body, read_tool, recognise, write_tool
from antiphon.dialects.openai_chat._write import OPTIONS, invocation_in, together, write

__all__ = ["DIALECT"]

DIALECT = BodyDialect(
    name=NAME,
    summary="OpenAI Chat Completions, and servers compatible with it",
    open=open_body,
    close=close_body,
    read=read,
    write=write,
    write_plain=write_plain,
    recognise=recognise,
    read_tool=read_tool,
    write_tool=write_tool,
    together=together,
    invocation_in=invocation_in,
    options=OPTIONS,
    reasons={
        "reasoning": "Chat Completions has no place for reasoning",
        "error": "a tool message has no error flag; it says so in words",
        "media": "media stand in user messages only",
        "time": "a request has no times",
    },
)
