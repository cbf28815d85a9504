"""Requests to the executor, the limits of a run, and the rules for the calls of one decision.

Rules say which calls of one decision run, in which order, and how many must succeed. They are data. Every rule becomes a
sequence of stages. The calls of a stage run in parallel, up to a limit, until enough have succeeded. Calls that are no longer
needed are cancelled, except started calls that must not run twice: their outcome would be unknown. If a call cannot continue
(a person must decide, a budget is used up), the others end first.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Collection, Iterable, Sequence
from typing import Annotated, Any, Final, Literal, NamedTuple, TypeAlias

from pydantic import BaseModel, ConfigDict, Field, TypeAdapter, ValidationError

from antiphon.messages import JsonObject, Message, OptionCallPayload, OptionResultPayload, thaw
from antiphon.patterns._decisions import RUN
from antiphon.protocol import Reply, Request

# ---------------------------------------------------------------- requests

PATTERN: Final = "options"
"""The name of the pattern in lists of threads."""
DECIDE: Final = "DECIDE"
"""The name of a decision in the journal."""


class PolicyRan(Reply, frozen=True, type="POLICY_RAN"):
    """The answer of the policy."""

    response: str | None = None
    data: Any = None
    """The same as a JSON value, if it is more than text."""


class RunPolicy(Request[PolicyRan], frozen=True, type=RUN, family="options"):
    """Run a policy and its calls until it calls nothing."""

    policy: str
    input: str | None = None
    """The task, as text; without one, the policy observes the messages of the thread."""


class CallsCompleted(Reply, frozen=True, type="CALLS_COMPLETED"):
    """All calls have results."""

    results: tuple[str, ...] = ()
    """The ids of the results."""


class CompleteCalls(Request[CallsCompleted], frozen=True, type="COMPLETE_CALLS", family="options"):
    """Run every call of the thread that has no result, except those of nested loops."""

    observations: tuple[str, ...] = ()
    """A conversation to append first, as messages in the house format."""


# ---------------------------------------------------------------- limits


class ExecutorLimits(BaseModel):
    """The limits of one run with everything nested in it; None: no limit. Work that has started may end."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    steps: int | None = Field(default=100, ge=1)
    """Decisions of policies."""
    calls: int | None = Field(default=None, ge=0)
    """Calls of options."""
    seconds: float | None = Field(default=None, gt=0)
    """Since the request, including downtime."""
    depth: int = Field(default=8, ge=0)
    """How deep policies may be nested."""
    parallel: int = Field(default=16, ge=1)
    """How many calls of one decision run in parallel."""


# ---------------------------------------------------------------- rules

_NAMESPACE: Final = "options"


class _Rule(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class All(_Rule):
    """Run every call to its end."""

    kind: Literal["all"] = "all"


class FirstSuccess(_Rule):
    """One successful call is enough."""

    kind: Literal["first_success"] = "first_success"


class NOfM(_Rule):
    """`n` successful calls are enough."""

    kind: Literal["n_of_m"] = "n_of_m"
    n: int = Field(ge=1)


class Groups(_Rule):
    """One group after the other; all calls of a group run. Calls without a group run last."""

    kind: Literal["groups"] = "groups"
    groups: tuple[tuple[str, ...], ...] = Field(min_length=1)
    """Names of options, or invocation ids."""
    stop_on_error: bool = True
    """Whether the groups after a failed call are skipped."""


Rule: TypeAlias = Annotated[All | FirstSuccess | NOfM | Groups, Field(discriminator="kind")]

_RULE: TypeAdapter[Any] = TypeAdapter(Rule)


class Stage(NamedTuple):
    """Calls that run in parallel."""

    calls: tuple[Message, ...]
    enough: int | None = None
    """The number of successes that ends it; None: all calls run to their end."""
    stop_on_error: bool = False
    """Whether the next stages are skipped if a call of this one fails."""


def stages(rule: Rule, calls: Sequence[Message]) -> tuple[Stage, ...]:
    """Divide calls into stages by a rule: each call is in exactly one stage."""
    match rule:
        case All():
            return (Stage(tuple(calls)),)
        case FirstSuccess():
            return (Stage(tuple(calls), enough=1),)
        case NOfM(n=n):
            return (Stage(tuple(calls), enough=n),)
        case Groups():
            return tuple(_grouped(rule, calls))


def _grouped(rule: Groups, calls: Sequence[Message]) -> Iterable[Stage]:
    ungrouped = list(calls)
    for group in rule.groups:
        members = tuple(call for call in ungrouped if _names(call) & set(group))
        ungrouped = [call for call in ungrouped if call not in members]
        if members:
            yield Stage(members, stop_on_error=rule.stop_on_error)
    if ungrouped:
        yield Stage(tuple(ungrouped))


def _names(call: Message) -> set[str]:
    payload = call.payload
    return {payload.option_name, payload.invocation_id} if isinstance(payload, OptionCallPayload) else set()


def under(rule: Rule, calls: Iterable[Message]) -> list[Message]:
    """Return the calls of a decision with a rule in their metadata, which replaces the executor's."""
    metadata = {_NAMESPACE: {"rule": rule.model_dump(mode="json")}}
    return [call.model_copy(update={"metadata": {**call.metadata, **metadata}}) for call in calls]


def rule_in(messages: Iterable[Message]) -> Rule | None:
    """Return the rule of a decision: the rule of the first message that has one; None: there is none."""
    for message in messages:
        metadata = message.metadata.get(_NAMESPACE)
        if isinstance(metadata, JsonObject) and "rule" in metadata:
            try:
                rule: Rule = _RULE.validate_python(thaw(metadata)["rule"])
            except ValidationError as exc:
                raise ValueError(f"a decision names an invalid rule: {exc.errors()[0]['msg']}") from None
            return rule
    return None


# ---------------------------------------------------------------- running a stage

Work: TypeAlias = Callable[[Message], Awaitable[OptionResultPayload]]
"""Runs a call, and returns the outcome."""


class StageEnd(NamedTuple):
    """The end of a stage."""

    outcomes: dict[str, OptionResultPayload]
    """By call id; calls that were no longer needed, or cannot continue, have none."""
    error: BaseException | None
    """The reason why the run cannot continue; None: it can."""


async def run_stage(stage: Stage, work: Work, *, parallel: int, never_cut: Collection[str]) -> StageEnd:
    """Run the calls of a stage; `never_cut` are options that are never cancelled after they have started."""
    slots, uncancellable = asyncio.Semaphore(parallel), set[str]()

    async def run_call(call: Message) -> OptionResultPayload:
        async with slots:
            if getattr(call.payload, "option_name", "") in never_cut:
                uncancellable.add(call.id)
            return await work(call)

    tasks = {asyncio.create_task(run_call(call), name=call.id): call for call in stage.calls}
    try:
        pending, successes = set(tasks), 0
        while pending and (stage.enough is None or successes < stage.enough):
            done, pending = await asyncio.wait(pending, return_when=asyncio.FIRST_COMPLETED)
            ended = [task for task in done if not task.cancelled() and task.exception() is None]
            successes += sum(1 for task in ended if not task.result().is_error)
        for task, call in tasks.items():
            if call.id not in uncancellable:
                task.cancel()
        await asyncio.wait(tasks)
    finally:  # a cancelled run cancels all: a call that went on would write to a thread that nobody owns here
        for task in tasks:
            task.cancel()
        await asyncio.wait(tasks)
    ended = [task for task in tasks if not task.cancelled()]
    errors = [error for task in ended if (error := task.exception()) is not None]
    outcomes = {tasks[task].id: task.result() for task in ended if task.exception() is None}
    return StageEnd(outcomes, errors[0] if errors else None)
