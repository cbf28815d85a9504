"""One message layer and durable runtime for systems of many agents.

The names below are imported when first used, so that `import antiphon` costs next to nothing.
"""

from antiphon._lazy import lazy_names as _lazy_names

TYPE_CHECKING = False  # as type checkers know it; importing `typing` would cost more than all the rest
if TYPE_CHECKING:
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

__version__ = "0.1.0"

_HOME = {
    **dict.fromkeys(__all__, "antiphon.messages"),
    **dict.fromkeys(("Finding", "Repaired", "check", "repair"), "antiphon.checks"),
    **dict.fromkeys(("convert", "decode", "encode"), "antiphon.dialects"),
    **dict.fromkeys(("Ledger", "Record", "open_ledger"), "antiphon.ledger"),
    **dict.fromkeys(("Actor", "Context", "System", "handles"), "antiphon.runtime"),
}

__getattr__, __dir__ = _lazy_names(__name__, _HOME)
