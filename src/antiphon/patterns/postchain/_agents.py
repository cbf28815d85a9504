"""The manager of a phase's agent, which runs the agent durably and retries providers; and the supervisor of the managers.

A busy or failing provider is asked again after a delay, then the fallback is asked. If that fails too, the request stays open
and the thread stops until it is resumed; a client that asks an agent directly gets an error. If the agent itself fails,
because its model gives no valid answer, the manager answers with an error: the phase notifies the supervisor, which restarts
it.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import Any, TypeAlias

from pydantic_ai.messages import ModelMessage, ModelResponse, ToolCallPart, ToolReturnPart, UserContent
from pydantic_core import to_json, to_jsonable_python

from antiphon import protocol
from antiphon.agents import ledger_run
from antiphon.agents.toolkit.taint import Taint, taint_scope, untrusted_source
from antiphon.errors import RefusedError, StoppedError, WithdrawnError
from antiphon.messages import Conversation, DataPart, Json, MediaPart, Message, PartsPayload, thaw
from antiphon.patterns.cast import RESTS, Answer, Hear, left_open, model_messages, read_history, user_content
from antiphon.patterns.postchain._chain import Chain, ChainEvent
from antiphon.patterns.postchain._config import (
    PROMPT,
    RecordedAgent,
    cut,
    cut_values,
    prompt_digest,
    prompt_name,
    recorded_prompt,
)
from antiphon.patterns.postchain._context import agent_of, phase_of_agent
from antiphon.patterns.postchain._outputs import OUTPUT_TOOL, TYPED, FormRequest, ToldSources, recorded, text_of
from antiphon.patterns.postchain._retrieval import QUOTED, brief
from antiphon.runtime import Actor, Context, Supervisor, handles

AskedAgent: TypeAlias = protocol.ProcessWithAgent | protocol.InvokeAgent
"""A request to an agent."""


class SupervisorActor(Supervisor):
    """The supervisor of a chain's agents."""

    @handles
    async def note(self, error: protocol.Error, context: Context) -> protocol.ErrorAcknowledged:
        """Accept an error report that is not a failure of a child: it is only recorded."""
        return protocol.ErrorAcknowledged(actor_id=context.message.policy, action_taken="ignore", error_logged=True)


_SAID, _SHOWN = 0.5, 0.8
"""The confidence of a text answer to a direct request: by a model alone, and with a tool result."""
_CONFIGS = 1_000
"""How many parsed configurations are cached."""
_CALLS = 100
"""How many tool calls are passed on; the ledger has all of them."""


class AgentManagerActor(Actor):
    """Manages the agent of one phase, for one thread or for direct questions."""

    concurrency = 1000

    def __init__(self, chain: Chain) -> None:
        self._chain = chain

    @handles
    async def process(self, request: protocol.ProcessWithAgent, context: Context) -> protocol.AgentResponse:
        """Ask the agent."""
        began = asyncio.get_running_loop().time()
        phase = self._phase(context, request.agent_id)
        async with self._for_caller(context, phase):
            result = await self._answer(phase, request, context, self._hear(phase, context))
        context.rest()  # in a thread, it gives one answer in a turn
        return protocol.AgentResponse(result=result, processing_time=_since(began))

    @handles
    async def invoke(self, request: protocol.InvokeAgent, context: Context) -> protocol.AgentInvoked:
        """Answer as the named agent; with `stream`, send the text while it arrives."""
        began = asyncio.get_running_loop().time()
        phase = self._phase(context, request.agent_id)
        async with self._for_caller(context, phase):
            if not request.stream:
                result = await self._answer(phase, request, context, self._hear(phase, context))
            else:
                result = await self._streamed(phase, request, context)
        return protocol.AgentInvoked(agent_id=request.agent_id, result=result, processing_time=_since(began))

    @handles
    async def update(self, request: protocol.UpdateAgentConfig, context: Context) -> protocol.AgentConfigUpdated:
        """Change the configuration of the agent, from its next run on. The recorded request is the change."""
        phase = self._phase(context, request.agent_id)
        await self._chain.cast.check(phase, request.config)
        return protocol.AgentConfigUpdated(agent_id=request.agent_id)

    # ------------------------------------------------------------ answers

    def _phase(self, context: Context, agent_id: str | None) -> protocol.Phase:
        """Return the phase whose agent this manager runs.

        Raises:
            RefusedError: there is no such agent here.
        """
        phase = phase_of_agent(context.address, self._chain.order)
        if phase is None:
            raise RefusedError(f"no phase has an agent {context.address!r}", protocol.ErrorCode.ACTOR_NOT_FOUND)
        if agent_id is not None and agent_id != agent_of(phase):
            reason = f"the agent here is {agent_of(phase)!r}, not {agent_id!r}"
            raise RefusedError(reason, protocol.ErrorCode.VALIDATION_ERROR, details={"agent_id": agent_of(phase)})
        return phase

    async def _streamed(self, phase: protocol.Phase, request: protocol.InvokeAgent, context: Context) -> protocol.AgentResult:
        """Answer, and stream the text to the caller. Only the complete answer is recorded."""
        words: asyncio.Queue[str | None] = asyncio.Queue()

        async def tell() -> None:
            index = 0
            while (text := await words.get()) is not None:
                chunk = protocol.AgentStreamChunk(agent_id=request.agent_id, index=index, text=text)
                await context.system.tell(context.message.policy, chunk, sender=context.address)
                index += 1

        telling = asyncio.create_task(tell())
        try:  # not in a task group: it would wrap the error, which is an answer, in an ExceptionGroup
            return await self._answer(phase, request, context, words.put_nowait)
        finally:
            words.put_nowait(None)
            await telling

    def _hear(self, phase: protocol.Phase, context: Context) -> Hear | None:
        thread_id, events = context.thread_id or "", self._chain.events
        if not events.has_listener(thread_id):
            return None
        return lambda text: events.emit(ChainEvent(thread_id, "text", phase, text))

    async def _answer(
        self, phase: protocol.Phase, asked: AskedAgent, context: Context, hear: Hear | None
    ) -> protocol.AgentResult:
        """Answer a client, or the phase, whose request encloses the recorded configuration and the known information."""
        if context.thread_id is None:
            raise RefusedError("an agent works in a thread: ask it in one", protocol.ErrorCode.VALIDATION_ERROR)
        enclosed: dict[str, Any] = thaw(asked.enclosure)
        config = await self._config(phase, enclosed.get("agent"), context)
        chain, prompt = self._chain, _prompt(asked.input, enclosed.get("history", ()))
        form = _form(phase, config, asked.input, enclosed.get("sources", ()))
        history, request = await self._handed_over(enclosed.get("outside"), context.thread_id)
        async with ledger_run(context) as run:
            chain.talks.give(run, is_first=context.attempt == 1)
            async with self._unless_over(run.thread_id):
                with taint_scope(Taint()) as taint:  # untrusted content that one phase has read taints the others
                    taint.mark(enclosed.get("untrusted"))
                    for message in (*history, *request):
                        taint.mark(untrusted_source(message))
                    told = [prompt, *_attached(request)] if request else prompt
                    before = model_messages(history, phase) if len(history) else []
                    more: dict[str, Any] = {"form": form, "history": before, "about": asked.context}
                    answer = await chain.cast.ask_phase(phase, config, told, hear, **more)
            if run.thread_id in chain.at_work:
                chain.talks.take(run)
        return _result(answer, form, taint.untrusted, prompt=_other_prompt(config, enclosed.get("agent")))

    async def _handed_over(self, outside: dict[str, str] | None, thread_id: str) -> tuple[Conversation, Conversation]:
        """Return the history from outside, and the request if it is more than text."""
        if outside is None:
            return Conversation(), Conversation()
        found = await read_history(self._chain.ledger, thread_id, until=outside["before"])
        own = outside.get("request")
        return Conversation(each for each in found if each.id != own), Conversation(each for each in found if each.id == own)

    @asynccontextmanager
    async def _unless_over(self, thread_id: str) -> AsyncGenerator[None]:
        """Refuse to wait for a person in a terminated thread.

        Raises:
            WithdrawnError: the thread is terminated, and the call would wait for a person or another program.
        """
        try:
            yield
        except RESTS:
            if await self._chain.gates.is_over(thread_id):
                raise WithdrawnError(f"thread {thread_id!r} is terminated") from None
            raise

    @asynccontextmanager
    async def _for_caller(self, context: Context, phase: protocol.Phase) -> AsyncGenerator[None]:
        """Answer a client that asks directly with an error if something outside fails: no thread runs that could be resumed.

        Raises:
            RefusedError: something outside fails.
        """
        async with left_open(context):
            try:
                yield
            except StoppedError as exc:
                if context.message.parent_id is not None:
                    raise
                details = {"agent_id": agent_of(phase), "details": exc.reason}
                raise RefusedError(exc.reason, exc.cause, details=details, retryable=True) from exc

    async def _config(self, phase: protocol.Phase, given: dict[str, Any] | None, context: Context) -> RecordedAgent:
        """Return the configuration of the agent for this run: the enclosed one, else the current one, which is recorded."""

        async def now(key: str) -> Json:
            return (await self._chain.cast.agent_config(phase)).model_dump(mode="json", exclude_unset=True)

        recorded = given if given is not None else await context.effect("config", {}, now, effects="none")
        known, key = self._chain.cast.recorded_configs, to_json(recorded)
        if key not in known:
            config = RecordedAgent.model_validate(recorded)
            if config.prompt is not None and config.system_prompt is None:
                text = await self._prompt_text(config.prompt, context.thread_id or "")
                if text is None:
                    return await self._with_current_prompt(phase, config)
                config = config.model_copy(update={"system_prompt": text})
            if len(known) >= _CONFIGS:
                known.clear()
            known[key] = config
        return known[key]

    async def _prompt_text(self, name: str, thread_id: str) -> str | None:
        """Return the text of a prompt; None if it is neither the current one nor in the thread."""
        prompts = self._chain.cast.prompts
        if name not in prompts and (found := await recorded_prompt(self._chain.ledger, thread_id, name)) is not None:
            prompts[name] = found
        return prompts.get(name)

    async def _with_current_prompt(self, phase: protocol.Phase, config: RecordedAgent) -> RecordedAgent:
        """Return a configuration with the current prompt: the prompt was changed before the first model request."""
        cast_ = self._chain.cast
        now = cast_.own_config(phase) if phase not in protocol.PHASES else await cast_.agent_config(phase)
        text = now.system_prompt or ""
        name = prompt_name(phase, text) if phase in protocol.PHASES else f"{phase}@{prompt_digest(text)}"
        return config.model_copy(update={"system_prompt": text, PROMPT: name})


def _prompt(input: str, history: Sequence[Mapping[str, str]]) -> str:
    """Return the prompt, after the history."""
    if not history:
        return input
    said = "\n".join(f"{turn['role']}: {turn['content']}" for turn in history)
    return f"Earlier in this conversation:\n{said}\n\n{input}"


def _attached(request: Iterable[Message]) -> list[UserContent]:
    """Return the media and data of a request; its text is in the prompt."""
    parts = tuple(part for each in request for part in each.parts if isinstance(part, DataPart | MediaPart))
    return list(user_content(Message(policy="user", payload=PartsPayload(parts=parts)))) if parts else []


def _form(phase: protocol.Phase, config: RecordedAgent, input: str, places: Any) -> FormRequest | None:
    """Return the output that an agent must give; None: text. Only a phase records that its agent gives a typed output."""
    if config.outputs not in (TYPED, QUOTED) or phase not in protocol.PHASES:
        return None
    return FormRequest(phase, ToldSources.read(input, places), is_choice=config.outputs == QUOTED)


def _other_prompt(config: RecordedAgent, planned: dict[str, Any] | None) -> str | None:
    """Return the name of the prompt that an agent got, if it differs from the one that the phase has recorded."""
    return config.prompt if planned is not None and config.prompt != planned.get(PROMPT) else None


def _result(
    answer: Answer[Any], form: FormRequest | None, untrusted: str | None, *, prompt: str | None
) -> protocol.AgentResult:
    messages = answer.run.new_messages()
    calls = _calls(messages)
    used = answer.run.usage
    extra: dict[str, Any] = {
        "model": next((each.model_name for each in reversed(messages) if isinstance(each, ModelResponse)), None)
        or answer.model
        or "",
        "input_tokens": used.input_tokens,
        "output_tokens": used.output_tokens,
    }
    if untrusted is not None:
        extra["untrusted"] = untrusted
    if prompt is not None:
        extra[PROMPT] = prompt
    called = tuple(protocol.ToolCall(**call) for call in calls[:_CALLS])
    if form is not None:
        text, more = recorded(answer.output, form)
        confidence = more.get("judgement", {}).get("confidence")  # without one, the phase decides
        return protocol.AgentResult(response=cut(text), confidence=confidence, tool_calls=called, **extra, **more)
    if not isinstance(answer.output, str):
        extra["data"] = to_jsonable_python(answer.output, fallback=str)
    confidence = _SHOWN if any("result" in call for call in calls) else _SAID
    return protocol.AgentResult(response=cut(text_of(answer.output)), confidence=confidence, tool_calls=called, **extra)


def _calls(messages: list[ModelMessage]) -> list[dict[str, Any]]:
    """Return the tool calls in order, each with its result; a refused or failed call has none.

    A model may reuse an id in a later answer: a result belongs to the latest call of its id. The call with which a model gives
    its output is not a tool call.
    """
    calls: list[dict[str, Any]] = []
    waiting: dict[str, dict[str, Any]] = {}
    for part in (part for message in messages for part in message.parts):
        if isinstance(part, ToolCallPart):
            if part.tool_name.startswith(OUTPUT_TOOL):
                continue
            arguments = cut_values(part.args_as_dict())
            waiting[part.tool_call_id] = {"id": part.tool_call_id, "name": part.tool_name, "arguments": arguments}
            calls.append(waiting[part.tool_call_id])
        elif isinstance(part, ToolReturnPart) and part.outcome == "success" and part.tool_call_id in waiting:
            waiting[part.tool_call_id]["result"] = brief(part.content)
    return calls


def _since(began: float) -> float:
    return round(asyncio.get_running_loop().time() - began, 6)
