"""Programs that go on: every step is recorded in a ledger, and a program that is started again continues. No agent, no actor.

What reads or writes a ledger raises a `LedgerError` if that fails; a function names only what else it raises.

The names are listed in `__init__.pyi`, and imported when first used, so that unused parts cost nothing.
"""

from antiphon._lazy import lazy_names as _lazy_names

__getattr__, __dir__ = _lazy_names(__name__)
