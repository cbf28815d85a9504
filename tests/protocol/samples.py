"""The messages that the protocol's reference shows, as data, one row a type: its acceptance lines, its data, its answer's."""

from typing import Any, NamedTuple


class Sample(NamedTuple):
    lines: str
    type: str
    data: dict[str, Any]
    response_type: str | None
    response_data: dict[str, Any]


OUTPUT = {"response": "I'll help you with that.", "next_phase": "experience", "confidence": 0.95}
RESULT = {"response": "The capital of France is Paris.", "confidence": 0.99, "tool_calls": []}
HISTORY = [{"role": "user", "content": "Hello, world!"}, {"role": "assistant", "content": "I'll help you with that."}]
WHO = {"user_id": "user123", "metadata": {"session_id": "session456"}}
ACTOR = "action_phase_actor_123"

SAMPLES = [
    Sample(
        "CH-010 CH-056 CH-057",
        "CREATE_THREAD",
        {"user_id": "user123", "initial_input": "Hello, world!", "metadata": {"source": "web", "session_id": "session456"}},
        "THREAD_CREATED",
        {"thread_id": "thread789", "status": "created"},
    ),
    Sample(
        "CH-011 CH-058 CH-059",
        "START_THREAD",
        {"thread_id": "thread789"},
        "THREAD_STARTED",
        {"thread_id": "thread789", "status": "processing", "started_at": "2023-07-15T10:30:00Z"},
    ),
    Sample(
        "CH-012 CH-060 CH-061",
        "PAUSE_THREAD",
        {"thread_id": "thread789"},
        "THREAD_PAUSED",
        {"thread_id": "thread789", "status": "paused", "paused_at": "2023-07-15T10:35:00Z", "current_phase": "experience"},
    ),
    Sample(
        "CH-013 CH-062 CH-063",
        "RESUME_THREAD",
        {"thread_id": "thread789"},
        "THREAD_RESUMED",
        {
            "thread_id": "thread789",
            "status": "processing",
            "resumed_at": "2023-07-15T10:40:00Z",
            "current_phase": "experience",
        },
    ),
    Sample(
        "CH-014 CH-064 CH-065",
        "TERMINATE_THREAD",
        {"thread_id": "thread789", "reason": "user_request"},
        "THREAD_TERMINATED",
        {"thread_id": "thread789", "status": "terminated", "terminated_at": "2023-07-15T10:45:00Z", "reason": "user_request"},
    ),
    Sample(
        "CH-015 CH-066 CH-067",
        "GET_THREAD_STATUS",
        {"thread_id": "thread789"},
        "THREAD_STATUS",
        {
            "thread_id": "thread789",
            "status": "processing",
            "current_phase": "intention",
            "created_at": "2023-07-15T10:30:00Z",
            "updated_at": "2023-07-15T10:42:00Z",
            "phases_completed": ["action", "experience"],
            "phases_remaining": ["intention", "observation", "understanding", "yield"],
        },
    ),
    Sample(
        "CH-016 CH-069 CH-070",
        "PROCESS_PHASE",
        {
            "thread_id": "thread789",
            "phase_type": "action",
            "input": "Hello, world!",
            "context": {"conversation_history": [], "user_id": "user123"},
        },
        "PHASE_PROCESSED",
        {"thread_id": "thread789", "phase_type": "action", "output": OUTPUT, "processing_time": 0.75},
    ),
    Sample(
        "CH-017 CH-071 CH-072",
        "INITIALIZE_PHASE",
        {
            "phase_type": "action",
            "config": {
                "model": "openai:gpt-4o",
                "temperature": 0.7,
                "max_tokens": 1000,
                "tools": ["web_search", "calculator"],
            },
        },
        "PHASE_INITIALIZED",
        {"phase_type": "action", "status": "ready", "agent_id": "action_agent_123"},
    ),
    Sample(
        "CH-018 CH-073 CH-074",
        "PREPARE_CONTEXT",
        {
            "thread_id": "thread789",
            "phase_type": "experience",
            "previous_phase_output": OUTPUT,
            "conversation_history": HISTORY,
        },
        "CONTEXT_PREPARED",
        {
            "thread_id": "thread789",
            "phase_type": "experience",
            "context": {
                "messages": [{"role": "system", "content": "You are the experience phase..."}, *HISTORY],
                "tools": ["memory_retrieval", "knowledge_base"],
                "metadata": {"user_id": "user123", "session_id": "session456"},
            },
        },
    ),
    Sample(
        "CH-019 CH-076 CH-077",
        "INVOKE_AGENT",
        {"agent_id": "action_agent_123", "input": "Hello, world!", "context": WHO, "stream": False},
        "AGENT_INVOKED",
        {"agent_id": "action_agent_123", "result": RESULT, "processing_time": 0.75},
    ),
    Sample(
        "CH-020 CH-079 CH-080",
        "PROCESS_WITH_AGENT",
        {"input": "What is the capital of France?", "context": WHO},
        "AGENT_RESPONSE",
        {"result": RESULT, "processing_time": 0.5},
    ),
    Sample(
        "CH-021 CH-081 CH-082",
        "UPDATE_AGENT_CONFIG",
        {
            "agent_id": "action_agent_123",
            "config": {
                "system_prompt": "You are a helpful assistant...",
                "model": "openai:gpt-4o",
                "temperature": 0.5,
                "tools": ["web_search", "calculator"],
            },
        },
        "AGENT_CONFIG_UPDATED",
        {"agent_id": "action_agent_123", "status": "updated"},
    ),
    Sample("CH-022 CH-083 CH-084", "HEARTBEAT", {}, "HEARTBEAT_RESPONSE", {"status": "alive", "uptime": 3600, "load": 0.5}),
    Sample(
        "CH-023 CH-085 CH-086",
        "SUPERVISE",
        {"actor_id": ACTOR},
        "SUPERVISION_STARTED",
        {"actor_id": ACTOR, "status": "supervised"},
    ),
    Sample(
        "CH-025 CH-087 CH-088",
        "RESTART",
        {"actor_id": ACTOR, "reason": "error_recovery"},
        "RESTART_COMPLETE",
        {"actor_id": ACTOR, "status": "restarted", "restarted_at": "2023-07-15T11:30:00Z"},
    ),
    Sample(
        "CH-026 CH-089 CH-090",
        "STOP",
        {"actor_id": ACTOR, "reason": "shutdown"},
        "STOP_COMPLETE",
        {"actor_id": ACTOR, "status": "stopped", "stopped_at": "2023-07-15T12:00:00Z"},
    ),
    Sample(
        "CH-024 CH-091",
        "ERROR",
        {
            "error_message": "Failed to process phase",
            "error_code": "PHASE_PROCESSING_ERROR",
            "thread_id": "thread789",
            "phase_type": "action",
            "details": "API rate limit exceeded",
        },
        "ERROR_ACKNOWLEDGED",
        {"actor_id": ACTOR, "action_taken": "restart", "error_logged": True},
    ),
    Sample(
        "CH-027 CH-092 CH-093",
        "ERROR_NOTIFICATION",
        {
            "actor_id": ACTOR,
            "error_message": "Failed to process phase",
            "error_code": "PHASE_PROCESSING_ERROR",
            "details": "API rate limit exceeded",
        },
        "ERROR_ACKNOWLEDGED",
        {"actor_id": ACTOR, "action_taken": "restart", "error_logged": True},
    ),
    Sample(
        "CH-029 CH-094",
        "RETRY",
        {"original_message_id": "failed_message_id", "attempt": 2, "max_attempts": 3},
        "RETRY_RESPONSE",
        {},
    ),
    Sample(
        "CH-112 (its data)",
        "THREAD_RESULT",
        {"thread_id": "thread789", "status": "completed", "outputs": {"yield": OUTPUT}, "response": "Done."},
        None,
        {},
    ),
    Sample("CH-078 (its data)", "AGENT_STREAM_CHUNK", {"agent_id": "action_agent_123", "index": 0, "text": "I'll"}, None, {}),
    Sample("plain talk", "MESSAGE", {"role": "user", "content": "Hello, world!"}, None, {}),
]
