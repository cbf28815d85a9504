"""The vocabulary: what every agent, tool and actor says, as frozen typed values.

Three kinds of message and nothing else: `parts` (something said), `option_call` (an option chosen), `option_result` (its
outcome). Nothing here knows a provider, a network, a clock or a disk.

The names are listed in `__init__.pyi`, and imported when first used.
"""

from antiphon._lazy import lazy_names as _lazy_names

__getattr__, __dir__ = _lazy_names(__name__)
