"""Meaning: what a reader of any format would say a conversation says.

Two conversations mean the same when, message by message, the same one says the same to the same, calls the same option with
the same arguments, and answers the same call with the same outcome. Ids are not meaning, only what they link; neither is what
a dialect keeps in its namespace, nor the role hint, nor the journal. A JSON text and the JSON it spells are the same outcome.

`meaning` gives one dict of facets per message, with nothing in it that is not said. What a dialect loses is the facets that do
not come back, and the tests hold that against the losses it reports.
"""

from __future__ import annotations

from collections.abc import Iterable, Set
from itertools import pairwise
from typing import Any

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
from antiphon.messages._json import JsonError, parse

__all__ = ["FACETS", "continued", "facets_of_parts", "is_refusal", "joined", "meaning"]

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
"""Everything that a message can say, by the word that a `Loss` has for it."""


_PIECEWISE = frozenset({"anthropic-messages", "gemini", "pydantic-ai"})
"""Formats in which the texts of an answer are pieces of one text."""
_REFUSING = ("openai-chat", "openai-responses")
"""Formats that tell a refusal from other texts."""
_NAMING = frozenset({"openai-chat", "openai-responses"})
"""Formats in which a file has a name."""
_NOTHING: tuple[Any, ...] = (None, (), [], "")


def meaning(conversation: Conversation) -> tuple[dict[str, Any], ...]:
    """Return what each message of talk and control says, as a dict of facets."""
    said = Conversation(message for message in conversation if message.lane != "effect")
    places = {message.id: place for place, message in reversed(list(enumerate(said)))}
    turns: dict[str | None, list[int]] = {}
    for place, message in enumerate(said):
        turns.setdefault(message.turn_id, []).append(place)
    calls = {result: call for call, result in said.pairs()}
    return tuple(_facets(message, calls.get(place), places, turns) for place, message in enumerate(said))


def _facets(
    message: Message, answered: int | None, places: dict[str, int], turns: dict[str | None, list[int]]
) -> dict[str, Any]:
    together = turns[message.turn_id] if message.turn_id is not None else []
    facets = {
        "speaker": message.policy,
        "to": message.to,
        "lane": None if message.lane == "talk" else message.lane,
        "time": message.created_at,
        "thread_id": message.thread_id,
        "step_num": message.step_num,
        "correlation_id": message.correlation_id,
        "parent_id": message.parent_id,
        "usage": message.usage,
        "reply": None if message.kind == "option_result" or not message.in_reply_to else places.get(message.in_reply_to),
        "turn": together[0] if len(together) > 1 else None,
        **_payload_facets(message, answered),
    }
    return {name: value for name, value in facets.items() if value not in _NOTHING}


def _payload_facets(message: Message, answered: int | None) -> dict[str, Any]:
    match message.payload:
        case OptionCallPayload() as call:
            spelled = call.arguments_text if call.arguments_text is not None and not call.arguments else None
            return {"call": call.option_name, "arguments": ("text", spelled) if spelled else ("json", thaw(call.arguments))}
        case OptionResultPayload() as outcome:
            return {
                "answers": "nothing" if answered is None else answered,
                "option": outcome.option_name,
                "result": None if outcome.result is None else ("json", _spelled_out(outcome.result)),
                "error": (outcome.error_type, outcome.error_message) if outcome.is_error else None,
                "retryable": outcome.retryable,
                **_part_facets(outcome.parts, message),
            }
        case _:
            texts = [part for part in message.parts if isinstance(part, TextPart)]
            return {
                **_part_facets(message.parts, message),
                "text": joined([(part, part.text) for part in texts], continued(message)),
            }


def continued(message: Message) -> Set[int]:
    """Return which texts of an answer go on with the one before them, by `id`: some models say one text in pieces."""
    if message.role_hint_for_llm != "assistant" or _PIECEWISE.isdisjoint(message.metadata):
        return frozenset()
    pairs = pairwise(message.parts)
    return {id(part) for before, part in pairs if isinstance(before, TextPart) and isinstance(part, TextPart)}


def joined(texts: Iterable[tuple[Part, str]], goes_on: Set[int]) -> str:
    """Return texts as one: a line each, except those that go on with the one before."""
    pieces = [piece for part, text in texts for piece in ("" if id(part) in goes_on else "\n", text)]
    return "".join(pieces[1:])


def is_refusal(part: Part) -> bool:
    """Whether a text is a model's word that it refuses."""
    return isinstance(part, TextPart) and any(part.metadata.get(name, {}).get("refusal") for name in _REFUSING)


def _old_name(part: MediaPart, were_names: bool) -> str | None:
    """Return the hint of a file, where hints were names; of what is written as no file it is a hint."""
    if not were_names or part.file_name is not None:
        return None
    is_file = part.modality == "document" or any(notes.get("file") is True for notes in part.metadata.values())
    return part.prompt_hint if is_file or part.url.startswith("urn:openai-file:") else None


def _part_facets(parts: tuple[Part, ...], message: Message | None = None) -> dict[str, Any]:
    # What was read from OpenAI's formats before the name of a file had a place of its own has it as the hint.
    were_names = message is not None and not _NAMING.isdisjoint(message.metadata)
    media = [part for part in parts if isinstance(part, MediaPart)]
    thoughts = [part for part in parts if isinstance(part, ReasoningPart)]
    return {
        "text": "\n".join(part.text for part in parts if isinstance(part, TextPart)),
        "refusal": [part.text for part in parts if isinstance(part, TextPart) and is_refusal(part)],
        "media": [(part.modality, part.url) for part in media],
        "hint": [part.prompt_hint for part in media if part.prompt_hint and not _old_name(part, were_names)],
        "filename": [name for part in media if (name := part.file_name or _old_name(part, were_names))],
        "reasoning": [part.text or "(encrypted)" for part in thoughts if part.text or part.encrypted_content],
        "data": [thaw(part.data) for part in parts if isinstance(part, DataPart)],
        "foreign": [(part.dialect, thaw(part.value)) for part in parts if isinstance(part, ForeignPart)],
        "citations": [part.citations for part in parts if isinstance(part, TextPart) and part.citations],
    }


def facets_of_parts(parts: tuple[Part, ...]) -> dict[str, Any]:
    """Return what parts say, by facet, with nothing in it that is not said."""
    return {name: value for name, value in _part_facets(parts).items() if value not in _NOTHING}


def _spelled_out(result: Any) -> Any:
    """Return the JSON that a text spells, if it spells an object or an array."""
    if isinstance(result, str) and result[:1] in ("{", "["):
        try:
            return parse(result.encode())
        except JsonError:
            return result
    return thaw(result)
