"""What each provider's format accepts, as data: the rules read it, and so do the dialects when they map ids and names.

A target has the name of its dialect. Nothing here is code: where a provider changes its mind, a value changes.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Literal, TypeAlias

from antiphon.messages import Modality

__all__ = ["TARGETS", "Accepted", "Media", "Place", "Spelling", "Target"]

Place: TypeAlias = Literal["system", "user", "assistant", "result"]
"""Who holds a part, as a provider sees it."""


@dataclass(frozen=True, slots=True)
class Spelling:
    """How an id or a name must be written."""

    pattern: re.Pattern[str]
    longest: int

    def accepts(self, text: str) -> bool:
        """Whether a text is written so."""
        return len(text) <= self.longest and self.pattern.fullmatch(text) is not None


@dataclass(frozen=True, slots=True)
class Accepted:
    """In what forms a medium may be given."""

    schemes: frozenset[str]
    """The beginnings of its URL: `data` for bytes, `urn` for a file that the provider holds."""
    mimes: frozenset[str] | None = None
    """The types that bytes may have; None: any."""


Media: TypeAlias = Mapping[Place, Mapping[Modality, Accepted]]
"""What media may stand where; what is not listed is refused."""


@dataclass(frozen=True, slots=True)
class Target:
    """What one format accepts."""

    name: str
    """The name of its dialect."""
    title: str
    """What people call it."""
    call_id: Spelling
    option_name: Spelling
    speaker: Spelling | None
    """The name of a participant; None: the format has none."""
    media: Media
    files: str = ""
    """How the owner begins in the URN of a file that this provider holds; empty: files of all are taken."""
    models: re.Pattern[str] | None = None
    """How the provider's own models are called; others are those of compatible servers. None: there are no such servers."""
    joins_turns: bool = False
    """Whether turns of the model that stand in a row are taken for one."""
    results: Literal["next", "later"] = "later"
    """Where results stand: directly after the turn that called, or anywhere later."""
    reuses_ids: bool = True
    """Whether a later turn may use a call id again."""
    arguments: Literal["text", "object"] = "text"
    """Whether arguments may be any text, or must be an object."""
    first_role: Literal["user"] | None = None
    """Who must speak first; None: anybody."""
    system: Literal["anywhere", "front", "after_user"] = "anywhere"
    """Where instructions may stand: `front` is a field of their own; `after_user` is that and directly after a user's turn."""
    ends_with_assistant: bool = True
    """Whether the last word may be the assistant's."""
    empty_text: bool = True
    """Whether a text may be empty."""
    unsaid: Literal["none", "empty", "blank"] = "none"
    """What texts the dialect leaves out of what it writes itself: none, empty ones, or those of white space too."""
    speaks: frozenset[Place] = frozenset()
    """Whose messages must say something."""
    needs_message: bool = True
    """Whether something besides instructions must be said."""
    media_in_errors: bool = True
    """Whether an error result may show media."""
    continues: tuple[str, ...] = ()
    """Settings by which a request goes on with what the service has: calls may be there."""
    item_ids: Mapping[str, Spelling] = field(default_factory=dict[str, Spelling])
    """How the ids of items are written, by the type of the item, as far as it is known; none: the format has no items."""
    most_messages: int | None = None
    most_tools: int | None = None
    most_cache_marks: int | None = None
    longest_text: int | None = None
    """Characters of one text."""
    largest_request: int | None = None
    """Bytes of all that is sent."""


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
"""How the ids of items begin: those types of which it is known that another beginning is refused."""

_EVERY_MEDIUM: tuple[Modality, ...] = ("image", "audio", "video", "document")
_MIB = 1024 * 1024

_OPENAI_CHAT = Target(
    name="openai-chat",
    title="OpenAI Chat Completions",
    call_id=Spelling(_ANYTHING.pattern, 40),  # some routes take 64
    option_name=Spelling(_PLAIN, 64),
    speaker=Spelling(_PLAIN, 64),  # newer routes take more
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
        "assistant": {"image": Accepted(_BYTES | _FILE)},  # what its own image tool made
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
    {each.name: each for each in (_OPENAI_CHAT, _OPENAI_RESPONSES, _ANTHROPIC_MESSAGES, _GEMINI_TARGET, _PYDANTIC_AI)}
)
"""The targets by name."""
