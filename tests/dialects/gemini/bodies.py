"""Bodies of generateContent beside the samples: both spellings, nulls, what the service runs, forms that are legal and odd."""

from typing import Any

from tests.providers.samples import samples

__all__ = ["BODIES", "ODD", "PIXEL", "REQUESTS", "RESPONSES"]

PIXEL = "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg=="

REQUESTS: dict[str, Any] = {
    "snake case, as clients write it": {
        "system_instruction": {"role": "system", "parts": [{"text": "Be kind."}]},
        "contents": [
            {
                "role": "user",
                "parts": [{"inline_data": {"mime_type": "image/png", "data": "iVBO-_8="}, "thought_signature": "AA=="}],
            },
            {
                "role": "model",
                "parts": [
                    {"text": "hm", "thought": True, "thought_signature": "AQ=="},
                    {"function_call": {"name": "look", "args": {"at": 1}}, "thought_signature": "Ag=="},
                    {"function_call": {"name": "look", "args": {"at": 2}}},
                ],
            },
            {
                "role": "user",
                "parts": [
                    {"function_response": {"name": "look", "response": {"output": [1]}}},
                    {
                        "function_response": {
                            "name": "look",
                            "response": {"output": None},
                            "parts": [
                                {"file_data": {"mime_type": "image/png", "file_uri": "gs://b/x.png", "display_name": "x"}}
                            ],
                        }
                    },
                ],
            },
        ],
        "tools": [{"function_declarations": [{"name": "look", "parameters_json_schema": {"type": "object"}}]}],
        "tool_config": {"function_calling_config": {"mode": "ANY"}},
    },
    "what the service itself runs": {
        "contents": [
            {"role": "user", "parts": [{"text": "Compute and search."}]},
            {
                "role": "model",
                "parts": [
                    {"executableCode": {"language": "PYTHON", "code": "print(1)", "id": "e1"}},
                    {"codeExecutionResult": {"outcome": "OUTCOME_OK", "output": "1\n", "id": "e1"}},
                    {
                        "toolCall": {"id": "t1", "toolType": "GOOGLE_SEARCH_WEB", "args": {"q": "x"}},
                        "thoughtSignature": "Aw==",
                    },
                    {"toolResponse": {"id": "t1", "toolType": "GOOGLE_SEARCH_WEB", "response": {"r": []}}},
                    {"inlineData": {"mimeType": "image/png", "data": PIXEL}, "thought": True},
                    {"text": "One."},
                ],
            },
        ],
        "tools": [
            {"codeExecution": {}},
            {"functionDeclarations": [{"name": "a"}], "googleSearch": {}},
            {
                "functionDeclarations": [
                    {"name": "b", "parameters": {"type": "OBJECT", "properties": {"x": {"type": "STRING"}}}}
                ]
            },
        ],
        "cachedContent": "cachedContents/1",
        "safetySettings": [],
    },
    "results of every form": {
        "contents": [
            {"role": "user", "parts": [{"text": "go"}]},
            {"role": "model", "parts": [{"functionCall": {"name": f"f{i}", "id": f"c{i}"}} for i in range(9)]},
            {
                "role": "user",
                "parts": [
                    {"functionResponse": {"name": f"f{i}", "id": f"c{i}", "response": response}}
                    for i, response in enumerate(
                        [
                            {},
                            {"output": {}},
                            {"output": {"output": 1}},
                            {"output": 1, "more": 2},
                            {"a": 1, "error": None},
                            {"a": 1, "error": False},
                            {"error": "Timeout: 5 s"},
                            {"error": {"code": 503}, "retry": True},
                            {"error": "no", "output": [1]},
                        ]
                    )
                ],
            },
        ],
    },
}
"""Which the SDK's types accept."""

RESPONSES: dict[str, Any] = {
    "blocked prompt": {"promptFeedback": {"blockReason": "SAFETY"}, "usageMetadata": {"promptTokenCount": 3}},
    "no candidates": {"candidates": [], "usageMetadata": {"promptTokenCount": 3}, "modelVersion": "gemini-4-pro"},
    "nothing but a reason": {"candidates": [{"finishReason": "SAFETY", "index": 0}]},
    "cut before the first word": {"candidates": [{"content": {}, "finishReason": "MAX_TOKENS"}]},
    "cut before the first part": {"candidates": [{"content": {"role": "model"}, "finishReason": "MAX_TOKENS"}]},
    "no role": {"candidates": [{"content": {"parts": [{"text": "hi"}]}}], "createTime": "2026-11-15T09:00:00.123456789Z"},
    "calls without ids": {
        "responseId": "r1",
        "candidates": [
            {
                "content": {
                    "role": "model",
                    "parts": [
                        {"text": "Both."},
                        {"functionCall": {"name": "look", "args": {"at": "left"}}, "thoughtSignature": "BA=="},
                        {"functionCall": {"name": "look", "args": {"at": "right"}}},
                    ],
                },
                "finishReason": "STOP",
            }
        ],
    },
}

ODD: dict[str, Any] = {
    "a bare list": [{"parts": [{"text": "hi"}]}, {"role": "model", "parts": [{"text": ""}]}],
    "one content": {"role": "user", "parts": [{"text": "a"}, {"text": "b"}]},
    "nulls everywhere": {
        "systemInstruction": None,
        "tools": None,
        "contents": [
            {"role": None, "parts": [{"text": "x", "inlineData": None, "functionCall": None, "thought": None}]},
            {"role": "model", "parts": None},
        ],
    },
    "instructions that say nothing": {"systemInstruction": {}, "contents": []},
    "the old role of results": [
        {"role": "model", "parts": [{"functionCall": {"name": "f", "args": None}}]},
        {"role": "function", "parts": [{"functionResponse": {"name": "f", "response": None}}]},
    ],
    "results between words": {
        "contents": [
            {
                "role": "model",
                "parts": [{"functionCall": {"id": "1", "name": "f"}}, {"functionCall": {"id": "", "name": "f"}}],
            },
            {
                "role": "user",
                "parts": [
                    {"text": "before"},
                    {"functionResponse": {"id": "other", "name": "f", "response": {}, "scheduling": "SILENT"}},
                    {"text": "between"},
                    {"functionResponse": {"response": {}, "id": "1"}, "thoughtSignature": "BQ=="},
                ],
            },
            {"role": "user", "parts": [{"functionResponse": {"name": "g", "response": {}}}]},
        ]
    },
    "in the wrong content": [
        {"role": "user", "parts": [{"functionCall": {"name": "f"}}]},
        {"role": "model", "parts": [{"functionResponse": {"name": "f", "response": {}}}, {"functionCall": {"name": "g"}}]},
    ],
    "parts of no kind or two": [
        {
            "parts": [
                {},
                {"thoughtSignature": "Bg=="},
                {"text": "a", "functionCall": {"name": "f"}},
                {"newThing": {"x": 1}},
                {"functionCall": {"partialArgs": [{"jsonPath": "$.q", "stringValue": "cd"}]}},
                {"functionCall": {"name": "f", "willContinue": True}},
                {"inlineData": {"mimeType": "image/png"}},
                {"inlineData": {"mimeType": "a,b", "data": "AA=="}},
                {"inlineData": "?"},
                {"fileData": {"fileUri": "files/abc-1"}},
                {"fileData": {"fileUri": 'https://x.example/"'}},
                {"text": "signed oddly", "thoughtSignature": 5, "thought": "yes"},
            ]
        }
    ],
    "both spellings at once": [{"parts": [{"inline_data": {"mime_type": "image/png", "data": "AA=="}, "inlineData": None}]}],
    "types with parameters": [{"parts": [{"inlineData": {"mimeType": "audio/L16;codec=pcm;rate=24000", "data": "AAAA"}}]}],
    "a tool whose name is refused": {
        "contents": [],
        "tools": [{"functionDeclarations": [{"name": "web search!", "parameters": {"type": "OBJECT"}}]}],
    },
    "tools of no kind": {
        "contents": [],
        "tools": [{}, 1, {"functionDeclarations": []}, {"functionDeclarations": [{"description": "?"}]}],
    },
}

BODIES: dict[str, Any] = {
    **{sample.name: sample.body for sample in samples("gemini") if sample.kind != "stream"},
    **REQUESTS,
    **RESPONSES,
    **ODD,
}
