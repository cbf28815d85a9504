"""Whether what a handler says or does is what the ledger has under the same id, secrets that were taken out aside."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, cast

from antiphon.messages import Json, thaw

if TYPE_CHECKING:
    from antiphon.messages import Payload

__all__ = ["says_the_same", "says_the_same_value"]

_REDACTED = "[redacted:"
"""What stands in the ledger where something was taken out begins so."""


def says_the_same(recorded: Payload, own: Payload) -> bool:
    """Whether two payloads are the same, but for what was redacted in the one that was recorded."""
    if recorded == own:
        return True
    return _is_alike(recorded.model_dump(mode="json"), own.model_dump(mode="json"))


def says_the_same_value(recorded: Json, own: Json) -> bool:
    """Whether two JSON values are the same, but for what was redacted in the one that was recorded."""
    return recorded == own or _is_alike(thaw(recorded), thaw(own))


def _is_alike(recorded: Any, own: Any) -> bool:
    if isinstance(recorded, dict) and isinstance(own, dict):
        ours = cast("dict[str, Any]", own)
        return recorded.keys() == own.keys() and all(
            _is_alike(value, ours[key]) for key, value in cast("dict[str, Any]", recorded).items()
        )
    if isinstance(recorded, list) and isinstance(own, list):
        left, right = cast("list[Any]", recorded), cast("list[Any]", own)
        return len(left) == len(right) and all(_is_alike(*pair) for pair in zip(left, right, strict=True))
    if isinstance(recorded, str) and _REDACTED in recorded:
        return True
    return _is_equal(cast("Any", recorded), own)


def _is_equal(recorded: Any, own: Any) -> bool:
    """Whether two scalars are the same: 1, 1.0 and true are not."""
    return type(recorded) is type(own) and recorded == own
