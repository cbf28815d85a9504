"""Rules: which of the calls of one decision are run, in which order, and how many must succeed. They are data.

Every rule comes down to stages, one after the other. In a stage all calls run side by side, at most so many at once, until
enough have succeeded. Calls that are not needed any more are cancelled, except those that must not be done twice and have
begun: a cancelled one would have an unknown outcome. If one call cannot go on (a person must be asked, a budget is used up),
the others end first.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Collection, Iterable, Sequence
from typing import Annotated, Any, Final, Literal, NamedTuple, TypeAlias

from pydantic import BaseModel, ConfigDict, Field, TypeAdapter, ValidationError

from antiphon.messages import JsonObject, Message, OptionCallPayload, OptionResultPayload, thaw

# ---------------------------------------------------------------- rules


_NAMESPACE: Final = "options"


class _Rule(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class All(_Rule):
    """Every call runs to its end."""

    kind: Literal["all"] = "all"


class FirstSuccess(_Rule):
    """The first call that succeeds is enough."""

    kind: Literal["first_success"] = "first_success"


class NOfM(_Rule):
    """So many calls that succeed are enough."""

    kind: Literal["n_of_m"] = "n_of_m"
    n: int = Field(ge=1)


class Groups(_Rule):
    """One group after the other; within a group all calls run. What is in no group comes last."""

    kind: Literal["groups"] = "groups"
    groups: tuple[tuple[str, ...], ...] = Field(min_length=1)
    """By the names of options, or by invocation."""
    stop_on_error: bool = True
    """Whether the groups after one in which a call has failed are left out."""


Rule: TypeAlias = Annotated[All | FirstSuccess | NOfM | Groups, Field(discriminator="kind")]

_RULE: TypeAdapter[Any] = TypeAdapter(Rule)


class Stage(NamedTuple):
    """Calls that run side by side."""

    calls: tuple[Message, ...]
    enough: int | None = None
    """How many successes end it; None: all calls run to their end."""
    stop_on_error: bool = False
    """Whether the next stage is left out if a call of this one fails."""


def stages(rule: Rule, calls: Sequence[Message]) -> tuple[Stage, ...]:
    """Return what a rule makes of calls: each is in exactly one stage."""
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
    left = list(calls)
    for group in rule.groups:
        own = tuple(call for call in left if _names(call) & set(group))
        left = [call for call in left if call not in own]
        if own:
            yield Stage(own, stop_on_error=rule.stop_on_error)
    if left:
        yield Stage(tuple(left))


def _names(call: Message) -> set[str]:
    payload = call.payload
    return {payload.option_name, payload.invocation_id} if isinstance(payload, OptionCallPayload) else set()


def under(rule: Rule, calls: Iterable[Message]) -> list[Message]:
    """Return the calls of a decision, marked to be run by a rule other than the executor's own."""
    said = {_NAMESPACE: {"rule": rule.model_dump(mode="json")}}
    return [call.model_copy(update={"metadata": {**call.metadata, **said}}) for call in calls]


def rule_in(messages: Iterable[Message]) -> Rule | None:
    """Return the rule that a decision asks for, by the first of its messages that says one; None: it asks for none.

    Raises:
        ValueError: what it asks for is no rule.
    """
    for message in messages:
        own = message.metadata.get(_NAMESPACE)
        if isinstance(own, JsonObject) and "rule" in own:
            return _read(thaw(own)["rule"])
    return None


def _read(said: Any) -> Rule:
    try:
        rule: Rule = _RULE.validate_python(said)
    except ValidationError as exc:
        raise ValueError(f"a decision asks for what is no rule: {exc.errors()[0]['msg']}") from None
    return rule


# ---------------------------------------------------------------- running a stage


Work: TypeAlias = Callable[[Message], Awaitable[OptionResultPayload]]
"""Has a call run, and returns what came of it."""


class Ended(NamedTuple):
    """How a stage has ended."""

    outcomes: dict[str, OptionResultPayload]
    """By the ids of the calls; those that were not needed any more, or cannot go on, have none."""
    error: BaseException | None
    """Why the run cannot go on; None: it can."""


async def run_stage(stage: Stage, work: Work, *, parallel: int, never_cut: Collection[str]) -> Ended:
    """Run the calls of a stage; `never_cut` are the options that are waited for once they are begun."""
    return await _Race(stage, work, parallel, never_cut).run()


class _Race:
    def __init__(self, stage: Stage, work: Work, parallel: int, never_cut: Collection[str]) -> None:
        self._stage, self._work, self._never_cut = stage, work, never_cut
        self._slots = asyncio.Semaphore(parallel)
        self._held: set[str] = set()
        """The calls that are begun and must not be cut off."""

    async def run(self) -> Ended:
        tasks = {asyncio.create_task(self._one(call), name=call.id): call for call in self._stage.calls}
        try:
            await self._until_enough(set(tasks))
            for task, call in tasks.items():
                if call.id not in self._held:
                    task.cancel()
            await asyncio.wait(tasks)
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.wait(tasks)
        ended = {task: call for task, call in tasks.items() if not task.cancelled()}
        errors = [error for task in ended if (error := task.exception()) is not None]
        outcomes = {call.id: task.result() for task, call in ended.items() if task.exception() is None}
        return Ended(outcomes, errors[0] if errors else None)

    async def _one(self, call: Message) -> OptionResultPayload:
        async with self._slots:
            if _option(call) in self._never_cut:
                self._held.add(call.id)
            return await self._work(call)

    async def _until_enough(self, pending: set[asyncio.Task[OptionResultPayload]]) -> None:
        """Wait until enough have succeeded, or all have ended."""
        successes = 0
        while pending and (self._stage.enough is None or successes < self._stage.enough):
            done, pending = await asyncio.wait(pending, return_when=asyncio.FIRST_COMPLETED)
            successes += sum(1 for task in done if _has_succeeded(task))


def _has_succeeded(task: asyncio.Task[OptionResultPayload]) -> bool:
    return not task.cancelled() and task.exception() is None and not task.result().is_error


def _option(call: Message) -> str:
    return getattr(call.payload, "option_name", "")
