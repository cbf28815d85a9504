"""The verbs of the front doors (command line, HTTP server) over a ledger. They return frozen values and print nothing.

The package is private to the front doors: programs use the ledger, the runtime, the agents and the patterns.

No module here imports a terminal or a web library. The names are listed in `__init__.pyi`, and imported when first used: the
verbs that run agents need the extra `agents`, the others do not.

A verb that reads or writes a ledger raises a `LedgerError` if that fails, and an `UnknownThreadError` if there is no such
thread. One that takes a model or a configuration raises a `ModelError` or a `ConfigError` if that cannot be used. Only other
errors are listed with a verb.
"""

from antiphon._lazy import lazy_names as _lazy_names

_AGENTS = 'the extra `agents`: pip install "antiphon[agents]"'

_RETRIEVAL = 'the extra `retrieval`: pip install "antiphon[retrieval]"'

__getattr__, __dir__ = _lazy_names(__name__, needs={"pydantic_ai": _AGENTS, "snowballstemmer": _RETRIEVAL})
