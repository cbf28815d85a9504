"""The manager of a phase's agent, which runs the agent durably and retries providers; and the supervisor of the managers.

A busy or failing provider is asked again after a delay, then the fallback is asked. If that fails too, the manager answers
with an ERROR that names the class of the failure (`FailureCause`), and whether a RETRY may succeed. The phase notifies the
supervisor, which decides by these:

| cause | retryable | because |
|---|---|---|
| `provider` | yes | it is busy or fails, cannot be reached, or takes too long |
| `provider` | no | a person must fix something: a key, an account, an address, a server of another protocol |
| `request` | no | the provider refuses the request as invalid |
| `output` | unless tools have done something | a RETRY begins from the start, and would do it again |
| `tool` | if it only reads | a tool with effects may have done something before it raised |

**A RETRY continues the run of the message that failed.** Recorded answers and results count; only what failed is done again:
the request to the provider, or the call of the tool. The exception is an output that is not valid: then the whole run is new.
So no request is paid for twice, and no tool with effects starts twice.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Collection, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import Any, Literal, NamedTuple, TypeAlias, cast

from pydantic_ai.exceptions import ModelAPIError, UnexpectedModelBehavior, UserError
from pydantic_ai.messages import ModelMessage, ModelResponse, UserContent
from pydantic_core import to_json, to_jsonable_python

from antiphon import protocol
from antiphon.agents.durability._failures import failed_call, is_recorded, may_pass
from antiphon.agents.toolkit._taint import Taint, taint_scope
from antiphon.durable import LedgerRun, ledger_run
from antiphon.durable._block import retried_run
from antiphon.errors import RefusedError, StoppedError, WithdrawnError
from antiphon.messages import (
    DataPart,
    Json,
    JsonObject,
    MediaPart,
    Message,
    OptionCallPayload,
    OptionResultPayload,
    PartsPayload,
    thaw,
)
from antiphon.messages._json_values import as_text
from antiphon.patterns.cast import Answer, Patience
from antiphon.patterns.cast._cast import OnText, tool_uses
from antiphon.patterns.cast._handling import RESTS, left_open
from antiphon.patterns.cast._models import retry_after
from antiphon.patterns.cast._pattern import ThreadHistory, read_history, user_content
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
from antiphon.patterns.postchain._outputs import OUTPUT_TOOL, TYPED, FormRequest, NumberedSources, recorded
from antiphon.patterns.postchain._retrieval import QUOTED, brief
from antiphon.runtime import Actor, Context, Supervision, Supervisor, handles

FailureCause: TypeAlias = Literal["provider", "request", "output", "tool", "agent"]
"""What an agent failed at; `agent`: something else."""

AskedAgent: TypeAlias = protocol.ProcessWithAgent | protocol.InvokeAgent
"""A request to an agent."""


class SupervisorActor(Supervisor):
    """The supervisor of a chain's agents."""

    def __init__(self, supervision: Supervision, patience: Patience) -> None:
        super().__init__(supervision)
        self._patience = patience

    @handles
    async def child_failed(
        self, notification: protocol.ErrorNotification, context: Context
    ) -> protocol.ErrorAcknowledged | None:
        """Decide about a manager that hangs or has failed; or about a message that its agent could not answer.

        For a message, the decision depends only on the notification: after a crash, it is the same.
        """
        if notification.retryable is None:
            return await super().child_failed(notification, context)
        address, attempt, most = notification.actor_id, notification.attempt or 1, notification.max_attempts or 1
        may_succeed = notification.retryable and self._patience.would_wait(notification.retry_after)
        if attempt >= most or not may_succeed:
            return protocol.ErrorAcknowledged(actor_id=address, action_taken="stop", error_logged=True)
        await self.restart([address], notification.error_message, context)
        decision = protocol.ErrorAcknowledged(actor_id=address, action_taken="restart", error_logged=True)
        if cause_in(notification.details) != "provider":
            return decision
        delay = self._patience.delay(notification.retry_after, self._patience.attempts + attempt - 1)
        return decision.model_copy(update={"retry_after": delay})

    @handles
    async def note(self, error: protocol.Error, context: Context) -> protocol.ErrorAcknowledged:
        """Accept an error report that is not a failure of a child: it is only recorded."""
        return protocol.ErrorAcknowledged(actor_id=context.message.policy, action_taken="ignore", error_logged=True)


class _Retried(NamedTuple):
    """A message that is retried."""

    message_id: str
    run: str
    """The message whose run is continued: the first, or the latest RETRY after an output that was not valid."""
    failed: Collection[str]
    """The calls of tools that failed, and are made again."""


def _cause(error: BaseException | None) -> FailureCause:
    """Return what an agent failed at, if it was not its provider."""
    if isinstance(error, UnexpectedModelBehavior):
        return "output"
    if isinstance(error, ModelAPIError | UserError):
        return "request"
    return "tool" if isinstance(error, Exception) and is_recorded(error) else "agent"


def cause_in(details: object) -> object:
    """Return the cause in the details of an ERROR or an ERROR_NOTIFICATION; None if they name none."""
    return cast("Mapping[str, object]", details).get("cause") if isinstance(details, Mapping) else None


_TEXT_CONFIDENCE, _TOOL_CONFIDENCE = 0.5, 0.8
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
        self._at_work: set[str] = set()
        """The messages whose runs are active. A RETRY of one of these would do the same at the same time."""

    @handles
    async def process(self, request: protocol.ProcessWithAgent, context: Context) -> protocol.AgentResponse:
        """Ask the agent."""
        began = asyncio.get_running_loop().time()
        phase = self._phase(context, request.agent_id)
        async with self._for_caller(context, phase):
            result = await self._answer(phase, request, context, self._text_listener(phase, context))
        context.rest()  # in a thread, it gives one answer in a turn
        return protocol.AgentResponse(result=result, processing_time=_since(began))

    @handles
    async def invoke(self, request: protocol.InvokeAgent, context: Context) -> protocol.AgentInvoked:
        """Answer as the named agent; with `stream`, send the text while it arrives."""
        began = asyncio.get_running_loop().time()
        phase = self._phase(context, request.agent_id)
        async with self._for_caller(context, phase):
            if not request.stream:
                result = await self._answer(phase, request, context, self._text_listener(phase, context))
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
        """Return the phase whose agent this manager runs."""
        phase = phase_of_agent(context.address, self._chain.order)
        if phase is None:
            raise RefusedError(f"no phase has an agent {context.address!r}", protocol.ErrorCode.ACTOR_NOT_FOUND)
        if agent_id is not None and agent_id != agent_of(phase):
            reason = f"the agent here is {agent_of(phase)!r}, not {agent_id!r}"
            raise RefusedError(reason, protocol.ErrorCode.VALIDATION_ERROR, details={"agent_id": agent_of(phase)})
        return phase

    async def _streamed(self, phase: protocol.Phase, request: protocol.InvokeAgent, context: Context) -> protocol.AgentResult:
        """Answer, and stream the text to the caller. Only the complete answer is recorded."""
        texts: asyncio.Queue[str | None] = asyncio.Queue()

        async def send_chunks() -> None:
            index = 0
            while (text := await texts.get()) is not None:
                chunk = protocol.AgentStreamChunk(agent_id=request.agent_id, index=index, text=text)
                await context.system.tell(context.message.policy, chunk, sender=context.address)
                index += 1

        sending = asyncio.create_task(send_chunks())
        try:  # not in a task group: it would wrap the error, which is an answer, in an ExceptionGroup
            return await self._answer(phase, request, context, texts.put_nowait)
        finally:
            texts.put_nowait(None)
            await sending

    def _text_listener(self, phase: protocol.Phase, context: Context) -> OnText | None:
        thread_id, events = context.thread_id or "", self._chain.events
        if not events.has_listener(thread_id):
            return None
        is_again = _is_retry(context.message)

        def on_text(text: str) -> None:
            nonlocal is_again
            if is_again:
                events.emit(ChainEvent(thread_id, "text", phase, ""))  # the answer starts again
                is_again = False
            events.emit(ChainEvent(thread_id, "text", phase, text))

        return on_text

    async def _answer(
        self, phase: protocol.Phase, asked: AskedAgent, context: Context, on_text: OnText | None
    ) -> protocol.AgentResult:
        """Answer a client, or the phase, whose request encloses the recorded configuration and the known information."""
        if context.thread_id is None:
            raise RefusedError("an agent works in a thread: ask it in one", protocol.ErrorCode.VALIDATION_ERROR)
        enclosed: dict[str, Any] = thaw(asked.enclosure)
        chain, prompt = self._chain, _prompt(asked.input, enclosed.get("history", ()))
        history, request = await self._outside_history(enclosed.get("outside"), context.thread_id)
        async with self._run(context) as run:
            config = await self._config(phase, enclosed.get("agent"), run)
            form = _form(phase, config, asked.input, enclosed.get("sources", ()))
            chain.talks.give(run, is_first=not run.is_again)
            async with self._unless_over(run.thread_id):
                with taint_scope(Taint()) as taint:  # untrusted content that one phase has read taints the others
                    taint.mark(enclosed.get("untrusted"))
                    taint.mark(history.untrusted)  # the request from outside is a part of it
                    answer = await chain.cast.ask_phase(
                        phase,
                        config,
                        prompt if request is None else [prompt, *_attached(request)],
                        on_text,
                        form=form,
                        history=(history if request is None else history.without(request.id)).quoted(phase),
                        request_context=asked.context,
                    )
            if run.thread_id in chain.at_work:
                chain.talks.take(run)
        planned = enclosed.get("agent")
        other_prompt = config.prompt if planned is not None and config.prompt != planned.get(PROMPT) else None
        return _result(answer, form, taint.untrusted, prompt=other_prompt)

    async def _outside_history(self, outside: dict[str, str] | None, thread_id: str) -> tuple[ThreadHistory, Message | None]:
        """Return the history from outside, and the request in it if it is more than text."""
        if outside is None:
            return ThreadHistory(), None
        history = await read_history(self._chain.ledger, thread_id, until=outside["before"])
        return history, next((message for message in history if message.id == outside.get("request")), None)

    @asynccontextmanager
    async def _unless_over(self, thread_id: str) -> AsyncGenerator[None]:
        """Refuse to wait for a person in a terminated thread."""
        try:
            yield
        except RESTS:
            if await self._chain.gates.is_over(thread_id):
                raise WithdrawnError(f"thread {thread_id!r} is terminated") from None
            raise

    @asynccontextmanager
    async def _run(self, context: Context) -> AsyncGenerator[LedgerRun]:
        """Open the run of a message; of the message that failed, if this is a RETRY."""
        retried = await self._retried(context)
        message_id = context.course.invocation_id if retried is None else retried.message_id
        if message_id in self._at_work:
            reason = f"message {message_id!r} is still being answered"
            raise RefusedError(reason, protocol.ErrorCode.INVALID_STATE, address=context.address)
        self._at_work.add(message_id)
        try:
            is_new = retried is None or retried.run == context.course.invocation_id
            opened = ledger_run(context) if retried is None or is_new else retried_run(context, retried.run, retried.failed)
            async with opened as run:
                yield run
        finally:
            self._at_work.discard(message_id)

    async def _retried(self, context: Context) -> _Retried | None:
        """Return the message that a RETRY names, and the run to continue; None: there is nothing to continue."""
        asked = context.message.payload
        if not isinstance(asked, OptionCallPayload) or not _is_retry(context.message):
            return None
        ledger, thread_id = self._chain.ledger, context.thread_id or ""
        message_id = str(asked.arguments["original_message_id"])
        first = next(iter(await ledger.find(invocation_id=message_id, thread_id=thread_id)), None)
        if first is None:
            return None  # the RETRY brings the message with it
        tries, run, is_new, failed = {message_id}, message_id, False, list[str]()
        async for record in ledger.read(thread_id, after=first.seq):
            match record.message.payload if record.message.lane == "control" else None:
                case OptionCallPayload(
                    option_name=protocol.Retry.message_type,
                    invocation_id=invocation_id,
                    arguments={"original_message_id": str(named)},
                ) if named == message_id:
                    tries.add(invocation_id)
                    run, is_new = (invocation_id, False) if is_new else (run, False)
                case OptionResultPayload(is_error=True, invocation_id=invocation_id, result=JsonObject() as details) if (
                    invocation_id in tries
                ):
                    is_new = details.get("cause") == "output"
                    failed += [str(call)] if (call := details.get("call")) is not None else []
                case _:
                    pass
        return _Retried(message_id, run, failed)

    @asynccontextmanager
    async def _for_caller(self, context: Context, phase: protocol.Phase) -> AsyncGenerator[None]:
        """Answer with an error that says what failed. A spent budget is none in a thread: there the message stays open."""
        async with left_open(context):
            try:
                yield
            except StoppedError as exc:
                if context.message.parent_id is not None and exc.cause != protocol.ErrorCode.AGENT_ERROR:
                    raise
                details: dict[str, Any] = {"agent_id": agent_of(phase), "details": exc.reason, "cause": "provider"}
                if (seconds := retry_after(exc.__cause__)) is not None:
                    details["retry_after"] = seconds
                # A response in another protocol was asked for again by the run itself: a RETRY would multiply that.
                is_foreign = isinstance(exc.__cause__, UnexpectedModelBehavior)
                retryable = isinstance(exc.__cause__, Exception) and not is_foreign and may_pass(exc.__cause__)
                raise RefusedError(exc.reason, exc.cause, details=details, retryable=retryable) from exc
            except RefusedError as exc:
                if exc.code != protocol.ErrorCode.AGENT_ERROR:
                    raise
                call = failed_call(exc.__cause__)
                details = {**cast("dict[str, Any]", exc.details or {}), "cause": _cause(exc.__cause__)}
                details |= {} if call is None else {"call": call}
                retryable = exc.retryable or call is not None
                raise RefusedError(exc.reason, exc.code, details=details, retryable=retryable) from exc

    async def _config(self, phase: protocol.Phase, enclosed: dict[str, Any] | None, run: LedgerRun) -> RecordedAgent:
        """Return the configuration of the agent for this run: the enclosed one, else the current one, which is recorded."""

        async def current(key: str) -> Json:
            return (await self._chain.cast.agent_config(phase)).model_dump(mode="json", exclude_unset=True)

        recorded = enclosed if enclosed is not None else await run.effect("config", {}, current, effects="none")
        configs, key = self._chain.cast.recorded_configs, to_json(recorded)
        if key not in configs:
            config = RecordedAgent.model_validate(recorded)
            if config.prompt is not None and config.system_prompt is None:
                text = await self._prompt_text(config.prompt, run.thread_id)
                if text is None:
                    return await self._with_current_prompt(phase, config)
                config = config.model_copy(update={"system_prompt": text})
            if len(configs) >= _CONFIGS:
                configs.clear()
            configs[key] = config
        return configs[key]

    async def _prompt_text(self, name: str, thread_id: str) -> str | None:
        """Return the text of a prompt; None if it is neither the current one nor in the thread."""
        prompts = self._chain.cast.prompts
        if name not in prompts and (text := await recorded_prompt(self._chain.ledger, thread_id, name)) is not None:
            prompts[name] = text
        return prompts.get(name)

    async def _with_current_prompt(self, phase: protocol.Phase, config: RecordedAgent) -> RecordedAgent:
        """Return a configuration with the current prompt: the prompt was changed before the first model request."""
        if phase in protocol.PHASES:
            text = (await self._chain.cast.agent_config(phase)).system_prompt or ""
            name = prompt_name(phase, text)
        else:
            text = self._chain.cast.own_config(phase).system_prompt or ""
            name = f"{phase}@{prompt_digest(text)}"
        return config.model_copy(update={"system_prompt": text, PROMPT: name})


def _is_retry(message: Message) -> bool:
    """Whether a supervisor asks for another attempt at a message that failed."""
    asked = message.payload
    return isinstance(asked, OptionCallPayload) and asked.option_name == protocol.Retry.message_type


def _prompt(input: str, history: Sequence[Mapping[str, str]]) -> str:
    """Return the prompt, after the history."""
    if not history:
        return input
    conversation = "\n".join(f"{turn['role']}: {turn['content']}" for turn in history)
    return f"Earlier in this conversation:\n{conversation}\n\n{input}"


def _attached(request: Message) -> list[UserContent]:
    """Return the media and data of a request; its text is in the prompt."""
    parts = tuple(part for part in request.parts if isinstance(part, DataPart | MediaPart))
    return list(user_content(Message(policy="user", payload=PartsPayload(parts=parts)))) if parts else []


def _form(phase: protocol.Phase, config: RecordedAgent, input: str, places: Any) -> FormRequest | None:
    """Return the output that an agent must give; None: text. Only a phase records that its agent gives a typed output."""
    if config.outputs not in (TYPED, QUOTED) or phase not in protocol.PHASES:
        return None
    return FormRequest(phase, NumberedSources.read(input, places), is_choice=config.outputs == QUOTED)


def _result(
    answer: Answer[Any], form: FormRequest | None, untrusted: str | None, *, prompt: str | None
) -> protocol.AgentResult:
    messages = answer.run.new_messages()
    calls = _calls(messages)
    usage = answer.run.usage
    # A field that is not set is not written: None would be.
    fields = {name: value for name, value in (("untrusted", untrusted), ("prompt", prompt)) if value is not None}
    if form is not None:
        text, typed = recorded(answer.output, form)
        confidence = typed.get("judgement", {}).get("confidence")  # without one, the phase decides
        fields |= typed
    else:
        text = as_text(answer.output)
        confidence = _TOOL_CONFIDENCE if any("result" in call for call in calls) else _TEXT_CONFIDENCE
        if not isinstance(answer.output, str):
            fields["data"] = to_jsonable_python(answer.output, fallback=str)
    model = next((message.model_name for message in reversed(messages) if isinstance(message, ModelResponse)), None)
    return protocol.AgentResult(
        response=cut(text),
        confidence=confidence,
        tool_calls=tuple(protocol.ToolCall(**call) for call in calls[:_CALLS]),
        model=model or answer.model or "",
        input_tokens=usage.input_tokens,
        output_tokens=usage.output_tokens,
    ).model_copy(update=fields)


def _calls(messages: list[ModelMessage]) -> list[dict[str, Any]]:
    """Return the tool calls in order, each with its result; a refused or failed call has none.

    The call with which a model gives its output is not a tool call.
    """
    calls: list[dict[str, Any]] = []
    for call, result in tool_uses(messages):
        if not call.tool_name.startswith(OUTPUT_TOOL):
            arguments = cut_values(call.args_as_dict())
            fields: dict[str, Any] = {"id": call.tool_call_id, "name": call.tool_name, "arguments": arguments}
            if result is not None and result.outcome == "success":
                fields["result"] = brief(result.content)
            calls.append(fields)
    return calls


def _since(began: float) -> float:
    return round(asyncio.get_running_loop().time() - began, 6)
