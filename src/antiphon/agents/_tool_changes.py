"""Changes that a tool call makes besides its result: to the usage of its run, and to dependencies.

A recorded call does not run again. So the usage that it added to `ctx.usage` is stored with its outcome, and added again when
a run continues. Changes to `deps` are stored if the program passes `ledger_run(state=DepsState(…))`: the whole state, with the
outcome of each call that changed it.

**One call at a time.** A state that is stored with one call must not contain half of the changes of another. So calls of a run
with a state wait for each other. A call inside another call, such as a call of an agent that a tool runs, does not wait for
the outer one.

`ledger_run(debug=True)` compares the dependencies before and after each call, and names the tool that changed them unrecorded.
"""

from __future__ import annotations

from asyncio import Lock
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractAsyncContextManager, nullcontext
from copy import copy
from dataclasses import dataclass, fields, is_dataclass
from decimal import Decimal
from typing import Any, Final, Generic, SupportsIndex, TypeVar, cast

import orjson
from pydantic import BaseModel, TypeAdapter, ValidationError
from pydantic_ai.exceptions import UserError
from pydantic_ai.tools import RunContext
from pydantic_ai.usage import RequestUsage, RunUsage
from typing_extensions import override

from antiphon.errors import HistoryMismatchError
from antiphon.messages import Json, current_limits
from antiphon.messages.arguments import check_type

# ---------------------------------------------------------------- usage

_usage: TypeAdapter[RunUsage] = TypeAdapter(RunUsage)


class CountedUsage(RunUsage):
    """The usage of a run, for one tool call. Changes are made to the usage of the run; those of this call are counted.

    Parallel calls share the usage of their run, so its values before and after a call do not show what that call added. The
    values here are those of the run: both objects have the same `__dict__`.
    """

    __slots__ = ("_added", "_whole")
    _added: RunUsage
    _whole: RunUsage

    def __init__(self, whole: RunUsage) -> None:
        object.__setattr__(self, "__dict__", whole.__dict__)
        object.__setattr__(self, "_whole", whole)
        object.__setattr__(self, "_added", RunUsage())

    @override
    def __setattr__(self, name: str, value: Any) -> None:
        before: Any = getattr(self, name, None) or 0
        setattr(self._whole, name, value)
        if isinstance(value, int | float | Decimal):
            setattr(self._added, name, (getattr(self._added, name, None) or 0) + (value - before))

    @property
    def details(self) -> dict[str, int]:  # type: ignore[override]  # pyright: ignore[reportIncompatibleVariableOverride]
        """The details of the run; changes are counted."""
        return _CountedDetails(self._whole.details, self._added.details)

    @override
    def incr(self, incr_usage: RunUsage | RequestUsage) -> None:
        self._whole.incr(incr_usage)
        self._added.incr(incr_usage)

    def added(self) -> RunUsage | None:
        """Return the usage that this call has added; None if nothing."""
        added = self._added
        return added if added.has_values() or added.unmeasured_requests else None

    def take_back(self) -> None:
        """Subtract the usage that this call has added: the call is repeated, and adds it again."""
        for name, value in vars(self._added).items():
            if isinstance(value, int | float | Decimal):
                setattr(self._whole, name, getattr(self._whole, name) - value)
        for name, count in self._added.details.items():
            self._whole.details[name] -= count

    @override
    def __copy__(self) -> RunUsage:
        return copy(self._whole)

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

    def __init__(self, whole: dict[str, int], added: dict[str, int]) -> None:
        super().__init__(whole)
        self._whole = whole
        self._added = added

    @override
    def __setitem__(self, name: str, count: int) -> None:
        self._added[name] = self._added.get(name, 0) + count - self.get(name, 0)
        self._whole[name] = count
        super().__setitem__(name, count)


# ---------------------------------------------------------------- the state

DepsT = TypeVar("DepsT")


@dataclass(frozen=True, slots=True)
class DepsState(Generic[DepsT]):
    """Dependencies that tools change, and how they are stored: `ledger_run(thread_id, state=DepsState(deps, dump, load))`.

    Without `dump` and `load`, all fields of a dataclass or Pydantic model are stored.
    """

    deps: DepsT
    """The object that the agents of the run get as `deps`, or a part of it."""
    dump: Callable[[DepsT], Json] | None = None
    """Returns the state as JSON."""
    load: Callable[[DepsT, Any], None] | None = None
    """Restores a state that `dump` has returned into the object."""


class StoredState:
    """The state of a run, and the number of its changes."""

    def __init__(self, given: DepsState[Any]) -> None:
        """Make it.

        Raises:
            TypeError: it is not a `DepsState`.
            UserError: `dump` does not return JSON, or `load` does not restore the output of `dump`.
        """
        check_type("state", given, DepsState | None, "DepsState(deps)")
        self._deps = given.deps
        self._name = type(given.deps).__qualname__
        self._dump, self._load = _functions(given)
        self._count = 0
        """The number of the last change. Recorded calls of one step may be restored in another order."""
        self.put(self.now())

    def now(self) -> bytes:
        """Return the state as JSON."""
        return _written(self._dump(self._deps))

    def put(self, state: bytes) -> None:
        """Put a state into the dependencies.

        Raises:
            UserError: `load` does not restore it.
        """
        try:
            self._load(self._deps, orjson.loads(state))
        except (TypeError, ValueError, LookupError, AttributeError) as exc:
            raise UserError(f"load of the state of {self._name!r} failed: {exc!r}") from exc
        if self.now() != state:
            raise UserError(f"load does not restore what dump returned, for the state of {self._name!r}")

    def changed(self, since: bytes) -> dict[str, Json] | None:
        """Return the state in its stored form, if it has changed; else None.

        Raises:
            UserError: it is too large to be stored.
        """
        now = self.now()
        if now == since:
            return None
        if len(now) > current_limits().message_bytes // 4:
            raise UserError(f"the state of {self._name!r} has {len(now):,} bytes as JSON: dump less")
        self._count += 1
        return {"count": self._count, "value": orjson.loads(now)}

    def restore(self, stored: Mapping[str, Any], where: str) -> None:
        """Put a recorded state into the dependencies, unless a later one is in them.

        Raises:
            HistoryMismatchError: `load` does not restore it.
        """
        if stored["count"] <= self._count:
            return
        self._count = stored["count"]
        try:
            self.put(_written(stored["value"]))
        except UserError as exc:
            raise HistoryMismatchError(f"{exc}, in {where!r}") from exc


def _written(value: Any) -> bytes:
    try:
        return orjson.dumps(value, option=orjson.OPT_SORT_KEYS)
    except TypeError as exc:
        raise UserError(f"dump of the state returned no JSON: {exc}") from exc


def _functions(given: DepsState[Any]) -> tuple[Callable[[Any], Json], Callable[[Any, Any], None]]:
    if given.dump is not None and given.load is not None:
        return given.dump, given.load
    deps = given.deps
    if given.dump is not None or given.load is not None:
        raise UserError("DepsState has dump and load, or neither")
    if isinstance(deps, type) or not (is_dataclass(deps) or isinstance(deps, BaseModel)):
        kind = type(deps).__qualname__
        raise UserError(f"DepsState of a {kind!r} needs dump and load: it is no dataclass and no Pydantic model")
    adapter: TypeAdapter[Any] = TypeAdapter(type(deps))

    def dump(deps: Any) -> Json:
        return cast("Json", adapter.dump_python(deps, mode="json"))

    def load(deps: Any, value: Any) -> None:
        try:
            found = adapter.validate_python(value)
        except ValidationError as exc:
            raise UserError(f"the state of {type(deps).__qualname__!r} cannot be loaded: {exc}") from exc
        for name in _names(deps):
            setattr(deps, name, getattr(found, name))

    return dump, load


def _names(deps: Any) -> list[str]:
    return list(type(deps).model_fields) if isinstance(deps, BaseModel) else [each.name for each in fields(deps)]


# ---------------------------------------------------------------- finding changes

_MOST_VALUES: Final = 10_000
_SCALARS: Final = (str, bytes, int, float, bool, type(None), Decimal)


def fingerprint(deps: object) -> dict[str, str]:
    """Return the values in dependencies, by path. Objects of other packages are compared by identity and `repr`."""
    found: dict[str, str] = {}
    own = type(deps).__module__.partition(".")[0]
    waiting: list[tuple[str, object]] = [("deps", deps)]
    seen: set[int] = set()
    while waiting and len(found) < _MOST_VALUES:
        place, value = waiting.pop()
        if isinstance(value, _SCALARS):
            found[place] = repr(value)
            continue
        found[place] = f"{type(value).__qualname__} {id(value)}"
        if id(value) not in seen:
            seen.add(id(value))
            children = list(_children(value, own))
            if not children and type(value).__repr__ is not object.__repr__:
                found[place] = f"{type(value).__qualname__} {value!r}"
            waiting += [(f"{place}{name}", child) for name, child in children]
    return found


def _children(value: object, own: str) -> Iterator[tuple[str, object]]:
    match value:
        case dict():
            items = cast("dict[object, object]", value)
            yield from ((f"[{key!r}]", each) for key, each in items.items())
        case list() | tuple():
            yield from ((f"[{number}]", each) for number, each in enumerate(cast("list[object]", value)))
        case _ if type(value).__module__.partition(".")[0] == own or is_dataclass(value) or isinstance(value, BaseModel):
            slots = [name for cls in type(value).__mro__ for name in getattr(cls, "__slots__", ())]
            names = [*getattr(value, "__dict__", ()), *slots]
            yield from ((f".{name}", getattr(value, name)) for name in names if hasattr(value, name))
        case _:
            return


def difference(before: Mapping[str, str], after: Mapping[str, str]) -> list[str]:
    """Return the paths that differ, the outermost first."""
    changed = {place for place in before.keys() | after.keys() if before.get(place) != after.get(place)}
    return sorted(changed, key=lambda place: (place.count(".") + place.count("["), place))


# ---------------------------------------------------------------- one call


_CHANGES: Final = "changes"


class Watch:
    """How a run handles changes of tools: its state, and whether it detects unrecorded changes."""

    def __init__(self, state: DepsState[Any] | None = None, *, debug: bool = False) -> None:
        self.state = None if state is None else StoredState(state)
        self.debug = debug
        self._locks: dict[str, Lock] = {}

    def alone(self, around: str) -> AbstractAsyncContextManager[None]:
        """Return the block of a call, in which no other call of the same invocation runs; without a state, others may."""
        if self.state is None and not self.debug:
            return nullcontext()
        return self._locks.setdefault(around, Lock())


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
        self._unsaid: str | None = None

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
        own = copy(self._ctx)  # `replace` would rebuild it from its fifty fields
        own.usage = self._usage
        return own

    def stored(self) -> dict[str, Json]:
        """Return the changes in their stored form, next to the result or the details of the error; empty if there are none."""
        changes = {} if self._usage is None or self._repeats else self._changes(self._usage)
        return {_CHANGES: changes} if changes else {}

    def _changes(self, usage: CountedUsage) -> dict[str, Json]:
        found: dict[str, Json] = {}
        if (added := usage.added()) is not None:
            found["usage"] = cast("Json", _usage.dump_python(added, mode="json", exclude_defaults=True))
        state = self._watch.state
        try:
            changed = None if state is None else state.changed(self._state_before)
        except UserError as exc:
            self._unsaid = str(exc)
            return {**found, "unsaid": self._unsaid}
        if changed is not None:
            found["state"] = changed
        elif self._watch.debug and (places := difference(self._before, fingerprint(self._ctx.deps))):
            more = f" and {len(places) - 1} more" if len(places) > 1 else ""
            todo = "give ledger_run(state=…), or declare the tool with {'antiphon': {'effects': 'none', 'replay': 'run'}}"
            self._unsaid = (
                f"tool {self._tool!r} changed {places[0]}{more}, and a run that continues would not have that: {todo}"
            )
        return found

    def check(self) -> None:
        """Refuse to continue after changes that could not be stored.

        Raises:
            UserError: there are some.
        """
        if self._unsaid is not None:
            raise UserError(self._unsaid)

    def restore(self, stored: object, where: str) -> None:
        """Apply the recorded changes of a call that did not run in this process; `stored` has them among other fields.

        Raises:
            HistoryMismatchError: the state cannot be restored.
        """
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
