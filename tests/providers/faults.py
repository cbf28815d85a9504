"""What a validation error means, where a value could have been one of many types.

Pydantic reports what every type of a union has against a value: one odd key in a message gives thirty complaints. Meant are
those of the type that the value claims to be (it has its `role` or `type`), and of several such the least unhappy.
"""

from collections import defaultdict
from typing import Any, NamedTuple

from pydantic import ValidationError
from pydantic_core import ErrorDetails

__all__ = ["faults"]

_Location = tuple[int | str, ...]
"""As Pydantic gives it: keys, indexes and, where a union stands, the name of the type that complains."""


class _Complaint(NamedTuple):
    where: _Location
    """Keys and indexes only."""
    what: str
    types: tuple[_Location, ...]
    """The types that were tried on the way, each by its location."""
    other_kind: bool
    """Does the last of them say that the value is not of its kind at all?"""


def faults(error: ValidationError, body: Any) -> list[str]:
    """Return one sentence a fault, beginning with where in the body it is."""
    complaints = [_complaint(each, body) for each in error.errors(include_url=False)]
    unheard = _unheard(complaints)
    kept = [each for each in complaints if unheard.isdisjoint(each.types)]
    sentences = [f"{'.'.join(map(str, each.where)) or 'body'}: {each.what}" for each in kept]
    return list(dict.fromkeys(sentences))


def _complaint(details: ErrorDetails, body: Any) -> _Complaint:
    where: list[int | str] = []
    types: list[_Location] = []
    location = details["loc"]
    for end, step in enumerate(location, start=1):
        if _is_in(step, body):
            body = body[step]
            where.append(step)
        elif end == len(location) and details["type"] == "missing":
            where.append(step)
        else:
            types.append(location[:end])
    inside = len(location) - len(types[-1]) if types else 0
    other_kind = inside == 0 or (inside == 1 and details["type"] == "literal_error")
    return _Complaint(tuple(where), details["msg"], tuple(types), other_kind)


def _is_in(step: int | str, value: Any) -> bool:
    return step in value if isinstance(value, dict) else isinstance(value, list) and isinstance(step, int)


def _unheard(complaints: list[_Complaint]) -> set[_Location]:
    """Return the types not to listen to; unions inside of others first, so that the outer one counts only what is meant.

    Where a value is of no kind that a union knows, all are heard.
    """
    unheard: set[_Location] = set()
    unions: dict[_Location, set[_Location]] = defaultdict(set)
    for each in {each for complaint in complaints for each in complaint.types}:
        unions[each[:-1]].add(each)
    for union in sorted(unions, key=len, reverse=True):
        heard = [complaint for complaint in complaints if unheard.isdisjoint(complaint.types)]
        scores = {each: _unhappiness(each, heard) for each in unions[union]}
        least = min(scores.values())
        unheard |= {each for each, score in scores.items() if score > least}
    return unheard


def _unhappiness(type_: _Location, complaints: list[_Complaint]) -> tuple[bool, int]:
    own = [each for each in complaints if type_ in each.types]
    if any(each.other_kind and each.types[-1] == type_ for each in own):
        return True, 0
    return False, len(own)
