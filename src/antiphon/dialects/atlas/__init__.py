"""Atlas: structured messages between agents, with tool calls and their results, and values that survive JSON.

A message can be changed until it is sent. It holds data only: it stores copies of values, and returns copies.
"""

from antiphon.dialects.atlas._fields import ToolCall, ToolResult, ToolStatus
from antiphon.dialects.atlas._message import StructuredMessage
from antiphon.dialects.atlas._values import MessageType

__all__ = ["MessageType", "StructuredMessage", "ToolCall", "ToolResult", "ToolStatus"]
