"""Why a call came to nothing, as it is told to whoever called, and the codes of it.

| code | the tool was started | it means |
|---|---|---|
| `UNKNOWN_TOOL` | no | there is none of this name |
| `PERMISSION_DENIED` | no | nobody has granted this call |
| `INVALID_ARGUMENTS` | no | the arguments are not what the tool takes |
| `APPROVAL_DENIED` | no | a person said no |
| `APPROVAL_EXPIRED` | no | nobody said yes in time |
| `APPROVAL_REQUIRED` | no | a person must say yes, and there is no run in which one could be asked |
| `INVOCATION_REUSED` | no | its id is that of another call in this run |
| `SENSITIVE_LOST` | no | values that are not written down went with the process that had them |
| `TOOL_CHANGED` | no | whoever offered it offers it no more, or with other arguments |
| `TOOL_FAILED` | yes | it raised |
| `TIMEOUT` | yes | it took too long, and was given up |
| `RESULT_TOO_LARGE` | yes | it has done what it does, and returned too much |
| `RESULT_INVALID` | yes | it has done what it does, and returned what is no JSON |
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Final, cast

from antiphon.messages import Json

__all__ = [
    "APPROVAL_DENIED",
    "APPROVAL_EXPIRED",
    "APPROVAL_REQUIRED",
    "INVALID_ARGUMENTS",
    "INVOCATION_REUSED",
    "PERMISSION_DENIED",
    "RESULT_INVALID",
    "RESULT_TOO_LARGE",
    "SENSITIVE_LOST",
    "TIMEOUT",
    "TOOL_CHANGED",
    "TOOL_FAILED",
    "UNKNOWN_TOOL",
    "InvalidArguments",
    "ToolRefusal",
]

UNKNOWN_TOOL: Final = "UNKNOWN_TOOL"
PERMISSION_DENIED: Final = "PERMISSION_DENIED"
INVALID_ARGUMENTS: Final = "INVALID_ARGUMENTS"
INVOCATION_REUSED: Final = "INVOCATION_REUSED"
APPROVAL_DENIED: Final = "APPROVAL_DENIED"
APPROVAL_EXPIRED: Final = "APPROVAL_EXPIRED"
APPROVAL_REQUIRED: Final = "APPROVAL_REQUIRED"
SENSITIVE_LOST: Final = "SENSITIVE_LOST"
TOOL_CHANGED: Final = "TOOL_CHANGED"
TOOL_FAILED: Final = "TOOL_FAILED"
TIMEOUT: Final = "TIMEOUT"
RESULT_TOO_LARGE: Final = "RESULT_TOO_LARGE"
RESULT_INVALID: Final = "RESULT_INVALID"


class ToolRefusal(Exception):  # noqa: N818 (an outcome on its way to whoever called, never seen outside)
    """What is told instead of a result."""

    def __init__(self, code: str, reason: str, *, details: Json = None, retryable: bool = False) -> None:
        super().__init__(code, reason)
        self.code = code
        self.reason = reason
        self.details = details
        self.retryable = retryable
        self.untrusted: str | None = None
        """What the tool has read that strangers wrote: it may speak through the reason."""

    def to_details(self) -> Json:
        """Return what is written down beside code and reason."""
        return {"details": self.details, "untrusted": self.untrusted}

    @classmethod
    def from_details(cls, code: str, reason: str, details: object, *, retryable: bool) -> ToolRefusal:
        """Return what was written down."""
        said = cast("dict[str, Any]", details)
        found = ToolRefusal(code, reason, details=said["details"], retryable=retryable)
        found.untrusted = said["untrusted"]
        return found


class InvalidArguments(ToolRefusal):
    """The arguments are not what the tool takes."""

    def __init__(self, problems: Iterable[str]) -> None:
        found = list(problems)
        super().__init__(INVALID_ARGUMENTS, f"the arguments are wrong: {'; '.join(found)}", details=list(found))
