"""Conversation: an immutable sequence that knows which result answers which call."""

import copy
import pickle
import threading
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import TypeAdapter, ValidationError

from antiphon import Conversation, Message, OptionCallPayload, OptionResultPayload, PartsPayload, TextPart
from antiphon.messages import Tool

START = datetime(2026, 1, 1, tzinfo=UTC)


def say(id: str, policy: str = "user", **fields: Any) -> Message:
    return Message(id=id, policy=policy, payload=PartsPayload(parts=(TextPart(text=id),)), **fields)


def call(id: str, invocation: str = "", policy: str = "assistant", **fields: Any) -> Message:
    payload = OptionCallPayload(invocation_id=invocation or f"i-{id}", option_name="search", arguments={})
    return Message(id=id, policy=policy, payload=payload, **fields)


def answer(id: str, invocation: str, **fields: Any) -> Message:
    payload = OptionResultPayload(invocation_id=invocation, option_name="search", result=id)
    return Message(id=id, policy="search", payload=payload, **fields)


def ids(messages: Any) -> str:
    return " ".join(message.id for message in messages)


# ---------------------------------------------------------------- a sequence


def test_it_is_a_sequence_of_messages() -> None:
    conversation = Conversation([say("a"), say("b"), say("c")])

    assert len(conversation) == 3
    assert ids(conversation) == "a b c"
    assert conversation[0].id == "a"
    assert conversation[-1].id == "c"
    assert ids(conversation[1:]) == "b c"
    assert ids(conversation[:-1]) == "a b"
    assert ids(conversation[::-1]) == "c b a"
    assert ids(conversation[::2]) == "a c"
    assert ids(reversed(conversation)) == "c b a"
    assert say("b") in conversation
    assert say("b", step_num=1) not in conversation
    assert "b" not in conversation
    assert conversation.index(say("c")) == 2
    assert repr(conversation) == "<Conversation of 3 messages>"
    assert not Conversation()
    with pytest.raises(IndexError):
        conversation[3]


def test_only_messages_go_in() -> None:
    with pytest.raises(TypeError, match="a conversation holds messages, not str"):
        Conversation(["hi"])  # type: ignore[list-item]


def test_it_has_tools_and_metadata() -> None:
    tool = Tool(name="search", description="finds", parameters={"type": "object"})
    conversation = Conversation([say("a")], tools=[tool], metadata={"openai-chat": {"seed": 7}})

    assert conversation.tools == (tool,)
    assert conversation.metadata == {"openai-chat": {"seed": 7}}
    assert repr(conversation) == "<Conversation of 1 messages, tools=['search']>"
    same = conversation.append(say("b")), conversation.window(1), conversation.filter()
    for derived in (conversation[:1], conversation[0:0], *same):
        assert derived.header == conversation.header
    assert conversation.replace(tools=()).tools == ()
    assert conversation.replace(tools=()).metadata == conversation.metadata
    assert conversation.replace(metadata={}).tools == (tool,)
    with pytest.raises(ValidationError, match="metadata"):
        Conversation(metadata={"a": 1})  # type: ignore[dict-item]


@pytest.mark.parametrize(
    "change",
    [
        lambda c: c.__setitem__(0, say("x")),
        lambda c: c.__delitem__(0),
        lambda c: setattr(c, "tools", ()),
        lambda c: setattr(c, "other", 1),
        lambda c: c.metadata.__setitem__("a", {}),
    ],
)
def test_it_cannot_be_changed(change: Any) -> None:
    conversation = Conversation([say("a")])

    with pytest.raises((AttributeError, TypeError)):
        change(conversation)


def test_equality_is_by_content() -> None:
    one, other = Conversation([say("a")]), Conversation([say("a")])

    assert one == other
    assert hash(one) == hash(other)
    assert one != other.append(say("b"))
    assert one != Conversation([say("a")], metadata={"a": {}})
    assert one != [say("a")]
    assert one[:0] == Conversation()
    assert pickle.loads(pickle.dumps(one)) == one
    assert TypeAdapter(Conversation).validate_python(one) is one
    assert copy.copy(one) is one
    assert copy.deepcopy(one) is one


# ---------------------------------------------------------------- growing


def test_growing_gives_a_new_one_and_leaves_the_old() -> None:
    old = Conversation([say("a")])
    new = old.append(say("b")).extend([say("c"), say("d")])

    assert ids(old) == "a"
    assert ids(new) == "a b c d"


def test_two_that_grow_apart_do_not_see_each_other() -> None:
    base = Conversation([call("a", "i")])
    left = base.append(answer("l", "i"))
    right = base.append(say("r"))

    assert ids(left) == "a l"
    assert ids(right) == "a r"
    assert ids(base.open_calls()) == "a"
    assert left.open_calls() == ()
    assert ids(right.open_calls()) == "a"
    assert base.get("l") is None
    assert base.result("i") is None
    assert left.result("i") is not None
    assert base.answer_to(base[0]) is None


def test_growing_shares_the_storage() -> None:
    """Ten thousand appends are ten thousand steps, not fifty million."""
    message = say("a")
    conversation = Conversation()
    for _ in range(10_000):
        conversation = conversation.append(message)

    assert len(conversation) == 10_000
    assert conversation._log is conversation[:5000]._log


def test_many_threads_may_grow_the_same_one() -> None:
    base = Conversation([say("a")])
    grown: list[Conversation] = []

    def grow(name: str) -> None:
        conversation = base
        for number in range(50):
            conversation = conversation.append(call(f"{name}-{number}"))
            assert len(conversation.open_calls()) == number + 1
        grown.append(conversation)

    threads = [threading.Thread(target=grow, args=(f"t{n}",)) for n in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    assert len(grown) == 8
    for conversation in grown:
        names = {message.id.split("-")[0] for message in conversation[1:]}
        assert len(conversation) == 51
        assert len(names) == 1


# ---------------------------------------------------------------- calls and results


def test_calls_and_results_are_found_by_invocation() -> None:
    """OP-047"""
    conversation = Conversation([say("q"), call("c", "i"), answer("r", "i"), call("d", "j")])

    assert ids(conversation.calls()) == "c d"
    assert ids(conversation.results()) == "r"
    assert ids(conversation.open_calls()) == "d"
    assert conversation.call("i") == conversation[1]
    assert conversation.result("i") == conversation[2]
    assert conversation.result("j") is None
    assert conversation.call("nothing") is None
    assert conversation.get("r") == conversation[2]
    assert conversation.get("nothing") is None
    assert conversation.answer_to(conversation[1]) == conversation[2]
    assert conversation.call_of(conversation[2]) == conversation[1]
    assert conversation.answer_to(conversation[0]) is None


def test_an_id_used_again_pairs_with_its_own_turn() -> None:
    """Some servers call every first call "call_0"."""
    conversation = Conversation([call("c1", "x"), answer("r1", "x"), call("c2", "x"), answer("r2", "x"), call("c3", "x")])

    assert conversation.answer_to(conversation[0]) == conversation[1]
    assert conversation.answer_to(conversation[2]) == conversation[3]
    assert ids(conversation.open_calls()) == "c3"
    assert conversation.orphans() == ()


def test_a_call_that_nobody_answered_does_not_take_a_later_result() -> None:
    conversation = Conversation([call("c1", "x"), say("never mind"), call("c2", "x"), answer("r", "x")])
    parallel = Conversation([call("c1", "x"), call("c2", "x"), answer("r1", "x"), answer("r2", "x")])

    assert ids(conversation.open_calls()) == "c1"
    assert parallel.answer_to(parallel[0]) == parallel[2]
    assert parallel.answer_to(parallel[1]) == parallel[3]


def test_the_same_call_said_twice_has_two_results() -> None:
    twice = call("c", "x", step_num=1)
    (transition,) = Conversation([twice, answer("ra", "x"), twice, answer("rb", "x")]).transitions()

    assert ids(transition.results) == "ra rb"


def test_parallel_calls_may_be_answered_out_of_order() -> None:
    conversation = Conversation([call("a"), call("b"), answer("rb", "i-b"), answer("ra", "i-a")])

    assert conversation.open_calls() == ()
    assert conversation.answer_to(conversation[0]) == conversation[3]


def test_an_orphan_has_no_call_before_it() -> None:
    conversation = Conversation([answer("early", "x"), call("c", "x"), answer("lost", "y")])

    assert ids(conversation.orphans()) == "early lost"
    assert ids(conversation.open_calls()) == "c"


def test_a_second_result_is_no_orphan_but_belongs_to_the_call() -> None:
    conversation = Conversation([call("c", "x"), answer("r", "x"), answer("again", "x")])

    assert conversation.orphans() == ()
    assert conversation.answer_to(conversation[0]) == conversation[1]
    assert conversation.call_of(conversation[2]) == conversation[0]


def test_the_journal_is_apart() -> None:
    """An effect's invocation never answers a call of talk, and is never open."""
    conversation = Conversation([call("c", "x"), call("e", "x", lane="effect"), answer("re", "x", lane="effect")])

    assert ids(conversation.open_calls()) == "c"
    assert ids(conversation.calls()) == "c e"
    assert Conversation([call("e", lane="effect"), answer("r", "?", lane="effect")]).orphans() == ()
    assert Conversation([call("e", lane="effect")]).open_calls() == ()


@st.composite
def histories(draw: st.DrawFn) -> Conversation:
    """Any order of calls, results, talk, turns and lanes, broken ones too."""
    messages: list[Message] = []
    for position in range(draw(st.integers(min_value=0, max_value=14))):
        lane = draw(st.sampled_from(["talk", "talk", "control", "effect"]))
        turn = draw(st.sampled_from([None, None, "t1", "t2"]))
        step = draw(st.sampled_from([None, 1, 2]))
        invocation = draw(st.sampled_from(["i", "j", "k"]))
        match draw(st.sampled_from(["user", "system", "call", "answer"])):
            case "call":
                messages.append(call(str(position), invocation, turn_id=turn, lane=lane, step_num=step))
            case "answer":
                messages.append(answer(str(position), invocation, lane=lane, step_num=step))
            case policy:
                messages.append(say(str(position), policy, turn_id=turn, lane=lane, step_num=step))
    return Conversation(messages)


@given(histories())
def test_every_result_has_a_call_or_is_an_orphan(conversation: Conversation) -> None:
    for result in conversation.results():
        if result.lane != "effect":
            assert (conversation.call_of(result) is None) == (result in conversation.orphans())


def test_duplicate_ids_are_kept_as_they_came() -> None:
    conversation = Conversation([say("a"), say("a", step_num=1)])

    assert len(conversation) == 2
    assert conversation.get("a") == say("a")
    assert say("a", step_num=1) in conversation
    assert ids(conversation.filter(after=say("a", step_num=1))) == ""


# ---------------------------------------------------------------- filters and chains


@pytest.fixture
def talk() -> Conversation:
    return Conversation(
        [
            say("s", "system", thread_id="t"),
            say("q", step_num=1, created_at=START),
            call("c", "i", step_num=1, turn_id="u", created_at=START + timedelta(seconds=1)),
            answer("r", "i", step_num=1, created_at=START + timedelta(seconds=2)),
            say("f", "assistant", step_num=2, turn_id="v", lane="control"),
        ]
    )


@pytest.mark.parametrize(
    ("asked", "found"),
    [
        ({}, "s q c r f"),
        ({"policy": "user"}, "q"),
        ({"kind": "option_call"}, "c"),
        ({"lane": "control"}, "f"),
        ({"step": 1}, "q c r"),
        ({"turn": "u"}, "c"),
        ({"thread": "t"}, "s"),
        ({"step": 1, "kind": "parts"}, "q"),
        ({"after": START}, "c r"),
        ({"before": START + timedelta(seconds=2)}, "q c"),
        ({"after": START, "before": START + timedelta(seconds=2)}, "c"),
    ],
)
def test_filters_combine(talk: Conversation, asked: dict[str, Any], found: str) -> None:
    assert ids(talk.filter(**asked)) == found


def test_filters_take_a_message_as_a_place(talk: Conversation) -> None:
    assert ids(talk.filter(after=talk[1])) == "c r f"
    assert ids(talk.filter(before=talk[2])) == "s q"
    assert ids(talk.filter(after=talk[0], before=talk[3])) == "q c"
    assert ids(talk.filter(after=talk[3], before=talk[1])) == ""
    with pytest.raises(ValueError, match="'x' is not in this conversation"):
        talk.filter(after=say("x"))
    with pytest.raises(TypeError, match="a message or a time, not str"):
        talk.filter(after="q")  # type: ignore[arg-type]


def test_a_chain_is_a_message_with_its_causes_and_its_consequences() -> None:
    conversation = Conversation(
        [
            say("q"),
            call("c", "i", in_reply_to="q"),
            say("other"),
            call("inner", "j", parent_id="i"),
            answer("rj", "j"),
            answer("ri", "i"),
            say("f", "assistant", in_reply_to="ri"),
            call("sibling", "k", in_reply_to="q"),
        ]
    )

    assert ids(conversation.chain(conversation[0])) == "q c inner rj ri f sibling"
    assert ids(conversation.chain(conversation[1])) == "q c inner rj ri f"
    assert ids(conversation.chain(conversation[4])) == "q c inner rj"
    assert ids(conversation.chain(conversation[6])) == "q c ri f"
    assert ids(conversation.chain(conversation[2])) == "other"
    with pytest.raises(ValueError, match="is not in this conversation"):
        conversation.chain(say("x"))


def test_a_chain_that_bites_its_tail_ends() -> None:
    conversation = Conversation([say("a", in_reply_to="b"), say("b", in_reply_to="a"), say("c", in_reply_to="c")])

    assert ids(conversation.chain(conversation[0])) == "a b"
    assert ids(conversation.chain(conversation[2])) == "c"


# ---------------------------------------------------------------- steps, turns, transitions


def test_steps_group_a_decision_cycle() -> None:
    """OP-020, OP-023: in the order they began; a late message joins its step."""
    conversation = Conversation([say("s"), say("a", step_num=2), call("b", step_num=1), answer("c", "i-b", step_num=2)])

    assert {step: ids(group) for step, group in conversation.steps().items()} == {None: "s", 2: "a c", 1: "b"}
    assert list(conversation.steps()) == [None, 2, 1]


# Mutant: group_by_step (_steps.py) loses a late message, or sorts the steps or the messages in one -> this test is red.
@given(st.lists(st.sampled_from([None, 0, 1, 7])))
def test_the_view_by_step_has_every_message_once_in_its_step_and_in_order(numbers: list[int | None]) -> None:
    """OP-023: in the order in which the steps began, each with its messages as they were said."""
    conversation = Conversation(say(f"m{place}", step_num=step) for place, step in enumerate(numbers))
    view = conversation.steps()

    assert list(view) == list(dict.fromkeys(numbers))
    for step, group in view.items():
        assert list(group) == [each for each in conversation if each.step_num == step]


def test_turns_group_an_utterance() -> None:
    conversation = Conversation(
        [
            say("a", turn_id="t"),
            call("b", turn_id="t"),
            answer("r", "i-b"),
            say("c", "x", step_num=1),
            call("d", policy="x", step_num=1),
            answer("rd", "i-d", step_num=1),
            say("e", "y", step_num=1),
            say("f"),
            say("g"),
        ]
    )

    assert [ids(turn) for turn in conversation.turns()] == ["a b", "r", "c d", "rd", "e", "f", "g"]


def test_transitions_by_step() -> None:
    """OP-022: what was said before, the option calls, their results in the order of the calls."""
    conversation = Conversation(
        [
            say("q", step_num=1),
            say("t", "assistant", step_num=1),
            call("a", step_num=1, turn_id="u"),
            call("b", step_num=1, turn_id="u"),
            answer("rb", "i-b", step_num=1),
            answer("ra", "i-a", step_num=1),
            say("m", "assistant", step_num=2),
            call("c", step_num=2),
            say("end", "assistant", step_num=3),
        ]
    )
    first, second = conversation.transitions()

    assert (first.step_num, first.turn_id) == (1, "u")
    assert (ids(first.observation), ids(first.actions), ids(first.results)) == ("q t", "a b", "ra rb")
    assert first.is_complete
    assert second.step_num == 2
    assert (ids(second.observation), ids(second.actions), ids(second.results)) == ("q t a b rb ra m", "c", "")
    assert not second.is_complete


def rewarded() -> Conversation:
    return Conversation(
        [
            say("q"),
            say("t", "assistant", turn_id="u"),
            call("a", step_num=1, turn_id="u"),
            answer("ra", "i-a", step_num=1),
            call("b", step_num=2),
            answer("rb", "i-b", step_num=2),
            say("end", "assistant", step_num=3),
        ]
    )


def test_a_function_says_the_reward_of_each_transition() -> None:
    """OP-022: None where it cannot say; without one there is no reward."""
    conversation = rewarded()

    assert [each.reward for each in conversation.transitions()] == [None, None]
    assert [each.reward for each in conversation.transitions(lambda each: each.step_num if each.step_num == 2 else None)] == [
        None,
        2,
    ]


@pytest.mark.parametrize(
    ("rewards", "expected"),
    [
        ({}, [None, None]),
        ({"a": 1.0, "ra": 0.5}, [1.5, None]),
        ({"t": -1.0}, [-1.0, None]),
        ({"rb": 2, "ra": 0.25}, [0.25, 2.0]),
        ({"end": 1.0, "b": 0.5}, [None, 1.5]),
        ({"q": 1.0, "nowhere": 1.0}, [None, None]),
    ],
)
def test_rewards_by_message_id_are_summed_over_a_decision_and_what_follows_it(
    rewards: dict[str, float], expected: list[float | None]
) -> None:
    """OP-022: of calls, results and what was said with them; the answer at the end is of the last decision."""
    assert [each.reward for each in rewarded().transitions(reward=rewards)] == expected


def test_an_id_that_stands_twice_is_rewarded_once() -> None:
    """OP-022: as in an imported history."""
    conversation = rewarded().append(say("end", "assistant"))

    assert [each.reward for each in conversation.transitions(reward={"end": 1.0})] == [None, 1.0]


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_a_reward_is_a_finite_number(value: float) -> None:
    """OP-022: anything else could be neither learnt from nor exported as JSON."""
    with pytest.raises(ValueError, match="a reward is a finite number"):
        rewarded().transitions(lambda each: value)


def test_transitions_by_turn_where_there_is_no_step() -> None:
    """OP-022"""
    conversation = Conversation(
        [
            say("q"),
            call("a", turn_id="t"),
            call("b", turn_id="t"),
            call("e", lane="effect"),
            answer("ra", "i-a"),
            call("c"),
            call("d"),
        ]
    )
    transitions = conversation.transitions()

    assert [ids(t.actions) for t in transitions] == ["a b", "c", "d"]
    assert [ids(t.observation) for t in transitions] == ["q", "q a b ra", "q a b ra c"]
    assert transitions[0].turn_id == "t"
    assert transitions[1].step_num is None


@given(histories())
def test_every_call_of_talk_is_in_exactly_one_transition(conversation: Conversation) -> None:
    acted = [action for t in conversation.transitions() for action in t.actions]

    assert sorted(map(id, acted)) == sorted(id(m) for m in conversation.calls() if m.lane != "effect")
