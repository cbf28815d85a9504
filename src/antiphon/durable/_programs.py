"""Programs: named functions, so that another process can continue the runs of a dead one.

A run is continued by calling the same function again in the same run: recorded steps return their outcomes, and it continues
from there. So the function must take everything from the run: its input is recorded with the run, and the rest is code. A
program is found by its name, among those that the caller gives. Nothing is ever imported because a ledger names it.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Awaitable, Callable, Iterable
from typing import Any, Final, Generic, TypeAlias, TypeVar, cast, get_type_hints

from pydantic import TypeAdapter

from antiphon.durable._block import ledger_run
from antiphon.durable._history import RETURNED
from antiphon.durable._opening import OnBusy
from antiphon.durable._run import LedgerRun
from antiphon.errors import HistoryMismatchError, SetupError
from antiphon.ledger import Owners
from antiphon.messages import Json
from antiphon.messages._arguments import check_each
from antiphon.messages._json_values import copy_checked
from antiphon.messages._names import is_name
from antiphon.messages._settings import current_limits
from antiphon.runtime._rows import is_too_large

ResultT = TypeVar("ResultT")

Work: TypeAlias = Callable[[LedgerRun], Awaitable[ResultT]]
_ANYTHING: Final[TypeAdapter[Any]] = TypeAdapter(Any)


class RunProgram(Generic[ResultT]):
    """A function that starts, joins and continues the runs of one name."""

    def __init__(self, name: str, work: Work[ResultT], *, returns: object = None) -> None:
        """Create a program; threads of its runs have the kind `run/NAME`.

        `returns` is the type of its return values, by default the return annotation of the function. They are recorded as
        JSON, and read as that type.

        Raises:
            ValueError: the name is not valid.
        """
        if not is_name(name):
            raise ValueError(f"the name of a program is a name of 1 to 512 visible characters, not {name!r}")
        self.name = name
        self._work = work
        self._declared = returns

    async def run(
        self,
        thread_id: str,
        input: Json = None,
        *,
        id: str = "run",
        ledger: Owners | str,
        on_busy: OnBusy = "join",
        **options: Any,
    ) -> ResultT:
        """Return the result for a thread and an id: start, join or continue the run, or read the recorded result.

        `input` is recorded when the run starts, and is `run.input` in the function. The return value of the function is
        recorded with the end of the run. For a finished run, the function is not called. `options` are further options of
        `ledger_run`.

        Raises:
            TypeError: the function is not async, or returned a value that cannot be recorded: then the run stays open.
            HistoryMismatchError: the run was started with another input, or the function does not repeat its recorded steps;
                or the run is finished, and its recorded value is not of the type that the function returns now.
            OwnedError: the run is already open, and `on_busy` is "raise".
            ParkedError: a person must settle something first.
        """
        opening = ledger_run(thread_id, id=id, name=self.name, ledger=ledger, on_busy=on_busy, input=input, **options)
        async with opening as run:
            if (recorded := run.returned) is not None:
                return self._returned(recorded[RETURNED], thread_id)
            working = self._work(run)
            if not inspect.isawaitable(working):
                raise TypeError(f"the function of program {self.name!r} is not async: write `async def`")
            result = await working
            run.returns(self._recordable(result))
            return result

    @functools.cached_property
    def _type(self) -> TypeAdapter[Any]:
        """The type of its return values; anything that is JSON, if nothing tells it."""
        declared: Any = self._declared
        try:
            if declared is None:
                declared = get_type_hints(self._work).get("return", Any)
            return _ANYTHING if declared is Any else TypeAdapter(declared)
        except Exception:  # noqa: BLE001 (a name that is imported for type checkers only, a class without a schema)
            return _ANYTHING

    def _recordable(self, value: ResultT) -> Json:
        """Return a return value in its recorded form."""
        what = f"program {self.name!r} returned a {type(value).__qualname__}"
        try:
            dumped: Json = copy_checked(self._type.dump_python(value, mode="json", warnings="error"), current_limits())
            loaded = self._type.validate_python(dumped)
            is_other = self._declared is None and self._type is _ANYTHING and loaded != value
        except ValueError as exc:  # of Pydantic, or not JSON
            advice = "Return JSON, or annotate the function with a type that Pydantic reads back"
            raise TypeError(f"{what}, which cannot be recorded: {exc}. {advice}") from exc
        if is_other:
            advice = "Return JSON, or annotate the function with the type"
            raise TypeError(f"{what}, and a later caller would get another value. {advice}")
        if is_too_large(dumped):
            raise TypeError(f"program {self.name!r} returned more than fits into a row: return what refers to it")
        return dumped

    def _returned(self, recorded: Json, thread_id: str) -> ResultT:
        """Return the recorded value of a finished run.

        Raises:
            HistoryMismatchError: it is not of the type of the function, which was another one then.
        """
        try:
            return cast("ResultT", self._type.validate_python(recorded))
        except ValueError:  # its text would quote the value
            what = f"the value that the run in thread {thread_id!r} has returned is not of the type that it returns now"
            raise HistoryMismatchError(f"{what}. Let the type accept it, or give the run another id", self.name) from None

    def __repr__(self) -> str:
        return f"<RunProgram {self.name!r}>"


def program(name: str) -> Callable[[Work[ResultT]], RunProgram[ResultT]]:
    """Make a function the program of a name: `@program("desk")` above `async def refund(run: LedgerRun) -> str`."""
    if callable(name):
        example = getattr(name, "__name__", "desk")
        raise TypeError(f"write @program({example!r}), with the name of the program, above the function")

    def named(work: Work[ResultT]) -> RunProgram[ResultT]:
        return RunProgram(name, work)

    return named


def programs_by_name(programs: Iterable[RunProgram[Any]]) -> dict[str, RunProgram[Any]]:
    """Return programs by name.

    Raises:
        SetupError: one is not a program, or two have the same name.
    """
    by_name: dict[str, RunProgram[Any]] = {}
    for program in check_each("programs", programs, object, "a @program"):
        if not isinstance(program, RunProgram):
            advice = "write @program('name') above an async function, or give an agent, as agent_program(agent)"
            if callable(program):
                advice += "; a program that calls ledger_run itself continues when you start it again"
            raise SetupError(f"a {type(program).__qualname__} is no program: {advice}")
        named = cast("RunProgram[Any]", program)
        if by_name.setdefault(named.name, named) is not named:
            raise SetupError(f"two programs are called {named.name!r}; runs are found by the name, so give one another name")
    return by_name
