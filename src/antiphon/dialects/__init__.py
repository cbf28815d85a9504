"""Message formats of providers and frameworks, as pure functions to and from the core.

Data that violates its format raises a `DecodeError` with the place and what was expected; a name that no dialect has, a
`LookupError`.

The names are listed in `__init__.pyi`, and imported when first used.
"""

from antiphon._lazy import lazy_names as _lazy_names

__getattr__, __dir__ = _lazy_names(__name__)
