"""The agent_framework message format: fourteen types of plain dicts, with builders, checks and typed models.

The constants are in `constants`, the builders in `message_builder`. `BaseMessageStore` is the shape of a host's own store.

The names are listed in `__init__.pyi`, and imported when first used.
"""

from antiphon._lazy import lazy_names as _lazy_names

__getattr__, __dir__ = _lazy_names(__name__)
