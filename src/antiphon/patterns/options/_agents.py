"""AgentPolicy: an agent of a cast decides with its model, one request a step. What it calls, the executor runs.

The observations are the prompt, in the dialect of Pydantic AI, and the answer is the decision: so nothing is said twice, and
the calls of a model are run, limited and recorded like those of any other policy.
"""

from __future__ import annotations

from typing import Any, cast

from pydantic_ai.direct import model_request
from pydantic_ai.messages import InstructionPart, ModelMessagesTypeAdapter, ModelResponse
from pydantic_ai.models import ModelRequestParameters
from pydantic_ai.tools import ToolDefinition

from antiphon.agents.durability._prices import price_of
from antiphon.agents.durability._talk import say
from antiphon.messages import Conversation, Message, Tool, current_port, thaw
from antiphon.patterns.cast import Cast, ask_in_turn, model_messages
from antiphon.patterns.options._choices import Choices

__all__ = ["AgentPolicy"]


class AgentPolicy:
    """Decides as an agent does."""

    def __init__(self, members: Cast, name: str) -> None:
        """Take an agent.

        Raises:
            CastError: there is none of the name.
        """
        self._cast = members
        self._spec = members.spec(name)
        self.__name__ = name
        self.__doc__ = self._spec.instructions

    async def __call__(self, observations: Conversation, choices: Choices) -> list[Message]:
        """Return what the model says and chooses.

        Raises:
            RefusedError: its models do not answer, after all patience.
        """
        spec = self._spec
        prompt = model_messages(observations, spec.name)
        tools = [_definition(tool) for tool in choices.tools]
        parts = [InstructionPart(content=spec.instructions)] if spec.instructions else []
        parameters = ModelRequestParameters(function_tools=tools, instruction_parts=parts)

        async def ask(model: str | None) -> ModelResponse:
            held = self._cast.model(model)
            return await model_request(held, prompt, model_settings=spec.settings, model_request_parameters=parameters)

        return _decided(await ask_in_turn(spec.models, ask, self._cast.patience, who=spec.name))


def _definition(tool: Tool) -> ToolDefinition:
    return ToolDefinition(name=tool.name, description=tool.description, parameters_json_schema=thaw(tool.parameters))


def _decided(response: ModelResponse) -> list[Message]:
    """Return an answer as messages, under ids of their own: the same words said twice are two messages."""
    units = cast("list[dict[str, Any]]", ModelMessagesTypeAdapter.dump_python([response], mode="json"))
    messages = say(units[0], price_of(response))
    return [message.model_copy(update={"id": current_port().new_id()}) for message in messages]
