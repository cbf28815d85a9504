"""AP3xx: content. Empty texts, empty messages, lists that must not be empty, incomplete arguments."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from antiphon.checks._findings import Fact, Path, own_block, said_on_wire
from antiphon.checks._rule import CheckRule, Edits, Trouble, leave_out, rewrite
from antiphon.checks._view import View, is_silent, plain_text
from antiphon.messages import ForeignPart, MediaPart, OptionCallPayload, OptionResultPayload, Part
from antiphon.messages._json_values import JsonError, parse

_LISTS: Mapping[str, frozenset[str]] = {
    "openai-chat": frozenset({"tool_calls", "content"}),
    "anthropic-messages": frozenset({"content"}),
}
"""Lists that must not be empty."""
_UNIT = 2
"""The path length to the content of a unit; a longer path leads to a block in it."""
_AS_BLOCKS = "blocks"
"""Anthropic's note that a single text was in a list of blocks, and is written in that form."""
_DATA_FIELDS = {
    "text",
    "inlinedata",
    "filedata",
    "functioncall",
    "functionresponse",
    "executablecode",
    "codeexecutionresult",
    "toolcall",
    "toolresponse",
}
"""The fields of which a part of Gemini has one, in either spelling."""
_MODIFYING_FIELDS = {"thoughtsignature", "videometadata"}
"""The fields that a part may have alone: a signature of hidden thoughts, and settings of the video before it."""


# ---------------------------------------------------------------- empty texts and empty messages


def _silent(view: View) -> Iterator[tuple[int, ...]]:
    """Return the empty messages in the target's format, each as the positions of our messages."""
    speakers = view.accepted.speaks
    for position in view.shown:
        if view.sides[position] in speakers & {"system", "user"} and is_silent(view, position):
            yield (position,)
    for utterance in view.utterances if "assistant" in speakers else ():
        may_be = not view.accepted.ends_with_assistant and utterance[-1] == view.shown[-1]
        if not may_be and all(is_silent(view, position) for position in utterance):
            yield tuple(utterance)


def _silent_messages(view: View) -> Iterator[Trouble]:
    for first, *rest in sorted(_silent(view)):
        yield Trouble(first, "the message is empty", view.severity(first, *rest), tuple(rest))


def _leave_out(view: View, trouble: Trouble, edits: Edits) -> str:
    for position in (trouble.place, *trouble.related):
        edits.leave_out(position)
    return "the message stays in the history but is not sent"


def _empty_texts(view: View) -> Iterator[Trouble]:
    silent = {position for group in _silent(view) for position in group}
    for position in view.shown:
        empty = tuple(place for place, part in view.parts(position) if plain_text(part) == "")
        is_found = (empty or _has_empty_block(view, position)) and not _is_empty_slot(view, position)
        if is_found and position not in silent:
            yield Trouble(position, "a text is empty", view.severity(position), empty)


def _is_empty_slot(view: View, position: int) -> bool:
    """Whether the conversation has only instructions that are an empty text and not a list: these are accepted."""
    notes = view.messages[position].metadata.get(view.accepted.name, {})
    return notes.get("slot") is True and _AS_BLOCKS not in notes and len(view.messages[position].parts) == 1


def _has_empty_block(view: View, position: int) -> bool:
    """Whether an empty text is written that is not one of our parts: a result as a block, or an error without a message."""
    return _is_empty_in_list(view, position) or any(_is_empty_text(*fact) for fact in _facts(view, position))


def _is_empty_in_list(view: View, position: int) -> bool:
    """Whether a result is an empty text in a list of blocks; outside of a list, it may be empty."""
    message = view.messages[position]
    if not isinstance(message.payload, OptionResultPayload) or message.payload.result != "" or message.payload.is_error:
        return False
    is_list = _AS_BLOCKS in message.metadata.get(view.accepted.name, {}) or any(view.parts(position))
    return is_list and view.is_native(position)


def _facts(view: View, position: int) -> Iterator[Fact]:
    return said_on_wire(view.messages[position], view.accepted.name)


def _is_empty_text(path: Path, value: object) -> bool:
    return path[-1:] == ("text",) and len(path) > _UNIT and value == ""


def _leave_out_texts(view: View, trouble: Trouble, edits: Edits) -> str:
    position = trouble.place
    if not trouble.related:
        return _rewrite_empty_block(view, position, edits)
    if is_silent(view, position):
        edits.leave_out(position)
    else:
        edits.leave_out_parts(position, trouble.related)
    return "the empty text stays in the history but is not sent"


def _rewrite_empty_block(view: View, position: int, edits: Edits) -> str:
    if not _is_empty_in_list(view, position):
        edits.unsay(position, _is_empty_text)
        return "the text is replaced by the dialect's text for an error without a message"
    if any(view.parts(position)):
        edits.release(position)
        return "the result is rewritten from the core, without the empty text"
    edits.forget_notes(position, _AS_BLOCKS)
    return "the result is written as an empty string, which is accepted, instead of a block"


def _blank_texts(view: View) -> Iterator[Trouble]:
    silent = {position for group in _silent(view) for position in group}
    for position in view.shown:
        is_blank = any((plain_text(part) or "").isspace() for _, part in view.parts(position))
        if is_blank and position not in silent:
            yield Trouble(position, "a text consists of white space")
    for position in view.shown[-1:]:
        text = view.messages[position].text
        if view.sides[position] == "assistant" and text[-1:].isspace() and not text.isspace():
            yield Trouble(position, "the last assistant message ends in white space")


def _nothing_said(view: View) -> Iterator[Trouble]:
    orphans = {position for position in view.pairing.orphans if not view.is_native(position)}  # dialects write none
    unheard = "system" if view.accepted.needs_message else None
    heard = (position for position in view.shown if view.sides[position] != unheard and position not in orphans)
    if not view.has_setting("prompt") and all(is_silent(view, position) for position in heard):
        yield Trouble(
            None,
            "the conversation is empty"
            if "system" not in view.sides.values()
            else "the conversation contains only instructions",
        )


def _say_something(view: View, trouble: Trouble, edits: Edits) -> str:
    edits.add_placeholder(None)
    return "a user message '.' is added"


# ---------------------------------------------------------------- data that only the wire format has


def _is_empty_list(view: View, path: Path, value: object) -> bool:
    dialect = view.accepted.name
    is_whole = dialect == "anthropic-messages" and len(path) <= _UNIT
    return value == [] and path[-1:] != () and path[-1] in _LISTS[dialect] and not is_whole


def _empty_lists(view: View) -> Iterator[Trouble]:
    silent = {position for group in _silent(view) for position in group}
    for position, message in view:
        keys = {
            str(path[-1]) for path, value in said_on_wire(message, view.accepted.name) if _is_empty_list(view, path, value)
        }
        if keys and position not in silent:
            yield Trouble(position, f"the list {min(keys)!r} is empty", view.by_host)


def _unsay_empty_list(view: View, trouble: Trouble, edits: Edits) -> str:
    edits.unsay(trouble.place, lambda path, value: _is_empty_list(view, path, value))
    return "the empty list is not written"


def _input_texts(view: View) -> Iterator[Trouble]:
    for position, message in view:
        facts = said_on_wire(message, view.accepted.name)
        is_given = any(path[-1:] == ("type",) and value == "input_text" for path, value in facts)
        if view.sides[position] == "assistant" and is_given:
            yield Trouble(position, "assistant text is written as 'input_text'")


def _untyped_parts(view: View) -> Iterator[Trouble]:
    for position in view.shown:
        untyped = tuple(place for place, part in view.parts(position) if _is_untyped(view, part))
        if untyped:
            yield Trouble(position, "a part has no type", view.by_host, untyped)


def _is_untyped(view: View, part: Part) -> bool:
    is_own = isinstance(part, ForeignPart) and part.dialect == view.accepted.name
    return is_own and not isinstance(own_block(part, view.accepted.name).get("type"), str)


def _hollow_parts(view: View) -> Iterator[Trouble]:
    for position in view.shown:
        hollow = tuple(place for place, part in view.parts(position) if _is_hollow(view, part))
        if hollow:
            yield Trouble(position, "a part holds no data", related=hollow)


def _is_hollow(view: View, part: Part) -> bool:
    is_foreign = isinstance(part, ForeignPart) and part.dialect == view.accepted.name
    fields = {key.replace("_", "").lower() for key in own_block(part, view.accepted.name)}
    return is_foreign and not (_DATA_FIELDS | _MODIFYING_FIELDS) & fields


_leave_out_parts = leave_out("it stays in the history but is not sent")


# ---------------------------------------------------------------- results and arguments


def _shown_errors(view: View) -> Iterator[Trouble]:
    for position, outcome in view.results():
        is_shown = any(isinstance(part, MediaPart | ForeignPart) for _, part in view.parts(position))
        if outcome.is_error and is_shown:
            yield Trouble(position, "an error result contains more than text", view.severity(position))


def _cut_arguments(view: View) -> Iterator[Trouble]:
    needs_object = view.target is not None and view.target.arguments == "object"
    for position, call in view.calls():
        text = call.arguments_text
        if text is None or _spells_object(call, text):
            continue
        if text.lstrip().startswith("{"):
            yield Trouble(position, f"the arguments of {call.option_name!r} are cut off or are not JSON")
        elif needs_object and text.strip():
            yield Trouble(position, f"the arguments of {call.option_name!r} are not an object")


def _spells_object(call: OptionCallPayload, text: str) -> bool:
    if call.arguments or text.strip() == "{}":
        return True
    try:
        return isinstance(parse(text.encode()), dict)
    except JsonError:
        return False


CONTENT = (
    CheckRule(
        code="AP301",
        title="a text is empty",
        why="Models often answer with a call and an empty text. Dialects omit such texts, except in messages that were read "
        "from the same format, which are written back unchanged.",
        hint="Omit the empty text.",
        find=_empty_texts,
        mend=_leave_out_texts,
        targets=("anthropic-messages",),
        is_eased=True,
    ),
    CheckRule(
        code="AP302",
        title="a message is empty",
        why="An answer that was refused or cut off before the first word leaves an empty message.",
        hint="Omit the message.",
        find=_silent_messages,
        mend=_leave_out,
        targets=("openai-chat", "anthropic-messages", "gemini"),
        is_eased=True,
    ),
    CheckRule(
        code="AP303",
        title="a text is white space, or the conversation ends in white space",
        why="Some positions accept it, others refuse it.",
        hint="Remove the white space.",
        find=_blank_texts,
        severity="warning",
        targets=("anthropic-messages",),
    ),
    CheckRule(
        code="AP304",
        title="a list must not be empty",
        why="An empty list is not the same as no list. Programs that always write `tool_calls` write it empty where nothing "
        "is called.",
        hint="Leave the key out.",
        find=_empty_lists,
        mend=_unsay_empty_list,
        targets=("openai-chat", "anthropic-messages"),
    ),
    CheckRule(
        code="AP306",
        title="an error result contains more than text",
        why="A result that is flagged as an error may contain only text.",
        hint="Move the other content after the results.",
        find=_shown_errors,
        mend=rewrite("it is rewritten from the core: the error as text, its media after the results"),
        targets=("anthropic-messages",),
        is_eased=True,
    ),
    CheckRule(
        code="AP307",
        title="assistant text is written as input",
        why="Text of the model is `output_text`, also when it is sent back.",
        hint="Write the text as `output_text`, or as a plain string.",
        find=_input_texts,
        mend=rewrite("the text is rewritten from the core"),
        targets=("openai-responses",),
    ),
    CheckRule(
        code="AP308",
        title="a part holds no data",
        why="Each part has exactly one data field: a text, a medium, a call or a response.",
        hint="Leave the part out.",
        find=_hollow_parts,
        mend=_leave_out_parts,
        targets=("gemini",),
    ),
    CheckRule(
        code="AP310",
        title="a part has no type",
        why="Every content part needs a `type`. Some formats have parts without one, and requests are assembled by hand.",
        hint="Give the part its type, such as `text`.",
        find=_untyped_parts,
        mend=_leave_out_parts,
        targets=("openai-chat",),
    ),
    CheckRule(
        code="AP309",
        title="the arguments of a call are cut off or are not JSON",
        why="A stream that ends too early leaves incomplete arguments. Formats with arguments as text accept them, though "
        "strict servers fail. For formats with arguments as an object, the dialect wraps the text in an object.",
        hint="Keep the call, and add an error result that names the problem with the arguments.",
        find=_cut_arguments,
        severity="warning",
    ),
    CheckRule(
        code="AP305",
        title="the conversation is empty",
        why="A request needs at least one message besides the instructions.",
        hint="Add a user message.",
        find=_nothing_said,
        mend=_say_something,
        targets=("openai-chat", "openai-responses", "anthropic-messages", "gemini"),
    ),
)
"""In the order of repair; an empty conversation is checked last."""
