"""Nesting: how an option that is a policy finds the run in which it was called."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Generator
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any, TypeAlias

if TYPE_CHECKING:
    from antiphon.patterns.options._options import Policy

__all__ = ["Nest", "nest", "nesting"]

Nest: TypeAlias = "Callable[[Policy, str], Awaitable[Any]]"
"""Has a policy do a task, as a part of what is at work."""

_nest: ContextVar[Nest | None] = ContextVar("antiphon.patterns.options.nest", default=None)


async def nest(policy: Policy, task: str) -> Any:
    """Have a policy do a task as a part of the run that is at work here, and return its answer.

    Raises:
        RuntimeError: there is none.
    """
    inside = _nest.get()
    if inside is None:
        raise RuntimeError(f"policy {policy.name!r} is an option of an executor's run: call it from there")
    return await inside(policy, task)


@contextmanager
def nesting(inside: Nest) -> Generator[None]:
    """Have policies that are called as options run by this."""
    token = _nest.set(inside)
    try:
        yield
    finally:
        with suppress(ValueError):  # the event loop is gone, and this is closed from somewhere else
            _nest.reset(token)
