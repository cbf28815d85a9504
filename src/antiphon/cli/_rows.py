"""Records and times as the ledger's commands write them: a line for people, an object for programs."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import TYPE_CHECKING, Any

import orjson

from antiphon.cli._output import deliver
from antiphon.messages.json_values import write

if TYPE_CHECKING:
    from antiphon.ledger import Record

__all__ = ["as_json", "print_json", "shown_time", "thread_of"]


def thread_of(record: Record) -> str:
    """Return the thread that a record was appended to; of what a branch shares, that is its origin."""
    return record.message.thread_id or ""


def as_json(record: Record) -> dict[str, Any]:
    """Return a record as an object, with the message byte for byte as it is stored."""
    return {
        "thread_id": thread_of(record),
        "seq": record.seq,
        "recorded_at": record.recorded_at,
        "hash": record.hash,
        "message": orjson.Fragment(record.body),
    }


def print_json(value: dict[str, Any] | Sequence[Any]) -> None:
    """Write a value to stdout, times as the house format has them."""
    deliver(write(value, orjson.OPT_INDENT_2 | orjson.OPT_UTC_Z) + b"\n", None)


def shown_time(moment: datetime) -> str:
    return f"{moment:%Y-%m-%d %H:%M:%S}"
