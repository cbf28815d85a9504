"""AP5xx: reasoning and signatures. Providers require theirs unchanged, at the same position, with the output it led to."""

from __future__ import annotations

import re
from collections.abc import Iterator

from antiphon.checks._findings import (
    ABSENT,
    DROPPED,
    Path,
    Severity,
    box_of,
    is_marked,
    is_own,
    items_of,
    mentions,
    own_block,
    said_on_wire,
    unit_id,
    wire_value,
)
from antiphon.checks._rule import CheckRule, Edits, Trouble, drop_settings, leave_out, rewrite
from antiphon.checks._view import View, items_with_ids
from antiphon.messages import Message, ReasoningPart

_SIGNATURE = "thoughtSignature"
_WITH_SIGNATURES = re.compile(r"gemini-(?:[3-9]|\d\d)")
"""Models that require their signatures back."""
_REASONING_ID = "rs_"
"""The prefix of the ids of reasoning items."""


def _reasons(view: View, position: int) -> list[tuple[int, ReasoningPart]]:
    return [(place, part) for place, part in view.parts(position) if isinstance(part, ReasoningPart)]


def _is_only_reasoning(view: View, position: int) -> bool:
    parts = list(view.parts(position))
    return bool(parts) and len(_reasons(view, position)) == len(parts)


_leave_out = leave_out("it stays in the history but is not sent")


# ---------------------------------------------------------------- items that need each other


def _own_items(view: View) -> Iterator[int]:
    return (position for position in view.shown if view.sides[position] == "assistant" and view.is_native(position))


def _lonely_reasoning(view: View) -> Iterator[Trouble]:
    for position in _own_items(view):
        after = view.after(position)
        is_followed = after is not None and view.sides[after] == "assistant" and _is_its_item(view, after)
        if _is_only_reasoning(view, position) and not is_followed:
            yield Trouble(position, "the reasoning item is not followed by its message or call", view.by_host)


def _is_its_item(view: View, position: int) -> bool:
    """Whether an item may be the output of a stored reasoning: the service knows a message only by its id."""
    is_known = view.messages[position].kind != "parts" or any(items_with_ids(view, position))
    return view.is_native(position) and (is_known or view.setting("store") is False)


def _unreasoned_items(view: View) -> Iterator[Trouble]:
    sent = {view.messages[position].id for position in view.shown}
    for position in _own_items(view):
        message = view.messages[position]
        missing = [needed for needed in _needs(view, message) if needed not in sent]
        if missing and unit_id(message, view.accepted.name) is not None:
            yield Trouble(position, f"the item belongs to reasoning {missing[0]!r}, which is missing")


def _needs(view: View, message: Message) -> list[str]:
    """Return the ids of the reasoning that led to an item: as noted, or from the turn's id, which names its first item."""
    noted = wire_value(message, view.accepted.name, "needs")
    if noted is not ABSENT:
        return [str(item_id) for item_id in items_of(noted)]
    turn = message.turn_id or ""
    return [turn] if turn.startswith(_REASONING_ID) else []


def _forget_item_id(view: View, trouble: Trouble, edits: Edits) -> str:
    edits.forget_id(trouble.place)
    return "the item's id is not written, so that the service treats it as plain history"


def _is_missing_summary(path: Path, value: object) -> bool:
    return path[-1:] == ("summary",) and value is DROPPED


def _bare_reasoning(view: View) -> Iterator[Trouble]:
    for position, message in view:
        if any(_is_missing_summary(*fact) for fact in said_on_wire(message, view.accepted.name)):
            yield Trouble(position, "the reasoning has no summary, not even an empty one")


def _add_summary(view: View, trouble: Trouble, edits: Edits) -> str:
    edits.unsay(trouble.place, _is_missing_summary)
    return "the summary is written"


def _unstored_items(view: View) -> Iterator[Trouble]:
    if view.setting("store") is not False:
        return
    for position in view.shown:
        blocks = ((place, own_block(part, view.accepted.name)) for place, part in view.parts(position))
        references = tuple(place for place, block in blocks if block.get("type") == "item_reference")
        if references:
            yield Trouble(position, "an item refers to a stored item, but nothing is stored", related=references)
    for position in _own_items(view):
        is_bare = all(part.encrypted_content is None for _, part in _reasons(view, position))
        if is_bare and _is_only_reasoning(view, position):
            yield Trouble(position, "the reasoning consists of an id only, and nothing is stored")


# ---------------------------------------------------------------- signatures


def _foreign_proofs(view: View) -> Iterator[Trouble]:
    for position in view.shown:
        message = view.messages[position]
        proofs = [part for _, part in _reasons(view, position) if part.signature or part.encrypted_content]
        if not all(is_own(part, message, view.accepted.name) for part in proofs):
            yield Trouble(position, "the reasoning is signed by another provider; it is not sent")


def _unsigned_thinking(view: View) -> Iterator[Trouble]:
    for position in _own_items(view):
        bare = tuple(place for place, part in _reasons(view, position) if not part.signature and not part.encrypted_content)
        if bare:
            yield Trouble(position, "the thinking has no signature", related=bare)


def _thoughtless_calls(view: View) -> Iterator[Trouble]:
    """With manual thinking, the turn that the current results answer must start with its thinking."""
    if box_of(view.setting("thinking")).get("type") != "enabled" or not view.utterances:
        return
    utterance = view.utterances[-1]
    is_loop = view.sides[view.shown[-1]] == "result" and view.end_of_results(utterance) == view.shown[-1]
    first = next((part for _, part in view.parts(utterance[0])), None)
    if is_loop and not (isinstance(first, ReasoningPart) and view.is_native(utterance[0])):
        yield Trouble(utterance[0], "thinking is enabled, but the turn with calls does not begin with a thinking block")


def _unsigned_calls(view: View) -> Iterator[Trouble]:
    """Check the calls of the current turn: all since the last message of the user."""
    model = view.setting("model")
    severity: Severity = "error" if isinstance(model, str) and _WITH_SIGNATURES.search(model) else "warning"
    since = max((position for position in view.shown if view.sides[position] == "user"), default=-1)
    for utterance in view.utterances:
        call = next((position for position in utterance if view.messages[position].kind == "option_call"), None)
        if call is None or call < since or not view.is_native(call):
            continue
        if not any(_is_signed(view, view.messages[position]) for position in utterance):
            yield Trouble(call, "the first call of the turn has no thought signature", severity)


def _is_signed(view: View, message: Message) -> bool:
    notes = [holder.metadata.get(view.accepted.name) for holder in (message, *message.parts)]
    return any(mentions(namespace, _SIGNATURE) for namespace in notes) or any(
        isinstance(part, ReasoningPart) and part.signature for part in message.parts
    )


def _unbound_thinking(view: View) -> Iterator[Trouble]:
    """Find signed thinking after a repaired message: the signature covers everything before it."""
    is_mended = False
    for position, message in enumerate(view.messages):
        is_mended = is_mended or is_marked(message)
        is_shown = is_mended and position in view.place and view.is_native(position)
        if is_shown and any(part.signature for _, part in _reasons(view, position)):
            yield Trouble(position, "signed thinking follows a repaired message")


PROOFS = (
    CheckRule(
        code="AP505",
        title="an item refers to one that is not stored",
        why="With `store: false` the service does not know any ids. Reasoning must include its encrypted content.",
        hint="Request `reasoning.encrypted_content`, or do not send items that consist of an id only.",
        find=_unstored_items,
        mend=_leave_out,
        targets=("openai-responses",),
    ),
    CheckRule(
        code="AP501",
        title="a reasoning item is not followed by its message or call",
        why="A reasoning item must be followed by the message or call that it led to. A history that is cut between them "
        "breaks this pair.",
        hint="Leave the reasoning out.",
        find=_lonely_reasoning,
        mend=_leave_out,
        targets=("openai-responses",),
    ),
    CheckRule(
        code="AP502",
        title="an item is sent without its reasoning",
        why="The service recognises its own items by their ids, and requires the reasoning that led to them.",
        hint="Omit the item's id, so that the service treats it as plain history.",
        find=_unreasoned_items,
        mend=_forget_item_id,
        targets=("openai-responses",),
    ),
    CheckRule(
        code="AP503",
        title="a reasoning item has no summary",
        why="The list `summary` is required; it may be empty.",
        hint="Write an empty summary.",
        find=_bare_reasoning,
        mend=_add_summary,
        targets=("openai-responses",),
    ),
    CheckRule(
        code="AP504",
        title="reasoning is signed by another provider",
        why="Only the provider that made a signature or encrypted content can read it. Dialects do not send it, or the "
        "reasoning that it belongs to, to another provider.",
        hint="Nothing to do: the reasoning stays in the history.",
        find=_foreign_proofs,
        severity="warning",
        targets=("openai-responses", "anthropic-messages", "gemini"),
    ),
    CheckRule(
        code="AP506",
        title="thinking is enabled, but a turn with calls has none",
        why="With manual thinking, a turn whose results are being sent must begin with the thinking that led to the calls. "
        "A history from another provider has none.",
        hint="Send this request without `thinking`; the next turn may think again.",
        find=_thoughtless_calls,
        mend=drop_settings("the setting 'thinking' is removed from the request", "thinking"),
        targets=("anthropic-messages",),
    ),
    CheckRule(
        code="AP507",
        title="thinking has no signature",
        why="Thinking that the provider did not write, or that lost its signature, fails verification.",
        hint="Leave the thinking out.",
        find=_unsigned_thinking,
        mend=_leave_out,
        targets=("anthropic-messages",),
    ),
    CheckRule(
        code="AP508",
        title="a call of the current turn has no thought signature",
        why="Gemini 3 and later require the signature of the first call of each step since the last user message. It is a "
        "warning if the request does not name such a model.",
        hint="Let the dialect rewrite the call: it adds the documented placeholder.",
        find=_unsigned_calls,
        mend=rewrite("it is rewritten from the core"),
        targets=("gemini",),
    ),
    CheckRule(
        code="AP509",
        title="signed thinking follows a repaired message",
        why="On the newest models a signature covers everything before it. If that part of the history was changed, the "
        "request is refused or the thinking is dropped, depending on a setting of the request.",
        hint="Set `thinking.block_binding.prefix_mismatch_behavior` to `drop_block`, or leave the thinking out.",
        find=_unbound_thinking,
        severity="warning",
        targets=("anthropic-messages",),
    ),
)
"""In the order of repair."""
