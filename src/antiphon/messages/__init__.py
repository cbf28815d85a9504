"""The vocabulary: what every agent, tool and actor says, as frozen typed values.

Three kinds of message and nothing else: `parts` (something said), `option_call` (an option chosen), `option_result` (what came
of it). Nothing here knows a provider, a network, a clock or a disk.
"""

from antiphon.messages._builders import MessageBuilder, OptionResultBuilder
from antiphon.messages._conversation import Conversation, Header, Tool
from antiphon.messages._house import dumps, loads
from antiphon.messages._json import Json, JsonArray, JsonObject, thaw
from antiphon.messages._limits import DEFAULT_LIMITS, NO_LIMITS, Limits, current_limits, use_limits
from antiphon.messages._message import RESERVED_POLICIES, RUNTIME_POLICY, Lane, Message, RoleHint, Usage
from antiphon.messages._model import HOUSE_VERSION
from antiphon.messages._names import Name, is_name
from antiphon.messages._parts import (
    Citation,
    Count,
    DataPart,
    ForeignPart,
    MediaPart,
    Metadata,
    Modality,
    Part,
    ReasoningPart,
    Text,
    TextPart,
)
from antiphon.messages._payloads import Kind, OptionCallPayload, OptionResultPayload, PartsPayload, Payload
from antiphon.messages._port import Port, SystemPort, current_port, new_id, use_port
from antiphon.messages._steps import RewardFunction, Transition
from antiphon.messages._window import estimate_tokens, payload_size

__all__ = [
    "DEFAULT_LIMITS",
    "HOUSE_VERSION",
    "NO_LIMITS",
    "RESERVED_POLICIES",
    "RUNTIME_POLICY",
    "Citation",
    "Conversation",
    "Count",
    "DataPart",
    "ForeignPart",
    "Header",
    "Json",
    "JsonArray",
    "JsonObject",
    "Kind",
    "Lane",
    "Limits",
    "MediaPart",
    "Message",
    "MessageBuilder",
    "Metadata",
    "Modality",
    "Name",
    "OptionCallPayload",
    "OptionResultBuilder",
    "OptionResultPayload",
    "Part",
    "PartsPayload",
    "Payload",
    "Port",
    "ReasoningPart",
    "RewardFunction",
    "RoleHint",
    "SystemPort",
    "Text",
    "TextPart",
    "Tool",
    "Transition",
    "Usage",
    "current_limits",
    "current_port",
    "dumps",
    "estimate_tokens",
    "is_name",
    "loads",
    "new_id",
    "payload_size",
    "thaw",
    "use_limits",
    "use_port",
]
