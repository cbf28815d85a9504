"""What antiphon ships so that others can test theirs: fakes that are real, and checks of what is promised.

The names are listed in `__init__.pyi`, and imported when first used.
"""

from antiphon._lazy import lazy_names as _lazy_names

__getattr__, __dir__ = _lazy_names(__name__)
