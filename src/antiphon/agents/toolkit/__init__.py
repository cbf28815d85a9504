"""Tools that agents share: functions, toolsets and MCP servers, with permissions and approvals.

Every call goes through one guard (`_guard.py`): arguments are checked, a decision is written down, a person is asked where
one must be, and only then a tool is started. The names are listed in `__init__.pyi`, and imported when first used:
answering an approval needs no Pydantic AI.
"""

from antiphon._lazy import lazy_names as _lazy_names

__getattr__, __dir__ = _lazy_names(__name__)
