"""A conversation as a target sees it: roles, utterances, pairs of calls and results, and what the dialect writes of it.

A `View` is built once and shared by all rules; each part is computed on first use, in one pass. Everything is by position in
the conversation. Omitted messages and the journal are not visible; for a provider, control messages are not either.

Rules and dialects must agree on roles (`usual_role`) and utterances (`same_utterance`), so both use these functions.

**Empty messages.** A dialect writes its own messages back unchanged, including empty texts. From other messages it omits
blank texts, reasoning and foreign parts of other providers. The rules must do the same, or a request that looks valid is sent
with an empty message.

**Items** of OpenAI Responses: each message is one or more items, and the service recognizes its own by their ids. The id of a
call, a result or a message is separate from its content, and may be left out. Reasoning, and the work of the service's own
tools, is identified only by its id, which is part of the content.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Literal, TypeAlias

from antiphon.checks._findings import ABSENT, Severity, is_left_out, is_native, is_own, own_block, setting_of, unit_id
from antiphon.checks._targets import Place, Target
from antiphon.messages import (
    Conversation,
    DataPart,
    ForeignPart,
    MediaPart,
    Message,
    OptionCallPayload,
    OptionResultPayload,
    Part,
    ReasoningPart,
    TextPart,
)

# ---------------------------------------------------------------- roles and utterances

Role: TypeAlias = Literal["system", "user", "assistant"]

PLACEHOLDER = "."
"""The minimal user text, where a user message is required: providers that refuse an empty text accept it."""

_TALKING: dict[str | None, Role] = {"system": "system", "user": "user", "assistant": "assistant"}


def usual_role(message: Message) -> Role:
    """Return the role of a message: the role hint decides, then the policy; agents are assistants."""
    fields = message.__dict__  # `__dict__`, as in `same_utterance`: faster, and dialects call this for every message
    return _TALKING.get(fields["role_hint_for_llm"]) or _TALKING.get(fields["policy"], "assistant")


def same_utterance(one: Message, other: Message) -> bool:
    """Whether two adjacent messages belong to one utterance: the same turn, or calls with nothing between them."""
    fields, neighbour = one.__dict__, other.__dict__
    turn = fields["turn_id"]
    return (
        turn == neighbour["turn_id"]
        and fields["policy"] == neighbour["policy"]
        and (turn is not None or type(fields["payload"]) is type(neighbour["payload"]) is OptionCallPayload)
    )


# ---------------------------------------------------------------- the view


def _side_of(message: Message) -> Place:
    """Return the role of a message in its position: a caller is an assistant."""
    if message.kind == "option_call":
        return "assistant"
    return "result" if message.kind == "option_result" else usual_role(message)


@dataclass(frozen=True, slots=True)
class CallPairs:
    """Which result answers which call, and the unpaired ones."""

    answers: dict[int, int]
    """The result that answers a call."""
    calls: dict[int, int]
    """The call that a result answers."""
    repeated: tuple[tuple[int, int], ...]
    """Results of calls that have been answered: the result, and its call."""
    early: dict[int, int]
    """Results before the open call of their invocation, and that call."""
    orphans: tuple[int, ...]
    """Results of no call."""
    open: tuple[int, ...]
    """Calls without a result anywhere."""


class View:
    """The input of rules."""

    def __init__(self, conversation: Conversation, target: Target | None) -> None:
        self.conversation = conversation
        self.target = target
        self.messages = list(conversation)
        self._ends: dict[int, int] = {}
        lanes = ("talk",) if target is not None else ("talk", "control")
        self.shown = [
            position for position, message in enumerate(self.messages) if message.lane in lanes and not is_left_out(message)
        ]

    @property
    def accepted(self) -> Target:
        """What the target accepts."""
        if self.target is None:
            raise RuntimeError("a rule that looks at the target must name its targets")
        return self.target

    # ------------------------------------------------------------ messages

    def __iter__(self) -> Iterator[tuple[int, Message]]:
        return ((position, self.messages[position]) for position in self.shown)

    def is_native(self, position: int) -> bool:
        """Whether a message is written back unchanged."""
        return self.target is not None and is_native(self.messages[position], self.target.name)

    def severity(self, *positions: int) -> Severity:
        """Return the severity of a problem that the dialect fixes in messages that it writes from the core."""
        return self.by_host if any(map(self.is_native, positions)) else "warning"

    @cached_property
    def by_host(self) -> Severity:
        """The severity of a problem that only the provider refuses, not compatible servers, recognized by their models."""
        model = self.setting("model")
        models = None if self.target is None else self.target.models
        return "warning" if models is not None and isinstance(model, str) and not models.match(model) else "error"

    def parts(self, position: int) -> Iterator[tuple[int, Part]]:
        """Return the visible parts of a message, with their indexes."""
        for place, part in enumerate(self.messages[position].parts):
            if not is_left_out(part):
                yield place, part

    def calls(self) -> Iterator[tuple[int, OptionCallPayload]]:
        for position, message in self:
            if isinstance(message.payload, OptionCallPayload):
                yield position, message.payload

    def results(self) -> Iterator[tuple[int, OptionResultPayload]]:
        for position, message in self:
            if isinstance(message.payload, OptionResultPayload):
                yield position, message.payload

    def has_setting(self, *keys: str) -> bool:
        """Whether the request that a conversation was read from has one of these settings, not null."""
        return any(self.setting(key) not in (ABSENT, None) for key in keys)

    def setting(self, key: str) -> object:
        """Return a setting of the request that the conversation was read from, or `ABSENT`."""
        return ABSENT if self.target is None else setting_of(self.conversation, self.target.name, key)

    # ------------------------------------------------------------ order

    @cached_property
    def sides(self) -> dict[int, Place]:
        return {position: _side_of(message) for position, message in self}

    @cached_property
    def place(self) -> dict[int, int]:
        """The index of each message among the visible ones."""
        return {position: place for place, position in enumerate(self.shown)}

    def before(self, position: int) -> int | None:
        """Return the visible message directly before."""
        place = self.place[position]
        return self.shown[place - 1] if place else None

    def after(self, position: int) -> int | None:
        """Return the visible message directly after."""
        place = self.place[position] + 1
        return self.shown[place] if place < len(self.shown) else None

    # ------------------------------------------------------------ units

    def was_apart(self, position: int) -> bool:
        """Whether a native message started a new unit, although the dialect would have joined it to the previous one."""
        dialect = "" if self.target is None else self.target.name
        return self.messages[position].metadata.get(dialect, {}).get("joined") is False

    def unit_of(self, position: int) -> list[int]:
        """Return the native messages that were one unit with this one, itself included; none if it is not native."""
        return self._units.get(position, [])

    @cached_property
    def _units(self) -> dict[int, list[int]]:
        """The messages of each unit: the first has the unit's id, the others that id and a number."""
        units: dict[int, list[int]] = {}
        unit: list[int] = []
        for position, message in enumerate(self.messages):
            if self.is_native(position):
                stem, _, number = message.id.rpartition("#")
                if not (number.isdecimal() and unit and self.messages[unit[0]].id == stem):
                    unit = []
                unit.append(position)
                units[position] = unit
        return units

    # ------------------------------------------------------------ utterances

    @cached_property
    def utterances(self) -> list[list[int]]:
        """The assistant's utterances: the positions of the messages that are one message, or one turn, for the target."""
        utterances: list[list[int]] = []
        last: int | None = None
        for position in self.shown:
            if self.sides[position] == "assistant":
                follows = last is not None and self.sides[last] == "assistant" and not self.was_apart(position)
                if follows and last is not None and same_utterance(self.messages[last], self.messages[position]):
                    utterances[-1].append(position)
                else:
                    utterances.append([position])
            last = position
        return utterances

    @cached_property
    def utterance_of(self) -> dict[int, list[int]]:
        return {position: utterance for utterance in self.utterances for position in utterance}

    def end_of_results(self, utterance: list[int]) -> int:
        """Return the last of the results directly after an utterance; without results, its own last message."""
        if utterance[0] not in self._ends:
            *_, last = (utterance[-1], *self.adjacent_results(utterance))
            self._ends[utterance[0]] = last
        return self._ends[utterance[0]]

    def adjacent_results(self, utterance: list[int]) -> Iterator[int]:
        """Return the results directly after an utterance, or after the turns that are joined to it."""
        members = set(utterance)
        last = utterance[-1]
        if self.target is not None and self.target.joins_turns:
            turns = self._turns[utterance[0]]
            members, last = {position for turn in turns for position in turn}, turns[-1][-1]
        for place in range(self.place[last] + 1, len(self.shown)):
            position = self.shown[place]
            if self.pairing.calls.get(position) not in members:
                return
            yield position

    @cached_property
    def _turns(self) -> dict[int, list[list[int]]]:
        """The consecutive utterances of each utterance, by its first message."""
        rows: list[list[list[int]]] = []
        for utterance in self.utterances:
            is_next = rows and self.after(rows[-1][-1][-1]) == utterance[0]
            rows[-1].append(utterance) if is_next else rows.append([utterance])
        return {utterance[0]: row for row in rows for utterance in row}

    # ------------------------------------------------------------ pairs

    @cached_property
    def pairing(self) -> CallPairs:
        shown = Conversation(message for _, message in self)
        answers: dict[int, int] = {}
        repeated: list[tuple[int, int]] = []
        for call, result in shown.pairs():
            first, second = self.shown[call], self.shown[result]
            if first in answers:
                repeated.append((second, first))
            else:
                answers[first] = second
        calls = {result: call for call, result in answers.items()}
        paired = calls.keys() | {result for result, _ in repeated}
        orphans = [position for position, _ in self.results() if position not in paired]
        waiting = [position for position, _ in self.calls() if position not in answers]
        early = self._early(orphans, waiting)
        late = set(early.values())
        return CallPairs(
            answers=answers,
            calls=calls,
            repeated=tuple(repeated),
            early=early,
            orphans=tuple(position for position in orphans if position not in early),
            open=tuple(position for position in waiting if position not in late),
        )

    def _early(self, orphans: list[int], waiting: list[int]) -> dict[int, int]:
        """Return for each orphan the open call after it, each call once."""
        calls: dict[str | None, list[int]] = {}
        for position in reversed(waiting):
            calls.setdefault(self.messages[position].invocation_id, []).append(position)
        early: dict[int, int] = {}
        for position in orphans:
            if later := calls.get(self.messages[position].invocation_id):
                early[position] = later.pop()
        return early


# ---------------------------------------------------------------- empty messages

_SIGNATURE = "thoughtSignature"
"""The field for which an empty text of Gemini may exist."""


def is_silent(view: View, position: int) -> bool:
    """Whether a parts message is empty for the target."""
    is_talk = view.messages[position].kind == "parts"
    return is_talk and not any(_says(view, position, part) for _, part in view.parts(position))


def is_unsaid(view: View, position: int) -> bool:
    """Whether the dialect omits a message because it is empty."""
    return not view.is_native(position) and is_silent(view, position)


def plain_text(part: Part) -> str | None:
    """Return the text of a text part, or of a data part that is a string; None for everything else."""
    content = part.text if isinstance(part, TextPart) else part.data if isinstance(part, DataPart) else None
    return content if isinstance(content, str) else None


def _says(view: View, position: int, part: Part) -> bool:
    match part:
        case TextPart() | DataPart():
            return _is_text_said(view, position, part)
        case ReasoningPart():
            return _is_thought_said(view, position, part)
        case ForeignPart():
            return part.dialect == view.accepted.name and _is_own_said(view, position, part)
        case _:
            return True  # a medium that is not accepted becomes text


def _is_text_said(view: View, position: int, part: TextPart | DataPart) -> bool:
    target, text = view.accepted, plain_text(part)
    if text is None or target.unsaid == "none":
        return True
    is_native = view.is_native(position)
    if text:
        return is_native or target.unsaid == "empty" or not text.isspace()
    is_kept = is_native and target.empty_text and isinstance(part, TextPart)
    return is_kept or _SIGNATURE in part.metadata.get(target.name, {})


def _is_thought_said(view: View, position: int, part: ReasoningPart) -> bool:
    """Whether reasoning is sent: only to its own provider, and to some only with a signature."""
    name, is_native = view.accepted.name, view.is_native(position)
    notes = part.metadata.get(name)
    if name == "openai-chat":
        return is_own(part, view.messages[position], name)
    if name == "gemini" or notes is None:
        return notes is not None
    if view.sides[position] != "assistant":
        return False
    if name == "openai-responses":
        return bool(notes.get("id")) or (is_native and "id" in notes)
    return is_native or part.signature is not None or part.encrypted_content is not None


def _is_own_said(view: View, position: int, part: ForeignPart) -> bool:
    """Whether a foreign part of the target's dialect is accepted at its position."""
    name, side, message = view.accepted.name, view.sides[position], view.messages[position]
    match name:
        case "openai-responses":
            is_item = "item" in part.metadata.get(name, {}) or "list" in message.metadata.get(name, {})
            return is_item or side != "assistant"
        case "anthropic-messages":
            is_placed = view.is_native(position) if side == "system" else message.role_hint_for_llm in (None, side)
            return is_placed and isinstance(part.value, Mapping)
        case "gemini":
            return isinstance(part.value, Mapping)
        case _:
            return True


# ---------------------------------------------------------------- items


@dataclass(frozen=True, slots=True)
class ResponsesItem:
    """An item that is written with an id."""

    type: str
    id: str
    places: tuple[int, ...] = ()
    """The parts of the message that the item is made of, if the id is theirs; empty: the whole message."""


def items_with_ids(view: View, position: int) -> Iterator[ResponsesItem]:
    """Return the items of a message that are written with an id; none if the target has no items."""
    if view.target is None or not view.target.item_ids:
        return
    message = view.messages[position]
    own_id = unit_id(message, view.target.name)
    if own_id is not None:
        yield ResponsesItem(_type_of(message, view.target.name), own_id)
    if message.kind == "parts":
        yield from _items_of_parts(view.parts(position), view.target.name, view.sides[position] == "assistant")


def _type_of(message: Message, dialect: str) -> str:
    notes = message.metadata.get(dialect, {})
    if message.kind == "parts":
        return "agent_message" if notes.get("agent_message") else "message"
    stem = "custom_tool_call" if notes.get("custom") else "function_call"
    return stem if message.kind == "option_call" else f"{stem}_output"


def _items_of_parts(parts: Iterable[tuple[int, Part]], dialect: str, is_assistant: bool) -> Iterator[ResponsesItem]:
    item: ResponsesItem | None = None
    for place, part in parts:
        notes = part.metadata.get(dialect, {})
        if item is not None and item.type == "reasoning" and isinstance(part, ReasoningPart) and "id" not in notes:
            item = replace(item, places=(*item.places, place))  # another thought of the same item
            continue
        if item is not None:
            yield item
        item = _item_of(part, place, dialect, is_assistant)
    if item is not None:
        yield item


def _item_of(part: Part, place: int, dialect: str, is_assistant: bool) -> ResponsesItem | None:
    """Return the item that a part is, or starts."""
    notes, block = part.metadata.get(dialect, {}), own_block(part, dialect)
    if notes.get("item") and isinstance(block.get("id"), str):
        return ResponsesItem(str(block.get("type")), block["id"], (place,))
    own_id = notes.get("id")
    if not is_assistant or not isinstance(own_id, str):
        return None
    if isinstance(part, ReasoningPart):
        return ResponsesItem("reasoning", own_id, (place,))
    return ResponsesItem("image_generation_call", own_id, (place,)) if isinstance(part, MediaPart) else None
