"""Answers: values as JSON, errors, and the headers that every answer has.

An error of the API is problem JSON (RFC 9457). The endpoints of other protocols answer in their own
form: `/v1` as OpenAI does, `/choir` with an `ERROR` of Choir.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, Final

from starlette.responses import Response

from antiphon import service
from antiphon.errors import (
    AntiphonError,
    AppendConflictError,
    DeliveryError,
    DialectError,
    EncryptionError,
    FencedError,
    ForgottenError,
    LedgerUnavailableError,
    ModelError,
    NotSearchableError,
    NotWaitingError,
    OwnedError,
    ParkedError,
    PlaceError,
    SecretNameError,
    ServiceError,
    SetupError,
    UnknownModelError,
    UnknownThreadError,
)
from antiphon.messages import current_port

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
    (DialectError, 422),
    (SecretNameError, 422),
    (NotSearchableError, 422),
    (ForgottenError, 410),
    (ServiceError, 409),
    (OwnedError, 409),
    (FencedError, 409),
    (AppendConflictError, 409),
    (ParkedError, 409),
    (DeliveryError, 409),
    (UnknownModelError, 422),
    (ModelError, 503),
    (SetupError, 503),
    (LedgerUnavailableError, 503),
    (EncryptionError, 503),
)
"""The first class that fits decides; any other error of the tree is 500."""
_ABSENT: Final = "there is nothing here, or this token may not use it"


class Problem(Exception):  # noqa: N818 (the name of the format)
    """An error that a caller gets, as the server itself says it."""

    def __init__(
        self,
        status: int,
        code: str,
        detail: str,
        *,
        headers: Mapping[str, str] | None = None,
        ends: bool = False,
        param: str | None = None,
        fields: Mapping[str, Any] | None = None,
    ) -> None:
        super().__init__(status, code, detail)
        self.status = status
        self.code = code
        self.detail = detail
        self.param = param
        """The field of the request that it is about."""
        self.fields = dict(fields or {})
        """Further fields of the answer."""
        self.headers = dict(headers or {})
        if ends:  # the rest of the request is not read, so the connection cannot be used again
            self.headers["connection"] = "close"

    def response(self, path: bytes = b"") -> Response:
        """Return it as an answer, in the form of the path."""
        if path.startswith(b"/v1/"):
            return Response(
                service.to_json(openai_error(self)), _OPENAI.get(self.status, self.status), self.headers, "application/json"
            )
        if path == CHOIR:
            return Response(service.to_json(choir_error(self)), self.status, self.headers, "application/json")
        value = {"type": "about:blank", "status": self.status, "code": self.code, "detail": self.detail, **self.fields}
        return Response(service.to_json(value), self.status, self.headers, "application/problem+json")


def absent() -> Problem:
    """Return the one answer for what does not exist and for what this token may not use: it must not tell which."""
    return Problem(404, "not_found", _ABSENT)


CHOIR: Final = b"/choir"
_OPENAI: Final = {422: 400}
"""OpenAI's status where it has another one."""
_OPENAI_CODES: Final = {"unauthorized": "invalid_api_key", "too_many": "rate_limit_exceeded"}


def openai_error(problem: Problem) -> dict[str, Any]:
    """Return an error as OpenAI writes it."""
    kind = (
        "server_error"
        if problem.status >= _FAULT
        else "rate_limit_error"
        if problem.status == _MUCH
        else "invalid_request_error"
    )
    code = _OPENAI_CODES.get(problem.code, problem.code) if problem.status < _FAULT else problem.code
    return {"error": {"message": problem.detail, "type": kind, "param": problem.param, "code": code}}


_INVALID: Final = 422
_MUCH: Final = 429
_FAULT: Final = 500


def choir_error(problem: Problem) -> dict[str, Any]:
    """Return an error as a message of Choir."""
    code = "VALIDATION_ERROR" if problem.status == _INVALID else problem.code.upper()
    code = code if problem.code != "unknown_message_type" else "UNKNOWN_MESSAGE_TYPE"
    data = {"error_message": problem.detail, "error_code": code}
    port = current_port()
    return {"id": port.new_id(), "type": "ERROR", "data": data, "timestamp": port.now().isoformat().replace("+00:00", "Z")}


def problem_of(error: AntiphonError | Problem) -> Problem:
    """Return an error as a problem. `code` is its name in the tree, or what a `ServiceError` carries."""
    if isinstance(error, Problem):
        return error
    if isinstance(error, UnknownThreadError):
        return absent()
    if isinstance(error, NotWaitingError):  # its text says who may answer
        return Problem(404, "not_waiting", "no such approval or parked call waits for this principal")
    status = next((status for kind, status in _STATUS if isinstance(error, kind)), 500)
    carried = getattr(error, "code", None)
    fields: dict[str, Any] = {"error_code": carried} if carried else {}
    headers = {"retry-after": "1"} if error.retryable else {}
    fields |= {"retryable": error.retryable}
    name = carried.lower() if carried and isinstance(error, ServiceError) else error_name(type(error))
    return Problem(status, name, str(error), headers=headers, fields=fields)


def error_name(kind: type[AntiphonError]) -> str:
    """Return the name of an error in the tree, as programs compare it: `UnknownThreadError` is `unknown_thread`."""
    return re.sub(r"(?<=[a-z])(?=[A-Z])", "_", kind.__name__.removesuffix("Error")).lower()
