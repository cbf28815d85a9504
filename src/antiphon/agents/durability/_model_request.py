"""A model request as an effect, and its bounds: the size of an answer, its time limit, its price.

The intent has the model, its settings, hashes of the prompt and of the tools, and `upto_seq`: the prompt is the talk of the
thread up to that row. New talk is written with the intent; the answer is written with the outcome, which says how many
messages it has.

An answer that is too long for the journal is cut: the run continues with what is stored. A call whose arguments were cut must
not be executed. They become text that is not JSON, and the model is told.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from decimal import Decimal
from typing import TYPE_CHECKING, Any, Final, cast

from pydantic_ai.durable_exec import ModelRequestId, ModelRequestParams
from pydantic_ai.exceptions import UnexpectedModelBehavior
from pydantic_ai.messages import ModelMessage, ModelResponse
from pydantic_core import to_json
from typing_extensions import override

from antiphon.agents._budget import BudgetLimits
from antiphon.agents._observers import is_told, provider_named, provider_of
from antiphon.agents._run import LedgerRun
from antiphon.agents._secrets import SecretArguments, Secrets, Unit
from antiphon.agents.durability._prompt import plain_settings, tools_hash
from antiphon.agents.durability._talk import AnswerRows, TalkPlace, ThreadTalk, as_messages, restore, told
from antiphon.errors import AppendConflictError, AppendRefusedError, BudgetExceededError, HistoryMismatchError
from antiphon.messages import Json, JsonObject, Message, OptionCallPayload, OptionResultPayload, current_limits, current_port
from antiphon.messages.long_values import cut, cut_text
from antiphon.runtime import ModelOperation, describe
from antiphon.runtime.extending import Effect, is_too_large, says_the_same_value

if TYPE_CHECKING:
    from antiphon.ledger import Record

# ---------------------------------------------------------------- the price


def price_of(response: ModelResponse) -> Decimal | None:
    """Return what an answer cost in US dollars; None where no price is known."""
    if not response.model_name or not response.usage.has_values():
        return None
    try:
        return response.cost().total_price
    except (LookupError, ValueError, ArithmeticError):
        return None


# ---------------------------------------------------------------- bounds

_CUT = "[cut]"


def cut_answer(unit: Unit) -> Unit:
    """Return an answer that fits into the journal, cut if it must be.

    Raises:
        UnexpectedModelBehavior: it has a part that is too large and cannot be cut, such as an image.
    """
    if not is_too_large(unit):
        return unit
    given: list[Unit] = unit["parts"]
    shorter: list[Any] = cut(given, current_limits().message_bytes * 11 // 16)  # with room for the other fields
    parts = [_cut_part(*pair) for pair in zip(given, shorter, strict=False)]
    found = {**unit, "parts": parts}
    if is_too_large(found):
        raise _too_large()
    return found


def _cut_part(part: Unit, shorter: Any) -> Unit:
    """Return a part of an answer, as it was cut."""
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
            return {**shorter, "args": _cut_arguments(part["args"], shorter["args"])}
        case _:
            raise _too_large()


def _cut_arguments(given: Any, shorter: Any) -> Any:
    if shorter == given or isinstance(shorter, str):
        return shorter
    text = to_json(given).decode()
    return cut_text(text, len(to_json(shorter)))


def _too_large() -> UnexpectedModelBehavior:
    return UnexpectedModelBehavior("the model's answer is too large to be written down, and has parts that cannot be cut")


@asynccontextmanager
async def time_limit(seconds: float | None, where: str) -> AsyncGenerator[None, None]:
    """Cancel a request after some seconds; None: never.

    Raises:
        BudgetExceededError: it was cancelled.
    """
    limit = asyncio.timeout(seconds)
    try:
        async with limit:
            yield
    except TimeoutError as exc:
        if not limit.expired():
            raise
        raise BudgetExceededError(f"the time of the budget ended during {where!r}: it was cancelled") from exc


# ---------------------------------------------------------------- the effect

_UPTO: Final = "upto_seq"


class ModelRequestEffect(Effect):
    """A request to a model."""

    def __init__(
        self, run: LedgerRun, params: ModelRequestParams, id: ModelRequestId, *, option: str, limits: BudgetLimits
    ) -> None:
        self._limits = limits
        self._run_of = run
        self._talk = ThreadTalk.of(run)
        self._prompt = self._talk.prompt(run, params.messages)
        self._known = self._talk.prompt(run, own, "own") if (own := _as_the_agent_has_them(params)) else self._prompt
        self._withheld = Secrets.of(run)
        self._withholding = SecretArguments.of(params.model_request_parameters.function_tools)
        self._agent_run = params.run_context.run_id
        self._agent = run.agent or "agent"
        self._answer: AnswerRows | None = None
        self._stored: Sequence[Message] = ()
        """The stored messages of the answer, if they differ from what the model said."""
        settings = plain_settings(params.model_settings)
        arguments: dict[str, Json] = {
            "model": id.model_id or id.model_name,
            "settings": settings,
            "prompt": self._prompt.hash,
            "tools": tools_hash(params.model_request_parameters),
        }
        super().__init__(
            run.journal, run.course, "model", arguments, effects="none", park=run.park, option=option, forgiven=run.forgiven
        )

        if is_told(run, params.run_context):
            self.operation = self._told(params, id, settings)

    def _told(self, params: ModelRequestParams, id: ModelRequestId, settings: Mapping[str, Json]) -> ModelOperation:
        """Return the request as an operation for observers."""
        hooks = self.journal.hooks
        units = self._prompt.units if hooks is not None and hooks.records_content else ()
        return ModelOperation(
            id.model_name,
            provider_of(params.run_context),
            {**settings, "stream": True} if id.streaming else settings,
            getattr(params.run_context.model, "base_url", None),
            input=told([self._withheld.clean_unit(unit) for unit in units]),
        )

    # ------------------------------------------------------------ there

    @override
    async def begin(self) -> Message:
        await self._talk.read(self._run_of)
        await self._talk.spend(self._run_of, [self._limits], "request", self.id)
        units = [self._withheld.clean_unit(unit) for unit in self._prompt.units]
        said = self._talk.unsaid(units, self._known.marks(), self._place)
        self._talk.reach(self.journal.length(self.thread_id))
        while True:
            version = self._talk.seq + self.journal.waiting(self.thread_id)
            intent = self._upto(version + len(said))
            try:
                records = await self._append([*said, intent], expected_version=version)
            except AppendConflictError as exc:  # another part of the run, or a post, was faster
                await self.journal.settle(self.thread_id)
                self._talk.reach(max(exc.version, self.journal.length(self.thread_id)))
            else:
                self._talk.reach(records[-1].seq)
                return records[-1].message

    def _upto(self, seq: int) -> Message:
        return self.intent({**self.arguments, _UPTO: seq})

    @override
    def is_same(self, intent: Message) -> bool:
        recorded = _arguments(intent)
        if recorded is None:
            return False
        changed = [name for name, value in self.arguments.items() if not says_the_same_value(recorded.get(name), value)]
        if changed:
            reason = f"the program asks with another {' and another '.join(changed)} than thread {self.thread_id!r} says"
            raise HistoryMismatchError(f"{reason}, in {self.id!r}", self.course.to)
        self._option = cast("OptionCallPayload", intent.payload).option_name  # another attempt may have streamed the answer
        return True

    # ------------------------------------------------------------ and back

    @property
    def seconds_left(self) -> float | None:
        """How many seconds the budgets leave for the model; None: no limit."""
        return self._talk.spending.seconds_left(self._limits, current_port().now())

    def answered(self, unit: Unit, cost: Decimal | None) -> Json:
        """Take an answer, and return the outcome for the journal.

        Raises:
            UnexpectedModelBehavior: it is too large, and cannot be cut.
        """
        unit = cut_answer(self._withheld.take_out(unit, self._withholding, self._agent_run))
        answer = self._answer = self._place.answer(unit, self._known.mark_after(unit), cost)
        said: dict[str, Json] = {"messages": len(answer.rows)}
        if cost is not None:
            said["priced"] = True
        if (conversation := unit.get("conversation_id")) is not None:
            said["conversation_id"] = conversation
        if not answer.is_whole:
            said["response"] = unit  # the dialect does not restore it exactly: it is stored whole
        if isinstance(self.operation, ModelOperation):
            describe(_described(self.operation, unit, as_messages(unit, cost)))
        return said

    @override
    async def end(self, outcome: Message) -> Message:
        if self._answer is None or not isinstance(outcome.payload, OptionResultPayload) or outcome.payload.is_error:
            return await super().end(outcome)
        rows = self._answer.rows
        self._talk.answered(self._answer)
        *said, stored = await self._write_answer([*rows, outcome])
        if any(one is not other for one, other in zip(said, rows, strict=True)):
            self._answer, self._stored = None, said  # something was redacted: what counts is what is stored
        return stored

    async def _write_answer(self, rows: list[Message]) -> Sequence[Message]:
        if not any(isinstance(row.payload, OptionResultPayload) for row in rows[:-1]):
            return await self.journal.write_soon(self.thread_id, rows)
        records = await self._append(rows)  # the results of a provider's own tools may have no calls
        self._talk.reach(records[-1].seq)
        return [record.message for record in records]

    @property
    def _place(self) -> TalkPlace:
        return TalkPlace(self.thread_id, self.id, self._agent)

    async def answer(self, said: Unit) -> Unit:
        """Return the recorded answer, from the messages of the thread."""
        if "response" in said:
            return dict(said["response"])
        if self._answer is not None:
            return self._answer.unit
        stored = self._stored
        if not stored:
            records = await self.journal.ledger.by_correlation(self.id, thread_id=self.thread_id)
            rows = {row.message.id: row.message for row in reversed(records) if row.message.lane == "talk"}
            # Only rows of this exchange, by id: an imported row may name the same exchange.
            stored = [rows[f"{self.id}@answer{number}"] for number in range(1, said["messages"] + 1)]
        return {**restore(stored, is_priced=said.get("priced", False)), "conversation_id": said.get("conversation_id")}

    async def _append(self, rows: list[Message], **more: Any) -> tuple[Record, ...]:
        try:
            return await self.journal.write(self.thread_id, rows, **more)
        except AppendRefusedError:  # an imported history may have results without calls, and repeated ids
            return await self.journal.write(self.thread_id, rows, allow_foreign=True, **more)


def _as_the_agent_has_them(params: ModelRequestParams) -> Sequence[ModelMessage] | None:
    """Return the agent's own messages, if a processor has changed some on their way to the model.

    The thread has what the model was told; but the agent's own messages identify it, because they come again.
    """
    own, sent = params.run_context.messages, params.messages
    if len(own) != len(sent) or all(one is other for one, other in zip(own, sent, strict=True)):
        return None
    return own if all(one.kind == other.kind for one, other in zip(own, sent, strict=True)) else None


def _arguments(intent: Message) -> JsonObject | None:
    payload = intent.payload
    arguments = payload.arguments.get("arguments") if isinstance(payload, OptionCallPayload) else None
    return arguments if isinstance(arguments, JsonObject) else None


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
