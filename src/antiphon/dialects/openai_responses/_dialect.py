"""OpenAI Responses: requests, responses and bare lists of items."""

from __future__ import annotations

from antiphon.dialects._body_dialect import BodyDialect
from antiphon.dialects.openai_responses._read import read, read_instructions
from antiphon.dialects.openai_responses._wire import NAME, close_body, open_body, read_tool, recognise, write_tool
from antiphon.dialects.openai_responses._write import OPTIONS, alone, write, write_instructions

__all__ = ["DIALECT"]

DIALECT = BodyDialect(
    name=NAME,
    summary="OpenAI Responses",
    open=open_body,
    close=close_body,
    read=read,
    write=write,
    recognise=recognise,
    read_tool=read_tool,
    write_tool=write_tool,
    read_instructions=read_instructions,
    write_instructions=write_instructions,
    slot_holds=1,
    together=alone,
    options=OPTIONS,
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
