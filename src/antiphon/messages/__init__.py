"""The vocabulary: what every agent, tool and actor says, as frozen typed values.

Three kinds of message and nothing else: `parts` (something said), `option_call` (an option chosen), `option_result` (its
outcome). Nothing here knows a provider, a network, a clock or a disk.
"""

from antiphon.messages._builders import MessageBuilder, OptionResultBuilder
from antiphon.messages._content import (
    Citation,
    Count,
    DataPart,
    ForeignPart,
    Kind,
    MediaPart,
    Metadata,
    Modality,
    OptionCallPayload,
    OptionResultPayload,
    Part,
    PartsPayload,
    Payload,
    ReasoningPart,
    Text,
    TextPart,
)
from antiphon.messages._conversation import Conversation, Header, RewardFunction, Tool, Transition
from antiphon.messages._house import dumps, loads
from antiphon.messages._log import estimate_tokens, payload_size
from antiphon.messages._message import RESERVED_POLICIES, RUNTIME_POLICY, Lane, Message, RoleHint, Usage
from antiphon.messages._model import HOUSE_VERSION
from antiphon.messages._names import Name, is_name
from antiphon.messages._settings import (
    DEFAULT_LIMITS,
    NO_LIMITS,
    Limits,
    Port,
    SystemPort,
    current_limits,
    current_port,
    new_id,
    use_limits,
    use_port,
)
from antiphon.messages.json_values import Json, JsonArray, JsonObject, thaw

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
