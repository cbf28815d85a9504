"""Options: the parts, payloads and builders that the plan shows, with values of our own."""

import pytest

from antiphon.messages import (
    MediaPart,
    Message,
    MessageBuilder,
    OptionCallPayload,
    OptionResultBuilder,
    OptionResultPayload,
    TextPart,
    thaw,
)


def test_the_parts_have_the_fields_of_the_plan() -> None:
    """OP-010: text; media by its URL and modality, with what is optional left out."""
    assert TextPart(text="a heron").kind == "text"
    bare = MediaPart(modality="image", url="https://pictures.example/heron")
    assert (bare.kind, bare.mime, bare.prompt_hint, bare.id) == ("media", None, None, None)
    full = MediaPart(modality="audio", url="https://a.example/x", mime="audio/ogg", prompt_hint="its call", id="m-1")
    assert (full.mime, full.prompt_hint, full.id) == ("audio/ogg", "its call", "m-1")
    with pytest.raises(ValueError, match="modality"):
        MediaPart.model_validate({"url": "https://a.example/x"})


def test_the_payloads_have_the_fields_of_the_plan() -> None:
    """OP-010: a call, its result and its error."""
    call = OptionCallPayload(invocation_id="i-1", option_name="find", arguments={"what": "heron"})
    assert (call.kind, thaw(call.arguments)) == ("option_call", {"what": "heron"})
    done = OptionResultPayload(invocation_id="i-1", option_name="find", result=["pond"])
    assert (done.kind, done.is_error, done.error_type, done.error_message, done.retryable) == (
        "option_result",
        False,
        None,
        None,
        None,
    )
    failed = OptionResultPayload(
        invocation_id="i-1", option_name="find", is_error=True, error_type="GONE", error_message="flown", retryable=True
    )
    assert (failed.result, failed.retryable) == (None, True)


def test_the_example_of_the_builder_runs() -> None:
    """OP-021, OP-023: a call, its result, two images and a text; one parts message, all in the same step."""
    last_message = MessageBuilder.next_step(None, policy="user").add_text("Draw me a heron.").to_message()
    results = [{"title": "Herons", "at": "https://birds.example"}]
    heron, pond = "https://pictures.example/heron", "https://pictures.example/pond"

    builder = MessageBuilder.continue_step(last_message)
    builder.add_option_call("look_up", {"query": "grey heron"})
    result_builder = OptionResultBuilder.response_to(builder.last_option_call)
    option_result_msg = result_builder.success(results)
    builder.add_image("the heron", heron)
    builder.add_image("the pond", pond)
    builder.add_text("Put the heron of the first picture into the pond of the second.")
    message = builder.to_message()

    call = builder.last_option_call
    assert isinstance(call.payload, OptionCallPayload)
    assert isinstance(option_result_msg.payload, OptionResultPayload)
    assert option_result_msg.payload.invocation_id == call.payload.invocation_id
    assert option_result_msg.payload.option_name == "look_up"
    assert thaw(option_result_msg.payload.result) == results
    assert {each.step_num for each in (last_message, call, option_result_msg, message)} == {1}
    assert [part.kind for part in message.parts] == ["media", "media", "text"]
    assert [part.prompt_hint for part in message.parts if isinstance(part, MediaPart)] == ["the heron", "the pond"]
    assert [each.kind for each in builder.to_messages()] == ["option_call", "parts"]


def test_a_result_of_another_call_is_refused() -> None:
    """OP-023: neither another id nor another option; an error says its type, its text and whether to try again."""
    call = MessageBuilder.next_step(3, policy="painter").add_option_call("look_up", {"query": "x"}).last_option_call
    builder = OptionResultBuilder.response_to(call)

    for wrong in ({"invocation_id": "another"}, {"option_name": "other"}):
        with pytest.raises(ValueError, match=r"invocation_id|option_name|another|other"):
            builder.success(1, **wrong)
    failed: Message = builder.error("GONE", "nothing there", retryable=False)
    assert isinstance(failed.payload, OptionResultPayload)
    assert (failed.payload.is_error, failed.payload.error_type, failed.payload.retryable) == (True, "GONE", False)
    assert failed.step_num == 4
