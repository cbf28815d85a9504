"""Durable execution of Pydantic AI agents: their operations are effects in a thread.

Programs use `LedgerDurability`. `ThreadTalk`, `RecordedLists`, `ToolFailures` and the functions below are for code that makes
its own effects in a run, such as the toolkit and the patterns.

The names are listed in `__init__.pyi`, and imported when first used.
"""

from antiphon._lazy import lazy_names as _lazy_names

__getattr__, __dir__ = _lazy_names(__name__)
