"""Handling: which message is handled at present, for what is not given a context: `Actor.context`, `send_message`.

A context variable holds it, and not the actor: an actor may handle several messages at once, each in a task of its own. A
task that a handler starts inherits the variable and may outlive the handler. So a context is over when its handler has
ended, and what is sent by such a task afterwards is sent from outside.
"""

from __future__ import annotations

from contextlib import suppress
from contextvars import ContextVar, Token
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self, overload

if TYPE_CHECKING:
    from antiphon.runtime._context import Context
    from antiphon.runtime._system import System

__all__ = ["CurrentContext", "Handling", "context_in"]

_current: ContextVar[Context | None] = ContextVar("antiphon.runtime.handled", default=None)


class Handling:
    """A block in which a message is handled."""

    __slots__ = ("_context", "_token")

    def __init__(self, context: Context) -> None:
        self._context = context

    def __enter__(self) -> None:
        self._token: Token[Context | None] = _current.set(self._context)

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        if self._token.old_value is not self._context:  # else this is a RETRY, whose own handler goes on
            self._context.is_over = True
        with suppress(ValueError):  # a coroutine whose event loop is gone is closed in another context
            _current.reset(self._token)


def context_in(system: System) -> Context | None:
    """Return the context of the message that an actor of a system handles here; None outside of every handler."""
    context = _current.get()
    return None if context is None or context.is_over or context.system is not system else context


class CurrentContext:
    """The attribute `context` of an actor. It can be assigned to: a program may keep a context of its own there."""

    @overload
    def __get__(self, actor: None, owner: type) -> Self: ...
    @overload
    def __get__(self, actor: object, owner: type) -> Context: ...
    def __get__(self, actor: Any, owner: type) -> Self | Context:
        if actor is None:
            return self
        context = _current.get()
        if context is None:
            raise RuntimeError(f"{owner.__qualname__}.context: this actor handles no message here")
        return context
