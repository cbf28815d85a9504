"""One item of every kind that Responses has, as valid as the SDK's types want it, and the beta's besides."""

from typing import Any

__all__ = ["BETA", "HOSTED", "OWN_WORDS", "PIXEL", "one_of_each"]

PIXEL = "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg=="

OWN_WORDS: list[dict[str, Any]] = [
    {"type": "message", "role": "developer", "content": "Use SI units."},
    {"role": "user", "content": [{"type": "input_text", "text": "Plan", "prompt_cache_breakpoint": {"mode": "explicit"}}]},
    {"type": "reasoning", "id": "rs_1", "summary": [{"type": "summary_text", "text": "plan"}], "encrypted_content": "gAAAA=="},
    {
        "type": "custom_tool_call",
        "id": "ctc_1",
        "call_id": "call_1",
        "name": "shell",
        "input": "ls -la\n",
        "caller": {"type": "direct"},
    },
    {
        "type": "custom_tool_call_output",
        "call_id": "call_1",
        "output": [{"type": "input_image", "detail": "high", "image_url": f"data:image/png;base64,{PIXEL}"}],
    },
    {"type": "function_call", "call_id": "call_2", "name": "now", "arguments": ""},
    {"type": "function_call_output", "call_id": "call_2", "name": "now", "output": [{"type": "input_text", "text": ""}]},
    {"type": "function_call", "call_id": "call_3", "name": "now", "arguments": '{ "zone": "UTC" }'},
    {"type": "function_call_output", "call_id": "call_3", "output": []},
    {
        "type": "message",
        "id": "msg_1",
        "role": "assistant",
        "status": "completed",
        "content": [
            {
                "type": "output_text",
                "text": "See the file.",
                "annotations": [
                    {
                        "type": "container_file_citation",
                        "container_id": "cntr_1",
                        "file_id": "cfile_1",
                        "filename": "a.csv",
                        "start_index": 4,
                        "end_index": 12,
                    },
                    {"type": "file_path", "file_id": "file-1", "index": 0},
                ],
            },
            {"type": "refusal", "refusal": "No more."},
        ],
    },
    {"role": "assistant", "content": []},
    {"role": "user", "content": [{"type": "input_file", "filename": "x.png", "file_data": f"data:image/png;base64,{PIXEL}"}]},
]
"""What the core has words for."""

HOSTED: list[dict[str, Any]] = [
    {"type": "web_search_call", "id": "ws_1", "status": "completed", "action": {"type": "search", "query": "q"}},
    {"type": "file_search_call", "id": "fs_1", "status": "completed", "queries": ["q"], "results": None},
    {
        "type": "code_interpreter_call",
        "id": "ci_1",
        "status": "completed",
        "container_id": "cntr_1",
        "code": "1+1",
        "outputs": [{"type": "logs", "logs": "2"}],
    },
    {"type": "image_generation_call", "id": "ig_1", "status": "completed", "result": PIXEL, "output_format": "webp"},
    {"type": "image_generation_call", "id": "ig_2", "status": "failed", "result": None},
    {"type": "shell_call", "call_id": "sh_1", "action": {"commands": ["ls"]}},
    {
        "type": "shell_call_output",
        "call_id": "sh_1",
        "output": [{"stdout": "a", "stderr": "", "outcome": {"type": "exit", "exit_code": 0}}],
    },
    {
        "type": "mcp_call",
        "id": "mcp_1",
        "server_label": "docs",
        "name": "find",
        "arguments": "{}",
        "output": "found",
    },
    {"type": "mcp_approval_request", "id": "mcpr_1", "server_label": "docs", "name": "drop", "arguments": "{}"},
    {"type": "mcp_approval_response", "approval_request_id": "mcpr_1", "approve": False},
    {"type": "program", "id": "pg_1", "call_id": "pc_1", "code": "1", "fingerprint": "opaque"},
    {"type": "program_output", "id": "po_1", "call_id": "pc_1", "result": "1", "status": "completed"},
    {"type": "compaction", "id": "cmp_1", "encrypted_content": "gAAAAC=="},
    {"type": "additional_tools", "role": "developer", "tools": [{"type": "web_search"}]},
    {"type": "item_reference", "id": "msg_0"},
    {"id": "msg_0b"},
]
"""What the service runs itself, and control items."""

BETA: list[dict[str, Any]] = [
    {
        "type": "agent_message",
        "id": "am_1",
        "author": "/root",
        "recipient": "/root/reader",
        "content": [
            {"type": "input_text", "text": "Read chapter 2."},
            {"type": "encrypted_content", "encrypted_content": "gAAAAD=="},
        ],
    },
    {
        "type": "function_call",
        "id": "fc_7",
        "call_id": "call_7",
        "name": "now",
        "arguments": "{}",
        "agent": {"agent_name": "/root/reader"},
    },
    {"type": "function_call_output", "call_id": "call_7", "output": "09:00"},
    {"type": "multi_agent_call", "call_id": "mac_1", "action": "list_agents", "arguments": "{}"},
]
"""Items of the beta for several agents."""


def one_of_each() -> list[dict[str, Any]]:
    """Return all of them, and one that nobody knows yet."""
    return [*OWN_WORDS, *HOSTED, *BETA, {"type": "dream", "id": "dr_1", "vision": [{"deep": None}]}]
