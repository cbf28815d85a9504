"""A rule: a permanent code, a search, a fix by edits, and the known answers of providers.

Edits are collected by position and applied together. Positions are those of the checked conversation, until `conversation`
returns the new one. Edits move, add and mark whole messages. New ids are derived from content, so that the same history is
always repaired to the same bytes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property
from hashlib import sha256
from typing import Any, TypeAlias

from antiphon.checks._findings import (
    ADDED,
    LEFT_OUT,
    MENDED,
    Path,
    Severity,
    is_unit_id,
    loosened,
    marked,
    released,
    with_parts,
    without_facts,
    without_settings,
)
from antiphon.checks._targets import ANSWERS, Target
from antiphon.checks._view import PLACEHOLDER, View
from antiphon.messages import (
    RUNTIME_POLICY,
    Conversation,
    Message,
    OptionCallPayload,
    OptionResultPayload,
    PartsPayload,
    TextPart,
    Tool,
)

# ---------------------------------------------------------------- edits


class Edits:
    """Changes to one conversation, for one rule."""

    def __init__(self, view: View, code: str) -> None:
        self._view = view
        self._code = code
        self._dialect = "" if view.target is None else view.target.name
        self._now = dict[int, Message]()
        self._before = dict[int, list[Message]]()
        self._after = dict[int, list[int | Message]]()
        self._moved = set[int]()
        self._last = list[Message]()
        self.tools: tuple[Tool, ...] = view.conversation.tools
        self.metadata: Any = view.conversation.metadata

    def message(self, position: int) -> Message:
        """Return a message with the edits so far."""
        return self._now.get(position, self._view.messages[position])

    def conversation(self) -> Conversation:
        """Return the conversation with all edits."""
        messages: list[Message] = []
        for position in range(len(self._view.messages)):
            messages += self._before.get(position, ())
            if position not in self._moved:
                messages.append(self.message(position))
            messages += (self.message(added) if isinstance(added, int) else added for added in self._after.get(position, ()))
        return Conversation((*messages, *self._last), tools=self.tools, metadata=self.metadata)

    # ------------------------------------------------------------ leaving out and moving

    def leave_out(self, position: int) -> None:
        """Keep a message out of the projection."""
        self._take_from_unit(position)
        self._now[position] = marked(self.message(position), LEFT_OUT, self._code)

    def leave_out_parts(self, position: int, places: Iterable[int]) -> None:
        """Keep some parts of a message out of the projection; the whole message, if no other part remains."""
        unwanted = set(places)
        if self.message(position).kind == "parts" and all(place in unwanted for place, _ in self._view.parts(position)):
            self.leave_out(position)
            return
        self._loosen(self._view.unit_of(position), "joined", "residue")
        message = self.message(position)
        parts = tuple(
            marked(part, LEFT_OUT, self._code) if place in unwanted else part for place, part in enumerate(message.parts)
        )
        self._now[position] = with_parts(message, parts)

    def move(self, position: int, after: int) -> None:
        """Move a message after another one."""
        self._take_from_unit(position)
        self._put_into_unit(after)
        self._mended(position)
        self._moved.add(position)
        self._after.setdefault(after, []).append(position)

    # ------------------------------------------------------------ adding

    def add_placeholder(self, before: int | None) -> None:
        """Add a minimal user message; before None: at the end."""
        near = self._view.messages[-1 if before is None else before :][:1]
        message = Message(
            id=self.fresh_id("user", *(neighbour.id for neighbour in near)),
            policy=RUNTIME_POLICY,
            payload=PartsPayload(parts=(TextPart(text=PLACEHOLDER),)),
            role_hint_for_llm="user",
            thread_id=near[0].thread_id if near else None,
        )
        box = self._last if before is None else self._before.setdefault(before, [])
        box.append(marked(message, ADDED, self._code))

    def add_result(self, call: Message, option_call: OptionCallPayload, after: int) -> None:
        """Close a call with an error result of the runtime."""
        self._put_into_unit(after)
        outcome = OptionResultPayload(
            invocation_id=option_call.invocation_id,
            option_name=option_call.option_name,
            is_error=True,
            error_type="interrupted",
            error_message="The call was interrupted: no result of it was recorded.",
        )
        message = Message(
            id=self.fresh_id("result", call.id, option_call.invocation_id),
            policy=RUNTIME_POLICY,
            payload=outcome,
            role_hint_for_llm="tool",
            step_num=call.step_num,
            thread_id=call.thread_id,
            lane=call.lane,
            correlation_id=call.correlation_id,
            in_reply_to=call.id,
            parent_id=call.parent_id,
        )
        self._after.setdefault(after, []).append(marked(message, ADDED, self._code))

    # ------------------------------------------------------------ wire data, fields and ids

    def release(self, position: int) -> None:
        """Let the dialect rewrite a message from the core."""
        self.update(position, metadata=released(self.message(position).metadata, self._dialect))

    def unsay(self, position: int, is_wrong: Callable[[Path, Any], bool]) -> None:
        """Remove the residue of a message."""
        self.update(position, metadata=without_facts(self.message(position).metadata, self._dialect, is_wrong))

    def forget_notes(self, position: int, *notes: str) -> None:
        """Remove the dialect's notes on the form of a message."""
        self.update(position, metadata=loosened(self.message(position).metadata, self._dialect, notes))

    def forget_id(self, position: int) -> None:
        """Write a unit without its original id; an assistant message item has another form without an id."""
        is_words = self.message(position).kind == "parts" and self._view.sides[position] == "assistant"
        if is_words and self._view.accepted.item_ids:
            self.release(position)
        else:
            self.unsay(position, is_unit_id)

    def update(self, position: int, **fields: Any) -> None:
        """Change fields other than the content."""
        self._now[position] = self.message(position).model_copy(update=fields)
        self._mended(position)

    def tell_apart(self, position: int) -> None:
        """Give a message a new id, derived from its old id and position; units stay together."""
        old = self.message(position).id
        head = self._heads.get(position)
        new = "" if head is None else f"{self.message(head).id}#{old.rpartition('#')[2]}"
        if head is None or new in self._ids:
            new = self.fresh_id(old, str(position))
        self._ids.add(new)
        self.update(position, id=new)
        answer = self._view.pairing.answers.get(position)
        if answer is not None and self.message(answer).in_reply_to == old:
            self.update(answer, in_reply_to=new)

    def rename(self, position: int, invocation_id: str) -> None:
        """Give a call or a result another invocation id."""
        payload = self.message(position).payload.model_copy(update={"invocation_id": invocation_id})
        self.update(position, payload=payload)

    def _take_from_unit(self, position: int) -> None:
        unit = self._view.unit_of(position)
        self._loosen(unit, "joined", *(("residue",) if len(unit) > 1 else ()))

    def _put_into_unit(self, after: int) -> None:
        unit = self._view.unit_of(after)
        if unit and unit[-1] != after:
            self._loosen(unit, "joined", "residue")

    def _loosen(self, unit: Iterable[int], *notes: str) -> None:
        """Remove the notes on the form of a native unit, because its content or order changes."""
        for member in unit:
            message = self.message(member)
            if message.metadata.get(self._dialect, {}).keys() & set(notes):
                metadata = loosened(message.metadata, self._dialect, notes)
                self._now[member] = message.model_copy(update={"metadata": metadata})

    def _mended(self, position: int) -> None:
        self._now[position] = marked(self.message(position), MENDED, self._code)

    # ------------------------------------------------------------ ids

    @cached_property
    def _ids(self) -> set[str]:
        return {message.id for message in self._view.messages}

    @cached_property
    def _heads(self) -> dict[int, int]:
        """By message of a unit other than its first, the first message: the ids of the others are its id and a number."""
        heads: dict[int, int] = {}
        last: dict[str, int] = {}
        for position, message in enumerate(self._view.messages):
            stem, mark, _ = message.id.rpartition("#")
            if mark and stem in last:
                heads[position] = last[stem]
            last[message.id] = position
        return heads

    @cached_property
    def _invocations(self) -> set[str | None]:
        return {message.invocation_id for message in self._view.messages}

    def fresh_id(self, *content: str) -> str:
        """Return an unused message id, derived from the given content."""
        return _fresh("ap", self._ids, self._code, *content)

    def fresh_invocation(self, *content: str) -> str:
        """Return an unused invocation id that every target accepts, derived from the given content."""
        return _fresh("call", self._invocations, self._code, *content)


def _fresh(prefix: str, taken: set[Any], *content: str) -> str:
    attempt = 0
    while True:
        text = "\x00".join((*content, str(attempt)))
        name = f"{prefix}_{sha256(text.encode()).hexdigest()[:24]}"
        if name not in taken:
            taken.add(name)
            return name
        attempt += 1


# ---------------------------------------------------------------- rules


@dataclass(frozen=True, slots=True)
class Trouble:
    """One violation of a rule."""

    position: int | None
    """The message; None for the conversation as a whole."""
    problem: str
    """The problem, in a phrase that names the object."""
    severity: Severity | None = None
    """The severity here; None: that of the rule."""
    related: tuple[int, ...] = ()
    """Other positions, or indexes of parts, that the fix needs."""

    @property
    def place(self) -> int:
        """The position, for the fix of a problem of one message."""
        if self.position is None:
            raise RuntimeError("this trouble is not about a message")
        return self.position


Mend: TypeAlias = Callable[[View, Trouble, Edits], str]
"""Fix one violation, and return a description of the change."""


def leave_out(change: str) -> Mend:
    """Return a fix that keeps the related parts of a message out of the projection, or the message if there are none."""

    def mend(view: View, trouble: Trouble, edits: Edits) -> str:
        if trouble.related:
            edits.leave_out_parts(trouble.place, trouble.related)
        else:
            edits.leave_out(trouble.place)
        return change

    return mend


def rewrite(change: str) -> Mend:
    """Return a fix that lets the dialect write a message from the core, not as it was read."""

    def mend(view: View, trouble: Trouble, edits: Edits) -> str:
        edits.release(trouble.place)
        return change

    return mend


def drop_settings(change: str, *keys: str) -> Mend:
    """Return a fix that removes settings from the request."""

    def mend(view: View, trouble: Trouble, edits: Edits) -> str:
        edits.metadata = without_settings(edits.metadata, view.accepted.name, frozenset(keys))
        return change

    return mend


@dataclass(frozen=True, slots=True)
class CheckRule:
    """A rule: something that a target refuses."""

    code: str
    title: str
    """The trouble, in a phrase."""
    why: str
    """The cause, for the page of the rule."""
    hint: str
    """How to fix it: a sentence."""
    find: Callable[[View], Iterable[Trouble]]
    mend: Mend | None = None
    """None for warnings that only a person can decide."""
    severity: Severity = "error"
    """The highest severity."""
    targets: tuple[str, ...] = ()
    """The targets that refuse it; empty: all do, so the rule also runs without a target."""
    is_eased: bool = False
    """Whether it is only a warning in messages that the dialect writes from the core."""

    @property
    def answers(self) -> Mapping[str, str]:
        """The known answers of targets, word for word."""
        return ANSWERS.get(self.code, {})

    def applies(self, target: Target | None) -> bool:
        """Whether the rule applies."""
        return not self.targets or (target is not None and target.name in self.targets)
