"""Broken histories for Hypothesis: few ids, so that they collide, halves of pairs, empty words, and notes of dialects."""

from typing import Any

from hypothesis import strategies as st

from antiphon import (
    Conversation,
    DataPart,
    ForeignPart,
    MediaPart,
    Message,
    OptionCallPayload,
    OptionResultPayload,
    PartsPayload,
    ReasoningPart,
    TextPart,
)
from antiphon.checks import TARGETS
from antiphon.messages import Tool

TARGET_NAMES = [None, *TARGETS]

ids = st.sampled_from(["m1", "m2", "m2#2", "m3", "m3#2", "m4", "rs_1", "call_1", "msg_1"])
invocations = st.sampled_from(["c1", "c2", "c3", "call_1", "a.b:c", "x" * 70])
options = st.sampled_from(["weather", "draw", "weather.now", "1st"])
turns = st.sampled_from([None, None, "t1", "t2", "rs_1"])
texts = st.sampled_from(["", " ", "Hello", "Hello "])
urls = st.sampled_from(["https://example.com/a", "data:image/bmp;base64,AAAA", "urn:openai-file:1", "s3://a/b"])
residues = st.lists(
    st.sampled_from(
        [
            {"at": [0, "tool_calls"], "add": []},
            {"at": [0, "content"], "is": [], "was": "0"},
            {"at": [0, "content", 0, "content"], "add": []},
            {"at": [0, "content", 0, "type"], "is": "input_text", "was": "0"},
            {"at": [0, "summary"], "drop": "0"},
            {"at": [0, "id"], "add": "fc_1"},
            {"at": [0, "content", 0, "content", 0, "text"], "is": "", "was": "0"},
            {"at": [0, "x"], "add": {"cache_control": {"type": "ephemeral"}}},
            {"at": [], "is": [{"role": "user", "content": []}], "was": "0"},
            {"at": "nowhere", "add": []},
            {"at": [], "drop": 7},
            {"no": "change"},
            "no change either",
        ]
    ),
    max_size=2,
)
notes: st.SearchStrategy[dict[str, Any]] = st.fixed_dictionaries(
    {},
    optional={
        "joined": st.booleans(),
        "slot": st.just(True),
        "residue": st.one_of(residues, st.just("none")),
        "thoughtSignature": st.just("AAEC"),
        "cache_control": st.just({"type": "ephemeral"}),
        "needs": st.just(["rs_1"]),
        "blocks": st.just(True),
    },
)


sane_notes: st.SearchStrategy[dict[str, Any]] = st.sampled_from([{}, {"cache_control": {}}, {"blocks": True}, {"list": True}])
"""Such as the dialects make, so that they can write again what has them."""


def metadata(target: str | None, notes: st.SearchStrategy[dict[str, Any]]) -> st.SearchStrategy[dict[str, Any]]:
    """Native to the target, to another, or to none."""
    own = notes.map(lambda each: {target or "openai-chat": each})
    return st.one_of(st.just({}), own, st.just({"marsys": {}}))


def blocks(target: str | None) -> st.SearchStrategy[Any]:
    values: list[dict[str, Any]] = [
        {},
        {"text": "x"},
        {"type": "server_tool_use", "id": "s1"},
        {"type": "web_search_tool_result", "tool_use_id": "s1"},
        {"type": "tool_reference", "tool_name": "nobody"},
        {"type": "item_reference", "id": "msg_0"},
        {"type": "web_search_call", "id": "call_1"},
        {"type": "search_result", "cache_control": {"type": "ephemeral"}},
    ]
    own = st.sampled_from([{}, {target or "openai-chat": {"item": True}}])
    return st.builds(ForeignPart, dialect=st.just(target or "openai-chat"), value=st.sampled_from(values), metadata=own)


def parts(target: str | None) -> st.SearchStrategy[Any]:
    signatures = st.sampled_from([None, "", "EqQB"])
    own = st.sampled_from([{}, *({target or "openai-chat": each} for each in ({}, {"cache_control": {}}, {"id": "rs_1"}))])
    modalities = st.sampled_from(["image", "audio", "video", "document"])
    return st.one_of(
        st.builds(TextPart, text=texts, metadata=own),
        st.builds(DataPart, data=st.one_of(texts, st.just({"a": 1}))),
        st.builds(ReasoningPart, text=texts, signature=signatures, encrypted_content=signatures, metadata=own),
        st.builds(MediaPart, modality=modalities, url=urls),
        blocks(target),
    )


def payloads(target: str | None) -> st.SearchStrategy[Any]:
    shown = st.lists(parts(target), max_size=2).map(tuple)
    success = st.builds(OptionResultPayload, invocation_id=invocations, option_name=options, result=texts, parts=shown)
    return st.one_of(
        st.builds(PartsPayload, parts=shown),
        st.builds(
            OptionCallPayload,
            invocation_id=invocations,
            option_name=options,
            arguments=st.just({}),
            arguments_text=st.sampled_from([None, "{}", '{"city": "Os', "[1]"]),
        ),
        success,
        success.map(lambda each: each.model_copy(update={"is_error": True, "error_type": "E", "error_message": "it broke"})),
    )


def messages(target: str | None, notes: st.SearchStrategy[dict[str, Any]]) -> st.SearchStrategy[Message]:
    return st.builds(
        Message,
        id=ids,
        policy=st.sampled_from(["user", "assistant", "system", "ada lovelace"]),
        payload=payloads(target),
        role_hint_for_llm=st.sampled_from([None, "user", "assistant", "tool", "system"]),
        turn_id=turns,
        lane=st.sampled_from(["talk", "talk", "talk", "control", "effect"]),
        metadata=metadata(target, notes),
    )


def settings(target: str | None) -> st.SearchStrategy[dict[str, Any]]:
    rest = st.fixed_dictionaries(
        {},
        optional={
            "store": st.booleans(),
            "thinking": st.just({"type": "enabled", "budget_tokens": 1024}),
            "tool_choice": st.just({"type": "function", "name": "nobody"}),
            "toolConfig": st.just({"functionCallingConfig": {"allowedFunctionNames": ["nobody"]}}),
            "previous_response_id": st.sampled_from([None, "resp_1", "msg_1"]),
            "cachedContent": st.just("cachedContents/1"),
            "cache_control": st.just({"type": "ephemeral"}),
        },
    )
    bodies = st.one_of(rest.map(lambda each: {"shape": "request", "rest": each}), st.just({"shape": "one"}))
    return st.one_of(st.just({}), bodies.map(lambda body: {target or "openai-chat": body}))


def broken(
    target: str | None, notes: st.SearchStrategy[dict[str, Any]] = notes, most: int = 9
) -> st.SearchStrategy[Conversation]:
    """Return histories that are broken for a target in as many ways as there are."""
    tools = st.lists(st.builds(Tool, name=options), max_size=3)
    return st.builds(Conversation, st.lists(messages(target, notes), max_size=most), tools=tools, metadata=settings(target))


cases = st.sampled_from(TARGET_NAMES).flatmap(lambda target: st.tuples(st.just(target), broken(target)))

short_cases = st.sampled_from([name for name in TARGETS if name != "pydantic-ai"]).flatmap(
    lambda target: st.tuples(st.just(target), broken(target, sane_notes, most=3))
)
"""Of providers, and so short that there is often nothing to say."""
