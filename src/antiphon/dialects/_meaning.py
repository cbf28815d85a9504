"""The meaning of a conversation in every format.

Meaning is the content that does not depend on the format. Two conversations mean the same if, message by message, the same
speaker says the same to the same receivers, calls the same option with the same arguments, and answers the same call with the
same outcome. Ids count only by what they link. The namespace of a dialect, the role hint and the journal do not count. A JSON
text and the JSON that it spells are the same outcome. The purpose of a message and the user's own metadata count
(`_purpose.py`). `meaning` returns one dict of facets per message.
"""

from __future__ import annotations

from collections.abc import Iterable, Set
from contextlib import suppress
from itertools import pairwise
from typing import Any

from antiphon.dialects._purpose import metadata_of, purpose_to_write
from antiphon.messages import (
    Conversation,
    DataPart,
    ForeignPart,
    MediaPart,
    Message,
    OptionCallPayload,
    OptionResultPayload,
    Part,
    ReasoningPart,
    TextPart,
    thaw,
)
from antiphon.messages._conversation import without_effects
from antiphon.messages._json_values import JsonError, parse
from antiphon.messages._unchecked import EMPTY, plain_of

FACETS = (
    "speaker",
    "to",
    "lane",
    "time",
    "thread_id",
    "step_num",
    "correlation_id",
    "parent_id",
    "usage",
    "purpose",
    "metadata",
    "reply",
    "turn",
    "text",
    "refusal",
    "media",
    "hint",
    "filename",
    "reasoning",
    "data",
    "foreign",
    "citations",
    "call",
    "arguments",
    "answers",
    "option",
    "result",
    "error",
    "retryable",
)
"""All facets of a message, by the word that a `Loss` uses."""


PARTS = ("refusal", "media", "hint", "filename", "reasoning", "data", "foreign", "citations")
"""The facets of parts other than their text."""
_PIECEWISE = frozenset({"anthropic-messages", "gemini", "pydantic-ai"})
"""Formats in which the texts of an answer are pieces of one text."""
_REFUSING = ("openai-chat", "openai-responses")
"""Formats that distinguish a refusal from other text."""
_NOTHING: tuple[object, ...] = (None, (), [], "")


def meaning(conversation: Conversation) -> tuple[dict[str, object], ...]:
    """Return the meaning of each message of talk and control, as a dict of facets."""
    return tuple(
        {name: _copied(name, value) for name, value in facets.items()} for facets in facets_of(without_effects(conversation))
    )


def facets_of(conversation: Conversation) -> list[dict[str, Any]]:
    """Return the facets of each message. Their JSON values are those of the messages, and must not be changed."""
    places: dict[str, int] = {}
    turns: dict[str | None, list[int]] = {}
    for place, message in enumerate(conversation):
        places.setdefault(message.id, place)
        turns.setdefault(message.turn_id, []).append(place)
    calls = {result: call for call, result in conversation.pairs()}
    return [_facets(message, calls.get(place), places, turns) for place, message in enumerate(conversation)]


_FIELDS = (
    ("time", "created_at"),
    *((name, name) for name in ("thread_id", "step_num", "correlation_id", "parent_id", "usage")),
)
"""The facets that are a field of the message, with its name; a field that is None is no facet."""


def _facets(
    message: Message, answered: int | None, places: dict[str, int], turns: dict[str | None, list[int]]
) -> dict[str, object]:
    fields = message.__dict__
    facets: dict[str, object] = {"speaker": message.policy}
    if message.to:
        facets["to"] = message.to
    if message.lane != "talk":
        facets["lane"] = message.lane
    for name, field_name in _FIELDS:
        if (value := fields[field_name]) is not None:
            facets[name] = value
    if message.in_reply_to in places and message.kind != "option_result":
        facets["reply"] = places[message.in_reply_to]
    if fields["metadata"] is not EMPTY:
        if (purpose := purpose_to_write(message)) is not None:
            facets["purpose"] = purpose
        if metadata := metadata_of(message):
            facets["metadata"] = metadata
    if message.turn_id is not None and len(together := turns[message.turn_id]) > 1:
        facets["turn"] = together[0]
    facets |= {name: value for name, value in _payload_facets(message, answered).items() if value not in _NOTHING}
    return facets


def _payload_facets(message: Message, answered: int | None) -> dict[str, object]:
    match message.payload:
        case OptionCallPayload() as call:
            arguments, text = plain_of(call, "arguments"), call.arguments_text
            return {"call": call.option_name, "arguments": ("text", text) if text and not arguments else ("json", arguments)}
        case OptionResultPayload() as outcome:
            result = plain_of(outcome, "result")
            return {
                "answers": "nothing" if answered is None else answered,
                "option": outcome.option_name,
                "result": None if result is None else ("json", result),
                "error": (outcome.error_type, outcome.error_message) if outcome.is_error else None,
                "retryable": outcome.retryable,
                **(_part_facets(outcome.parts) if outcome.parts else {}),
            }
        case payload:
            first = payload.parts[0] if len(payload.parts) == 1 else None
            if type(first) is TextPart and not first.citations and first.__dict__["metadata"] is EMPTY:
                return {"text": first.text}  # most talk is such a part, which has no other facet
            texts = [part for part in payload.parts if isinstance(part, TextPart)]
            return {
                **_part_facets(payload.parts),
                "text": joined([(part, part.text) for part in texts], continued(message)),
            }


def continued(message: Message) -> Set[int]:
    """Return the texts of an answer that continue the text before them, by `id`: some models send one text in pieces."""
    if message.role_hint_for_llm != "assistant" or _PIECEWISE.isdisjoint(message.metadata):
        return frozenset()
    pairs = pairwise(message.parts)
    return {id(part) for before, part in pairs if isinstance(before, TextPart) and isinstance(part, TextPart)}


def joined(texts: Iterable[tuple[Part, str]], goes_on: Set[int]) -> str:
    """Return texts as one: each on a new line, except those that continue the text before."""
    pieces = [piece for part, text in texts for piece in ("" if id(part) in goes_on else "\n", text)]
    return "".join(pieces[1:])


def is_refusal(part: Part) -> bool:
    """Whether a text is a model's refusal."""
    if not isinstance(part, TextPart) or not part.metadata:
        return False
    return any(part.metadata.get(name, {}).get("refusal") for name in _REFUSING)


def _part_facets(parts: tuple[Part, ...]) -> dict[str, object]:
    texts = [part for part in parts if isinstance(part, TextPart)]
    facets: dict[str, object] = {
        "text": "\n".join(part.text for part in texts),
        "refusal": [part.text for part in texts if is_refusal(part)],
        "citations": [part.citations for part in texts if part.citations],
    }
    if len(texts) == len(parts):
        return facets
    media = [part for part in parts if isinstance(part, MediaPart)]
    thoughts = [part for part in parts if isinstance(part, ReasoningPart)]
    return facets | {
        "media": [(part.modality, part.url) for part in media],
        "hint": [part.prompt_hint for part in media if part.prompt_hint],
        "filename": [part.file_name for part in media if part.file_name],
        "reasoning": [part.text or "(encrypted)" for part in thoughts if part.text or part.encrypted_content],
        "data": [plain_of(part, "data") for part in parts if isinstance(part, DataPart)],
        "foreign": [(part.dialect, plain_of(part, "value")) for part in parts if isinstance(part, ForeignPart)],
    }


def facets_of_parts(parts: tuple[Part, ...]) -> dict[str, object]:
    """Return the content of parts by facet, without empty facets."""
    return {name: value for name, value in _part_facets(parts).items() if value not in _NOTHING}


def _copied(facet: str, value: Any) -> object:
    """Return a facet with JSON values that the caller owns; a result that is JSON text is parsed."""
    match facet:
        case "arguments":
            return value[0], thaw(value[1])
        case "result":
            return "json", thaw(spelled_out(value[1]))
        case "metadata":
            return thaw(value)
        case "data":
            return [thaw(item) for item in value]
        case "foreign":
            return [(dialect, thaw(item)) for dialect, item in value]
        case _:
            return value


def spelled_out(result: Any) -> Any:
    """Return the JSON value of a text, if it is an object or an array; any other result unchanged."""
    if isinstance(result, str) and result[:1] in ("{", "["):
        with suppress(JsonError):
            return parse(result.encode())
    return result
