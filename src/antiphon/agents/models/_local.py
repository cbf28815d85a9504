"""LocalModel: a real language model on this machine, used through the OpenAI client.

A model in a GGUF file of the user is used like any other. The rest of this text is about the pinned model.

The model is small, so it gets help. It never calls a tool on its own, and its server enforces either tools or the schema of an
answer, not both. So an answer has two steps: after the user's message, it must call one of the tools, if there are any; after
a tool's result, it must answer, in the requested form. `tool_choice` overrides this.

The server converts a schema to a grammar, and the model must follow it. `BoundedSchema` prevents two problems. A text without
a maximum length continues until the answer is cut off, and then is not JSON. And grammars cannot bound fractions: so a number
between two bounds becomes a choice of some numbers between them.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from types import TracebackType
from typing import Any, Self, cast

from anyio import to_thread
from pydantic_ai import RunContext
from pydantic_ai.exceptions import ModelConnectionError
from pydantic_ai.messages import (
    ModelMessage,
    ModelRequest,
    ModelResponse,
    TextPart,
    ToolCallPart,
    ToolReturnPart,
    UserPromptPart,
)
from pydantic_ai.models import CompletedStreamedResponse, Model, ModelRequestParameters, StreamedResponse
from pydantic_ai.models.openai import OpenAIChatModel
from pydantic_ai.models.wrapper import WrapperModel
from pydantic_ai.profiles import JsonSchemaTransformer
from pydantic_ai.profiles.openai import OpenAIModelProfile
from pydantic_ai.providers.openai import OpenAIProvider
from pydantic_ai.settings import ModelSettings, merge_model_settings
from pydantic_core import to_json
from typing_extensions import override

from antiphon.agents.models._local_server import CONTEXT, USER_MODEL_CONTEXT, Endpoint, LocalServer, shared_server
from antiphon.messages import current_port

# ---------------------------------------------------------------- schemas

_LONGEST_TEXT = 200
_MOST_ITEMS = 4
_STEPS = 20
"""The number of steps into which a range of fractions is divided."""


class BoundedSchema(JsonSchemaTransformer):
    """A schema in which every text and list has a maximum length, every number has bounds, and references are inlined.

    A grammar does not follow references, so a referenced schema would not be enforced.
    """

    def __init__(self, schema: dict[str, Any], *, strict: bool | None = None) -> None:
        super().__init__(schema, strict=strict, prefer_inlined_defs=True)

    @override
    def transform(self, schema: dict[str, Any]) -> dict[str, Any]:
        match schema.get("type"):
            case "string" if not schema.keys() & {"enum", "const", "pattern", "format"}:
                return {**schema, "maxLength": min(schema.get("maxLength", _LONGEST_TEXT), _LONGEST_TEXT)}
            case "array":
                most = max(_MOST_ITEMS, schema.get("minItems", 0))
                return {**schema, "maxItems": min(schema.get("maxItems", most), most)}
            case "number":
                return _steps(schema)
            case _:
                return schema


def _steps(schema: dict[str, Any]) -> dict[str, Any]:
    low = schema.get("minimum", schema.get("exclusiveMinimum"))
    high = schema.get("maximum", schema.get("exclusiveMaximum"))
    if low is None or high is None or "enum" in schema or "const" in schema:
        return schema
    first, last = int("minimum" not in schema), _STEPS + int("maximum" in schema)
    values = [round(low + (high - low) * step / _STEPS, 12) for step in range(first, last)]
    return {"enum": values, **{key: schema[key] for key in ("title", "description") if key in schema}}


# ---------------------------------------------------------------- the model

_NOWHERE = Endpoint("http://127.0.0.1:9", "none")
"""The address until there is a server; nothing is sent to it."""
_SETTINGS = ModelSettings(temperature=0, max_tokens=512, timeout=300, max_retries=0)
_USER_MODEL_SETTINGS = ModelSettings(temperature=0, timeout=600, max_retries=0)
_NO_KEEP_ALIVE = {"Connection": "close"}
"""No keep-alive: a program that does not enter the model would leave connections open. A new local one costs nothing."""
_PROFILE = OpenAIModelProfile(
    context_window=CONTEXT,
    default_structured_output_mode="native",
    json_schema_transformer=BoundedSchema,
    openai_chat_supports_max_completion_tokens=False,
    openai_supports_strict_tool_definition=False,
    supports_forced_tool_choice=True,
    supports_json_object_output=True,
    supports_json_schema_output=True,
)
_USER_MODEL_PROFILE = OpenAIModelProfile(
    context_window=USER_MODEL_CONTEXT,
    openai_chat_supports_max_completion_tokens=False,
    openai_supports_strict_tool_definition=False,
    supports_forced_tool_choice=True,
    supports_json_object_output=True,
    supports_json_schema_output=True,
)


class _LocalProvider(OpenAIProvider):
    """Uses OpenAI's protocol under another name, so that records and prices do not treat it as OpenAI."""

    @property
    @override
    def name(self) -> str:
        return "local"


class LocalModel(WrapperModel):
    """A small language model in a server process, which is started, watched and stopped automatically."""

    def __init__(
        self, *, settings: ModelSettings | None = None, server: LocalServer | None = None, weights: Path | None = None
    ) -> None:
        """Make it; no server is started yet. `weights` is a GGUF file; the default is the pinned model."""
        self.server = server or shared_server(weights)
        """The server process of the model, shared by all local models of this process with the same weights."""
        self.is_pinned = self.server.weights is None
        """Whether it is the pinned model, which is too small to write prose or to call a tool on its own."""
        self._settings = merge_model_settings(_SETTINGS if self.is_pinned else _USER_MODEL_SETTINGS, settings)
        super().__init__(self._client(_NOWHERE))
        self._endpoint = _NOWHERE
        self._entered: list[Model] = []

    @override
    async def __aenter__(self) -> Self:
        await self._connect()
        self._entered.append(self.wrapped)  # which may be replaced before the exit
        await self.wrapped.__aenter__()
        return self

    @override
    async def __aexit__(
        self, exc_type: type[BaseException] | None, exc_val: BaseException | None, exc_tb: TracebackType | None
    ) -> bool | None:
        return await self._entered.pop().__aexit__(exc_type, exc_val, exc_tb)

    @override
    async def request(
        self,
        messages: list[ModelMessage],
        model_settings: ModelSettings | None,
        model_request_parameters: ModelRequestParameters,
    ) -> ModelResponse:
        step = self._step(messages, model_settings, model_request_parameters)
        if (only := self._only_answer(*step)) is not None:
            return only
        asked = await self._connect()
        try:
            return await self._ask(messages, *step)
        except ModelConnectionError:
            if not await to_thread.run_sync(self.server.is_lost, asked):
                raise
        await self._connect()
        return await self._ask(messages, *step)  # the server that replaced it

    async def _ask(
        self, messages: list[ModelMessage], settings: ModelSettings, parameters: ModelRequestParameters
    ) -> ModelResponse:
        answer = await self.wrapped.request(messages, settings, parameters)
        self.server.answered()
        return answer

    @override
    @asynccontextmanager
    async def request_stream(
        self,
        messages: list[ModelMessage],
        model_settings: ModelSettings | None,
        model_request_parameters: ModelRequestParameters,
        run_context: RunContext[object] | None = None,
    ) -> AsyncGenerator[StreamedResponse]:
        settings, parameters = self._step(messages, model_settings, model_request_parameters)
        if (only := self._only_answer(settings, parameters)) is not None:
            yield CompletedStreamedResponse(only, model_request_parameters=parameters, replay_events=True)
            return
        await self._connect()
        async with self.wrapped.request_stream(messages, settings, parameters, run_context) as stream:
            yield stream
        self.server.answered()

    def _only_answer(self, settings: ModelSettings, parameters: ModelRequestParameters) -> ModelResponse | None:
        """Return the only answer that the grammar of a request allows; None if the model can choose.

        Processing the prompt would take seconds, and change nothing.
        """
        _, prepared = self.wrapped.prepare_request(settings, parameters)
        part = _only_part(prepared) if self.is_pinned else None
        if part is None:
            return None
        return ModelResponse(
            parts=[part], model_name=self.model_name, provider_name=self.system, timestamp=current_port().now()
        )

    async def _connect(self) -> Endpoint:
        """Start the server if it is not running, and point the client at it. Return its endpoint."""
        endpoint = self.server.endpoint
        if endpoint is None:
            endpoint = await to_thread.run_sync(self.server.ensure)
        if endpoint != self._endpoint:
            self._endpoint = endpoint
            self.wrapped = self._client(endpoint)
        return endpoint

    def _client(self, endpoint: Endpoint) -> OpenAIChatModel:
        provider = _LocalProvider(base_url=f"{endpoint.url}/v1", api_key=endpoint.key)
        profile = _PROFILE if self.is_pinned else _USER_MODEL_PROFILE
        return OpenAIChatModel(self.server.model_name, provider=provider, profile=profile, settings=self._settings)

    def _step(
        self, messages: Sequence[ModelMessage], settings: ModelSettings | None, parameters: ModelRequestParameters
    ) -> tuple[ModelSettings, ModelRequestParameters]:
        return _step(messages, settings, parameters) if self.is_pinned else (_alone(settings), parameters)


def _step(
    messages: Sequence[ModelMessage], settings: ModelSettings | None, parameters: ModelRequestParameters
) -> tuple[ModelSettings, ModelRequestParameters]:
    """Return a request that asks either for tools or for an answer."""
    options: dict[str, Any] = {**_alone(settings)}
    choice = options.pop("tool_choice", None)
    asked = cast("ModelSettings", options)
    tools = parameters.function_tools
    if isinstance(choice, list):
        tools = [tool for tool in tools if tool.name in choice]
    is_forced = choice == "required" or isinstance(choice, list)
    if tools and choice != "none" and (is_forced or not _has_used_tools(messages)):
        only_tools = replace(
            parameters, function_tools=tools, output_tools=[], output_object=None, output_mode="text", allow_text_output=False
        )
        return asked, only_tools
    return asked, replace(parameters, function_tools=[])


def _alone(settings: ModelSettings | None) -> ModelSettings:
    """Return settings that give a request its own connection."""
    options: dict[str, Any] = {**(settings or {})}
    options["extra_headers"] = {**options.get("extra_headers", {}), **_NO_KEEP_ALIVE}
    return cast("ModelSettings", options)


# ---------------------------------------------------------------- answers without the model


def _only_part(parameters: ModelRequestParameters) -> ToolCallPart | TextPart | None:
    """Return the only possible part of an answer: a call of the only tool, or the only output."""
    if parameters.function_tools:
        tool = parameters.function_tools[0]
        arguments = only_value(tool.parameters_json_schema) if len(parameters.function_tools) == 1 else None
        return None if arguments is None else ToolCallPart(tool.name, arguments, tool_call_id=current_port().new_id())
    value = None if parameters.output_object is None else only_value(parameters.output_object.json_schema)
    return None if value is None else TextPart(to_json(value).decode())


def only_value(schema: dict[str, Any]) -> Any:
    """Return the only value that a schema allows; None if there are several."""
    if "const" in schema:
        return schema["const"]
    if len(schema.get("enum", ())) == 1:
        return schema["enum"][0]
    properties: dict[str, Any] = schema.get("properties", {})
    if schema.get("type") != "object" or not properties or set(schema.get("required", ())) != set(properties):
        return None
    values = {name: only_value(property_schema) for name, property_schema in properties.items()}
    return None if None in values.values() else values


def _has_used_tools(messages: Sequence[ModelMessage]) -> bool:
    """Whether a tool has answered since the last message of the user."""
    for message in reversed(messages):
        for part in reversed(message.parts if isinstance(message, ModelRequest) else ()):
            if isinstance(part, ToolReturnPart) and part.outcome != "retried":
                return True
            if isinstance(part, UserPromptPart):
                return False
    return False
