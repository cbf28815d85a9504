"""Tool calls and tool names as a provider takes them."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from hashlib import sha256
from typing import Any, cast

from antiphon.dialects._frozen import thawed

__all__ = ["llm_tool_calls", "sanitize_tool_name"]

_PREFIX = "functions."
_NOT_IN_A_NAME = re.compile(r"[^A-Za-z0-9_-]")


def sanitize_tool_name(name: str) -> str:
    """Return a name that providers accept: no `functions.` in front, and `_` for what is no ASCII letter, digit, `_` or `-`.

    A name that is nothing but the prefix keeps it, so that no name becomes empty.
    """
    while name.startswith(_PREFIX) and name != _PREFIX:
        name = name.removeprefix(_PREFIX)
    return _NOT_IN_A_NAME.sub("_", name)


def llm_tool_calls(calls: Sequence[Mapping[str, Any]], message_id: str) -> list[dict[str, Any]]:
    """Return tool calls in the provider's whole form; what a call has beyond that form stays in it."""
    return [_llm_tool_call(thawed(call), f"{message_id}/{index}") for index, call in enumerate(calls)]


def _llm_tool_call(call: dict[str, Any], place: str) -> dict[str, Any]:
    form = {"id": call.pop("id", None) or _id_of(place), "type": call.pop("type", None) or "function", **call}
    function = form.get("function")
    if isinstance(function, dict):
        form["function"] = _llm_function(cast("dict[str, Any]", function))
    return form


def _llm_function(function: dict[str, Any]) -> dict[str, Any]:
    name, arguments = function.get("name"), function.get("arguments")
    if isinstance(name, str):
        function["name"] = sanitize_tool_name(name)
    if not isinstance(arguments, str):
        function["arguments"] = "{}" if arguments is None else json.dumps(arguments, ensure_ascii=False)
    return function


def _id_of(place: str) -> str:
    # Made from the place, not from chance: the same message gives the same dict each time. OpenAI takes 40 characters.
    return f"call_{sha256(place.encode()).hexdigest()[:24]}"
