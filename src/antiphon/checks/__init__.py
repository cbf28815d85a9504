"""What is wrong with a conversation, for a target or for any, and how to mend it.

`check` names what a provider would refuse, and `repair` puts it right: both by one table of rules, each with a code for ever.

The names are listed in `__init__.pyi`, and imported when first used.
"""

from antiphon._lazy import lazy_names as _lazy_names

__getattr__, __dir__ = _lazy_names(__name__)
