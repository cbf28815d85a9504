"""What a rule is: a code for ever, what to look for, how to mend it by edits, and what providers are known to answer.

Edits are collected by position and carried out together. Positions are those of the conversation that was looked at, until
`conversation` returns the new one. Whole messages are moved, added and marked; ids that must be new are made from the content
of what they are for, so that the same history is always mended to the same bytes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from hashlib import sha256
from typing import Any

from antiphon.checks._findings import ADDED, LEFT_OUT, MENDED, Severity, marked, with_parts
from antiphon.checks._native import Path, is_unit_id, loosened, released, without_facts
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
        """Return a message as it is by now."""
        return self._now.get(position, self._view.messages[position])

    def conversation(self) -> Conversation:
        """Carry everything out."""
        return Conversation(self._messages(), tools=self.tools, metadata=self.metadata)

    def _messages(self) -> Iterator[Message]:
        for position in range(len(self._view.messages)):
            yield from self._before.get(position, ())
            if position not in self._moved:
                yield self.message(position)
            for each in self._after.get(position, ()):
                yield self.message(each) if isinstance(each, int) else each
        yield from self._last

    # ------------------------------------------------------------ what was said stays

    def leave_out(self, position: int) -> None:
        """Keep a message out of the projection."""
        self._take_from_unit(position)
        self._now[position] = marked(self.message(position), LEFT_OUT, self._code)

    def leave_out_parts(self, position: int, places: Iterable[int]) -> None:
        """Keep some parts of a message out of the projection; of words, all of it where nothing else is said."""
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
        """Put a message behind another that stays where it is."""
        self._take_from_unit(position)
        self._put_into_unit(after)
        self._mended(position)
        self._moved.add(position)
        self._after.setdefault(after, []).append(position)

    # ------------------------------------------------------------ what was never said is added

    def add_placeholder(self, before: int | None) -> None:
        """Let the user say the least that can be said; before None: at the end."""
        near = self._view.messages[-1 if before is None else before :][:1]
        message = Message(
            id=self.fresh_id("user", *(each.id for each in near)),
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

    # ------------------------------------------------------------ what only the wire knows is changed

    def release(self, position: int) -> None:
        """Have a message written from the core, not as it was."""
        self.update(position, metadata=released(self.message(position).metadata, self._dialect))

    def unsay(self, position: int, is_wrong: Callable[[Path, Any], bool]) -> None:
        """Take back what the wire said beyond what would be written."""
        self.update(position, metadata=without_facts(self.message(position).metadata, self._dialect, is_wrong))

    def forget_notes(self, position: int, *notes: str) -> None:
        """Take back what the dialect noted about the form of a message."""
        self.update(position, metadata=loosened(self.message(position).metadata, self._dialect, notes))

    def forget_id(self, position: int) -> None:
        """Have a unit written without the id that it came with; an item of the assistant's words has another form without."""
        is_words = self.message(position).kind == "parts" and self._view.sides[position] == "assistant"
        if is_words and self._view.accepted.item_ids:
            self.release(position)
        else:
            self.unsay(position, is_unit_id)

    def update(self, position: int, **fields: Any) -> None:
        """Change fields that are not what was said."""
        self._now[position] = self.message(position).model_copy(update=fields)
        self._mended(position)

    def tell_apart(self, position: int) -> None:
        """Give a message an id of its own, made from the one it had and its place; what was one unit still is."""
        old = self.message(position).id
        head = self._heads.get(position)
        made = "" if head is None else f"{self.message(head).id}#{old.rpartition('#')[2]}"
        if head is None or made in self._ids:
            made = self.fresh_id(old, str(position))
        self._ids.add(made)
        self.update(position, id=made)
        answer = self._view.pairing.answers.get(position)
        if answer is not None and self.message(answer).in_reply_to == old:
            self.update(answer, in_reply_to=made)

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
        """Forget how a native unit was written, since it will hold more, or less, or in another order."""
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
        """The message that a unit begins with, for each of its others: these are called by its id and a number."""
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

    def fresh_id(self, *about: str) -> str:
        """Return a message id that nothing else has, made from what it is about."""
        return _fresh("ap", self._ids, self._code, *about)

    def fresh_invocation(self, *about: str) -> str:
        """Return an invocation id that nothing else has and every target takes, made from what it is about."""
        return _fresh("call", self._invocations, self._code, *about)


def _fresh(prefix: str, taken: set[Any], *about: str) -> str:
    attempt = 0
    while True:
        content = "\x00".join((*about, str(attempt)))
        made = f"{prefix}_{sha256(content.encode()).hexdigest()[:24]}"
        if made not in taken:
            taken.add(made)
            return made
        attempt += 1


# ---------------------------------------------------------------- rules


@dataclass(frozen=True, slots=True)
class Trouble:
    """One place where a rule is broken."""

    position: int | None
    """The message; None for the conversation as a whole."""
    problem: str
    """What is wrong, in a phrase that names the thing."""
    severity: Severity | None = None
    """How bad it is here; None: as the rule says."""
    about: tuple[int, ...] = ()
    """Other positions, or places of parts, that the mending needs."""

    @property
    def place(self) -> int:
        """The position, for the mending of what is about a message.

        Raises:
            RuntimeError: it is about the conversation as a whole.
        """
        if self.position is None:
            raise RuntimeError("this trouble is not about a message")
        return self.position


@dataclass(frozen=True, slots=True)
class CheckRule:
    """Something that a target refuses."""

    code: str
    title: str
    """The trouble, in a phrase."""
    why: str
    """What is behind it, for the page of the rule."""
    hint: str
    """How to mend it: a sentence."""
    find: Callable[[View], Iterable[Trouble]]
    mend: Callable[[View, Trouble, Edits], str] | None = None
    """Mend one trouble and say what was done; None for what only a person can decide, which is never an error."""
    severity: Severity = "error"
    """As bad as it gets."""
    targets: tuple[str, ...] = ()
    """The targets that refuse it; empty: all do, so it is also looked for without a target."""
    is_eased: bool = False
    """Whether it is only a warning in what the dialect writes itself, and not as it was."""

    @property
    def answers(self) -> Mapping[str, str]:
        """What targets are known to say, in their own words."""
        return ANSWERS.get(self.code, {})

    def applies(self, target: Target | None) -> bool:
        """Whether the rule is to be looked for."""
        return not self.targets or (target is not None and target.name in self.targets)
