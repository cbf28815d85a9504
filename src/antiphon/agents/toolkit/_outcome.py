"""Outcomes of a tool call: a result, or a refusal with its code.

| code | the tool was started | meaning |
|---|---|---|
| `UNKNOWN_TOOL` | no | there is no tool of this name |
| `PERMISSION_DENIED` | no | no grant permits this call |
| `INVALID_ARGUMENTS` | no | the arguments do not match the tool's schema |
| `APPROVAL_DENIED` | no | a person said no |
| `APPROVAL_EXPIRED` | no | nobody said yes in time |
| `APPROVAL_REQUIRED` | no | a person must approve, and there is no run in which one could be asked |
| `INVOCATION_REUSED` | no | its id belongs to another call of this run |
| `SENSITIVE_LOST` | no | sensitive values are not stored, and the process that had them has ended |
| `TOOL_CHANGED` | no | its server no longer offers it, or offers it with other arguments |
| `TOOL_FAILED` | yes | it raised |
| `TIMEOUT` | yes | it took too long and was cancelled |
| `RESULT_TOO_LARGE` | yes | it succeeded, and its result is too large |
| `RESULT_INVALID` | yes | it succeeded, and its result is not JSON |
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Final, cast

from antiphon.messages import Json, OptionResultPayload, Part, thaw

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


class ToolRefusal(Exception):  # noqa: N818 (an outcome on its way to the caller, never seen outside)
    """A refusal or a failure, which the caller gets instead of a result."""

    def __init__(self, code: str, reason: str, *, details: Json = None, retryable: bool = False) -> None:
        super().__init__(code, reason)
        self.code = code
        self.reason = reason
        self.details = details
        self.retryable = retryable
        self.untrusted: str | None = None
        """The source of untrusted content that the tool has read, which may be in the reason."""

    def to_details(self) -> dict[str, Json]:
        """Return the details in their stored form."""
        return {"details": self.details, "untrusted": self.untrusted}

    @classmethod
    def from_details(cls, code: str, reason: str, details: object, *, retryable: bool) -> ToolRefusal:
        """Return a refusal from its stored form."""
        said = cast("dict[str, Any]", details)
        found = ToolRefusal(code, reason, details=said["details"], retryable=retryable)
        found.untrusted = said["untrusted"]
        return found


class InvalidArguments(ToolRefusal):
    """The arguments do not match the tool's schema."""

    def __init__(self, problems: Iterable[str]) -> None:
        found = list(problems)
        super().__init__(INVALID_ARGUMENTS, f"the arguments are wrong: {'; '.join(found)}", details=list(found))


# ---------------------------------------------------------------- results


@dataclass(frozen=True)
class ToolOutcome:
    """A result, further parts of it, and whether it is untrusted."""

    result: Json = None
    parts: tuple[Part, ...] = ()
    untrusted: str | None = None
    """The source of the content, if it is untrusted."""

    def to_json(self) -> dict[str, Json]:
        """Return it in its stored form."""
        said: dict[str, Json] = {"result": self.result}
        if self.parts:
            said["parts"] = [part.__house__() for part in self.parts]
        return said if self.untrusted is None else {**said, "untrusted": self.untrusted}

    @classmethod
    def from_json(cls, said: object) -> ToolOutcome:
        """Return an outcome from its stored form. Any other value is a result that a person has recorded."""
        ours = cast("dict[str, Any]", said) if isinstance(said, dict) else dict[str, Any]()
        if "result" not in ours or ours.keys() - {"result", "parts", "untrusted", "changes"}:
            return cls(result=cast("Json", said))
        shown = OptionResultPayload(invocation_id="-", option_name="-", parts=ours.get("parts", ()))
        return cls(result=ours["result"], parts=shown.parts, untrusted=ours.get("untrusted"))

    def payload(self, invocation_id: str, option_name: str) -> OptionResultPayload:
        """Return it as the payload of a result."""
        result = thaw(self.result)
        return OptionResultPayload(invocation_id=invocation_id, option_name=option_name, result=result, parts=self.parts)
