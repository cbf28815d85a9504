"""The toolkit under the names of Atlas, for code that runs in threads and has no event loop.

It is a thin cover: permissions, checks and limits are those of `Toolkit`. A program with an event loop uses that. The agent
that goes with it is `antiphon.patterns.workers.ToolCapableAgent`.
"""

from antiphon.agents.toolkit.atlas._toolkit import AgentToolkit
from antiphon.agents.toolkit.atlas._tools import FunctionTool, Tool, ToolSchema

__all__ = ["AgentToolkit", "FunctionTool", "Tool", "ToolSchema"]
