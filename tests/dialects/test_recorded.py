"""Shapes that providers were seen to send or to accept: each is read, comes back as it was, and is known for what it is."""

from typing import Any

import pytest

from antiphon import decode, dumps, encode, loads
from antiphon.dialects import Stream, detect
from antiphon.errors import StreamFailedError
from antiphon.messages import Conversation, DataPart, MediaPart, Message, PartsPayload, ReasoningPart, TextPart

MIB = 1024 * 1024
USER = {"role": "user", "content": "How warm is it?"}
FUNCTION = {"type": "function", "function": {"name": "weather", "parameters": {"type": "object"}}}
CLAUDE_TOOL = {"name": "weather", "input_schema": {"type": "object"}}


def said(body: Any, dialect: str) -> list[str]:
    parts = [part for message in decode(body, dialect) for part in message.parts]
    return [part.text for part in parts if isinstance(part, TextPart | ReasoningPart)]


# ---------------------------------------------------------------- what providers sent or took


def answered(message: dict[str, Any], **choice: Any) -> dict[str, Any]:
    return {"object": "chat.completion", "choices": [{"index": 0, "finish_reason": "stop", "message": message, **choice}]}


SHAPES: dict[str, tuple[str, Any, list[str]]] = {
    "Gemini: instructions whose parts are one object": (
        "gemini",
        {"systemInstruction": {"parts": {"text": "Be brief."}}, "contents": [{"role": "user", "parts": [{"text": "Hi"}]}]},
        ["Be brief.", "Hi"],
    ),
    "Gemini: one content for a list, with one part for a list": (
        "gemini",
        {"contents": {"role": "user", "parts": {"text": "Hi"}}},
        ["Hi"],
    ),
    "Gemini: tools as one object": (
        "gemini",
        {
            "contents": [{"role": "user", "parts": [{"text": "Hi"}]}],
            "tools": {"functionDeclarations": [{"name": "weather", "parametersJsonSchema": {"type": "object"}}]},
        },
        ["Hi"],
    ),
    "Gemini: a native tool as one object": (
        "gemini",
        {"contents": [{"role": "user", "parts": [{"text": "Hi"}]}], "tools": {"googleSearch": {}}},
        ["Hi"],
    ),
    "Responses: a stored prompt and no input": (
        "openai-responses",
        {"model": "gpt-5", "prompt": {"id": "pmpt_1", "variables": {"city": "Rome"}}},
        [],
    ),
    "Responses: a stored prompt and input null": (
        "openai-responses",
        {"prompt": {"id": "pmpt_1"}, "input": None, "instructions": "Be brief."},
        ["Be brief."],
    ),
    "Snowflake: an empty function call with every answer": (
        "openai-chat",
        answered({"role": "assistant", "content": "Mild.", "function_call": {"name": "", "arguments": ""}}),
        ["Mild."],
    ),
    "Azure: a choice that a filter took away": (
        "openai-chat",
        {
            "object": "chat.completion",
            "choices": [
                {"index": 0, "finish_reason": "content_filter", "content_filter_results": {"hate": {"filtered": True}}}
            ],
            "usage": {"prompt_tokens": 3},
        },
        [],
    ),
}


@pytest.mark.parametrize("name", SHAPES)
def test_recorded_data_of_a_provider_comes_back_unchanged(name: str) -> None:
    """G2"""
    dialect, body, words = SHAPES[name]

    assert said(body, dialect) == words
    assert encode(decode(body, dialect), dialect).value == body
    assert encode(loads(dumps(decode(body, dialect))), dialect).value == body


def test_an_object_as_content_is_data() -> None:
    """Cloudflare answers with the object itself where JSON was asked for."""
    body = answered({"role": "assistant", "content": {"city": "Rome"}})
    conversation = decode(body, "openai-chat")

    assert conversation[0].parts == (DataPart(data={"city": "Rome"}),)
    assert encode(conversation, "openai-chat").value == body
    assert encode(conversation, "anthropic-messages").value["messages"][-1]["content"] == '{"city":"Rome"}'


@pytest.mark.slow
@pytest.mark.parametrize("part", [{"text": "Here."}, {"text": "Hm.", "thought": True}, {"inlineData": None}], ids=str)
def test_a_proof_of_several_megabytes_counts_as_media(part: dict[str, Any]) -> None:
    """Gemini signs images with more bytes than the images have."""
    if "inlineData" in part:
        part = {"inlineData": {"mimeType": "image/png", "data": "iVBORw0KGgo="}}
    content = {"role": "model", "parts": [{**part, "thoughtSignature": "A" * 3 * MIB}]}
    body = {"candidates": [{"content": content, "finishReason": "STOP"}]}
    conversation = decode(body, "gemini")

    assert encode(conversation, "gemini").value == body
    assert encode(loads(dumps(conversation)), "gemini").value == body
    assert len(str(encode(conversation, "openai-chat").value)) < MIB


# ---------------------------------------------------------------- streams


def streamed(dialect: str, *events: dict[str, Any]) -> Stream:
    stream = Stream(dialect)
    for event in events:
        stream.add(event)
    return stream


def chunk(finish_reason: str | None = None, **delta: Any) -> dict[str, Any]:
    return {"object": "chat.completion.chunk", "choices": [{"index": 0, "delta": delta, "finish_reason": finish_reason}]}


def thought(text: str) -> dict[str, Any]:
    return {"type": "thinking", "thinking": [{"type": "text", "text": text}]}


def test_mistral_streams_what_it_thinks_as_parts() -> None:
    stream = Stream("openai-chat")
    events = [
        chunk(role="assistant", content=""),
        chunk(content=[thought("Let me ")]),
        chunk(content=[thought("look."), {"type": "text", "text": "It is "}]),
        chunk(content="mild"),
        chunk("stop", content=[{"type": "text", "text": "."}, {"type": "reference", "reference_ids": [1]}]),
    ]
    told = [(delta.kind, delta.text) for event in events for delta in stream.add(event)]

    reference = {"type": "reference", "reference_ids": [1]}
    assert stream.body["choices"][0]["message"]["content"] == [
        thought("Let me look."),
        {"type": "text", "text": "It is mild."},
        reference,
    ]
    reasoning, text = ("reasoning", "Let me "), ("text", "mild")
    assert told == [reasoning, ("reasoning", "look."), ("text", "It is "), text, ("text", "."), ("finish", "stop")]
    assert encode(stream.finish(), "openai-chat").value == stream.body


@pytest.mark.parametrize(("reason", "name"), [(1, "STOP"), (2, "MAX_TOKENS"), (99, "99")])
def test_a_gemini_stream_may_number_its_reasons(reason: int, name: str) -> None:
    content = {"role": "model", "parts": [{"text": "Mild."}]}
    stream = Stream("gemini")
    told = stream.add({"candidates": [{"index": 0, "content": content, "finishReason": reason}]})

    assert (told[-1].kind, told[-1].text) == ("finish", name)
    assert encode(stream.finish(), "gemini").value["candidates"][0]["finishReason"] == reason


def test_a_gemini_stream_may_number_why_it_blocks() -> None:
    (finish,) = Stream("gemini").add({"promptFeedback": {"blockReason": 4}})

    assert (finish.kind, finish.text) == ("finish", "4")


def test_parts_of_a_responses_stream_may_count_from_one() -> None:
    stem = {"output_index": 0, "item_id": "msg_1"}
    stream = streamed(
        "openai-responses",
        {"type": "response.output_item.added", **stem, "item": {"type": "message", "id": "msg_1", "role": "assistant"}},
        {"type": "response.output_text.delta", **stem, "content_index": 1, "delta": "It is "},
        {"type": "response.output_text.delta", **stem, "content_index": 1, "delta": "mild."},
        {
            "type": "response.output_text.annotation.added",
            **stem,
            "content_index": 1,
            "annotation_index": 1,
            "annotation": {"type": "url_citation", "url": "https://example.com"},
        },
        {"type": "response.content_part.added", **stem, "content_index": 2, "part": {"type": "output_text", "text": "Dry."}},
    )
    again = Stream.resume(stream.state)
    again.add({"type": "response.output_text.delta", **stem, "content_index": 2, "delta": " Sunny."})

    first, second = again.body["output"][0]["content"]
    assert (first["text"], second["text"]) == ("It is mild.", "Dry. Sunny.")
    assert first["annotations"] == [{"type": "url_citation", "url": "https://example.com"}]


def test_facts_that_come_in_pieces_are_put_together() -> None:
    """Groq says its request's id first, and the usage in the last chunk, both under `x_groq`."""
    stream = streamed(
        "openai-chat",
        {**chunk(role="assistant", content="Mild."), "x_groq": {"id": "req_1"}},
        {**chunk("stop"), "x_groq": {"usage": {"total_tokens": 3}}, "usage": {"total_tokens": 3}},
    )

    assert stream.body["x_groq"] == {"id": "req_1", "usage": {"total_tokens": 3}}


def test_the_reason_of_a_server_failure_is_found_in_its_own_field() -> None:
    stream = Stream("openai-chat")
    with pytest.raises(StreamFailedError, match="the model is overloaded"):
        stream.feed(b'error: {"message": "the model is overloaded", "code": 503}\n\n')


@pytest.mark.parametrize("to", ["claude-haiku", {"model": "claude-haiku"}])
def test_the_model_that_goes_on_with_an_answer_is_its_model(to: Any) -> None:
    start = {"type": "message_start", "message": {"id": "msg_1", "role": "assistant", "model": "claude-opus", "content": []}}
    block = {"type": "fallback", "from": "claude-opus", "to": to}
    stream = streamed("anthropic-messages", start, {"type": "content_block_start", "index": 0, "content_block": block})

    assert stream.body["model"] == "claude-haiku"


# ---------------------------------------------------------------- detection


def request(**more: Any) -> dict[str, Any]:
    return {"messages": [USER], **more}


CONVERSE = {"role": "user", "content": [{"text": "How warm is it?"}]}
MISTRAL = {"role": "assistant", "content": [thought("Hm."), {"type": "text", "text": "Mild."}]}
KNOWN: list[tuple[str, Any]] = [
    ("anthropic-messages", request(model="claude-sonnet-4-5", max_tokens=99)),
    ("anthropic-messages", request(model="claude-sonnet-4-5", tools=[CLAUDE_TOOL])),
    ("anthropic-messages", request(model="claude-sonnet-4-5", max_tokens=9, system=[{"type": "text", "text": "Be brief."}])),
    ("anthropic-messages", request(anthropic_version="bedrock-2023-05-31", max_tokens=99)),
    ("anthropic-messages", request(max_tokens=99, stop_sequences=["END"])),
    ("openai-chat", request(model="claude-sonnet-4-5", stream=True)),
    ("openai-chat", request(model="magistral-medium-latest", max_tokens=99)),
    ("openai-chat", request(max_tokens=99, stop="END")),
    ("openai-chat", request(model="claude-sonnet-4-5", max_tokens=99, tools=[FUNCTION])),
    ("openai-chat", request(model="claude-sonnet-4-5", max_tokens=99, response_format={"type": "text"})),
    ("openai-chat", request(model="anthropic/claude-sonnet-4.5", max_tokens=99)),
    ("openai-chat", request(model="gpt-4o", max_tokens=99)),
    ("openai-chat", request(model="deepseek-ai/DeepSeek-R1", max_tokens=99)),
    ("openai-chat", {"model": "magistral", "messages": [USER, MISTRAL]}),
    ("openai-responses", {"model": "gpt-5", "input": "Hi"}),
    ("openai-responses", {"model": "gpt-5", "prompt": {"id": "pmpt_1"}}),
    ("gemini", {"contents": {"parts": {"text": "Hi"}}}),
    ("gemini", {"contents": [{"parts": [{"text": "Hi"}, {"videoMetadata": {"fps": 1}}]}]}),
]
STRANGE: list[Any] = [
    {"messages": [CONVERSE], "inferenceConfig": {"maxTokens": 99}},
    {"messages": [CONVERSE], "system": [{"text": "Be brief."}], "toolConfig": {"tools": []}},
    {"messages": [USER], "system": [{"text": "Be brief."}], "inferenceConfig": {}},
    {"messages": [{"role": "assistant", "content": [{"toolUse": {"toolUseId": "t", "name": "weather", "input": {}}}]}]},
    [CONVERSE],
    {"model": "text-embedding-3-small", "input": "Hi", "encoding_format": "base64"},
    {"model": "voyage-3", "input": ["Hi"], "input_type": "query"},
    {"model": "gpt-5", "input": [1, 2]},
    {"model": "omni-moderation-latest", "input": "Hi"},
    {"model": "gpt-4o-mini-tts", "input": "Hi", "voice": "alloy"},
    {"model": "gemini-3-pro", "input": "Hi", "generation_config": {"temperature": 0}},
    {"model": "qwen3", "messages": [USER], "options": {"seed": 42}},
    {"model": "command-a", "messages": [USER, {"role": "assistant", "content": [{"type": "thinking", "thinking": "Hm."}]}]},
    {"model": "command-a", "messages": [USER], "stop_sequences": ["END"]},
    {"type": "agent", "data": {"agent_id": "news"}},
]


@pytest.mark.parametrize(("dialect", "body"), KNOWN)
def test_a_key_that_decides_decides(dialect: str, body: Any) -> None:
    assert detect(body).name == dialect


@pytest.mark.parametrize("body", STRANGE, ids=str)
def test_a_format_that_no_dialect_reads_is_reported_as_unknown(body: Any) -> None:
    """Bedrock Converse, Ollama, embeddings and moderations look like others', and would come out empty."""
    found = detect(body)

    assert (found.name, found.candidates) == (None, ())


def test_an_ambiguous_format_is_not_guessed() -> None:
    both = ("openai-chat", "anthropic-messages")

    assert detect(request(max_tokens=99)).candidates == both
    assert detect(request(model="claude-sonnet-4-5")).candidates == both  # a count of tokens, or a compatible server


# ---------------------------------------------------------------- opaque bytes


def test_only_data_urls_in_metadata_buy_room() -> None:
    part = MediaPart(modality="image", url="https://example.com/a.png", metadata={"x": {"proof": "data:," + "A" * 2 * MIB}})
    message = Message(policy="a", payload=PartsPayload(parts=(part,)))

    assert loads(dumps(message)) == message


# ---------------------------------------------------------------- losses

CLAUDE, CHAT, RESPONSES, GEMINI = "anthropic-messages", "openai-chat", "openai-responses", "gemini"
DATA_URL = "data:application/pdf;base64,JVBERg=="
PDF = {"type": "file", "file": {"filename": "report.pdf", "file_data": DATA_URL}}
SEALED = {"type": "reasoning.encrypted", "data": "AAEC"}
REDACTED = {"type": "redacted_thinking", "data": "AAEC"}
SEARCHING = {"contents": [{"parts": [{"text": "Hi"}]}], "tools": [{"googleSearch": {}}]}
GRAMMAR = {"type": "grammar", "grammar": {"syntax": "lark", "definition": "start: /a+/"}}


def claude(*blocks: dict[str, Any]) -> dict[str, Any]:
    return {"messages": [USER, {"role": "assistant", "content": list(blocks)}]}


LOST: dict[str, tuple[str, Any, str, str]] = {
    "a native tool": (RESPONSES, {"input": "Hi", "tools": [{"type": "web_search"}]}, CLAUDE, "tools"),
    "a native tool beside a function": (
        CLAUDE,
        {"messages": [USER], "tools": [CLAUDE_TOOL, {"type": "code_execution_20250825", "name": "code_execution"}]},
        CHAT,
        "tools",
    ),
    "a native tool of Gemini": (
        GEMINI,
        {"contents": [{"parts": [{"text": "Hi"}]}], "tools": [{"googleSearch": {}}]},
        CHAT,
        "tools",
    ),
    "a native tool, in a seed's format": (RESPONSES, {"input": "Hi", "tools": [{"type": "mcp"}]}, "marsys", "tools"),
    "legacy functions": (CHAT, {"messages": [USER], "functions": [{"name": "weather"}]}, RESPONSES, "tools"),
    "a grammar": (
        CHAT,
        {"messages": [USER], "tools": [{"type": "custom", "custom": {"name": "spell", "format": GRAMMAR}}]},
        RESPONSES,
        "tools",
    ),
    "a grammar, the other way": (
        RESPONSES,
        {"input": "Hi", "tools": [{"type": "custom", "name": "spell", "format": {"type": "grammar"}}]},
        CHAT,
        "tools",
    ),
    "redacted thinking": (
        CLAUDE,
        claude({"type": "redacted_thinking", "data": "AAEC"}, {"type": "text", "text": "Mild."}),
        CHAT,
        "reasoning",
    ),
    "the name of a file": (CHAT, {"messages": [{"role": "user", "content": [PDF]}]}, GEMINI, "filename"),
    "the name of a file, in Pydantic AI": (
        CHAT,
        {"messages": [{"role": "user", "content": [PDF]}]},
        "pydantic-ai",
        "filename",
    ),
    "details of reasoning": (
        CHAT,
        answered({"role": "assistant", "content": "Mild.", "reasoning_details": [{"type": "reasoning.text", "text": "Hm."}]}),
        CLAUDE,
        "reasoning",
    ),
    "encrypted details of reasoning": (
        CHAT,
        answered(
            {"role": "assistant", "content": "Mild.", "reasoning_details": [{"type": "reasoning.encrypted", "data": "AAEC"}]}
        ),
        RESPONSES,
        "reasoning",
    ),
    "a refusal": (CHAT, answered({"role": "assistant", "content": None, "refusal": "No."}), CLAUDE, "refusal"),
    "settings": (CHAT, {"messages": [USER], "seed": 5}, CLAUDE, "settings"),
}


@pytest.mark.parametrize("name", LOST)
def test_fields_that_the_target_cannot_express_are_reported(name: str) -> None:
    """G3: nothing is lost in silence."""
    source, body, target, what = LOST[name]
    conversation = decode(body, source)

    assert what in {loss.what for loss in encode(conversation, target).losses}
    assert encode(conversation, source).value == body
    assert encode(conversation, source).losses == ()


def test_losses_name_what_is_lost() -> None:
    body = {
        "messages": [USER],
        "model": "claude",
        "top_k": 3,
        "tools": [{"type": "web_search_20250305", "name": "web_search"}],
    }
    reasons = {loss.what: loss.reason for loss in encode(decode(body, CLAUDE), CHAT).losses}

    assert reasons["tools"] == "only anthropic-messages has web_search_20250305"
    assert reasons["settings"] == "settings of a request are not carried over: top_k"


def test_a_refusal_is_one_in_both_formats_of_openai() -> None:
    item = {"type": "message", "id": "msg_1", "role": "assistant", "status": "completed"}
    answer = {"object": "response", "output": [{**item, "content": [{"type": "refusal", "refusal": "No."}]}]}
    encoded = encode(decode(answer, RESPONSES), CHAT)

    assert encoded.value == {"messages": [{"role": "assistant", "content": None, "refusal": "No."}]}
    assert encoded.losses == ()


@pytest.mark.parametrize("target", [CHAT, RESPONSES, "marsys", "choir"])
def test_pieces_of_one_text_are_put_together_as_they_were(target: str) -> None:
    """A citation splits a sentence of Claude's into blocks; what a tool came between is no sentence."""
    search = {"type": "server_tool_use", "id": "s", "name": "web_search", "input": {}}
    texts = ["I look.", search, "According to ", "the page", ", it rains."]
    blocks = [each if isinstance(each, dict) else {"type": "text", "text": each} for each in texts]
    encoded = encode(decode(claude(*blocks), CLAUDE), target)
    written = str(encoded.value)

    assert "According to the page, it rains." in written
    assert "I look.According" not in written
    assert "text" not in {loss.what for loss in encoded.losses}


def test_a_transcript_is_written_as_text() -> None:
    body = answered({"role": "assistant", "content": None, "audio": {"id": "audio_1", "transcript": "It is mild."}})
    conversation = decode(body, CHAT)

    assert encode(conversation, CHAT).value == body
    assert encode(conversation, RESPONSES).value["input"][0]["content"] == "It is mild."


def test_labels_say_what_a_medium_is_there_for() -> None:
    image = MediaPart(modality="image", url="https://example.com/a.png", prompt_hint="the radar")
    told = Conversation([Message(policy="user", role_hint_for_llm="user", payload=PartsPayload(parts=(image,)))])

    assert encode(told, CHAT, media_labels=True).value["messages"][0]["content"][0] == {
        "type": "text",
        "text": "Media 1 (the radar):",
    }
    assert "hint" in {loss.what for loss in encode(told, CHAT).losses}


def test_an_empty_answer_is_no_content_of_a_request() -> None:
    body = {"candidates": [{"content": {}, "finishReason": "STOP"}]}
    answer, ask = decode(body, GEMINI), {"role": "user", "parts": [{"text": "Hi"}]}
    asked = decode([ask], GEMINI).extend(answer)

    assert encode(answer, GEMINI).value == body
    assert encode(asked, GEMINI).value == [ask]
    assert {loss.what for loss in encode(asked, GEMINI).losses} == {"message"}
