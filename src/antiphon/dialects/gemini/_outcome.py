"""What came of a call, as an object: results and errors, both ways.

The service asks for an object and knows two keys in it: `output` is what the function returned, `error` what went wrong; an
object with neither is itself what was returned. So a success is written

- as itself, if it is an object without these keys (`error: null` is no error, and may be there),
- else as `{"output": …}`;

and an error as `{"error": "Type: message"}`, with its details beside it: the keys of an object, or `output`.
"""

from __future__ import annotations

from typing import Any

from antiphon.dialects._content import error_of, json_text
from antiphon.dialects._reading import as_object, fresh
from antiphon.messages import OptionResultPayload

__all__ = ["read_outcome", "write_outcome"]

_ERROR = "Error"
"""The type of an error that has none of its own, and what it says if it has no words."""


def read_outcome(response: dict[str, Any]) -> tuple[dict[str, Any], str | None]:
    """Return what came of the call as fields of an option_result, and how it is laid out where we would do otherwise."""
    error = response.get("error")
    is_error = _is_error(error)
    given = {key: value for key, value in response.items() if key != "error"} if is_error else response
    form = "output" if given.keys() == {"output"} else "itself"
    result = given["output"] if form == "output" else None if is_error and not given else given
    outcome: dict[str, Any] = {"result": result}
    if is_error:
        kind, message = error_of(error if isinstance(error, str) else json_text(error))
        outcome |= {"is_error": True, "error_type": kind, "error_message": message}
    is_usual = result is None or form == ("itself" if _is_itself(result, is_error=is_error) else "output")
    return outcome, None if is_usual else form


def write_outcome(outcome: OptionResultPayload, words: list[str], form: str | None) -> dict[str, Any]:
    """Write what came of a call. What it says in words besides is put to its output."""
    result = fresh(outcome, "result")
    if words:
        result = "\n".join([*([] if result is None else [json_text(result)]), *words])
    if not outcome.is_error:
        return _laid_out(result, form, is_error=False)
    message = str(outcome.error_message)
    said = message or _ERROR if outcome.error_type == _ERROR else f"{outcome.error_type}: {message}"
    return {"error": said, **({} if result is None else _laid_out(result, form, is_error=True))}


def _laid_out(result: Any, form: str | None, *, is_error: bool) -> dict[str, Any]:
    found = as_object(result)
    if found is None or form == "output":
        return {"output": result}
    is_plain = found.keys() != {"output"} and not _is_error(found.get("error")) and not (is_error and "error" in found)
    return found if _is_itself(found, is_error=is_error) or (form == "itself" and is_plain) else {"output": result}


def _is_itself(result: Any, *, is_error: bool) -> bool:
    """Whether a result is an object that cannot be taken for anything but a result."""
    found = as_object(result)
    if found is None or "output" in found or _is_error(found.get("error")):
        return False
    return not is_error or (bool(found) and "error" not in found)


def _is_error(error: Any) -> bool:
    return error is not None and error is not False
