"""Workers: a controller gives tasks to workers that use tools, by structured messages of Atlas.

Every class of Atlas can be imported from here: messages, tools and agents.

| | |
|---|---|
| `_protocol.py` | what the actors ask each other |
| `_talk.py` | what is said in the thread |
| `_mind.py` | how an agent answers a message |
| `_agent.py` | `ToolCapableAgent`, for programs of any kind |
| `_desk.py`, `_controller.py` | how tasks are given: by a policy, or by a model |
| `_actors.py`, `_workers.py` | the actors, and `Workers`, the whole |
| `_schedule.py` | in which order a worker does its tasks, and until when |
| `_reports.py`, `_vault.py`, `_blocking.py` | STATUS; what is sensitive; waiting without an event loop |
"""

from antiphon.agents.toolkit.atlas import AgentToolkit, FunctionTool, Tool, ToolSchema
from antiphon.dialects.atlas import MessageType, StructuredMessage, ToolCall, ToolResult, ToolStatus
from antiphon.errors import WorkFailedError
from antiphon.patterns.workers._agent import ToolCapableAgent
from antiphon.patterns.workers._controller import CONTROLLER
from antiphon.patterns.workers._desk import Desk, Policy
from antiphon.patterns.workers._ready import ANALYSIS_WORKER, DRAFT_WORKER, RETRIEVAL_WORKER
from antiphon.patterns.workers._reports import Reporting, report
from antiphon.patterns.workers._talk import conversation, structured
from antiphon.patterns.workers._workers import Workers

__all__ = [
    "ANALYSIS_WORKER",
    "CONTROLLER",
    "DRAFT_WORKER",
    "RETRIEVAL_WORKER",
    "AgentToolkit",
    "Desk",
    "FunctionTool",
    "MessageType",
    "Policy",
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
