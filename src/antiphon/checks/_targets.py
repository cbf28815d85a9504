"""What each provider's format accepts, and the known error messages of its service, as data.

The rules read it, and so do the dialects when they map ids and names.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Literal, TypeAlias

from antiphon.messages import Modality

Place: TypeAlias = Literal["system", "user", "assistant", "result"]
"""The place of a part in the provider's terms."""


@dataclass(frozen=True, slots=True)
class Spelling:
    """The allowed spelling of an id or a name."""

    pattern: re.Pattern[str]
    longest: int

    def accepts(self, text: str) -> bool:
        """Whether a text has this spelling."""
        return len(text) <= self.longest and self.pattern.fullmatch(text) is not None


@dataclass(frozen=True, slots=True)
class Accepted:
    """The accepted forms of a medium."""

    schemes: frozenset[str]
    """The schemes of its URL: `data` for bytes, `urn` for a file that the provider stores."""
    mimes: frozenset[str] | None = None
    """The types that bytes may have; None: any."""


Media: TypeAlias = Mapping[Place, Mapping[Modality, Accepted]]
"""The accepted media by position; all others are refused."""


@dataclass(frozen=True, slots=True)
class Target:
    """What one format accepts."""

    name: str
    """The name of its dialect."""
    title: str
    """Its usual name."""
    call_id: Spelling
    option_name: Spelling
    speaker: Spelling | None
    """The name of a participant; None: the format has none."""
    media: Media
    files: str = ""
    """The prefix of the owner in the URN of a file that this provider stores; empty: files of all are accepted."""
    models: re.Pattern[str] | None = None
    """Matches the names of the provider's own models; others belong to compatible servers. None: there are no such servers."""
    joins_turns: bool = False
    """Whether the target treats consecutive model turns as one."""
    results: Literal["next", "later"] = "later"
    """The position of results: directly after the turn with the calls, or anywhere later."""
    reuses_ids: bool = True
    """Whether a later turn may reuse a call id."""
    arguments: Literal["text", "object"] = "text"
    """Whether arguments may be any text, or must be an object."""
    first_role: Literal["user"] | None = None
    """The role of the first message; None: any."""
    system: Literal["anywhere", "front", "after_user"] = "anywhere"
    """The allowed positions of instructions: `front` is a separate field; `after_user` is that, and directly after a user's
    turn."""
    ends_with_assistant: bool = True
    """Whether the last message may be the assistant's."""
    empty_text: bool = True
    """Whether a text may be empty."""
    unsaid: Literal["none", "empty", "blank"] = "none"
    """The texts that the dialect omits when it writes from the core: none, empty ones, or also those of white space."""
    speaks: frozenset[Place] = frozenset()
    """The roles whose messages must not be empty."""
    needs_message: bool = True
    """Whether a message besides instructions is required."""
    media_in_errors: bool = True
    """Whether an error result may show media."""
    continues: tuple[str, ...] = ()
    """Settings with which a request continues a history that the service stores, which may contain calls."""
    item_ids: Mapping[str, Spelling] = field(default_factory=dict[str, Spelling])
    """The spelling of the ids of items, by the type of the item, as far as it is known; empty: the format has no items."""
    most_messages: int | None = None
    most_tools: int | None = None
    most_cache_marks: int | None = None
    longest_text: int | None = None
    """The maximum length of one text, in characters."""
    largest_request: int | None = None
    """The maximum size of a request, in bytes."""


_UNBOUNDED = 2**31
_ANYTHING = Spelling(re.compile(r".+", re.DOTALL), _UNBOUNDED)
_PLAIN = re.compile(r"[a-zA-Z0-9_-]+")

_OPENAI_MODELS = re.compile(r"(ft:)?(chatgpt-|codex-|computer-use-|gpt-|o\d)")

_WEB = frozenset({"http", "https"})
_BYTES = frozenset({"data"})
_FILE = frozenset({"urn"})
_ALL = _WEB | _BYTES | _FILE | {"gs", "s3"}

_GIVEN = Accepted(_BYTES | _WEB | _FILE)
_CLAUDE_IMAGE = Accepted(_GIVEN.schemes, frozenset({"image/jpeg", "image/png", "image/gif", "image/webp"}))
_CLAUDE_DOCUMENT = Accepted(_GIVEN.schemes, frozenset({"application/pdf", "text/plain"}))
_CLAUDE: Mapping[Modality, Accepted] = {"image": _CLAUDE_IMAGE, "document": _CLAUDE_DOCUMENT}
_GEMINI = Accepted(_BYTES | _WEB | _FILE | {"gs"})
_SOUND = Accepted(_BYTES, frozenset({"audio/wav", "audio/x-wav", "audio/wave", "audio/mp3", "audio/mpeg"}))

_ITEM_PREFIXES = {
    "message": "msg",
    "reasoning": "rs",
    "function_call": "fc",
    "function_call_output": "fc",
    "custom_tool_call": "ctc",
    "web_search_call": "ws",
}
"""The prefixes of the ids of items, for the types that are known to refuse another prefix."""

_EVERY_MEDIUM: tuple[Modality, ...] = ("image", "audio", "video", "document")
_MIB = 1024 * 1024

_OPENAI_CHAT = Target(
    name="openai-chat",
    title="OpenAI Chat Completions",
    call_id=Spelling(_ANYTHING.pattern, 40),  # some routes accept 64
    option_name=Spelling(_PLAIN, 64),
    speaker=Spelling(_PLAIN, 64),  # newer routes accept more
    media={
        "user": {
            "image": Accepted(_BYTES | _WEB),
            "audio": _SOUND,
            "document": Accepted(_BYTES | _FILE),
        },
        "assistant": {"audio": Accepted(_FILE)},
    },
    files="openai",
    models=_OPENAI_MODELS,
    results="next",
    speaks=frozenset({"assistant"}),
    needs_message=False,
    most_tools=128,
    longest_text=1_048_576,
)

_OPENAI_RESPONSES = Target(
    name="openai-responses",
    title="OpenAI Responses",
    call_id=Spelling(_ANYTHING.pattern, 64),
    option_name=Spelling(_PLAIN, 64),
    speaker=None,
    media={
        "user": {"image": _GIVEN, "document": _GIVEN},
        "result": {"image": _GIVEN, "document": _GIVEN},
        "assistant": {"image": Accepted(_BYTES | _FILE)},  # images of its own image tool
    },
    files="openai",
    models=_OPENAI_MODELS,
    continues=("previous_response_id", "conversation"),
    item_ids={kind: Spelling(re.compile(rf"{begin}[a-zA-Z0-9_-]*"), 64) for kind, begin in _ITEM_PREFIXES.items()},
    most_tools=128,
    longest_text=10_485_760,
)

_ANTHROPIC_MESSAGES = Target(
    name="anthropic-messages",
    title="Anthropic Messages",
    call_id=Spelling(_PLAIN, _UNBOUNDED),
    option_name=Spelling(_PLAIN, 128),
    speaker=None,
    media={"user": _CLAUDE, "result": _CLAUDE},
    files="anthropic",
    joins_turns=True,
    results="next",
    arguments="object",
    first_role="user",
    system="after_user",
    ends_with_assistant=False,
    empty_text=False,
    unsaid="blank",
    speaks=frozenset({"user", "assistant"}),
    media_in_errors=False,
    most_messages=100_000,
    most_cache_marks=4,
    largest_request=32 * _MIB,
)

_GEMINI_TARGET = Target(
    name="gemini",
    title="Gemini generateContent",
    call_id=_ANYTHING,
    option_name=Spelling(re.compile(r"[a-zA-Z_][a-zA-Z0-9_.:-]*"), 128),
    speaker=None,
    media={
        "user": dict.fromkeys(_EVERY_MEDIUM, _GEMINI),
        "result": dict.fromkeys(_EVERY_MEDIUM, _GEMINI),
        "assistant": dict.fromkeys(_EVERY_MEDIUM, _GEMINI),
    },
    files="gemini",
    joins_turns=True,
    results="next",
    arguments="object",
    first_role="user",
    system="front",
    unsaid="empty",
    speaks=frozenset({"system", "user", "assistant"}),
    largest_request=100 * _MIB,
)

_PYDANTIC_AI = Target(
    name="pydantic-ai",
    title="Pydantic AI",
    call_id=_ANYTHING,
    option_name=_ANYTHING,
    speaker=None,
    media={
        "user": dict.fromkeys(_EVERY_MEDIUM, Accepted(_ALL)),
        "result": dict.fromkeys(_EVERY_MEDIUM, Accepted(_ALL)),
        "assistant": dict.fromkeys(_EVERY_MEDIUM, Accepted(_BYTES)),
    },
    needs_message=False,
)

TARGETS: Mapping[str, Target] = MappingProxyType(
    {target.name: target for target in (_OPENAI_CHAT, _OPENAI_RESPONSES, _ANTHROPIC_MESSAGES, _GEMINI_TARGET, _PYDANTIC_AI)}
)
"""The targets by name."""


# ---------------------------------------------------------------- known answers

_CHAT, _RESPONSES, _ANTHROPIC, _GOOGLE = "openai-chat", "openai-responses", "anthropic-messages", "gemini"

_UNANSWERED_CHAT = (
    "An assistant message with 'tool_calls' must be followed by tool messages responding to each 'tool_call_id'. "
    "The following tool_call_ids did not have response messages: …"
)
_UNASKED_CHAT = "messages with role 'tool' must be a response to a preceeding message with 'tool_calls'."
_UNASKED_RESPONSES = "No tool call found for function call output with call_id …"
_UNANSWERED_CLAUDE = (
    "`tool_use` ids were found without `tool_result` blocks immediately after: … "
    "Each `tool_use` block must have a corresponding `tool_result` block in the next message."
)
_UNASKED_CLAUDE = "unexpected `tool_use_id` found in `tool_result` blocks: …"
_UNANSWERED_GEMINI = (
    "Please ensure that the number of function response parts is equal to the number of function call parts "
    "of the function call turn."
)
_UNASKED_GEMINI = "Please ensure that function response turn comes immediately after a function call turn."
_PATTERN = "string does not match pattern. Expected a string that matches the pattern '^[a-zA-Z0-9_-]+$'."

ANSWERS: Mapping[str, Mapping[str, str]] = {
    "AP101": {
        _CHAT: _UNANSWERED_CHAT,
        _RESPONSES: "No tool output found for function call …",
        _ANTHROPIC: _UNANSWERED_CLAUDE,
        _GOOGLE: _UNANSWERED_GEMINI,
    },
    "AP102": {
        _CHAT: _UNASKED_CHAT,
        _RESPONSES: _UNASKED_RESPONSES,
        _ANTHROPIC: _UNASKED_CLAUDE,
        _GOOGLE: _UNASKED_GEMINI,
    },
    "AP103": {
        _CHAT: _UNASKED_CHAT,
        _RESPONSES: _UNASKED_RESPONSES,
        _ANTHROPIC: _UNASKED_CLAUDE,
        _GOOGLE: _UNASKED_GEMINI,
    },
    "AP104": {
        _CHAT: _UNASKED_CHAT,
        _ANTHROPIC: "each tool_use must have a single result. Found multiple `tool_result` blocks with id …",
        _GOOGLE: _UNANSWERED_GEMINI,
    },
    "AP105": {_ANTHROPIC: "`tool_use` ids must be unique"},
    "AP106": {_CHAT: _UNANSWERED_CHAT, _ANTHROPIC: _UNANSWERED_CLAUDE, _GOOGLE: _UNASKED_GEMINI},
    "AP107": {
        _ANTHROPIC: "unexpected `tool_use_id` found in `…_tool_result` blocks: … "
        "must have a corresponding `server_tool_use` block before it"
    },
    "AP108": {_RESPONSES: "Duplicate item found with id …"},
    "AP109": {_GOOGLE: _UNANSWERED_GEMINI},
    "AP201": {
        _CHAT: "Invalid 'messages[…].tool_calls[…].id': string too long. Expected a string with maximum length 40, "
        "but got a string with length … instead.",
        _RESPONSES: "Invalid 'input[…].call_id': string too long. Expected a string with maximum length 64 …",
        _ANTHROPIC: "tool_use.id: String should match pattern '^[a-zA-Z0-9_-]+$'",
    },
    "AP202": {
        _CHAT: f"Invalid 'messages[…].tool_calls[…].function.name': {_PATTERN}",
        _RESPONSES: f"Invalid 'input[…].name': {_PATTERN}",
    },
    "AP203": {
        _CHAT: f"Invalid 'tools[…].function.name': {_PATTERN}",
        _RESPONSES: f"Invalid 'tools[…].name': {_PATTERN}",
    },
    "AP204": {_CHAT: f"Invalid 'messages[…].name': {_PATTERN}"},
    "AP205": {_RESPONSES: "Invalid 'input[…].id': 'call_…'. Expected an ID that begins with 'fc'."},
    "AP206": {_ANTHROPIC: "tools: Tool names must be unique."},
    "AP301": {_ANTHROPIC: "messages: text content blocks must be non-empty"},
    "AP302": {
        _CHAT: "Invalid value for 'content' …",
        _ANTHROPIC: "all messages must have non-empty content except for the optional final assistant message",
        _GOOGLE: "Unable to submit request because it must include at least one parts field …",
    },
    "AP303": {_ANTHROPIC: "messages: final assistant content cannot end with trailing whitespace"},
    "AP304": {
        _CHAT: "Invalid 'messages[…].tool_calls': empty array. Expected an array with minimum length 1, "
        "but got an empty array instead."
    },
    "AP305": {_GOOGLE: "contents is not specified"},
    "AP306": {_ANTHROPIC: "all content must be type `text` if `is_error` is true"},
    "AP307": {_RESPONSES: "Invalid value: 'input_text'. Supported values are: 'output_text' and 'refusal'."},
    "AP308": {_GOOGLE: "required oneof field 'data' must have one initialized field"},
    "AP401": {_ANTHROPIC: 'messages: first message must use the "user" role'},
    "AP402": {
        _GOOGLE: "Please ensure that function call turn comes immediately after a user turn or after a function response turn."
    },
    "AP403": {
        _ANTHROPIC: "This model does not support assistant message prefill. The conversation must end with a user message."
    },
    "AP404": {_ANTHROPIC: "role 'system' is not supported on this model", _GOOGLE: "Please use a valid role: user, model."},
    "AP501": {_RESPONSES: "Item 'rs_…' of type 'reasoning' was provided without its required following item."},
    "AP502": {_RESPONSES: "Item '…' was provided without its required 'reasoning' item: 'rs_…'."},
    "AP503": {_RESPONSES: "Missing required parameter: 'input[…].summary'."},
    "AP504": {
        _RESPONSES: "The encrypted content … could not be verified.",
        _ANTHROPIC: "Invalid `signature` in `thinking` block",
        _GOOGLE: "Invalid thought signature",
    },
    "AP505": {_RESPONSES: "Item with id 'rs_…' not found. Items are not persisted when `store` is set to false."},
    "AP506": {
        _ANTHROPIC: "Expected `thinking` or `redacted_thinking`, but found `tool_use`. When `thinking` is enabled, "
        "a final `assistant` message must start with a thinking block …"
    },
    "AP507": {_ANTHROPIC: "Invalid `signature` in `thinking` block"},
    "AP508": {_GOOGLE: "Function call is missing a thought_signature in functionCall parts. …"},
    "AP509": {
        _ANTHROPIC: "The block is bound to a different conversation …",
    },
    "AP601": {
        _CHAT: "Image URLs are only allowed for messages with role 'user', but this message with role '…' "
        "contains an image URL."
    },
    "AP604": {_CHAT: "Invalid 'tools': array too long. Expected an array with maximum length 128 …"},
    "AP605": {_CHAT: "Invalid 'messages[…].content': string too long. Expected a string with maximum length 1048576 …"},
    "AP606": {_ANTHROPIC: "A maximum of 4 blocks with cache_control may be provided. Found …."},
    "AP607": {_ANTHROPIC: "Request exceeds the maximum size"},
    "AP701": {_RESPONSES: "Tool choice '…' not found in 'tools' parameter."},
    "AP704": {_RESPONSES: "Missing namespace for function_call '…'. It does not exist in the default namespace."},
    "AP705": {_ANTHROPIC: "tool_addition/tool_removal references unknown tool …"},
}
