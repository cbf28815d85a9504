"""PostChain: a thread goes through six phases, each an actor with an agent; supervised, durable, and inspectable.

The names are listed in `__init__.pyi`, and imported when first used.
"""

from antiphon._lazy import lazy_names as _lazy_names

__getattr__, __dir__ = _lazy_names(__name__)
