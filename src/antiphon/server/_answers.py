"""Answers: values as JSON, errors as problem JSON (RFC 9457), and the headers that every answer has."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import asdict, is_dataclass
from decimal import Decimal
from typing import Any, Final

import orjson
from pydantic import BaseModel
from starlette.responses import Response

from antiphon.errors import (
    AntiphonError,
    AppendConflictError,
    BudgetNeededError,
    CursorError,
    DeliveryError,
    DialectError,
    FencedError,
    LedgerUnavailableError,
    ModelError,
    NotWaitingError,
    OtherPatternError,
    OwnedError,
    OwnProgramError,
    PlaceError,
    SecretNameError,
    SetupError,
    ThreadBusyError,
    ThreadEndedError,
    UnknownThreadError,
)
from antiphon.messages import thaw
from antiphon.messages.json_values import with_big_ints

CONTENT_POLICY: Final = (
    "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src 'self' data:; "
    "frame-ancestors 'none'; base-uri 'none'; form-action 'none'; require-trusted-types-for 'script'"
)
HEADERS: Final = (
    (b"content-security-policy", CONTENT_POLICY.encode()),
    (b"x-content-type-options", b"nosniff"),
    (b"x-frame-options", b"DENY"),
    (b"referrer-policy", b"no-referrer"),
    (b"cross-origin-opener-policy", b"same-origin"),
    (b"cross-origin-resource-policy", b"same-origin"),
    (b"cache-control", b"no-store"),
)
"""They are on every answer, errors included. An answer may have messages in it, so no cache keeps any."""

_STATUS: Final[tuple[tuple[type[AntiphonError], int], ...]] = (
    (PlaceError, 422),
    (CursorError, 422),
    (DialectError, 422),
    (SecretNameError, 422),
    (OtherPatternError, 409),
    (ThreadEndedError, 409),
    (ThreadBusyError, 409),
    (BudgetNeededError, 409),
    (OwnProgramError, 409),
    (OwnedError, 409),
    (FencedError, 409),
    (AppendConflictError, 409),
    (DeliveryError, 409),
    (ModelError, 503),
    (SetupError, 503),
    (LedgerUnavailableError, 503),
)
"""The first class that fits decides; any other error of the tree is 500."""
_ABSENT: Final = "there is nothing here, or this token may not use it"


class Problem(Exception):  # noqa: N818 (the name of the format)
    """An error that a caller gets, as the server itself says it."""

    def __init__(
        self, status: int, code: str, detail: str, *, headers: Mapping[str, str] | None = None, ends: bool = False
    ) -> None:
        super().__init__(status, code, detail)
        self.status = status
        self.code = code
        self.detail = detail
        self.headers = dict(headers or {})
        if ends:  # the rest of the request is not read, so the connection cannot be used again
            self.headers["connection"] = "close"

    def response(self) -> Response:
        return _problem(self.status, self.code, self.detail, self.headers)


def absent() -> Problem:
    """Return the one answer for what does not exist and for what this token may not use: it must not tell which."""
    return Problem(404, "not_found", _ABSENT)


def problem_of(error: AntiphonError) -> Response:
    """Return an error of the tree as problem JSON. `code` is its name in the tree, `error_code` the code that it carries."""
    if isinstance(error, UnknownThreadError):
        return absent().response()
    if isinstance(error, NotWaitingError):  # its text says who may answer
        return _problem(404, "not_waiting", "no such approval or parked call waits for this principal", {})
    status = next((status for kind, status in _STATUS if isinstance(error, kind)), 500)
    carried = getattr(error, "code", None)
    more = {"error_code": carried} if isinstance(carried, str) else {}
    headers = {"retry-after": "1"} if error.retryable else {}
    return _problem(status, error_name(type(error)), str(error), headers, more | {"retryable": error.retryable})


def error_name(kind: type[AntiphonError]) -> str:
    """Return the name of an error in the tree, as programs compare it: `UnknownThreadError` is `unknown_thread`."""
    return re.sub(r"(?<=[a-z])(?=[A-Z])", "_", kind.__name__.removesuffix("Error")).lower()


def _problem(
    status: int, code: str, detail: str, headers: Mapping[str, str], more: Mapping[str, Any] | None = None
) -> Response:
    value = {"type": "about:blank", "status": status, "code": code, "detail": detail, **(more or {})}
    return Response(to_json(value), status, dict(headers), "application/problem+json")


def to_json(value: object) -> bytes:
    """Return a value as JSON text: dataclasses and models by their fields, with exact numbers of any size."""
    try:
        return orjson.dumps(value, default=_plain, option=orjson.OPT_NON_STR_KEYS)
    except TypeError:
        return orjson.dumps(with_big_ints(_all_plain(value)), default=_plain)


def _plain(value: Any) -> Any:
    if isinstance(value, BaseModel):
        return {name: getattr(value, name) for name in type(value).model_fields}
    if isinstance(value, Decimal):
        return orjson.Fragment(f"{value:f}")
    if isinstance(value, tuple | set | frozenset):
        return list(value)  # pyright: ignore[reportUnknownArgumentType, reportUnknownVariableType]
    return thaw(value)


def _all_plain(value: Any) -> Any:
    """Return a value as dicts and lists, for the rare one with an integer that orjson does not write."""
    if isinstance(value, BaseModel):
        return {name: _all_plain(getattr(value, name)) for name in type(value).model_fields}
    if is_dataclass(value) and not isinstance(value, type):
        return _all_plain(asdict(value))
    if isinstance(value, Mapping):
        return {str(key): _all_plain(each) for key, each in value.items()}  # pyright: ignore[reportUnknownVariableType, reportUnknownArgumentType]
    if isinstance(value, list | tuple):
        return [_all_plain(each) for each in value]  # pyright: ignore[reportUnknownVariableType]
    return value
