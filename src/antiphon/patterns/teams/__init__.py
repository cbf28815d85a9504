"""Teams: an orchestrator plans in phases, managers divide each into steps or a script, and workers act.

The thread records all of it.

Every message is one of the fourteen types of the `agent-framework` format. `Team` is the pattern; `TeamStore` has
the views of a thread. Read `_team` (with the orchestrator), then `_members` (managers and workers).

The names are listed in `__init__.pyi`, and imported when first used.
"""

from antiphon._lazy import lazy_names as _lazy_names

__getattr__, __dir__ = _lazy_names(__name__)
