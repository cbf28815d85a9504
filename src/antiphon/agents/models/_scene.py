"""Scene: what a script looks at in a request, and what it may speak of."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, cast

from pydantic_ai.messages import (
    ModelMessage,
    ModelRequest,
    ModelResponse,
    RetryFeedbackPart,
    SystemPromptPart,
    ToolReturnPart,
    UserPromptPart,
)
from pydantic_core import to_json, to_jsonable_python

__all__ = ["Scene", "said", "scene_of", "spoken"]

_NAMED = re.compile(r"\{([A-Za-z_]\w*(?:\.\w+)*)\}")
_UNKNOWN = object()


@dataclass(frozen=True, slots=True)
class Scene:
    """A conversation as a script sees it."""

    text: str = ""
    """The user's last words."""
    said: int = 0
    """How often the model has answered since."""
    answers: int = 0
    """How often it has answered in all."""
    refusal: str = ""
    """Why its last answer was refused, if it was."""
    instructions: str = ""
    words: Mapping[str, Any] = field(default_factory=dict[str, Any])
    """What a script may name: the user's text, the results since."""

    def knowing(self, words: Mapping[str, Any]) -> Scene:
        """Return the scene with more that may be named."""
        return replace(self, words={**self.words, **words})


def scene_of(messages: Sequence[ModelMessage], instructions: str | None) -> Scene:
    """Look at a conversation. It is all that a script goes by, so the same conversation gets the same answer."""
    scene = Scene(instructions=instructions or "")
    for message in messages:
        if isinstance(message, ModelResponse):
            scene = replace(scene, said=scene.said + 1, answers=scene.answers + 1)
        else:
            scene = _heard(scene, message)
    return scene.knowing({"text": scene.text})


def _heard(scene: Scene, request: ModelRequest) -> Scene:
    for part in request.parts:
        match part:
            case UserPromptPart():
                scene = replace(scene, text=_text(part), said=0, refusal="", words={})
            case ToolReturnPart(outcome="retried"):
                scene = replace(scene, refusal=part.model_response_str())
            case ToolReturnPart():
                scene = replace(scene.knowing(_result(scene, part)), refusal="")
            case RetryFeedbackPart():
                scene = replace(scene, refusal=said(part.content))
            case SystemPromptPart():
                scene = replace(scene, instructions=f"{scene.instructions}\n{part.content}")
            case _:  # what providers alone understand
                pass
    return scene


def _result(scene: Scene, part: ToolReturnPart) -> dict[str, Any]:
    """Return what a tool gave as what a script may name: the last one, and each by its number."""
    value = to_jsonable_python(part.content)
    number = 1 + sum(name.startswith("result_") for name in scene.words)
    return {"result": value, f"result_{number}": value}


def _text(part: UserPromptPart) -> str:
    if isinstance(part.content, str):
        return part.content
    texts = (item if isinstance(item, str) else getattr(item, "content", None) for item in part.content)
    return "\n".join(text for text in texts if isinstance(text, str))


def spoken(value: Any, words: Mapping[str, Any]) -> Any:
    """Return a value of a script with every `{name}` replaced by what it stands for; unknown names stay as they are.

    What is put in is not looked at again: a result that says `{text}` says just that.
    """
    if isinstance(value, str):
        whole = _NAMED.fullmatch(value)
        if whole is not None and (known := _known(whole[1], words)) is not _UNKNOWN:
            return known
        return _NAMED.sub(lambda found: _in_text(found, words), value)
    if isinstance(value, dict):
        return {key: spoken(each, words) for key, each in cast("dict[str, Any]", value).items()}
    if isinstance(value, (list, tuple)):
        return [spoken(each, words) for each in cast("list[Any]", value)]
    return value


def _known(name: str, words: Mapping[str, Any]) -> Any:
    """Return what a name stands for; after a dot comes a key of an object, or a place in a list."""
    value: Any = words
    for step in name.split("."):
        if isinstance(value, list) and step.isdecimal() and int(step) < len(cast("list[Any]", value)):
            value = cast("list[Any]", value)[int(step)]
        elif isinstance(value, Mapping) and step in value:
            value = cast("Mapping[str, Any]", value)[step]
        else:
            return _UNKNOWN
    return value


def _in_text(found: re.Match[str], words: Mapping[str, Any]) -> str:
    value = _known(found[1], words)
    return found[0] if value is _UNKNOWN else said(value)


def said(value: Any) -> str:
    """Return a value as it stands in a text: JSON, unless it is a text."""
    return value if isinstance(value, str) else to_json(value, fallback=str).decode()
