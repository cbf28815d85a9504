"""Validation: whether the data of a message is what the table says of its type."""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeVar

from pydantic import ValidationError

from antiphon.messages import thaw
from antiphon.protocol._fields import PHASES
from antiphon.protocol._open import Open, required_fields
from antiphon.protocol._table import find_model

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping

    from antiphon.messages import Json
    from antiphon.protocol._envelopes import Message, Response

__all__ = ["complaint", "read_data", "validate_message"]

_PHASE = "phase_type"

OpenT = TypeVar("OpenT", bound=Open)


def validate_message(message: Message | Response) -> bool:
    """Return True if the data of a message or response is right for its type. A type that nobody has declared is always right.

    Raises:
        ValueError: a field is missing or wrong; the text says which.
    """
    model = find_model(message.type)
    if model is not None:
        read_data(message.type, model, message.data)
    return True


def read_data(type: str, model: type[OpenT], data: Mapping[str, Json]) -> OpenT:
    """Return the data of a message of this type as its model.

    Raises:
        ValueError: a field is missing or wrong; the text says which.
    """
    required = required_fields(model)
    _check_phase(type, data, required)
    for name in required:
        _check_there(type, data, name)
    try:
        return model.model_validate(thaw(data))
    except ValidationError as exc:
        where, reason = complaint(exc)
        raise ValueError(f"{type} message has a wrong {where!r} field: {reason}") from exc


def _check_phase(type: str, data: Mapping[str, Json], required: Collection[str]) -> None:
    """Look at the phase before all else, wherever there is one: it is what a program asks about first."""
    if _PHASE in required:
        _check_there(type, data, _PHASE)
    phase = data.get(_PHASE)
    if phase not in PHASES and (phase is not None or _PHASE in required):
        raise ValueError(f"Invalid {_PHASE}: {phase}")


def _check_there(type: str, data: Mapping[str, Json], name: str) -> None:
    if name not in data:
        raise ValueError(f"{type} message must contain '{name}' field")


def complaint(exc: ValidationError) -> tuple[str, str]:
    """Return the place and the text of Pydantic's first complaint."""
    errors = exc.errors(include_url=False, include_context=False)
    more = f" (and {len(errors) - 1} more)" if len(errors) > 1 else ""
    path = "".join(f"[{step}]" if isinstance(step, int) else f".{step}" for step in errors[0]["loc"])
    return path.removeprefix("."), errors[0]["msg"] + more
