"""Models for agents: all models of Pydantic AI, a scripted model, and a small local model.

The names are listed in `__init__.pyi`, and imported when first used, so that unused parts cost nothing.
"""

from antiphon._lazy import lazy_names as _lazy_names

__getattr__, __dir__ = _lazy_names(__name__)
