"""Everything that can be said, for Hypothesis: any JSON value, part, payload, message and conversation."""

import unicodedata
from datetime import UTC
from decimal import Decimal
from typing import Any

from hypothesis import strategies as st

from antiphon import (
    Citation,
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
    Usage,
)
from antiphon.messages import Tool
from antiphon.messages._names import is_name

HOSTILE = ["\x00", "\x7f", "\u202e", "\u200b", "\ufeff", "\U000e0041", "e\u0301", "\u2028", "\\", '"', "\n", "😀", "ﷺ"]
RESERVED = ["kind", "type", "schema", "epoch", "seq", "thread", "$ref", "lc", "antiphon", "conversation", "__class__", ""]

texts = st.one_of(
    st.text(st.characters(exclude_categories=["Cs"])), st.lists(st.sampled_from(HOSTILE)).map("".join), st.just("null")
)
keys = st.one_of(st.sampled_from(RESERVED), texts)
numbers = st.one_of(
    st.integers(),
    st.integers(min_value=-(10**330), max_value=10**330),
    st.sampled_from([2**53, 2**63 - 1, 2**63, 2**64 - 1, 2**64, -(2**63), -(2**63) - 1]),
    st.floats(allow_nan=False, allow_infinity=False),
    st.sampled_from([-0.0, 1e16, 1e-7, 5e-324, 1.7976931348623157e308, 0.1 + 0.2, 1.0]),
)
scalars = st.one_of(st.none(), st.booleans(), numbers, texts)


def _deep(depth: int) -> st.SearchStrategy[Any]:
    """A chain of containers exactly `depth` deep."""
    kinds = st.lists(st.booleans(), min_size=depth - 1, max_size=depth - 1)

    def build(objects: list[bool]) -> Any:
        value: Any = []
        for is_object in objects:
            value = {"k": value} if is_object else [value]
        return value

    return kinds.map(build)


json_values = st.one_of(
    st.recursive(scalars, lambda inner: st.lists(inner, max_size=4) | st.dictionaries(keys, inner, max_size=4), max_leaves=12),
    st.integers(min_value=1, max_value=63).flatmap(_deep),
)
json_objects = st.dictionaries(keys, json_values, max_size=4)

names = (
    st.one_of(st.uuids().map(str), st.text(min_size=1, max_size=30), st.text(st.characters(codec="ascii"), min_size=1))
    .map(lambda name: unicodedata.normalize("NFC", name))
    .filter(is_name)
)
metadata = st.one_of(st.just({}), st.dictionaries(names, json_objects, max_size=2))
urls = st.one_of(
    st.sampled_from(["https://example.com", "http://a/b?c=d#e", "gs://bucket/x", "s3://bucket/x y", "urn:a:file-1", "data:,"]),
    st.binary(max_size=50).map(lambda data: f"data:image/png;base64,{data.hex()}"),
)
counts = st.integers(min_value=0, max_value=2**53)
maybe_text = st.none() | texts
citations = st.builds(
    Citation,
    url=maybe_text,
    title=maybe_text,
    source=maybe_text,
    quote=maybe_text,
    start=st.none() | counts,
    end=st.none() | counts,
    metadata=metadata,
)
parts = st.one_of(
    st.builds(TextPart, text=texts, citations=st.lists(citations, max_size=2).map(tuple), metadata=metadata),
    st.builds(
        MediaPart,
        modality=st.sampled_from(["image", "audio", "video", "document"]),
        url=urls,
        mime=maybe_text,
        prompt_hint=maybe_text,
        id=st.none() | names,
        metadata=metadata,
    ),
    st.builds(ReasoningPart, text=texts, signature=maybe_text, encrypted_content=maybe_text, metadata=metadata),
    st.builds(DataPart, data=json_values, metadata=metadata),
    st.builds(ForeignPart, dialect=names, value=json_values, metadata=metadata),
)
some_parts = st.lists(parts, max_size=3).map(tuple)
parts_payloads = st.builds(PartsPayload, parts=some_parts)
call_payloads = st.builds(
    OptionCallPayload, invocation_id=names, option_name=names, arguments=json_objects, arguments_text=maybe_text
)
success_payloads = st.builds(
    OptionResultPayload, invocation_id=names, option_name=names, result=json_values, parts=some_parts, is_error=st.just(False)
)
error_payloads = st.builds(
    OptionResultPayload,
    invocation_id=names,
    option_name=names,
    result=json_values,
    parts=some_parts,
    is_error=st.just(True),
    error_type=texts.filter(bool),
    error_message=texts,
    retryable=st.none() | st.booleans(),
)
payloads = st.one_of(parts_payloads, call_payloads, success_payloads, error_payloads)
costs = st.decimals(min_value=Decimal(0), max_value=Decimal(1000), allow_nan=False, allow_infinity=False)
usages = st.builds(
    Usage,
    input_tokens=st.none() | counts,
    output_tokens=st.none() | counts,
    cache_read_tokens=st.none() | counts,
    cache_write_tokens=st.none() | counts,
    reasoning_tokens=st.none() | counts,
    cost=st.none() | costs,
    metadata=metadata,
)
times = st.datetimes(timezones=st.just(UTC))
messages = st.builds(
    Message,
    id=names,
    policy=names,
    payload=payloads,
    role_hint_for_llm=st.sampled_from([None, "user", "assistant", "tool", "system"]),
    step_num=st.none() | counts,
    turn_id=st.none() | names,
    thread_id=st.none() | names,
    to=st.lists(names, max_size=3).map(tuple),
    lane=st.sampled_from(["talk", "control", "effect"]),
    correlation_id=st.none() | names,
    in_reply_to=st.none() | names,
    parent_id=st.none() | names,
    created_at=st.none() | times,
    usage=st.none() | usages,
    metadata=metadata,
)
tools = st.builds(Tool, name=names, description=maybe_text, parameters=json_objects, metadata=metadata)
conversations = st.builds(
    Conversation, st.lists(messages, max_size=4), tools=st.lists(tools, max_size=2).map(tuple), metadata=metadata
)
