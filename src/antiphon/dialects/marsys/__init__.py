"""MARSYS: the OpenAI message format, extended by roles for agents that call each other.

`Message` is the value; the functions prepare it for a model, validate it, follow a chain, and filter.

The names are listed in `__init__.pyi`, and imported when first used.
"""

from antiphon._lazy import lazy_names as _lazy_names

__getattr__, __dir__ = _lazy_names(__name__)
