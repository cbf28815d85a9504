"""Permissions: who may call what, decided by arithmetic."""

import asyncio
import sys
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.agents.toolkit.kit import NOON

from antiphon.agents.toolkit import ApprovalRule, Grant, Permissions, Schema, Toolkit
from antiphon.agents.toolkit._decision import Circumstances, RequestedCall, judge

AGENTS = st.sampled_from(["ada", "bob"])
TOOLS = st.sampled_from(["read", "write", "send"])
WIDE = st.one_of(AGENTS, st.just("*")), st.one_of(TOOLS, st.just("*"))


def permit(permissions: Permissions, agent: str = "ada", tool: str = "read", used: int = 0, **arguments: Any) -> str:
    """Return the reason, and whether it is a yes."""
    counts = dict.fromkeys(permissions.grants, used)
    decided = permissions.decide(RequestedCall(agent, tool, arguments), counts, NOON)
    return f"yes: {decided.reason}" if decided.allowed else f"no: {decided.reason}"


def test_a_tool_without_a_grant_is_denied() -> None:
    """AT-036, S5."""
    assert permit(Permissions()) == "no: nobody has granted 'read' to 'ada'"
    assert permit(Permissions().grant(Grant("bob", "read"))) == "no: nobody has granted 'read' to 'ada'"
    assert permit(Permissions().grant(Grant("ada", "write"))) == "no: nobody has granted 'read' to 'ada'"


def test_a_grant_is_for_an_agent_and_a_tool_or_for_all_of_them() -> None:
    """AT-036."""
    for grant in (Grant("ada", "read"), Grant("ada", "*"), Grant("*", "read"), Grant("*", "*")):
        assert permit(Permissions().grant(grant)) == "yes: granted"


def test_a_revoked_tool_stays_revoked_for_an_agent_with_all_tools() -> None:
    """AT-036."""
    permissions = Permissions().grant(Grant("ada", "*")).revoke("ada", "write")

    assert permit(permissions, tool="read") == "yes: granted"
    assert permit(permissions, tool="write") == "no: 'write' was revoked for 'ada'"
    assert permit(permissions.grant(Grant("ada", "write")), tool="write") == "yes: granted"
    assert permit(permissions.revoke("ada"), tool="read") == "no: 'read' was revoked for 'ada'"


def test_a_grant_may_say_which_arguments_how_often_and_until_when() -> None:
    """S5: a grant is agent, tool, argument schema, budget, expiry."""
    cheap = Permissions().grant(Grant("ada", "read", where=Schema({"properties": {"n": {"maximum": 5}}, "required": ["n"]})))
    assert permit(cheap, n=5) == "yes: granted"
    assert permit(cheap, n=6).startswith("no: the grant is for other arguments: n: ")
    assert permit(cheap).startswith('no: the grant is for other arguments: "n" is a required')

    twice = Permissions().grant(Grant("ada", "read", calls=2))
    assert permit(twice, used=1) == "yes: granted"
    assert permit(twice, used=2) == "no: the grant was for 2 call(s) in a thread, and they are used up"

    short = Permissions().grant(Grant("ada", "read", until=NOON))
    assert permit(short) == "no: the grant ended at 2026-01-01T12:00:00+00:00"
    assert permit(short.grant(Grant("ada", "read", until=NOON + timedelta(seconds=1)))) == "yes: granted"


@pytest.mark.parametrize(
    "name", ["dеlete", "delete\u200b", "delete ", "DELETE\u0000", "", "a" * 200, "délete", "dele\u00adte", "*x", "../x"]
)
def test_no_grant_is_for_a_name_that_looks_like_another(name: str) -> None:
    """S5: twins in Unicode, invisible characters."""
    with pytest.raises(ValueError, match="not a valid name of a tool"):
        Grant("ada", name)
    assert permit(Permissions().grant(Grant("ada", "delete")), tool=name).startswith("no: nobody has granted")


@pytest.mark.parametrize("name", ["аda", "ada\u200b", "ada bob", "", "a" * 300, "runtime\n"])
def test_no_agent_has_a_name_that_looks_like_another(name: str) -> None:
    with pytest.raises(ValueError, match="not a valid name of an agent"):
        Grant(name, "read")


def test_names_are_case_sensitive() -> None:
    assert permit(Permissions().grant(Grant("ada", "read")), tool="Read").startswith("no:")
    assert permit(Permissions().grant(Grant("ada", "read")), agent="Ada").startswith("no:")


@pytest.mark.parametrize(
    ("fields", "wrong"),
    [
        ({"calls": 0}, "at least one call"),
        ({"until": NOON.replace(tzinfo=None)}, "needs its zone"),
    ],
)
def test_a_grant_that_means_nothing_is_refused(fields: dict[str, Any], wrong: str) -> None:
    with pytest.raises(ValueError, match=wrong):
        Grant("ada", "read", **fields)


@given(st.lists(st.tuples(st.booleans(), *WIDE), max_size=8), AGENTS, TOOLS)
def test_the_last_word_about_an_agent_and_a_tool_counts(changes: list[tuple[bool, str, str]], agent: str, tool: str) -> None:
    """S5: for any history of grants and revocations, the decision is that of the last one that covers the call."""
    permissions, expected = Permissions(), False
    for is_grant, who, what in changes:
        permissions = permissions.grant(Grant(who, what)) if is_grant else permissions.revoke(who, what)
        if Grant(who, what).covers(agent, tool):
            expected = is_grant
    assert permissions.decide(RequestedCall(agent, tool), {}, NOON).allowed is expected
    assert permissions.knows(agent, tool) is expected


# ---------------------------------------------------------------- the whole decision


def judged(*rules: ApprovalRule, **circumstances: Any) -> tuple[str, str]:
    known = Permissions().grant(Grant("ada", "pay"))
    decision = judge(
        known,
        rules,
        RequestedCall("ada", "pay", {"amount": 100}),
        replace(Circumstances(NOON, {}, approval=False, tainted=None), **circumstances),
    )
    return decision.verdict, decision.reason


def test_a_person_is_asked_because_of_the_tool_a_rule_or_what_was_read() -> None:
    assert judged() == ("allow", "granted")
    assert judged(approval=True) == ("ask", "'pay' needs an approval, whatever it is called with")
    assert judged(ApprovalRule("pay"))[0] == "ask"
    assert judged(ApprovalRule(where=Schema({"properties": {"amount": {"minimum": 100}}})))[0] == "ask"
    assert judged(ApprovalRule(where=Schema({"properties": {"amount": {"minimum": 101}}})))[0] == "allow"
    assert judged(ApprovalRule("read"), ApprovalRule(agent="bob"))[0] == "allow"
    assert judged(tainted="what 'web' returned") == ("ask", "this turn has read untrusted content: what 'web' returned")


def test_nobody_is_asked_about_what_is_denied_anyway() -> None:
    call = RequestedCall("bob", "pay", {})
    decision = judge(Permissions(), [ApprovalRule()], call, Circumstances(NOON, {}, approval=True, tainted=None))

    assert (decision.verdict, decision.reason) == ("deny", "nobody has granted 'pay' to 'bob'")


# ---------------------------------------------------------------- the digest


@pytest.mark.parametrize(
    "other",
    [
        RequestedCall("bob", "pay", {"n": 1}, "t", "i"),
        RequestedCall("ada", "pay2", {"n": 1}, "t", "i"),
        RequestedCall("ada", "pay", {"n": 1.0}, "t", "i"),
        RequestedCall("ada", "pay", {"n": True}, "t", "i"),
        RequestedCall("ada", "pay", {"n": "1"}, "t", "i"),
        RequestedCall("ada", "pay", {"n": 1, "m": None}, "t", "i"),
        RequestedCall("ada", "pay", {"n": 1}, "u", "i"),
        RequestedCall("ada", "pay", {"n": 1}, "t", "j"),
        RequestedCall("ada", "pay", {"n": 1}, None, "i"),
    ],
)
def test_another_call_has_another_digest(other: RequestedCall) -> None:
    """S5: approve A, run B; arguments widened after approval."""
    assert other.digest != RequestedCall("ada", "pay", {"n": 1}, "t", "i").digest


def test_the_order_of_arguments_makes_no_difference() -> None:
    assert RequestedCall("ada", "pay", {"a": 1, "b": [2]}).digest == RequestedCall("ada", "pay", {"b": [2], "a": 1}).digest


# ---------------------------------------------------------------- many threads


@pytest.fixture
def hasty() -> Iterator[None]:
    """Have threads take turns as often as they can."""
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    yield
    sys.setswitchinterval(before)


@pytest.mark.usefixtures("hasty")
def test_no_change_is_lost_that_is_made_beside_others() -> None:
    """AT-059, S5: a revocation that got lost would be a permission."""
    toolkit = Toolkit()
    toolkit.grant("*", "pay")

    def change(number: int) -> None:
        for each in range(20):
            toolkit.grant(f"agent-{number}-{each}", "look")
            toolkit.revoke(f"agent-{number}-{each}", "pay")

    with ThreadPoolExecutor(8) as pool:
        list(pool.map(change, range(8)))

    agents = [f"agent-{number}-{each}" for number in range(8) for each in range(20)]
    assert [agent for agent in agents if not toolkit.permissions.knows(agent, "look")] == []
    assert [agent for agent in agents if toolkit.permissions.knows(agent, "pay")] == []


@pytest.mark.usefixtures("hasty")
def test_a_grant_for_some_calls_is_not_for_more_from_many_threads() -> None:
    """AT-059, S5."""
    toolkit, paid = Toolkit(), list[int]()

    def pay_out(number: int) -> None:
        paid.append(number)

    toolkit.add(pay_out, name="pay")
    toolkit.grant("clerk", "pay", calls=10)

    def pay(number: int) -> str | None:
        return asyncio.run(toolkit.call("clerk", "pay", {"number": number})).error_type

    with ThreadPoolExecutor(8) as pool:
        outcomes = Counter(pool.map(pay, range(60)))

    assert outcomes == {None: 10, "PERMISSION_DENIED": 50}
    assert len(paid) == 10
