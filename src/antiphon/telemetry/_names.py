"""The names of our own attributes; those of OpenTelemetry's conventions stand where they are written."""

from typing import Final

__all__ = [
    "ADDRESS",
    "ATTEMPT",
    "CODE",
    "CONVERSATION",
    "DONE",
    "EFFECTS",
    "EFFECT_ARGUMENTS",
    "EFFECT_KEY",
    "EFFECT_RESULT",
    "ERROR_TYPE",
    "KIND",
    "MESSAGE",
    "MESSAGE_ID",
    "MESSAGE_TYPE",
    "REPLAYED",
    "RESULT",
    "SENDER",
    "TAG",
    "THREAD_ID",
    "kind_of",
]

ADDRESS: Final = "antiphon.actor.address"
KIND: Final = "antiphon.actor.kind"
MESSAGE_ID: Final = "antiphon.message.id"
MESSAGE_TYPE: Final = "antiphon.message.type"
SENDER: Final = "antiphon.message.sender"
ATTEMPT: Final = "antiphon.message.attempt"
MESSAGE: Final = "antiphon.message.body"
RESULT: Final = "antiphon.message.result"
TAG: Final = "antiphon.message."
"""What the names of tags begin with."""
THREAD_ID: Final = "antiphon.thread.id"
EFFECT_KEY: Final = "antiphon.effect.key"
EFFECTS: Final = "antiphon.effect.effects"
EFFECT_ARGUMENTS: Final = "antiphon.effect.arguments"
EFFECT_RESULT: Final = "antiphon.effect.result"
DONE: Final = "antiphon.effects.done"
REPLAYED: Final = "antiphon.effects.replayed"
CODE: Final = "antiphon.dead_letter.code"
CONVERSATION: Final = "gen_ai.conversation.id"
ERROR_TYPE: Final = "error.type"


def kind_of(address: str) -> str:
    """Return what kind of actor lives at an address: of these there are few, where addresses may be many."""
    return address.partition("/")[0]
