"""AP1xx: calls without results, results without calls, and results in the wrong place (OP-057, OP-058)."""

import pytest
from tests.checks.said import calls, codes, finding, gives, kinds, mended, says, warnings

from antiphon import RUNTIME_POLICY, Conversation, ForeignPart, OptionResultPayload, check, repair
from antiphon.checks import TARGETS, is_left_out

ADJACENT = ["openai-chat", "anthropic-messages", "gemini"]
"""The targets that look for results in what comes next."""
ASK = says("user", "How warm is it?")


def of(*messages: object) -> Conversation:
    return Conversation(messages)  # type: ignore[arg-type]


# ---------------------------------------------------------------- AP101


@pytest.mark.parametrize("target", [None, *TARGETS])
def test_a_call_without_a_result_is_closed_by_the_runtime(target: str | None) -> None:
    broken = of(ASK, calls("c1", step_num=3, thread_id="t", correlation_id="x", parent_id="p"), says("user", "Hello?"))

    assert codes(broken, target) == ["AP101"]
    result = mended(broken, target)[2]
    assert isinstance(result.payload, OptionResultPayload)
    assert (result.policy, result.payload.is_error, result.payload.error_type) == (RUNTIME_POLICY, True, "interrupted")
    assert (result.in_reply_to, result.step_num, result.thread_id) == (broken[1].id, 3, "t")
    assert (result.correlation_id, result.parent_id, result.created_at) == ("x", "p", None)
    assert result.metadata == {"checks": {"added": "AP101"}}


def test_the_missing_result_stands_after_those_that_are_there() -> None:
    broken = of(ASK, calls("c1"), calls("c2"), calls("c3"), gives("c2"), says("user", "Hello?"))

    assert kinds(mended(broken)) == ["user", "call c1", "call c2", "call c3", "result c2", "result c1", "result c3", "user"]


def test_an_open_call_of_the_protocol_may_be_under_way() -> None:
    """Control is not shown to a provider; without a target it is a warning. The journal is nobody's business."""
    pending = of(ASK, calls("c1", lane="control"), gives("c9", lane="control"), calls("c2", lane="effect"))

    assert (codes(pending), warnings(pending)) == ([], ["AP101", "AP102"])
    assert check(pending, "openai-chat") == []


def test_the_answer_has_the_providers_own_words() -> None:
    broken = of(ASK, calls("c1"))

    assert "The following tool_call_ids did not have response messages" in finding(broken, "AP101", "openai-chat").answer
    assert finding(broken, "AP101", "pydantic-ai").answer == "Pydantic AI refuses it."
    assert finding(broken, "AP101").answer.startswith("OpenAI Chat Completions, for one, answers: “An assistant message")


# ---------------------------------------------------------------- AP102, AP104


@pytest.mark.parametrize("target", [None, *TARGETS])
def test_an_orphan_is_kept_and_left_out(target: str | None) -> None:
    broken = of(ASK, gives("c1"), says("user", "Hello?"))

    assert codes(broken, target) == ["AP102"]
    made = mended(broken, target)
    assert [is_left_out(message) for message in made] == [False, True, False]
    assert made[1].payload == broken[1].payload


@pytest.mark.parametrize("setting", ["previous_response_id", "conversation"])
def test_an_orphan_may_answer_a_response_that_the_service_has(setting: str) -> None:
    """AP102: its call is in what the request refers to."""
    metadata = {"openai-responses": {"rest": {setting: "resp_1"}}}
    continued = Conversation([ASK, gives("c1")], metadata=metadata)

    assert (codes(continued, "openai-responses"), warnings(continued, "openai-responses")) == ([], ["AP102"])
    assert codes(continued) == ["AP102"]


def test_the_first_of_two_results_counts() -> None:
    broken = of(ASK, calls("c1"), gives("c1", "first"), gives("c1", "second"))

    assert codes(broken) == ["AP104"]
    assert [is_left_out(message) for message in mended(broken)] == [False, False, False, True]


# ---------------------------------------------------------------- AP103, AP106, AP109


@pytest.mark.parametrize("target", [None, *TARGETS])
def test_a_result_before_its_call_is_moved(target: str | None) -> None:
    broken = of(ASK, gives("c1"), calls("c1"), calls("c2"), gives("c2"))

    assert codes(broken, target) == ["AP103"]
    assert kinds(mended(broken, target)) == ["user", "call c1", "call c2", "result c2", "result c1"]


def test_of_several_results_before_it_one_belongs_to_the_call() -> None:
    broken = of(ASK, gives("c1", "first"), gives("c1", "second"), calls("c1"))

    assert codes(broken) == ["AP103", "AP102"]
    assert mended(broken)[-1].payload == broken[1].payload


@pytest.mark.parametrize("target", ADJACENT)
def test_results_are_moved_to_the_turn_that_called(target: str) -> None:
    broken = of(ASK, calls("c1"), calls("c2"), gives("c2"), says("user", "Hello?"), gives("c1"), says("user", "Well?"))

    assert codes(broken, target) == ["AP106"]
    assert kinds(mended(broken, target)) == ["user", "call c1", "call c2", "result c2", "result c1", "user", "user"]


@pytest.mark.parametrize("target", [None, "openai-responses", "pydantic-ai"])
def test_results_may_come_later_where_they_are_found_by_id(target: str | None) -> None:
    later = of(ASK, calls("c1"), says("user", "Hello?"), gives("c1"))

    assert codes(later, target) == []


@pytest.mark.parametrize("target", ADJACENT)
def test_each_turn_has_its_results_directly_after_it(target: str) -> None:
    """Calls of one turn may be answered in any order (OP-065); those of another turn stand apart."""
    one = of(ASK, calls("c1", turn_id="t1"), calls("c2", turn_id="t1"), gives("c2"), gives("c1"))
    two = of(ASK, calls("c1", turn_id="t1"), calls("c2", turn_id="t2"), gives("c2"), gives("c1"))

    assert codes(one, target) == []
    assert codes(two, target) == ["AP106"]
    assert kinds(mended(two, target))[:5:2] == ["user", "result c1", "result c2"]


def test_instructions_between_a_call_and_its_result_are_in_the_way() -> None:
    broken = of(ASK, calls("c1"), says("system", "Be terse."), gives("c1"))

    assert codes(broken, "anthropic-messages") == ["AP106"]


def test_units_that_the_dialect_would_have_joined_were_apart() -> None:
    """AP106, AP109: a note of the dialect says so."""
    apart = {"joined": False}
    turns = of(ASK, calls("c1", native="gemini"), calls("c2", native="gemini", notes=apart), gives("c1"), gives("c2"))
    signed = {"thoughtSignature": "AAEC"}
    results = of(
        ASK,
        calls("c1", native="gemini", notes=signed),
        calls("c2", native="gemini"),
        gives("c1", native="gemini"),
        gives("c2", native="gemini", notes=apart),
    )

    assert "AP106" in codes(turns, "gemini")
    assert codes(results, "gemini") == ["AP109"]
    assert "gemini" not in mended(results, "gemini")[4].metadata


# ---------------------------------------------------------------- AP105, AP108


@pytest.mark.parametrize("target", [None, *TARGETS])
def test_two_calls_of_one_turn_cannot_share_an_id(target: str | None) -> None:
    broken = of(ASK, calls("c1"), calls("c1"), gives("c1", "first"), gives("c1", "second"))

    assert codes(broken, target) == ["AP105"]
    made = mended(broken, target)
    assert [message.invocation_id for message in made][1:4:2] == ["c1", "c1"]
    assert made[2].invocation_id == made[4].invocation_id != "c1"
    assert all(each.call_id.accepts(str(made[2].invocation_id)) for each in TARGETS.values())


def test_an_id_that_is_used_again_is_refused_by_some() -> None:
    """AP105: formats that number the calls of each turn from zero are paired as they were meant."""
    again = of(ASK, calls("c1"), gives("c1"), ASK.model_copy(update={"id": "again"}), calls("c1"), gives("c1"))

    assert (codes(again), warnings(again)) == ([], ["AP105"])
    assert codes(again, "anthropic-messages") == ["AP105"]
    made = mended(again, "anthropic-messages")
    assert made[1].invocation_id == made[2].invocation_id == "c1"
    assert made[4].invocation_id == made[5].invocation_id != "c1"
    assert made[4].metadata == {"checks": {"mended": "AP105"}}


def test_an_open_call_that_shares_an_id_gets_one_of_its_own() -> None:
    made = mended(of(ASK, calls("c1"), calls("c1")))

    assert len({message.invocation_id for message in made if message.kind == "option_call"}) == 2
    assert len(made) == 5


def test_requests_of_the_protocol_that_share_an_id_are_told_apart() -> None:
    """AP105: whether or not they are answered."""
    made = mended(of(ASK, calls("c1", lane="control"), calls("c1", lane="control")))

    assert made[1].invocation_id == "c1" != made[2].invocation_id
    assert len(made) == 3


def test_two_messages_with_one_id_are_told_apart() -> None:
    broken = of(ASK, says("user", "Something else", id=ASK.id))

    assert codes(broken) == ["AP108"]
    made = mended(broken)
    assert made[0].id == ASK.id != made[1].id
    assert not is_left_out(made[1])


def test_a_message_that_is_there_twice_is_left_out_once() -> None:
    call, result = calls("c1"), gives("c1")
    made = mended(of(ASK, call, result, call, result), "anthropic-messages")

    assert [is_left_out(message) for message in made] == [False, False, False, True, True]
    assert len({message.id for message in made}) == 5


def test_an_item_whose_id_is_part_of_it_is_left_out() -> None:
    """AP108: an item that only the format knows cannot be given another id."""
    first, other = ({"type": "web_search_call", "id": "ws_1", "status": status} for status in ("completed", "failed"))
    parts = [
        ForeignPart(dialect="openai-responses", value=value, metadata={"openai-responses": {"item": True}})
        for value in (first, other)
    ]
    broken = of(ASK, *(says("assistant", part, id="ws_1", native="openai-responses") for part in parts))

    assert [is_left_out(message) for message in mended(broken, "openai-responses")] == [False, False, True]


def test_an_id_that_came_with_a_unit_goes_with_it() -> None:
    """AP108: the later item is written without the id that it shares."""
    notes = {"residue": [{"at": [0, "id"], "add": "fc_1"}]}
    first, second = (calls(each, id="fc_1", native="openai-responses", notes=notes) for each in ("c1", "c2"))
    made = mended(of(ASK, first, second, gives("c1"), gives("c2")), "openai-responses")

    assert made[1].metadata == {"openai-responses": notes}
    assert made[2].metadata == {"openai-responses": {}, "checks": {"mended": "AP108"}}


def test_a_result_is_of_the_option_that_was_called() -> None:
    """AP110: a warning; an orphan is of whatever it says."""
    other = of(ASK, calls("c1", "weather"), gives("c1", 18, "get_weather"))

    assert (codes(other), warnings(other)) == ([], ["AP110"])
    assert finding(other, "AP110").problem == "the result is of 'get_weather', and 'weather' was called"


# ---------------------------------------------------------------- AP107


def test_results_of_the_providers_tools_need_their_calls() -> None:
    def block(**value: str) -> ForeignPart:
        return ForeignPart(dialect="anthropic-messages", value=value)

    called = block(type="server_tool_use", id="s1")
    found = block(type="web_search_tool_result", tool_use_id="s1")
    whole = of(ASK, says("assistant", called, found, "There."), ASK.model_copy(update={"id": "b"}))
    cut = of(ASK, says("assistant", found, "There."), ASK.model_copy(update={"id": "b"}))

    assert codes(whole, "anthropic-messages") == []
    assert codes(cut, "anthropic-messages") == ["AP107"]
    assert [is_left_out(part) for part in mended(cut, "anthropic-messages")[1].parts] == [True, False]
    assert codes(cut, "gemini") == []


# ---------------------------------------------------------------- units


def test_a_unit_that_loses_a_message_forgets_how_it_was_written() -> None:
    """Its residue and joints are about places that have moved; what else was noted stays."""
    residue = [{"at": [0, "content", 1, "x"], "add": 1}]
    first = gives("c1", id="u", native="anthropic-messages", notes={"residue": residue})
    orphan = gives("c9", id="u#2", native="anthropic-messages", notes={"cache_control": {}})
    words = says("user", "Well?", id="u#3", native="anthropic-messages", notes={"joined": True})
    other = says("user", "Hello?", id="v", native="anthropic-messages", notes={"residue": residue})
    made = mended(of(ASK, calls("c1"), first, orphan, words, other), "anthropic-messages")

    assert made[2].metadata == {"anthropic-messages": {}}
    assert made[3].metadata == {"anthropic-messages": {"cache_control": {}}, "checks": {"left_out": "AP102"}}
    assert made[4].metadata == {"anthropic-messages": {}}
    assert made[5] == other


def test_a_result_that_is_added_within_a_unit_parts_it() -> None:
    first = gives("c1", id="u", native="anthropic-messages")
    words = says("user", "Well?", id="u#2", native="anthropic-messages", notes={"joined": True})
    made = mended(of(ASK, calls("c1"), calls("c2"), first, words), "anthropic-messages")

    assert kinds(made)[-3:] == ["result c1", "result c2", "user"]
    assert made[-1].metadata == {"anthropic-messages": {}}


def test_repair_reports_each_change() -> None:
    repaired = repair(of(ASK, gives("c9"), calls("c1")))

    assert [str(change) for change in repaired.changes] == [
        f"{repaired.conversation[1].id}: AP102: the message is kept, and left out of what is sent",
        f"{repaired.conversation[2].id}: AP101: an error result of the runtime is added, of type 'interrupted'",
    ]
