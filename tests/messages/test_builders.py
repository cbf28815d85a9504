"""Builders: the short way to well-formed messages."""

from typing import Any

import pytest
from pydantic import ValidationError

from antiphon import RUNTIME_POLICY, MediaPart, Message, MessageBuilder, OptionCallPayload, OptionResultBuilder, dumps
from antiphon.messages import OptionResultPayload, use_port
from antiphon.testing import CountingPort


def test_the_example_of_the_seed_runs_as_written() -> None:
    """OP-031, OP-033, OP-034, OP-044"""
    last_message = MessageBuilder.next_step(None).add_text("What is the hobbit movie?").to_message()
    results = [{"title": "The Hobbit"}]
    url_1, url_2 = "https://example.com/1.png", "https://example.com/2.png"

    builder = MessageBuilder.continue_step(last_message)

    builder.add_option_call("search_web", {"query": "hobbit movie"})
    # ... executor runs it ...
    result_builder = OptionResultBuilder.response_to(builder.last_option_call)
    option_result_msg = result_builder.success(results)

    builder.add_image(
        "girl wearing a hat",
        url_1,
    )

    builder.add_image(
        "fancy dress",
        url_2,
    )

    builder.add_text("Take the dress from the second image and apply it to the person in the first image")

    message = builder.to_message()

    assert [part.kind for part in message.parts] == ["media", "media", "text"]
    first, second, _ = message.parts
    assert isinstance(first, MediaPart)
    assert isinstance(second, MediaPart)
    assert (first.modality, first.prompt_hint, first.url) == ("image", "girl wearing a hat", url_1)
    assert (second.modality, second.prompt_hint, second.url) == ("image", "fancy dress", url_2)
    assert message.step_num == option_result_msg.step_num == last_message.step_num == 1
    assert option_result_msg.payload.result == results
    assert option_result_msg.invocation_id == builder.last_option_call.invocation_id


# ---------------------------------------------------------------- steps


@pytest.mark.parametrize(("last", "next_", "same"), [(None, 1, None), (0, 1, 0), (1, 2, 1), (41, 42, 41)])
def test_steps_go_on_or_stay(last: int | None, next_: int, same: int | None) -> None:
    """OP-028, OP-029, OP-045: from a number or from a message."""
    message = MessageBuilder(step_num=last).add_text("x").to_message()

    for anchor in (last, message):
        assert MessageBuilder.next_step(anchor).add_text("x").to_message().step_num == next_
        assert MessageBuilder.continue_step(anchor).add_text("x").to_message().step_num == same


def test_a_step_is_not_negative() -> None:
    with pytest.raises(ValueError, match="not negative: -1"):
        MessageBuilder.next_step(-1)


def test_all_that_a_builder_makes_is_of_one_step_and_turn() -> None:
    """OP-045"""
    builder = MessageBuilder.next_step(6, policy="planner").add_text("so").add_option_call("a", {}).add_option_call("b", {})
    messages = builder.to_messages()

    assert {message.step_num for message in messages} == {7}
    assert len({message.turn_id for message in messages}) == 1
    assert {message.policy for message in messages} == {"planner"}
    assert MessageBuilder.next_step(6).add_text("x").to_message().turn_id != messages[0].turn_id


def test_the_thread_goes_on() -> None:
    last = MessageBuilder(thread_id="t-1").add_text("x").to_message()

    assert MessageBuilder.next_step(last).add_text("y").to_message().thread_id == "t-1"
    assert MessageBuilder.continue_step(last).add_text("y").to_message().thread_id == "t-1"


# ---------------------------------------------------------------- parts


def test_every_kind_of_part_can_be_added() -> None:
    """OP-030, OP-031, OP-032, OP-035: all in one parts message, in order."""
    builder = MessageBuilder.next_step(None)
    builder.add_text("a").add_image("b", "data:,b").add_audio("c", "data:,c").add_video("d", "data:,d")
    builder.add_document(None, "data:,e", mime="application/pdf", id="doc", file_name="e.pdf").add_data({"f": [1]})
    message = builder.to_message()

    assert message.kind == "parts"
    assert [getattr(part, "modality", part.kind) for part in message.parts] == [
        "text",
        "image",
        "audio",
        "video",
        "document",
        "data",
    ]
    document = message.parts[4]
    assert isinstance(document, MediaPart)
    assert (document.mime, document.id, document.prompt_hint) == ("application/pdf", "doc", None)
    assert document.file_name == "e.pdf"


def test_media_ids_come_from_the_content() -> None:
    """OP-048: the same for ever, different for different media."""

    def ids() -> list[Any]:
        builder = (
            MessageBuilder.next_step(None).add_image("x", "https://example.com/1").add_audio("x", "https://example.com/1")
        )
        return [getattr(part, "id", None) for part in builder.add_image("other", "https://example.com/1").to_message().parts]

    image, audio, again = ids()
    assert ids() == [image, audio, again]
    assert image == again == "media-b6dbecd4c91a083e"
    assert audio != image


def test_hint_and_url_in_the_wrong_order_are_noticed() -> None:
    """OP-031: the hint comes first."""
    with pytest.raises(ValueError, match="the hint comes first, then the URL"):
        MessageBuilder.next_step(None).add_image("https://example.com/1.png", "girl wearing a hat")
    with pytest.raises(ValidationError, match="A media URL is"):
        MessageBuilder.next_step(None).add_image("girl", "hat")
    assert MessageBuilder.next_step(None).add_image("see https://example.com", "data:,x").to_message()


def test_a_message_needs_a_part() -> None:
    builder = MessageBuilder.next_step(None).add_option_call("a", {})

    with pytest.raises(ValueError, match="no part was added"):
        builder.to_message()
    assert len(builder.to_messages()) == 1
    assert MessageBuilder.next_step(None).to_messages() == ()


def test_ids_and_times_sort_as_the_messages_stand() -> None:
    with use_port(CountingPort()):
        builder = MessageBuilder.next_step(None).add_text("a").add_option_call("o", {}).add_text("b")
        said, called = builder.to_messages()

    assert said.created_at is not None
    assert called.created_at is not None
    assert said.created_at < called.created_at
    assert said.id < called.id


def test_an_empty_argument_is_not_guessed(call: Message) -> None:
    with pytest.raises(ValidationError, match="A name is"):
        MessageBuilder.next_step(None).add_image("x", "data:,", id="")
    with pytest.raises(ValidationError, match="A name is"):
        OptionResultBuilder.response_to(call, policy="").success()
    with pytest.raises(ValidationError, match="url"):
        MessageBuilder.next_step(None).add_image("x", "https://example.com/\ud800")
    with pytest.raises(TypeError, match="a step is"):
        MessageBuilder.next_step(True)


def test_the_message_is_the_same_until_something_is_added() -> None:
    builder = MessageBuilder.next_step(None).add_text("a")
    first = builder.to_message()

    assert builder.to_message() is first
    assert builder.add_text("b").to_message().id != first.id


# ---------------------------------------------------------------- calls


def test_several_calls_are_all_kept_with_ids_of_their_own() -> None:
    """OP-036, OP-046"""
    builder = MessageBuilder.next_step(None, policy="planner")
    for city in ("Oslo", "Rome", "Oslo"):
        builder.add_option_call("weather", {"city": city})

    assert [call.payload.arguments["city"] for call in builder.option_calls] == ["Oslo", "Rome", "Oslo"]
    assert builder.last_option_call is builder.option_calls[-1]
    assert len({call.invocation_id for call in builder.option_calls}) == 3
    assert len({call.id for call in builder.option_calls}) == 3


def test_there_is_no_last_call_before_the_first() -> None:
    with pytest.raises(ValueError, match="no option call was added"):
        MessageBuilder.next_step(None).last_option_call  # noqa: B018


@pytest.mark.parametrize(
    ("order", "kinds"),
    [
        ("tcc", ["parts", "option_call", "option_call"]),
        ("ctc", ["option_call", "parts", "option_call"]),
        ("cct", ["option_call", "option_call", "parts"]),
        ("ctctt", ["option_call", "parts", "option_call"]),
        ("cc", ["option_call", "option_call"]),
        ("tt", ["parts"]),
    ],
)
def test_messages_stand_in_the_order_of_their_first_addition(order: str, kinds: list[str]) -> None:
    """OP-036"""
    builder = MessageBuilder.next_step(None)
    for what in order:
        builder.add_text("x") if what == "t" else builder.add_option_call("o", {})

    assert [message.kind for message in builder.to_messages()] == kinds


# ---------------------------------------------------------------- who speaks


@pytest.mark.parametrize(
    ("policy", "hint_of_parts"), [("user", "user"), ("system", "system"), ("planner", None), ("assistant", None)]
)
def test_policy_and_hint_follow_the_table(policy: str, hint_of_parts: str | None) -> None:
    """OP-049"""
    builder = MessageBuilder.next_step(None, policy=policy).add_text("x").add_option_call("search", {})
    said, call = builder.to_messages()
    done = OptionResultBuilder.response_to(call).success()

    assert (said.policy, said.role_hint_for_llm) == (policy, hint_of_parts)
    assert (call.policy, call.role_hint_for_llm) == (policy, "assistant")
    assert (done.policy, done.role_hint_for_llm) == ("search", "tool")


def test_neither_is_inherited() -> None:
    """OP-049: after a tool's result the next speaker is not the tool."""
    call = MessageBuilder.next_step(None, policy="planner", role_hint_for_llm="assistant").add_option_call("search", {})
    done = OptionResultBuilder.response_to(call.last_option_call).success()
    said = MessageBuilder.continue_step(done).add_text("x").to_message()

    assert (said.policy, said.role_hint_for_llm) == ("user", "user")


def test_an_explicit_hint_wins() -> None:
    """OP-049"""
    builder = MessageBuilder.next_step(None, policy="planner", role_hint_for_llm="system")
    builder.add_text("x").add_option_call("o", {})

    assert [message.role_hint_for_llm for message in builder.to_messages()] == ["system", "system"]


# ---------------------------------------------------------------- results


@pytest.fixture
def call() -> Message:
    payload = OptionCallPayload(invocation_id="i-1", option_name="search", arguments={})
    return Message(
        policy="planner", payload=payload, step_num=4, thread_id="t", lane="control", correlation_id="c", parent_id="i-0"
    )


def test_a_result_takes_over_what_pairs_it_with_the_call(call: Message) -> None:
    """OP-037, OP-038, OP-039, OP-047"""
    shown = MediaPart(modality="image", url="data:,")
    done = OptionResultBuilder.response_to(call).success({"hits": 3}, parts=[shown])

    assert isinstance(done.payload, OptionResultPayload)
    assert (done.payload.invocation_id, done.payload.option_name, done.step_num) == ("i-1", "search", 4)
    assert (done.payload.result, done.payload.parts, done.payload.is_error) == ({"hits": 3}, (shown,), False)
    assert (done.in_reply_to, done.thread_id, done.lane) == (call.id, "t", "control")
    assert (done.correlation_id, done.parent_id) == ("c", "i-0")


def test_an_error_says_what_and_why(call: Message) -> None:
    """OP-040"""
    error = OptionResultBuilder.response_to(call).error("Timeout", "no answer").payload
    detailed = OptionResultBuilder.response_to(call).error("Timeout", "late", retryable=True, details={"after": 30}).payload

    assert isinstance(error, OptionResultPayload)
    assert (error.is_error, error.error_type, error.error_message, error.retryable) == (True, "Timeout", "no answer", False)
    assert isinstance(detailed, OptionResultPayload)
    assert (detailed.retryable, detailed.result) == (True, {"after": 30})


def test_the_runtime_can_answer_for_an_option_that_never_ran(call: Message) -> None:
    """OP-007"""
    refused = OptionResultBuilder.response_to(call, policy=RUNTIME_POLICY).error("InvalidArguments", "query is missing")

    assert refused.policy == "runtime"


@pytest.mark.parametrize("finish", ["success", "error"])
def test_a_result_of_something_else_is_refused(call: Message, finish: str) -> None:
    """OP-041, OP-042"""
    builder = OptionResultBuilder.response_to(call)
    arguments = () if finish == "success" else ("Timeout", "late")
    make = getattr(builder, finish)

    with pytest.raises(ValueError, match="answers invocation 'i-1', not 'i-2'"):
        make(*arguments, invocation_id="i-2")
    with pytest.raises(ValueError, match="of option 'search', not 'find'"):
        make(*arguments, option_name="find")
    assert make(*arguments, invocation_id="i-1", option_name="search")


def test_only_a_call_can_be_answered(call: Message) -> None:
    """OP-043"""
    for wrong in (
        MessageBuilder.next_step(None).add_text("x").to_message(),
        OptionResultBuilder.response_to(call).success(),
    ):
        with pytest.raises(ValueError, match="only an option_call can be answered"):
            OptionResultBuilder.response_to(wrong)


# ---------------------------------------------------------------- the port


def test_the_same_port_gives_the_same_bytes() -> None:
    """G10: ids and time come from one place, so a run can be repeated exactly."""

    def run() -> bytes:
        with use_port(CountingPort()):
            builder = MessageBuilder.next_step(None).add_text("x").add_option_call("o", {"a": 1})
            done = OptionResultBuilder.response_to(builder.last_option_call).success([1])
            return b"\n".join(map(dumps, (*builder.to_messages(), done)))

    assert run() == run()
    assert b'"turn_id":"id-1"' in run()
    assert b'"created_at":"2026-01-01T00:00:00Z"' in run()


def test_a_port_holds_only_where_it_is_set() -> None:
    with use_port(CountingPort(prefix="a")):
        with use_port(CountingPort(prefix="b")):
            assert MessageBuilder.next_step(None).add_text("x").to_message().id == "b-2"
        assert MessageBuilder.next_step(None).add_text("x").to_message().id == "a-2"
    assert "-2" not in MessageBuilder.next_step(None).add_text("x").to_message().id[:3]


def test_a_result_builder_refuses_another_id_or_name_when_it_is_set() -> None:
    """OP-041, OP-042: at the assignment, with both; the call's own may be set; nothing else can be."""
    (call,) = MessageBuilder().add_option_call("search", {}).to_messages()
    builder: Any = OptionResultBuilder.response_to(call)
    builder.invocation_id, builder.option_name = call.invocation_id, "search"

    with pytest.raises(ValueError, match="not 'other'"):
        builder.invocation_id = "other"
    with pytest.raises(ValueError, match="of option 'search', not 'find'"):
        builder.option_name = "find"
    with pytest.raises(AttributeError):
        builder.invocation = "other"
    assert builder.success("tea").invocation_id == call.invocation_id
