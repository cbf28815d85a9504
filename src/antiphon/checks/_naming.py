"""AP2xx: ids and names. A dialect maps names that its format refuses; a native message is written unchanged, and refused."""

from __future__ import annotations

from collections.abc import Iterator

from antiphon.checks._native import wire_value
from antiphon.checks._rule import CheckRule, Edits, Trouble
from antiphon.checks._targets import Spelling
from antiphon.checks._view import View
from antiphon.checks._written import items_with_ids
from antiphon.messages import OptionCallPayload, OptionResultPayload

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
    for position in (trouble.place, *trouble.about):
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
    if trouble.about:
        edits.leave_out_parts(trouble.place, trouble.about)
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
