"""State: dependencies that tool calls change, stored with the outcome of each call that changed them.

`ledger_run(state=DepsState(…))` stores the whole state. A state that is stored with one call must not contain half of the
changes of another. So calls of a run with a state wait for each other (`Watch.alone`). A call inside another call, such as a
call of an agent that a tool runs, does not wait for the outer one.

`ledger_run(debug=True)` compares the dependencies before and after each call (`fingerprint`), and names the tool that changed
them unrecorded.
"""

from __future__ import annotations

from asyncio import Lock
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractAsyncContextManager, nullcontext
from dataclasses import dataclass, fields, is_dataclass
from decimal import Decimal
from typing import Any, Final, Generic, TypeVar, cast

import orjson
from pydantic import BaseModel, TypeAdapter, ValidationError

from antiphon.errors import HistoryMismatchError, SetupError
from antiphon.messages import Json
from antiphon.messages._arguments import check_type
from antiphon.messages._settings import current_limits

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

    def __init__(self, state: DepsState[Any]) -> None:
        """Make it.

        Raises:
            TypeError: it is not a `DepsState`.
            SetupError: `dump` does not return JSON, or `load` does not restore the output of `dump`.
        """
        check_type("state", state, DepsState | None, "DepsState(deps)")
        self._deps = state.deps
        self._name = type(state.deps).__qualname__
        self._dump, self._load = _functions(state)
        self._count = 0
        """The number of the last change. Recorded calls of one step may be restored in another order."""
        self.put(self.now())

    def now(self) -> bytes:
        """Return the state as JSON."""
        return _written(self._dump(self._deps))

    def put(self, state: bytes) -> None:
        """Put a state into the dependencies."""
        try:
            self._load(self._deps, orjson.loads(state))
        except (TypeError, ValueError, LookupError, AttributeError) as exc:
            raise SetupError(f"load of the state of {self._name!r} failed: {exc!r}") from exc
        if self.now() != state:
            raise SetupError(f"load does not restore what dump returned, for the state of {self._name!r}")

    def changed(self, since: bytes) -> dict[str, Json] | None:
        """Return the state in its stored form, if it has changed; else None."""
        now = self.now()
        if now == since:
            return None
        if len(now) > current_limits().message_bytes // 4:
            raise SetupError(f"the state of {self._name!r} has {len(now):,} bytes as JSON: dump less")
        self._count += 1
        return {"count": self._count, "value": orjson.loads(now)}

    def restore(self, stored: Mapping[str, Any], where: str) -> None:
        """Put a recorded state into the dependencies, unless a later one is in them."""
        if stored["count"] <= self._count:
            return
        self._count = stored["count"]
        try:
            self.put(_written(stored["value"]))
        except SetupError as exc:
            raise HistoryMismatchError(f"{exc}, in {where!r}") from exc


def _written(value: Any) -> bytes:
    try:
        return orjson.dumps(value, option=orjson.OPT_SORT_KEYS)
    except TypeError as exc:
        raise SetupError(f"dump of the state returned no JSON: {exc}") from exc


def _functions(state: DepsState[Any]) -> tuple[Callable[[Any], Json], Callable[[Any, Any], None]]:
    if state.dump is not None and state.load is not None:
        return state.dump, state.load
    deps = state.deps
    if state.dump is not None or state.load is not None:
        raise SetupError("DepsState has dump and load, or neither")
    if isinstance(deps, type) or not (is_dataclass(deps) or isinstance(deps, BaseModel)):
        kind = type(deps).__qualname__
        raise SetupError(f"DepsState of a {kind!r} needs dump and load: it is no dataclass and no Pydantic model")
    adapter: TypeAdapter[Any] = TypeAdapter(type(deps))

    def dump(deps: Any) -> Json:
        return cast("Json", adapter.dump_python(deps, mode="json"))

    def load(deps: Any, value: Any) -> None:
        try:
            loaded = adapter.validate_python(value)
        except ValidationError as exc:
            raise SetupError(f"the state of {type(deps).__qualname__!r} cannot be loaded: {exc}") from exc
        is_model = isinstance(deps, BaseModel)
        for name in type(deps).model_fields if is_model else [field.name for field in fields(deps)]:
            setattr(deps, name, getattr(loaded, name))

    return dump, load


# ---------------------------------------------------------------- finding changes

_MOST_VALUES: Final = 10_000
_SCALARS: Final = (str, bytes, int, float, bool, type(None), Decimal)


def fingerprint(deps: object) -> dict[str, str]:
    """Return the values in dependencies, by path. Objects of other packages are compared by identity and `repr`."""
    values: dict[str, str] = {}
    package = type(deps).__module__.partition(".")[0]
    waiting: list[tuple[str, object]] = [("deps", deps)]
    seen: set[int] = set()
    while waiting and len(values) < _MOST_VALUES:
        place, value = waiting.pop()
        if isinstance(value, _SCALARS):
            values[place] = repr(value)
            continue
        values[place] = f"{type(value).__qualname__} {id(value)}"
        if id(value) not in seen:
            seen.add(id(value))
            children = list(_children(value, package))
            if not children and type(value).__repr__ is not object.__repr__:
                values[place] = f"{type(value).__qualname__} {value!r}"
            waiting += [(f"{place}{name}", child) for name, child in children]
    return values


def _children(value: object, package: str) -> Iterator[tuple[str, object]]:
    match value:
        case dict():
            items = cast("dict[object, object]", value)
            yield from ((f"[{key!r}]", item) for key, item in items.items())
        case list() | tuple():
            yield from ((f"[{number}]", item) for number, item in enumerate(cast("list[object]", value)))
        case _ if type(value).__module__.partition(".")[0] == package or is_dataclass(value) or isinstance(value, BaseModel):
            slots = [name for cls in type(value).__mro__ for name in getattr(cls, "__slots__", ())]
            names = [*getattr(value, "__dict__", ()), *slots]
            yield from ((f".{name}", getattr(value, name)) for name in names if hasattr(value, name))
        case _:
            return


def difference(before: Mapping[str, str], after: Mapping[str, str]) -> list[str]:
    """Return the paths that differ, the outermost first."""
    changed = {place for place in before.keys() | after.keys() if before.get(place) != after.get(place)}
    return sorted(changed, key=lambda place: (place.count(".") + place.count("["), place))


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
