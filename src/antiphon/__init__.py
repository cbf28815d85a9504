"""One message layer and durable runtime for systems of many agents.

The names below are imported when first used, so that `import antiphon` costs next to nothing.
"""

TYPE_CHECKING = False  # as type checkers know it; importing `typing` would cost more than all the rest
if TYPE_CHECKING:
    from typing import Any

    from antiphon.checks import Finding, Repaired, check, repair
    from antiphon.dialects import convert, decode, encode
    from antiphon.ledger import Ledger, Record, open_ledger
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
    from antiphon.runtime import Actor, Context, System, handles

__all__ = [
    "RUNTIME_POLICY",
    "Actor",
    "Citation",
    "Context",
    "Conversation",
    "DataPart",
    "Finding",
    "ForeignPart",
    "Ledger",
    "MediaPart",
    "Message",
    "MessageBuilder",
    "OptionCallPayload",
    "OptionResultBuilder",
    "OptionResultPayload",
    "PartsPayload",
    "ReasoningPart",
    "Record",
    "Repaired",
    "System",
    "TextPart",
    "Transition",
    "Usage",
    "__version__",
    "check",
    "convert",
    "decode",
    "dumps",
    "encode",
    "handles",
    "loads",
    "open_ledger",
    "repair",
]

__version__ = "0.1.0.dev0"

_HOME = {
    **dict.fromkeys(__all__, "antiphon.messages"),
    **dict.fromkeys(("Finding", "Repaired", "check", "repair"), "antiphon.checks"),
    **dict.fromkeys(("convert", "decode", "encode"), "antiphon.dialects"),
    **dict.fromkeys(("Ledger", "Record", "open_ledger"), "antiphon.ledger"),
    **dict.fromkeys(("Actor", "Context", "System", "handles"), "antiphon.runtime"),
}


def __getattr__(name: str) -> "Any":
    if name not in _HOME:
        raise AttributeError(f"module 'antiphon' has no attribute {name!r}")
    from importlib import import_module  # noqa: PLC0415 (only when a name is first used)

    value = getattr(import_module(_HOME[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return __all__
