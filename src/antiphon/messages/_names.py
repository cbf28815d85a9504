"""Names: what identifies something (a policy, an option, an id, an address) rather than says something.

A name is compared, logged, shown on an approval screen and used as a key, so it must have one spelling and hide nothing:
Unicode NFC, no control characters, and none of the invisible or direction-changing ones that make two names look alike.
The ranges are written out, so that every Python version gives the same answer.
"""

from __future__ import annotations

import re
import unicodedata
from typing import Annotated, Any

from pydantic_core import core_schema

__all__ = ["NAME_LENGTH", "Name", "is_name"]

NAME_LENGTH = 512
"""Characters in a name at most; some providers' ids carry a signature and are longer than one would think."""

_HIDDEN = re.compile(
    "["
    "\u0000-\u001f\u007f-\u009f"  # control characters
    "\u00ad\u034f\u061c\u115f\u1160\u17b4\u17b5\u180b-\u180f"  # soft hyphen, joiners, fillers
    "\u200b-\u200f\u2028-\u202e\u2060-\u206f"  # zero width, line breaks, direction
    "\u3164\ufe00-\ufe0f\ufeff\uffa0\ufff0-\uffff"  # filler, variation selectors, BOM, specials
    "\ud800-\udfff"  # lone surrogates
    "\U000e0000-\U000e0fff"  # tags and more variation selectors
    "]"
)


def is_name(value: object) -> bool:
    """Whether a value may be used as a name."""
    return (
        isinstance(value, str)
        and 0 < len(value) <= NAME_LENGTH
        and not _HIDDEN.search(value)
        and unicodedata.is_normalized("NFC", value)
    )


def _check(value: object) -> object:
    if is_name(value):
        return value
    raise ValueError


class _NameSchema:
    """Printable ASCII is accepted inside Pydantic, without a call to Python; anything else is asked of `is_name`."""

    def __get_pydantic_core_schema__(self, source: object, handler: object) -> core_schema.CoreSchema:
        ascii_name = core_schema.str_schema(strict=True, min_length=1, max_length=NAME_LENGTH, pattern="^[ -~]*$")
        return core_schema.union_schema(
            [ascii_name, core_schema.no_info_after_validator_function(_check, core_schema.str_schema(strict=True))],
            mode="left_to_right",
            custom_error_type="name",
            custom_error_message="A name is text of 1 to {length} characters in Unicode form NFC, none of them a control, "
            "invisible or direction-changing character",
            custom_error_context={"length": NAME_LENGTH},
        )

    def __get_pydantic_json_schema__(self, schema: object, handler: object) -> dict[str, Any]:
        return {"type": "string", "minLength": 1, "maxLength": NAME_LENGTH}


Name = Annotated[str, _NameSchema()]
"""A checked name: 1 to 512 visible characters in NFC."""
