"""The folds against the real thing: the providers' SDKs fold the same events, and a real model streams."""

import http.client
import json
from collections.abc import Iterator
from typing import Any
from urllib.parse import urlsplit

import pytest
from tests.dialects.streams.answers import ANSWERS, Answer, answers
from tests.dialects.streams.reading import read, read_events
from tests.providers.clients import ask
from tests.providers.samples import samples
from tests.providers.server import event_stream, serving
from tests.providers.test_model import FORCED
from tests.providers.types import as_request, differences, in_one_spelling, problems, pydantic_ai_load_dump

WITH_A_CLIENT = ("openai-chat", "openai-responses", "anthropic-messages", "gemini")
BEYOND_THE_TYPES = {"openai-chat: compatible servers"}
"""What servers say that the SDK's types do not know, and its fold would join wrongly."""
PINGS = ("ping",)
"""Events that the SDK's union of events leaves out."""


def typed(*dialects: str) -> list[Any]:
    found = [each for dialect in dialects for each in answers(dialect) if str(each) not in BEYOND_THE_TYPES]
    return [pytest.param(each, id=str(each)) for each in found]


@pytest.mark.parametrize("spoken", typed(*WITH_A_CLIENT))
def test_answers_here_are_what_the_types_of_the_provider_say(spoken: Answer) -> None:
    """The events as events, the fold as a whole answer, with unknown keys refused."""
    events = [event for event in spoken.events if event.get("type") not in PINGS]

    assert problems(spoken.dialect, "stream", events) == []
    assert problems(spoken.dialect, "response", read_events(spoken.dialect, spoken.events).stream.body) == []


@pytest.mark.parametrize("spoken", typed("openai-chat"))
def test_a_chat_completion_is_what_its_sdk_folds(spoken: Answer) -> None:
    from openai.lib.streaming.chat import ChatCompletionStreamState
    from openai.types.chat import ChatCompletion, ChatCompletionChunk

    state = ChatCompletionStreamState()
    for event in spoken.events:
        state.handle_chunk(ChatCompletionChunk.model_validate(event))
    theirs = state.current_completion_snapshot.model_dump()  # the final one refuses a filtered choice
    for choice in theirs["choices"]:
        choice["message"].pop("parsed", None)
        for call in choice["message"].get("tool_calls") or []:
            call.pop("index", None)
            call["function"].pop("parsed_arguments", None)

    ours = ChatCompletion.model_validate(read_events(spoken.dialect, spoken.events).stream.body).model_dump()

    # Theirs takes the last chunk's word for a fact of the whole, also where it is silent.
    for fact in ("service_tier", "system_fingerprint"):
        ours.pop(fact), theirs.pop(fact)
    assert differences(theirs, ours) == []


@pytest.mark.slow
@pytest.mark.parametrize("spoken", typed("openai-responses"))
@pytest.mark.parametrize("with_output", [True, False], ids=["with output", "without output"])
def test_a_response_is_what_its_sdk_folds(spoken: Answer, with_output: bool) -> None:
    """Also where the last event leaves the output out, so that it must be put together from the items."""
    from openai import omit
    from openai.lib.streaming.responses._responses import ResponseStreamState
    from openai.types.responses import ResponseStreamEvent
    from pydantic import TypeAdapter

    events = [*spoken.events[:-1], {**spoken.events[-1], "response": dict(spoken.events[-1]["response"])}]
    if not with_output:
        del events[-1]["response"]["output"]
    adapter: TypeAdapter[Any] = TypeAdapter(ResponseStreamEvent)
    state: Any = ResponseStreamState(input_tools=omit, text_format=omit)
    seen: list[Any] = []
    for event in events:
        seen = state.handle_event(
            adapter.validate_python({**event, "response": _whole(event)} if "response" in event else event)
        )
    theirs = seen[-1].response.to_dict()

    assert differences(_known_keys(theirs), read_events(spoken.dialect, events).stream.body) == []


def _whole(event: Any) -> Any:
    from openai.types.responses import Response

    return Response.construct(**event["response"])


def _known_keys(response: Any) -> Any:
    """Return a response without what the SDK adds to it: parsed text and arguments."""
    if isinstance(response, dict):
        added = {"parsed", "parsed_arguments"}
        return {key: _known_keys(value) for key, value in response.items() if key not in added}
    return [_known_keys(each) for each in response] if isinstance(response, list) else response


@pytest.mark.parametrize("spoken", typed("anthropic-messages"))
def test_a_message_is_what_its_sdk_folds(spoken: Answer) -> None:
    from anthropic.lib.streaming._messages import accumulate_event
    from anthropic.types import Message, RawMessageStreamEvent
    from pydantic import TypeAdapter

    adapter: TypeAdapter[Any] = TypeAdapter(RawMessageStreamEvent)
    theirs: Any = None
    inputs: dict[int, bytes] = {}
    for event in spoken.events:
        if event["type"] not in PINGS:
            parsed = adapter.validate_python(event)
            theirs = accumulate_event(event=parsed, current_snapshot=theirs, json_bufs=inputs)

    whole = Message.model_validate(json.loads(json.dumps(theirs.to_dict(mode="json")))).model_dump(mode="json")
    ours = Message.model_validate(read_events(spoken.dialect, spoken.events).stream.body).model_dump(mode="json")
    for block in whole["content"]:
        block.pop("parsed_output", None)
    if spoken.name == "a search by the server":
        whole["stop_reason"] = "pause_turn"  # theirs lets a later change that says nothing of it take it back
    assert differences(whole, ours) == []


@pytest.mark.slow
def test_a_compaction_is_what_the_sdk_folds() -> None:
    """A kind of delta that the fold has no word for; the SDK's beta types do."""
    from anthropic.lib.streaming._beta_messages import accumulate_event
    from anthropic.types.beta import BetaRawMessageStreamEvent
    from pydantic import TypeAdapter

    start = answers("anthropic-messages")[1].events[0]
    events = [
        start,
        {"type": "content_block_start", "index": 0, "content_block": {"type": "compaction", "content": None}},
        {
            "type": "content_block_delta",
            "index": 0,
            "delta": {"type": "compaction_delta", "content": "Long ago", "encrypted_content": "E"},
        },
        {"type": "content_block_stop", "index": 0},
        {"type": "message_delta", "delta": {"stop_reason": "compaction"}, "usage": {"output_tokens": 3}},
        {"type": "message_stop"},
    ]
    adapter: TypeAdapter[Any] = TypeAdapter(BetaRawMessageStreamEvent)
    theirs: Any = None
    for event in events:
        theirs = accumulate_event(
            event=adapter.validate_python(event), current_snapshot=theirs, json_bufs={}, request_headers=None
        )

    (block,) = read_events("anthropic-messages", events).stream.body["content"]

    assert block == {"type": "compaction", "content": "Long ago", "encrypted_content": "E"}
    assert (theirs.content[0].content, theirs.content[0].encrypted_content) == ("Long ago", "E")


@pytest.mark.parametrize("spoken", typed("pydantic-ai"))
def test_a_model_response_is_what_pydantic_ai_folds(spoken: Answer) -> None:
    """It folds starts and changes; what a part is at its end must then be the same."""
    from pydantic import TypeAdapter
    from pydantic_ai._parts_manager import ModelResponsePartsManager
    from pydantic_ai.messages import ModelMessagesTypeAdapter, ModelResponse, ModelResponseStreamEvent
    from pydantic_ai.models import ModelRequestParameters

    adapter: TypeAdapter[Any] = TypeAdapter(ModelResponseStreamEvent)
    manager = ModelResponsePartsManager(model_request_parameters=ModelRequestParameters())
    for event in spoken.events:
        manager.apply_event(adapter.validate_python(event))
    (theirs,) = ModelMessagesTypeAdapter.dump_python([ModelResponse(parts=manager.get_parts())], mode="json")

    with_ends = read_events(spoken.dialect, spoken.events).stream.body
    without = read_events(spoken.dialect, [each for each in spoken.events if each["event_kind"] != "part_end"]).stream.body

    (ours,) = pydantic_ai_load_dump([with_ends])
    assert problems("pydantic-ai", "stream", spoken.events) == []
    assert differences(theirs["parts"], ours["parts"]) == []
    assert differences(without["parts"], with_ends["parts"]) == []


@pytest.mark.slow
@pytest.mark.parametrize("spoken", typed(*WITH_A_CLIENT))
def test_events_that_an_sdk_received_fold_to_the_answer_it_receives_whole(spoken: Answer) -> None:
    """The real client takes the stream apart, and takes our fold for a whole answer."""
    request = samples(spoken.dialect, "request")[0].body
    with serving() as provider:
        provider.answer(spoken.dialect, spoken.events)
        events = ask(spoken.dialect, request, provider.url, stream=True)
        folded = read_events(spoken.dialect, events).stream.body
        provider.answer(spoken.dialect, folded)
        whole = ask(spoken.dialect, request, provider.url)

    def one(body: Any) -> Any:
        return in_one_spelling(spoken.dialect, "response", body)

    assert differences(one(spoken.body), one(folded)) == []
    assert differences(one(folded), one(whole)) == []


@pytest.mark.parametrize("spoken", [each for each in ANSWERS if each.dialect in WITH_A_CLIENT], ids=str)
def test_a_stream_is_read_as_each_provider_frames_it(spoken: Answer) -> None:
    data = event_stream(spoken.dialect, spoken.events)

    stream = read(spoken.dialect, [data]).stream

    assert differences(spoken.body, stream.body) == []
    assert stream.unfinished == ()


# ---------------------------------------------------------------- a real model

PATHS = {"openai-chat": "/v1/chat/completions", "openai-responses": "/v1/responses", "anthropic-messages": "/v1/messages"}
SPEAKING: dict[str, dict[str, Any]] = {
    "openai-chat": {"messages": [{"role": "user", "content": "Say hello in French."}], "max_tokens": 12},
    "openai-responses": {"input": "Say hello in French.", "max_output_tokens": 12},
    "anthropic-messages": {"messages": [{"role": "user", "content": "Say hello in French."}], "max_tokens": 12},
}


def _post(address: str, path: str, body: Any) -> Iterator[bytes]:
    """Send a request and yield the answer's bytes as they come."""
    url = urlsplit(address)
    connection = http.client.HTTPConnection(str(url.hostname), url.port, timeout=60)
    connection.request("POST", path, json.dumps(body), {"Content-Type": "application/json"})
    answer = connection.getresponse()
    while data := answer.read1(100):
        yield data
    connection.close()


@pytest.mark.slow
@pytest.mark.parametrize("asked", [SPEAKING, FORCED], ids=["words", "a call"])
@pytest.mark.parametrize("dialect", PATHS)
def test_a_real_model_streams_the_same_as_its_whole_answer(dialect: str, asked: Any, local_model: str) -> None:
    """The bytes of a real server, which leaves out more than a provider does: indexes, inputs, ids of items."""
    request = as_request(dialect, asked[dialect])
    whole = json.loads(b"".join(_post(local_model, PATHS[dialect], request)))

    stream, deltas = read(dialect, _post(local_model, PATHS[dialect], {**request, "stream": True}))

    assert stream.unfinished == ()
    assert [delta.kind for delta in deltas].count("finish") == 1
    assert differences(_said(whole), _said(stream.body)) == []


def _said(body: Any) -> list[Any]:
    """Return what an answer says and calls, without ids, times and counts."""
    if "choices" in body:
        message = body["choices"][0]["message"]
        return [message["content"] or "", [each["function"] for each in message.get("tool_calls", [])]]
    gone = {"id", "call_id", "item_id"}
    return [{key: value for key, value in each.items() if key not in gone} for each in body.get("output", body.get("content"))]
