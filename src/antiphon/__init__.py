"""One message layer and durable runtime for systems of many agents.

The names below are imported when first used, so that `import antiphon` costs next to nothing.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from antiphon.messages import (
        RUNTIME_POLICY,
        Citation,
        Conversation,
        DataPart,
        ForeignPart,
        MediaPart,
        Message,
        MessageBuilder,
        OptionCallPayload,
        OptionResultBuilder,
        OptionResultPayload,
        PartsPayload,
        ReasoningPart,
        TextPart,
        Transition,
        Usage,
        dumps,
        loads,
    )

__all__ = [
    "RUNTIME_POLICY",
    "Citation",
    "Conversation",
    "DataPart",
    "ForeignPart",
    "MediaPart",
    "Message",
    "MessageBuilder",
    "OptionCallPayload",
    "OptionResultBuilder",
    "OptionResultPayload",
    "PartsPayload",
    "ReasoningPart",
    "TextPart",
    "Transition",
    "Usage",
    "__version__",
    "dumps",
    "loads",
]

__version__ = "0.1.0.dev0"

_HOME = dict.fromkeys(__all__, "antiphon.messages")


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module 'antiphon' has no attribute {name!r}")
    value = getattr(import_module(_HOME[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return __all__
