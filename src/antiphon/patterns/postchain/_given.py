"""What tools gave an agent, as things that a thread has in mind: so the answer has them, and cites each by its call.

A tool that finds things gives them by their ids: each is an item of its own, and the same one as if a phase had found it.
Whatever else a tool gives is one item, word for word; the agent has asked for it, so nobody asks how relevant it is.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Final, cast

from pydantic_core import to_json, to_jsonable_python

from antiphon.messages import thaw
from antiphon.patterns.postchain._bounds import MENTIONED
from antiphon.patterns.postchain._operations import Item
from antiphon.patterns.postchain._score import relevance
from antiphon.protocol import ToolCall

__all__ = ["brief", "items_given"]

_LONGEST_TITLE: Final = 120


def brief(result: Any) -> Any:
    """Return what a tool gave as plain JSON, no longer than a thread has it in mind."""
    plain = to_jsonable_python(result, fallback=str)
    if _is_found(plain):
        return [{**each, "text": each["text"][:MENTIONED]} for each in plain]
    text = _text(plain)
    return plain if len(text) <= MENTIONED else text[:MENTIONED]


def items_given(calls: Iterable[ToolCall], question: str) -> list[Item]:
    """Return what the tools gave that were called; a call that failed, or found nothing, gave nothing."""
    return [item for call in calls for item in _items(call, question)]


def _items(call: ToolCall, question: str) -> list[Item]:
    result: Any = thaw(call.model_extra.get("result"))
    if result in (None, "", [], {}):
        return []
    if _is_found(result):
        return [_found(each, question) for each in result]
    return [Item(id=call.id or "", source="tool", title=_title(call), text=_text(result), priority=1.0)]


def _is_found(result: Any) -> bool:
    """Whether a tool has found things: passages of documents, or what was said before."""
    if not isinstance(result, list) or not result:
        return False
    return all(
        isinstance(each, dict)
        and all(isinstance(cast("dict[str, Any]", each).get(name), str) for name in ("id", "text"))
        and ("source" in each or "thread" in each)
        for each in cast("list[Any]", result)
    )


def _found(each: dict[str, Any], question: str) -> Item:
    text: str = each["text"]
    score = relevance(question, text)
    if "source" in each:
        return Item(id=each["id"], source="knowledge", title=str(each["source"]), text=text, priority=score)
    return Item(id=each["id"], source="memory", title=f"said in {each['thread']}", text=text, priority=score)


def _title(call: ToolCall) -> str:
    """Return a call as it is shown to people: `calculator(expression='2 + 3')`."""
    given: Any = thaw(call.arguments)
    named = cast("dict[str, Any]", given) if isinstance(given, dict) else {}
    arguments = ", ".join(f"{name}={value!r}" for name, value in named.items())
    title = f"{call.name}({arguments})".replace("\n", " ")
    return title if len(title) <= _LONGEST_TITLE else f"{title[: _LONGEST_TITLE - 2]}…)"


def _text(result: Any) -> str:
    return result if isinstance(result, str) else to_json(result, fallback=str).decode()
