"""Script: the answers of a scripted model as data, read from a TOML or JSON file; and `Scene`, what it sees of a request."""

from __future__ import annotations

import json
import re
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Self, cast

from pydantic import BaseModel, ConfigDict, Field, JsonValue, ValidationError, model_validator
from pydantic_ai.messages import (
    ModelMessage,
    ModelRequest,
    ModelResponse,
    RetryFeedbackPart,
    SystemPromptPart,
    ToolReturnPart,
    UserPromptPart,
)
from pydantic_core import to_jsonable_python

from antiphon.agents._config import first_problem, read_small
from antiphon.errors import ModelError
from antiphon.messages._json_values import as_text

# ---------------------------------------------------------------- the script


class _Form(BaseModel):
    """Unknown fields are refused: a typo in a script must not become an empty turn."""

    model_config = ConfigDict(frozen=True, extra="forbid")


class Call(_Form):
    """A call of a tool. A string in the arguments may have placeholders: see `Turn`."""

    tool: str = Field(min_length=1)
    arguments: dict[str, JsonValue] = {}


class Turn(_Form):
    """One answer of the model: a text, calls, or a structured output.

    `{text}` in a string stands for the user's text, `{result}` for the last tool result, `{result_1}` for the first one since
    the user's message, `{NAME}` for the match of the group NAME in the rule's `when`. A dot selects a part: `{result.city}`,
    `{result.0}`. A string that is only a placeholder becomes the value itself.
    """

    text: str | None = None
    calls: tuple[Call, ...] = ()
    output: JsonValue | None = None
    """Sent in the form that the agent expects: with its output tool, or as JSON text."""
    input_tokens: int = Field(default=0, ge=0)
    """The usage that the turn reports; by default none."""
    output_tokens: int = Field(default=0, ge=0)

    @model_validator(mode="after")
    def _check_says_something(self) -> Self:
        if self.text is None and not self.calls and self.output is None:
            raise ValueError("a turn has a text, calls or an output")
        return self


class Rule(_Form):
    """The answers for a user message that matches, if the agent has the tools."""

    when: str = ""
    """A regular expression that is searched in the message, ignoring case; an empty one matches everything."""
    tools: tuple[str, ...] = ()
    """The rule is skipped unless the agent has all of them."""
    turns: tuple[Turn, ...] = Field(min_length=1)
    """One after the other, until the next message of the user."""

    @model_validator(mode="after")
    def _check_pattern(self) -> Self:
        try:
            re.compile(self.when)
        except re.error as exc:
            raise ValueError(f"when is no regular expression: {exc}") from exc
        return self


class Script(_Form):
    """Rules, of which the first match is used; or turns, one for each answer of a conversation."""

    name: str = "script"
    rules: tuple[Rule, ...] = ()
    turns: tuple[Turn, ...] = ()

    @model_validator(mode="after")
    def _check_has_one_of_them(self) -> Self:
        if bool(self.rules) == bool(self.turns):
            raise ValueError("a script has rules or turns: one of them, not both")
        return self


def load_script(path: Path | str) -> Script:
    """Read a script from a file, TOML unless its name ends in `.json`. A script without a name gets the name of the file.

    Raises:
        ModelError: the file cannot be read, or is not a script.
    """
    path = Path(path)
    try:
        value = _parsed(path)
        return Script.model_validate({"name": path.stem, **value})
    except OSError as exc:
        raise ModelError(f"cannot read the script: {exc.strerror or exc}", str(path)) from exc
    except ValidationError as exc:
        where, problem = first_problem(exc, Script)
        raise ModelError(problem, str(path), where=where) from exc
    except ValueError as exc:
        raise ModelError(f"not a script: {exc}", str(path)) from exc
    except RecursionError:  # its traceback would have a thousand lines
        raise ModelError("nested too deeply", str(path)) from None


def _parsed(path: Path) -> Mapping[str, object]:
    data = read_small(path)
    value = json.loads(data) if path.suffix == ".json" else tomllib.loads(data.decode())
    if not isinstance(value, dict):
        raise ValueError("a script is an object")  # noqa: TRY004 (it is about a file, not about code)
    return cast("dict[str, Any]", value)


# ---------------------------------------------------------------- the scene

_NAMED = re.compile(r"\{([A-Za-z_]\w*(?:\.\w+)*)\}")
_UNKNOWN = object()


@dataclass(frozen=True, slots=True)
class Scene:
    """The parts of a conversation that a script uses."""

    text: str = ""
    """The user's last message."""
    answered: int = 0
    """How often the model has answered since then."""
    answers: int = 0
    """How often it has answered in total."""
    refusal: str = ""
    """The reason why its last answer was refused; empty if it was not."""
    instructions: str = ""
    words: Mapping[str, object] = field(default_factory=dict[str, Any])
    """The values of placeholders: the user's text, and the results since."""

    def knowing(self, words: Mapping[str, object]) -> Scene:
        """Return the scene with more values for placeholders."""
        return replace(self, words={**self.words, **words})


def scene_of(messages: Sequence[ModelMessage], instructions: str | None) -> Scene:
    """Return the scene of a conversation. An answer depends on nothing else."""
    scene = Scene(instructions=instructions or "")
    for message in messages:
        if isinstance(message, ModelResponse):
            scene = replace(scene, answered=scene.answered + 1, answers=scene.answers + 1)
        else:
            scene = _after_request(scene, message)
    return scene.knowing({"text": scene.text})


def _after_request(scene: Scene, request: ModelRequest) -> Scene:
    for part in request.parts:
        match part:
            case UserPromptPart():
                scene = replace(scene, text=_text(part), answered=0, refusal="", words={})
            case ToolReturnPart(outcome="retried"):
                scene = replace(scene, refusal=part.model_response_str())
            case ToolReturnPart():
                scene = replace(scene.knowing(_result(scene, part)), refusal="")
            case RetryFeedbackPart():
                scene = replace(scene, refusal=as_text(part.content))
            case SystemPromptPart():
                scene = replace(scene, instructions=f"{scene.instructions}\n{part.content}")
            case _:  # parts that only providers can read
                pass
    return scene


def _result(scene: Scene, part: ToolReturnPart) -> dict[str, Any]:
    """Return the result of a tool as placeholders: the last one, and each by its number."""
    value = to_jsonable_python(part.content)
    number = 1 + sum(name.startswith("result_") for name in scene.words)
    return {"result": value, f"result_{number}": value}


def _text(part: UserPromptPart) -> str:
    if isinstance(part.content, str):
        return part.content
    texts = (item if isinstance(item, str) else getattr(item, "content", None) for item in part.content)
    return "\n".join(text for text in texts if isinstance(text, str))


def filled(value: Any, words: Mapping[str, object]) -> Any:
    """Return a value of a script with its placeholders replaced; unknown names stay.

    Inserted values are not searched for placeholders.
    """
    if isinstance(value, str):
        placeholder = _NAMED.fullmatch(value)
        if placeholder is not None and (word := _word_of(placeholder[1], words)) is not _UNKNOWN:
            return word
        return _NAMED.sub(lambda match: _in_text(match, words), value)
    if isinstance(value, dict):
        return {key: filled(item, words) for key, item in cast("dict[str, Any]", value).items()}
    if isinstance(value, (list, tuple)):
        return [filled(item, words) for item in cast("list[Any]", value)]
    return value


def _word_of(name: str, words: Mapping[str, object]) -> Any:
    """Return the value of a placeholder; after a dot comes a key of an object, or an index of a list."""
    value: Any = words
    for step in name.split("."):
        if isinstance(value, list) and step.isdecimal() and int(step) < len(cast("list[Any]", value)):
            value = cast("list[Any]", value)[int(step)]
        elif isinstance(value, Mapping) and step in value:
            value = cast("Mapping[str, object]", value)[step]
        else:
            return _UNKNOWN
    return value


def _in_text(match: re.Match[str], words: Mapping[str, object]) -> str:
    value = _word_of(match[1], words)
    return match[0] if value is _UNKNOWN else as_text(value)
