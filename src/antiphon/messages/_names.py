"""Names: texts that identify something: a policy, an option, an id, an address.

A name is compared, logged, shown on an approval screen and used as a key. So it must have one spelling and hide nothing: it is
in Unicode NFC and has no control characters, no space except the plain one inside, and no invisible or direction-changing
characters, which make two names look alike. The ranges are written out, so that every Python version gives the same answer
(except for the normal form of characters that are newer than its Unicode).
"""

from __future__ import annotations

import re
import unicodedata
from typing import Annotated, Any

from pydantic_core import core_schema

NAME_LENGTH = 512
"""The most characters of a name. It is this long because the ids of some providers contain a signature."""

ASCII_NAME = "^[!-~]([ -~]*[!-~])?$"
"""Names that Pydantic accepts without a call to Python."""

HIDDEN = re.compile(
    "["
    "\u0000-\u001f\u007f-\u009f"  # control characters
    "\u00a0\u1680\u2000-\u200a\u202f\u205f\u2800\u3000"  # spaces that are not the space
    "\u00ad\u034f\u061c\u115f\u1160\u17b4\u17b5\u180b-\u180f"  # soft hyphen, joiners, fillers
    "\u0600-\u0605\u06dd\u070f\u0890\u0891\u08e2"  # marks that format numbers
    "\u200b-\u200f\u2028-\u202e\u2060-\u206f"  # zero width, line breaks, direction
    "\u3164\ufe00-\ufe0f\ufeff\uffa0\ufff0-\uffff"  # filler, variation selectors, BOM, specials
    "\ud800-\uf8ff\U000f0000-\U0010ffff"  # lone surrogates, private use
    "\U000110bd\U000110cd\U00013430-\U0001345f\U0001bca0-\U0001bca3\U0001d173-\U0001d17a"  # more formatting
    "\U000e0000-\U000e0fff"  # tags and more variation selectors
    "]"
)


def is_name(value: object) -> bool:
    """Whether a value is a valid name."""
    if type(value) is str and value.isascii():  # printable ASCII except the space is visible, and always NFC
        return 0 < len(value) <= NAME_LENGTH and value.isprintable() and value[0] != " " and value[-1] != " "
    return (
        isinstance(value, str)
        and 0 < len(value) <= NAME_LENGTH
        and not HIDDEN.search(value)
        and not value.startswith(" ")
        and not value.endswith(" ")
        and unicodedata.is_normalized("NFC", value)
    )


def _check(value: object) -> object:
    if is_name(value):
        return value
    raise ValueError


class _NameSchema:
    """Pydantic accepts printable ASCII without a call to Python; `is_name` decides about everything else."""

    def __get_pydantic_core_schema__(self, source: object, handler: object) -> core_schema.CoreSchema:
        ascii_name = core_schema.str_schema(strict=True, min_length=1, max_length=NAME_LENGTH, pattern=ASCII_NAME)
        return core_schema.union_schema(
            [ascii_name, core_schema.no_info_after_validator_function(_check, core_schema.str_schema(strict=True))],
            mode="left_to_right",
            custom_error_type="name",
            custom_error_message="A name is text of 1 to {length} characters in Unicode form NFC, none of them a control, "
            "invisible or direction-changing character or a space at either end",
            custom_error_context={"length": NAME_LENGTH},
        )

    def __get_pydantic_json_schema__(self, schema: object, handler: object) -> dict[str, Any]:
        return {"type": "string", "minLength": 1, "maxLength": NAME_LENGTH}


Name = Annotated[str, _NameSchema()]
"""A checked name: 1 to 512 visible characters in NFC."""
