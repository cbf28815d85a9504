"""PhaseActor: the common part of all phases; and phases of the program. `_phases.py` has the six phases.

An error is an answer (PHASE_PROCESSING_ERROR), not a failure of the actor, which serves many threads.

**A phase of the program** is a class with a name and a prompt, as a phase among the six phases of a chain. A thread records
the order of its phases when it is created, unless they are the six. The agent of such a phase is asked like those of the six:
with the question, the sources by number and the answer of the previous phase; and only once, even after a crash. The protocol
of Choir knows six phases, so such a chain can be used only from Python.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any, ClassVar, Final, NamedTuple, TypeAlias, cast

from pydantic import TypeAdapter
from typing_extensions import override

from antiphon import protocol
from antiphon.agents._config import known_names
from antiphon.errors import (
    AntiphonError,
    BudgetExceededError,
    ConfigError,
    HopLimitError,
    RefusedError,
    StoppedError,
    UndeliverableError,
)
from antiphon.messages import DataPart, Json, Message, OptionCallPayload, PartsPayload, thaw
from antiphon.messages._json_values import as_text
from antiphon.messages._keys import as_key, child_id, stop_id
from antiphon.patterns.cast._handling import UNHURRIED, left_open, log_unexpected
from antiphon.patterns.postchain._agents import cause_in
from antiphon.patterns.postchain._cast import GO_ON_WITH
from antiphon.patterns.postchain._chain import Chain
from antiphon.patterns.postchain._config import PROMPT, prompt_digest, prompt_in, prompt_name, prompt_text
from antiphon.patterns.postchain._context import (
    CLIENT,
    MENTIONED,
    SUPERVISOR,
    Add,
    ContextOperation,
    Item,
    OwnPhaseProcessed,
    PhasePrompt,
    PhaseWork,
    ProcessOwnPhase,
    agent_of,
    operations_to,
    phase_prompt,
)
from antiphon.patterns.postchain._lifecycle import LIFE
from antiphon.patterns.postchain._outputs import TYPED
from antiphon.patterns.postchain._retrieval import QUOTED, choice_prompt, contribution, items_given
from antiphon.protocol import PHASES
from antiphon.runtime import Actor, Context, handles
from antiphon.runtime._rows import unused

# ---------------------------------------------------------------- the common part

SCRIPTED: Final = "scripted"
"""The scripted model: it would always choose the first source, so code does."""
_PASSED_ON = {"model", "input_tokens", "output_tokens", "untrusted", "dropped", "data", "prompt"}
"""The fields of an agent's answer that are passed on besides its text."""


class DescribedAgent(NamedTuple):
    """The configuration of an agent in the form that a thread records."""

    config: protocol.AgentConfig
    agent: dict[str, Any]
    """The configuration without the text of its prompt."""
    prompt: str
    """The name of its prompt."""
    system: protocol.ChatTurn
    is_in_talk: bool
    """Whether the prompt belongs to the program, and only the talk with the model has its text: a thread has the text once."""

    @classmethod
    def of(cls, phase: protocol.Phase, config: protocol.AgentConfig) -> DescribedAgent:
        agent = config.model_dump(mode="json", exclude_unset=True)
        for name in ("outputs", "system_prompt", PROMPT):
            agent.pop(name, None)
        named = prompt_name(phase, config.system_prompt)
        if config.system_prompt is not None:
            agent[PROMPT] = named
        text = config.system_prompt or f"the agent {agent.get('own')!r} of the program"
        is_in_talk = config.system_prompt is not None and "own" not in agent and named.endswith(prompt_digest(text))
        return cls(config, agent, named, protocol.ChatTurn(role="system", content=text), is_in_talk)


class PhaseActor(Actor):
    """One of the six phases, for all threads."""

    concurrency = 10_000
    capacity = 100_000
    phase: ClassVar[protocol.Phase]

    def __init__(self, chain: Chain) -> None:
        self.chain = chain
        self._described: DescribedAgent | None = None
        """The agent of the phase in the recorded form, until its configuration changes."""

    # ------------------------------------------------------------ methods that phases override

    async def gather(self, work: PhaseWork, context: Context) -> PhaseWork:
        """Find the information for the agent; lookups are effects."""
        return work

    def prompt(self, work: PhaseWork) -> PhasePrompt:
        """Return the prompt of the agent, with its numbered sources. Threads record it: a change would be another request."""
        return phase_prompt(work, room=self.chain.config.context_limit, draft=self.chain.config.drafts)

    async def conclude(
        self, work: PhaseWork, result: protocol.AgentResult, context: Context
    ) -> tuple[protocol.PhaseOutput, list[ContextOperation]]:
        """Return the output of the phase, and its operations on the context."""
        raise NotImplementedError

    def output(self, response: str, confidence: float | None, **fields: Any) -> protocol.PhaseOutput:
        """Return an output that continues with the next phase; a phase of the program is not named in it."""
        order = self.chain.order
        remaining = order[order.index(self.phase) + 1 :]
        following: Any = next((phase for phase in remaining if phase in protocol.PHASES), None)
        return protocol.PhaseOutput(response=response, next_phase=following, confidence=confidence, **fields)

    # ------------------------------------------------------------ requests

    @handles
    async def process(self, request: protocol.ProcessPhase, context: Context) -> protocol.PhaseProcessed:
        """Run the phase."""
        output, seconds = await self.run(request, context)
        return protocol.PhaseProcessed(
            thread_id=request.thread_id, phase_type=self.phase, output=output, processing_time=seconds
        )

    async def run(
        self, request: protocol.ProcessPhase | ProcessOwnPhase, context: Context
    ) -> tuple[protocol.PhaseOutput, float]:
        """Run the phase; return its output, and the seconds that it took."""
        began = asyncio.get_running_loop().time()
        asked = request.phase if isinstance(request, ProcessOwnPhase) else request.phase_type
        if asked != self.phase:
            raise RefusedError(f"this is the {self.phase} phase, not {asked}", protocol.ErrorCode.VALIDATION_ERROR)
        if context.thread_id is None:
            raise RefusedError("a phase works in a thread: ask it in one", protocol.ErrorCode.VALIDATION_ERROR)
        try:
            async with left_open(context):
                output = await self._process(PhaseWork.of(request), context)
        except AntiphonError:
            raise
        except Exception as exc:
            log_unexpected(exc, context)
            raise _phase_error(request.thread_id, asked, f"{type(exc).__qualname__}: {exc}") from exc
        return output, round(asyncio.get_running_loop().time() - began, 6)

    async def agent_of_phase(self, work: PhaseWork, context: Context) -> dict[str, Any]:
        """Prepare the context of the agent; return the agent's configuration in the recorded form."""
        prepare = protocol.PrepareContext(
            thread_id=work.thread_id,
            phase_type=self.phase,
            previous_phase_output=None if work.previous is None else _short(work.previous),
            conversation_history=work.history,
        ).with_enclosure({**work.metadata, "user_id": work.user_id})
        prepared = (await context.work_out(prepare, key="prepare")).context
        agent: Any = thaw(prepared.metadata["agent"])
        if PROMPT in agent and (text := prompt_in(agent[PROMPT], prepared.messages)) is not None:
            self.chain.cast.prompts[agent[PROMPT]] = text
        return cast("dict[str, Any]", agent)

    async def _process(self, work: PhaseWork, context: Context) -> protocol.PhaseOutput:
        work = await self.gather(work, context)
        enclosure: dict[str, Any] = {"agent": await self.agent_of_phase(work, context)}
        work = replace(work, is_quoted=enclosure["agent"].get("outputs") == QUOTED)
        is_choosing = self.phase == "experience" and enclosure["agent"].get("model") != SCRIPTED
        prompt = choice_prompt(work, is_choosing=is_choosing) if work.is_quoted else self.prompt(work)
        if prompt.places:
            enclosure["sources"] = [list(place) for place in prompt.places]
        if work.history:
            enclosure["history"] = [turn.model_dump(mode="json") for turn in work.history]
        if work.untrusted is not None:
            enclosure["untrusted"] = work.untrusted
        if work.outside is not None:
            enclosure["outside"] = work.outside
        agent_context = protocol.AgentContext(user_id=work.user_id or None, metadata=work.metadata)
        request = protocol.ProcessWithAgent(input=prompt.text, context=agent_context, agent_id=agent_of(self.phase))
        request = request.with_enclosure(enclosure)
        response = await self._ask_agent(request, work, context)
        output, operations = await self.conclude(work, response.result, context)
        calls = response.result.tool_calls
        items = items_given((call for call in calls if call.name != GO_ON_WITH), work.question)
        operations += [Add(item=item) for item in items]
        fields = response.result.model_dump(mode="json", exclude_unset=True, include=_PASSED_ON)
        if calls:
            fields["tool_calls"] = [call.model_dump(mode="json", exclude_unset=True, exclude={"result"}) for call in calls]
        output = output.with_unknown(context_operations=operations_to(operations), **fields)
        if work.is_quoted and self.phase != protocol.PHASES[-1]:
            line = contribution(self.phase, output.model_dump(mode="json"))
            output = output.model_copy(update={"response": line})
        return output

    @handles
    async def prepare(self, request: protocol.PrepareContext, context: Context) -> protocol.ContextPrepared:
        """Make the context of an agent: the phase's prompt and the conversation; and record the agent's configuration."""
        config = await self.chain.cast.agent_config(self.phase)
        if self._described is None or self._described.config is not config:
            self._described = DescribedAgent.of(self.phase, config)
            if config.system_prompt is not None:
                self.chain.cast.prompts[self._described.prompt] = config.system_prompt
        metadata: dict[str, Any] = thaw(request.enclosure)
        agent = dict(self._described.agent)
        if self.chain.config.outputs == QUOTED and self.phase in protocol.PHASES and "own" not in agent:
            agent["outputs"] = QUOTED
        elif self.chain.cast.gives_forms(config):
            agent["outputs"] = TYPED
        metadata |= {"agent": agent, "prompt": self._described.prompt}
        is_named = self._described.is_in_talk and context.message.policy == context.address
        turns = request.conversation_history if is_named else (self._described.system, *request.conversation_history)
        prepared = protocol.PreparedContext(messages=turns, tools=config.tools or (), metadata=metadata)
        return protocol.ContextPrepared(thread_id=request.thread_id, phase_type=self.phase, context=prepared)

    @handles
    async def initialize(self, request: protocol.InitializePhase, context: Context) -> protocol.PhaseInitialized:
        """Configure the phase's agent, from its next run on: recording the request is enough."""
        await self.chain.cast.check(self.phase, request.config)
        return protocol.PhaseInitialized(phase_type=self.phase, agent_id=agent_of(self.phase))

    @handles
    async def invoke(self, request: protocol.InvokeAgent, context: Context) -> protocol.AgentInvoked | None:
        """Ask the named agent."""
        await context.forward(request.agent_id)
        return None

    # ------------------------------------------------------------ its agent

    async def _ask_agent(
        self, request: protocol.ProcessWithAgent, work: PhaseWork, context: Context
    ) -> protocol.AgentResponse:
        """Ask the agent. If it cannot answer, the supervisor decides: it is asked again, or the phase stops with the cause.

        After a stop because of its provider, the phase continues when the thread is resumed: it then runs again from the
        start, gets the recorded answers and decisions, and goes on after the stop, with as many tries as before it.
        """
        manager = f"{agent_of(self.phase)}:{work.thread_id}"
        original, tries = await self._asked_before(context)
        attempt, stops, most = tries + 1, 0, tries + self.chain.config.restarts + 1
        while True:
            try:
                if attempt == 1:
                    return await self.chain.ask(manager, request, context, "agent")
                retry = protocol.Retry(original_message_id=original, attempt=attempt, max_attempts=most)
                answered = await self.chain.ask(manager, retry, context, "retry")
                return protocol.AgentResponse.from_data(answered.to_data())
            except RefusedError as exc:
                failure, original = exc, original or exc.message_id or ""
            notification = self._notification(manager, failure, work, reported_by=context.address)
            notification = notification.model_copy(update={"attempt": attempt, "max_attempts": most})
            decided = await context.ask(SUPERVISOR, notification, within=UNHURRIED, key="notify")
            await self._tell_clients(notification, decided, context)
            if decided.action_taken == "restart":
                await asyncio.sleep(decided.retry_after or 0.0)
            else:
                stops += 1
                if cause_in(failure.details) != "provider":
                    raise _phase_error(work.thread_id, self.phase, failure.reason) from failure
                # How often this message has stopped because of something outside, and was resumed.
                stop = partial(stop_id, context.course.invocation_id)
                if await unused(self.chain.ledger, context.thread_id or "", stop, 1) - 1 < stops:
                    raise StoppedError(failure.reason, manager, cause=failure.code)
                most = attempt + self.chain.config.restarts + 1
            attempt += 1

    async def _asked_before(self, context: Context) -> tuple[str, int]:
        """Return the request to the agent that is retried if a client retries the phase, and how often it was tried.

        Another request would do again what the tools of the first one have done.
        """
        asked, thread_id = context.message.payload, context.thread_id or ""
        if not isinstance(asked, OptionCallPayload) or asked.option_name != protocol.Retry.message_type:
            return "", 0
        original = child_id(str(asked.arguments["original_message_id"]), "agent")
        tries = 0
        for first in await self.chain.ledger.find(invocation_id=original, thread_id=thread_id):
            tries = 1
            # Only those before this one: when its handler runs again, it sends the same.
            async for record in self.chain.ledger.read(thread_id, after=first.seq, before=context.seq):
                match record.message.payload:
                    case OptionCallPayload(
                        option_name=protocol.Retry.message_type, arguments={"original_message_id": str(named)}
                    ):
                        tries += named == original
                    case _:
                        pass
            break
        return (original, tries) if tries else ("", 0)

    def _notification(
        self, manager: str, failure: RefusedError, work: PhaseWork, *, reported_by: str
    ) -> protocol.ErrorNotification:
        details: dict[str, Any] = {"details": failure.reason}
        if isinstance(failure.details, Mapping):
            details = thaw(cast("Any", failure.details))
        notification = protocol.ErrorNotification(
            actor_id=manager,
            error_message=failure.reason,
            error_code=failure.code,
            details={"thread_id": work.thread_id, "phase_type": self.phase, **details},
            reported_by=reported_by,
            failed_message_id=failure.message_id or "",
            retryable=failure.retryable,
        )
        return notification.model_copy(update={name: details[name] for name in ("retry_after",) if name in details})

    async def _tell_clients(
        self, notification: protocol.ErrorNotification, decided: protocol.ErrorAcknowledged, context: Context
    ) -> None:
        """Tell the creator of the thread and its subscribers what failed, and what the supervisor has decided."""
        thread_id = context.thread_id or ""
        head = await self.chain.ledger.head(thread_id)
        life = await context.state_at(thread_id, head.seq, LIFE)
        if life.status == "none":
            return  # a thread of another pattern
        details = {**cast("dict[str, Any]", thaw(notification.details)), "action_taken": decided.action_taken}
        if decided.retry_after is not None:
            details["retry_after"] = decided.retry_after
        data = notification.model_copy(update={"details": details}).to_data()
        part = DataPart(data={"type": notification.message_type, "data": data})
        creator = life.creator if context.knows(life.creator) else CLIENT
        for client in dict.fromkeys((creator, *life.subscribers)):
            # An id of its own, and not a number: when this handler runs again, there may be more subscribers.
            row_id = child_id(context.course.invocation_id, as_key(f"told-{notification.attempt}-{client}"))
            row = Message(id=row_id, policy=context.address, payload=PartsPayload(parts=(part,)), to=(client,), lane="control")
            with suppress(UndeliverableError, BudgetExceededError, HopLimitError):  # the phase goes on without them
                await context.tell(client, row)


def _short(output: protocol.PhaseOutput) -> protocol.PhaseOutput:
    """Return an output in the form of the protocol, without internal fields."""
    return protocol.PhaseOutput(response=output.response, next_phase=output.next_phase, confidence=output.confidence)


def _phase_error(thread_id: str, phase: str, reason: str) -> RefusedError:
    details = {"thread_id": thread_id, "phase_type": phase, "details": reason}
    return RefusedError("Failed to process phase", protocol.ErrorCode.PHASE_PROCESSING_ERROR, details=details)


# ---------------------------------------------------------------- phases of the program


@dataclass(frozen=True, slots=True)
class Contribution:
    """The contribution of a phase of the program to a turn."""

    response: str
    """Its text, which the next phase gets."""
    confidence: float | None = None
    operations: Sequence[ContextOperation] = ()
    """Changes to the context: sources that are added, scored or pruned."""
    data: Mapping[str, Any] = field(default_factory=dict[str, Any])
    """More fields of its output, as plain JSON."""


class OwnPhase:
    """A phase of the program. Subclass it, and pass the class in `PostChain(phases=[…])`, at its position."""

    name: ClassVar[str]
    prompt: ClassVar[str | Path]
    """The instructions of its agent, or a file with them."""
    output_type: ClassVar[Any] = str
    """The output type of its agent: text, or any single output type of Pydantic AI."""
    tools: ClassVar[tuple[str, ...]] = ()
    """The names of the tools that its agent may use."""

    def conclude(self, work: PhaseWork, output: Any) -> Contribution:
        """Return the contribution of the phase, from the output of its agent.

        It must be pure: after a crash, it is called again.
        """
        return Contribution(as_text(output))


PhaseLike: TypeAlias = protocol.Phase | type[OwnPhase]
"""A phase of a chain: the name of one of the six, or a class of the program."""

_NAME: Final = re.compile(r"[a-z][a-z0-9_-]{0,40}")
_TAKEN: Final = frozenset({*PHASES, "thread", "agent", "client", "supervisor", "delegate", "door"})


def ordered_phases(phases: Iterable[PhaseLike]) -> tuple[tuple[str, ...], dict[str, OwnPhase]]:
    """Return the names of a chain's phases in order, and the phases of the program by name."""
    order, own_phases = list[str](), dict[str, OwnPhase]()
    for phase in phases:
        if isinstance(phase, str):
            if phase not in PHASES:
                raise ConfigError(f"phases: there is no phase {phase!r}{known_names(phase, PHASES, 'there are', 'none')}")
            name = cast("str", phase)
        else:
            name = getattr(phase, "name", "")
            if not _NAME.fullmatch(name) or name in _TAKEN:
                reason = "a name has lower-case letters, digits, `_` and `-`, and is none of the chain's own"
                raise ConfigError(f"phases: {phase.__name__}.name is {name!r}: {reason}")
            own_phases[name] = phase()
            prompt_text(name, own_phases[name].prompt)
        if name in order:
            raise ConfigError(f"phases: {name!r} is there twice")
        order.append(name)
    if not order or order[-1] != PHASES[-1]:
        raise ConfigError(f"phases: the last one is {PHASES[-1]!r}, which answers")
    return tuple(order), own_phases


class OwnPhaseActor(PhaseActor):
    """A phase of the program, for all threads."""

    def __init__(self, chain: Chain, own_phase: OwnPhase) -> None:
        super().__init__(chain)
        self._own_phase = own_phase
        setattr(self, "phase", own_phase.name)  # noqa: B010 (the type of the six names only those)

    @handles
    async def process_own(self, request: ProcessOwnPhase, context: Context) -> OwnPhaseProcessed:
        """Run the phase."""
        output, seconds = await self.run(request, context)
        return OwnPhaseProcessed(thread_id=request.thread_id, phase=request.phase, output=output, processing_time=seconds)

    @override
    async def agent_of_phase(self, work: PhaseWork, context: Context) -> dict[str, Any]:
        """Return the configuration of the agent, which the thread records as an effect: the protocol has no message for it."""

        async def current(key: str) -> Json:
            config = self.chain.cast.own_config(self._own_phase.name)
            fields = {**config.model_dump(mode="json", exclude_unset=True), "outputs": TYPED}
            text = str(fields.pop("system_prompt"))
            name = f"{self._own_phase.name}@{prompt_digest(text)}"
            self.chain.cast.prompts[name] = text
            return {**fields, PROMPT: name}  # the talk with the model has the text

        return cast("dict[str, Any]", thaw(await context.effect("prepare", {}, current, effects="none")))

    @override
    async def conclude(
        self, work: PhaseWork, result: protocol.AgentResult, context: Context
    ) -> tuple[protocol.PhaseOutput, list[ContextOperation]]:
        output: Any = result.response
        if "data" in result.model_fields_set:
            output = TypeAdapter[Any](self._own_phase.output_type).validate_python(thaw(result.data))
        added = self._own_phase.conclude(work, output)
        item = Item(id=self._own_phase.name, source="agent", title=self._own_phase.name, text=added.response[:MENTIONED])
        fields: dict[str, Any] = {**added.data, "by": "agent"}
        return self.output(added.response, added.confidence, **fields), [Add(item=item), *added.operations]
