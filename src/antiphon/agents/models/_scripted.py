"""ScriptedModel: a Pydantic AI model that answers from a script. It needs no key and no network, and answers at once.

The answer depends only on the conversation. The same conversation gets the same answer in every process, so a run gives the
same result after a crash as without one. Ids and times come from the port.

If a script gives no answer and a structured output is required, `Filler` makes the smallest value that the JSON schema allows,
with one text for every string. Two rules make it useful: a default is used, and among enumerated words it chooses the one
after the word that the instructions name, so that phases and stages advance.
"""

from __future__ import annotations

import math
import re
from collections.abc import AsyncGenerator, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import datetime
from functools import cache
from pathlib import Path
from typing import Any, cast

from pydantic_ai import RunContext
from pydantic_ai.messages import (
    ModelMessage,
    ModelResponse,
    ModelResponsePart,
    ModelResponseStreamEvent,
    TextPart,
    ToolCallPart,
)
from pydantic_ai.models import Model, ModelRequestParameters, StreamedResponse
from pydantic_ai.profiles import ModelProfile
from pydantic_ai.settings import ModelSettings
from pydantic_ai.usage import RequestUsage
from pydantic_core import to_json
from typing_extensions import override

from antiphon.agents.models._script import Rule, Scene, Script, Turn, filled, load_script, scene_of
from antiphon.errors import ModelError
from antiphon.messages import current_port
from antiphon.messages._json_values import as_text

# ---------------------------------------------------------------- a value for a schema

_DEEPEST = 24
"""The depth of a recursive schema beyond which it counts as having no finite value."""
_FORMATS = {
    "date-time": "1970-01-01T00:00:00Z",
    "date": "1970-01-01",
    "time": "00:00:00Z",
    "duration": "PT0S",
    "email": "scripted@example.com",
    "uri": "https://example.com/scripted",
    "uuid": "00000000-0000-0000-0000-000000000000",
    "ipv4": "192.0.2.1",
    "ipv6": "2001:db8::1",
    "binary": "",
}

_Schema = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Filler:
    """Makes a value for one schema."""

    root: _Schema
    text: str
    """The text of every string."""
    instructions: str = ""

    def value(self) -> Any:
        """Return a value for the whole schema.

        Raises:
            ValueError: there is no finite value: the schema refers to itself without end.
        """
        return self._of(self.root, 0)

    def _of(self, schema: Any, depth: int) -> Any:
        if depth > _DEEPEST:
            raise ValueError("the schema refers to itself without end")
        if not isinstance(schema, Mapping):  # True: anything
            return self.text
        merged = self._merged(cast("_Schema", schema))
        if "default" in merged:
            return merged["default"]
        if "const" in merged:
            return merged["const"]
        if "enum" in merged:
            return self._choice(merged["enum"])
        for several in ("anyOf", "oneOf"):
            if several in merged:
                return self._first_that_ends(merged[several], depth)
        return self._typed(merged, depth)

    def _merged(self, schema: _Schema) -> _Schema:
        """Return a schema with its references and its `allOf` merged."""
        merged = {key: value for key, value in schema.items() if key not in ("$ref", "allOf")}
        if "$ref" in schema:
            merged = {**self._referred(schema["$ref"]), **merged}
        for part in schema.get("allOf", ()):
            merged = {**self._merged(part), **merged}
        return merged

    def _referred(self, ref: str) -> _Schema:
        target: Any = self.root
        for step in ref.removeprefix("#").split("/")[1:]:
            target = target[step.replace("~1", "/").replace("~0", "~")]
        return self._merged(target)

    def _choice(self, values: Sequence[Any]) -> Any:
        for place, value in enumerate(values):
            if isinstance(value, str) and value and re.search(rf"\b{re.escape(value)}\b", self.instructions, re.IGNORECASE):
                return values[min(place + 1, len(values) - 1)]
        return values[0]

    def _first_that_ends(self, variants: Sequence[Any], depth: int) -> Any:
        for variant in variants:
            try:
                return self._of(variant, depth + 1)
            except ValueError:
                continue
        raise ValueError("the schema refers to itself without end")

    def _typed(self, schema: _Schema, depth: int) -> Any:
        kind: Any = schema.get("type", "object" if "properties" in schema else "string")
        name: str = kind if isinstance(kind, str) else kind[0]
        match name:
            case "object":
                properties = schema.get("properties", {})
                return {name: self._of(properties.get(name, True), depth + 1) for name in schema.get("required", ())}
            case "array":
                before: list[Any] = [self._of(item_schema, depth + 1) for item_schema in schema.get("prefixItems", ())]
                missing = max(schema.get("minItems", 0) - len(before), 0)
                return before + [self._of(schema.get("items", True), depth + 1) for _ in range(missing)]
            case "integer":
                return math.ceil(_number(schema))
            case "number":
                return _number(schema)
            case "boolean":
                return False
            case "null":
                return None
            case _:
                if schema.get("format") in _FORMATS:
                    return _FORMATS[schema["format"]]
                return self.text[: schema.get("maxLength")].ljust(schema.get("minLength", 0), ".")


def _number(schema: _Schema) -> float:
    """Return the middle of the allowed range; for a half-open range, the value nearest to zero."""
    low: float = schema.get("minimum", schema.get("exclusiveMinimum", -math.inf))
    high: float = schema.get("maximum", schema.get("exclusiveMaximum", math.inf))
    if math.isfinite(low) and math.isfinite(high):
        return (low + high) / 2
    return max(low + ("exclusiveMinimum" in schema), min(high - ("exclusiveMaximum" in schema), 0))


# ---------------------------------------------------------------- the stream

_WORD = re.compile(r"\S+\s*|\s+")
_STRETCH = re.compile(r"(?s).{1,12}")
"""Splits a call's arguments into pieces: JSON need not have spaces."""


@dataclass
class ScriptedStream(StreamedResponse):
    """A complete answer, streamed in pieces."""

    answer: ModelResponse

    def __post_init__(self) -> None:
        self._usage += self.answer.usage

    @override
    async def _get_event_iterator(self) -> AsyncGenerator[ModelResponseStreamEvent]:
        for place, part in enumerate(self.answer.parts):
            if isinstance(part, TextPart):
                for piece in _WORD.findall(part.content):
                    for event in self._parts_manager.handle_text_delta(vendor_part_id=place, content=piece):
                        yield event
            elif isinstance(part, ToolCallPart):
                name: str | None = part.tool_name
                for piece in _STRETCH.findall(part.args_as_json_str()):
                    for event in self._parts_manager.handle_tool_call_delta_events(
                        vendor_part_id=place, tool_name=name, args=piece, tool_call_id=part.tool_call_id
                    ):
                        yield event
                    name = None  # a reader would concatenate pieces of a name

    @override
    async def close_stream(self) -> None:
        """Nothing to close."""

    @property
    @override
    def model_name(self) -> str:
        return self.answer.model_name or ""

    @property
    @override
    def provider_name(self) -> str | None:
        return self.answer.provider_name

    @property
    @override
    def provider_url(self) -> None:
        return None

    @property
    @override
    def timestamp(self) -> datetime:
        return self.answer.timestamp


# ---------------------------------------------------------------- the model


@cache
def _default_script() -> Script:
    return load_script(Path(__file__).with_name("default_script.toml"))


class ScriptedModel(Model[None]):
    """A model that answers from a script; the default script has a few rules that demonstrate tools and phases."""

    _renders_retry_feedback = True  # a refused answer is not a new message of the user

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
        _, prepared = self.prepare_request(model_settings, model_request_parameters)
        return self._answer(messages, prepared)

    @override
    @asynccontextmanager
    async def request_stream(
        self,
        messages: list[ModelMessage],
        model_settings: ModelSettings | None,
        model_request_parameters: ModelRequestParameters,
        run_context: RunContext[object] | None = None,
    ) -> AsyncGenerator[StreamedResponse]:
        _, prepared = self.prepare_request(model_settings, model_request_parameters)
        yield ScriptedStream(prepared, self._answer(messages, prepared))

    def _answer(self, messages: list[ModelMessage], parameters: ModelRequestParameters) -> ModelResponse:
        scene = scene_of(messages, _instructions(messages, parameters))
        turn, scene = self._turn(scene, {tool.name for tool in parameters.function_tools})
        return ModelResponse(
            parts=list(self._parts(turn, scene, parameters)),
            usage=RequestUsage(input_tokens=turn.input_tokens, output_tokens=turn.output_tokens),
            model_name=self.model_name,
            provider_name=self.system,
            timestamp=current_port().now(),
        )

    def _turn(self, scene: Scene, tools: set[str]) -> tuple[Turn, Scene]:
        """Return the next turn, with the matches of its rule."""
        if self.script.turns:
            return self._at(scene.answers, self.script.turns, scene, "turns"), scene
        for number, rule in enumerate(self.script.rules):
            words = _match(rule, scene.text, tools)
            if words is not None:
                turn = self._at(scene.answered, rule.turns, scene, f"rules.{number}.turns")
                return turn, scene.knowing(words)
        raise ModelError(f"no rule fits what was said: {scene.text[:200]!r}; add one with an empty `when`", self.model_name)

    def _at(self, place: int, turns: tuple[Turn, ...], scene: Scene, where: str) -> Turn:
        if place < len(turns):
            return turns[place]
        why = f"; the answer before was refused: {scene.refusal}" if scene.refusal else ""
        raise ModelError(f"there are {len(turns)} turns, and one more is asked for{why}", self.model_name, where=where)

    def _parts(self, turn: Turn, scene: Scene, parameters: ModelRequestParameters) -> Iterator[ModelResponsePart]:
        text = None if turn.text is None else as_text(filled(turn.text, scene.words))
        if turn.calls:
            if text is not None:
                yield TextPart(text)
            for call in turn.calls:
                yield ToolCallPart(call.tool, filled(call.arguments, scene.words), tool_call_id=current_port().new_id())
        elif parameters.output_tools and (turn.output is not None or not parameters.allow_text_output):
            tool = parameters.output_tools[0]
            value = self._output(turn, text, scene, tool.parameters_json_schema)
            yield ToolCallPart(tool.name, value, tool_call_id=current_port().new_id())
        elif parameters.output_object is not None:
            value = self._output(turn, text, scene, parameters.output_object.json_schema)
            yield TextPart(to_json(value).decode())
        else:
            yield TextPart(to_json(filled(turn.output, scene.words)).decode() if text is None else text)

    def _output(self, turn: Turn, text: str | None, scene: Scene, schema: dict[str, Any]) -> Any:
        if turn.output is not None:
            return filled(turn.output, scene.words)
        try:
            return Filler(schema, text or "", scene.instructions).value()
        except (ValueError, LookupError) as exc:
            raise ModelError(f"no output can be made up: {exc}; give the turn an `output`", self.model_name) from exc


def _match(rule: Rule, text: str, tools: set[str]) -> dict[str, Any] | None:
    """Return the matches of a rule in the user's text; None if it does not match."""
    if not tools.issuperset(rule.tools):
        return None
    match = re.search(rule.when, text, re.IGNORECASE)
    return None if match is None else {name: value for name, value in match.groupdict().items() if value is not None}


def _instructions(messages: list[ModelMessage], parameters: ModelRequestParameters) -> str:
    """Return the latest instructions: of the request itself, or of the last message that has some."""
    if parameters.instruction_parts:
        return "\n\n".join(part.content for part in parameters.instruction_parts)
    texts = (getattr(message, "instructions", None) for message in reversed(messages))
    return next((text for text in texts if text), "")
