"""Changes that a tool call makes besides its result: to the usage of its run, and to dependencies.

A recorded call does not run again. So the usage that it added to `ctx.usage` is stored with its outcome, and added again when
a run continues. Changes to `deps` are stored if the program passes `ledger_run(state=DepsState(…))`: the whole state, with the
outcome of each call that changed it.
"""

from __future__ import annotations

from copy import copy
from decimal import Decimal
from typing import Any, Final, SupportsIndex, cast

from pydantic import TypeAdapter
from pydantic_ai.exceptions import UserError
from pydantic_ai.tools import RunContext
from pydantic_ai.usage import RequestUsage, RunUsage
from typing_extensions import override

from antiphon.durable._state import Watch, difference, fingerprint
from antiphon.errors import HistoryMismatchError, SetupError
from antiphon.messages import Json

# ---------------------------------------------------------------- usage

_usage: TypeAdapter[RunUsage] = TypeAdapter(RunUsage)


class CountedUsage(RunUsage):
    """The usage of a run, for one tool call. Changes are made to the usage of the run; those of this call are counted.

    Parallel calls share the usage of their run, so its values before and after a call do not show what that call added. The
    values here are those of the run: both objects have the same `__dict__`.
    """

    __slots__ = ("_added", "_run_usage")
    _added: RunUsage
    _run_usage: RunUsage

    def __init__(self, run_usage: RunUsage) -> None:
        object.__setattr__(self, "__dict__", run_usage.__dict__)
        object.__setattr__(self, "_run_usage", run_usage)
        object.__setattr__(self, "_added", RunUsage())

    @override
    def __setattr__(self, name: str, value: Any) -> None:
        before: Any = getattr(self, name, None) or 0
        setattr(self._run_usage, name, value)
        if isinstance(value, int | float | Decimal):
            setattr(self._added, name, (getattr(self._added, name, None) or 0) + (value - before))

    @property
    def details(self) -> dict[str, int]:  # type: ignore[override]  # pyright: ignore[reportIncompatibleVariableOverride]
        """The details of the run; changes are counted."""
        return _CountedDetails(self._run_usage.details, self._added.details)

    @override
    def incr(self, incr_usage: RunUsage | RequestUsage) -> None:
        self._run_usage.incr(incr_usage)
        self._added.incr(incr_usage)

    def added(self) -> RunUsage | None:
        """Return the usage that this call has added; None if nothing."""
        added = self._added
        return added if added.has_values() or added.unmeasured_requests else None

    def take_back(self) -> None:
        """Subtract the usage that this call has added: the call is repeated, and adds it again."""
        for name, value in vars(self._added).items():
            if isinstance(value, int | float | Decimal):
                setattr(self._run_usage, name, getattr(self._run_usage, name) - value)
        for name, count in self._added.details.items():
            self._run_usage.details[name] -= count

    @override
    def __copy__(self) -> RunUsage:
        return copy(self._run_usage)

    @override
    def __reduce_ex__(self, protocol: SupportsIndex) -> str | tuple[Any, ...]:
        return copy, (copy(self),)

    @override
    def __eq__(self, value: object, /) -> bool:
        return copy(self) == (copy(value) if isinstance(value, CountedUsage) else value)

    __hash__ = None  # type: ignore[assignment]

    @override
    def __repr__(self) -> str:
        return repr(copy(self))


class _CountedDetails(dict[str, int]):
    """The details of a usage; an assignment changes the details of the run, and is counted."""

    def __init__(self, run_details: dict[str, int], added: dict[str, int]) -> None:
        super().__init__(run_details)
        self._run_details = run_details
        self._added = added

    @override
    def __setitem__(self, name: str, count: int) -> None:
        self._added[name] = self._added.get(name, 0) + count - self.get(name, 0)
        self._run_details[name] = count
        super().__setitem__(name, count)


# ---------------------------------------------------------------- one call


_CHANGES: Final = "changes"


class ToolChanges:
    """The changes of one tool call: counted while it runs, and restored when its outcome is recorded."""

    def __init__(self, watch: Watch, tool: str, ctx: RunContext[Any], *, repeats: bool = False) -> None:
        self._watch = watch
        self._tool = tool
        self._ctx = ctx
        self._usage: CountedUsage | None = None
        self._repeats = repeats
        """Whether the tool runs again when a run continues: then its changes are not stored."""
        self._before: dict[str, str] = {}
        self._state_before = b""
        self._unrecorded: str | None = None

    @property
    def did_run(self) -> bool:
        """Whether the tool was started in this process."""
        return self._usage is not None

    def begin(self) -> RunContext[Any]:
        """Return the context for the tool. If it was started before, the changes of that start are reverted."""
        state = self._watch.state
        if self._usage is not None:
            self._usage.take_back()
            if state is not None:
                state.put(self._state_before)
        else:
            self._state_before = b"" if state is None else state.now()
            self._before = fingerprint(self._ctx.deps) if self._watch.debug else {}
        self._usage = CountedUsage(self._ctx.usage)
        context = copy(self._ctx)  # `replace` would rebuild it from its fifty fields
        context.usage = self._usage
        return context

    def stored(self) -> dict[str, Json]:
        """Return the changes in their stored form, next to the result or the details of the error; empty if there are none."""
        changes: dict[str, Json] = {}
        if self._usage is None or self._repeats:
            return changes
        if (added := self._usage.added()) is not None:
            changes["usage"] = cast("Json", _usage.dump_python(added, mode="json", exclude_defaults=True))
        state = self._watch.state
        try:
            changed = None if state is None else state.changed(self._state_before)
        except SetupError as exc:
            self._unrecorded = str(exc)
            return {_CHANGES: {**changes, "unsaid": self._unrecorded}}
        if changed is not None:
            changes["state"] = changed
        elif self._watch.debug and (places := difference(self._before, fingerprint(self._ctx.deps))):
            others = f" and {len(places) - 1} more" if len(places) > 1 else ""
            todo = "give ledger_run(state=…), or declare the tool with {'antiphon': {'effects': 'none', 'replay': 'run'}}"
            self._unrecorded = (
                f"tool {self._tool!r} changed {places[0]}{others}, and a run that continues would not have that: {todo}"
            )
        return {_CHANGES: changes} if changes else {}

    def check(self) -> None:
        """Refuse to continue after changes that could not be stored."""
        if self._unrecorded is not None:
            raise UserError(self._unrecorded)

    def restore(self, stored: object, where: str) -> None:
        """Apply the recorded changes of a call that did not run in this process; `stored` has them among other fields."""
        if self.did_run or self._repeats or not isinstance(stored, dict):
            return
        changes: dict[str, Any] = cast("dict[str, Any]", stored).get(_CHANGES) or {}
        if "usage" in changes:
            self._ctx.usage.incr(_usage.validate_python(changes["usage"]))
        if "unsaid" in changes:
            raise HistoryMismatchError(f"{changes['unsaid']}, in {where!r}")
        if "state" in changes:
            if self._watch.state is None:
                reason = f"tool {self._tool!r} changed the state of the run in {where!r}, and this program gives none"
                raise HistoryMismatchError(f"{reason}: give ledger_run(state=…)")
            self._watch.state.restore(changes["state"], where)
