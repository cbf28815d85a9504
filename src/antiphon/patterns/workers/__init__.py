"""Workers: a controller gives tasks to workers that use tools, with structured messages of Atlas.

Atlas's agents and tools are imported from here, its messages from `antiphon.dialects.atlas`.

| | |
|---|---|
| `_schedule.py` | the requests of the actors, the limits; the order and the deadlines of a worker's tasks |
| `_conversation.py` | the messages of agents in the thread; STATUS reports |
| `_agent.py` | an agent's answer to a message, and `ToolCapableAgent`, for programs of any kind |
| `_assignment.py` | assignment of tasks by a policy or a model |
| `_workers.py` | the actors, and `Workers`, the pattern |

The names are listed in `__init__.pyi`, and imported when first used.
"""

from antiphon._lazy import lazy_names as _lazy_names

__getattr__, __dir__ = _lazy_names(__name__)
