"""Outages of providers: whether a model request that failed may succeed later, and whether without a person."""

from __future__ import annotations

import json
from typing import Final

import httpx2
from pydantic import ValidationError
from pydantic_ai.exceptions import ContentFilterError, ModelAPIError, ModelHTTPError, UnexpectedModelBehavior

from antiphon.durable._outages import MISSING

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
