"""Errors as messages: what went wrong is said, not raised."""

from __future__ import annotations

from antiphon.dialects.marsys._message import Message
from antiphon.messages import current_port

__all__ = ["error_message"]


def error_message(exc: BaseException, name: str | None = None) -> Message:
    """Return an exception as a message of the agent `name`: its text (or, if it has none, its class) and its class."""
    now, error_type = current_port().now(), type(exc).__name__
    # A file name that is no Unicode may be in the text, and saying an error must not fail.
    text = str(exc).encode(errors="backslashreplace").decode()
    return Message(
        role="error",
        content=text or error_type,
        name=name,
        metadata={"error_type": error_type, "timestamp": now.isoformat()},
        timestamp=now,
    )
