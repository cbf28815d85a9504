"""End the calls that a stopped member of a team left open: tasks, delegations and actions."""

from __future__ import annotations

from functools import partial

from antiphon.patterns import cast
from antiphon.patterns.cast import stopped
from antiphon.patterns.teams._voice import DIALECT

__all__ = ["end_open_calls", "stopped"]

end_open_calls = partial(cast.end_open_calls, fields=lambda _: {"metadata": {DIALECT: {"type": "error"}}})
