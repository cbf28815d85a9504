"""The log of a chain: who said what kind of thing to whom, message by message, and never a word of what was said.

At DEBUG, on the logger `antiphon.postchain`; errors at INFO, with their code: to be refused is an answer. It is written
after the ledger, of what is there, so it says nothing that did not happen.
"""

from __future__ import annotations

import logging
from typing import Final

from antiphon.ledger import Record
from antiphon.messages import DataPart, JsonObject, Message, OptionCallPayload, OptionResultPayload
from antiphon.runtime import response_type

__all__ = ["log_flow"]

LOG: Final = logging.getLogger("antiphon.postchain")


def log_flow(record: Record) -> None:
    """Log a message of a thread, if it is one that actors say to each other."""
    message = record.message
    if message.lane != "control" or not message.to:
        return
    payload = message.payload
    code = payload.error_type if isinstance(payload, OptionResultPayload) and payload.is_error else None
    level = logging.DEBUG if code is None else logging.INFO
    if not LOG.isEnabledFor(level) or not (kind := _kind(message)):
        return
    fields = {
        "antiphon.thread.id": message.thread_id,
        "antiphon.message.id": message.id,
        "antiphon.message.type": kind,
        "antiphon.correlation.id": message.correlation_id,
    }
    said = kind if code is None else f"{kind} {code}"
    LOG.log(level, "%s: %s -> %s: %s", message.thread_id, message.policy, message.to[0], said, extra=fields)


def _kind(message: Message) -> str:
    """Return what a message is called in the protocol; empty: it is none of that."""
    match message.payload:
        case OptionCallPayload(option_name=name):
            return name
        case OptionResultPayload(is_error=True):
            return "ERROR"
        case OptionResultPayload():
            return response_type(message)
        case _:
            match message.parts:
                case (DataPart(data=JsonObject() as said),):
                    return str(said.get("type", ""))
                case _:
                    return ""
