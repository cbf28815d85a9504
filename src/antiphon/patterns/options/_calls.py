"""The calls of one decision: each gets exactly one result, in the order of the calls, whether it runs or not."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from hashlib import sha256
from typing import Any, Final, NamedTuple

from antiphon.agents._tool_names import name_among
from antiphon.agents.toolkit._taint import Taint, current_taint, untrusted_source
from antiphon.durable import LedgerRun
from antiphon.errors import AppendRefusedError, BudgetExceededError, HistoryMismatchError, WithdrawnError
from antiphon.messages import (
    RUNTIME_POLICY,
    Message,
    OptionCallPayload,
    OptionResultBuilder,
    OptionResultPayload,
    thaw,
)
from antiphon.patterns.cast import Cast
from antiphon.patterns.cast._handling import failed_result
from antiphon.patterns.options._options import Options
from antiphon.patterns.options._rules import ExecutorLimits, Rule, run_stage, stages

# ---------------------------------------------------------------- taint of results


def taint_of(run: LedgerRun) -> Taint:
    """Return the taint of the current turn."""
    return current_taint() or run.opened.share(Taint)


def with_taint(run: LedgerRun, results: Iterable[Message]) -> list[Message]:
    """Return results with the mark of untrusted content, if the turn has read such content so far."""
    source = taint_of(run).untrusted
    if source is None:
        return list(results)
    mark: dict[str, Any] = {"antiphon": {"untrusted": source}}
    return [result.model_copy(update={"metadata": {**result.metadata, **mark}}) for result in results]


def read_taint(run: LedgerRun, messages: Iterable[Message]) -> None:
    """Taint the turn with the untrusted content in messages that it reads."""
    for message in messages:
        taint_of(run).mark(untrusted_source(message))


# ---------------------------------------------------------------- running and closing calls


SKIPPED: Final = "SKIPPED"
"""The code of a call that is skipped because an earlier group has failed."""
_INVALID_ARGUMENTS: Final = "INVALID_ARGUMENTS"
_PERMISSION_DENIED: Final = "PERMISSION_DENIED"
_RESULT: Final = ("option_result", "talk")
_LONG: Final = 480
"""The longest id to which a suffix is added; a longer one is hashed."""


@dataclass(frozen=True)
class ExecutorSetup:
    """The objects that all runs of an executor share."""

    options: Options
    limits: ExecutorLimits
    rule: Rule
    cast: Cast


class _Why(NamedTuple):
    """The reason why a call has not run, for its result."""

    code: str
    reason: str


_NOT_NEEDED = _Why(WithdrawnError.code, "it was not needed any more")
_GIVEN_UP = _Why(WithdrawnError.code, "what called it was given up")
_SKIPPED = _Why(SKIPPED, "a group before it has failed")


async def complete(
    setup: ExecutorSetup, run: LedgerRun, calls: Sequence[Message], rule: Rule, *, exceeded: str | None = None
) -> list[Message]:
    """Run calls by a rule, append their results in the order of the calls, and return the results.

    With `exceeded`, the limit that they exceed, no call runs. Results are appended nevertheless, so that no call stays open.

    Raises:
        BudgetExceededError: the calls, or work nested in them, exceed a limit.
    """
    results = await _recorded_results(run, calls)
    read_taint(run, results.values())
    open_calls = [call for call in calls if call.id not in results]
    if open_calls:
        outcomes: dict[str, OptionResultPayload] = {}
        why = _NOT_NEEDED if exceeded is None else _Why(BudgetExceededError.code, exceeded)
        if exceeded is None:
            try:
                why = await _run_all(setup, open_calls, rule, outcomes)
            except BudgetExceededError as exc:
                if exc.limit is not None:
                    raise  # a new budget lets them run: they stay open
                why = _Why(exc.code, exc.reason)
        rows = [_result(call, outcomes.get(call.id) or _failed(call, why)) for call in open_calls]
        stored = await _append(run, with_taint(run, rows))
        results.update({call.id: result for call, result in zip(open_calls, stored, strict=True)})
    _raise_if_spent(results.values())
    return [results[call.id] for call in calls]


async def _recorded_results(run: LedgerRun, calls: Sequence[Message]) -> dict[str, Message]:
    """Return the results that the thread already has, by call id: from before a crash, or from others."""
    open_ids = {record.message.id for record in await run.ledger.open_calls(run.thread_id)}
    results: dict[str, Message] = {}
    for call in calls:
        if call.id not in open_ids:
            rows = await run.ledger.find(invocation_id=_payload(call).invocation_id, thread_id=run.thread_id)
            results[call.id] = [row.message for row in rows if (row.message.kind, row.message.lane) == _RESULT][-1]
    return results


def _raise_if_spent(results: Iterable[Message]) -> None:
    """Stop the run if a result reports a used-up budget. This is read from the result, so a restart decides the same."""
    for result in results:
        payload, is_by_runtime = result.payload, result.policy == RUNTIME_POLICY
        if is_by_runtime and isinstance(payload, OptionResultPayload) and payload.error_type == BudgetExceededError.code:
            raise BudgetExceededError(payload.error_message or "")


async def _run_all(
    setup: ExecutorSetup, calls: Sequence[Message], rule: Rule, outcomes: dict[str, OptionResultPayload]
) -> _Why:
    """Run stage after stage, store each outcome in `outcomes`, and return the reason why other calls have not run."""
    tools = await setup.options.tools()
    tools_called = {name: tools.get(name_among(tools, name)) for name in (_payload(call).option_name for call in calls)}
    never_cut = {name for name, tool in tools_called.items() if tool is not None and tool.effects == "once"}
    work = partial(_run_option, setup.options)
    for stage in stages(rule, calls):
        ended = await run_stage(stage, work, parallel=setup.limits.parallel, never_cut=never_cut)
        outcomes.update(ended.outcomes)
        if ended.error is not None:
            raise ended.error
        if stage.stop_on_error and any(outcome.is_error for outcome in ended.outcomes.values()):
            return _SKIPPED
    return _NOT_NEEDED


async def _run_option(options: Options, call: Message) -> OptionResultPayload:
    """Run an option, if the policy may and the arguments are valid, and return the outcome."""
    payload = _payload(call)
    if not _has_whole_arguments(payload):
        return _failed(call, _Why(_INVALID_ARGUMENTS, "the arguments are no JSON object"))
    try:
        return await options.toolkit.call(
            call.policy, payload.option_name, payload.arguments, invocation_id=payload.invocation_id
        )
    except ValueError as exc:  # no agent can have this name: the conversation comes from elsewhere
        return _failed(call, _Why(_PERMISSION_DENIED, str(exc)))


def _has_whole_arguments(payload: OptionCallPayload) -> bool:
    """Whether the arguments were read completely: a call with truncated arguments must not run."""
    if payload.arguments_text is None:
        return True
    try:
        return bool(json.loads(payload.arguments_text) == thaw(payload.arguments))
    except ValueError:
        return False


# ---------------------------------------------------------------- results


def _payload(call: Message) -> OptionCallPayload:
    assert isinstance(call.payload, OptionCallPayload)  # noqa: S101 (only calls come here)
    return call.payload


def _failed(call: Message, why: _Why) -> OptionResultPayload:
    return failed_result(_payload(call).invocation_id, _payload(call).option_name, why.code, why.reason)


def _result(call: Message, outcome: OptionResultPayload) -> Message:
    """Return an outcome as a message: by the option that ran, or by the runtime if it is an error."""
    response = OptionResultBuilder.response_to(call, policy=RUNTIME_POLICY if outcome.is_error else None).success()
    call_fields = {"invocation_id": _payload(call).invocation_id, "option_name": _payload(call).option_name}
    fields: dict[str, Any] = {
        "id": f"{call.id if len(call.id) <= _LONG else sha256(call.id.encode()).hexdigest()}@result",
        "payload": outcome.model_copy(update=call_fields),
        "turn_id": None,
        "created_at": None,  # the ledger's time is used: a row that is written again must be equal
    }
    return response.model_copy(update=fields)


async def _append(run: LedgerRun, results: list[Message]) -> list[Message]:
    """Append results; before them, close the calls that nested work left open, because nothing else will."""
    is_cut = any(isinstance(result.payload, OptionResultPayload) and result.payload.is_error for result in results)
    nested = await _open_nested_calls(run) if is_cut else []
    rows = [*(_result(call, _failed(call, _GIVEN_UP)) for call in nested), *results]
    try:
        records = await run.journal.write(run.thread_id, rows)
    except AppendRefusedError as exc:
        raise HistoryMismatchError(f"a call has another result already: {exc}", run.course.to) from exc
    return [record.message for record in records[len(nested) :]]


async def _open_nested_calls(run: LedgerRun) -> list[Message]:
    """Return the open calls of work nested in this loop, the deepest first."""
    prefix = f"{run.course.invocation_id}/"
    await run.journal.settle(run.thread_id)
    rows = [record.message for record in await run.ledger.open_calls(run.thread_id)]
    return [row for row in reversed(rows) if row.lane == "talk" and (row.parent_id or "").startswith(prefix)]
