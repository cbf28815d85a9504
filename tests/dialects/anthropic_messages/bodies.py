"""Bodies of Anthropic Messages beside the samples: server tools, every source and citation, forms that are legal and odd."""

from typing import Any

__all__ = ["ODD", "REQUESTS", "RESPONSES", "all_bodies"]

_PIXEL = "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg=="

REQUESTS: dict[str, Any] = {
    "server tools around a client's": {
        "model": "claude-opus-5-5",
        "max_tokens": 64,
        "tools": [
            {"type": "web_search_20250305", "name": "web_search", "max_uses": 2},
            {"type": "custom", "name": "save", "input_schema": {"type": "object"}, "strict": True},
        ],
        "messages": [
            {"role": "user", "content": "Find it, then save it."},
            {
                "role": "assistant",
                "content": [
                    {"type": "text", "text": "Searching."},
                    {"type": "server_tool_use", "id": "srvtoolu_1", "name": "web_search", "input": {"query": "it"}},
                    {
                        "type": "web_search_tool_result",
                        "tool_use_id": "srvtoolu_1",
                        "content": [
                            {
                                "type": "web_search_result",
                                "url": "https://news.example/a",
                                "title": "A",
                                "encrypted_content": "EqgfCioI",
                                "page_age": None,
                            }
                        ],
                    },
                    {
                        "type": "text",
                        "text": "Found: A.",
                        "citations": [
                            {
                                "type": "web_search_result_location",
                                "url": "https://news.example/a",
                                "title": None,
                                "encrypted_index": "Eo8BCioIAhgB",
                                "cited_text": "A is it",
                            }
                        ],
                    },
                    {
                        "type": "tool_use",
                        "id": "toolu_1",
                        "name": "save",
                        "input": {"_raw": "text that stands for itself"},
                        "caller": {"type": "direct"},
                        "cache_control": {"type": "ephemeral"},
                    },
                    {"type": "text", "text": "Saving."},
                ],
            },
            {
                "role": "user",
                "content": [
                    {
                        "type": "tool_result",
                        "tool_use_id": "toolu_1",
                        "content": [{"type": "text", "text": "saved", "cache_control": {"type": "ephemeral"}}],
                        "is_error": False,
                    }
                ],
            },
            {"role": "assistant", "content": [{"type": "text", "text": "Done."}]},
        ],
    },
    "what a result may show": {
        "model": "claude-opus-5-5",
        "max_tokens": 64,
        "messages": [
            {"role": "user", "content": [{"type": "container_upload", "file_id": "file_1"}, {"type": "text", "text": "go"}]},
            {"role": "assistant", "content": [{"type": "tool_use", "id": "toolu_1", "name": "look", "input": {}}]},
            {
                "role": "user",
                "content": [
                    {
                        "type": "tool_result",
                        "tool_use_id": "toolu_1",
                        "content": [
                            {"type": "text", "text": "one"},
                            {"type": "text", "text": "two"},
                            {"type": "image", "source": {"type": "url", "url": "https://img.example/a.png"}},
                            {
                                "type": "document",
                                "source": {"type": "text", "media_type": "text/plain", "data": "línea"},
                                "title": "t",
                            },
                            {
                                "type": "search_result",
                                "source": "kb://1",
                                "title": "KB",
                                "content": [{"type": "text", "text": "w"}],
                            },
                            {"type": "tool_reference", "tool_name": "look"},
                        ],
                    },
                    {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": _PIXEL}},
                ],
            },
        ],
    },
    "an error of two texts": {
        "model": "claude-opus-5-5",
        "max_tokens": 64,
        "system": [{"type": "text", "text": "Be brief."}],
        "messages": [
            {"role": "user", "content": "go"},
            {"role": "assistant", "content": [{"type": "tool_use", "id": "toolu_1", "name": "look", "input": {}}]},
            {
                "role": "user",
                "content": [
                    {
                        "type": "tool_result",
                        "tool_use_id": "toolu_1",
                        "is_error": True,
                        "content": [{"type": "text", "text": "Timeout: 5 s"}, {"type": "text", "text": "again?"}],
                    }
                ],
            },
        ],
    },
}
"""Request bodies that the SDK's types accept."""

RESPONSES: dict[str, Any] = {
    "thinking, text and a call": {
        "id": "msg_01Y",
        "type": "message",
        "role": "assistant",
        "model": "claude-opus-5-5",
        "content": [
            {"type": "thinking", "thinking": "Hm.", "signature": "EqQB"},
            {"type": "text", "text": "Looking.", "citations": None},
            {"type": "tool_use", "id": "toolu_1", "name": "look", "input": {"n": 1.0}, "caller": {"type": "direct"}},
        ],
        "stop_reason": "tool_use",
        "stop_sequence": None,
        "usage": {"input_tokens": 7, "output_tokens": 5, "cache_creation_input_tokens": None, "cache_read_input_tokens": 3},
    }
}
"""Response bodies that the SDK's types accept."""

ODD: dict[str, Any] = {
    "empty everything": {"messages": [], "system": "", "tools": []},
    "null settings": {"messages": [{"role": "user", "content": "hi"}], "system": None, "tools": None, "metadata": {}},
    "an empty system list": {"messages": [{"role": "user", "content": "hi"}], "system": []},
    "one message": {"role": "user", "content": "hi"},
    "one message with an id": {"role": "user", "content": "hi", "id": "mine"},
    "empty texts": [
        {"role": "user", "content": ""},
        {"role": "assistant", "content": []},
        {"role": "user", "content": [{"type": "text", "text": ""}, {"type": "text", "text": " "}]},
    ],
    "results in two messages": [
        {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "a", "content": ""}]},
        {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "b", "content": []}]},
    ],
    "text before results": [
        {"role": "user", "content": [{"type": "text", "text": "t"}, {"type": "tool_result", "tool_use_id": "a"}]}
    ],
    "blocks out of place": [
        {"role": "user", "content": [{"type": "thinking", "thinking": "t", "signature": "s"}, {"type": "tool_use"}]},
        {"role": "assistant", "content": [{"type": "tool_result", "tool_use_id": "a"}]},
        {
            "role": "assistant",
            "content": [{"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": _PIXEL}}],
        },
        {"role": "system", "content": [{"type": "image", "source": {"type": "url", "url": "https://img.example/a.png"}}]},
    ],
    "thinking without a signature": [
        {"role": "assistant", "content": [{"type": "thinking", "thinking": "t"}]},
        {"role": "assistant", "content": [{"type": "thinking", "thinking": "t", "signature": None}]},
    ],
    "an error that shows an image": [
        {"role": "assistant", "content": [{"type": "tool_use", "id": "a", "name": "f", "input": {}}]},
        {
            "role": "user",
            "content": [
                {
                    "type": "tool_result",
                    "tool_use_id": "a",
                    "is_error": True,
                    "content": [{"type": "image", "source": {"type": "url", "url": "https://img.example/a.png"}}],
                }
            ],
        },
    ],
    "calls without an id or input": [
        {
            "role": "assistant",
            "content": [
                {"type": "tool_use", "id": "", "name": "f"},
                {"type": "tool_use", "id": "x", "name": "g", "input": None},
            ],
        }
    ],
    "sources that the core has no URL for": [
        {
            "role": "user",
            "content": [
                {"type": "image", "source": {"type": "url", "url": "ftp://old.example/a.png"}},
                {"type": "image", "source": {"type": "base64", "media_type": "image/bmp", "data": "Qk0="}},
                {"type": "image", "source": None},
                {"type": "document", "source": {"type": "file", "file_id": ""}, "title": ""},
                {"type": "document", "source": {"type": "content", "content": "in one piece"}},
                {"type": "document", "source": {"type": "text", "media_type": "text/plain", "data": ""}},
            ],
        }
    ],
    "citations of no known shape": [
        {
            "role": "assistant",
            "content": [
                {"type": "text", "text": "a", "citations": []},
                {"type": "text", "text": "b", "citations": [None]},
                {"type": "text", "text": "c", "citations": [{"type": "new_location", "title": 7, "at": {"x": 1}}]},
            ],
        }
    ],
}
"""Bodies that a service may refuse, and that are read and written back all the same."""


def all_bodies() -> dict[str, Any]:
    return {**REQUESTS, **RESPONSES, **ODD}
