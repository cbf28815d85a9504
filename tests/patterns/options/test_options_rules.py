"""Rules for the calls of one decision: they are data, and every call ends exactly once whatever the rule."""

import asyncio
from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import TypeAdapter
from tests.patterns.chains import run

from antiphon.ledger.memory import MemoryLedger
from antiphon.messages import Conversation, Message, OptionCallPayload, OptionResultPayload
from antiphon.patterns.options import All, Choices, Executor, FirstSuccess, Groups, NOfM, Options, Rule, under
from antiphon.patterns.options._rules import rule_in, stages

NAMES = st.sampled_from(["a", "b", "c", "d"])
RULES = st.one_of(
    st.builds(All),
    st.builds(FirstSuccess),
    st.builds(NOfM, n=st.integers(1, 6)),
    st.builds(
        Groups,
        groups=st.lists(st.lists(NAMES, max_size=3).map(tuple), min_size=1, max_size=4).map(tuple),
        stop_on_error=st.booleans(),
    ),
)


def calls_of(names: Sequence[str]) -> list[Message]:
    return [
        Message(policy="p", payload=OptionCallPayload(invocation_id=f"i{place}", option_name=name, arguments={}))
        for place, name in enumerate(names)
    ]


@given(RULES, st.lists(NAMES, min_size=1, max_size=8))
def test_every_call_is_in_exactly_one_stage(rule: Rule, names: list[str]) -> None:
    """OP-065"""
    calls = calls_of(names)
    found = [call.invocation_id for stage in stages(rule, calls) for call in stage.calls]
    assert sorted(map(str, found)) == sorted(str(call.invocation_id) for call in calls)
    assert all(stage.calls for stage in stages(rule, calls))


@given(RULES, st.lists(NAMES, min_size=1, max_size=3))
def test_a_rule_is_data_and_travels_with_a_decision(rule: Rule, names: list[str]) -> None:
    """OP-065, OP-066: as JSON, in the metadata of the calls: the message types know nothing of it."""
    adapter: TypeAdapter[Any] = TypeAdapter(Rule)
    assert adapter.validate_json(adapter.dump_json(rule)) == rule
    assert rule_in(under(rule, calls_of(names))) == rule
    assert rule_in(calls_of(names)) is None
    assert hash(rule) == hash(rule.model_copy())


@pytest.mark.parametrize("wrong", [{"kind": "some"}, {"kind": "n_of_m", "n": 0}, {"kind": "groups", "groups": []}, "all"])
def test_an_invalid_rule_is_refused(wrong: Any) -> None:
    call = calls_of(["a"])[0].model_copy(update={"metadata": {"options": {"rule": wrong}}})
    with pytest.raises(ValueError, match="names an invalid rule"):
        rule_in([call])


# ---------------------------------------------------------------- at work


class Course:
    """Options that record when they begin and end, and end when they are told to."""

    def __init__(self) -> None:
        self.began: list[str] = []
        self.ended: list[str] = []
        self.cancelled: list[str] = []
        self.gates: dict[str, asyncio.Event] = {}
        self.options = Options()
        for effects in ("none", "once"):
            self.options.add(self.wait, name=effects, effects=effects)

    def gate(self, name: str) -> asyncio.Event:
        return self.gates.setdefault(name, asyncio.Event())

    async def wait(self, name: str, opens: list[str], fails: bool = False) -> str:
        """Open the gates of others, and wait for one's own; if cancelled, let the late one go."""
        self.began.append(name)
        for other in opens:
            self.gate(other).set()
        try:
            await self.gate(name).wait()
        except asyncio.CancelledError:
            self.cancelled.append(name)
            self.gate("late").set()
            raise
        self.ended.append(name)
        if fails:
            raise ValueError(name)
        return name

    def outcomes(self, *calls: tuple[str, dict[str, Any]], rule: Rule) -> list[str]:
        """Run calls by a rule, and return the outcome of each: its result or its error."""

        def clerk(observations: Conversation, choices: Choices) -> Any:
            if observations.calls():
                return "Done."
            return under(rule, [choices.call(option, **arguments) for option, arguments in calls])

        async def main() -> list[str]:
            self.options.add_policy(clerk)
            ledger = MemoryLedger()
            async with Executor(ledger, self.options, policy="clerk") as executor:
                assert (await executor.run("Well?", thread_id="t")).response == "Done."
            assert not await ledger.open_calls("t")
            found = [record.message.payload async for record in ledger.read("t") if record.message.lane == "talk"]
            results = [each for each in found if isinstance(each, OptionResultPayload)]
            assert len(results) == len(calls)
            return [str(each.error_type if each.is_error else each.result) for each in results]

        return run(main())


def call(name: str, *opens: str, option: str = "none", fails: bool = False) -> tuple[str, dict[str, Any]]:
    return option, {"name": name, "opens": list(opens), "fails": fails}


def test_the_first_success_is_enough_and_the_others_are_cancelled_and_say_so() -> None:
    """OP-065: one that fails is no success."""
    course = Course()
    found = course.outcomes(call("a"), call("b", "b", fails=True), call("c", "c"), rule=FirstSuccess())
    assert found == ["CANCELLED", "ValueError", "c"]
    assert (course.cancelled, course.ended) == (["a"], ["b", "c"])


def test_if_none_succeeds_all_have_ended() -> None:
    course = Course()
    found = course.outcomes(call("a", "b", fails=True), call("b", "a", fails=True), rule=FirstSuccess())
    assert found == ["ValueError", "ValueError"]


def test_the_rule_may_ask_for_a_number_of_successes() -> None:
    """OP-065"""
    course = Course()
    found = course.outcomes(call("a", "a"), call("b"), call("c", "c"), call("d"), rule=NOfM(n=2))
    assert found == ["a", "CANCELLED", "c", "CANCELLED"]


def test_a_started_once_call_is_waited_for() -> None:
    """G7: its outcome would be unknown if it were cut off."""
    course = Course()
    found = course.outcomes(call("late", option="once"), call("b", "b"), call("c"), rule=FirstSuccess())
    assert found == ["late", "b", "CANCELLED"]
    assert (course.cancelled, course.ended) == (["c"], ["b", "late"])


def test_groups_follow_each_other() -> None:
    """OP-065: by option or by invocation, what is in none comes last; results stand in the order of the calls."""
    course = Course()
    for name in ("first", "second"):
        course.options.add(course.wait, name=name, effects="none")
    found = course.outcomes(
        call("c", "c"),
        call("b", "b", option="second"),
        call("a", "a", option="first"),
        rule=Groups(groups=(("first",), ("second",))),
    )
    assert found == ["c", "b", "a"]
    assert course.began == ["a", "b", "c"]


@pytest.mark.parametrize(("stops", "last"), [(True, "SKIPPED"), (False, "b")])
def test_groups_after_a_failed_one_are_skipped_unless_the_rule_says_otherwise(stops: bool, last: str) -> None:
    """OP-065"""
    course = Course()
    course.options.add(course.wait, name="first", effects="none")
    rule = Groups(groups=(("first",), ("none",)), stop_on_error=stops)
    assert course.outcomes(call("b", "b"), call("a", "a", option="first", fails=True), rule=rule) == [last, "ValueError"]


async def test_a_once_call_of_a_cancelled_policy_waits_for_a_person_and_the_run_continues() -> None:
    """G7: its outcome is unknown, so it is neither repeated nor forgotten."""
    course = Course()

    options, ledger = course.options, MemoryLedger()
    options.add_policy(lambda observations, choices: choices.call("once", name="b", opens=["a"]), name="payer", to=["boss"])

    @options.policy()
    def boss(observations: Conversation, choices: Choices) -> Any:
        if observations.calls():
            return "Done."
        return under(FirstSuccess(), [choices.call("payer", task="Pay."), choices.call("none", name="a", opens=[])])

    async with Executor(ledger, options, policy="boss") as executor:
        assert (await executor.run("Well?", thread_id="t")).response == "Done."
        (parked,) = await executor.system.parked()
    assert "nobody knows whether 'once' was done" in parked.reason
    talk = Conversation([record.message async for record in ledger.read("t") if record.message.lane == "talk"])
    assert (talk.open_calls(), course.cancelled) == ((), ["b"])
