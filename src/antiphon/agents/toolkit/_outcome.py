"""What came of a tool, as it stands in the journal."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from antiphon.messages import Json, OptionResultPayload, Part, thaw

__all__ = ["Outcome"]


@dataclass(frozen=True)
class Outcome:
    """A result, what was shown besides, and whether strangers wrote it."""

    result: Json = None
    parts: tuple[Part, ...] = ()
    untrusted: str | None = None
    """Where the content comes from, if it was written by strangers."""

    def to_json(self) -> dict[str, Json]:
        """Return it as it is written down."""
        said: dict[str, Json] = {"result": self.result}
        if self.parts:
            said["parts"] = [part.__house__() for part in self.parts]
        return said if self.untrusted is None else {**said, "untrusted": self.untrusted}

    @classmethod
    def from_json(cls, said: dict[str, Any]) -> Outcome:
        """Return what `to_json` gave."""
        payload = OptionResultPayload(invocation_id="-", option_name="-", parts=said.get("parts", ()))
        return cls(result=said.get("result"), parts=payload.parts, untrusted=said.get("untrusted"))

    def payload(self, invocation_id: str, option_name: str) -> OptionResultPayload:
        """Return it as the result of a call."""
        result = thaw(self.result)
        return OptionResultPayload(invocation_id=invocation_id, option_name=option_name, result=result, parts=self.parts)
