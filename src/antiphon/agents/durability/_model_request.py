"""A model request as an effect, and its bounds: the size of an answer, its time limit, its price.

The intent has the model, its settings, hashes of the prompt and of the tools, and `upto_seq`: the prompt is the talk of the
thread up to that row. The first request of an agent also has `quotes`, the places of rows that its prompts quote. New talk is
written with the intent; the answer is written with the outcome, which says how many messages it has.

An answer that is too long for the journal is cut: the run continues with what is stored. A call whose arguments were cut must
not be executed. They become text that is not JSON, and the model gets an error.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import replace
from decimal import Decimal
from typing import TYPE_CHECKING, Any, Final, Protocol, cast

from pydantic_ai.durable_exec import ModelRequestId, ModelRequestParams
from pydantic_ai.exceptions import ModelHTTPError, UnexpectedModelBehavior, UserError
from pydantic_ai.messages import ModelMessage, ModelMessagesTypeAdapter, ModelResponse, repair_messages
from pydantic_ai.settings import ModelSettings
from pydantic_core import to_json
from typing_extensions import override

from antiphon.agents._guards import SecretArguments, Secrets, Unit
from antiphon.agents._observers import is_observed, provider_named, provider_of
from antiphon.agents._tool_names import plainly_named
from antiphon.agents.durability._failures import ModelOutages, mark_tried
from antiphon.agents.durability._prompt import (
    OFFERED,
    REQUEST,
    VALUES,
    PromptValues,
    offered_tools,
    plain_settings,
    tools_hash,
)
from antiphon.agents.durability._quotes import QUOTES, Quotation, current_quotation
from antiphon.agents.durability._talk import (
    AnswerRows,
    TalkPlace,
    ThreadTalk,
    as_messages,
    is_instructing,
    prompt_messages,
    restore,
)
from antiphon.agents.durability._tool_call import RecordedCall
from antiphon.durable._budget import BudgetLimits
from antiphon.durable._changes import (
    StepChange,
    ThreadChanges,
    short_hash,
    text_difference,
    tools_difference,
    values_difference,
)
from antiphon.durable._course import RunPart, reached_in, recorded_arguments
from antiphon.durable._opened import OnChange
from antiphon.durable._run import LedgerRun
from antiphon.durable._steps import RunStep
from antiphon.errors import AppendConflictError, AppendRefusedError, BudgetExceededError, DeliveryError, LedgerError
from antiphon.messages import Json, Message, OptionCallPayload, OptionResultPayload, current_port, thaw
from antiphon.messages import TextPart as TalkText
from antiphon.messages._keys import base_of, child_id, renamed
from antiphon.messages._long_values import cut, cut_text
from antiphon.messages._settings import current_limits
from antiphon.runtime import ModelOperation, describe
from antiphon.runtime._rows import error_text, is_too_large, says_the_same_value

if TYPE_CHECKING:
    from antiphon.ledger import Record
    from antiphon.runtime._permits import RequestPermit

# ---------------------------------------------------------------- the price


def price_of(response: ModelResponse) -> Decimal | None:
    """Return the cost of an answer in US dollars; None if no price is known."""
    if not response.model_name or not response.usage.has_values():
        return None
    try:
        return response.cost().total_price
    except (LookupError, ValueError, ArithmeticError):
        return None


_MOST_OUTPUT: Final = 4096
"""The number of output tokens that are reserved if the settings of the request have no limit."""
_BYTES_A_TOKEN: Final = 3
"""The assumed JSON bytes per token of a prompt: less than the real average, so that a request seldom exceeds its
reservation."""


class NamedModel(Protocol):
    """The fields of a model that limits need."""

    @property
    def model_name(self) -> str: ...
    @property
    def system(self) -> str: ...


def _price_before(model: NamedModel, messages: list[ModelMessage], settings: ModelSettings | None) -> Decimal:
    """Return the maximum cost of a request in US dollars: its prompt, and the longest answer; 0 if no price is known."""
    from genai_prices import Usage, calc_price  # noqa: PLC0415 (loads all prices: only where money is limited)

    prompt = len(ModelMessagesTypeAdapter.dump_json(messages)) // _BYTES_A_TOKEN
    options: Mapping[str, Any] = cast("Mapping[str, Any]", settings or {})
    usage = Usage(input_tokens=prompt, output_tokens=options.get("max_tokens") or _MOST_OUTPUT)
    for provider_id in (model.system, None):
        with suppress(LookupError, ValueError, ArithmeticError):
            return calc_price(usage, model.model_name, provider_id=provider_id).total_price
    return Decimal(0)


@asynccontextmanager
async def permitted(
    run: LedgerRun, model: NamedModel, messages: list[ModelMessage], settings: ModelSettings | None
) -> AsyncGenerator[RequestPermit, None]:
    """Hold a permit for a request under the shared limits.

    A request that the provider refused, or that was never sent, has cost nothing. Any other failure may have come after an
    answer, or after a part of one: then the reservation counts as spent.

    Raises:
        StoppedError: the daily budget is spent, or there was no permit in time.
    """
    names = [model.model_name, f"{model.system}:{model.model_name}"]
    async with run.journal.permit(run.thread_id, names, lambda: _price_before(model, messages, settings)) as permit:
        try:
            yield permit
        except (ModelHTTPError, UserError):
            permit.cost = Decimal(0)
            raise


def note_price(permit: RequestPermit, response: ModelResponse) -> None:
    """Replace the reservation of a request with the cost of its answer, if there is a cost limit and the price is known."""
    if permit.is_priced and (cost := price_of(response)) is not None:
        permit.cost = cost


# ---------------------------------------------------------------- bounds

_CUT = "[cut]"


def cut_answer(unit: Unit) -> Unit:
    """Return an answer that fits into the journal, cut if necessary.

    Raises:
        UnexpectedModelBehavior: it has a part that is too large and cannot be cut, such as an image.
    """
    if not is_too_large(unit):
        return unit
    parts: list[Unit] = unit["parts"]
    shorter: list[Any] = cut(parts, current_limits().message_bytes * 11 // 16)  # leave room for the other fields
    cut_parts = [_cut_part(*pair) for pair in zip(parts, shorter, strict=False)]
    answer = {**unit, "parts": cut_parts}
    if is_too_large(answer):
        raise _too_large()
    return answer


def _cut_part(part: Unit, shorter: Any) -> Unit:
    """Return a part of an answer, cut."""
    if shorter == part:
        return part
    if isinstance(shorter, str) or not shorter.keys() >= part.keys():
        return {"part_kind": "text", "content": shorter if isinstance(shorter, str) else _CUT}
    match part["part_kind"]:
        case "text":
            return {**part, "content": shorter["content"]}
        case "thinking":  # its signature is for the whole text
            return {**part, "content": shorter["content"], "signature": None, "provider_details": None}
        case "tool-call":
            if shorter["args"] == part["args"] or isinstance(shorter["args"], str):
                return {**shorter}
            # As text that is not JSON: such a call must not be executed.
            return {**shorter, "args": cut_text(to_json(part["args"]).decode(), len(to_json(shorter["args"])))}
        case _:
            raise _too_large()


def _too_large() -> UnexpectedModelBehavior:
    return UnexpectedModelBehavior("the model's answer is too large to be written down, and has parts that cannot be cut")


@asynccontextmanager
async def _time_limit(seconds: float | None, where: str) -> AsyncGenerator[None, None]:
    """Cancel a block after some seconds, with a `BudgetExceededError`; None: never."""
    limit = asyncio.timeout(seconds)
    try:
        async with limit:
            yield
    except TimeoutError as exc:
        if not limit.expired():
            raise
        late = BudgetExceededError(f"the time of the budget ended during {where!r}: it was cancelled")
        late.limit = f"{seconds:g} seconds"
        raise late from exc


# ---------------------------------------------------------------- the effect

_UPTO: Final = "upto_seq"
_NAMES: Final = "Give agents that run at the same time different names"


class ModelRequestEffect(RunStep):
    """A request to a model."""

    does_read_finished = True

    def __init__(
        self,
        run: LedgerRun,
        params: ModelRequestParams,
        id: ModelRequestId,
        *,
        option: str,
        limits: BudgetLimits,
        on_change: OnChange | None = None,
    ) -> None:
        self._limits = limits
        self._run_of = run
        self._values = run.opened.share(PromptValues).take(run)
        self._tools = offered_tools(params.model_request_parameters)
        self._talk = run.opened.share(ThreadTalk)
        self._agent_run = params.run_context.run_id
        self._quotation = current_quotation()
        history, sent = _agent_history(params, self._quotation) or params.messages, params.messages
        quoted = self._quotation.parts_in(history)
        self._does_quote = any(quoted)
        self._history = self._prompt = self._talk.prompt(
            run, history, quoted, self._agent_run, "" if history is sent else "own"
        )
        if history is not sent:
            quoted = [_in_sent(*places) for places in zip(quoted, history, sent, strict=True)]
            self._prompt = self._talk.prompt(run, sent, quoted, self._agent_run)
        self._withheld = run.opened.share(Secrets)
        self._withholding = SecretArguments.of(params.model_request_parameters.function_tools)
        self._agent = run.agent or "agent"
        self._answer: AnswerRows | None = None
        self._stored: Sequence[Message] = ()
        """The stored messages of the answer, if they differ from the model's answer."""
        settings = plain_settings(params.model_settings)
        arguments: dict[str, Json] = {
            "model": id.model_id or id.model_name,
            "settings": settings,
            "prompt": self._prompt.hash,
            "tools": tools_hash(params.model_request_parameters),
        }
        super().__init__(run.opened, REQUEST, arguments, effects="none", option=option, on_change=on_change)
        if self._is_first:
            self.asked = run.start
        if is_observed(run, params.run_context):
            self.operation = self._model_operation(params, id, settings)

    def _model_operation(self, params: ModelRequestParams, id: ModelRequestId, settings: Mapping[str, Json]) -> ModelOperation:
        """Return the request as an operation for observers."""
        hooks = self.journal.hooks
        units = self._prompt.units if hooks is not None and hooks.records_content else ()
        return ModelOperation(
            id.model_name,
            provider_of(params.run_context),
            {**settings, "stream": True} if id.streaming else settings,
            getattr(params.run_context.model, "base_url", None),
            input=prompt_messages([self._withheld.clean_unit(unit) for unit in units]),
        )

    # ------------------------------------------------------------ the request

    @override
    async def begin(self) -> Message:
        run, list_hash = self._run_of, str(self.arguments["tools"])
        await self._talk.read(run)
        self._check_reached(self.opened.shared.get(ThreadChanges))
        await self._talk.spend(run, [self._limits], "request", self.id)
        values, offered = run.opened.share(PromptValues), self._talk.offered.row(list_hash, self._tools)
        extras: dict[str, Json] = {} if offered is None else {OFFERED: offered}
        if new_values := values.row(run, self._values):
            extras[VALUES] = new_values
        if self._does_quote and self._is_first:  # further requests of the run repeat them
            extras[QUOTES] = self._quotation.ranges()
        units = [self._withheld.clean_unit(unit) for unit in self._prompt.unquoted]
        new_rows = self._talk.new_rows(units, self._history.marks(), self._place, self._agent_run)
        self._talk.reach(self.journal.length(self.thread_id))
        while True:
            version = self._talk.seq + self.journal.waiting(self.thread_id)
            intent = self.intent({**self.arguments, _UPTO: version + len(new_rows), **extras})
            try:
                records = await self._append([*new_rows, intent], expected_version=version)
            except AppendConflictError as exc:  # another part of the run, or a post, was first
                await self.journal.settle(self.thread_id)
                self._talk.reach(max(exc.version, self.journal.length(self.thread_id)))
            else:
                self._talk.reach(records[-1].seq)
                values.stored(run, self.id, self._values)
                if offered is not None:
                    self._talk.offered.stored(list_hash, offered)
                return records[-1].message

    # ------------------------------------------------------------ changed programs

    @override
    def is_same(self, intent: Message) -> bool:
        if self._changed(recorded_arguments(intent) or {}):
            return False
        self._option = cast("OptionCallPayload", intent.payload).option_name  # another attempt may have streamed the answer
        return True

    def _changed(self, recorded: Mapping[str, Json]) -> list[str]:
        return [name for name, value in self.arguments.items() if not says_the_same_value(recorded.get(name), value)]

    @override
    async def change(self, intent: Message) -> StepChange:
        recorded: Mapping[str, Json] = recorded_arguments(intent) or {}
        before: Any = {name: thaw(value) for name, value in recorded.items()}
        changed, lines, is_input = self._changed(recorded), list[str](), False
        if "model" in changed:
            lines.append(f"model: {before.get('model')!r}, now {self.arguments['model']!r}")
        if "settings" in changed:
            lines += values_difference("setting", before.get("settings") or {}, cast("Unit", self.arguments["settings"]))
        if "tools" in changed:
            await self._talk.read(self._run_of)
            if (offered := self._talk.offered.of(before.get("tools"))) is not None:  # else recorded without its texts, or none
                lines += tools_difference(offered, self._tools) or ["the form of the answer has changed"]
        if "prompt" in changed:
            prompt_lines, is_input = await self._changed_prompt(before.get(_UPTO))
            lines += prompt_lines
        verb = "differs from the one" if changed in (["model"], ["prompt"]) else "differ from those"
        what = f"the {' and the '.join(changed)} {verb} that thread {self.thread_id!r} records, in {self.id!r}"
        change = StepChange(what, lines, short_hash(self.arguments), is_input)
        if self._is_first:
            await self._check_namesakes(intent, change)
        return change

    @property
    def _is_first(self) -> bool:
        """Whether it is the first request of its agent's run."""
        return self.id.rpartition("/")[2] == REQUEST

    async def _check_namesakes(self, intent: Message, change: StepChange) -> None:
        """Refuse the recorded answer of another agent with the same name.

        Agents of one name are distinguished by the order in which they start. If they run at the same time, that order may
        differ when the program runs again. So a first request that differs from the recorded one may belong to another agent,
        rather than to a changed one.

        Raises:
            HistoryMismatchError: it is the recorded request of another agent, or may be a changed form of one.
        """
        recorded: Mapping[str, Json] = recorded_arguments(intent) or {}
        for other in self._run_of.namesakes():
            records = await self.journal.ledger.find(invocation_id=f"{other.id}/{REQUEST}", thread_id=self.thread_id)
            request = next((each for record in records if (each := recorded_arguments(record.message)) is not None), None)
            if request is not None and not self._changed(request):
                raise self.stopped(change, f"{other.id!r} was asked this: agents of one name began in another order. {_NAMES}")
            is_alike = request is not None and all(
                says_the_same_value(request.get(name), recorded.get(name)) for name in self.arguments
            )
            # A restart uses no records.
            may_be_other = other.is_at_work and not is_alike and (change.is_input or other.has_same_question)
            if may_be_other and self.on_change != "restart":
                raise self.stopped(change, f"it may be a changed {other.id!r}, which runs at the same time. {_NAMES}")

    async def _changed_prompt(self, upto: Any) -> tuple[list[str], bool]:
        """Return how the newest message differs from the recorded one, and whether the input of the program has changed."""
        unit = self._withheld.clean_unit((self._prompt.unquoted or self._prompt.units)[-1])
        first = base_of(self.id)  # a further attempt does not write it again
        records = await self.journal.ledger.find(correlation_id=first, thread_id=self.thread_id)
        rows = [row.message for row in records if row.message.id.startswith(f"{first}@said")]
        before, after = ([row for row in side if not is_instructing(row)] for side in (rows, prompt_messages([unit])))
        instructions = await ThreadTalk.instructions_at(self._run_of, upto) if isinstance(upto, int) else None
        lines = text_difference("instructions", instructions, unit.get("instructions") or None)
        for role, name in _PROMPT_PARTS.items():
            old, new = ([row for row in side if row.role_hint_for_llm == role] for side in (before, after))
            old = old[-len(new) or None :]  # earlier messages of a conversation may also have been new in this request
            if not _are_same(old, new):
                lines += text_difference(name, *("\n".join(map(_text_of, side)) for side in (old, new)))
        asked = [[row for row in side if row.role_hint_for_llm == "user"] for side in (before, after)]
        old, new = asked
        is_input = self._is_first and bool(old) and not _are_same(old[-len(new) or None :], new)
        return lines or ["messages before the newest one have changed"], is_input

    @override
    async def check_continues(self, intent: Message, outcome: OptionResultPayload | None, change: StepChange) -> None:
        run = self._run_of
        self._check_reached(await ThreadChanges.of(self.opened), change)
        records = await self.journal.ledger.find(correlation_id=self.id, thread_id=self.thread_id)
        answer = [row.message for row in records if row.message.id.startswith(f"{self.id}@answer")]
        done = {row.invocation_id for row in answer if row.kind == "option_result"}
        calls = [row.payload for row in answer if isinstance(row.payload, OptionCallPayload) and row.invocation_id not in done]
        for call in [call for call in calls if call.option_name not in self._tools]:
            if await RecordedCall.of(run, call.option_name, call.invocation_id) is None:
                reason = f"it cannot continue: the recorded answer calls tool {call.option_name!r}, and it is gone"
                raise self.stopped(change, f"{reason}. Keep the tool until the run has ended")
        self._option = cast("OptionCallPayload", intent.payload).option_name
        self._talk.know(self._history.marks(), self._place)

    def _check_reached(self, changes: ThreadChanges | None, change: StepChange | None = None) -> None:
        """Refuse to continue if a changed program does not repeat a call: the model would be told that the call failed."""
        reached, part = reached_in(self.course), self.course.invocation_id
        missed = () if changes is None else changes.not_reached(part, reached, self.id)
        if missed:
            reason = f"it cannot continue: the program does not repeat the recorded call {missed[0]!r}"
            reason = f"{reason}. Keep its tool, with the arguments that it took, until the run has ended"
            raise self.stopped(change or StepChange(f"the program of thread {self.thread_id!r} has changed"), reason)

    @override
    def restart(self) -> None:
        """Continue in another part of the run: all further steps of the agent are new."""
        course = self.course
        assert isinstance(course, RunPart)  # noqa: S101 (an agent has a part of its own)
        course.invocation_id = renamed(course.invocation_id)
        self.key = self.id = child_id(course.invocation_id, self.id.rpartition("/")[2])

    # ------------------------------------------------------------ attempts

    async def attempts(self, ask: Callable[[], Awaitable[Any]], outages: ModelOutages | None) -> Any:
        """Ask the model, and ask again if something outside fails. Each further start follows a row that records the failure.

        Raises:
            StoppedError: the attempts are used up. The request stays open, so that the next run of the program asks again.
            BudgetExceededError: they took longer than the budgets leave.
        """
        failures, seconds = 0, self._talk.spending.seconds_left(self._limits, current_port().now())
        async with _time_limit(seconds, self.key):
            while True:
                try:
                    return await ask()
                except (DeliveryError, LedgerError):
                    raise
                except Exception as exc:
                    failures += 1
                    pause = None if outages is None else outages.pause(exc, failures)
                    if outages is None:
                        raise
                    if pause is None:
                        if (stopped := outages.stop(exc)) is not None:
                            raise stopped from exc
                        mark_tried(exc, failures)
                        raise
                    failure = error_text(exc)
                await asyncio.sleep(pause)
                await self.begin_after(failure)

    # ------------------------------------------------------------ the answer

    def answered(self, unit: Unit, cost: Decimal | None) -> Json:
        """Process an answer, and return the outcome for the journal."""
        unit = plainly_named(unit, self._tools)
        unit = cut_answer(self._withheld.take_out(unit, self._withholding, self._agent_run))
        answer = self._answer = self._place.answer(unit, self._history.mark_after(unit), cost)
        outcome: dict[str, Json] = {"messages": len(answer.rows)}
        if cost is not None:
            outcome["priced"] = True
        if (conversation := unit.get("conversation_id")) is not None:
            outcome["conversation_id"] = conversation
        if not answer.is_whole:
            outcome["response"] = unit  # the dialect does not restore it exactly, so it is stored whole
        if isinstance(self.operation, ModelOperation):
            describe(_described(self.operation, unit, as_messages(unit, cost)))
        return outcome

    @override
    async def end(self, outcome: Message) -> Message:
        if self._answer is None or not isinstance(outcome.payload, OptionResultPayload) or outcome.payload.is_error:
            return await super().end(outcome)
        rows = self._answer.rows
        self._talk.answered(self._answer)
        if any(isinstance(row.payload, OptionResultPayload) for row in rows):
            records = await self._append([*rows, outcome])  # the results of a provider's own tools may have no calls
            self._talk.reach(records[-1].seq)
            *stored_rows, stored = [record.message for record in records]
        else:
            *stored_rows, stored = await self.journal.write_soon(self.thread_id, [*rows, outcome])
        if any(one is not other for one, other in zip(stored_rows, rows, strict=True)):
            self._answer, self._stored = None, stored_rows  # something was redacted: the stored form is used
        return stored

    @property
    def _place(self) -> TalkPlace:
        return TalkPlace(self.thread_id, self.id, self._agent)

    async def answer(self, outcome: Unit) -> Unit:
        """Return the recorded answer, from the messages of the thread."""
        if "response" in outcome:
            return dict(outcome["response"])
        if self._answer is not None:
            return self._answer.unit
        stored = self._stored
        if not stored:
            records = await self.journal.ledger.find(correlation_id=self.id, thread_id=self.thread_id)
            rows = {row.message.id: row.message for row in reversed(records) if row.message.lane == "talk"}
            # Only rows of this exchange, by id: an imported row may name the same exchange.
            stored = [rows[f"{self.id}@answer{number}"] for number in range(1, outcome["messages"] + 1)]
        return {**restore(stored, is_priced=outcome.get("priced", False)), "conversation_id": outcome.get("conversation_id")}

    async def _append(self, rows: list[Message], expected_version: int | None = None) -> tuple[Record, ...]:
        try:
            return await self.journal.write(self.thread_id, rows, expected_version=expected_version)
        except AppendRefusedError:  # an imported history may have results without calls, and repeated ids
            return await self.journal.write(self.thread_id, rows, allow_foreign=True, expected_version=expected_version)


def _agent_history(params: ModelRequestParams, quotation: Quotation) -> Sequence[ModelMessage] | None:
    """Return the agent's own messages, if a history processor has changed some before they were sent to the model.

    The thread has the messages that the model got. The agent's own messages identify the prompt, because the next prompt
    repeats them. They also show what is quoted; then they are joined first, as those that are sent.
    """
    history, sent = params.run_context.messages, params.messages
    if quotation.messages:
        history = repair_messages(history)
    if len(history) != len(sent) or all(one is other for one, other in zip(history, sent, strict=True)):
        return None
    return history if all(one.kind == other.kind for one, other in zip(history, sent, strict=True)) else None


def _in_sent(quoted: frozenset[int], message: ModelMessage, sent: ModelMessage) -> frozenset[int]:
    """Return the positions of quoted parts in a message as it is sent to the model, from those in the agent's own.

    A model class may add a sentence about system prompts to a message. What the agent says itself is at the end.
    """
    first = len(quoted)
    if len(message.parts) == len(sent.parts) or quoted != frozenset(range(first)):
        return quoted if len(message.parts) == len(sent.parts) else frozenset()
    return frozenset(range(len(sent.parts) - len(message.parts) + first))


_PROMPT_PARTS: Final = {"system": "system prompt", "user": "question", "tool": "results of tools"}
"""The name of a message of a prompt in an error, by its role."""


def _are_same(before: Sequence[Message], after: Sequence[Message]) -> bool:
    """Whether messages have the same content, except for redacted values."""
    if len(before) != len(after):
        return False
    sides = ([row.payload.model_dump(mode="json") for row in side] for side in (before, after))
    return all(says_the_same_value(*pair) for pair in zip(*sides, strict=True))


def _text_of(message: Message) -> str:
    """Return a message of a prompt as text."""
    payload = message.payload
    if isinstance(payload, OptionResultPayload):
        return to_json(thaw(payload.result), fallback=str).decode()
    return "\n".join(part.text if isinstance(part, TalkText) else f"[{part.kind}]" for part in message.parts)


def _described(operation: ModelOperation, unit: Unit, messages: Sequence[Message]) -> ModelOperation:
    """Return the operation with the answer."""
    return replace(
        operation,
        provider=provider_named(unit.get("provider_name") or "") or operation.provider,
        response_model=unit.get("model_name"),
        response_id=unit.get("provider_response_id"),
        finish_reasons=[unit["finish_reason"]] if unit.get("finish_reason") else (),
        usage=messages[0].usage,
        output=messages,
    )
