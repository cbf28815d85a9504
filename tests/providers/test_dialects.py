"""Our dialects against the real thing: the SDKs send what we wrote, and we read what they received; a model answers it."""

from typing import Any

import pytest
from tests.providers.clients import ask
from tests.providers.samples import samples
from tests.providers.server import send
from tests.providers.types import as_request, differences, in_one_spelling, problems, pydantic_ai_load_dump

from antiphon import Conversation, MessageBuilder, OptionResultBuilder, decode, encode
from antiphon.messages import Tool

CLIENTS = ("openai-chat", "openai-responses", "anthropic-messages", "gemini")
HISTORY = {"messages", "input", "contents", "system"}
CITY = {"type": "object", "properties": {"city": {"type": "string", "maxLength": 20}}, "required": ["city"]}
WEATHER = Tool(name="get_weather", description="The weather in a city", parameters=CITY)
FORCED: dict[str, dict[str, Any]] = {
    "openai-chat": {"tool_choice": "required", "max_tokens": 64},
    "openai-responses": {"tool_choice": "required", "max_output_tokens": 64},
    "anthropic-messages": {"tool_choice": {"type": "any"}, "max_tokens": 64},
}


def history() -> Conversation:
    """A short history of ours: a question with a picture, two calls, a result and an error, an answer."""
    asked = MessageBuilder().add_text("How is the weather?").add_image("the sky", "https://example.com/sky.png").to_message()
    calls = MessageBuilder(policy="assistant").add_text("Let me look.")
    calls.add_option_call("get_weather", {"city": "Oslo"}).add_option_call("get_weather", {"city": "Bergen"})
    said = calls.to_messages()
    oslo, bergen = (message for message in said if message.kind == "option_call")
    results = [
        OptionResultBuilder.response_to(oslo).success({"celsius": 4}),
        OptionResultBuilder.response_to(bergen).error("Timeout", "no answer"),
    ]
    answer = MessageBuilder(policy="assistant").add_text("4 degrees in Oslo.").to_message()
    thanks = MessageBuilder().add_text("Thanks!").to_message()
    return Conversation([asked, *said, *results, answer, thanks], tools=[WEATHER])


@pytest.mark.slow
@pytest.mark.parametrize("dialect", CLIENTS)
def test_the_sdk_sends_what_we_wrote_and_we_read_what_it_received(dialect: str) -> None:
    body = as_request(dialect, encode(history(), dialect).value)
    (response, *_) = samples(dialect, "response")
    exchange = send(dialect, body, response.body)

    sent = {key: exchange.sent.body[key] for key in HISTORY & body.keys()}
    given = {key: body[key] for key in HISTORY & body.keys()}
    if dialect == "gemini":
        sent, given = in_one_spelling(dialect, "request", sent), in_one_spelling(dialect, "request", given)
    assert differences(sent, given) == []
    ours, theirs = decode(response.body, dialect), decode(exchange.received, dialect)
    assert [(each.policy, each.kind, each.text) for each in theirs] == [(each.policy, each.kind, each.text) for each in ours]
    assert encode(decode(exchange.sent.body, dialect), dialect).value == exchange.sent.body


@pytest.mark.slow
def test_pydantic_ai_loads_what_we_write_and_gives_back_what_we_read() -> None:
    value = encode(history(), "pydantic-ai").value
    loaded = pydantic_ai_load_dump(value)

    assert differences(value, loaded) == []
    assert encode(decode(loaded, "pydantic-ai"), "pydantic-ai").value == loaded


@pytest.mark.slow
@pytest.mark.parametrize("dialect", FORCED)
def test_a_real_model_calls_our_tool_and_goes_on_from_our_result(dialect: str, local_model: str) -> None:
    """The whole round, three times a format: our words in, its call out, our result in, its words out."""
    question = MessageBuilder().add_text("What is the weather in Paris?").to_message()
    conversation = Conversation([question], tools=[WEATHER])
    request = {**as_request(dialect, encode(conversation, dialect).value), **FORCED[dialect]}
    answer = decode(ask(dialect, request, local_model), dialect)

    (call,) = answer.open_calls()
    assert call.payload.option_name == "get_weather"
    assert isinstance(call.payload.arguments["city"], str)
    assert answer[0].usage is not None
    result = OptionResultBuilder.response_to(call).success({"celsius": 19})
    later = encode(conversation.extend(answer).append(result), dialect).value
    again = {**as_request(dialect, later), **{key: 8 for key in FORCED[dialect] if key.startswith("max")}}
    assert problems(dialect, "request", again) == []
    assert decode(ask(dialect, again, local_model), dialect)[0].policy == "assistant"
