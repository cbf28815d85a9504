"""Programs that go on: every step is recorded in a ledger, and a program that is started again continues. No agent, no actor.

The names are listed in `__init__.pyi`, and imported when first used, so that unused parts cost nothing.
"""

from antiphon._lazy import lazy_names as _lazy_names

__getattr__, __dir__ = _lazy_names(__name__)
