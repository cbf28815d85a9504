"""Tools for tests: conformance checks of ledgers, dialects and buses, a simulation in virtual time, and the witness.

The names are listed in `__init__.pyi`, and imported when first used.
"""

from antiphon._lazy import lazy_names as _lazy_names

__getattr__, __dir__ = _lazy_names(__name__)
