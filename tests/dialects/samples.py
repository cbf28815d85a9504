"""Samples of the four formats of the seeds: every kind of unit, with keys that nobody knows."""

from typing import Any

SAMPLES: dict[str, list[Any]] = {}
SAMPLES["marsys"] = [
    {"role": "system", "content": "You are", "x": 1},
    {"role": "user", "content": "weather?", "message_id": "u1", "timestamp": "2024-01-01T00:00:00"},
    {
        "role": "assistant",
        "content": "checking",
        "name": "w",
        "tool_calls": [
            {"id": "c1", "function": {"name": "get_weather", "arguments": '{"city": "Paris"}'}, "zz": [1]},
            {"id": "c2", "type": "function", "function": {"name": "f", "arguments": "nojson"}},
        ],
        "tool_call_id": None,
    },
    {"role": "tool", "name": "get_weather", "content": '{"temp": 18}', "tool_call_id": "c1"},
    {"role": "error", "name": "f", "content": "boom", "tool_call_id": "c2", "metadata": {"error_type": "E", "timestamp": "t"}},
    {"role": "agent_call", "content": "Research", "name": "r", "metadata": {"caller": "o", "task_id": "t1"}},
    {"role": "agent_response", "content": "done", "name": "r", "metadata": {"task_id": "t1", "completion_time": 2.5}},
    {"role": "error", "content": "alone", "name": "r"},
    {"role": "assistant", "content": None, "tool_calls": []},
]
SAMPLES["atlas"] = [
    {
        "content": "Is it cold?",
        "metadata": {"type": "query", "priority": "high"},
        "task_id": "w-1",
        "timestamp": 1700000000.25,
        "tool_calls": [],
        "tool_results": [],
        "source_agent": "user",
        "target_agent": "wa",
    },
    {
        "content": "Check",
        "metadata": {},
        "tool_calls": [{"id": "k1", "name": "get_weather", "arguments": {"location": "London"}, "q": 1}],
        "source_agent": "wa",
    },
    {
        "content": "Here",
        "metadata": {},
        "tool_results": [
            {"name": "get_weather", "result": {"temp": 22}, "call_id": "k1", "status": "success"},
            {"name": "get_weather", "result": None, "call_id": "bad", "status": "error", "error": "timeout"},
        ],
    },
    {
        "content": "It is sunny",
        "metadata": {"type": "response", "in_reply_to": "w-1"},
        "task_id": "w-1",
        "source_agent": "wa",
        "target_agent": "user",
    },
    {
        "content": "Analyze",
        "metadata": {"type": "task", "priority": "high"},
        "task_id": "t2",
        "source_agent": "controller",
        "target_agent": "worker",
    },
    {"content": "50%", "metadata": {"type": "status"}, "task_id": "t2", "source_agent": "worker"},
    {
        "content": "positive",
        "metadata": {"type": "result", "in_reply_to": "t2"},
        "task_id": "t2",
        "source_agent": "worker",
        "target_agent": "controller",
    },
    {"content": "oops", "metadata": {"type": "error", "in_reply_to": "w-1"}, "source_agent": "wa"},
]
SAMPLES["agent-framework"] = [
    {"type": "user_message", "content": "List all", "timestamp": "2024-01-15T10:30:00Z", "metadata": {"user_id": "u"}},
    {
        "type": "strategic_plan",
        "content": {"refined_intent": "x", "plan": {"phases": [{"name": "A", "worker": "analyzer", "goals": ".."}]}},
    },
    {"type": "task", "content": "Analyze", "agent_key": "analyzer"},
    {"type": "action", "tool": "list_tables", "args": {"schema": "public"}, "agent_key": "analyzer"},
    {"type": "observation", "content": {"tables": ["U"], "count": 1}, "agent_key": "analyzer"},
    {"type": "action", "tool": "db", "args": {}, "agent_key": "analyzer", "call_id": "c9"},
    {
        "type": "error",
        "content": {"error_message": "refused", "error_type": "ConnectionError", "tool": "db"},
        "agent_key": "analyzer",
        "call_id": "c9",
    },
    {"type": "final", "content": {"operation": "display_message", "payload": {"message": "ok"}}, "agent_key": "analyzer"},
    {"type": "synthesis", "content": "Combined", "phase_id": 1, "from_manager": "m", "is_global": True},
    {"type": "delegation", "worker": "w2", "task": "do it"},
    {"type": "assistant_message", "content": "Found 5", "timestamp": "2024-01-15T10:30:05Z"},
    {"type": "observation", "content": "lost", "agent_key": "zz"},
]
SAMPLES["choir"] = [
    {
        "id": "1",
        "type": "CREATE_THREAD",
        "data": {"user_id": "u", "initial_input": "Hello", "metadata": {"source": "web"}},
        "sender": None,
        "receiver": "thread",
        "timestamp": "2023-07-15T10:30:00Z",
        "correlation_id": None,
    },
    {"id": "2", "type": "THREAD_CREATED", "data": {"thread_id": "t", "status": "created"}, "message_id": "1", "x": {"y": 1}},
    {
        "id": "3",
        "type": "PROCESS_PHASE",
        "data": {"phase_type": "action"},
        "sender": "thread",
        "receiver": "phase",
        "correlation_id": "c",
    },
    {
        "id": "4",
        "type": "ERROR",
        "data": {"error_message": "Failed", "error_code": "PHASE_PROCESSING_ERROR", "thread_id": "t", "details": "rate"},
        "message_id": "3",
    },
    {"id": "5", "type": "THREAD_RESULT", "data": {"status": "completed"}},
    {"id": "6", "type": "MESSAGE", "data": {"role": "user", "content": "hi", "extra": 1}, "sender": "bob"},
    {"id": "7", "type": "HEARTBEAT", "data": {}},
    {"id": "8", "type": "FOO", "data": {"result": 3}},
    {"id": "9", "type": "FOO_RESPONSE", "data": {"result": [1]}, "message_id": "8"},
]
