"""What all patterns share: who takes part, on which models, with which tools; how they are asked; how a pattern is opened.

The names are listed in `__init__.pyi`, and imported when first used.
"""

from antiphon._lazy import lazy_names as _lazy_names

__getattr__, __dir__ = _lazy_names(__name__)
