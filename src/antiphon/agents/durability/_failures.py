"""Failures of models and tools: as codes in the journal, and as results in the talk.

An error of a model is stored as a code and raised again as what it was, so that a fallback model sees the same error when the
program runs again.

A failure of a toolkit's tool has one text for the model. The text is part of the prompt, and a running request is identified
by the hash of its prompt: so the text never changes. The talk has more: the code, the reason and whether to retry. The text
for the model is kept as the residue of that message.
"""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable, Generator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Final, Literal, NamedTuple, cast

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

from antiphon.agents._secrets import Unit
from antiphon.dialects._content import error_text
from antiphon.dialects._residue import residue
from antiphon.dialects.pydantic_ai._results import is_result
from antiphon.dialects.pydantic_ai._wire import NAME
from antiphon.errors import DeliveryError, EffectFailedError, LedgerError, RefusedError
from antiphon.messages import Json, Message, OptionResultPayload, thaw
from antiphon.runtime import Effects, FailedError, UnknownOutcomeError
from antiphon.runtime.extending import GivenUp, Run, text_of

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
_RETRYABLE = frozenset({408, 409, 425, 429, 500, 502, 503, 504, 529})


def _failure_of(error: Exception) -> FailedError | None:
    """Return a model's error in its stored form; None if it has no code of its own."""
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
    """Return the error of a model that a code stands for; None if it is no code of a model's error."""
    if error.code == _TOOL:
        return EffectFailedError(error.reason, error.address)
    if error.details is None:  # they could not be stored
        return None
    details = cast("Unit", error.details)
    if error.code == _HTTP:
        return ModelHTTPError(details["status_code"], details["model_name"], details["body"])
    if error.code == _API:
        return _API_CLASSES.get(details["class"], ModelAPIError)(details["model_name"], details["message"])
    if error.code in _WORDS:
        return _WORDS[error.code](details["message"])
    return None


@contextmanager
def tool_errors(changes: Callable[[], Mapping[str, Json]] = dict) -> Generator[None, None, None]:
    """Store what a tool raises under a code of its own, to tell it from an outcome that a person has given.

    `changes` returns what the tool changed before it raised; it is stored with the error.
    """
    try:
        yield
    except (DeliveryError, LedgerError, UnknownOutcomeError, GivenUp):
        raise
    except Exception as exc:
        retryable = bool(getattr(exc, "retryable", False))
        failure = _failure_of(exc) or FailedError(f"{type(exc).__qualname__}: {text_of(exc)}", _TOOL, retryable=retryable)
        if more := changes():
            failure.details = {**cast("Unit", failure.details or {}), **more}
        raise failure from exc


async def with_known_errors(
    perform: Callable[[Run], Awaitable[Any]], run: Run, settled: Callable[[EffectFailedError], Any] | None = None
) -> Any:
    """Execute an effect. A model's error is raised as what it was, now and when it comes from the journal.

    `settled` makes the return value if it did not raise here, and a person has settled it as failed.
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
    """Whether an error has the text of its stored form. If the stored text was cut, the cut one is raised."""
    return known is None or text_of(original) == text_of(known)


def _original(raised: list[Exception]) -> BaseException | None:
    """Return the exception that was raised in this process."""
    if not raised:
        return None
    return raised[0].__cause__ if isinstance(raised[0], FailedError) else raised[0]


# ---------------------------------------------------------------- transient errors


@dataclass(frozen=True, slots=True)
class RetryPolicy:
    """Which exceptions of tools are transient, and how often such a call is repeated before a person is asked.

    | the tool raises | effects `none`, `idempotent` | effects `once` |
    |---|---|---|
    | one of `not_done` | repeated, then parked | repeated, then parked |
    | one of `transient`, or one with `retryable = True` | repeated, then parked | parked: it may have been done |
    | another exception | recorded as the outcome | recorded as the outcome |
    """

    transient: tuple[type[Exception], ...] = (ConnectionError, TimeoutError)
    not_done: tuple[type[Exception], ...] = ()
    """Exceptions that prove that nothing was done, such as `ConnectionRefusedError` of a tool that makes one request."""
    retries: int = 3
    backoff: float = 0.5
    """Seconds before the first repetition."""
    factor: float = 2.0
    """How many times longer each further pause is."""
    longest: float = 30.0
    """The longest pause, in seconds."""

    def __post_init__(self) -> None:
        if self.retries < 0 or self.backoff < 0 or self.factor < 1 or self.longest < 0:
            raise ValueError("retries, backoff and longest are not negative, and factor is at least 1")

    def decide(self, error: Exception, effects: Effects, failures: int) -> float | Literal["park"] | None:
        """Return the pause before the call is repeated, whether it is parked, or None: the error is its outcome.

        `failures` is how often the call has failed, this time included.
        """
        is_not_done = isinstance(error, self.not_done)
        if not is_not_done and not isinstance(error, self.transient) and not getattr(error, "retryable", False):
            return None
        if failures > self.retries or (effects == "once" and not is_not_done):
            return "park"
        return min(self.backoff * self.factor ** (failures - 1), self.longest)


# ---------------------------------------------------------------- refusals of a toolkit

_CODE: Final = re.compile(r"(.*) \(([A-Z][A-Z_]{2,63})\)", re.DOTALL)
_UNTYPED: Final = "Error"
"""What dialects call an error that has no type."""


class ToolFailure(NamedTuple):
    """Why a call of a toolkit's tool failed or was refused."""

    code: str
    reason: str
    retryable: bool | None = None
    """None where only the text is known."""


class ToolFailures:
    """The failures of a run, by call id and by the text for the model."""

    def __init__(self) -> None:
        self._known: dict[tuple[str | None, str], ToolFailure] = {}

    def keep(self, call_id: str | None, tool: str, refusal: ToolFailure) -> str:
        """Remember a failure, and return the text for the model."""
        text = f"{tool}: {refusal.reason} ({refusal.code})"
        self._known[call_id, text] = refusal
        return text

    def coded(self, messages: Sequence[Message], unit: Unit) -> list[Message]:
        """Return the messages of a request with codes for its failures. Written as a unit, they are unchanged."""
        results = [place for place, message in enumerate(messages) if isinstance(message.payload, OptionResultPayload)]
        parts = [(number, part) for number, part in enumerate(unit["parts"]) if is_result(part)]
        found = list(messages)
        calls = {part.get("tool_call_id") for _, part in parts}
        if len(results) == len(parts) == len(calls):  # else a text cannot be matched to its call
            for place, (number, part) in zip(results, parts, strict=True):
                found[place] = self._coded(messages[place], number, part)
        return found

    def _coded(self, message: Message, number: int, part: Unit) -> Message:
        text = part.get("content")
        if part.get("outcome") != "failed" or not isinstance(text, str):
            return message
        tool, payload = str(part["tool_name"]), cast("OptionResultPayload", message.payload)
        refusal = self._known.get((part.get("tool_call_id"), text)) or _read(tool, text)
        if refusal is None:
            return message if payload.error_type != tool else _with_error(message, ToolFailure(_UNTYPED, text), [])
        said = _with_error(message, refusal, [])
        changes = residue(error_text(cast("OptionResultPayload", said.payload)), text)
        changes = [{**change, "at": [0, "parts", number, "content"], "own": True} for change in changes]
        if refusal.retryable:
            (outcome,) = residue("retried", "failed")
            changes.append({**outcome, "at": [0, "parts", number, "outcome"], "own": True})
        return _with_error(message, refusal, changes)


def _read(tool: str, text: str) -> ToolFailure | None:
    """Return the failure in a text that another run has made."""
    found = _CODE.fullmatch(text.removeprefix(f"{tool}: ")) if text.startswith(f"{tool}: ") else None
    return None if found is None else ToolFailure(found[2], found[1])


def _with_error(message: Message, refusal: ToolFailure, changes: Sequence[Unit]) -> Message:
    said = {"error_type": refusal.code, "error_message": refusal.reason, "retryable": refusal.retryable}
    payload = cast("OptionResultPayload", message.payload).model_copy(update=said)
    notes = cast("Unit", thaw(message.metadata[NAME]))
    if changes:
        notes["residue"] = [*notes.get("residue", ()), *changes]
    return message.model_copy(update={"payload": payload, "metadata": {**message.metadata, NAME: notes}})
