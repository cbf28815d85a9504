"""Workers: a controller gives tasks to workers that use tools, by structured messages of Atlas.

Every class of Atlas can be imported from here: messages, tools and agents.

| | |
|---|---|
| `_protocol.py` | what the actors ask each other |
| `_conversation.py` | what agents say in the thread; STATUS reports |
| `_responder.py` | how an agent answers a message |
| `_agent.py` | `ToolCapableAgent`, for programs of any kind |
| `_assignment.py` | how tasks are given: by a policy, or by a model |
| `_schedule.py` | in which order a worker does its tasks, and until when |
| `_actors.py`, `_workers.py` | the actors, and `Workers`, the pattern |
"""

from antiphon.agents.toolkit.atlas import AgentToolkit, FunctionTool, Tool, ToolSchema
from antiphon.dialects.atlas import MessageType, StructuredMessage, ToolCall, ToolResult, ToolStatus
from antiphon.errors import WorkFailedError
from antiphon.patterns.workers._agent import ANALYSIS_WORKER, DRAFT_WORKER, RETRIEVAL_WORKER, ToolCapableAgent
from antiphon.patterns.workers._assignment import CONTROLLER, Assigner, ControllerPolicy
from antiphon.patterns.workers._conversation import Reporting, conversation, report, structured
from antiphon.patterns.workers._workers import Workers

__all__ = [
    "ANALYSIS_WORKER",
    "CONTROLLER",
    "DRAFT_WORKER",
    "RETRIEVAL_WORKER",
    "AgentToolkit",
    "Assigner",
    "ControllerPolicy",
    "FunctionTool",
    "MessageType",
    "Reporting",
    "StructuredMessage",
    "Tool",
    "ToolCall",
    "ToolCapableAgent",
    "ToolResult",
    "ToolSchema",
    "ToolStatus",
    "WorkFailedError",
    "Workers",
    "conversation",
    "report",
    "structured",
]
