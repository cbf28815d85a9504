"""The standard types of message. A type is text, so any other text is a type too."""

from __future__ import annotations

from enum import StrEnum

__all__ = ["MessageType"]


class MessageType(StrEnum):
    """What a message is for, as it stands in `metadata["type"]`."""

    QUERY = "query"
    """A question, from a user or an agent."""

    TASK = "task"
    """Work that one agent gives to another."""

    RESPONSE = "response"
    """The answer to a query or a task."""

    RESULT = "result"
    """What a task has come to, at its end or on the way."""

    ERROR = "error"
    """Something failed."""

    STATUS = "status"
    """How far something has come."""

    TOOL_REQUEST = "tool_request"
    """Tool calls to be run."""

    TOOL_RESPONSE = "tool_response"
    """What the tools gave back."""
