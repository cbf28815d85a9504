"""The verbs of the front doors (command line, HTTP server) over a ledger. They return frozen values and print nothing.

The package is private to the front doors: programs use the ledger, the runtime, the agents and the patterns.

No module here imports a terminal or a web library. The names are listed in `__init__.pyi`, and imported when first used: the
verbs that run agents need the extra `agents`, the others do not.
"""

from antiphon._lazy import lazy_names as _lazy_names

_AGENTS = 'the extra `agents`: pip install "antiphon[agents]"'

_RETRIEVAL = 'the extra `retrieval`: pip install "antiphon[retrieval]"'

__getattr__, __dir__ = _lazy_names(__name__, needs={"pydantic_ai": _AGENTS, "snowballstemmer": _RETRIEVAL})
