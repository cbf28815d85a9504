"""Peers: named agents that ask each other, within limits, each with its own memory; from MARSYS.

The names are listed in `__init__.pyi`, and imported when first used.
"""

from antiphon._lazy import lazy_names as _lazy_names

__getattr__, __dir__ = _lazy_names(__name__)
