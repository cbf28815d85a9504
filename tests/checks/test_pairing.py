"""AP1xx: calls without results, results without calls, and results in the wrong place (OP-057, OP-058)."""

import pytest
from tests.checks.said import calls, codes, finding, gives, kinds, mended, mended_for, says, warnings

from antiphon import (
    RUNTIME_POLICY,
    Conversation,
    ForeignPart,
    MediaPart,
    OptionResultPayload,
    ReasoningPart,
    check,
    decode,
    encode,
    repair,
)
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
    assert (codes(continued), warnings(continued)) == ([], ["AP102"])


def test_the_caller_may_answer_a_tool_of_the_service() -> None:
    """AP102: a tool search is called by the service, and its result given as that of a function."""
    search = {"type": "tool_search_call", "call_id": "search_1", "arguments": {}}
    output = {"type": "function_call_output", "call_id": "search_1", "output": "none"}
    searched = decode([{"role": "user", "content": "Hi"}, search, output], "openai-responses")
    other = decode([{"role": "user", "content": "Hi"}, search, {**output, "call_id": "c2"}], "openai-responses")

    assert codes(searched) == codes(searched, "openai-responses") == []
    assert codes(other) == codes(other, "openai-responses") == ["AP102"]


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
    """Calls of one turn may be answered in any order (OP-065); some take turns in a row for one."""
    one = of(ASK, calls("c1", turn_id="t1"), calls("c2", turn_id="t1"), gives("c2"), gives("c1"))
    two = of(ASK, calls("c1", turn_id="t1"), calls("c2", turn_id="t2"), gives("c2"), gives("c1"))

    assert codes(one, target) == []
    assert codes(two, target) == ([] if TARGETS[target].joins_turns else ["AP106"])
    if not TARGETS[target].joins_turns:
        assert kinds(mended(two, target))[:5:2] == ["user", "result c1", "result c2"]
    late = of(ASK, calls("c1", turn_id="t1"), calls("c2", turn_id="t2"), gives("c2"), says("user", "Well?"), gives("c1"))
    assert codes(late, target) == ["AP106"] * len(codes(late, target)) != []


def test_instructions_between_a_call_and_its_result_are_in_the_way() -> None:
    broken = of(ASK, calls("c1"), says("system", "Be terse."), gives("c1"))

    assert codes(broken, "anthropic-messages") == ["AP106"]


def test_units_that_the_dialect_would_have_joined_were_apart() -> None:
    """AP402, AP109: a note of the dialect says so. Newer models take both."""
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

    assert (codes(turns, "gemini"), warnings(turns, "gemini")) == ([], ["AP508", "AP402", "AP508"])
    assert (codes(results, "gemini"), warnings(results, "gemini")) == ([], ["AP109"])


# ---------------------------------------------------------------- AP105, AP108


@pytest.mark.parametrize("target", [None, *TARGETS])
def test_two_calls_of_one_turn_cannot_share_an_id(target: str | None) -> None:
    broken = of(ASK, calls("c1"), calls("c1"), gives("c1", "first"), gives("c1", "second"))

    assert codes(broken, target) == ["AP105"]
    made = mended(broken, target)
    assert [message.invocation_id for message in made][1:4:2] == ["c1", "c1"]
    assert made[2].invocation_id == made[4].invocation_id != "c1"
    assert all(each.call_id.accepts(str(made[2].invocation_id)) for each in TARGETS.values())


def test_an_id_that_is_used_again_in_a_later_turn_is_taken() -> None:
    """AP105: formats that number the calls of each turn from zero are paired as they were meant."""
    again = of(ASK, calls("c1"), gives("c1"), ASK.model_copy(update={"id": "again"}), calls("c1"), gives("c1"))

    assert (codes(again), warnings(again)) == ([], ["AP105"])
    assert (codes(again, "anthropic-messages"), warnings(again, "anthropic-messages")) == ([], ["AP105"])


def test_an_id_that_two_calls_of_one_turn_have_is_told_apart() -> None:
    """AP105"""
    made = mended(of(ASK, calls("c1", turn_id="t"), calls("c1", turn_id="t"), gives("c1"), gives("c1")), "anthropic-messages")

    assert made[1].invocation_id == "c1" != made[2].invocation_id
    assert made[2].metadata == {"checks": {"mended": "AP105"}}


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


CHAT_ANSWER = {"choices": [{"index": 0, "finish_reason": "stop", "message": {"role": "assistant", "content": "Yes."}}]}
GEMINI_CALL = {"role": "model", "parts": [{"text": "I look."}, {"functionCall": {"name": "weather", "args": {}}}]}
GEMINI_RESULT = {"role": "user", "parts": [{"functionResponse": {"name": "weather", "response": {"output": 18}}}]}


@pytest.mark.parametrize("target", [None, *TARGETS])
def test_equal_answers_that_were_read_apart_are_both_kept(target: str | None) -> None:
    """AP108: the dialect makes equal ids of them, since it was given none; nobody said anything twice by mistake."""
    once, again = (decode(CHAT_ANSWER, "openai-chat")[0] for _ in range(2))
    history = of(ASK, once, says("user", "Really?"), again, says("user", "Well."))

    assert once.id == again.id
    assert codes(history, target) == ["AP108"]
    made = mended_for(target, history) if target else mended(history)
    assert not any(map(is_left_out, made))
    assert (made[1].id, made[3].payload) == (once.id, again.payload)
    assert str(encode(made, target or "openai-chat").value).count("Yes.") == 2


@pytest.mark.parametrize("target", TARGETS)
def test_equal_calls_and_results_that_were_read_apart_stay_pairs(target: str) -> None:
    """AP108, AP105: also where the format numbers no calls, so that all ids are equal."""
    step = decode([GEMINI_CALL, GEMINI_RESULT], "gemini")
    history = of(ASK, *step, says("user", "And now?"), *step)

    assert "AP108" in codes(history, target)
    made = mended_for(target, history)
    assert len(made) == len(history)
    assert not any(map(is_left_out, made))
    assert len({message.id for message in made}) == len(made)
    assert [made[result].payload.kind for _, result in made.pairs()] == ["option_result"] * 2
    assert not made.open_calls()


def test_what_was_one_unit_is_one_under_its_new_id() -> None:
    """AP108: a dialect joins what has the same stem, and so does the order in which the wire had it."""
    blocks = [{"type": "tool_result", "tool_use_id": "t1", "content": "18"}, {"type": "text", "text": "Go on."}]
    call = {"role": "assistant", "content": [{"type": "tool_use", "id": "t1", "name": "weather", "input": {}}]}
    step = decode([call, {"role": "user", "content": blocks}], "anthropic-messages")
    renamed = [
        message.model_copy(update={"payload": message.payload.model_copy(update={"invocation_id": "t2"})})
        if message.kind != "parts"
        else message
        for message in step
    ]
    for target in (None, "anthropic-messages"):
        made = mended(of(ASK, *step, *renamed), target)
        head, other = made[-2].id, made[-1].id
        assert (other, head != step[1].id) == (f"{head}#2", True)
        written = encode(made, "anthropic-messages").value["messages"]
        assert [len(unit["content"]) for unit in written[-2:]] == [1, 2]


def test_an_answer_that_is_there_twice_has_one_id_on_the_wire() -> None:
    """AP108: the later one is written without the id that both came with; all else of it is as it was."""
    answer = {
        "kind": "response",
        "parts": [{"part_kind": "text", "content": "Yes."}],
        "model_name": "m",
        "provider_response_id": "msg_1",
    }
    ask = {"kind": "request", "parts": [{"part_kind": "user-prompt", "content": "Is it?"}]}
    broken = decode([ask, answer, ask, answer, ask], "pydantic-ai")

    assert "AP108" in codes(broken, "pydantic-ai")
    written = encode(mended(broken, "pydantic-ai"), "pydantic-ai").value
    assert codes(decode(written, "pydantic-ai"), "pydantic-ai") == []
    assert [unit.get("provider_response_id") for unit in written][1:4:2] == ["msg_1", None]
    assert written[3]["model_name"] == "m"


def test_a_reply_goes_with_the_call_that_it_is_to() -> None:
    """AP108: what the result of a renamed call replies to is that call."""
    first, second = calls("c1", id="call"), calls("c2", id="call")
    made = mended(of(ASK, first, gives("c1", in_reply_to="call"), second, gives("c2", in_reply_to="call")))

    assert [message.in_reply_to for message in made] == [None, None, "call", None, made[3].id]


def test_a_message_that_is_there_twice_in_a_row_is_left_out_once() -> None:
    """AP108: only directly beside its twin, which says the same to the letter."""
    assert [is_left_out(message) for message in mended(of(ASK, ASK, ASK))] == [False, True, True]
    assert not any(map(is_left_out, mended(of(ASK, says("user", "Well?"), ASK))))
    other = ASK.model_copy(update={"policy": "ada"})
    assert not any(map(is_left_out, mended(of(ASK, other))))


def test_half_of_a_pair_is_never_taken_for_a_repetition() -> None:
    """AP108: a call that has a result, and a result that has a call; the same without one is."""
    call, result = calls("c1"), gives("c1")
    pairs = mended(of(ASK, call, call, result, result))
    early = mended(of(ASK, result, result, call, call))
    later = mended(of(ASK, call, result, call, result))

    for made in (pairs, early, later):
        assert not any(map(is_left_out, made))
        assert len({message.id for message in made}) == len(made) == 5
        assert len(made.pairs()) == 2
    assert [is_left_out(message) for message in mended(of(ASK, call, call, result))] == [False, False, True, False]
    assert [is_left_out(message) for message in mended(of(ASK, call, result, result))] == [False, False, False, True]


def item(status: str, id: str = "ws_1") -> ForeignPart:
    value = {"type": "web_search_call", "id": id, "status": status, "action": {"type": "search", "query": "q"}}
    return ForeignPart(dialect="openai-responses", value=value, metadata={"openai-responses": {"item": True}})


def image(id: str) -> MediaPart:
    return MediaPart(modality="image", url="data:image/png;base64,AAAA", metadata={"openai-responses": {"id": id}})


def thought(id: str, text: str) -> ReasoningPart:
    return ReasoningPart(text=text, encrypted_content="gAAA", metadata={"openai-responses": {"id": id, "in": "summary"}})


def test_an_item_whose_id_is_part_of_it_is_left_out() -> None:
    """AP108: the service takes it once by that id, and it cannot be given another. Elsewhere it is kept."""
    thoughts = (thought("rs_1", "hm"), thought("rs_1", "so"))
    for parts in ((item("completed"), item("failed")), thoughts, (image("ig_1"), image("ig_1"))):
        first, other = (says("assistant", part, id="a", native="openai-responses") for part in parts)
        answers = [
            says(
                "assistant", "Hello!", id=each, native="openai-responses", notes={"residue": [{"at": [0, "id"], "add": each}]}
            )
            for each in ("msg_1", "msg_2")
        ]
        broken = of(ASK, first, answers[0], other, answers[1], says("user", "Well?"))
        assert "AP108" in codes(broken, "openai-responses")
        assert [is_left_out(message) for message in mended(broken, "openai-responses")][:5] == [False] * 3 + [True, False]
        assert not any(map(is_left_out, mended(broken)))


def test_items_are_told_apart_by_what_the_wire_calls_them() -> None:
    """AP108: under whatever ids we know the messages, and also within one of them."""
    apart = of(ASK, says("assistant", item("completed")), says("user", "Well?"), says("assistant", item("failed")))
    within = of(ASK, says("assistant", item("completed"), "Found.", item("failed")))

    assert finding(apart, "AP108", "openai-responses").problem == "two items have the id 'ws_1'"
    assert codes(apart, "openai-chat") == []
    assert [is_left_out(message) for message in mended_for("openai-responses", apart)] == [False, False, False, True]
    assert codes(within, "openai-responses") == ["AP108"]
    assert [is_left_out(part) for part in mended_for("openai-responses", within)[1].parts] == [False, False, True]


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
    assert finding(other, "AP110").problem == "the result names 'get_weather', but 'weather' was called"


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
        f"{repaired.conversation[1].id}: AP102: the message stays in the history but is not sent",
        f"{repaired.conversation[2].id}: AP101: an error result of type 'interrupted' is added by the runtime",
    ]


@pytest.mark.parametrize(("model", "severity"), [("gpt-5", "error"), ("grok-4", "warning")])
def test_an_item_id_said_twice_is_an_error_where_the_service_refuses_it(model: str, severity: str) -> None:
    """AP108: OpenAI refuses it, a compatible server took it."""
    item = {"type": "message", "id": "msg_1", "role": "assistant", "content": [{"type": "output_text", "text": "Hi"}]}
    history = decode({"model": model, "input": [{"role": "user", "content": "Hi"}, item, item]}, "openai-responses")

    assert {(found.code, found.severity) for found in check(history, "openai-responses")} == {("AP108", severity)}
