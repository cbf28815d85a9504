"""The dialect `pydantic-ai`, put together."""

from antiphon.dialects._body_dialect import BodyDialect
from antiphon.dialects.pydantic_ai._read import read
from antiphon.dialects.pydantic_ai._wire import NAME, close_body, open_body, read_tool, recognise, write_tool
from antiphon.dialects.pydantic_ai._write import OPTIONS, invocation_in, together, write

__all__ = ["DIALECT"]

DIALECT = BodyDialect(
    name=NAME,
    summary="the message history of Pydantic AI",
    open=open_body,
    close=close_body,
    read=read,
    write=write,
    recognise=recognise,
    read_tool=read_tool,
    write_tool=write_tool,
    together=together,
    invocation_in=invocation_in,
    options=OPTIONS,
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
