"""MARSYS: the OpenAI message format, extended by roles for agents that call each other.

`Message` is the value, the functions are what its users do with it: talk to a model, validate, follow a chain, filter.
"""

from antiphon.dialects.marsys._message import Message, sanitize_tool_name, with_heading
from antiphon.dialects.marsys._operations import (
    VALID_ROLES,
    MessageChain,
    error_message,
    filter_messages,
    process_for_llm,
    process_llm_response,
    validate_message,
    validate_tool_response,
    validation_errors,
)

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
    "with_heading",
]
