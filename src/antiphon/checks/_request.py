"""AP7xx: settings of the request that a conversation was read from, if they contradict its messages or tools."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, cast

from antiphon.checks._native import ABSENT, box_of, items_of, own_block, wire_value, without_settings
from antiphon.checks._rule import CheckRule, Edits, Trouble
from antiphon.checks._view import View
from antiphon.messages import OptionCallPayload, thaw

_CHOICES = ("tool_choice", "toolConfig", "tool_config")


def _declared(view: View) -> set[str]:
    """Return the names of all tools, including those that only the format knows."""
    return {tool.name for tool in view.conversation.tools}.union(_names(_declarations(view)))


def _declarations(view: View) -> object:
    """Return a dialect's notes on the declared tools."""
    return view.conversation.metadata.get(view.accepted.name, {}).get("tools")


def _names(value: object) -> Iterator[str]:
    box = box_of(value)
    if isinstance(box.get("name"), str):
        yield box["name"]
    for inner in (*box.values(), *items_of(value)):
        yield from _names(inner)


# ---------------------------------------------------------------- missing tools


def _forced_tools(view: View) -> Iterator[Trouble]:
    declared = _declared(view)
    for setting in _CHOICES:
        wanted = _chosen(view.setting(setting))
        if missing := [name for name in wanted if name not in declared]:
            yield Trouble(None, f"the tool {missing[0]!r} is required by the tool choice, but is not declared")


def _chosen(choice: object) -> list[str]:
    """Return the names of the tools that a request requires, in the way of its format."""
    box = box_of(choice)
    config = box_of(box.get("functionCallingConfig", box.get("function_calling_config")))
    allowed = config.get("allowedFunctionNames", config.get("allowed_function_names"))
    boxes = (box, box_of(box.get("function")), box_of(box.get("custom")))
    return [*(str(name) for name in items_of(allowed)), *(str(each["name"]) for each in boxes if "name" in each)]


def _let_choose(view: View, trouble: Trouble, edits: Edits) -> str:
    edits.metadata = without_settings(edits.metadata, view.accepted.name, frozenset(_CHOICES))
    return "the choice is left to the model"


def _unknown_tools(view: View) -> Iterator[Trouble]:
    declared = _declared(view)
    for position in view.shown:
        for place, part in view.parts(position):
            name = _referred(own_block(part, view.accepted.name))
            if name is not None and name not in declared:
                yield Trouble(position, f"the tool {name!r} is referred to, but is not declared", about=(place,))


def _referred(block: Mapping[str, Any]) -> str | None:
    """Return the name of the tool that a block adds, removes or refers to."""
    if block.get("type") not in ("tool_reference", "tool_addition", "tool_removal"):
        return None
    name = block.get("tool_name", box_of(block.get("tool")).get("name"))
    return name if isinstance(name, str) else None


def _leave_out_part(view: View, trouble: Trouble, edits: Edits) -> str:
    edits.leave_out_parts(trouble.place, trouble.about)
    return "the reference stays in the history but is not sent"


def _lost_namespaces(view: View) -> Iterator[Trouble]:
    """Find calls of tools that are declared only in a namespace, and were read without it."""
    namespaces = dict(_in_namespaces(_declarations(view)))
    for tool in view.conversation.tools:
        namespaces.pop(tool.name, None)
    for position, call in view.calls():
        is_bare = wire_value(view.messages[position], view.accepted.name, "namespace") is ABSENT
        if call.option_name in namespaces and view.is_native(position) and is_bare:
            yield Trouble(position, f"the call of {call.option_name!r} lacks its namespace {namespaces[call.option_name]!r}")


def _in_namespaces(value: object) -> Iterator[tuple[str, str]]:
    """Return the tools that are declared in namespaces, each with its namespace."""
    box = box_of(value)
    if box.get("type") == "namespace":
        yield from ((name, str(box.get("name"))) for name in _names(box.get("tools")))
    for inner in (*box.values(), *items_of(value)):
        yield from _in_namespaces(inner)


def _add_namespace(view: View, trouble: Trouble, edits: Edits) -> str:
    namespaces = dict(_in_namespaces(_declarations(view)))
    call = cast("OptionCallPayload", view.messages[trouble.place].payload)
    metadata = thaw(edits.message(trouble.place).metadata)
    notes = metadata[view.accepted.name]
    change = {"at": [0, "namespace"], "add": namespaces[call.option_name]}
    notes["residue"] = [*notes.get("residue", ()), change]
    edits.update(trouble.place, metadata=metadata)
    return "the namespace is written"


# ---------------------------------------------------------------- settings that contradict


def _strange_responses(view: View) -> Iterator[Trouble]:
    previous = view.setting("previous_response_id")
    if isinstance(previous, str) and not previous.startswith("resp"):
        yield Trouble(None, f"the previous response id {previous!r} is not the id of a response")


def _forget_response(view: View, trouble: Trouble, edits: Edits) -> str:
    edits.metadata = without_settings(edits.metadata, view.accepted.name, frozenset({"previous_response_id"}))
    return "the setting 'previous_response_id' is removed from the request"


def _cached_tools(view: View) -> Iterator[Trouble]:
    is_cached = view.has_setting("cachedContent", "cached_content")
    if is_cached and (view.conversation.tools or view.has_setting("toolConfig", "tool_config")):
        yield Trouble(None, "tools are declared together with cached content, which has its own")


def _drop_tools(view: View, trouble: Trouble, edits: Edits) -> str:
    edits.tools = ()
    edits.metadata = without_settings(edits.metadata, view.accepted.name, frozenset({"toolConfig", "tool_config", "tools"}))
    return "the tools are removed from the request"


REQUEST = (
    CheckRule(
        code="AP703",
        title="tools are declared together with cached content",
        why="Cached content includes the instructions and tools that it was created with. The request must not contain "
        "others.",
        hint="Remove the tools and their configuration from the request.",
        find=_cached_tools,
        mend=_drop_tools,
        targets=("gemini",),
    ),
    CheckRule(
        code="AP701",
        title="the tool choice requires a tool that is not declared",
        why="The request forces the choice of a tool that it does not declare.",
        hint="Declare the tool, or leave the choice to the model.",
        find=_forced_tools,
        mend=_let_choose,
        targets=("openai-chat", "openai-responses", "anthropic-messages", "gemini"),
    ),
    CheckRule(
        code="AP702",
        title="the previous response id is not the id of a response",
        why="The ids of responses begin with `resp`.",
        hint="Give the id of a response, or the history itself.",
        find=_strange_responses,
        mend=_forget_response,
        targets=("openai-responses",),
    ),
    CheckRule(
        code="AP704",
        title="a call lacks the namespace of its tool",
        why="A tool that is declared in a namespace can only be called with that namespace.",
        hint="Write the namespace of the tool with the call.",
        find=_lost_namespaces,
        mend=_add_namespace,
        targets=("openai-responses",),
    ),
    CheckRule(
        code="AP705",
        title="a block refers to a tool that is not declared",
        why="Blocks that add, remove or refer to tools must name tools of the request.",
        hint="Declare the tool, or remove the reference.",
        find=_unknown_tools,
        mend=_leave_out_part,
        targets=("anthropic-messages",),
    ),
)
"""In the order of repair."""
