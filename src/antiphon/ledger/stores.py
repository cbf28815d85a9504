"""For a store of your own: the checks of an append, and the decision which messages a thread takes in, without any I/O.

A store looks up the state and the open calls of a thread, calls `admit`, and writes the rows that it returns, with the new
state, in one transaction. `examples/jsonl_store.py` is such a store, and `antiphon.testing.check_log` checks it.
"""

from antiphon.ledger._admission import Admission, State, admit, new_state
from antiphon.ledger._listing import head_of, summary_of
from antiphon.ledger._records import OpenCalls
from antiphon.ledger._redaction import LedgerRedaction
from antiphon.ledger._request import AppendRequest, make_post, make_request

__all__ = [
    "Admission",
    "AppendRequest",
    "LedgerRedaction",
    "OpenCalls",
    "State",
    "admit",
    "head_of",
    "make_post",
    "make_request",
    "new_state",
    "summary_of",
]
