"""AP6xx: media in places and forms that are refused, and limits."""

from dataclasses import replace
from typing import Any

import pytest
from tests.checks.said import calls, codes, gives, mended, mended_for, says, warnings

from antiphon import Conversation, MediaPart, Message, TextPart, check, decode, encode
from antiphon.checks import TARGETS, _verbs
from antiphon.messages import Limits, Modality, Part, Tool, use_limits

CHAT, RESPONSES, CLAUDE, GEMINI, AI = TARGETS
ASK = says("user", "Look.")
PNG = "data:image/png;base64,AAAA"


def of(*messages: Message, **fields: Any) -> Conversation:
    return Conversation(messages, **fields)


def medium(modality: Modality, url: str, **fields: Any) -> MediaPart:
    return MediaPart(modality=modality, url=url, **fields)


def shown(where: str, part: Part, native: str | None) -> Conversation:
    if where == "result":
        return of(ASK, calls("c1"), gives("c1", None, native=native, parts=(part,)))
    return of(says(where, part, native=native, notes={"slot": True}), ASK)


@pytest.mark.parametrize(
    ("target", "where", "part", "code"),
    [
        (CHAT, "user", medium("image", PNG), None),
        (CHAT, "user", medium("image", "https://example.com/a.png"), None),
        (CHAT, "user", medium("audio", "data:audio/wav;base64,AAAA"), None),
        (CHAT, "user", medium("audio", "data:audio/ogg;base64,AAAA"), "AP602"),
        (CHAT, "user", medium("audio", "https://example.com/a.wav"), "AP602"),
        (CHAT, "user", medium("video", "https://example.com/a.mp4"), "AP601"),
        (CHAT, "user", medium("document", "data:application/pdf;base64,AAAA"), None),
        (CHAT, "user", medium("document", "https://example.com/a.pdf"), "AP602"),
        (CHAT, "user", medium("document", "urn:openai-file:1"), None),
        (CHAT, "assistant", medium("audio", "urn:openai-audio:1"), None),
        (CHAT, "assistant", medium("image", PNG), "AP601"),
        (CHAT, "result", medium("image", PNG), "AP601"),
        (CHAT, "system", medium("image", PNG), "AP601"),
        (RESPONSES, "user", medium("audio", "data:audio/wav;base64,AAAA"), "AP601"),
        (RESPONSES, "result", medium("image", PNG), None),
        (RESPONSES, "result", medium("document", "https://example.com/a.pdf"), None),
        (RESPONSES, "user", medium("image", "gs://bucket/a.png"), "AP602"),
        (CLAUDE, "user", medium("image", "data:image/bmp;base64,AAAA"), "AP602"),
        (CLAUDE, "user", medium("image", "data:IMAGE/PNG;base64,AAAA"), None),
        (CLAUDE, "user", medium("image", "data:,AAAA"), None),
        (CLAUDE, "user", medium("document", "data:text/csv;base64,AAAA"), "AP602"),
        (CLAUDE, "user", medium("document", "data:,AAAA", mime="application/pdf"), None),
        (CLAUDE, "user", medium("audio", "data:audio/wav;base64,AAAA"), "AP601"),
        (CLAUDE, "result", medium("document", "data:application/pdf;base64,AAAA"), None),
        (CLAUDE, "result", medium("video", "https://example.com/a.mp4"), "AP601"),
        (GEMINI, "user", medium("video", "gs://bucket/a.mp4"), None),
        (GEMINI, "result", medium("audio", "data:audio/wav;base64,AAAA"), None),
        (GEMINI, "user", medium("video", "s3://bucket/a.mp4"), "AP602"),
        (AI, "result", medium("video", "s3://bucket/a.mp4"), None),
        (AI, "assistant", medium("image", "https://example.com/a.png"), "AP602"),
    ],
)
def test_media_are_accepted_by_place_and_form(target: str, where: str, part: MediaPart, code: str | None) -> None:
    """Where it is refused: an error in what was read from the format, a warning elsewhere; the dialect shows it otherwise."""
    own, foreign = shown(where, part, target), shown(where, part, None)
    rules = {"AP601", "AP602"}

    assert sorted(rules & {*codes(own, target)}) == ([code] if code else [])
    assert sorted(rules & {*warnings(foreign, target)}) == ([code] if code else [])
    assert rules.isdisjoint(codes(foreign, target))
    place = 2 if where == "result" else 0
    assert (target in mended(own, target)[-2 if where == "assistant" else place].metadata) == (code is None)


def test_a_file_id_is_known_only_to_the_provider_that_holds_the_file() -> None:
    """AP603: a warning, since the dialect cannot fetch it."""
    file = medium("document", "urn:openai-file:1")

    assert warnings(of(says("user", file)), CLAUDE) == ["AP603"]
    assert warnings(of(says("user", file)), RESPONSES) == []
    assert warnings(of(says("user", file, native=CLAUDE)), CLAUDE) == []
    assert warnings(of(says("user", file)), AI) == []
    assert "AP603" not in warnings(of(says("user", medium("video", "urn:openai-file:1"))), CLAUDE)


# ---------------------------------------------------------------- limits


def limited(monkeypatch: pytest.MonkeyPatch, target: str, **limits: int) -> None:
    """As if a target had other limits: those that it has are too large for a quick test."""
    monkeypatch.setattr(_verbs, "TARGETS", {**TARGETS, target: replace(TARGETS[target], **limits)})


def test_too_many_messages_or_tools_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    """AP604."""
    tools = [Tool(name=f"tool_{number}") for number in range(129)]
    again = ASK.model_copy(update={"id": "again"})

    assert [str(each) for each in check(of(ASK, tools=tools), CHAT)] == [
        "conversation: AP604 warning: 129 tools are more than 128"
    ]
    assert check(of(ASK, tools=tools[1:]), CHAT) == check(of(ASK, tools=tools), GEMINI) == []
    limited(monkeypatch, CLAUDE, most_messages=1)
    assert warnings(of(ASK, again), CLAUDE) == ["AP604"]
    assert warnings(of(ASK), CLAUDE) == []


def test_a_text_that_is_too_long_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    """AP605."""
    limited(monkeypatch, CHAT, longest_text=5)

    assert warnings(of(says("user", "Hello", "Hello!")), CHAT) == ["AP605"]
    assert warnings(of(says("user", "Hello")), CHAT) == []


def test_a_request_that_is_too_large_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    """AP607."""
    limited(monkeypatch, CLAUDE, largest_request=1000)

    assert warnings(of(says("user", "x" * 1000)), CLAUDE) == ["AP607"]
    assert warnings(of(says("user", "x" * 500)), CLAUDE) == []


def test_a_mark_does_not_make_a_message_too_large() -> None:
    """What was let in can be mended, however large it is."""
    orphan = gives("c1", "x" * 500)
    with use_limits(Limits(message_bytes=700)):
        assert mended(of(ASK, orphan))[1].metadata == {"checks": {"left_out": "AP102"}}


# ---------------------------------------------------------------- AP606

MARK = {"cache_control": {"type": "ephemeral"}}


def test_no_more_than_four_cache_breakpoints_are_set() -> None:
    """The first go: in messages as in parts, on calls, in a residue; those of tools and instructions last."""
    messages = [
        says("user", TextPart(text="a", metadata={CLAUDE: MARK}), TextPart(text="b", metadata={CLAUDE: MARK}), native=CLAUDE),
        calls("c1", native=CLAUDE, notes=MARK),
        gives("c1", native=CLAUDE, notes={"residue": [{"at": [0, "content", 0, "cache_control"], "add": {}}]}),
        says("user", TextPart(text="c", metadata={CLAUDE: MARK}), native=CLAUDE),
    ]
    rest = {"rest": MARK, "tools": [{"at": [0, "cache_control"], "add": {}}]}
    broken = of(*messages, metadata={CLAUDE: rest})

    assert codes(broken, CLAUDE) == ["AP606"]
    made = mended(broken, CLAUDE)
    assert [part.metadata for part in made[0].parts] == [{CLAUDE: {}}, {CLAUDE: {}}]
    assert made[1].metadata == {CLAUDE: {}, "checks": {"mended": "AP606"}}
    assert made[2:] == of(*messages[2:], metadata=broken.metadata)
    assert made.metadata[CLAUDE] == rest


def test_of_too_many_breakpoints_of_tools_the_first_go() -> None:
    tools = [{"at": [place, "cache_control"], "add": {}} for place in range(6)]
    made = mended(of(ASK, metadata={CLAUDE: {"tools": tools}}), CLAUDE)

    assert made.metadata[CLAUDE] == {"tools": tools[2:]}


def test_of_one_message_only_as_many_go_as_must() -> None:
    texts = [TextPart(text=letter, metadata={CLAUDE: MARK}) for letter in "abcdef"]
    made = mended(of(says("user", *texts, native=CLAUDE)), CLAUDE)

    assert ["cache_control" in part.metadata[CLAUDE] for part in made[0].parts] == [False, False, True, True, True, True]


def test_breakpoints_in_blocks_of_the_format_count() -> None:
    """AP606: what the core has no word for is kept whole, and the first of its breakpoints go like others."""
    block = {"type": "search_result", "source": "s", "title": "t", "content": [{"type": "text", "text": "a"}], **MARK}
    body = [{"role": "user", "content": [block] * 5}]
    broken = decode(body, CLAUDE)

    assert codes(broken, CLAUDE) == ["AP606"]
    (unit,) = encode(mended_for(CLAUDE, broken), CLAUDE).value
    assert ["cache_control" in each for each in unit["content"]] == [False, True, True, True, True]
    assert [{**each, **MARK} for each in unit["content"]] == [block] * 5
    assert codes(decode([{"role": "user", "content": [block] * 4}], CLAUDE), CLAUDE) == []


def test_breakpoints_of_instructions_go_last() -> None:
    """AP606: first those of messages, then those of tools, whose part of the prompt is shorter."""
    text = {"type": "text", "text": "a", **MARK}
    tool = {"name": "weather", "input_schema": {"type": "object"}, **MARK}

    def marks(messages: int, tools: int, system: int) -> list[list[bool]]:
        body = {
            "max_tokens": 1,
            "system": [text] * system,
            "tools": [tool | {"name": f"weather_{number}"} for number in range(tools)],
            "messages": [{"role": "user", "content": [text] * messages}],
        }
        written = encode(mended_for(CLAUDE, decode(body, CLAUDE)), CLAUDE).value
        groups = (written["messages"][0]["content"], written["tools"], written["system"])
        return [["cache_control" in each for each in group] for group in groups]

    assert marks(3, 1, 2) == [[False, False, True], [True], [True, True]]
    assert marks(1, 2, 3) == [[False], [False, True], [True, True, True]]
    assert marks(1, 1, 5) == [[False], [False], [False, True, True, True, True]]


def test_a_breakpoint_that_is_null_is_none() -> None:
    """AP606: programs that write every key write this one."""
    texts = [{"type": "text", "text": "a", "cache_control": None}] * 3
    blocks = [{"type": "search_result", "source": "s", "title": "t", "content": [], "cache_control": None}] * 3

    assert codes(decode([{"role": "user", "content": [*texts, *blocks]}], CLAUDE), CLAUDE) == []
    marked = [{**each, **MARK} for each in texts] + blocks + [{**each, **MARK} for each in blocks]
    (unit,) = encode(mended(decode([{"role": "user", "content": marked}], CLAUDE), CLAUDE), CLAUDE).value
    mark = MARK["cache_control"]
    found = [each.get("cache_control", "none") for each in unit["content"]]
    assert found == ["none", "none", mark, None, None, None, mark, mark, mark]


def test_a_breakpoint_that_is_not_written_does_not_count() -> None:
    dropped = [{"at": [place, "cache_control"], "drop": "0"} for place in range(6)]

    assert codes(of(ASK, metadata={CLAUDE: {"tools": dropped}}), CLAUDE) == []


@pytest.mark.parametrize(
    "file",
    [
        {"file_url": "https://example.com/a.mp3"},
        {"file_data": "data:audio/mpeg;base64,AAEC", "filename": "a.mp3"},
        {"file_data": "data:application/octet-stream;base64,AAEC", "filename": "a.wav"},
    ],
)
def test_sound_is_not_accepted_as_a_file(file: dict[str, str]) -> None:
    """AP601, AP602: by its type, or by its name."""
    content = [{"type": "input_text", "text": "What is said?"}, {"type": "input_file", **file}]
    found = codes(decode({"input": [{"role": "user", "content": content}]}, "openai-responses"), "openai-responses")

    assert found in (["AP601"], ["AP602"])
