"""Errors of models, as codes in the journal: they come back as what they were, so that a fallback sees the same twice."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Generator
from contextlib import contextmanager
from typing import Any, Final, cast

from pydantic_ai import exceptions
from pydantic_ai.exceptions import (
    AgentRunError,
    ContentFilterError,
    ModelAPIError,
    ModelHTTPError,
    UnexpectedModelBehavior,
    UserError,
)
from pydantic_core import to_jsonable_python

from antiphon.errors import DeliveryError, EffectFailedError, LedgerError, RefusedError
from antiphon.messages import Json
from antiphon.runtime import FailedError, Run, UnknownOutcomeError, text_of

__all__ = ["tool_errors", "with_known_errors"]

_TOOL: Final = "TOOL_ERROR"
_HTTP: Final = "MODEL_HTTP_ERROR"
_API: Final = "MODEL_API_ERROR"
_API_CLASSES: dict[str, type[ModelAPIError]] = {
    cls.__name__: cls
    for cls in (
        ModelAPIError,
        exceptions.ModelConnectionError,
        exceptions.ModelOverloadedError,
        exceptions.ModelQuotaExceededError,
        exceptions.ModelRateLimitError,
        exceptions.ModelServerError,
        exceptions.ModelTimeoutError,
        exceptions.ModelUnavailableError,
    )
}
_WORDS: dict[str, type[UnexpectedModelBehavior | UserError]] = {
    "CONTENT_FILTERED": ContentFilterError,
    "UNEXPECTED_MODEL_BEHAVIOR": UnexpectedModelBehavior,
    "USER_ERROR": UserError,
}
_RETRYABLE = frozenset({408, 409, 425, 429, 500, 502, 503, 504, 529})


def _failure_of(error: Exception) -> FailedError | None:
    """Return how a model's error is written down; None for one that has no code of its own."""
    reason = f"{type(error).__qualname__}: {text_of(error)}"
    if isinstance(error, ModelHTTPError):
        body: Json = to_jsonable_python(error.body, fallback=str)
        details: dict[str, Json] = {"status_code": error.status_code, "model_name": error.model_name, "body": body}
        return FailedError(reason, _HTTP, details=details, retryable=error.status_code in _RETRYABLE)
    if isinstance(error, ModelAPIError):
        details = {"class": type(error).__name__, "model_name": error.model_name, "message": error.message}
        return FailedError(reason, _API, details=details, retryable=True)
    for code, cls in _WORDS.items():
        if isinstance(error, cls):
            return FailedError(reason, code, details={"message": error.message})
    return None


def _known_error(error: RefusedError) -> Exception | None:
    """Return the error of a model that the journal speaks of; None if it speaks of another."""
    if error.code == _TOOL:
        return EffectFailedError(error.reason, error.address)
    if error.details is None:  # they could not be written down
        return None
    details = cast("dict[str, Any]", error.details)
    if error.code == _HTTP:
        return ModelHTTPError(details["status_code"], details["model_name"], details["body"])
    if error.code == _API:
        return _API_CLASSES.get(details["class"], ModelAPIError)(details["model_name"], details["message"])
    if error.code in _WORDS:
        return _WORDS[error.code](details["message"])
    return None


@contextmanager
def tool_errors() -> Generator[None, None, None]:
    """Have what a tool raises written down under a code, so that it is told from what a person says became of the call."""
    try:
        yield
    except (DeliveryError, LedgerError, UnknownOutcomeError):
        raise
    except Exception as exc:
        retryable = bool(getattr(exc, "retryable", False))
        raise _failure_of(exc) or FailedError(f"{type(exc).__qualname__}: {text_of(exc)}", _TOOL, retryable=retryable) from exc


async def with_known_errors(
    perform: Callable[[Run], Awaitable[Any]], run: Run, settled: Callable[[EffectFailedError], Any] | None = None
) -> Any:
    """Do an effect; what a model raises is raised as that, now and whenever it is taken from the journal.

    `settled` says what is returned where it did not raise, and yet it failed, as a person says.
    """
    raised: list[Exception] = []

    async def watched(key: str) -> Json:
        try:
            return await run(key)
        except Exception as exc:
            raised.append(exc)
            if (failure := _failure_of(exc)) is not None:
                raise failure from exc
            raise

    try:
        return await perform(watched)
    except RefusedError as exc:
        original, known = _original(raised), _known_error(exc)
        if isinstance(original, AgentRunError | UserError) and _says_the_same(original, known):
            raise original from None
        raise (known or exc) from original
    except EffectFailedError as exc:
        if settled is not None and (not raised or isinstance(raised[0], UnknownOutcomeError)):
            return settled(exc)
        raise exc from (_original(raised) if raised else exc.__cause__)


def _says_the_same(original: Exception, known: Exception | None) -> bool:
    """Whether an error is what the journal says of it: one that was cut there is raised as it is there."""
    return known is None or text_of(original) == text_of(known)


def _original(raised: list[Exception]) -> BaseException | None:
    """Return what was really raised, where that was just now."""
    if not raised:
        return None
    return raised[0].__cause__ if isinstance(raised[0], FailedError) else raised[0]
