"""Moved to `antiphon.messages.trusted`."""

from antiphon.messages.trusted import (
    citation,
    data_part,
    foreign_part,
    media_part,
    message,
    option_call_payload,
    option_result_payload,
    parts_payload,
    reasoning_part,
    text_part,
    usage,
)

__all__ = [
    "citation",
    "data_part",
    "foreign_part",
    "media_part",
    "message",
    "option_call_payload",
    "option_result_payload",
    "parts_payload",
    "reasoning_part",
    "text_part",
    "usage",
]
