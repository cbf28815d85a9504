"""Failures of models and tools: as codes in the journal, and as results in the talk.

An error of a model is stored as a code and raised again with its original class, so that a fallback model sees the same error
when the program runs again. So is an exception of a tool: the program that handles it takes the same branch again. Nothing is
imported because a row names it: if the running program has loaded an exception class of that name, an instance is made without
calling its constructor. Otherwise the exception is an `EffectFailedError`.

A failure of a toolkit's tool has one text for the model. The text is part of the prompt, and a running request is identified
by the hash of its prompt: so the text never changes. The talk has more: the code, the reason and whether to retry. The dialect
keeps the text for the model as the residue of that message.
"""

from __future__ import annotations

import json
import re
from collections.abc import Awaitable, Callable, Generator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Any, Final, Literal, NamedTuple, NoReturn, Protocol, cast

import httpx2
from pydantic import ValidationError
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

from antiphon.agents._guards import Unit
from antiphon.durable._opened import MISSING
from antiphon.errors import (
    DeliveryError,
    EffectFailedError,
    FailedError,
    LedgerError,
    RefusedError,
    StoppedError,
    UnknownOutcomeError,
)
from antiphon.messages import Json, Message, OptionResultPayload
from antiphon.messages._arguments import check_type
from antiphon.runtime import Effects
from antiphon.runtime._effects import GivenUp, Run
from antiphon.runtime._rows import error_text, text_of

# ---------------------------------------------------------------- errors of models and tools

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


def _failure_of(error: Exception, code: str) -> FailedError:
    """Return an error in its stored form: that of a model with a code of its own, another one with its class."""
    failure = _coded(error)
    if failure is None:
        retryable = bool(getattr(error, "retryable", False))
        return FailedError(error_text(error), code, details=_class_and_arguments(error), retryable=retryable)
    if is_tried(error):
        failure.details = {**cast("Unit", failure.details or {}), _ATTEMPTS: getattr(error, _TRIED)}
    return failure


def _coded(error: Exception) -> FailedError | None:
    reason = error_text(error)
    if isinstance(error, ModelHTTPError):
        body: Json = to_jsonable_python(error.body, fallback=str)
        details: dict[str, Json] = {"status_code": error.status_code, "model_name": error.model_name, "body": body}
        return FailedError(reason, _HTTP, details=details, retryable=may_pass(error))
    if isinstance(error, ModelAPIError):
        details = {"class": type(error).__name__, "model_name": error.model_name, "message": error.message}
        return FailedError(reason, _API, details=details, retryable=True)
    for code, cls in _WORDS.items():
        if isinstance(error, cls):
            return FailedError(reason, code, details={"message": error.message})
    return None


def _stored_error(error: RefusedError) -> Exception | None:
    """Return the model error for a code; None if it is not the code of a model error."""
    if error.code == _TOOL:
        return _raised_before(error.details) or EffectFailedError(error.reason, error.address)
    if error.details is None:  # they could not be stored
        return None
    details = cast("Unit", error.details)
    model_error: Exception | None = None
    if error.code == _HTTP:
        model_error = ModelHTTPError(details["status_code"], details["model_name"], details["body"])
    elif error.code == _API:
        model_error = _API_CLASSES.get(details["class"], ModelAPIError)(details["model_name"], details["message"])
    elif error.code in _WORDS:
        model_error = _WORDS[error.code](details["message"])
    if model_error is not None and (attempts := details.get(_ATTEMPTS)) is not None:
        mark_tried(model_error, attempts)
    return model_error


def _class_and_arguments(error: Exception) -> dict[str, Json]:
    """Return an exception in its stored form, from which it can be raised again."""
    cls, arguments = type(error), list(error.args)
    if not all(argument is None or isinstance(argument, str | int | float) for argument in arguments):
        arguments = [text_of(error)]
    return {"class": _name_of(cls), "arguments": arguments}


def _name_of(cls: type[Any]) -> str:
    return f"{cls.__module__}.{cls.__qualname__}"


def _raised_before(details: object) -> Exception | None:
    """Rebuild a stored exception; None if this program has no such class."""
    stored = cast("dict[str, Any]", details) if isinstance(details, dict) else {}
    classes = [cls for cls in _classes(Exception) if _name_of(cls) == stored.get("class")]
    try:
        error = classes[-1].__new__(classes[-1], *stored["arguments"])
        error.args = tuple(stored["arguments"])
    except (LookupError, TypeError, ValueError):
        return None
    return error


def _classes(base: type[Exception]) -> list[type[Exception]]:
    """Return the loaded classes of exceptions below a class, and the class itself."""
    return [base, *(cls for child in base.__subclasses__() for cls in _classes(child))]


@contextmanager
def tool_errors(changes: Callable[[], Mapping[str, Json]]) -> Generator[None, None, None]:
    """Store the exception of a tool under a separate code, to distinguish it from an outcome that a person has recorded.

    `changes` returns the changes that the tool made before it raised; they are stored with the error.
    """
    try:
        yield
    except (DeliveryError, LedgerError, UnknownOutcomeError, GivenUp):
        raise
    except Exception as exc:
        if is_recorded(exc):
            raise _InnerError(exc) from exc
        failure = _failure_of(exc, _TOOL)
        if recorded_changes := changes():
            failure.details = {**cast("Unit", failure.details or {}), **recorded_changes}
        raise failure from exc


async def with_stored_errors(
    perform: Callable[[Run], Awaitable[Any]], run: Run, settled: Callable[[EffectFailedError], Any] | None = None
) -> Any:
    """Execute an effect. An error keeps its class, also, as far as the class is known, when it comes from the journal.

    `settled` makes the return value if it did not raise here, and a person has settled it as failed.
    """
    raised: list[Exception] = []

    async def watched(key: str) -> Json:
        try:
            return await run(key)
        except (DeliveryError, LedgerError, FailedError, UnknownOutcomeError, GivenUp, ValidationError) as exc:
            raised.append(exc)
            raise  # not an error of the effect itself
        except Exception as exc:
            raised.append(exc)
            raise _failure_of(exc, EffectFailedError.code) from exc

    try:
        return await perform(watched)
    except _InnerError as exc:
        raise exc.error from exc.error.__cause__
    except RefusedError as exc:
        original, stored = _original(raised), _stored_error(exc)
        if exc.code == _TOOL:
            _raise(original, exc, stored)
        _mark(original, _OUTCOME, True)
        _mark(stored, _OUTCOME, True)
        if isinstance(original, AgentRunError | UserError) and _is_stored(original, exc):
            raise original from None
        raise (stored or exc) from original
    except EffectFailedError as exc:
        if settled is not None and (not raised or isinstance(raised[0], UnknownOutcomeError)):
            return settled(exc)
        _raise(_original(raised), exc, _raised_before(exc.details))


_RECORDED: Final = "_antiphon_is_recorded"


class _InnerError(DeliveryError):
    """An error of an effect inside a tool, such as a request of an agent that the tool runs. It is recorded there.

    It is not an outcome of the tool. The tool runs again, and gets the same error or, if the effect is retried, a result.
    """

    def __init__(self, error: Exception) -> None:
        super().__init__(text_of(error))
        self.error = error


def _mark(error: Exception | None, name: str, value: object) -> None:
    with suppress(AttributeError):  # None, or a class without room for the mark
        setattr(error, name, value)


def is_recorded(error: Exception) -> bool:
    """Whether an exception is recorded as the outcome of a request to a model or of a tool call."""
    return bool(getattr(error, _RECORDED, False))


_CALL: Final = "_antiphon_call"


def mark_failed_call(error: Exception, call: str, effects: Effects) -> None:
    """Mark an exception with the tool call that it is the recorded outcome of; of nested calls, the innermost.

    If one of them has effects, there is no mark: it is not known what was done before it was raised.
    """
    if is_recorded(error):
        _mark(error, _CALL, None if effects != "none" else getattr(error, _CALL, call))


def failed_call(error: BaseException | None) -> str | None:
    """Return the id of the tool call that ended with this exception, if the tool may be called again."""
    return getattr(error, _CALL, None)


def _raise(original: Exception | None, outcome: RefusedError | EffectFailedError, stored: Exception | None) -> NoReturn:
    """Raise the error for the program: the one raised here, or its stored form, if it was cut or redacted."""
    is_same = original is not None and _has_all(outcome.details, _class_and_arguments(original))
    error = original if original is not None and is_same else stored or outcome
    _mark(error, _RECORDED, True)
    raise error from (error.__cause__ if error in (original, outcome) else original)


def _is_stored(original: Exception, stored: RefusedError) -> bool:
    """Whether a model's error is stored unchanged. If the stored error was cut, the cut error is raised."""
    failure = _failure_of(original, stored.code)
    return stored.details is None or _has_all(stored.details, cast("Unit", failure.details))


def _has_all(details: object, fields: Mapping[str, Json]) -> bool:
    """Whether details have these fields, among others."""
    stored = cast("dict[str, Any]", details) if isinstance(details, dict) else {}
    return all(stored.get(name, ...) == value for name, value in fields.items())


def _original(raised: list[Exception]) -> Exception | None:
    """Return the exception that was raised in this process."""
    if not raised:
        return None
    error = raised[0].__cause__ if isinstance(raised[0], FailedError) else raised[0]
    return error if isinstance(error, Exception) else None


# ---------------------------------------------------------------- model failures with an outside cause

_ATTEMPTS: Final = "attempts"
_TRIED: Final = "_antiphon_attempts"
_OUTCOME: Final = "_antiphon_is_outcome"


_RETRYABLE: Final = frozenset({408, 409, 425, 429})
_FIXABLE: Final = frozenset({401, 402, 403, 404, 407})
"""Status codes for problems that a person can fix: the key, the account, the address of the server."""
_SERVER: Final = 500
"""From this status code on, the server is at fault."""
_BROKEN: Final = (ModelAPIError, UnexpectedModelBehavior, OSError, httpx2.HTTPError, json.JSONDecodeError, ValidationError)
"""The exceptions of a request if the provider cannot be reached, or gives an invalid answer."""


def is_outside(error: Exception) -> bool:
    """Whether a model request failed because of something outside: the same request may succeed after that is fixed."""
    if isinstance(error, ModelHTTPError):
        return error.status_code in _RETRYABLE | _FIXABLE or error.status_code >= _SERVER
    return isinstance(error, (*_BROKEN, *MISSING)) and not isinstance(error, ContentFilterError)


def may_pass(error: Exception) -> bool:
    """Whether such a request may succeed soon, without a person."""
    is_fixable = isinstance(error, ModelHTTPError) and error.status_code in _FIXABLE
    return is_outside(error) and not is_fixable and not isinstance(error, MISSING)


def ends_run(error: Exception) -> bool:
    """Whether an error that ended a program is an outage of a provider: an `Outage`."""
    return isinstance(error, httpx2.HTTPError) or (isinstance(error, ModelAPIError) and is_outside(error))


class ModelOutages(Protocol):
    """How model requests are handled that fail for an outside reason, such as an outage of a provider."""

    def pause(self, error: Exception, failures: int) -> float | None:
        """Return the seconds before the model is asked again; None: it is not asked again."""
        ...

    def stop(self, error: Exception) -> StoppedError | None:
        """Return the error that leaves the request open, so that it is made again later; None: `error` is its outcome."""
        ...


def mark_tried(error: Exception, attempts: int) -> None:
    """Mark an error with the number of requests that were made before it became the outcome."""
    _mark(error, _TRIED, attempts)


def is_tried(error: Exception) -> bool:
    """Whether the model was already asked again inside the request, so that another attempt is pointless."""
    return hasattr(error, _TRIED)


def is_outcome(error: Exception) -> bool:
    """Whether an error of a model is stored as the outcome of its request."""
    return hasattr(error, _OUTCOME)


# ---------------------------------------------------------------- transient errors


@dataclass(frozen=True, slots=True)
class RetryPolicy:
    """Which exceptions of tools are transient, and how often such a call is repeated before a person decides.

    | the tool raises | effects `none`, `idempotent` | effects `once` |
    |---|---|---|
    | one of `not_done` | repeated, then parked | repeated, then parked |
    | one of `transient`, or one with `retryable = True` | repeated, then parked | parked: it may have happened |
    | another exception | recorded as the outcome | recorded as the outcome |
    """

    transient: tuple[type[Exception], ...] = (ConnectionError, TimeoutError)
    not_done: tuple[type[Exception], ...] = ()
    """Exceptions that prove that nothing has happened, such as `ConnectionRefusedError` of a tool that makes one request."""
    retries: int = 3
    backoff: float = 0.5
    """Seconds before the first repetition."""
    factor: float = 2.0
    """The factor by which each further pause is longer."""
    longest: float = 30.0
    """The longest pause, in seconds."""

    def __post_init__(self) -> None:
        for name in ("retries", "backoff", "factor", "longest"):
            check_type(name, getattr(self, name), int | float, "2")
        if self.retries < 0 or self.backoff < 0 or self.factor < 1 or self.longest < 0:
            raise ValueError("retries, backoff and longest are not negative, and factor is at least 1")

    def decide(self, error: Exception, effects: Effects, failures: int) -> float | Literal["park"] | None:
        """Return the pause before the call is repeated, or that it is parked; None: the error is its outcome.

        `failures` is how often the call has failed, including this time.
        """
        is_not_done = isinstance(error, self.not_done)
        if not is_not_done and not isinstance(error, self.transient) and not getattr(error, "retryable", False):
            return None
        if failures > self.retries or (effects == "once" and not is_not_done):
            return "park"
        return min(self.backoff * self.factor ** (failures - 1), self.longest)


# ---------------------------------------------------------------- refusals of a toolkit

_CODE: Final = re.compile(r"(.*) \(([A-Z]\w{2,63})\)", re.DOTALL)
_UNTYPED: Final = "Error"
"""The type that dialects give to an error without a type."""


class ToolFailure(NamedTuple):
    """Why a call of a toolkit's tool failed or was refused."""

    code: str
    reason: str
    retryable: bool | None = None
    """None where only the text is known."""


class ToolFailures:
    """The failures of a run, by call id and by the text for the model."""

    def __init__(self) -> None:
        self._by_text: dict[tuple[str | None, str], ToolFailure] = {}

    def keep(self, call_id: str | None, tool: str, refusal: ToolFailure) -> str:
        """Remember a failure, and return the text for the model."""
        text = f"{tool}: {refusal.reason} ({refusal.code})"
        self._by_text[call_id, text] = refusal
        return text

    def coded(self, message: Message) -> Message:
        """Return a message with the code, the reason and whether to retry, if it is a failure whose text has a code."""
        payload = message.payload
        if not isinstance(payload, OptionResultPayload) or not payload.is_error or payload.retryable or payload.parts:
            return message
        tool, text = payload.option_name, str(payload.error_message)
        if payload.error_type != _UNTYPED:  # the dialect takes the word before a colon for the type of an error
            text = f"{payload.error_type}: {text}"
        failure = self._by_text.get((payload.invocation_id, text)) or _read(tool, text)
        if failure is None:
            if payload.error_type != tool:
                return message
            failure = ToolFailure(_UNTYPED, text)
        fields = {"error_type": failure.code, "error_message": failure.reason, "retryable": failure.retryable}
        return message.model_copy(update={"payload": payload.model_copy(update=fields)})


def _read(tool: str, text: str) -> ToolFailure | None:
    """Return the failure in a text that another run has made."""
    match = _CODE.fullmatch(text.removeprefix(f"{tool}: ")) if text.startswith(f"{tool}: ") else None
    return None if match is None else ToolFailure(match[2], match[1])
