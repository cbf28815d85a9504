"""Tools for tests: conformance checks of ledgers and dialects, and a simulation in virtual time.

The names are listed in `__init__.pyi`, and imported when first used.
"""

from antiphon._lazy import lazy_names as _lazy_names

__getattr__, __dir__ = _lazy_names(__name__)
