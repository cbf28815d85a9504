"""The catalogue: every type of the protocol as a class, its answer, and the page that lists them."""

import re
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, cast, get_args

import pytest
from pydantic import ValidationError
from tests.protocol.samples import SAMPLES, Sample

from antiphon.protocol import (
    AgentConfig,
    AgentInvoked,
    AgentResponse,
    ContextPrepared,
    CreateThread,
    Error,
    ErrorAcknowledged,
    ErrorCode,
    ErrorResponse,
    Heartbeat,
    HeartbeatResponse,
    InitializePhase,
    InvokeAgent,
    Message,
    Notice,
    PhaseProcessed,
    PrepareContext,
    ProcessPhase,
    ProcessWithAgent,
    Reply,
    Request,
    Response,
    Restart,
    Retry,
    Talk,
    ThreadCreated,
    ThreadStarted,
    ThreadState,
    ThreadStatus,
    UpdateAgentConfig,
)
from antiphon.protocol._catalogue import CATALOGUE
from antiphon.protocol._messages import Entry, find_entry
from antiphon.protocol._values import optional_fields, required_fields

PAGE = Path(__file__).parents[2] / "docs" / "dialects" / "choir.md"
NOON = datetime(2023, 7, 15, 12, tzinfo=UTC)


def _entry(type: str) -> Entry:
    entry = find_entry(type)
    assert entry is not None
    return entry


def _read(type: str) -> Any:
    sample = next(sample for sample in SAMPLES if sample.type == type)
    return _entry(type).data.from_message(Message(type=type, data=sample.data))


def _read_response(type: str) -> Any:
    sample = next(sample for sample in SAMPLES if sample.response_type == type)
    reply = _entry(sample.type).response
    assert reply is not None
    return reply.from_response(Response(type=type, data=sample.response_data))


# ---------------------------------------------------------------- the table


def test_every_type_of_the_reference_has_a_row_and_a_sample() -> None:
    assert {entry.type for entry in CATALOGUE} == {sample.type for sample in SAMPLES}
    assert len({entry.type for entry in CATALOGUE}) == len(CATALOGUE)
    assert {entry.family for entry in CATALOGUE} == {"thread", "phase", "agent", "system", "error", "talk"}
    assert find_entry("THREAD_CREATED") is None
    assert find_entry("NOBODY") is None


@pytest.mark.parametrize("sample", SAMPLES, ids=lambda sample: sample.type)
def test_a_request_knows_its_response(sample: Sample) -> None:
    """CH-009, CH-010 to CH-029: in the message, in the row and in the class."""
    entry = _entry(sample.type)
    expected = sample.response_type or f"{sample.type}_RESPONSE"

    assert Message(type=sample.type).get_response_type() == expected
    assert entry.response_type == sample.response_type
    assert entry.data.message_type == sample.type
    if issubclass(entry.data, Request):
        reply = cast("type[Reply]", entry.data.reply_class())
        assert reply is entry.response
        assert reply.message_type in (sample.response_type, "")
    else:
        assert issubclass(entry.data, Notice)
        assert entry.response is None


def test_a_retry_is_answered_as_what_it_retries() -> None:
    """CH-029: if that is known; nothing else looks at an original."""
    original = Message(type="PROCESS_WITH_AGENT", data={"input": "x"})
    retry = Retry(original_message_id=original.id, attempt=2, max_attempts=3)

    assert retry.to_message().get_response_type() == "RETRY_RESPONSE"
    assert retry.to_message().get_response_type(original) == "AGENT_RESPONSE"
    carried = retry.model_copy(update={"original_message": original.model_dump(mode="json")})
    assert carried.to_message().get_response_type() == "AGENT_RESPONSE"
    assert carried.to_message().get_response_type(carried.to_message()) == "AGENT_RESPONSE"
    assert Message(type="STOP", data=carried.to_data()).get_response_type(original) == "STOP_COMPLETE"


# ---------------------------------------------------------------- data


@pytest.mark.parametrize("sample", SAMPLES, ids=lambda sample: sample.type)
def test_every_example_of_the_reference_is_read_and_written_again(sample: Sample) -> None:
    """CH-056 to CH-094: the same data, the same keys, in both directions; see samples.py for the line of each."""
    entry = _entry(sample.type)
    message = Message(type=sample.type, data=sample.data, sender="a", receiver="b")
    request = entry.data.from_message(message)

    assert request.to_data() == sample.data
    assert request.to_message(sender="a", receiver="b", id=message.id, timestamp=message.timestamp) == message
    assert entry.data.model_validate(request.model_dump()) == request
    if entry.response:
        response = message.reply(data=sample.response_data)
        reply = entry.response.from_response(response)
        assert reply.to_data() == sample.response_data
        assert reply.to_response(message, id=response.id, timestamp=response.timestamp) == response


@pytest.mark.parametrize("sample", SAMPLES, ids=lambda sample: sample.type)
def test_keys_that_we_do_not_know_are_kept_at_every_depth_but_in_the_context_of_a_client(sample: Sample) -> None:
    """A context is the word of a client, on which programs act: only its declared keys are taken."""

    def more(value: Any, name: str = "") -> Any:
        if isinstance(value, dict):
            own = {} if name == "context" and issubclass(entry.data, Request) else {"x-trace": {"kind": [1, None]}}
            return {key: more(each, key) for key, each in value.items()} | own
        return [more(each) for each in value] if isinstance(value, list) else value

    entry = _entry(sample.type)
    data = more(sample.data)
    assert entry.data.from_data(data).to_data() == data
    if "context" in data:
        with pytest.raises(ValueError, match="context.agent"):
            entry.data.from_data({**data, "context": {**data["context"], "agent": {"tools": ["pay"]}}})
    if entry.response:
        data = more(sample.response_data)
        assert entry.response.from_data(data).to_data() == data


def test_threads_are_typed() -> None:
    """CH-056, CH-057, CH-059, CH-067, CH-068"""
    request = CreateThread(user_id="u", initial_input="hi")
    status = _read_response("THREAD_STATUS")

    assert request.to_data() == {"user_id": "u", "initial_input": "hi"}
    assert request.metadata == {}
    assert _read("CREATE_THREAD").metadata["session_id"] == "session456"
    assert ThreadCreated(thread_id="t").to_data() == {"thread_id": "t", "status": "created"}
    assert ThreadStarted(thread_id="t", started_at=NOON).to_data()["started_at"] == "2023-07-15T12:00:00Z"
    assert isinstance(status, ThreadStatus)
    assert status.created_at == datetime(2023, 7, 15, 10, 30, tzinfo=UTC)
    assert status.phases_completed == ("action", "experience")
    assert set(get_args(ThreadState)) == {"created", "processing", "paused", "terminated", "completed", "failed"}
    assert status.model_copy(update={"status": "completed", "current_phase": None}).to_data()["current_phase"] is None


def test_phases_are_typed() -> None:
    """CH-069, CH-070, CH-071, CH-073, CH-074"""
    phase, processed, context = _read("PROCESS_PHASE"), _read_response("PHASE_PROCESSED"), _read("PREPARE_CONTEXT")
    prepared, start = _read_response("CONTEXT_PREPARED"), _read("INITIALIZE_PHASE")

    assert isinstance(phase, ProcessPhase)
    assert phase.context is not None
    assert (phase.context.user_id, phase.context.conversation_history) == ("user123", ())
    assert isinstance(processed, PhaseProcessed)
    assert (processed.output.next_phase, processed.output.confidence) == ("experience", 0.95)
    assert isinstance(context, PrepareContext)
    assert [turn.role for turn in context.conversation_history] == ["user", "assistant"]
    assert isinstance(prepared, ContextPrepared)
    assert prepared.context.messages[0].content == "You are the experience phase..."
    assert prepared.context.tools == ("memory_retrieval", "knowledge_base")
    assert prepared.context.metadata == {"user_id": "user123", "session_id": "session456"}
    assert isinstance(start, InitializePhase)
    assert (start.config.model, start.config.max_tokens, start.config.system_prompt) == ("openai:gpt-4o", 1000, None)


def test_agents_are_typed() -> None:
    """CH-076, CH-077, CH-079, CH-080, CH-081"""
    invoke, invoked = _read("INVOKE_AGENT"), _read_response("AGENT_INVOKED")
    process, response = _read("PROCESS_WITH_AGENT"), _read_response("AGENT_RESPONSE")
    calls = [{"id": "c-1", "name": "search", "arguments": {"query": "x"}}, {"function": {"name": "f"}}]

    assert isinstance(invoke, InvokeAgent)
    assert invoke.context is not None
    assert (invoke.stream, invoke.context.metadata) == (False, {"session_id": "session456"})
    assert InvokeAgent(agent_id="a", input="x").to_data() == {"agent_id": "a", "input": "x", "stream": False}
    assert isinstance(invoked, AgentInvoked)
    assert invoked.result.tool_calls == ()
    assert isinstance(process, ProcessWithAgent)
    assert (process.agent_id, process.input) == (None, "What is the capital of France?")
    assert isinstance(response, AgentResponse)
    assert response.result.confidence == 0.99
    used = AgentResponse.from_data({"result": {"response": "", "tool_calls": calls}, "processing_time": 1})
    assert used.result.tool_calls[0].arguments == {"query": "x"}
    assert used.to_data()["result"]["tool_calls"] == calls


def test_the_settings_of_an_agent_are_merged() -> None:
    """CH-071, CH-081: what an update does not give stays; what it gives, none included, is set."""
    config = AgentConfig(model="openai:gpt-4o", temperature=0.7, max_tokens=1000, tools=("calculator",))
    update = UpdateAgentConfig.from_data(
        {"agent_id": "a", "config": {"temperature": 1, "tools": [], "max_tokens": None, "seed": 7}}
    )

    assert config.merged(update.config).model_dump(exclude_unset=True) == {
        "model": "openai:gpt-4o",
        "temperature": 1,
        "max_tokens": None,
        "tools": (),
        "seed": 7,
    }
    assert config.merged(AgentConfig()) == config


def test_the_system_is_typed() -> None:
    """CH-083, CH-084, CH-087, CH-093"""
    assert Heartbeat().to_data() == {}
    assert HeartbeatResponse(uptime=3600, load=0).to_data() == {"status": "alive", "uptime": 3600, "load": 0}
    assert Restart(reason="error_recovery").to_data() == {"reason": "error_recovery"}
    assert isinstance(_read_response("ERROR_ACKNOWLEDGED"), ErrorAcknowledged)


def test_an_error_is_data_too() -> None:
    """CH-034, CH-035, CH-091"""
    error = ErrorResponse("no", ErrorCode.AGENT_ERROR, data={"details": [1]})

    assert Error.from_data(error.data).details == [1]
    assert Error.from_data(error.data).to_data() == error.data
    assert Error(error_message="no").to_data() == {"error_message": "no"}


def test_the_codes_are_their_names() -> None:
    assert [str(code) for code in ErrorCode] == [
        "VALIDATION_ERROR",
        "UNKNOWN_MESSAGE_TYPE",
        "ACTOR_NOT_FOUND",
        "THREAD_NOT_FOUND",
        "INVALID_STATE",
        "PHASE_PROCESSING_ERROR",
        "AGENT_ERROR",
        "TIMEOUT",
        "RETRY_EXHAUSTED",
        "ACTOR_STOPPED",
    ]


@pytest.mark.parametrize("entry", CATALOGUE, ids=lambda entry: entry.type)
def test_data_is_frozen(entry: Entry) -> None:
    request: Any = _read(entry.type)

    for name in [*required_fields(entry.data), *optional_fields(entry.data), "other"]:
        with pytest.raises((AttributeError, ValidationError)):
            setattr(request, name, None)


@pytest.mark.parametrize("entry", CATALOGUE, ids=lambda entry: entry.type)
def test_data_has_a_json_schema(entry: Entry) -> None:
    models: list[Any] = [entry.data, entry.response] if entry.response else [entry.data]

    for model in models:
        assert model.model_json_schema()["properties"].keys() == model.model_fields.keys()


def test_data_is_shown_with_its_constants() -> None:
    assert repr(ThreadCreated(thread_id="t")) == "ThreadCreated(thread_id='t', status='created')"
    assert repr(Talk(role="user", content="hi")) == "Talk(role='user', content='hi')"


# ---------------------------------------------------------------- conversion


def test_a_message_of_another_type_is_refused() -> None:
    with pytest.raises(ValueError, match="^CreateThread is the data of CREATE_THREAD, not of STOP$"):
        CreateThread.from_message(Message(type="STOP"))
    with pytest.raises(ValueError, match="^ThreadCreated is the data of THREAD_CREATED, not of ERROR$"):
        ThreadCreated.from_response(ErrorResponse("no"))


def test_a_field_that_the_constructor_fills_in_is_missed_in_data() -> None:
    with pytest.raises(ValueError, match="^THREAD_CREATED message must contain 'status' field$"):
        ThreadCreated.from_data({"thread_id": "t"})


def test_any_answer_can_be_read_as_a_reply() -> None:
    response = Message(type="T").reply(data={"a": [1]})

    assert Reply.from_response(response).to_data() == {"a": [1]}
    assert Reply.from_data({"a": 1}).to_response(Message(type="T")).type == "T_RESPONSE"


# ---------------------------------------------------------------- the page


def _table() -> str:
    """The catalogue in Markdown."""
    lines = ["| type | family | what it asks or tells | data | answer | data of the answer |", "|---|---|---|---|---|---|"]
    for entry in CATALOGUE:
        answer = "–" if entry.response_type is None else f"`{entry.response_type}`"
        if entry.response is Reply:
            answer = "as the original"
        cells = [f"`{entry.type}`", entry.family, _says(entry.data), _fields(entry.data), answer, _fields(entry.response)]
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


def _says(model: type) -> str:
    return (model.__doc__ or "").split("\n")[0]


def _fields(model: Any) -> str:
    if model is None or model is Reply:
        return "–"
    names = [f"`{name}`" for name in required_fields(model)] + [f"*`{name}`*" for name in optional_fields(model)]
    return ", ".join(names) or "none"


def test_the_page_lists_the_catalogue() -> None:
    """If this fails, put the table that it shows into the page."""
    found = re.search(r"<!-- catalogue -->\n\n(.*?)\n\n<!-- end -->", PAGE.read_text(), re.DOTALL)

    assert found
    assert found[1] == _table(), _table()


def test_the_page_lists_the_codes() -> None:
    text = PAGE.read_text()

    assert all(f"`{code}`" in text for code in ErrorCode)
