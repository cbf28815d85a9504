"""How a Pydantic AI agent is made durable: its operations are effects in a thread.

`LedgerDurability` is what a program uses. `ThreadTalk`, `RecordedLists`, `ToolFailures` and the functions below are for code
that makes its own effects in a run, as the toolkit and the patterns do.

The names are listed in `__init__.pyi`, and imported when first used.
"""

from antiphon._lazy import lazy_names as _lazy_names

__getattr__, __dir__ = _lazy_names(__name__)
