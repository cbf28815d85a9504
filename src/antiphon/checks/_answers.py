"""What providers are known to answer, in their own words: by rule, then by target. An ellipsis stands for what varies."""

from __future__ import annotations

from collections.abc import Mapping

__all__ = ["ANSWERS"]

_CHAT, _RESPONSES, _CLAUDE, _GEMINI = "openai-chat", "openai-responses", "anthropic-messages", "gemini"

_UNANSWERED_CHAT = (
    "An assistant message with 'tool_calls' must be followed by tool messages responding to each 'tool_call_id'. "
    "The following tool_call_ids did not have response messages: …"
)
_UNASKED_CHAT = "messages with role 'tool' must be a response to a preceeding message with 'tool_calls'."
_UNASKED_RESPONSES = "No tool call found for function call output with call_id …"
_UNANSWERED_CLAUDE = (
    "`tool_use` ids were found without `tool_result` blocks immediately after: … "
    "Each `tool_use` block must have a corresponding `tool_result` block in the next message."
)
_UNASKED_CLAUDE = "unexpected `tool_use_id` found in `tool_result` blocks: …"
_UNANSWERED_GEMINI = (
    "Please ensure that the number of function response parts is equal to the number of function call parts "
    "of the function call turn."
)
_UNASKED_GEMINI = "Please ensure that function response turn comes immediately after a function call turn."
_PATTERN = "string does not match pattern. Expected a string that matches the pattern '^[a-zA-Z0-9_-]+$'."

ANSWERS: Mapping[str, Mapping[str, str]] = {
    "AP101": {
        _CHAT: _UNANSWERED_CHAT,
        _RESPONSES: "No tool output found for function call …",
        _CLAUDE: _UNANSWERED_CLAUDE,
        _GEMINI: _UNANSWERED_GEMINI,
    },
    "AP102": {_CHAT: _UNASKED_CHAT, _RESPONSES: _UNASKED_RESPONSES, _CLAUDE: _UNASKED_CLAUDE, _GEMINI: _UNASKED_GEMINI},
    "AP103": {_CHAT: _UNASKED_CHAT, _RESPONSES: _UNASKED_RESPONSES, _CLAUDE: _UNASKED_CLAUDE, _GEMINI: _UNASKED_GEMINI},
    "AP104": {
        _CHAT: _UNASKED_CHAT,
        _CLAUDE: "each tool_use must have a single result. Found multiple `tool_result` blocks with id …",
        _GEMINI: _UNANSWERED_GEMINI,
    },
    "AP105": {_CLAUDE: "`tool_use` ids must be unique"},
    "AP106": {_CHAT: _UNANSWERED_CHAT, _CLAUDE: _UNANSWERED_CLAUDE, _GEMINI: _UNASKED_GEMINI},
    "AP107": {
        _CLAUDE: "unexpected `tool_use_id` found in `…_tool_result` blocks: … "
        "must have a corresponding `server_tool_use` block before it"
    },
    "AP108": {_RESPONSES: "Duplicate item found with id …"},
    "AP109": {_GEMINI: _UNANSWERED_GEMINI},
    "AP201": {
        _CHAT: "Invalid 'messages[…].tool_calls[…].id': string too long. Expected a string with maximum length 40, "
        "but got a string with length … instead.",
        _RESPONSES: "Invalid 'input[…].call_id': string too long. Expected a string with maximum length 64 …",
        _CLAUDE: "tool_use.id: String should match pattern '^[a-zA-Z0-9_-]+$'",
    },
    "AP202": {
        _CHAT: f"Invalid 'messages[…].tool_calls[…].function.name': {_PATTERN}",
        _RESPONSES: f"Invalid 'input[…].name': {_PATTERN}",
    },
    "AP203": {_CHAT: f"Invalid 'tools[…].function.name': {_PATTERN}", _RESPONSES: f"Invalid 'tools[…].name': {_PATTERN}"},
    "AP204": {_CHAT: f"Invalid 'messages[…].name': {_PATTERN}"},
    "AP205": {_RESPONSES: "Invalid 'input[…].id': 'call_…'. Expected an ID that begins with 'fc'."},
    "AP206": {_CLAUDE: "tools: Tool names must be unique."},
    "AP301": {_CLAUDE: "messages: text content blocks must be non-empty"},
    "AP302": {
        _CHAT: "Invalid value for 'content' …",
        _CLAUDE: "all messages must have non-empty content except for the optional final assistant message",
        _GEMINI: "Unable to submit request because it must include at least one parts field …",
    },
    "AP303": {_CLAUDE: "messages: final assistant content cannot end with trailing whitespace"},
    "AP304": {
        _CHAT: "Invalid 'messages[…].tool_calls': empty array. Expected an array with minimum length 1, "
        "but got an empty array instead."
    },
    "AP305": {_GEMINI: "contents is not specified"},
    "AP306": {_CLAUDE: "all content must be type `text` if `is_error` is true"},
    "AP307": {_RESPONSES: "Invalid value: 'input_text'. Supported values are: 'output_text' and 'refusal'."},
    "AP308": {_GEMINI: "required oneof field 'data' must have one initialized field"},
    "AP401": {_CLAUDE: 'messages: first message must use the "user" role'},
    "AP402": {
        _GEMINI: "Please ensure that function call turn comes immediately after a user turn or after a function response turn."
    },
    "AP403": {
        _CLAUDE: "This model does not support assistant message prefill. The conversation must end with a user message."
    },
    "AP404": {_CLAUDE: "role 'system' is not supported on this model", _GEMINI: "Please use a valid role: user, model."},
    "AP501": {_RESPONSES: "Item 'rs_…' of type 'reasoning' was provided without its required following item."},
    "AP502": {_RESPONSES: "Item '…' was provided without its required 'reasoning' item: 'rs_…'."},
    "AP503": {_RESPONSES: "Missing required parameter: 'input[…].summary'."},
    "AP504": {
        _RESPONSES: "The encrypted content … could not be verified.",
        _CLAUDE: "Invalid `signature` in `thinking` block",
        _GEMINI: "Invalid thought signature",
    },
    "AP505": {_RESPONSES: "Item with id 'rs_…' not found. Items are not persisted when `store` is set to false."},
    "AP506": {
        _CLAUDE: "Expected `thinking` or `redacted_thinking`, but found `tool_use`. When `thinking` is enabled, "
        "a final `assistant` message must start with a thinking block …"
    },
    "AP507": {_CLAUDE: "Invalid `signature` in `thinking` block"},
    "AP508": {_GEMINI: "Function call is missing a thought_signature in functionCall parts. …"},
    "AP509": {
        _CLAUDE: "The block is bound to a different conversation …",
    },
    "AP601": {
        _CHAT: "Image URLs are only allowed for messages with role 'user', but this message with role '…' "
        "contains an image URL."
    },
    "AP604": {_CHAT: "Invalid 'tools': array too long. Expected an array with maximum length 128 …"},
    "AP605": {_CHAT: "Invalid 'messages[…].content': string too long. Expected a string with maximum length 1048576 …"},
    "AP606": {_CLAUDE: "A maximum of 4 blocks with cache_control may be provided. Found …."},
    "AP607": {_CLAUDE: "Request exceeds the maximum size"},
    "AP701": {_RESPONSES: "Tool choice '…' not found in 'tools' parameter."},
    "AP704": {_RESPONSES: "Missing namespace for function_call '…'. It does not exist in the default namespace."},
    "AP705": {_CLAUDE: "tool_addition/tool_removal references unknown tool …"},
}
