"""The HTTP server of a ledger: an API, an event stream, and tokens in front of both.

Like the command line, it calls only verbs of `antiphon.service`. It needs the extra `server`.
"""

from antiphon._lazy import lazy_names as _lazy_names

_SERVER = 'the extra `server`: pip install "antiphon[server]"'

__getattr__, __dir__ = _lazy_names(__name__, needs={"starlette": _SERVER, "uvicorn": _SERVER})
