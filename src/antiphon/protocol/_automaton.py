"""Flows: declarations of who may send what to whom, and when; and an automaton that checks messages against a flow.

A flow is a pattern over messages, written with `Step`, `sequence`, `choice`, `repeat` and `maybe`. Its *roles* are names for
the participants. A bound role is played by an actor of the given name or kind. An unbound role is played by the first actor
that takes its part, and by no other from then on (inside a `repeat`, each repetition may have another actor). A message
without a receiver, as in a chat, counts as sent to the role that the step names.

The automaton ignores messages of the effect lane and of types that the flow does not mention. The other messages must be a
path of the automaton. It tracks sets of states, as a regular expression engine does, so the check takes linear time. A flow
builds its automaton once, for all threads.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Literal, NamedTuple, TypeAlias

from antiphon.messages import DataPart, Json, JsonObject, Message, OptionCallPayload, OptionResultPayload
from antiphon.messages._keys import kind_of
from antiphon.protocol._messages import response_type_of

ANYTHING: Mapping[str, str] = {"said": "parts", "called": "option_call", "answered": "option_result"}
"""Instead of a type: any message of that kind, whatever its type."""


@dataclass(frozen=True, slots=True)
class Step:
    """One message: sender, receiver and type."""

    sender: str
    receiver: str
    says: str
    """A type such as PROCESS_PHASE; or `said`, `called`, `answered` for any message of that kind."""
    where: tuple[tuple[str, Json], ...] = ()
    """Fields that its data must have."""

    def __str__(self) -> str:
        extra = "".join(f" {name}={value}" for name, value in self.where)
        return f"{self.sender} -> {self.receiver}: {self.says}{extra}"


@dataclass(frozen=True, slots=True)
class Sequence:
    """Patterns, one after the other."""

    parts: tuple[Pattern, ...]


@dataclass(frozen=True, slots=True)
class Choice:
    """One of several patterns."""

    parts: tuple[Pattern, ...]


@dataclass(frozen=True, slots=True)
class Repeat:
    """A pattern, `least` times or more."""

    part: Pattern
    least: int = 0


Pattern: TypeAlias = Step | Sequence | Choice | Repeat


def sequence(*parts: Pattern) -> Sequence:
    """Return the patterns one after the other."""
    return Sequence(parts)


def choice(*parts: Pattern) -> Choice:
    """Return a choice of one of the patterns."""
    return Choice(parts)


def repeat(*parts: Pattern, least: int = 0) -> Repeat:
    """Return the sequence of the patterns, `least` times or more."""
    return Repeat(Sequence(parts), least)


def maybe(*parts: Pattern) -> Choice:
    """Return the sequence of the patterns, or nothing."""
    return Choice((Sequence(parts), Sequence(())))


@dataclass(frozen=True, slots=True)
class Verdict:
    """The result of checking messages against a flow."""

    state: Literal["complete", "open", "violated"]
    """`complete`: at an end of the flow; `open`: more messages must follow; `violated`: a message did not fit."""
    position: int | None = None
    """The position of the first message that does not fit."""
    message: Message | None = None
    expected: tuple[str, ...] = ()
    """The steps that may come next, or should have come instead."""

    @property
    def conforms(self) -> bool:
        """Whether all messages fit."""
        return self.state != "violated"


@dataclass(frozen=True)  # without slots: the automaton is kept beside the fields
class Flow:
    """A protocol between several participants."""

    name: str
    about: str
    """What it is for, in a sentence."""
    pattern: Pattern
    roles: tuple[tuple[str, str], ...] = ()
    """The bound roles, each with a name or kind of actors."""

    def watch(self, **roles: str) -> FlowWatch:
        """Return a watch that checks messages one by one; `roles` binds roles to names or kinds of actors."""
        return FlowWatch(self, {**dict(self.roles), **roles})

    def check(self, messages: Iterable[Message], **roles: str) -> Verdict:
        """Check a sequence of messages."""
        watch = self.watch(**roles)
        for message in messages:
            if not watch.takes(message):
                break
        return watch.verdict

    @cached_property
    def _automaton(self) -> _Automaton:
        return _Builder().automaton(self.pattern)


# ---------------------------------------------------------------- the automaton

_Bindings: TypeAlias = tuple[tuple[str, str], ...]
_State: TypeAlias = tuple[int, _Bindings]


class _Automaton(NamedTuple):
    """Numbered states, with steps between them."""

    steps: tuple[tuple[Step, int] | None, ...]
    """By state, the step out of it and the next state."""
    reach: tuple[tuple[tuple[int, frozenset[str]], ...], ...]
    """By state, the states that are reached without a message (those with a step, and the end), and the roles freed there."""
    end: int
    types: frozenset[str]
    """The types that the steps mention."""
    kinds: frozenset[str]
    """The kinds of messages that the steps mention, whatever their type."""


class _Builder:
    """Makes the automaton of a pattern."""

    def __init__(self) -> None:
        self._steps: list[tuple[Step, int] | None] = []
        self._ways: list[list[tuple[int, frozenset[str]]]] = []
        """By state, the states that are reached without a message, and the roles freed on the way."""

    def automaton(self, pattern: Pattern) -> _Automaton:
        end = self._build(pattern, self._new(), _outside(pattern))
        reach = tuple(tuple(self._reached(state, end)) for state in range(len(self._steps)))
        types = frozenset(step.says for step in steps_of(pattern))
        return _Automaton(tuple(self._steps), reach, end, types, frozenset(ANYTHING[word] for word in types & ANYTHING.keys()))

    def _new(self) -> int:
        self._steps.append(None)
        self._ways.append([])
        return len(self._steps) - 1

    def _way(self, start: int, end: int, freed: frozenset[str] = frozenset()) -> None:
        self._ways[start].append((end, freed))

    def _build(self, pattern: Pattern, start: int, outside: frozenset[str]) -> int:
        """Add a pattern that begins in a state, and return the state in which it ends; `outside` are the roles of the rest."""
        match pattern:
            case Step():
                end = self._new()
                self._steps[start] = (pattern, end)
                return end
            case Sequence(parts):
                for part in parts:
                    entry = self._new()
                    self._way(start, entry)
                    start = self._build(part, entry, outside)
                return start
            case Choice(parts):
                end = self._new()
                for part in parts:
                    entry = self._new()
                    self._way(start, entry)
                    self._way(self._build(part, entry, outside), end)
                return end
            case Repeat(part, least):
                return self._repeat(part, least, start, outside)

    def _repeat(self, part: Pattern, least: int, start: int, outside: frozenset[str]) -> int:
        freed = roles_of(part) - outside
        for _ in range(least):
            entry = self._new()
            self._way(start, entry, freed)
            start = self._build(part, entry, outside)
        entry, end = self._new(), self._new()
        self._way(start, entry, freed)
        self._way(start, end)
        last = self._build(part, entry, outside)
        self._way(last, entry, freed)
        self._way(last, end)
        return end

    def _reached(self, start: int, end: int) -> Iterator[tuple[int, frozenset[str]]]:
        """Yield the states that are reached without a message and have a step, or are the end."""
        seen_states = {(start, frozenset[str]())}
        todo = list(seen_states)
        while todo:
            state, freed = todo.pop()
            if state == end or self._steps[state] is not None:
                yield state, freed
            for following, roles_freed in self._ways[state]:
                reached = (following, freed | roles_freed)
                if reached not in seen_states:
                    seen_states.add(reached)
                    todo.append(reached)


def roles_of(pattern: Pattern) -> frozenset[str]:
    """Return the roles of a pattern."""
    return frozenset(role for step in steps_of(pattern) for role in (step.sender, step.receiver))


def steps_of(pattern: Pattern) -> Iterator[Step]:
    """Yield the steps of a pattern."""
    match pattern:
        case Step():
            yield pattern
        case Sequence(parts) | Choice(parts):
            for part in parts:
                yield from steps_of(part)
        case Repeat(part):
            yield from steps_of(part)


def _outside(pattern: Pattern) -> frozenset[str]:
    """Return the roles that are outside of any repetition."""
    match pattern:
        case Step():
            return frozenset((pattern.sender, pattern.receiver))
        case Sequence(parts) | Choice(parts):
            return frozenset(role for part in parts for role in _outside(part))
        case Repeat():
            return frozenset()


# ---------------------------------------------------------------- messages as a flow sees them


@dataclass(frozen=True, slots=True)
class FlowEvent:
    """A message as a flow sees it."""

    sender: str
    receiver: str
    type: str
    kind: str
    data: Mapping[str, Json]


class _Reader:
    """Turns messages into events, one by one. It remembers calls, because a result alone does not name its type."""

    def __init__(self) -> None:
        self._calls: dict[str, Message] = {}

    def read(self, message: Message) -> FlowEvent | None:
        if message.lane == "effect":
            return None
        match message.payload:
            case OptionCallPayload() as call:
                self._calls[call.invocation_id] = message
                return FlowEvent(message.policy, _receiver(message), call.option_name, message.kind, call.arguments)
            case OptionResultPayload() as result:
                request = self._calls.get(result.invocation_id)
                sender = message.policy if request is None else _receiver(request)
                receiver = message.to[0] if message.to else "" if request is None else request.policy
                type_ = "ERROR" if result.is_error else response_type_of(self._asked(request, result.option_name))
                data = result.result if isinstance(result.result, JsonObject) else JsonObject({})
                return FlowEvent(sender, receiver, type_, message.kind, data)
            case _:
                type_, content = _notice(message)
                return FlowEvent(message.policy, _receiver(message), type_, message.kind, content)

    def _asked(self, call: Message | None, option: str) -> str:
        """Return the type of the request; for a RETRY, that of the original request."""
        if option == "RETRY" and call is not None and isinstance(call.payload, OptionCallPayload):
            original = self._calls.get(str(call.payload.arguments.get("original_message_id")))
            if original is not None and isinstance(original.payload, OptionCallPayload):
                return original.payload.option_name
        return option


def _receiver(message: Message) -> str:
    """Return the receiver of a message; for a call without a receiver, its option."""
    if message.to:
        return message.to[0]
    return message.payload.option_name if isinstance(message.payload, OptionCallPayload) else ""


def _notice(message: Message) -> tuple[str, Mapping[str, Json]]:
    match message.parts:
        case (DataPart(data=JsonObject() as notice),) if message.lane == "control":
            type_, data = notice.get("type"), notice.get("data")
            if isinstance(type_, str) and isinstance(data, JsonObject):
                return type_, data
        case _:
            pass
    return "MESSAGE", JsonObject({})


# ---------------------------------------------------------------- watching


class FlowWatch:
    """Checks messages against a flow, one by one."""

    def __init__(self, flow: Flow, roles: Mapping[str, str]) -> None:
        self.flow = flow
        self._roles = roles
        self._reader = _Reader()
        self._automaton = flow._automaton  # pyright: ignore[reportPrivateUsage] (they are two halves)
        self._states = self._from([(0, ())])
        self.concerned = 0
        """The number of messages that the flow did not ignore."""
        self._position = -1
        self._violation: Verdict | None = None

    @property
    def verdict(self) -> Verdict:
        """The verdict so far. A violation is final."""
        if self._violation is not None:
            return self._violation
        is_complete = any(number == self._automaton.end for number, _ in self._states)
        return Verdict("complete" if is_complete else "open", expected=self._expected())

    def see(self, message: Message) -> Verdict:
        """Check the next message, and return the verdict so far."""
        self.takes(message)
        return self.verdict

    def takes(self, message: Message) -> bool:
        """Check the next message, and return whether all messages so far fit; quicker than a verdict."""
        self._position += 1
        event, automaton = self._reader.read(message), self._automaton
        concerns = event is not None and (event.type in automaton.types or event.kind in automaton.kinds)
        if event is not None and concerns and self._violation is None:
            self.concerned += 1
            following = [state for number, bound in self._states if (state := self._follow(number, bound, event)) is not None]
            if following:
                self._states = self._from(following)
            else:
                self._violation = Verdict("violated", self._position, message, self._expected())
        return self._violation is None

    def _from(self, states: Iterable[_State]) -> dict[_State, None]:
        """Return the states that are reached without a further message."""
        states_after: dict[_State, None] = {}
        for number, bound in states:
            for reached, freed in self._automaton.reach[number]:
                bindings = tuple([pair for pair in bound if pair[0] not in freed]) if freed else bound
                states_after[reached, bindings] = None
        return states_after

    def _follow(self, number: int, bound: _Bindings, event: FlowEvent) -> _State | None:
        """Return the state after a message; None if the message does not fit the state."""
        way = self._automaton.steps[number]
        if way is None:
            return None
        step, end = way
        if event.type != step.says and ANYTHING.get(step.says) != event.kind:
            return None
        if step.where and any(event.data.get(name) != value for name, value in step.where):
            return None
        bindings = self._play(step.sender, event.sender, bound)
        if bindings is not None:
            bindings = self._play(step.receiver, event.receiver, bindings)
        return None if bindings is None else (end, bindings)

    def _play(self, role: str, player: str, bindings: _Bindings) -> _Bindings | None:
        """Return the bindings with a role played by this actor; None if another plays it."""
        if not player:
            return bindings
        if role in self._roles:
            name = self._roles[role]
            return bindings if name in (player, kind_of(player)) else None
        for bound_role, who in bindings:
            if bound_role == role:
                return bindings if who == player else None
        return (*bindings, (role, player))

    def _expected(self) -> tuple[str, ...]:
        ways = (self._automaton.steps[number] for number, _ in self._states)
        return tuple(dict.fromkeys(str(way[0]) for way in ways if way is not None))
