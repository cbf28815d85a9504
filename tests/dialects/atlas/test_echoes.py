"""A result that is told again is an echo. Another result of the same call is not, and is kept."""

from typing import Any

from antiphon import decode, encode
from antiphon.messages import OptionResultPayload


def unit(number: int, **more: Any) -> dict[str, Any]:
    return {"message_id": str(number), "source_agent": "w", "target_agent": "c", "timestamp": 1.0, "content": "", **more}


def failed(error: str) -> dict[str, Any]:
    return {"call_id": "c2", "name": "fetch", "status": "error", "error": error}


HISTORY = [
    unit(1, message_type="tool_request", tool_calls=[{"id": "c2", "name": "fetch", "arguments": {}}]),
    unit(2, message_type="tool_response", tool_results=[failed("no network"), failed("no such page")]),
    unit(3, message_type="response", content="I cannot.", tool_results=[failed("no network")]),
]


def test_two_different_results_of_one_call_are_two_results() -> None:
    # Mutant: in `_tool_result` of atlas/_read.py, take any second result for an echo -> this test is red.
    read = decode(HISTORY, "atlas")
    results = [message.payload for message in read if isinstance(message.payload, OptionResultPayload)]

    assert [result.error_message for result in results] == ["no network", "no such page"]
    assert encode(read, "atlas").value == HISTORY
