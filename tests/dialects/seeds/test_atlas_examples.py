"""Atlas: the messages, factories and tool results that the document shows, with values of our own."""

from antiphon.dialects import decode, encode
from antiphon.dialects.atlas import MessageType, StructuredMessage


def asked() -> StructuredMessage:
    """Return the basic message of the document, addressed after it was made."""
    message = StructuredMessage(
        content="Is the ferry running?",
        metadata={"type": MessageType.QUERY, "priority": "high"},
        task_id="ferry-1",
    )
    message.source_agent = "user"
    message.target_agent = "harbour_agent"
    return message


def test_a_basic_message_is_made_and_then_addressed() -> None:
    """AT-017, AT-018, AT-003: the task's id is optional."""
    message = asked()

    assert (message.task_id, message.source_agent, message.target_agent) == ("ferry-1", "user", "harbour_agent")
    assert message.metadata["type"] == MessageType.QUERY
    assert StructuredMessage(content="Is it?").task_id


def test_a_response_is_created_from_the_message_that_it_answers() -> None:
    """AT-019, AT-020, AT-021: the four assertions of the document."""
    message = asked()
    response = StructuredMessage.create_response(content="It runs every hour.", original_message=message)

    assert response.source_agent == "harbour_agent"
    assert response.target_agent == "user"
    assert response.metadata["type"] == MessageType.RESPONSE
    assert response.metadata["in_reply_to"] == message.task_id


def test_an_error_is_created_from_the_message_that_it_answers() -> None:
    """AT-023."""
    message = asked()
    error = StructuredMessage.create_error(error_message="The harbour does not answer", original_message=message)

    assert error.metadata["type"] == MessageType.ERROR
    assert error.content == "The harbour does not answer"


def test_a_tool_call_and_its_results_are_added() -> None:
    """AT-026, AT-027, AT-028: a call returns its id; a result has it, a failure has a text."""
    ferry_message = StructuredMessage(content="Look at the timetable of the ferry")
    call_id = ferry_message.add_tool_call(name="get_times", arguments={"line": "F2", "day": "sunday"})
    response = StructuredMessage(content="These are the times:")
    response.add_tool_result(
        name="get_times",
        result={"first": 7, "every": "hour", "boats": 2},
        call_id=call_id,
        status="success",
    )
    response.add_tool_result(
        name="get_times",
        result=None,
        call_id="another-call",
        status="error",
        error="the timetable is wet",
    )

    assert [(call["id"], call["name"], call["arguments"]) for call in ferry_message.tool_calls] == [
        (call_id, "get_times", {"line": "F2", "day": "sunday"})
    ]
    good, bad = response.tool_results
    assert (good["call_id"], good["status"], good["result"]) == (call_id, "success", {"first": 7, "every": "hour", "boats": 2})
    assert (bad["call_id"], bad["status"], bad["result"], bad["error"]) == (
        "another-call",
        "error",
        None,
        "the timetable is wet",
    )


def test_a_message_goes_to_a_dict_or_json_and_comes_back() -> None:
    """AT-029, AT-030, AT-031, AT-032, AT-033: the same by both ways, and through the ledger's form."""
    message = asked()
    message_dict = message.to_dict()
    json_str = message.to_json()

    assert StructuredMessage.from_dict(message_dict) == message
    assert StructuredMessage.from_json(json_str) == message
    assert encode(decode([message_dict], "atlas"), "atlas").value == [message_dict]


def test_a_task_is_created_with_its_data() -> None:
    """AT-024: the data is in the metadata, beside the type."""
    task_msg = StructuredMessage.create_task(
        content="Count the passengers of these boats",
        source_agent="controller",
        target_agent="counting_worker",
        task_data={"priority": "high", "deadline": "2h"},
    )

    assert (task_msg.source_agent, task_msg.target_agent) == ("controller", "counting_worker")
    assert task_msg.metadata == {"type": MessageType.TASK, "priority": "high", "deadline": "2h"}
