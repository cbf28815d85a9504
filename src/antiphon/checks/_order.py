"""AP1xx and AP4xx: the order of messages.

- AP1xx: calls and results. Each call has one result, each result a call, and results are where the target expects them.
- AP4xx: speakers. The first and the last message, adjacent messages, and the position of instructions.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, cast

from antiphon.checks._findings import ABSENT, Severity, box_of, own_block, setting_of, unit_id, wire_value
from antiphon.checks._rule import CheckRule, Edits, Trouble, leave_out, rewrite
from antiphon.checks._targets import TARGETS
from antiphon.checks._view import ResponsesItem, View, is_unsaid, items_with_ids
from antiphon.messages import ForeignPart, OptionCallPayload

# ---------------------------------------------------------------- AP1xx: calls and results


def _severity(view: View, position: int) -> Severity:
    """Return the severity of a missing half of a pair: in the protocol of actors, it may be pending, or elsewhere."""
    return "warning" if view.messages[position].lane == "control" else "error"


# ---------------------------------------------------------------- calls without results, and results without calls


def _open_calls(view: View) -> Iterator[Trouble]:
    for position in view.pairing.open:
        call = cast("OptionCallPayload", view.messages[position].payload)
        problem = f"the call {call.invocation_id!r} of {call.option_name!r} has no result"
        yield Trouble(position, problem, _severity(view, position))


def _close(view: View, trouble: Trouble, edits: Edits) -> str:
    position = trouble.place
    call = view.messages[position]
    end = view.end_of_results(view.utterance_of[position])
    edits.add_result(call, cast("OptionCallPayload", call.payload), end)
    return "an error result of type 'interrupted' is added by the runtime"


def _orphans(view: View) -> Iterator[Trouble]:
    # Settings that refer to a history which the service stores: the target's, or, without a target, those of all.
    targets = TARGETS.values() if view.target is None else (view.target,)
    settings = ((target.name, key) for target in targets for key in target.continues)
    is_continued = any(setting_of(view.conversation, *setting) not in (ABSENT, None) for setting in settings)
    served = {box.get("call_id") for position, _ in view for box in _native_calls(view, position)}
    for position in view.pairing.orphans:
        if view.messages[position].invocation_id in served:
            continue
        problem = f"the result of {view.messages[position].invocation_id!r} has no call before it"
        yield Trouble(position, problem, "warning" if is_continued else _severity(view, position))


def _native_calls(view: View, position: int) -> Iterator[Mapping[str, Any]]:
    """Return the calls of the service's own tools that the caller may also answer, such as a tool search."""
    for _, part in view.parts(position):
        if isinstance(part, ForeignPart) and str((box := box_of(part.value)).get("type", "")).endswith("_call"):
            yield box


_leave_out = leave_out("the message stays in the history but is not sent")


def _repeated(view: View) -> Iterator[Trouble]:
    for position, _ in view.pairing.repeated:
        problem = f"the call {view.messages[position].invocation_id!r} already has a result"
        yield Trouble(position, problem, _severity(view, position))


# ---------------------------------------------------------------- pairs in the wrong order


def _early_results(view: View) -> Iterator[Trouble]:
    for position, call in view.pairing.early.items():
        problem = f"the result of {view.messages[position].invocation_id!r} comes before its call"
        yield Trouble(position, problem, related=(call,))


def _move_behind_call(view: View, trouble: Trouble, edits: Edits) -> str:
    edits.move(trouble.place, view.end_of_results(view.utterance_of[trouble.related[0]]))
    return "the result is moved after its call"


def _distant_results(view: View) -> Iterator[Trouble]:
    for utterance in view.utterances:
        expected = {answer for call in utterance if (answer := view.pairing.answers.get(call)) is not None}
        for position in sorted(expected.difference(view.adjacent_results(utterance))):
            problem = f"the result of {view.messages[position].invocation_id!r} does not directly follow the turn of its call"
            yield Trouble(position, problem, related=(utterance[-1],))


def _split_results(view: View) -> Iterator[Trouble]:
    for utterance in view.utterances:
        results = list(view.adjacent_results(utterance))
        for position in results[1:]:
            if view.was_apart(position):
                problem = "the results of one turn are split across several messages"
                yield Trouble(position, problem)


# ---------------------------------------------------------------- ids


def _repeated_ids(view: View) -> Iterator[Trouble]:
    messages: dict[str, int] = {}
    items: dict[str, int] = {}
    for position, message in view:
        again: list[ResponsesItem] = []
        for item in items_with_ids(view, position):
            again += [item] if item.id in items else []
            items.setdefault(item.id, position)
        places = tuple(place for item in again for place in item.places)
        if message.id in messages:
            yield Trouble(position, f"two messages have the id {message.id!r}", view.by_host, (messages[message.id], *places))
        elif again:
            yield Trouble(position, f"two items have the id {again[0].id!r}", view.by_host, (items[again[0].id], *places))
        messages.setdefault(message.id, position)


def _tell_apart(view: View, trouble: Trouble, edits: Edits) -> str:
    position, (first, *places) = trouble.place, trouble.related
    message = view.messages[position]
    if first != position and view.messages[first].id == message.id:
        edits.tell_apart(position)
    if _is_twin(view, position):
        edits.leave_out(position)
        return "it repeats the earlier message: it stays in the history under a new id, but is not sent"
    if places:
        edits.leave_out_parts(position, places)
        return "it stays in the history under a new id, but is not sent, because its content contains the old id"
    if unit_id(message, "" if view.target is None else view.target.name) is not None:
        edits.forget_id(position)
    return "the later message gets a new id"


def _is_twin(view: View, position: int) -> bool:
    """Whether a message occurs twice in a row, and the second is not needed to complete a pair."""
    pairing, before = view.pairing, view.before(position)
    is_paired = position in pairing.answers or position in pairing.calls or position in pairing.early
    if before is None or is_paired or position in pairing.early.values():
        return False
    message = view.messages[position]
    return view.messages[before].model_copy(update={"metadata": message.metadata}) == message


def _colliding_calls(view: View) -> Iterator[Trouble]:
    reuses = view.target is None or view.target.reuses_ids
    last: dict[str, int] = {}
    for position, call in view.calls():
        before = last.get(call.invocation_id)
        last[call.invocation_id] = position
        if before is None:
            continue
        if view.utterance_of[before] is view.utterance_of[position]:
            yield Trouble(position, f"two calls of one turn have the id {call.invocation_id!r}", "error")
        else:
            problem = f"the call id {call.invocation_id!r} was used by an earlier call"
            yield Trouble(position, problem, "warning" if reuses else "error")


def _rename_pair(view: View, trouble: Trouble, edits: Edits) -> str:
    position = trouble.place
    call = view.messages[position]
    invocation = edits.fresh_invocation(str(call.invocation_id), call.id)
    edits.rename(position, invocation)
    if (answer := view.pairing.answers.get(position)) is not None:
        edits.rename(answer, invocation)
    return f"the later call and its result get the id {invocation!r}"


def _other_options(view: View) -> Iterator[Trouble]:
    for position, outcome in view.results():
        call = view.pairing.calls.get(position)
        called = None if call is None else cast("OptionCallPayload", view.messages[call].payload).option_name
        if called not in (None, outcome.option_name):
            yield Trouble(position, f"the result names {outcome.option_name!r}, but {called!r} was called")


# ---------------------------------------------------------------- tools that the provider runs


def _server_orphans(view: View) -> Iterator[Trouble]:
    called: set[object] = set()
    for position, _ in view:
        for place, part in view.parts(position):
            block = own_block(part, view.accepted.name)
            kind = str(block.get("type", ""))
            if kind.endswith("tool_use"):
                called.add(block.get("id"))
            elif kind.endswith("_tool_result") and block.get("tool_use_id") not in called:
                problem = f"the {kind} of {block.get('tool_use_id')!r} has no call before it"
                yield Trouble(position, problem, related=(place,))


PAIRING = (
    CheckRule(
        code="AP108",
        title="two messages have the same id",
        why="An id identifies one message of a thread. Replies, ledgers and item references rely on it. If a format has no "
        "ids, antiphon derives them from position and content, so equal answers that were read separately get the same id.",
        hint="Give the later message a new id, or remove it if it is a duplicate.",
        find=_repeated_ids,
        mend=_tell_apart,
    ),
    CheckRule(
        code="AP104",
        title="a call has a second result",
        why="A call has exactly one result. The model has seen the first one, so later ones are not sent.",
        hint="Keep the first result.",
        find=_repeated,
        mend=_leave_out,
    ),
    CheckRule(
        code="AP102",
        title="a result has no call",
        why="This happens when a history is cut between a call and its result, or when a summary replaces the call.",
        hint="Restore the call, or do not send the result.",
        find=_orphans,
        mend=_leave_out,
    ),
    CheckRule(
        code="AP103",
        title="a result comes before its call",
        why="This happens when a program records a call only after it has finished, or does not sort the history by time.",
        hint="Move the result directly after the turn of its call.",
        find=_early_results,
        mend=_move_behind_call,
    ),
    CheckRule(
        code="AP101",
        title="a call has no result",
        why="This happens when a run is cancelled, a process dies or a tool raises an exception. Every later request with "
        "this history is refused.",
        hint="Add a result. If the result is unknown, add an error that says so.",
        find=_open_calls,
        mend=_close,
    ),
    CheckRule(
        code="AP105",
        title="two calls have the same id",
        why="Some servers number the calls of each turn from zero. Within one turn such calls cannot be told apart. Across "
        "turns, some providers refuse them, and others run a tool once although it was called twice.",
        hint="Give the later call and its result a new id.",
        find=_colliding_calls,
        mend=_rename_pair,
    ),
    CheckRule(
        code="AP107",
        title="the result of a provider's own tool has no call",
        why="Results of tools that the provider runs belong in the assistant's turn, after the block of the call.",
        hint="Restore the call, or do not send the result.",
        find=_server_orphans,
        mend=leave_out("the part stays in the history but is not sent"),
        targets=("anthropic-messages",),
    ),
    CheckRule(
        code="AP106",
        title="a result does not directly follow the turn of its call",
        why="These formats require the results of a turn in the very next message.",
        hint="Move the results of a turn directly after it, before any other message.",
        find=_distant_results,
        mend=_move_behind_call,
        targets=("openai-chat", "anthropic-messages", "gemini"),
    ),
    CheckRule(
        code="AP109",
        title="the results of one turn are split across several messages",
        why="All responses to the calls of one turn must be parts of one content. Newer models accept several contents.",
        hint="Write the results of one turn as one content.",
        find=_split_results,
        severity="warning",
        targets=("gemini",),
    ),
    CheckRule(
        code="AP110",
        title="a result names another option than its call",
        why="A result names the option that ran. A reader that pairs by name does not find the call, and a ledger refuses "
        "the result.",
        hint="Name the option that was called.",
        find=_other_options,
        severity="warning",
    ),
)
"""In the order of repair."""


# ---------------------------------------------------------------- AP4xx: speakers


def _first_words(view: View) -> Iterator[Trouble]:
    spoken = (position for position in view.shown if view.sides[position] != "system" and not is_unsaid(view, position))
    first = next(spoken, None)
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
        before = view.before(utterance[0])
        while before is not None and is_unsaid(view, before):
            before = view.before(before)
        calls = any(view.messages[position].kind == "option_call" for position in utterance)
        if calls and before is not None and view.sides[before] == "assistant":
            problem = "a turn with calls follows another model turn"
            yield Trouble(utterance[0], problem)


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
            in_slot = wire_value(view.messages[position], view.accepted.name, "slot") is True
            if view.is_native(position) and not in_slot:
                yield Trouble(position, "instructions are the first message, not in their own field", "error")
        else:
            yield from _later_instructions(view, position)


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
        mend=rewrite("the instructions are rewritten from the core, in an accepted position"),
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
