"""Conversation: an immutable sequence of messages that knows which result answers which call.

A conversation is a view of the first n messages of an append-only log. So `append` is cheap: the new conversation shares the
storage of the old one. If two conversations grow from the same one, the second copies the log. They also share the index,
which is built at the first lookup and holds positions; a conversation ignores positions from n on.

A result answers an earlier open call of its invocation: the oldest open call of the latest utterance that has one. So formats
that reuse an id ("call_0" in every turn) are paired correctly, even after a call without a result. A result without such a
call is an orphan if its invocation was never called; otherwise it is a repetition, which belongs to the last call. Faults of a
history are kept unchanged; `check` reports them.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from math import fsum, isfinite
from typing import Annotated, Self, TypeAlias, overload

from pydantic import FailFast, Field, model_validator
from pydantic_core import PydanticCustomError, core_schema
from typing_extensions import override

from antiphon.messages._arguments import check_each, check_type
from antiphon.messages._content import Kind, Metadata, MetadataField, Text
from antiphon.messages._json_values import Json
from antiphon.messages._log import (
    MessageLog,
    estimate_tokens,
    group_by_step,
    group_by_turn,
    is_system,
    payload_size,
    turn_key,
    window_positions,
)
from antiphon.messages._message import Lane, Message
from antiphon.messages._model import EMPTY, JsonField, Model, house_bytes, without_default
from antiphon.messages._names import Name
from antiphon.messages._settings import current_limits

_HEADER_ROOM = 64
"""Bytes that a conversation's first line takes besides its header."""


class Tool(Model, frozen=True):
    """An option that may be called in a conversation, as described to a model."""

    name: Name
    description: Text | None = None
    parameters: Annotated[Mapping[str, Json], JsonField("object"), Field(json_schema_extra=without_default)] = EMPTY
    """The JSON Schema of its arguments."""
    metadata: MetadataField = EMPTY


class Header(Model, frozen=True):
    """The tools and metadata of a conversation."""

    tools: Annotated[tuple[Tool, ...], FailFast()] = ()
    metadata: MetadataField = EMPTY

    @model_validator(mode="after")
    def _within_limits(self) -> Self:
        limits = current_limits()
        most, size = limits.message_bytes + limits.data_url_bytes, len(house_bytes(self)) + _HEADER_ROOM
        if size > most:
            context = {"size": size, "most": most}
            raise PydanticCustomError("too_large", "Tools and metadata have {size} bytes, more than {most}", context)
        return self


class Conversation(Sequence[Message]):
    """Messages in order, with the tools that may be called and namespaced metadata. It is immutable: edits return a copy."""

    __slots__ = ("_header", "_length", "_log")

    def __init__(
        self, messages: Iterable[Message] = (), *, tools: Iterable[Tool] = (), metadata: Metadata | None = None
    ) -> None:
        self._header = Header(tools=check_each("tools", tools, Tool, "Tool(name='pay')"), metadata=metadata or {})
        self._log = MessageLog(_checked(messages))
        self._length = len(self._log.messages)

    @classmethod
    def _of(cls, header: Header, log: MessageLog, length: int) -> Self:
        new = cls.__new__(cls)
        new._header, new._log, new._length = header, log, length
        return new

    def _with(self, messages: Iterable[Message]) -> Self:
        log = MessageLog(messages)
        return self._of(self._header, log, len(log.messages))

    @property
    def header(self) -> Header:
        """The tools and the metadata, as one value."""
        return self._header

    @property
    def tools(self) -> tuple[Tool, ...]:
        return self._header.tools

    @property
    def metadata(self) -> Metadata:
        return self._header.metadata

    # ------------------------------------------------------------ a sequence

    @override
    def __len__(self) -> int:
        return self._length

    @overload
    def __getitem__(self, index: int) -> Message: ...
    @overload
    def __getitem__(self, index: slice) -> Self: ...
    @override
    def __getitem__(self, index: int | slice) -> Message | Self:
        if isinstance(index, slice):
            start, stop, step = index.indices(self._length)
            if start == 0 and step == 1:
                return self._of(self._header, self._log, max(stop, 0))
            return self._with(self._log.messages[start:stop:step] if step > 0 else self._messages()[index])
        position = range(self._length)[index]
        return self._log.messages[position]

    def _messages(self) -> list[Message]:
        return self._log.messages[: self._length]

    @override
    def __iter__(self) -> Iterator[Message]:
        return iter(self._messages())

    @override
    def __contains__(self, message: object) -> bool:
        return isinstance(message, Message) and any(message == present for present in self._messages())

    @override
    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Conversation):
            return NotImplemented
        if self._header != other._header or len(self) != len(other):
            return False
        return self._log is other._log or self._messages() == other._messages()

    @override
    def __hash__(self) -> int:
        return hash(tuple(message.id for message in self))

    @override
    def __repr__(self) -> str:
        tools = f", tools={[tool.name for tool in self.tools]}" if self.tools else ""
        return f"<Conversation of {len(self)} messages{tools}>"

    def __reduce__(self) -> tuple[object, ...]:
        return _revive, (self._header, self._messages())

    @classmethod
    def __get_pydantic_core_schema__(cls, source: object, handler: object) -> core_schema.CoreSchema:
        return core_schema.is_instance_schema(cls)

    def __copy__(self) -> Self:
        return self

    def __deepcopy__(self, memo: object) -> Self:
        return self

    # ------------------------------------------------------------ growing

    def append(self, message: Message) -> Self:
        """Return the conversation with one more message."""
        return self.extend((message,))

    def extend(self, messages: Iterable[Message]) -> Self:
        """Return the conversation with more messages."""
        added = _checked(messages)
        return self._of(self._header, self._log.grown(self._length, added), self._length + len(added))

    def replace(self, *, tools: Iterable[Tool] | None = None, metadata: Metadata | None = None) -> Self:
        """Return the conversation with other tools or metadata."""
        header = Header(
            tools=self.tools if tools is None else tuple(tools), metadata=self.metadata if metadata is None else metadata
        )
        return self._of(header, self._log, self._length)

    # ------------------------------------------------------------ looking up

    def get(self, id: str) -> Message | None:
        """Return the (first) message with this id."""
        check_type("id", id, str, "message.id")
        return self._at(self._log.index().first.get(id))

    def call(self, invocation_id: str) -> Message | None:
        """Return the (first) call of an invocation."""
        return self._first_of(invocation_id, "option_call")

    def result(self, invocation_id: str) -> Message | None:
        """Return the (first) result of an invocation."""
        return self._first_of(invocation_id, "option_result")

    def answer_to(self, call: Message) -> Message | None:
        """Return the result that answers this call, if there is one."""
        return self._at(self._log.index().answer_to.get(self._position(call)))

    def answer_at(self, position: int) -> Message | None:
        """Return the result that answers the call at this position, if there is one."""
        check_type("position", position, int, "0")
        return self._at(self._log.index().answer_to.get(position))

    def pairs(self) -> tuple[tuple[int, int], ...]:
        """Return the positions of each result and its call as `(call, result)`, in the order of the results."""
        links = self._log.index().call_of
        return tuple((call, result) for result, call in links.items() if result < self._length)

    def call_of(self, result: Message) -> Message | None:
        """Return the call that this result belongs to, if there is one."""
        return self._at(self._log.index().call_of.get(self._position(result)))

    def _first_of(self, invocation_id: str, kind: Kind) -> Message | None:
        messages = (self._log.messages[position] for position in self._positions(invocation_id))
        return next((message for message in messages if message.kind == kind), None)

    def _positions(self, invocation_id: str) -> list[int]:
        check_type("invocation_id", invocation_id, str, "call.invocation_id")
        invocations = self._log.index().invocations
        positions = sorted((*invocations.get((False, invocation_id), ()), *invocations.get((True, invocation_id), ())))
        return [position for position in positions if position < self._length]

    def _position(self, message: Message) -> int:
        check_type("message", message, Message, "conversation[0]")
        first = self._log.index().first.get(message.id, self._length)
        for position in range(first, self._length):
            if self._log.messages[position] == message:
                return position
        raise ValueError(f"message {message.id!r} is not in this conversation")

    def _at(self, position: int | None) -> Message | None:
        return None if position is None or position >= self._length else self._log.messages[position]

    # ------------------------------------------------------------ calls and results

    def calls(self) -> tuple[Message, ...]:
        """Return every option call, of all lanes."""
        return tuple(message for message in self if message.kind == "option_call")

    def results(self) -> tuple[Message, ...]:
        """Return every option result, of all lanes."""
        return tuple(message for message in self if message.kind == "option_result")

    def open_calls(self) -> tuple[Message, ...]:
        """Return the calls of talk and control that have no result yet."""
        answers = self._log.index().answer_to
        return tuple(
            message
            for position, message in enumerate(self)
            if message.kind == "option_call"
            and message.lane != "effect"
            and answers.get(position, self._length) >= self._length
        )

    def orphans(self) -> tuple[Message, ...]:
        """Return the results of talk and control that no call precedes."""
        results = (self._at(position) for position in self._log.index().orphans)
        return tuple(message for message in results if message is not None and message.lane != "effect")

    # ------------------------------------------------------------ parts of it

    def filter(
        self,
        *,
        policy: str | None = None,
        kind: Kind | None = None,
        lane: Lane | None = None,
        step: int | None = None,
        turn: str | None = None,
        thread: str | None = None,
        after: Message | datetime | None = None,
        before: Message | datetime | None = None,
    ) -> Self:
        """Return the messages that meet all conditions.

        `after` and `before` are exclusive. If one is a time, messages without a time are left out.

        Raises:
            ValueError: `after` or `before` is a message that is not in the conversation.
        """
        for place in (after, before):
            if place is not None and not isinstance(place, Message | datetime):  # pyright: ignore[reportUnnecessaryIsInstance]
                raise TypeError(f"after and before are a message or a time, not {type(place).__name__}")
        conditions = {"policy": policy, "kind": kind, "lane": lane, "step_num": step, "turn_id": turn, "thread_id": thread}
        asked = [(name, value) for name, value in conditions.items() if value is not None]
        section = self[self._position(after) + 1 :] if isinstance(after, Message) else self
        if isinstance(before, Message):
            section = section[: max(self._position(before) - (len(self) - len(section)), 0)]
        return self._with(
            message
            for message in section
            if all(getattr(message, name) == value for name, value in asked) and _is_between(message, after, before)
        )

    def chain(self, message: Message) -> Self:
        """Return the messages that led to a message and those that follow from it, in order.

        A message follows the message that it answers (`in_reply_to`). A result follows its call. A message that was sent
        during an invocation (`parent_id`) follows the call. The chain has all ancestors and all descendants of the message.

        Raises:
            ValueError: the message is not in the conversation.
        """
        start = self._position(message)
        line = {start}
        above = self._cause(start)
        while above is not None and above not in line:
            line.add(above)
            above = self._cause(above)
        below = {start}
        for position in range(start + 1, self._length):
            if self._cause(position) in below:
                below.add(position)
        return self._with(self._log.messages[position] for position in sorted(line | below))

    def _cause(self, position: int) -> int | None:
        """Return the position of the message that a message follows."""
        log, message = self._log.index(), self._log.messages[position]
        cause = log.call_of.get(position)
        if cause is None and message.in_reply_to is not None:
            cause = log.first.get(message.in_reply_to)
        if cause is None and message.parent_id is not None:
            cause = next(iter(self._positions(message.parent_id)), None)
        return None if cause is None or cause >= self._length else cause

    def steps(self) -> dict[int | None, tuple[Message, ...]]:
        """Return the messages by step, in the order in which the steps began; those without a step are under None."""
        return group_by_step(self)

    def turns(self) -> tuple[tuple[Message, ...], ...]:
        """Return the messages by utterance: with the same `turn_id`, else the same step and policy, else each on its own."""
        return group_by_turn(self)

    def transitions(self, reward: RewardFunction | Mapping[str, float] | None = None) -> tuple[Transition, ...]:
        """Collapse the conversation into decisions: the observation, the called options, and their results.

        There is one transition per step with a call, in order; calls without a step are grouped by turn. Messages of the
        effect lane are ignored. Transitions serve as training data, and explain why an agent did something.

        `reward` is a function of the transition, or a mapping from message ids to rewards. With a mapping, a transition gets
        the sum over its own messages (calls, results, text of the same turn) and over the messages up to the next transition.

        Raises:
            ValueError: a reward is not a finite number.
        """
        return collapse(without_effects(self), reward)

    def window(
        self,
        count: int | None = None,
        *,
        size: int | None = None,
        tokens: int | None = None,
        keep: Callable[[Message], bool] = is_system,
        count_tokens: Callable[[Message], int] = estimate_tokens,
    ) -> Self:
        """Return the latest messages that fit, preceded by the messages that `keep` selects (by default policy `system`).

        Give one of `count` (messages), `size` (bytes of their payloads) or `tokens`. The window never exceeds the limit,
        unless the kept messages alone do. It separates no call from its result, splits no utterance, and does not begin with
        an orphan; so it may be smaller than the limit. With a kept call or result, the other of the two is kept too.

        Raises:
            ValueError: not exactly one limit is given.
        """
        match (count, size, tokens):
            case (int() as most, None, None):
                cost: Callable[[Message], int] = lambda message: 1  # noqa: E731
            case (None, int() as most, None):
                cost = payload_size
            case (None, None, int() as most):
                cost = count_tokens
            case _:
                raise ValueError("give exactly one of count, size and tokens")
        # A log of its own: a longer conversation may share this one's.
        log = self._with(message for message in self if message.lane != "effect")._log.index()
        positions = window_positions(log.messages, log.call_of, frozenset(log.orphans), most=most, cost=cost, keep=keep)
        return self._with(log.messages[position] for position in positions)


def without_effects(conversation: Conversation) -> Conversation:
    """Return a conversation without the journal; the same one if it has none."""
    if all(message.lane != "effect" for message in conversation):
        return conversation
    talk = (message for message in conversation if message.lane != "effect")
    return Conversation(talk, tools=conversation.tools, metadata=conversation.metadata)


def _revive(header: Header, messages: list[Message]) -> Conversation:
    return Conversation(messages, tools=header.tools, metadata=header.metadata)


def _checked(messages: Iterable[Message]) -> list[Message]:
    if not isinstance(messages, Iterable):  # pyright: ignore[reportUnnecessaryIsInstance]
        raise TypeError(f"a conversation holds messages, not {type(messages).__name__}")
    checked = list(messages)
    for message in checked:
        if not isinstance(message, Message):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise TypeError(f"a conversation holds messages, not {type(message).__name__}")
    return checked


def _is_between(message: Message, after: object, before: object) -> bool:
    created = message.created_at
    if isinstance(after, datetime) and (created is None or created <= after):
        return False
    return not (isinstance(before, datetime) and (created is None or created >= before))


# ---------------------------------------------------------------- transitions


@dataclass(frozen=True, slots=True)
class Transition:
    """One decision: the observation, the actions chosen, their results."""

    step_num: int | None
    """The step; None if the calls had no step and were grouped by turn."""
    turn_id: str | None
    """The turn of the first call."""
    observation: Conversation
    """All messages before the first call."""
    actions: tuple[Message, ...]
    """The option calls, in order."""
    results: tuple[Message, ...]
    """Their results, in the order of the calls; a call still open has none."""
    reward: float | None = None
    """The reward; None if unknown."""

    def __post_init__(self) -> None:
        """Refuse a reward that is not finite: JSON cannot express it."""
        check_type("reward", self.reward, int | float | None, "0.5")
        if self.reward is not None and not isfinite(self.reward):
            raise ValueError(f"a reward is a finite number, not {self.reward!r}")

    @property
    def is_complete(self) -> bool:
        """Whether every call has its result."""
        return len(self.results) == len(self.actions)


RewardFunction: TypeAlias = Callable[[Transition], float | None]
"""Returns the reward of a decision; None if unknown."""


def collapse(conversation: Conversation, reward: RewardFunction | Mapping[str, float] | None = None) -> tuple[Transition, ...]:
    """Collapse a conversation into one transition per step (or turn) that calls an option."""
    groups: dict[Hashable, list[tuple[int, Message]]] = {}
    for position, message in enumerate(conversation):
        if message.kind == "option_call":
            step = message.step_num
            key = ("step", message.thread_id, step) if step is not None else ("turn", turn_key(position, message))
            groups.setdefault(key, []).append((position, message))
    transitions = tuple(
        Transition(
            step_num=calls[0][1].step_num,
            turn_id=calls[0][1].turn_id,
            observation=conversation[: calls[0][0]],
            actions=tuple(call for _, call in calls),
            results=tuple(result for place, _ in calls if (result := conversation.answer_at(place)) is not None),
        )
        for calls in groups.values()
    )
    if reward is None:
        return transitions
    values = (
        [reward(transition) for transition in transitions] if callable(reward) else _sums(conversation, transitions, reward)
    )
    return tuple(replace(transition, reward=value) for transition, value in zip(transitions, values, strict=True))


def _sums(conversation: Conversation, transitions: Sequence[Transition], rewards: Mapping[str, float]) -> list[float | None]:
    """Return the reward of each transition: the sum over its messages, and later ones that belong to no other transition.

    A message belongs to a transition if it is a call, a result, or in the same turn as a call. Later messages, such as the
    final answer, belong to the latest transition. Messages before the first transition belong to none.
    """
    places: dict[str, int] = {}
    turns: dict[str | None, int] = {}
    for number, transition in enumerate(transitions):
        places |= dict.fromkeys((message.id for message in (*transition.actions, *transition.results)), number)
        turns |= {call.turn_id: number for call in transition.actions if call.turn_id is not None}
    earned: list[list[float]] = [[] for _ in transitions]
    latest: int | None = None
    remaining = dict(rewards)
    for message in conversation:
        place = places.get(message.id, turns.get(message.turn_id, latest))
        if place is not None and message.id in remaining:
            earned[place].append(remaining.pop(message.id))  # a repeated id counts once
        latest = place if message.kind == "option_call" else latest
    return [fsum(values) if values else None for values in earned]
