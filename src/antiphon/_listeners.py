"""Listeners: functions of a user that only observe, and must not harm what they observe.

Every such function is called through a `Guard`, and no other code catches its errors. An exception of a listener is logged
once, with the name of the listener, and the work goes on. What is no `Exception`, such as a cancellation or Ctrl-C, passes. A
listener is called in the middle of the work, and returns before it goes on. So a coroutine function and a generator function
are refused.
"""

from __future__ import annotations

import logging
import traceback
from asyncio import isfuture
from collections.abc import Callable
from functools import partial
from inspect import (
    isasyncgen,
    isasyncgenfunction,
    isawaitable,
    iscoroutine,
    iscoroutinefunction,
    isgenerator,
    isgeneratorfunction,
)
from typing import Any, Final, Generic, ParamSpec, TypeVar, cast, overload

ParamsT = ParamSpec("ParamsT")
ResultT = TypeVar("ResultT")

_LOG: Final = logging.getLogger("antiphon.listeners")
_QUEUE: Final = "a listener is called, and not awaited; let it put what it gets into an `asyncio.Queue`"


class Guard:
    """Calls a listener, and logs its first error."""

    __slots__ = ("_consequence", "_name", "has_failed")

    def __init__(self, name: str, consequence: str) -> None:
        self._name = name
        self._consequence = consequence
        self.has_failed = False
        """Whether it has raised an exception."""

    def call(self, listener: Callable[ParamsT, ResultT], /, *args: ParamsT.args, **options: ParamsT.kwargs) -> ResultT | None:
        """Call a listener, and return its answer; None if it raises."""
        try:
            answer = listener(*args, **options)
        except Exception as exc:  # noqa: BLE001 (a listener must not harm what it observes)
            self._report(exc)
            return None
        if (
            (isawaitable(answer) and not isfuture(answer)) or isgenerator(answer) or isasyncgen(answer)
        ):  # a task runs by itself
            if iscoroutine(answer):
                answer.close()  # otherwise Python warns that nobody awaited it
            self._report(TypeError(_QUEUE), type(answer).__name__)
            return None
        return answer

    def _report(self, error: Exception, returned: str = "") -> None:
        if self.has_failed:
            return
        self.has_failed = True
        frames = traceback.extract_tb(error.__traceback__)
        place = f" at {frames[-1].filename.rpartition('/')[2]}:{frames[-1].lineno}" if frames else ""
        where = place or f": it returned {returned}, which nobody runs"
        kind = type(error).__qualname__
        # Without the text of the error, which may quote a message.
        _LOG.error("%s raised %s%s; %s", self._name, kind, where, self._consequence, extra={"error.type": kind})


class Listener(Generic[ParamsT]):
    """A guarded listener. It returns nothing."""

    __slots__ = ("_call", "_guard")

    def __init__(self, call: Callable[ParamsT, object]) -> None:
        """Guard a function of a user.

        Raises:
            TypeError: it cannot be called, or it is a coroutine function or a generator function.
        """
        if not callable(call):
            raise TypeError(f"a listener is a function, not {call!r}")
        inner = _inner(call)
        for function in (inner, type(inner).__call__):
            if iscoroutinefunction(function):
                raise TypeError(f"{_name_of(call)} is a coroutine function: {_QUEUE}")
            if isgeneratorfunction(function) or isasyncgenfunction(function):
                raise TypeError(f"{_name_of(call)} is a generator function, and a call of it runs nothing: {_QUEUE}")
        self._call = call
        self._guard = Guard(f"the listener {_name_of(call)}", "the work goes on, and its next errors are not logged")

    def __call__(self, *args: ParamsT.args, **options: ParamsT.kwargs) -> None:
        """Call it, and catch its exceptions."""
        self._guard.call(self._call, *args, **options)


@overload
def listener(call: Callable[ParamsT, object]) -> Listener[ParamsT]: ...
@overload
def listener(call: None) -> None: ...
@overload
def listener(call: Callable[ParamsT, object] | None) -> Listener[ParamsT] | None: ...
def listener(call: Callable[ParamsT, object] | None) -> Listener[ParamsT] | None:
    """Return an optional function of a user as a guarded listener; where one is needed, make a `Listener`.

    Raises:
        TypeError: it is no listener.
    """
    return call if call is None or isinstance(call, Listener) else Listener(call)


def _name_of(call: Callable[..., object]) -> str:
    inner = _inner(call)
    return str(getattr(inner, "__qualname__", None) or type(inner).__qualname__)


def _inner(call: Callable[..., object]) -> Any:
    return cast("Any", call).func if isinstance(call, partial) else call
