"""ScriptedModel: a Pydantic AI model that says what a script says: no key, no network, no time, no pretence.

It goes by the conversation alone. The same conversation gets the same answer, in whatever process it is asked, so a run that
is taken up after a crash goes on as it would have gone on. Ids and times come from the port.
"""

from __future__ import annotations

import re
from collections.abc import AsyncGenerator, Iterator
from contextlib import asynccontextmanager
from functools import cache
from pathlib import Path
from typing import Any

from pydantic_ai import RunContext
from pydantic_ai.messages import (
    ModelMessage,
    ModelResponse,
    ModelResponsePart,
    TextPart,
    ToolCallPart,
)
from pydantic_ai.models import Model, ModelRequestParameters, StreamedResponse
from pydantic_ai.profiles import ModelProfile
from pydantic_ai.settings import ModelSettings
from pydantic_ai.usage import RequestUsage
from pydantic_core import to_json
from typing_extensions import override

from antiphon.agents.models._errors import ScriptError
from antiphon.agents.models._fill import Filler
from antiphon.agents.models._scene import Scene, said, scene_of, spoken
from antiphon.agents.models._script import Rule, Script, Turn, load_script
from antiphon.agents.models._spoken import SpokenResponse
from antiphon.messages import current_port

__all__ = ["ScriptedModel"]


@cache
def _default_script() -> Script:
    return load_script(Path(__file__).with_name("default_script.toml"))


class ScriptedModel(Model[None]):
    """A model that answers as a script says; without one, by a few rules that show tools and phases at work."""

    _renders_retry_feedback = True  # a refusal is no new word of the user's, and must not be read as one

    def __init__(self, script: Script | None = None, *, settings: ModelSettings | None = None) -> None:
        profile = ModelProfile(
            supports_json_schema_output=True, supports_json_object_output=True, supports_inline_system_prompts=True
        )
        super().__init__(settings=settings, profile=profile)
        self.script = script or _default_script()

    @property
    @override
    def system(self) -> str:
        return "scripted"

    @property
    @override
    def model_name(self) -> str:
        return "scripted" if self.script is _default_script() else f"scripted:{self.script.name}"

    @property
    @override
    def model_id(self) -> str:
        return self.model_name

    @override
    async def request(
        self,
        messages: list[ModelMessage],
        model_settings: ModelSettings | None,
        model_request_parameters: ModelRequestParameters,
    ) -> ModelResponse:
        _, wanted = self.prepare_request(model_settings, model_request_parameters)
        return self._answer(messages, wanted)

    @override
    @asynccontextmanager
    async def request_stream(
        self,
        messages: list[ModelMessage],
        model_settings: ModelSettings | None,
        model_request_parameters: ModelRequestParameters,
        run_context: RunContext[Any] | None = None,
    ) -> AsyncGenerator[StreamedResponse]:
        _, wanted = self.prepare_request(model_settings, model_request_parameters)
        yield SpokenResponse(wanted, self._answer(messages, wanted))

    def _answer(self, messages: list[ModelMessage], wanted: ModelRequestParameters) -> ModelResponse:
        scene = scene_of(messages, _instructions(messages, wanted))
        turn, scene = self._turn(scene, {tool.name for tool in wanted.function_tools})
        return ModelResponse(
            parts=list(self._parts(turn, scene, wanted)),
            usage=RequestUsage(input_tokens=turn.input_tokens, output_tokens=turn.output_tokens),
            model_name=self.model_name,
            provider_name=self.system,
            timestamp=current_port().now(),
        )

    def _turn(self, scene: Scene, tools: set[str]) -> tuple[Turn, Scene]:
        """Return whose turn it is, with what its rule has found."""
        if self.script.turns:
            return self._at(scene.answers, self.script.turns, scene, "turns"), scene
        for number, rule in enumerate(self.script.rules):
            found = _match(rule, scene.text, tools)
            if found is not None:
                turn = self._at(scene.said, rule.turns, scene, f"rules.{number}.turns")
                return turn, scene.knowing(found)
        raise ScriptError(f"no rule fits what was said: {scene.text[:200]!r}; add one with an empty `when`", self.model_name)

    def _at(self, place: int, turns: tuple[Turn, ...], scene: Scene, where: str) -> Turn:
        if place < len(turns):
            return turns[place]
        why = f"; the answer before was refused: {scene.refusal}" if scene.refusal else ""
        raise ScriptError(f"there are {len(turns)} turns, and one more is asked for{why}", self.model_name, where)

    def _parts(self, turn: Turn, scene: Scene, wanted: ModelRequestParameters) -> Iterator[ModelResponsePart]:
        text = None if turn.text is None else said(spoken(turn.text, scene.words))
        if turn.calls:
            if text is not None:
                yield TextPart(text)
            for call in turn.calls:
                yield ToolCallPart(call.tool, spoken(call.arguments, scene.words), tool_call_id=current_port().new_id())
        elif wanted.output_tools and (turn.output is not None or not wanted.allow_text_output):
            tool = wanted.output_tools[0]
            value = self._output(turn, text, scene, tool.parameters_json_schema)
            yield ToolCallPart(tool.name, value, tool_call_id=current_port().new_id())
        elif wanted.output_object is not None:
            value = self._output(turn, text, scene, wanted.output_object.json_schema)
            yield TextPart(to_json(value).decode())
        else:
            yield TextPart(to_json(spoken(turn.output, scene.words)).decode() if text is None else text)

    def _output(self, turn: Turn, text: str | None, scene: Scene, schema: dict[str, Any]) -> Any:
        if turn.output is not None:
            return spoken(turn.output, scene.words)
        try:
            return Filler(schema, text or "", scene.instructions).value()
        except (ValueError, LookupError) as exc:
            raise ScriptError(f"no output can be made up: {exc}; give the turn an `output`", self.model_name) from exc


def _match(rule: Rule, text: str, tools: set[str]) -> dict[str, Any] | None:
    """Return what a rule has found in the user's words; None if it does not fit."""
    if not tools.issuperset(rule.tools):
        return None
    found = re.search(rule.when, text, re.IGNORECASE)
    return None if found is None else {name: value for name, value in found.groupdict().items() if value is not None}


def _instructions(messages: list[ModelMessage], wanted: ModelRequestParameters) -> str:
    """Return the latest instructions: of the request itself, or of the last message that has some."""
    if wanted.instruction_parts:
        return "\n\n".join(part.content for part in wanted.instruction_parts)
    said = (getattr(message, "instructions", None) for message in reversed(messages))
    return next((text for text in said if text), "")
