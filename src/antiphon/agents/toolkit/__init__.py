"""Tools that agents share: functions, toolsets and MCP servers, with permissions and approvals.

Every call goes through one guard (`_guard.py`): it checks the arguments, writes the decision to the log, asks a person if an
approval is required, and only then starts the tool. The names are listed in `__init__.pyi`, and imported when first used: a
program that only answers approvals does not import Pydantic AI.
"""

from antiphon._lazy import lazy_names as _lazy_names

__getattr__, __dir__ = _lazy_names(__name__)
