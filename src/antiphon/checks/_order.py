"""AP4xx: the order of speakers. The first and the last message, adjacent messages, and the position of instructions."""

from __future__ import annotations

from collections.abc import Iterator

from antiphon.checks._native import own_block, wire_value
from antiphon.checks._rule import CheckRule, Edits, Trouble
from antiphon.checks._view import View
from antiphon.checks._written import is_unsaid


def _first_words(view: View) -> Iterator[Trouble]:
    said = (position for position in view.shown if view.sides[position] != "system" and not is_unsaid(view, position))
    first = next(said, None)
    if first is not None and view.sides[first] == "assistant":
        is_taken = view.accepted.name == "anthropic-messages" or _is_answer(view, first)
        severity = "warning" if is_taken else view.severity(first)
        yield Trouble(first, "the assistant speaks first", severity)


def _is_answer(view: View, first: int) -> bool:
    """Whether the conversation is a single answer as received: it is complete, and is not sent in this form.

    With more, it is a request.
    """
    is_one = set(view.shown).issubset(view.unit_of(first)) and not view.conversation.tools
    return is_one and view.setting("shape") in ("response", "one")


def _let_user_begin(view: View, trouble: Trouble, edits: Edits) -> str:
    edits.add_placeholder(trouble.place)
    return "a user message '.' is added before it"


def _calls_after_own_words(view: View) -> Iterator[Trouble]:
    for utterance in view.utterances:
        before = _said_before(view, utterance[0])
        calls = any(view.messages[position].kind == "option_call" for position in utterance)
        if calls and before is not None and view.sides[before] == "assistant":
            problem = "a turn with calls follows another model turn"
            yield Trouble(utterance[0], problem)


def _said_before(view: View, position: int) -> int | None:
    before = view.before(position)
    while before is not None and is_unsaid(view, before):
        before = view.before(before)
    return before


def _last_words(view: View) -> Iterator[Trouble]:
    for position in view.shown[-1:]:
        if view.sides[position] == "assistant" and view.messages[position].kind == "parts":
            yield Trouble(position, "the assistant speaks last")


# ---------------------------------------------------------------- instructions


def _misplaced_instructions(view: View) -> Iterator[Trouble]:
    is_front = True
    for position in view.shown:
        if view.sides[position] != "system":
            is_front = False
        elif is_front:
            yield from _front_instructions(view, position)
        else:
            yield from _later_instructions(view, position)


def _front_instructions(view: View, position: int) -> Iterator[Trouble]:
    in_slot = wire_value(view.messages[position], view.accepted.name, "slot") is True
    if view.is_native(position) and not in_slot:
        yield Trouble(position, "instructions are the first message, not in their own field", "error")


def _later_instructions(view: View, position: int) -> Iterator[Trouble]:
    if view.accepted.system == "front" or not view.is_native(position):
        problem = "instructions come after the beginning, where only a user message may carry them"
        yield Trouble(position, problem, view.severity(position))
    elif _may_stand(view, position):
        yield Trouble(position, "instructions are among the messages, which older models refuse", "warning")
    else:
        yield Trouble(position, "instructions are neither at the end nor between a user and an assistant message")


def _may_stand(view: View, position: int) -> bool:
    """Whether instructions follow a user (or a result of the provider's own tool), and are last or precede an answer."""
    before, after = view.before(position), view.after(position)
    while before is not None and view.sides[before] == "system":
        before = view.before(before)
    while after is not None and view.sides[after] == "system":
        after = view.after(after)
    follows = before is not None and (view.sides[before] in ("user", "result") or _ends_with_server_result(view, before))
    return follows and (after is None or view.sides[after] == "assistant")


def _ends_with_server_result(view: View, position: int) -> bool:
    kinds = [str(own_block(part, view.accepted.name).get("type", "")) for _, part in view.parts(position)]
    return kinds[-1:] != [] and kinds[-1].endswith("_tool_result")


def _place_instructions(view: View, trouble: Trouble, edits: Edits) -> str:
    edits.release(trouble.place)
    return "the instructions are rewritten from the core, in an accepted position"


ORDER = (
    CheckRule(
        code="AP402",
        title="a turn with calls follows another model turn",
        why="A turn with calls must follow a user turn or the responses to earlier calls. Newer models accept other turns.",
        hint="Join the model turns, or add a user turn between them.",
        find=_calls_after_own_words,
        severity="warning",
        targets=("gemini",),
    ),
    CheckRule(
        code="AP404",
        title="instructions are in a position where they are not accepted",
        why="Instructions belong in their own field. Newer Claude models also accept them among the messages: directly "
        "after a user turn, at the end or directly before an answer.",
        hint="Move the instructions to the beginning, or directly after a user turn.",
        find=_misplaced_instructions,
        mend=_place_instructions,
        targets=("anthropic-messages", "gemini"),
        is_eased=True,
    ),
    CheckRule(
        code="AP401",
        title="the assistant speaks first",
        why="A truncated history may begin with an answer. Some hosts accept it.",
        hint="Begin with a user message.",
        find=_first_words,
        mend=_let_user_begin,
        targets=("anthropic-messages", "gemini"),
        is_eased=True,
    ),
    CheckRule(
        code="AP403",
        title="the assistant speaks last",
        why="A history that ends with an answer is complete, not broken. It cannot be sent as it is: models of the 4.6 "
        "generation and later do not continue an assistant message.",
        hint="Append the next user message before sending.",
        find=_last_words,
        severity="warning",
        targets=("anthropic-messages",),
    ),
)
"""In the order of repair."""
