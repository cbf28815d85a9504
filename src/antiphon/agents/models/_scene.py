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

__all__ = ["Scene", "scene_of", "spoken"]

_NAMED = re.compile(r"\{([A-Za-z_]\w*)\}")


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
    """What a script may name: the user's text, the last result."""

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
                scene = replace(scene.knowing({"result": to_jsonable_python(part.content)}), refusal="")
            case RetryFeedbackPart():
                scene = replace(scene, refusal=_said(part.content))
            case SystemPromptPart():
                scene = replace(scene, instructions=f"{scene.instructions}\n{part.content}")
            case _:  # what providers alone understand
                pass
    return scene


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
        if whole is not None and whole[1] in words:
            return words[whole[1]]
        return _NAMED.sub(lambda found: _said(words[found[1]]) if found[1] in words else found[0], value)
    if isinstance(value, dict):
        return {key: spoken(each, words) for key, each in cast("dict[str, Any]", value).items()}
    if isinstance(value, (list, tuple)):
        return [spoken(each, words) for each in cast("list[Any]", value)]
    return value


def _said(value: Any) -> str:
    return value if isinstance(value, str) else to_json(value, fallback=str).decode()
