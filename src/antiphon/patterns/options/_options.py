"""Options: the options, and the policies that choose among them. A policy (a function or an agent) can also be an option.

Every option is a tool of one `Toolkit`, so arguments, permissions, approvals, timeouts and effects are handled in one
place. An option that is a policy finds the run of its caller by a context variable (`nest`).
An agent that is a policy decides with its model, one request per step (`decide_by_model`): the observations are the prompt, in
the dialect of Pydantic AI, and the answer is the decision. So the calls of a model are run, limited and recorded like all
others.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Generator, Sequence
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Any, Final, TypeAlias, TypeVar, Unpack, cast

from pydantic_ai import Tool as AgentTool
from pydantic_ai.direct import model_request, model_request_stream
from pydantic_ai.messages import InstructionPart, ModelMessagesTypeAdapter, ModelResponse
from pydantic_ai.models import Model, ModelRequestParameters
from pydantic_ai.tools import ToolDefinition

from antiphon.agents._deeds import note_deed
from antiphon.agents._observers import publish_live
from antiphon.agents._tool_names import plainly_named
from antiphon.agents.durability._model_request import note_price, permitted, price_of
from antiphon.agents.durability._talk import as_messages as answer_messages
from antiphon.agents.toolkit import Toolkit, ToolkitTool, ToolSettings
from antiphon.durable import current_run
from antiphon.messages import Conversation, Json, Message, OptionCallPayload, PartsPayload, TextPart, Tool, current_port, thaw
from antiphon.messages._arguments import check_type
from antiphon.messages._message import RESERVED_POLICIES
from antiphon.patterns.cast import AgentSpec, Cast
from antiphon.patterns.cast._models import ask_in_turn
from antiphon.patterns.cast._pattern import model_messages

# ---------------------------------------------------------------- the choices of a policy


class Choices:
    """The options of a policy at one step."""

    def __init__(self, policy: str, tools: tuple[Tool, ...]) -> None:
        self.policy = policy
        """The name of the policy."""
        self.tools = tools
        """The options: name, description, and the schema of the arguments."""

    @property
    def names(self) -> tuple[str, ...]:
        """The names of the options."""
        return tuple(tool.name for tool in self.tools)

    def call(self, option: str, /, **arguments: Json) -> Message:
        """Return a call of an option; it runs after the policy has returned it."""
        payload = OptionCallPayload(invocation_id=current_port().new_id(), option_name=option, arguments=arguments)
        return Message(policy=self.policy, payload=payload, role_hint_for_llm="assistant")

    def say(self, text: str) -> Message:
        """Return a text, to accompany calls or as the answer."""
        return Message(policy=self.policy, payload=PartsPayload(parts=(TextPart(text=text),)), role_hint_for_llm="assistant")


# ---------------------------------------------------------------- an agent as a policy


async def decide_by_model(members: Cast, spec: AgentSpec, observations: Conversation, choices: Choices) -> list[Message]:
    """Ask the model of an agent once, and return its text and calls."""
    prompt = model_messages(observations, spec.name)
    tools = [
        ToolDefinition(name=tool.name, description=tool.description, parameters_json_schema=thaw(tool.parameters))
        for tool in choices.tools
    ]
    parts = [InstructionPart(content=spec.instructions)] if spec.instructions else []
    parameters = ModelRequestParameters(function_tools=tools, instruction_parts=parts)

    async def ask(name: str | None) -> ModelResponse:
        model, run = members.model(name), current_run()
        if run is None:
            return await request(model)
        async with permitted(run, model, prompt, spec.settings) as permit:
            response = await request(model)
            note_price(permit, response)
            return response

    async def request(model: Model) -> ModelResponse:
        settings = spec.settings
        if not members.live:
            return await model_request(model, prompt, model_settings=settings, model_request_parameters=parameters)
        async with model_request_stream(model, prompt, model_settings=settings, model_request_parameters=parameters) as stream:
            async for event in stream:
                publish_live(spec.name, event)
            return stream.get()

    response = await ask_in_turn(spec.models, ask, members.patience, who=spec.name, is_request=True)
    units = cast("list[dict[str, Any]]", ModelMessagesTypeAdapter.dump_python([response], mode="json"))
    messages = answer_messages(plainly_named(units[0], choices.names), price_of(response))
    # New ids: two equal answers are two messages.
    return [message.model_copy(update={"id": current_port().new_id()}) for message in messages]


# ---------------------------------------------------------------- options and policies


FunctionT = TypeVar("FunctionT", bound=Callable[..., Any])

Decide: TypeAlias = Callable[[Conversation, Choices], Awaitable[Any] | Any]
"""A function of the observations and the choices. It returns messages (text and calls), or any other value as the answer."""

EVERYBODY: Final = ("*",)


@dataclass(frozen=True)
class Policy:
    """A function or an agent that decides."""

    name: str
    decide: Decide | None = field(default=None, repr=False, compare=False)
    """The function; None: an agent decides."""
    agent: AgentSpec | None = None
    """The agent; it uses the model of the executor, unless it names one."""


class Options:
    """Options and policies by name. Names are unique, and none is a name that the runtime uses."""

    def __init__(self, toolkit: Toolkit | None = None) -> None:
        """Make an empty collection; `toolkit` is an existing toolkit for its options."""
        self.toolkit = toolkit or Toolkit(name="options")
        self._policies: dict[str, Policy] = {}

    # ------------------------------------------------------------ options

    def add(
        self,
        function: Callable[..., Any] | AgentTool[Any],
        *,
        name: str | None = None,
        to: Sequence[str] = EVERYBODY,
        **settings: Unpack[ToolSettings],
    ) -> ToolkitTool:
        """Add a function as an option of the policies in `to`. Its type hints and docstring describe the arguments.

        By default, it is started at most once, like every tool; `effects` changes that.

        Raises:
            ValueError: the name is taken, reserved or invalid, a setting is invalid, or an argument is sensitive.
        """
        if settings.get("sensitive"):
            raise ValueError("calls are stored before they run, so none has sensitive arguments: read secrets in the option")
        _check_free(name or str(getattr(function, "name", getattr(function, "__name__", ""))))
        return self.toolkit.add(function, name=name, to=to, **settings)

    def option(
        self, *, name: str | None = None, to: Sequence[str] = EVERYBODY, **settings: Unpack[ToolSettings]
    ) -> Callable[[FunctionT], FunctionT]:
        """Add the decorated function as an option."""

        def added(function: FunctionT) -> FunctionT:
            self.add(function, name=name, to=to, **settings)
            return function

        return added

    async def tools(self) -> dict[str, ToolkitTool]:
        """Return all options, including those of tool servers."""
        async with await self.toolkit.connect():
            return await self.toolkit.tools()

    async def offered_to(self, policy: str) -> tuple[Tool, ...]:
        """Return the options of a policy."""
        async with await self.toolkit.connect():
            by_name = await self.toolkit.tools_of(policy)
        tools = sorted(by_name.values(), key=lambda tool: tool.name)
        return tuple(Tool(name=tool.name, description=tool.description, parameters=tool.parameters) for tool in tools)

    # ------------------------------------------------------------ policies

    def add_policy(
        self, decide: Decide, *, name: str | None = None, to: Sequence[str] = (), timeout: float | None = None
    ) -> Policy:
        """Add a policy. It is also an option of the policies in `to`, which call it with a `task`.

        As an option, it may run again after a crash: its own calls are recorded.

        Raises:
            ValueError: the name is taken, reserved or invalid.
        """
        policy = Policy(name or str(getattr(decide, "__name__", "")), decide)
        return self._add(policy, decide.__doc__ or "", to, timeout)

    def _add(self, policy: Policy, description: str, to: Sequence[str], timeout: float | None) -> Policy:
        _check_free(policy.name)

        async def run(task: str) -> Any:
            note_deed(policy.name)  # in a repeated run, it would do its work again
            return await nest(policy, task)

        self.toolkit.add(run, name=policy.name, description=description.strip(), to=to, effects="none", timeout=timeout)
        self._policies[policy.name] = policy
        return policy

    def policy(
        self, *, name: str | None = None, to: Sequence[str] = (), timeout: float | None = None
    ) -> Callable[[FunctionT], FunctionT]:
        """Add the decorated function as a policy."""

        def added(function: FunctionT) -> FunctionT:
            self.add_policy(function, name=name, to=to, timeout=timeout)
            return function

        return added

    def add_agent(self, spec: AgentSpec, *, to: Sequence[str] = (), timeout: float | None = None) -> Policy:
        """Add an agent as a policy, which decides with its model. The tools that it may call are the options.

        The executor sets the model of agents that name none. Add agents before the executor is opened.

        Raises:
            ValueError: as `add_policy`; or it is an existing agent, which has its own tools and its own loop.
        """
        check_type("an agent", spec, AgentSpec, 'AgentSpec(name="ada")')
        if spec.agent is not None:
            raise ValueError(
                f"{spec.name!r} exists, and a policy is only its model and instructions: give those, without agent="
            )
        return self._add(Policy(spec.name, agent=spec), spec.instructions, to, timeout)

    @property
    def agents(self) -> tuple[AgentSpec, ...]:
        """The policies that are agents."""
        return tuple(policy.agent for policy in self._policies.values() if policy.agent is not None)

    def find(self, name: str) -> Policy:
        """Return a policy by name."""
        return self._policies[name]

    @property
    def policies(self) -> tuple[str, ...]:
        """The names of the policies."""
        return tuple(self._policies)


def _check_free(name: str) -> None:
    if name in RESERVED_POLICIES:
        raise ValueError(f"{name!r} is a name that the runtime uses; choose another")


# ---------------------------------------------------------------- a policy as an option


Nest: TypeAlias = "Callable[[Policy, str], Awaitable[Any]]"
"""Runs a policy on a task, as part of the current run."""

_nest: ContextVar[Nest | None] = ContextVar("antiphon.patterns.options.nest", default=None)


async def nest(policy: Policy, task: str) -> Any:
    """Run a policy on a task as part of the current run, and return its answer."""
    run_policy = _nest.get()
    if run_policy is None:
        raise RuntimeError(f"policy {policy.name!r} is an option: it can only be called in a run of an executor")
    return await run_policy(policy, task)


@contextmanager
def nesting(run_policy: Nest) -> Generator[None]:
    """Use `run_policy` to run policies that are called as options inside the block."""
    token = _nest.set(run_policy)
    try:
        yield
    finally:
        with suppress(ValueError):  # a generator that is closed after its event loop runs in another context
            _nest.reset(token)
