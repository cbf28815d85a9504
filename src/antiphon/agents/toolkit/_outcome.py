"""What came of a tool, as it stands in the journal."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, cast

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
    def from_json(cls, said: object) -> Outcome:
        """Return what `to_json` gave; anything else is a result that a person has given in its place."""
        ours = cast("dict[str, Any]", said) if isinstance(said, dict) else dict[str, Any]()
        if "result" not in ours or ours.keys() - {"result", "parts", "untrusted"}:
            return cls(result=cast("Json", said))
        shown = OptionResultPayload(invocation_id="-", option_name="-", parts=ours.get("parts", ()))
        return cls(result=ours["result"], parts=shown.parts, untrusted=ours.get("untrusted"))

    def payload(self, invocation_id: str, option_name: str) -> OptionResultPayload:
        """Return it as the result of a call."""
        result = thaw(self.result)
        return OptionResultPayload(invocation_id=invocation_id, option_name=option_name, result=result, parts=self.parts)
