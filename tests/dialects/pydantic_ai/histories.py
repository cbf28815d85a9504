"""Histories made and dumped by Pydantic AI itself, which use every kind of part and of content that it has."""

from datetime import UTC, datetime, timedelta
from decimal import Decimal
from typing import Any, Literal

from pydantic_ai import messages as pai
from pydantic_ai.usage import RequestUsage

__all__ = ["HISTORIES", "NOON", "dumped"]

NOON = datetime(2026, 11, 15, 12, 0, tzinfo=UTC)
PIXEL = b"\xfb\xff\xfe pixel"


def dumped(*history: pai.ModelMessage) -> list[Any]:
    """What Pydantic AI stores, as plain JSON."""
    return list(pai.ModelMessagesTypeAdapter.dump_python(list(history), mode="json"))


def _answer(*parts: Any, **facts: Any) -> pai.ModelResponse:
    return pai.ModelResponse(parts=list(parts), timestamp=NOON, **facts)


def _asked(*parts: Any, **facts: Any) -> pai.ModelRequest:
    return pai.ModelRequest(parts=list(parts), **facts)


def _image(name: str = "a") -> pai.ImageUrl:
    return pai.ImageUrl(url=f"https://img.example/{name}.png")


def _user_content() -> list[Any]:
    return [
        "look",
        "",
        pai.TextContent("tagged", metadata={"src": "ui"}),
        pai.TextContent("untagged"),
        pai.StructuredContent({"page": "<home> & away", "n": [1, 2.5, None]}),
        pai.StructuredContent([1], tag="ui_state", description="What is shown", metadata={"a": 1}),
        pai.StructuredContent({"a": 1}, format="xml"),
        pai.ImageUrl(url="https://img.example/a.png", vendor_metadata={"detail": "low"}),
        pai.ImageUrl(url="https://img.example/a", vendor_metadata={"detail": "high", "media_resolution": "low"}),
        pai.ImageUrl(url="https://img.example/b.png", vendor_metadata={}),
        pai.ImageUrl(url="file:///etc/passwd.png"),
        pai.AudioUrl(url="https://d.example/x.mp3", identifier="song"),
        pai.VideoUrl(url="https://youtu.be/abc", force_download="allow-local"),
        pai.DocumentUrl(url="gs://bucket/x.pdf", media_type="application/pdf", force_download=True),
        pai.BinaryContent(PIXEL, media_type="image/png"),
        pai.BinaryContent(b"", media_type="text/plain; charset=utf-8", identifier="empty"),
        pai.BinaryContent(b"??>>", media_type="audio/wav", vendor_metadata={"detail": 7}),
        pai.UploadedFile("file_011", "anthropic", media_type="application/pdf"),
        pai.UploadedFile("file with space.png", "openai", identifier="shot"),
        pai.UploadedFile("https://files.example/v1/files/abc", "google", vendor_metadata={"fps": 2}),
        pai.UploadedFile("s3://bucket/key.mp4", "bedrock"),
        pai.CachePoint(ttl="1h"),
    ]


def _everything() -> list[Any]:
    retried = pai.RetryInfo("validation_error", attempt=1, max_retries=2)
    return dumped(
        _asked(
            pai.SystemPromptPart("Be terse.", timestamp=NOON),
            pai.SystemPromptPart("Now.", timestamp=NOON, dynamic_ref="f", context_id="c", scope="request", metadata={"a": 1}),
            pai.UserPromptPart(_user_content(), timestamp=NOON + timedelta(microseconds=1)),
            pai.UserPromptPart("plain", timestamp=NOON),
            pai.UserPromptPart(["one"], timestamp=NOON),
            pai.UserPromptPart([], timestamp=NOON),
            pai.UserPromptPart("", timestamp=NOON),
            timestamp=NOON,
            instructions="SI units.",
            run_id="run-1",
            conversation_id="conv-1",
            metadata={"who": "me"},
        ),
        _answer(
            pai.ThinkingPart("two lookups", signature="EqQB==", provider_name="anthropic"),
            pai.ThinkingPart("", id="redacted_thinking", signature="EmwK", provider_name="anthropic"),
            pai.ThinkingPart("", id="rs_1", signature="gAAA", provider_name="openai", provider_details={"raw_content": ["x"]}),
            pai.ThinkingPart("unsigned"),
            pai.ThinkingPart(""),
            pai.TextPart("Looking.", id="msg_1", provider_name="openai", provider_details={"phase": "commentary"}),
            pai.ToolCallPart("get_weather", {"city": "Oslo", "d": 1.0, "big": 2**60}, "toolu_A"),
            pai.TextPart(""),
            pai.ToolCallPart("get_weather", '{"city": "Bergen"', "toolu_B", id="fc_1", provider_name="openai"),
            pai.ToolCallPart("get_weather", '{"city":"Bergen"}', "toolu_D"),
            pai.ToolCallPart("get_weather", "", "toolu_E"),
            pai.ToolCallPart("now", None, "toolu_C", tool_kind="clock.now"),
            pai.ToolCallPart("shot", {"_raw": "x"}, "toolu_F"),
            usage=RequestUsage(
                input_tokens=2112,
                cache_read_tokens=2000,
                output_tokens=30,
                output_reasoning_tokens=9,
                details={"thinking_tokens": 9},
                cost=Decimal("0.00125"),
            ),
            model_name="claude-opus-5-5",
            provider_name="anthropic",
            provider_response_id="msg_01",
            provider_details={"finish_reason": "tool_use"},
            finish_reason="tool_call",
            run_id="run-1",
            conversation_id="conv-1",
            workspace_ref=pai.WorkspaceRef(provider="p", id="w"),
            history_digest="abc",
        ),
        _asked(
            pai.ToolReturnPart("now", "09:00Z", "toolu_C", timestamp=NOON, tool_kind="clock.now"),
            pai.ToolReturnPart("get_weather", {"t": -3, "none": None}, "toolu_A", timestamp=NOON, metadata={"ms": 12}),
            pai.ToolReturnPart("get_weather", "bad", "toolu_B", timestamp=NOON, outcome="retried", retry=retried),
            pai.ToolReturnPart("get_weather", "Timeout: late", "toolu_D", timestamp=NOON, outcome="failed"),
            pai.ToolReturnPart("get_weather", "not allowed", "toolu_E", timestamp=NOON, outcome="denied"),
            pai.ToolReturnPart("shot", None, "toolu_F", timestamp=NOON, outcome="interrupted"),
            pai.ToolAvailabilityDeltaPart(tools_added=["b"]),
            pai.UserPromptPart("and then?", timestamp=NOON),
            instructions="SI units, and Celsius.",
            state="interrupted",
        ),
        _answer(state="interrupted"),
    )


def _returns(outcome: Literal["success", "failed"]) -> list[Any]:
    """Returns with files in them, at the top and deep inside, and with data that looks like a file."""
    contents: list[Any] = [
        _image(),
        [_image()],
        [
            "see",
            pai.BinaryContent(PIXEL, media_type="image/png"),
            _image(),
            {"kind": "image-url", "url": "https://x.example/"},
        ],
        [_image("b"), pai.UploadedFile("file_1", "openai"), "after", 7, None, {"a": [1]}],
        {"shot": _image(), "deep": [{"doc": pai.DocumentUrl(url="https://d.example/x.pdf")}]},
        [["nested", _image()]],
        [_image("c"), {"deep": _image("d")}],
        [],
        {},
        0,
        True,
        1.5,
        "",
        ["a", "b"],
        {"kind": "image-url", "url": "https://x.example/a.png", "media_type": "image/png"},
    ]
    calls = [pai.ToolCallPart("shot", {}, f"c{place}") for place in range(len(contents))]
    returns = [
        pai.ToolReturnPart("shot", content, f"c{place}", timestamp=NOON, outcome=outcome)
        for place, content in enumerate(contents)
    ]
    return dumped(_answer(*calls), _asked(*returns))


def _rare() -> list[Any]:
    """Retries that answer no call, speech, bookkeeping, native tools, citations, files that a model made."""
    errors: list[Any] = [{"type": "missing", "loc": ("a", 0), "msg": "Field required", "input": {}}]
    sound = pai.BinaryContent(b"RIFF", media_type="audio/wav")
    return dumped(
        _asked(
            pai.CompactionPart("What was said.", metadata={"by": "us"}),
            pai.SpeechPart(speaker="user", transcript="hello", audio=sound),
            pai.SpeechPart(speaker="user", transcript="hello"),
            pai.SpeechPart(speaker="user", audio=sound, interrupted_at_ms=5),
            pai.SpeechPart(speaker="user"),
            pai.RetryFeedbackPart(errors, retry=pai.RetryInfo("validation_error"), timestamp=NOON),
            pai.RetryFeedbackPart("Please return text.", retry=pai.RetryInfo("no_output", attempt=1), timestamp=NOON),
            pai.CapabilityLoadDeltaPart(loaded=["x"]),
            pai.ModelSettingsDeltaPart(settings={"thinking": "high"}),
            pai.InstructionDeltaPart(id=None, content="Be loud.", base_hash="ab"),
            pai.InstructionDeltaPart(id=None, content=None),
            pai.InstructionBaselinePart(instructions=[pai.InstructionPart("x"), pai.InstructionDigest(content_hash="cd")]),
        ),
        _answer(
            pai.CompactionPart(None, id="cmp_1", provider_name="openai", provider_details={"encrypted_content": "x"}),
            pai.NativeToolCallPart("web_search", {"query": "q"}, "srv_1", provider_name="anthropic"),
            pai.NativeToolReturnPart("web_search", [{"url": "u"}], "srv_1", provider_name="anthropic", timestamp=NOON),
            pai.FilePart(
                pai.BinaryContent(PIXEL, media_type="image/png"), provider_name="google", provider_details={"s": "A"}
            ),
            pai.FilePart(pai.BinaryContent(PIXEL, media_type="image/png", identifier="gen1")),
            pai.SpeechPart(
                speaker="assistant",
                transcript="Hi.",
                audio=sound,
                timestamps=[pai.SpeechTimestamp(text="Hi", start_ms=0, duration_ms=9)],
                id="item_1",
                provider_name="openai",
            ),
            pai.TextPart(
                "Cited twice, once.",
                citations=[
                    pai.Citation(
                        [
                            pai.WebCitationSource("https://a.example", title="A", excerpts=["one", "two"]),
                            pai.DocumentCitationSource(document_id="d1", title="D"),
                        ],
                        anchor=pai.ContentCitationAnchor(start=0, end=5),
                    ),
                    pai.Citation(
                        [pai.DocumentCitationSource(excerpts=["only words"])],
                        anchor=pai.MarkerCitationAnchor(start=6, end=11),
                    ),
                    pai.Citation([pai.WebCitationSource("https://b.example")]),
                ],
            ),
        ),
    )


def _repeating() -> list[Any]:
    """Instructions that stay, change, are missing and come again."""
    said = ["A", "A", "B", None, "B", "A", None, ""]
    units: list[Any] = []
    for place, words in enumerate(said):
        units.append(_asked(pai.UserPromptPart(f"q{place}", timestamp=NOON), instructions=words))
        units.append(_answer(pai.ToolCallPart("t", {}, f"c{place}")))
        units.append(_asked(pai.ToolReturnPart("t", "r", f"c{place}", timestamp=NOON), instructions=words))
    return dumped(*units)


def _old() -> list[Any]:
    """As earlier versions of Pydantic AI stored it: keys that are missing, names that are no longer used."""
    return [
        {
            "kind": "request",
            "parts": [{"part_kind": "system-prompt", "content": "S"}, {"part_kind": "user-prompt", "content": "hi"}],
        },
        {
            "kind": "response",
            "parts": [{"part_kind": "tool-call", "tool_name": "t", "args": "{}"}, {"part_kind": "text", "content": "x"}],
            "usage": {"requests": 1, "request_tokens": 3, "response_tokens": 4, "details": None},
            "vendor_id": "v",
            "timestamp": "2024-05-01T10:00:00+02:00",
        },
        {
            "kind": "request",
            "parts": [
                {
                    "part_kind": "retry-prompt",
                    "content": "again",
                    "tool_name": "t",
                    "tool_call_id": "c",
                    "timestamp": 1714550400,
                },
                {
                    "part_kind": "retry-prompt",
                    "content": [{"type": "missing", "loc": ["a"], "msg": "m", "input": 1}],
                    "tool_name": "t",
                },
                {"part_kind": "retry-prompt", "content": "no tool", "tool_name": None, "tool_call_id": "pyd_ai_1"},
                {"part_kind": "retry-prompt", "content": [{"type": "missing", "loc": [], "msg": "m", "input": None}]},
                {
                    "part_kind": "tool-return",
                    "tool_name": "t",
                    "content": [{"kind": "image-url", "url": "https://x.example/a.png", "media_type": "image/png"}],
                    "tool_call_id": "d",
                },
            ],
        },
    ]


def _strange() -> list[Any]:
    """Keys and kinds that no version knows, at every depth."""
    return [
        {"kind": "request", "parts": []},
        {
            "kind": "request",
            "x": {"y": 1},
            "id": 7,
            "parts": [
                {
                    "part_kind": "user-prompt",
                    "x": 1,
                    "content": ["a", {"kind": "hologram", "z": [1]}, {"kind": "cache-point", "x": 1}],
                },
                {
                    "part_kind": "user-prompt",
                    "content": [{"kind": "image-url", "url": "https://x.example/a.png", "x": {"y": [None]}}],
                },
                {"part_kind": "user-prompt", "content": [{"kind": "uploaded-file", "file_id": "f", "provider_name": "me"}]},
                {"part_kind": "tea-break", "minutes": 5},
                {
                    "part_kind": "tool-return",
                    "tool_name": "t",
                    "content": "r",
                    "tool_call_id": "",
                    "outcome": "paused",
                    "x": None,
                },
            ],
        },
        {
            "kind": "response",
            "parts": [
                {"part_kind": "dream", "of": ["sheep"]},
                {"part_kind": "text", "content": "t", "citations": [{"sources": [{"kind": "dream"}]}, 7], "x": 1},
                {"part_kind": "file", "content": {"kind": "binary", "data": "not base64!", "media_type": "image/png"}},
                {"part_kind": "file", "content": {"kind": "binary", "data": "+/8", "media_type": "image/png", "x": 1}},
                {"part_kind": "file", "content": {"kind": "binary", "data": "AAAA", "media_type": "image/png,x"}},
                {"part_kind": "thinking", "content": "hm", "signature": 5, "x": 1},
            ],
            "usage": {"input_tokens": -1, "output_tokens": 2**60, "cost": "much", "x": 1},
            "timestamp": "yesterday",
            "provider_response_id": " ",
            "conversation_id": "\u200b",
        },
    ]


HISTORIES: dict[str, list[Any]] = {
    "everything": _everything(),
    "returns": _returns("success"),
    "failures": _returns("failed"),
    "rare": _rare(),
    "repeating": _repeating(),
    "old": _old(),
    "strange": _strange(),
    "empty": [],
}
"""By what is special about them."""
