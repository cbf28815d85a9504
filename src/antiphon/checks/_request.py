"""AP2xx and AP7xx: the ids, names and settings of a request.

- AP2xx: ids and names. A dialect maps names that its format refuses; a native message is written unchanged, and refused.
- AP7xx: settings of the request that a conversation was read from, if they contradict its messages or tools.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, cast

from antiphon.checks._findings import ABSENT, box_of, items_of, own_block, wire_value, without_settings
from antiphon.checks._rule import CheckRule, Edits, Trouble, drop_settings, leave_out
from antiphon.checks._targets import Spelling
from antiphon.checks._view import View, items_with_ids
from antiphon.messages import OptionCallPayload, OptionResultPayload, thaw

# ---------------------------------------------------------------- AP2xx: ids and names

_ROLES = frozenset({"user", "assistant", "system", "developer", "tool"})
_SHOWN = 60
"""The maximum length of a shown name, in characters."""


def _shown(name: str) -> str:
    return repr(name if len(name) <= _SHOWN else f"{name[:_SHOWN]}…")


def _why_not(spelling: Spelling, name: str) -> str:
    if len(name) > spelling.longest:
        return f"has {len(name)} characters, more than {spelling.longest}"
    return f"does not match {spelling.pattern.pattern}"


def _release(view: View, trouble: Trouble, edits: Edits) -> str:
    for position in (trouble.place, *trouble.related):
        edits.release(position)
    return "it is rewritten from the core, with an accepted name"


def _call_ids(view: View) -> Iterator[Trouble]:
    spelling = view.accepted.call_id
    for position, call in view.calls():
        is_written = wire_value(view.messages[position], view.accepted.name, "legacy") is not True
        if is_written and not spelling.accepts(call.invocation_id):
            answer = view.pairing.answers.get(position)
            pair = (position,) if answer is None else (position, answer)
            problem = f"the call id {_shown(call.invocation_id)} {_why_not(spelling, call.invocation_id)}"
            yield Trouble(position, problem, view.severity(*pair), pair[1:])


def _option_names(view: View) -> Iterator[Trouble]:
    spelling = view.accepted.option_name
    for position, message in view:
        payload = message.payload
        if isinstance(payload, OptionCallPayload | OptionResultPayload) and not spelling.accepts(payload.option_name):
            problem = f"the option name {_shown(payload.option_name)} {_why_not(spelling, payload.option_name)}"
            yield Trouble(position, problem, view.severity(position))


def _speakers(view: View) -> Iterator[Trouble]:
    spelling = view.accepted.speaker
    for position, message in view if spelling is not None else ():
        name = message.policy
        is_written = name not in _ROLES and view.sides[position] != "result"
        if is_written and spelling is not None and not spelling.accepts(name):
            yield Trouble(position, f"the name {_shown(name)} {_why_not(spelling, name)}", view.severity(position))


# ---------------------------------------------------------------- tools


def _tools(view: View) -> Iterator[Trouble]:
    spelling = view.accepted.option_name
    for tool in view.conversation.tools:
        if not spelling.accepts(tool.name):
            yield Trouble(None, f"the tool name {_shown(tool.name)} {_why_not(spelling, tool.name)}")


def _same_tools(view: View) -> Iterator[Trouble]:
    seen: set[str] = set()
    for tool in view.conversation.tools:
        if tool.name in seen:
            yield Trouble(None, f"two tools are called {_shown(tool.name)}")
        seen.add(tool.name)


def _drop_same_tools(view: View, trouble: Trouble, edits: Edits) -> str:
    first = {tool.name: tool for tool in reversed(edits.tools)}
    edits.tools = tuple(tool for tool in edits.tools if tool is first[tool.name])
    return "the later tool with that name is removed"


# ---------------------------------------------------------------- items


def _item_ids(view: View) -> Iterator[Trouble]:
    for position in view.shown:
        for item in items_with_ids(view, position):
            spelling = view.accepted.item_ids.get(item.type)
            if spelling is not None and not spelling.accepts(item.id):
                problem = f"the id {_shown(item.id)} of a {item.type} {_why_not(spelling, item.id)}"
                yield Trouble(position, problem, view.by_host, item.places)


def _forget_item_id(view: View, trouble: Trouble, edits: Edits) -> str:
    if trouble.related:
        edits.leave_out_parts(trouble.place, trouble.related)
        return "the item stays in the history but is not sent, because it consists of its id"
    edits.forget_id(trouble.place)
    return "the item's id is not written"


NAMING = (
    CheckRule(
        code="AP201",
        title="the target refuses the form of a call id",
        why="Ids from one provider are often too long for another, or contain characters that it refuses. Some services "
        "refuse their own ids. Dialects map such ids in the call and its result, and map them back when reading.",
        hint="Let the dialect rewrite the messages: it maps the id in the call and in the result.",
        find=_call_ids,
        mend=_release,
        targets=("openai-chat", "openai-responses", "anthropic-messages"),
        is_eased=True,
    ),
    CheckRule(
        code="AP202",
        title="an option has a name that the target refuses",
        why="Names are checked in the history as well as where tools are declared.",
        hint="Let the dialect rewrite the message, which maps the name, or rename the option.",
        find=_option_names,
        mend=_release,
        targets=("openai-chat", "openai-responses", "anthropic-messages", "gemini"),
        is_eased=True,
    ),
    CheckRule(
        code="AP203",
        title="a tool has a name that the target refuses",
        why="A tool that cannot be declared cannot be called.",
        hint="Nothing to do: the dialect maps the name. You can also rename the tool.",
        find=_tools,
        severity="warning",
        targets=("openai-chat", "openai-responses", "anthropic-messages", "gemini"),
    ),
    CheckRule(
        code="AP204",
        title="a participant has a name that the target refuses",
        why="The `name` of a participant allows the same characters as a function name. Newer endpoints accept more.",
        hint="Let the dialect rewrite the message, which maps the name.",
        find=_speakers,
        mend=_release,
        targets=("openai-chat",),
        is_eased=True,
    ),
    CheckRule(
        code="AP205",
        title="the id of an item has the wrong prefix",
        why="The prefix of an item's id names its type: `fc` for a call, `msg` for a message, `rs` for reasoning. The rule "
        "is broken when a program writes a `call_id`, or another provider's id, into `id`.",
        hint="Omit the item's id: it is optional. Omit items that need their id, such as reasoning.",
        find=_item_ids,
        mend=_forget_item_id,
        targets=("openai-responses",),
    ),
    CheckRule(
        code="AP206",
        title="two tools have the same name",
        why="A call by that name is ambiguous.",
        hint="Keep one of them.",
        find=_same_tools,
        mend=_drop_same_tools,
        targets=("openai-chat", "openai-responses", "anthropic-messages", "gemini"),
    ),
)


# ---------------------------------------------------------------- AP7xx: settings

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
        required = _chosen(view.setting(setting))
        if missing := [name for name in required if name not in declared]:
            yield Trouble(None, f"the tool {missing[0]!r} is required by the tool choice, but is not declared")


def _chosen(choice: object) -> list[str]:
    """Return the names of the tools that a request requires, in the way of its format."""
    box = box_of(choice)
    config = box_of(box.get("functionCallingConfig", box.get("function_calling_config")))
    allowed = config.get("allowedFunctionNames", config.get("allowed_function_names"))
    boxes = (box, box_of(box.get("function")), box_of(box.get("custom")))
    return [*(str(name) for name in items_of(allowed)), *(str(tool["name"]) for tool in boxes if "name" in tool)]


def _unknown_tools(view: View) -> Iterator[Trouble]:
    declared = _declared(view)
    for position in view.shown:
        for place, part in view.parts(position):
            name = _referred(own_block(part, view.accepted.name))
            if name is not None and name not in declared:
                yield Trouble(position, f"the tool {name!r} is referred to, but is not declared", related=(place,))


def _referred(block: Mapping[str, Any]) -> str | None:
    """Return the name of the tool that a block adds, removes or refers to."""
    if block.get("type") not in ("tool_reference", "tool_addition", "tool_removal"):
        return None
    name = block.get("tool_name", box_of(block.get("tool")).get("name"))
    return name if isinstance(name, str) else None


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
        mend=drop_settings("the choice is left to the model", *_CHOICES),
        targets=("openai-chat", "openai-responses", "anthropic-messages", "gemini"),
    ),
    CheckRule(
        code="AP702",
        title="the previous response id is not the id of a response",
        why="The ids of responses begin with `resp`.",
        hint="Give the id of a response, or the history itself.",
        find=_strange_responses,
        mend=drop_settings("the setting 'previous_response_id' is removed from the request", "previous_response_id"),
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
        mend=leave_out("the reference stays in the history but is not sent"),
        targets=("anthropic-messages",),
    ),
)
"""In the order of repair."""
