"""MARSYS: the OpenAI message format, extended by roles for agents that call each other.

`Message` is the value, the functions are what its users do with it: talk to a model, validate, follow a chain, filter.
"""

from antiphon.dialects.marsys._chain import MessageChain
from antiphon.dialects.marsys._errors import error_message
from antiphon.dialects.marsys._filter import filter_messages
from antiphon.dialects.marsys._message import Message
from antiphon.dialects.marsys._processing import process_for_llm, process_llm_response
from antiphon.dialects.marsys._tools import sanitize_tool_name
from antiphon.dialects.marsys._validation import VALID_ROLES, validate_message, validate_tool_response, validation_errors

__all__ = [
    "VALID_ROLES",
    "Message",
    "MessageChain",
    "error_message",
    "filter_messages",
    "process_for_llm",
    "process_llm_response",
    "sanitize_tool_name",
    "validate_message",
    "validate_tool_response",
    "validation_errors",
]
