"""Policies choose options, options produce results: the executor runs every call that has no result.

| | |
|---|---|
| `Options` | the options and the policies: functions and agents |
| `Executor` | the durable loop: decide, run, append, until a decision calls nothing |
| `All`, `FirstSuccess`, `NOfM`, `Groups` | rules for running the calls of one decision, as data |
| `RunPolicy`, `CompleteCalls` | the requests of other actors to the executor, in their thread |
| `export_transitions` | the decisions of a thread as training data |

The names are listed in `__init__.pyi`, and imported when first used.
"""

from antiphon._lazy import lazy_names as _lazy_names

__getattr__, __dir__ = _lazy_names(__name__)
