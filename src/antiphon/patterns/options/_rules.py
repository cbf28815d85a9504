"""Rules: which of the calls of one decision are run, in which order, and how many must succeed. They are data.

Every rule comes down to stages, one after the other; in a stage all calls run side by side until enough have succeeded.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Annotated, Any, Final, Literal, NamedTuple, TypeAlias

from pydantic import BaseModel, ConfigDict, Field, TypeAdapter, ValidationError

from antiphon.messages import JsonObject, Message, OptionCallPayload, thaw

__all__ = ["All", "FirstSuccess", "Groups", "NOfM", "Rule", "Stage", "rule_in", "stages", "under"]

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
