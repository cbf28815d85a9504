"""Answers that Hypothesis makes up, and the events in which each provider could have streamed them: the fold's inverse."""

import json
from collections.abc import Callable
from itertools import pairwise
from typing import Any, NamedTuple

from hypothesis import strategies as st

__all__ = ["INVERSES", "Call", "Said", "Streamed", "streamed"]


class Said(NamedTuple):
    """Words or thoughts; thoughts are signed."""

    kind: str
    text: str


class Call(NamedTuple):
    """A call with its arguments."""

    id: str
    name: str
    arguments: dict[str, Any]

    @property
    def text(self) -> str:
        return json.dumps(self.arguments)


class Streamed(NamedTuple):
    """An answer as events and as a whole."""

    pieces: list[Said | Call]
    events: list[Any]
    body: dict[str, Any]


_TEXT = st.text(min_size=1, max_size=12)
_NAME = st.from_regex(r"[a-z_][a-z0-9_]{0,8}", fullmatch=True)
_JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**63), 2**63) | st.floats(allow_nan=False, allow_infinity=False) | _TEXT,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(_TEXT, inner, max_size=3),
    max_leaves=5,
)
_ARGUMENTS = st.dictionaries(_TEXT, _JSON, max_size=3)


@st.composite
def _pieces(draw: st.DrawFn) -> list[Said | Call]:
    said = st.builds(Said, st.sampled_from(["text", "reasoning"]), _TEXT)
    call = st.builds(Call, st.just(""), _NAME, _ARGUMENTS)
    made = draw(st.lists(said | call, min_size=1, max_size=5))
    return [each._replace(id=f"call_{at}") if isinstance(each, Call) else each for at, each in enumerate(made)]


def _fragments(draw: st.DrawFn, text: str) -> list[str]:
    """Cut a text between its UTF-16 units, so that a character beyond the first plane may be cut in half."""
    units = text.encode("utf-16-le")
    marks = sorted({0, len(units), *(2 * at for at in draw(st.lists(st.integers(0, len(units) // 2), max_size=4)))})
    cuts = [units[start:end].decode("utf-16-le", "surrogatepass") for start, end in pairwise(marks)]
    return cuts + [""] * draw(st.integers(0, 1))


def _interleaved(draw: st.DrawFn, sequences: list[list[Any]]) -> list[Any]:
    """Mix sequences, each in its own order; the first elements stay in theirs, so that pieces begin in order."""
    left = [list(each) for each in sequences if each]
    begun, mixed = 0, []
    while left:
        at = draw(st.integers(0, min(begun, len(left) - 1)))
        mixed.append(left[at].pop(0))
        begun += at == begun
        if not left[at]:
            del left[at]
            begun -= 1
    return mixed


# ---------------------------------------------------------------- the five


def _chat(draw: st.DrawFn, pieces: list[Said | Call]) -> tuple[list[Any], dict[str, Any]]:
    def chunk(delta: Any, finish: str | None = None) -> Any:
        return {
            "id": "c",
            "object": "chat.completion.chunk",
            "choices": [{"index": 0, "delta": delta, "finish_reason": finish}],
        }

    message: dict[str, Any] = {"role": "assistant", "content": None}
    said: list[list[Any]] = []
    for kind, key in (("reasoning", "reasoning_content"), ("text", "content")):
        if text := "".join(each.text for each in pieces if isinstance(each, Said) and each.kind == kind):
            message[key] = text
            said.append([chunk({key: each}) for each in _fragments(draw, text)])
    calls = [each for each in pieces if isinstance(each, Call)]
    for index, call in enumerate(calls):
        head = {"index": index, "id": call.id, "type": "function", "function": {"name": call.name, "arguments": ""}}
        tails = [{"index": index, "function": {"arguments": each}} for each in _fragments(draw, call.text)]
        said.append([chunk({"tool_calls": [each]}) for each in (head, *tails)])
    if calls:
        message["tool_calls"] = [
            {"id": call.id, "type": "function", "function": {"name": call.name, "arguments": call.text}} for call in calls
        ]
    events = [chunk({"role": "assistant"}), *_interleaved(draw, said), chunk({}, "stop")]
    choices = [{"index": 0, "message": message, "finish_reason": "stop"}]
    return events, {"id": "c", "object": "chat.completion", "choices": choices}


def _responses(draw: st.DrawFn, pieces: list[Said | Call]) -> tuple[list[Any], dict[str, Any]]:
    output: list[Any] = []
    sequences: list[list[Any]] = []
    for index, piece in enumerate(pieces):
        begun, item, place, key = _item(index, piece)
        where = {"output_index": index, "item_id": item["id"], **place}
        family = {"text": "output_text", "reasoning": "reasoning_summary_text", "call": "function_call_arguments"}[key]
        deltas = [{"type": f"response.{family}.delta", **where, "delta": each} for each in _fragments(draw, piece.text)]
        if place:
            opening = {"type": {"text": "output_text", "reasoning": "summary_text"}[key], "text": ""}
            part = {"text": "content_part", "reasoning": "reasoning_summary_part"}[key]
            deltas.insert(0, {"type": f"response.{part}.added", **where, "part": opening})
        done = {"type": "response.output_item.done", "output_index": index, "item": item}
        added = {"type": "response.output_item.added", "output_index": index, "item": begun}
        sequences.append([[added, *deltas[:1]], *([each] for each in deltas[1:]), [done]])
        output.append(item)
    response = {"id": "r", "object": "response"}
    final = {**response, "status": "completed", "output": output if draw(st.booleans()) else []}
    events = [
        {"type": "response.created", "response": {**response, "status": "in_progress", "output": []}},
        *(event for together in _interleaved(draw, sequences) for event in together),
        {"type": "response.completed", "response": final},
    ]
    return events, {**response, "status": "completed", "output": output}


def _item(index: int, piece: Said | Call) -> tuple[Any, Any, dict[str, int], str]:
    """Return an item as it begins and as it ends, the place of its text in it, and what that is."""
    if isinstance(piece, Call):
        item = {"type": "function_call", "id": f"fc_{index}", "call_id": piece.id, "name": piece.name}
        return {**item, "arguments": ""}, {**item, "arguments": piece.text}, {}, "call"
    if piece.kind == "reasoning":
        thought = {"type": "reasoning", "id": f"rs_{index}"}
        summary = [{"type": "summary_text", "text": piece.text}]
        return (
            {**thought, "summary": []},
            {**thought, "summary": summary, "encrypted_content": "E"},
            {"summary_index": 0},
            "reasoning",
        )
    message = {"type": "message", "id": f"msg_{index}", "role": "assistant"}
    content = [{"type": "output_text", "text": piece.text, "annotations": []}]
    return {**message, "content": []}, {**message, "content": content}, {"content_index": 0}, "text"


def _messages(draw: st.DrawFn, pieces: list[Said | Call]) -> tuple[list[Any], dict[str, Any]]:
    message: dict[str, Any] = {
        "id": "m",
        "type": "message",
        "role": "assistant",
        "content": [],
        "stop_reason": None,
        "usage": {},
    }
    events: list[Any] = [{"type": "message_start", "message": message}]
    content: list[Any] = []
    for index, piece in enumerate(pieces):
        if isinstance(piece, Call):
            block: dict[str, Any] = {"type": "tool_use", "id": piece.id, "name": piece.name, "input": piece.arguments}
            begun, kind, key = {**block, "input": {}}, "input_json_delta", "partial_json"
            texts = _fragments(draw, piece.text) if piece.arguments or draw(st.booleans()) else []
        else:
            key = "text" if piece.kind == "text" else "thinking"
            block, begun, kind = {"type": key, key: piece.text}, {"type": key, key: ""}, f"{key}_delta"
            texts = _fragments(draw, piece.text)
        deltas = [{"type": kind, key: each} for each in texts]
        if block["type"] == "thinking":
            block["signature"], begun["signature"] = "S", ""
            deltas.append({"type": "signature_delta", "signature": "S"})
        content.append(block)
        events.append({"type": "content_block_start", "index": index, "content_block": begun})
        events += [{"type": "content_block_delta", "index": index, "delta": each} for each in deltas]
        events.append({"type": "content_block_stop", "index": index})
    events.append({"type": "message_delta", "delta": {"stop_reason": "end_turn"}, "usage": {"output_tokens": 1}})
    events.append({"type": "message_stop"})
    return events, {**message, "content": content, "stop_reason": "end_turn", "usage": {"output_tokens": 1}}


def _gemini(draw: st.DrawFn, pieces: list[Said | Call]) -> tuple[list[Any], dict[str, Any]]:
    streamed: list[Any] = []
    whole: list[Any] = []
    for piece in pieces:
        if isinstance(piece, Call):
            part: dict[str, Any] = {"functionCall": {"id": piece.id, "name": piece.name, "args": piece.arguments}}
            streamed.append(part)
            whole.append(part)
            continue
        kind = {"thought": True} if piece.kind == "reasoning" else {}
        streamed += [{"text": each, **kind} for each in _fragments(draw, piece.text)]
        if whole and "text" in whole[-1] and whole[-1].get("thought") == kind.get("thought"):
            whole[-1] = {"text": whole[-1]["text"] + piece.text, **kind}
        else:
            whole.append({"text": piece.text, **kind})
    chunks: list[list[Any]] = [[]]
    for part in streamed:
        chunks[-1].append(part)
        if draw(st.booleans()):
            chunks.append([])
    events: list[Any] = [{"candidates": [{"index": 0, "content": {"role": "model", "parts": parts}}]} for parts in chunks]
    events[-1]["candidates"][0]["finishReason"] = "STOP"
    return events, {"candidates": [{"index": 0, "content": {"role": "model", "parts": whole}, "finishReason": "STOP"}]}


def _pydantic(draw: st.DrawFn, pieces: list[Said | Call]) -> tuple[list[Any], dict[str, Any]]:
    parts: list[Any] = []
    events: list[Any] = []
    for index, piece in enumerate(pieces):
        part, key, kind, changed = _part(piece)
        first, *rest = _fragments(draw, piece.text)
        if _is_half(first):
            first, rest = "", [first, *rest]
        events.append({"event_kind": "part_start", "index": index, "part": {**part, key: first}})
        changes = [{"part_delta_kind": kind, changed: each} for each in rest]
        events += [{"event_kind": "part_delta", "index": index, "delta": each} for each in changes]
        follows = _part(pieces[index + 1])[0]["part_kind"] if index + 1 < len(pieces) else None
        events.append({"event_kind": "part_end", "index": index, "part": {**part, key: piece.text}, "next_part_kind": follows})
        parts.append({**part, key: piece.text})
    return events, {"parts": parts, "kind": "response"}


def _is_half(text: str) -> bool:
    """What a part begins with is whole: only changes may be cut inside a character."""
    return text[-1:] >= "\ud800" and text[-1:] <= "\udbff"


def _part(piece: Said | Call) -> tuple[Any, str, str, str]:
    if isinstance(piece, Call):
        part = {"part_kind": "tool-call", "tool_name": piece.name, "tool_call_id": piece.id}
        return part, "args", "tool_call", "args_delta"
    kind = "text" if piece.kind == "text" else "thinking"
    return {"part_kind": kind}, "content", kind, "content_delta"


INVERSES: dict[str, Callable[[st.DrawFn, list[Said | Call]], tuple[list[Any], dict[str, Any]]]] = {
    "openai-chat": _chat,
    "openai-responses": _responses,
    "anthropic-messages": _messages,
    "gemini": _gemini,
    "pydantic-ai": _pydantic,
}


@st.composite
def streamed(draw: st.DrawFn, dialect: str) -> Streamed:
    """Make up an answer, and stream it."""
    pieces = draw(_pieces())
    return Streamed(pieces, *INVERSES[dialect](draw, pieces))
