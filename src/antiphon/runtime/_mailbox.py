"""Mailbox: the messages that wait for an actor, in order, and the senders that wait for room.

Messages of the system come first, however full it is. Where an actor handles several messages at once, those of the
same thread (outside of threads: of the same sender) still follow each other: while one is handled, the next ones are
held back.
"""

from __future__ import annotations

import asyncio
from collections import deque
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from antiphon.runtime._envelope import Envelope

__all__ = ["Mailbox"]


class Mailbox:
    """What waits for an actor. The queues are made when needed, and given back when they are empty."""

    __slots__ = ("_box", "_busy", "_capacity", "_holders", "_ready", "_senders", "_urgent", "waiting")

    def __init__(self, capacity: int, *, is_keyed: bool) -> None:
        self._capacity = capacity
        self.waiting = 0
        """How many messages have been taken in and not handed out, or have room taken for them; the system's apart."""
        self._box: deque[Envelope] | None = None
        self._urgent: deque[Envelope] | None = None
        self._senders: deque[asyncio.Future[None]] | None = None
        self._busy: dict[str, deque[Envelope]] | None = {} if is_keyed else None
        """By key, what waits for the message of that key that is being handled."""
        self._holders: dict[str, Envelope] | None = {} if is_keyed else None
        """By key, the message that is being handled."""
        self._ready: deque[str] = deque() if is_keyed else _NOTHING
        """Keys whose message was handled, and which have another."""

    @property
    def is_idle(self) -> bool:
        """Whether nothing waits, nothing is being handled, and nobody waits for room."""
        return not (self.waiting or self._urgent or self._holders or self._senders)

    def reserve(self) -> bool:
        """Take room for a message, if there is any and nobody waits for it."""
        if self.waiting >= self._capacity or self._senders:
            return False
        self.waiting += 1
        return True

    async def room(self) -> None:
        """Wait until there is room, and take it; whoever waits longest comes first."""
        if self._senders is None:
            self._senders = deque()
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._senders.append(turn)
        try:
            await turn
        except asyncio.CancelledError:
            if turn in self._senders:
                self._senders.remove(turn)
            elif turn.done() and not turn.cancelled():
                self.release()
            raise

    def release(self) -> None:
        """Give room back that is not needed: a message was handed out, or is not coming."""
        self.waiting -= 1
        while self._senders:
            turn = self._senders.popleft()
            if not turn.done():
                self.waiting += 1
                turn.set_result(None)
                break

    def put(self, envelope: Envelope) -> None:
        """Take a message in, behind those that wait. Room for it was taken before."""
        if self._box is None:
            self._box = deque()
        self._box.append(envelope)

    def offer(self, envelope: Envelope) -> bool:
        """Take a message in, if there is room and nobody waits for it; say whether that could be done."""
        if self.waiting >= self._capacity or self._senders:
            return False
        self.waiting += 1
        if self._box is None:
            self._box = deque((envelope,))
        else:
            self._box.append(envelope)
        return True

    def put_last(self, envelope: Envelope) -> None:
        """Take a message in that must not be refused, however full it is."""
        self.waiting += 1
        self.put(envelope)

    def put_first(self, envelope: Envelope) -> None:
        """Take a message back that was handed out, before all that wait."""
        held = None if self._busy is None else self._busy.get(envelope.key)
        if held is not None:
            held.appendleft(envelope)
        elif self._box is None:
            self._box = deque((envelope,))
        else:
            self._box.appendleft(envelope)
        self.waiting += 1

    def put_urgent(self, envelope: Envelope) -> None:
        """Take a message of the system in."""
        if self._urgent is None:
            self._urgent = deque()
        envelope.is_urgent = True
        self._urgent.append(envelope)

    def next(self) -> Envelope | None:
        """Hand out the next message that may be handled; None if there is none at present."""
        if self._urgent:
            return self._urgent.popleft()
        envelope = self._next_free() if self._busy is not None else self._box.popleft() if self._box else None
        if envelope is None:
            self._box = self._box or None
            self._urgent = None
            return None
        if self._senders:
            self.release()
        else:
            self.waiting -= 1
        return envelope

    def _next_free(self) -> Envelope | None:
        busy, holders = self._busy, self._holders
        assert busy is not None and holders is not None  # noqa: S101, PT018 (only asked where messages have keys)
        if self._ready:
            key = self._ready.popleft()
            envelope = holders[key] = busy[key].popleft()
            return envelope
        while self._box:
            envelope = self._box.popleft()
            if (held := busy.get(envelope.key)) is None:
                busy[envelope.key], holders[envelope.key] = deque(), envelope
                return envelope
            held.append(envelope)
        return None

    def done(self, envelope: Envelope) -> None:
        """Let the next message of the same thread or sender follow. To say it twice does no harm."""
        if self._busy is None or self._holders is None or self._holders.get(envelope.key) is not envelope:
            return
        del self._holders[envelope.key]
        if self._busy[envelope.key]:
            self._ready.append(envelope.key)
        else:
            del self._busy[envelope.key]

    def close(self) -> list[Envelope]:
        """Hand out everything at once, and let all senders go on."""
        held = [envelope for queue in (self._busy or {}).values() for envelope in queue]
        found = [*(self._urgent or ()), *held, *(self._box or ())]
        self._urgent = self._box = None
        self._ready.clear()
        if self._busy is not None:
            self._busy = {key: deque() for key in self._busy}
        self.waiting = 0
        while self._senders:
            self.release()
        return found


_NOTHING: deque[str] = deque(maxlen=0)
