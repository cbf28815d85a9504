"""The life cycle of a thread: a fold over its control messages, the legal moves, and the earlier turns in a prompt.

```
created ─► processing ⇄ paused ─► completed | failed | terminated
```

A thread that has completed or failed can be started again with a new input: that is its next turn. Termination is final.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from datetime import datetime
from typing import Any, Final, cast

from antiphon import protocol
from antiphon.errors import RefusedError
from antiphon.ledger import Ledger, Record, replay
from antiphon.messages import Message, OptionCallPayload, OptionResultPayload, thaw
from antiphon.patterns.postchain._config import cut
from antiphon.patterns.postchain._context import DELEGATE, ProcessOwnPhase, SubscribeThread
from antiphon.runtime import ActorState
from antiphon.runtime._rows import enclosure_of, notice_in

PATTERN: Final = "postchain"
"""The name of this pattern in the ledger."""

KEPT_TURNS: Final = 20
"""How many turns the state of a thread has; earlier ones are found by searching."""

_MOVES: Final[Mapping[str, tuple[str, ...]]] = {
    protocol.CreateThread.message_type: ("none",),
    protocol.StartThread.message_type: ("created", "completed", "failed"),
    protocol.PauseThread.message_type: ("processing", "paused"),
    protocol.ResumeThread.message_type: ("paused", "processing"),
    protocol.TerminateThread.message_type: ("created", "processing", "paused", "completed", "failed", "terminated"),
}
"""By type, the states from which a move is legal. A second pause, resume or terminate has no effect."""

_BECOMES: Final[Mapping[str, protocol.ThreadState]] = {
    protocol.CreateThread.message_type: "created",
    protocol.StartThread.message_type: "processing",
    protocol.PauseThread.message_type: "paused",
    protocol.ResumeThread.message_type: "processing",
    protocol.TerminateThread.message_type: "terminated",
}

_FRESH: Final[dict[str, Any]] = {"completed": (), "outputs": None, "done": (), "cycle": 1}
"""The fields about phases at the start of a turn."""

PROCESS: Final = (protocol.ProcessPhase.message_type, ProcessOwnPhase.message_type)
"""The requests that run a phase: one of the six, or one of the program."""
_ASKED: Final = frozenset({*_BECOMES, *PROCESS, SubscribeThread.message_type})


@dataclass(frozen=True, slots=True)
class PastTurn:
    """The question of a user, and the answer."""

    input: str
    response: str | None = None


@dataclass(frozen=True, slots=True)
class ThreadLife:
    """The state of a thread."""

    status: str = "none"
    """A `ThreadState`, or `none` before it is created."""
    user_id: str = ""
    creator: str = ""
    """The receiver of the result."""
    subscribers: tuple[str, ...] = ()
    """Further receivers of the result."""
    metadata: Mapping[str, Any] | None = None
    """The metadata from CREATE_THREAD."""
    turn: int = 0
    """How often it was started."""
    turns: tuple[PastTurn, ...] = ()
    """The latest turns; the last one is the current one."""
    created_at: str | None = None
    updated_at: str | None = None
    completed: tuple[str, ...] = ()
    """The completed phases of this cycle, in order."""
    outputs: Mapping[str, Any] | None = None
    """By phase, its latest output of this turn."""
    done: tuple[str, ...] = ()
    """The completed phases of this turn in the order of completion, over all cycles."""
    untrusted: str | None = None
    """The source of the first untrusted content that an agent of the thread has read; it never changes."""
    outside: Mapping[str, Any] | None = None
    """The place of a history from elsewhere: `before` is the message that follows it, `request` the current request."""
    cycle: int = 1
    """The number of the current cycle within the turn."""
    phases: tuple[str, ...] | None = None
    """The names of its phases, in order; None: the six."""
    asked: Mapping[str, Any] | None = None
    """By invocation, the unanswered requests: type, data and sender."""

    @property
    def order(self) -> tuple[str, ...]:
        """The names of its phases."""
        return protocol.PHASES if self.phases is None else self.phases

    @property
    def remaining(self) -> tuple[str, ...]:
        """The remaining phases; the first one is the current one."""
        return tuple(phase for phase in self.order if phase not in self.completed)

    @property
    def current_phase(self) -> str | None:
        return self.remaining[0] if self.remaining else None

    @property
    def known_phase(self) -> protocol.Phase:
        """The current phase in terms of the protocol: for a phase of the program, the next one of the six."""
        name: Any = next((phase for phase in self.remaining if phase in protocol.PHASES), "yield")
        return cast("protocol.Phase", name)

    @property
    def input(self) -> str:
        """The last input of the user."""
        return self.turns[-1].input if self.turns else ""

    @property
    def is_over(self) -> bool:
        """Whether nothing continues without a new request."""
        return self.status in {"completed", "failed", "terminated"}

    def check(self, move: str, thread_id: str) -> None:
        """Refuse a move that is not legal from here."""
        if self.status == "none" and move != protocol.CreateThread.message_type:
            raise RefusedError(f"there is no thread {thread_id!r}: create it first", protocol.ErrorCode.THREAD_NOT_FOUND)
        if (legal := _MOVES.get(move)) is not None and self.status not in legal:
            reason = f"{move} is not possible while the thread is {self.status}"
            details = {"thread_id": thread_id, "status": self.status, "possible_while": list(legal)}
            raise RefusedError(reason, protocol.ErrorCode.INVALID_STATE, details=details)

    def with_answered(self, invocation_id: str | None) -> ThreadLife:
        """Return the state after a pending request is answered, which will happen."""
        call = (self.asked or {}).get(invocation_id or "")
        return self if call is None or call["type"] not in _BECOMES else self._moved(call, None)

    def has_earlier_request(self, invocation_id: str) -> bool:
        """Whether another request was sent before this one that may change the status, and was not answered then."""
        return any(call["type"] in _BECOMES for other_id, call in (self.asked or {}).items() if other_id != invocation_id)

    # ------------------------------------------------------------ the fold

    def after(self, message: Message) -> ThreadLife:
        """Return the state after one more message."""
        if message.lane != "control":
            return self
        payload = message.payload
        if isinstance(payload, OptionCallPayload):
            is_own = payload.option_name in _ASKED and message.policy != DELEGATE
            return self._called(payload, message) if is_own else self
        if isinstance(payload, OptionResultPayload):
            return self._answered(payload, message.created_at)
        data = result_in(message)
        return self if data is None else self._ended(data, message.created_at)

    def _called(self, call: OptionCallPayload, message: Message) -> ThreadLife:
        data: dict[str, Any] = thaw(call.arguments)
        if call.option_name in PROCESS:  # its answer needs no more than the name of the phase
            data = {"phase_type": data.get("phase_type", data.get("phase"))}
        entry: dict[str, Any] = {"type": call.option_name, "by": message.policy, "data": data}
        if call.option_name in _BECOMES:
            entry["enclosure"] = thaw(enclosure_of(message))
        return replace(self, asked={**(self.asked or {}), call.invocation_id: entry})

    def _answered(self, result: OptionResultPayload, at: datetime | None) -> ThreadLife:
        asked = dict(self.asked or {})
        call = asked.pop(result.invocation_id, None)
        if call is None:
            return self
        life = replace(self, asked=asked or None)
        if result.is_error:
            return life
        life = replace(life, updated_at=_text(at) or life.updated_at)
        if call["type"] in _BECOMES:
            return life._moved(call, at)
        if call["type"] == SubscribeThread.message_type:
            return replace(life, subscribers=tuple(dict.fromkeys((*life.subscribers, call["by"]))))
        replied: Any = thaw(result.result)
        return life.with_phase_done(call["data"]["phase_type"], replied["output"])

    def _moved(self, call: Mapping[str, Any], at: datetime | None) -> ThreadLife:
        kind, data, enclosed = call["type"], call["data"], call["enclosure"]
        if self.status == "none" and kind != protocol.CreateThread.message_type:
            return self  # a thread of another pattern was paused, resumed or terminated
        life = replace(self, status=_BECOMES[kind])
        if kind == protocol.CreateThread.message_type:
            return replace(
                life,
                user_id=data["user_id"],
                creator=call["by"],
                metadata=data.get("metadata"),
                outside=enclosed.get("outside"),
                phases=tuple(enclosed["phases"]) if "phases" in enclosed else None,
                turns=(PastTurn(data["initial_input"]),),
                created_at=_text(at),
            )
        is_start = kind == protocol.StartThread.message_type
        return life.with_turn(data.get("input"), enclosed.get("outside")) if is_start else life

    def with_turn(self, input: str | None, outside: Mapping[str, Any] | None = None) -> ThreadLife:
        """Return the state at the start of a turn; the first turn already has its input."""
        if outside is None and self.outside is not None:
            outside = {"before": self.outside["before"]} if self.turn else self.outside
        turns = (*(self.turns if self.turn else ()), PastTurn(input or self.input))
        return replace(self, turn=self.turn + 1, turns=turns[-KEPT_TURNS:], outside=outside, **_FRESH)

    def with_phase_done(self, phase: str, output: Mapping[str, Any]) -> ThreadLife:
        """Return the state after a phase: the last phase may continue with another one."""
        completed = self.completed if phase in self.completed else (*self.completed, phase)
        outputs, untrusted = {**(self.outputs or {}), phase: output}, self.untrusted or output.get("untrusted")
        life = replace(self, outputs=outputs, completed=completed, done=(*self.done, phase), untrusted=untrusted)
        following = output.get("next_phase") if phase == protocol.PHASES[-1] else None
        if following is None or following not in self.order:
            return life
        earlier = self.order[: self.order.index(following)]
        return replace(life, completed=tuple(name for name in completed if name in earlier), cycle=self.cycle + 1)

    def _ended(self, data: Mapping[str, Any], at: datetime | None) -> ThreadLife:
        if self.status == "terminated" or self.is_over:
            return self
        *earlier, last = self.turns or (PastTurn(""),)
        turns = (*earlier, replace(last, response=data.get("response")))
        return replace(self, status=data["status"], turns=turns, updated_at=_text(at) or self.updated_at)


async def is_known(ledger: Ledger, thread_id: str) -> bool:
    """Whether this thread was created; a branch counts as created with its parent."""
    summary = await ledger.thread(thread_id)
    if summary is None or summary.pattern not in (PATTERN, None):
        return False
    return summary.pattern == PATTERN or (await replay(ledger, thread_id, LIFE.fold())).status != "none"


def result_in(message: Message) -> dict[str, Any] | None:
    """Return the data of a THREAD_RESULT; None for any other message."""
    match notice_in(message):
        case (protocol.ThreadResult.message_type, data):
            return {name: thaw(value) for name, value in data.items()}
        case _:
            return None


def _text(at: datetime | None) -> str | None:
    return None if at is None else at.isoformat()


def _load(stored: Any) -> ThreadLife:
    fields: dict[str, Any] = dict(stored)
    fields.update({name: tuple(stored.get(name, ())) for name in ("completed", "done", "subscribers")})
    fields["phases"] = tuple(stored["phases"]) if stored.get("phases") else None
    fields["turns"] = tuple(PastTurn(**turn) for turn in stored["turns"])
    return ThreadLife(**fields)


LIFE: Final = ActorState("postchain.life", ThreadLife(), ThreadLife.after, asdict, _load)
"""The state of a thread as a fold."""

_SHORTEST = 100
"""The least length of a shortened answer in a prompt, in characters."""


def history_of(turns: Sequence[PastTurn], most: int, room: int) -> tuple[protocol.ChatTurn, ...]:
    """Return the latest of some turns, in order: at most a number of turns, in a number of characters.

    A user's text is included complete or not at all; an answer is shortened to the available room. Earlier turns are in the
    ledger, and found by searching.
    """
    history: list[protocol.ChatTurn] = []
    for turn in reversed(turns[-most:] if most else ()):
        room -= len(turn.input)
        if room < 0:
            break
        answer = (turn.response or "").partition("\n\nSources:")[0]
        if answer and room >= min(len(answer), _SHORTEST):
            history.append(protocol.ChatTurn(role="assistant", content=cut(answer, room)))
            room -= min(len(answer), room)
        history.append(protocol.ChatTurn(role="user", content=turn.input))
    return tuple(reversed(history))


def creates_thread(record: Record) -> bool:
    """Whether a record is the first of a thread of this pattern."""
    if record.seq != 1:
        return False
    payload = record.message.payload
    return isinstance(payload, OptionCallPayload) and payload.option_name == protocol.CreateThread.message_type
