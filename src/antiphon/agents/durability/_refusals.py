"""Failures of a toolkit's tools: one text for the model, and in the talk the code, the reason and whether to try again.

The text is part of the prompt, and a run in flight is known by the hash of it: so it stays as it is. The talk has more to say
than it. What was said to the model is kept beside that as the residue of the message, and comes back when it is written.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any, Final, NamedTuple, cast

from antiphon.dialects._content import error_text
from antiphon.dialects._residue import residue
from antiphon.dialects.pydantic_ai._results import is_result
from antiphon.dialects.pydantic_ai._wire import NAME
from antiphon.messages import Message, OptionResultPayload, thaw

__all__ = ["Refusal", "Refusals"]

_CODE: Final = re.compile(r"(.*) \(([A-Z][A-Z_]{2,63})\)", re.DOTALL)
_UNTYPED: Final = "Error"
"""What dialects call an error that has no type."""


class Refusal(NamedTuple):
    """Why a call came to nothing."""

    code: str
    reason: str
    retryable: bool | None = None
    """None where only the text is known."""


class Refusals:
    """Those of a run, by the call and by what the model was told."""

    def __init__(self) -> None:
        self._known: dict[tuple[str | None, str], Refusal] = {}

    def keep(self, call_id: str | None, tool: str, refusal: Refusal) -> str:
        """Remember why a call came to nothing, and return what the model is told."""
        text = f"{tool}: {refusal.reason} ({refusal.code})"
        self._known[call_id, text] = refusal
        return text

    def coded(self, messages: Sequence[Message], unit: Mapping[str, Any]) -> list[Message]:
        """Return the messages of a request with what is known of its failures; as a unit they are the same as before."""
        results = [place for place, message in enumerate(messages) if isinstance(message.payload, OptionResultPayload)]
        parts = [(number, part) for number, part in enumerate(unit["parts"]) if is_result(part)]
        found = list(messages)
        calls = {part.get("tool_call_id") for _, part in parts}
        if len(results) == len(parts) == len(calls):  # else nobody can tell whose text it is
            for place, (number, part) in zip(results, parts, strict=True):
                found[place] = self._coded(messages[place], number, part)
        return found

    def _coded(self, message: Message, number: int, part: Mapping[str, Any]) -> Message:
        text = part.get("content")
        if part.get("outcome") != "failed" or not isinstance(text, str):
            return message
        tool, payload = str(part["tool_name"]), cast("OptionResultPayload", message.payload)
        refusal = self._known.get((part.get("tool_call_id"), text)) or _read(tool, text)
        if refusal is None:
            return message if payload.error_type != tool else _with_error(message, Refusal(_UNTYPED, text), [])
        said = _with_error(message, refusal, [])
        changes = residue(error_text(cast("OptionResultPayload", said.payload)), text)
        changes = [{**change, "at": [0, "parts", number, "content"], "own": True} for change in changes]
        if refusal.retryable:
            (outcome,) = residue("retried", "failed")
            changes.append({**outcome, "at": [0, "parts", number, "outcome"], "own": True})
        return _with_error(message, refusal, changes)


def _read(tool: str, text: str) -> Refusal | None:
    """Return what a text says that another run has told a model."""
    found = _CODE.fullmatch(text.removeprefix(f"{tool}: ")) if text.startswith(f"{tool}: ") else None
    return None if found is None else Refusal(found[2], found[1])


def _with_error(message: Message, refusal: Refusal, changes: Sequence[Mapping[str, Any]]) -> Message:
    said = {"error_type": refusal.code, "error_message": refusal.reason, "retryable": refusal.retryable}
    payload = cast("OptionResultPayload", message.payload).model_copy(update=said)
    notes = cast("dict[str, Any]", thaw(message.metadata[NAME]))
    if changes:
        notes["residue"] = [*notes.get("residue", ()), *changes]
    return message.model_copy(update={"payload": payload, "metadata": {**message.metadata, NAME: notes}})
