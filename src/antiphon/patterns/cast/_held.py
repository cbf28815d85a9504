"""HeldModel: a model that is asked by at most so many at once, for at most so long, and by nobody whose thread is held.

A request waits for its turn after its intent was written down, so a thread may be paused meanwhile: then the turn is given to
another, and taken again when the thread goes on.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import Any, Protocol

from pydantic_ai import RunContext
from pydantic_ai.exceptions import ModelTimeoutError
from pydantic_ai.messages import ModelMessage, ModelResponse
from pydantic_ai.models import Model, ModelRequestParameters, StreamedResponse
from pydantic_ai.models.wrapper import WrapperModel
from pydantic_ai.settings import ModelSettings
from typing_extensions import override

from antiphon.agents import current_run

__all__ = ["Gate", "HeldModel"]


class Gate(Protocol):
    """What threads pass that can be held."""

    def is_open(self, thread_id: str) -> bool:
        """Whether nobody has to wait, as far as is known here."""
        ...

    async def passed(self, thread_id: str) -> None:
        """Wait until the gate of a thread is open."""
        ...


class HeldModel(WrapperModel):
    """A model whose requests wait for their turn, and for their thread."""

    def __init__(self, wrapped: Model, turns: asyncio.Semaphore, timeout: float, gate: Gate | None = None) -> None:
        super().__init__(wrapped)
        self._turns = turns
        self._timeout = timeout
        self._gate = gate

    @override
    async def request(
        self,
        messages: list[ModelMessage],
        model_settings: ModelSettings | None,
        model_request_parameters: ModelRequestParameters,
    ) -> ModelResponse:
        async with self._turn(), self._in_time():
            return await self.wrapped.request(messages, model_settings, model_request_parameters)

    @override
    @asynccontextmanager
    async def request_stream(
        self,
        messages: list[ModelMessage],
        model_settings: ModelSettings | None,
        model_request_parameters: ModelRequestParameters,
        run_context: RunContext[Any] | None = None,
    ) -> AsyncGenerator[StreamedResponse]:
        async with self._turn(), self._in_time():
            given = messages, model_settings, model_request_parameters, run_context
            async with self.wrapped.request_stream(*given) as stream:
                yield stream

    @asynccontextmanager
    async def _in_time(self) -> AsyncGenerator[None]:
        try:
            async with asyncio.timeout(self._timeout):
                yield
        except TimeoutError as exc:
            raise ModelTimeoutError(self.model_name, f"no answer within {self._timeout:g} seconds") from exc

    @asynccontextmanager
    async def _turn(self) -> AsyncGenerator[None]:
        run, gate = current_run(), self._gate
        while True:
            async with self._turns:
                if run is None or gate is None or gate.is_open(run.thread_id):
                    yield
                    return
            await gate.passed(run.thread_id)
