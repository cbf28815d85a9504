"""Model requests: concurrency, time limits, retries and fallbacks.

`HeldModel` wraps a model. A request waits for a slot after its intent was recorded, so its thread may be paused meanwhile:
then another request gets the slot, and the first waits again when the thread resumes. `ask_in_turn` retries a model where
that may help, then asks the next one; if none answers, it raises one error.

**Outside causes.** An outage of a provider, a missing or refused key, or an answer in a wrong protocol does not end the work
(`is_outside`). Then the request to the last model stays open, with a row for each failed attempt, and the caller gets a
`StoppedError`. When the thread is resumed, the same request is made again, and nothing before it. The failure of a model that
has a fallback is the outcome of its request: otherwise it would be asked again after the fallback has answered.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from typing import Any, Final, TypeVar

from pydantic import BaseModel, ConfigDict, Field
from pydantic_ai import Agent, RunContext
from pydantic_ai.exceptions import (
    AgentRunError,
    ModelAPIError,
    ModelHTTPError,
    ModelTimeoutError,
    UnexpectedModelBehavior,
    UserError,
)
from pydantic_ai.messages import ModelMessage, ModelResponse
from pydantic_ai.models import Model, ModelRequestParameters, StreamedResponse
from pydantic_ai.models.wrapper import WrapperModel
from pydantic_ai.output import OutputDataT
from pydantic_ai.settings import ModelSettings
from pydantic_ai.tools import AgentDepsT
from pydantic_ai.toolsets import AbstractToolset, CombinedToolset, PreparedToolset, ToolsetTool, WrapperToolset
from typing_extensions import override

from antiphon.agents._deeds import counting_deeds, has_deeds
from antiphon.agents.durability._failures import is_outcome, is_outside, is_recorded, is_tried, may_pass
from antiphon.durable import current_run
from antiphon.errors import (
    AntiphonError,
    DeliveryError,
    EffectFailedError,
    LedgerError,
    RefusedError,
    StoppedError,
    ToolServerError,
)
from antiphon.protocol import ErrorCode

# ---------------------------------------------------------------- retries and fallbacks


ModelT = TypeVar("ModelT")
AnswerT = TypeVar("AnswerT")

_RETRYABLE: Final = frozenset({408, 409, 425, 429, 500, 502, 503, 504, 529})
"""The status codes after which a retry may succeed."""
_KNOWN: Final = (AgentRunError, UserError, AntiphonError, ModuleNotFoundError, ValueError)
"""Errors of an agent's run, and of its construction, whose text is sufficient."""


class Patience(BaseModel):
    """Time limit, retries and concurrency of model requests."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    timeout: float = Field(default=120.0, gt=0)
    """The time limit of an answer, in seconds."""
    attempts: int = Field(default=3, ge=1)
    """How often a failing model is asked before the next model."""
    backoff: float = Field(default=0.5, ge=0)
    """Seconds before the second attempt; doubled for each further one, unless the provider sends a delay."""
    longest_backoff: float = Field(default=30.0, ge=0)
    concurrency: int = Field(default=64, ge=1)
    """The number of concurrent requests to a model, from all threads together."""

    def pause(self, error: Exception, failures: int) -> float | None:
        """Return the seconds before a request that has failed is sent again; None: it is not sent again."""
        is_useful = failures < self.attempts and may_pass(error) and self.would_wait(retry_after(error))
        return self.delay(retry_after(error), failures) if is_useful else None

    def would_wait(self, seconds: float | None) -> bool:
        """Whether a provider that names a delay is asked again: a longer delay than the longest is not waited for."""
        return seconds is None or seconds <= self.longest_backoff

    def delay(self, named: float | None, failures: int) -> float:
        """Return the seconds before the next attempt: as many as the provider has `named`, if it has."""
        return min(self.longest_backoff, self.backoff * 2 ** (failures - 1) if named is None else named)


class Outages(BaseModel):
    """How `LedgerDurability` ends a model request that fails because of something outside."""

    model_config = ConfigDict(frozen=True)

    patience: Patience
    who: str
    is_last: bool
    """Whether no other model is asked if this one fails."""

    def pause(self, error: Exception, failures: int) -> float | None:
        """Return the seconds before the model is asked again; None: it is not asked again."""
        return self.patience.pause(error, failures)

    def stop(self, error: Exception) -> StoppedError | None:
        """Return the error that leaves the request open; None: `error` is its outcome."""
        is_last = self.is_last or has_deeds()  # another model would begin from the start, and do again what tools have done
        return _stopped(error, self.who) if is_last and is_outside(error) else None


def _text_of(error: Exception) -> str:
    return str(error) if isinstance(error, _KNOWN) else f"{type(error).__qualname__}: {error}"


def _stopped(error: Exception, who: str) -> StoppedError:
    reason = _text_of(error)
    if isinstance(error, UnexpectedModelBehavior):
        reason = f"{reason.rstrip('.')}; does its server speak the protocol of this model?"
    return StoppedError(f"the model of {who!r} cannot be asked: {reason}", cause=ErrorCode.AGENT_ERROR)


async def ask_in_turn(
    models: Sequence[ModelT],
    ask: Callable[[ModelT], Awaitable[AnswerT]],
    patience: Patience,
    *,
    who: str,
    is_request: bool = False,
) -> AnswerT:
    """Ask one model after the other, with retries where that may help, and return the first answer.

    `is_request`: `ask` makes one request, and not the run of an agent, which may fail for its own reasons.

    Raises:
        RefusedError: no model answers (AGENT_ERROR); `retryable` tells whether a later attempt may succeed.
        StoppedError: no model answers, because of something outside.
        DeliveryError, LedgerError: another cause: a person must decide, the thread has ended, the disk is full.
    """
    failure: Exception = RuntimeError("there is no model")
    with counting_deeds() as deeds:
        for model in models:
            try:
                return await _asked(model, ask, patience, is_request=is_request)
            except Exception as exc:
                if not isinstance(exc, _KNOWN) and not is_recorded(exc) and not (is_request and is_outside(exc)):
                    raise
                is_about_delivery = isinstance(exc, DeliveryError) and not isinstance(exc, EffectFailedError | ToolServerError)
                if is_about_delivery or isinstance(exc, LedgerError):
                    raise  # no other model can do better
                failure = exc
            if deeds.calls:
                break  # another model would begin from the start, and do it again
    is_missing = is_outside(failure) and isinstance(failure, AntiphonError)  # a key, a package: found before any request
    is_failed_request = is_request and is_outside(failure) and not is_outcome(failure)
    if current_run() is not None and (is_missing or is_failed_request):  # otherwise nothing stays open that could be continued
        raise _stopped(failure, who) from failure
    text = _text_of(failure)
    details = {"agent_id": who, "models": [str(model or "default") for model in models], "details": text}
    reason = f"the agent cannot answer: {text}"
    retryable = _is_retryable(failure) and not deeds.calls
    raise RefusedError(reason, ErrorCode.AGENT_ERROR, details=details, retryable=retryable) from failure


async def _asked(
    model: ModelT, ask: Callable[[ModelT], Awaitable[AnswerT]], patience: Patience, *, is_request: bool
) -> AnswerT:
    attempt = 1
    while True:
        try:
            return await ask(model)
        except Exception as exc:
            is_useful = (
                may_pass(exc) and patience.would_wait(retry_after(exc))
                if is_request
                else isinstance(exc, AgentRunError) and _is_retryable(exc)
            )
            if attempt == patience.attempts or not is_useful or is_tried(exc) or has_deeds():
                raise
            await asyncio.sleep(patience.delay(retry_after(exc), attempt))
            attempt += 1


def _is_retryable(error: Exception) -> bool:
    if isinstance(error, ModelHTTPError):
        return error.status_code in _RETRYABLE
    return isinstance(error, ModelAPIError | UnexpectedModelBehavior)


def retry_after(error: BaseException | None) -> float | None:
    """Return the seconds that a provider asks to wait; None if it names none."""
    named = getattr(error, "retry_after", None)
    return float(named) if isinstance(named, int | float) else None


def _not_empty(response: ModelResponse) -> ModelResponse:
    """Return an answer, unless it is completely empty: no part, no token, no id.

    A client reads events of another protocol as such an answer. An agent would ask for an output again, and then fail.
    """
    if not response.parts and not response.usage.total_tokens and response.provider_response_id is None:
        raise UnexpectedModelBehavior("The answer has no content, no tokens and no id")
    return response


# ---------------------------------------------------------------- slots


class HeldModel(WrapperModel):
    """A model whose requests wait for a slot, and while their thread is paused."""

    def __init__(self, wrapped: Model, turns: asyncio.Semaphore, timeout: float) -> None:
        super().__init__(wrapped)
        self._turns = turns
        self._timeout = timeout

    @override
    async def request(
        self,
        messages: list[ModelMessage],
        model_settings: ModelSettings | None,
        model_request_parameters: ModelRequestParameters,
    ) -> ModelResponse:
        async with self._turn(), self._in_time():
            return _not_empty(await self.wrapped.request(messages, model_settings, model_request_parameters))

    @override
    @asynccontextmanager
    async def request_stream(
        self,
        messages: list[ModelMessage],
        model_settings: ModelSettings | None,
        model_request_parameters: ModelRequestParameters,
        run_context: RunContext[Any] | None = None,
    ) -> AsyncGenerator[StreamedResponse]:
        request = (messages, model_settings, model_request_parameters, run_context)
        async with self._turn(), self._in_time(), self.wrapped.request_stream(*request) as stream:
            yield stream
            _not_empty(stream.get())  # an error of the request, if its block has not been left

    @asynccontextmanager
    async def _in_time(self) -> AsyncGenerator[None]:
        try:
            async with asyncio.timeout(self._timeout):
                yield
        except TimeoutError as exc:
            raise ModelTimeoutError(self.model_name, f"no answer within {self._timeout:g} seconds") from exc

    @asynccontextmanager
    async def _turn(self) -> AsyncGenerator[None]:
        run = current_run()
        gates = None if run is None else run.journal.gates
        while True:
            async with self._turns:
                # Pass the gate again: the intent has passed it, but the thread may have been paused while the request waited.
                if run is None or gates is None or gates.is_open(run.thread_id):
                    yield
                    return
            await gates.passed(run.thread_id)


# ---------------------------------------------------------------- agents with typed outputs


class CastAgent(Agent[AgentDepsT, OutputDataT]):
    """An agent that looks up its output tools without an additional task.

    Pydantic AI queries the toolset of the output and the toolset of the functions concurrently, in a task group, four times in
    each run. The first one never waits, so a run with a typed output is a tenth slower than necessary. `_get_toolset` is not a
    public method: if it is missing or returns something else, the agent works as Pydantic AI makes it.
    """

    def _get_toolset(self, *args: Any, **options: Any) -> AbstractToolset[AgentDepsT]:
        toolset = super()._get_toolset(*args, **options)
        match toolset:
            case CombinedToolset(toolsets=[PreparedToolset(wrapped=AbstractToolset(id="<output>")) as outputs, functions]):
                return _WithOutputs(functions, outputs)
            case _:
                return toolset


@dataclass
class _WithOutputs(WrapperToolset[AgentDepsT]):
    """The tools of an agent, and its output tools, which are never called as tools."""

    outputs: AbstractToolset[AgentDepsT]

    @override
    async def for_run(self, ctx: RunContext[AgentDepsT]) -> AbstractToolset[AgentDepsT]:
        return replace(self, outputs=await self.outputs.for_run(ctx), wrapped=await self.wrapped.for_run(ctx))

    @override
    async def for_run_step(self, ctx: RunContext[AgentDepsT]) -> AbstractToolset[AgentDepsT]:
        outputs, wrapped = await self.outputs.for_run_step(ctx), await self.wrapped.for_run_step(ctx)
        is_same = outputs is self.outputs and wrapped is self.wrapped
        return self if is_same else replace(self, outputs=outputs, wrapped=wrapped)

    @override
    async def get_tools(self, ctx: RunContext[AgentDepsT]) -> dict[str, ToolsetTool[AgentDepsT]]:
        outputs, tools = await self.outputs.get_tools(ctx), await super().get_tools(ctx)
        if common := sorted(outputs.keys() & tools.keys()):
            raise UserError(f"a tool of the agent has the name of its output: {', '.join(common)}; rename the tool")
        return outputs | tools
