"""Checks of a conversation, for one target or for all, and repairs.

`check` reports what a provider would refuse, and `repair` fixes it. Both use one table of rules, each with a permanent code.
A name that no target has raises a `LookupError`.

The names are listed in `__init__.pyi`, and imported when first used.
"""

from antiphon._lazy import lazy_names as _lazy_names

__getattr__, __dir__ = _lazy_names(__name__)
