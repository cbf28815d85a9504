"""The common part of all patterns: agents with their models and tools, model requests, histories, and opening a pattern.

The names are listed in `__init__.pyi`, and imported when first used.
"""

from antiphon._lazy import lazy_names as _lazy_names

__getattr__, __dir__ = _lazy_names(__name__)
