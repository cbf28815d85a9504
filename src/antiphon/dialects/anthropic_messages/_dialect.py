"""Anthropic Messages: requests, responses and bare lists of messages."""

from __future__ import annotations

from antiphon.dialects._body_dialect import BodyDialect
from antiphon.dialects.anthropic_messages._plain import write_plain
from antiphon.dialects.anthropic_messages._read import read, read_instructions
from antiphon.dialects.anthropic_messages._wire import NAME, close_body, open_body, read_tool, recognise, write_tool
from antiphon.dialects.anthropic_messages._write import (
    OPTIONS,
    before,
    invocation_in,
    together,
    write,
    write_instructions,
)

__all__ = ["DIALECT"]

DIALECT = BodyDialect(
    name=NAME,
    summary="Anthropic Messages: the API of Claude",
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
