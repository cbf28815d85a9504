"""The vocabulary: the messages of all agents, tools and actors, as frozen typed values.

There are three kinds of message: `parts` (content), `option_call` (a chosen option), `option_result` (its outcome). No code
here uses a provider, a network, a clock or a disk.

The names are listed in `__init__.pyi`, and imported when first used.
"""

from antiphon._lazy import lazy_names as _lazy_names

__getattr__, __dir__ = _lazy_names(__name__)
