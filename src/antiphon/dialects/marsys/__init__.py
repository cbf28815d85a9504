"""MARSYS: the OpenAI message format, extended by roles for agents that call each other.

`Message` is the value, the functions are what its users do with it: talk to a model, validate, follow a chain, filter.

The names are listed in `__init__.pyi`, and imported when first used.
"""

from antiphon._lazy import lazy_names as _lazy_names

__getattr__, __dir__ = _lazy_names(__name__)
