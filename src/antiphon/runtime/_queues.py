"""Queues: where deliveries are kept while they wait.

| class | holds | until |
|---|---|---|
| `Mailbox` | the messages to one actor, and the senders that wait for room | a drain of its cell takes them |
| `Deadlines` | the deliveries that have a caller | they are answered, or expire |
| `InFlight` | the messages of threads that this system handles | their outcome is stored |
| `Recent` | the latest messages outside of threads that have an id of their own | newer ones replace them |

**Mailbox.** Messages are handed out in order. Messages of the system come first, however full it is. If an actor handles
several messages at once, those with the same ordering key (by default the thread, else the sender) are still handled one
after the other: while one is handled, the next ones are held back.

**Deadlines.** A timer of the event loop for every ask would cost as much as the ask. So deadlines are rounded up to the next
tick, all of one tick share a bucket, and only the earliest bucket has a timer. Distant deadlines are rounded more, to a
five-hundredth of the time that is left. So there are at most a few thousand buckets, however long callers wait.

No method but `Mailbox.wait_for_room` awaits, so each is one step of the event loop, and nothing here needs a lock.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict, deque
from collections.abc import Callable
from heapq import heappop, heappush
from typing import TypeAlias

from antiphon.errors import AntiphonError
from antiphon.messages import Message
from antiphon.runtime._delivery import DeliveryState

OrderingKey: TypeAlias = "Callable[[Message], str | None]"
"""Computes the ordering key of a message."""


class Mailbox:
    """The messages that wait for an actor. Queues are made when needed and dropped when empty: most actors are idle."""

    __slots__ = ("_box", "_busy", "_capacity", "_holders", "_ordering_key", "_ready", "_senders", "_urgent", "waiting")

    def __init__(self, capacity: int, *, is_keyed: bool, ordering_key: OrderingKey | None = None) -> None:
        self._ordering_key = ordering_key
        self._capacity = capacity
        self.waiting = 0
        """How many messages wait, or have room reserved; messages of the system do not count."""
        self._box: deque[DeliveryState] | None = None
        self._urgent: deque[DeliveryState] | None = None
        self._senders: deque[asyncio.Future[None]] | None = None
        self._busy: dict[str, deque[DeliveryState]] | None = {} if is_keyed else None
        """By ordering key of a message that is being handled, those that wait behind it."""
        self._holders: dict[str, DeliveryState] | None = {} if is_keyed else None
        """By key, the message that is being handled."""
        self._ready: deque[str] = deque() if is_keyed else _NOTHING
        """Ordering keys whose message was handled, and that have another one waiting."""

    @property
    def is_idle(self) -> bool:
        """Whether no message waits or is being handled, and no sender waits for room."""
        return not (self.waiting or self._urgent or self._holders or self._senders)

    def reserve(self) -> bool:
        """Reserve room for a message, if there is any and no sender waits for it."""
        if self.waiting >= self._capacity or self._senders:
            return False
        self.waiting += 1
        return True

    async def wait_for_room(self) -> None:
        """Wait until there is room, and reserve it; the sender that has waited longest comes first."""
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
                self.release()  # room was given and the sender cancelled in the same step: the next sender gets it
            raise

    def release(self) -> None:
        """Give back room: a message was handed out, or is not coming. The first sender that waits gets it at once."""
        self.waiting -= 1
        while self._senders:
            turn = self._senders.popleft()
            if not turn.done():
                self.waiting += 1
                turn.set_result(None)
                break

    def put(self, delivery: DeliveryState) -> None:
        """Add a message. Its room was reserved before."""
        if self._box is None:
            self._box = deque()
        self._box.append(delivery)

    def offer(self, delivery: DeliveryState) -> bool:
        """Add a message if there is room and no sender waits for it; return whether it was added."""
        if self.waiting >= self._capacity or self._senders:
            return False
        self.waiting += 1
        if self._box is None:
            self._box = deque((delivery,))
        else:
            self._box.append(delivery)
        return True

    def put_last(self, delivery: DeliveryState) -> None:
        """Add a message that must not be refused, however full the mailbox is."""
        self.waiting += 1
        self.put(delivery)

    def put_first(self, delivery: DeliveryState) -> None:
        """Put back a message that was handed out, before all that wait: its order in the thread is kept."""
        held = None if self._busy is None else self._busy.get(self._key(delivery))
        if held is not None:
            held.appendleft(delivery)
        elif self._box is None:
            self._box = deque((delivery,))
        else:
            self._box.appendleft(delivery)
        self.waiting += 1

    def put_urgent(self, delivery: DeliveryState) -> None:
        """Add a message of the system, which comes before all others."""
        if self._urgent is None:
            self._urgent = deque()
        delivery.is_urgent = True
        self._urgent.append(delivery)

    def next(self) -> DeliveryState | None:
        """Hand out the next message that may be handled now; None if there is none."""
        if self._urgent:
            return self._urgent.popleft()
        delivery = self._next_free() if self._busy is not None else self._box.popleft() if self._box else None
        if delivery is None:
            self._box = self._box or None
            self._urgent = None
            return None
        if self._senders:
            self.release()
        else:
            self.waiting -= 1
        return delivery

    def _next_free(self) -> DeliveryState | None:
        busy, holders = self._busy, self._holders
        assert busy is not None and holders is not None  # noqa: S101, PT018 (only asked where messages have keys)
        if self._ready:
            key = self._ready.popleft()
            delivery = holders[key] = busy[key].popleft()
            return delivery
        while self._box:
            delivery = self._box.popleft()
            key = self._key(delivery)
            if (held := busy.get(key)) is None:
                busy[key], holders[key] = deque(), delivery
                return delivery
            held.append(delivery)
        return None

    def _key(self, delivery: DeliveryState) -> str:
        """Return the ordering key: what the actor says, else the thread, else the sender. It is computed once."""
        if delivery.key is None:
            choose = self._ordering_key
            delivery.key = (None if choose is None else choose(delivery.message)) or delivery.thread_id or delivery.sender
        return delivery.key

    def done(self, delivery: DeliveryState) -> None:
        """Release the next message with the same ordering key. A second call for the same message does nothing."""
        if self._busy is None or self._holders is None:
            return
        key = self._key(delivery)
        if self._holders.get(key) is not delivery:
            return
        del self._holders[key]
        if self._busy[key]:
            self._ready.append(key)
        else:
            del self._busy[key]

    def close(self) -> list[DeliveryState]:
        """Hand out all messages, and wake all senders; they see that the cell has stopped."""
        held = [delivery for queue in (self._busy or {}).values() for delivery in queue]
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


# ---------------------------------------------------------------- deadlines

_TICK = 0.02
"""How late a deadline may be noticed, in seconds; more for one that is over ten seconds away."""
_FINE = 9
"""How many binary digits of the remaining ticks are kept."""


class Deadlines:
    """The deliveries that have a caller, by deadline."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._buckets: dict[int, dict[DeliveryState, None]] = {}
        self._ticks: list[int] = []
        self._timer: asyncio.TimerHandle | None = None
        self._armed = 0

    def add(self, delivery: DeliveryState, deadline: float) -> None:
        """Let a delivery expire at its deadline, unless it is removed from its bucket before."""
        tick = int(deadline / _TICK) + 1
        coarseness = (tick - int(self._loop.time() / _TICK)).bit_length() - _FINE
        if coarseness > 0:
            tick = ((tick >> coarseness) + 1) << coarseness
        bucket = self._buckets.get(tick)
        if bucket is None:
            bucket = self._buckets[tick] = {}
            heappush(self._ticks, tick)
            if self._timer is None or tick < self._armed:
                self._arm(tick)
        bucket[delivery] = None
        delivery.bucket = bucket

    def close(self) -> None:
        """Forget them all."""
        if self._timer is not None:
            self._timer.cancel()
        self._buckets.clear()
        self._ticks.clear()

    def _arm(self, tick: int) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._armed = tick
        self._timer = self._loop.call_at(tick * _TICK, self._ring)

    def _ring(self) -> None:
        self._timer = None
        now = self._loop.time()
        while self._ticks and self._ticks[0] * _TICK <= now:
            for delivery in self._buckets.pop(heappop(self._ticks)):
                delivery.expire()
        if self._ticks:
            self._arm(self._ticks[0])


# ---------------------------------------------------------------- messages that are or were handled


class InFlight:
    """The messages of threads that this system handles: appended, or about to be, and not ended.

    At most one delivery of a message is in flight. That is what makes duplicates wait instead of running twice.
    """

    def __init__(self) -> None:
        self._threads: dict[str, dict[str, DeliveryState]] = {}
        """By thread, then by invocation. A thread without messages in flight has no entry."""

    def __len__(self) -> int:
        return sum(map(len, self._threads.values()))

    def get(self, delivery: DeliveryState) -> DeliveryState | None:
        """Return the delivery of the same message that is in flight."""
        return self._threads.get(delivery.envelope.thread_id or "", _NONE).get(delivery.invocation_id)

    def has(self, delivery: DeliveryState) -> bool:
        """Whether a message is in flight."""
        return delivery.invocation_id in self._threads.get(delivery.envelope.thread_id or "", _NONE)

    def has_thread(self, thread_id: str) -> bool:
        """Whether any message of a thread is in flight."""
        return thread_id in self._threads

    def of_thread(self, thread_id: str) -> tuple[DeliveryState, ...]:
        """Return the deliveries of a thread."""
        return tuple(self._threads.get(thread_id, _NONE).values())

    def take_over(self, delivery: DeliveryState) -> None:
        """Add a message, or make this delivery the one of its message."""
        self._threads.setdefault(delivery.envelope.thread_id or "", {})[delivery.invocation_id] = delivery

    def drop(self, delivery: DeliveryState) -> None:
        """Remove a message."""
        thread_id = delivery.envelope.thread_id or ""
        if (found := self._threads.get(thread_id)) is not None:
            found.pop(delivery.invocation_id, None)
            if not found:
                del self._threads[thread_id]

    def drop_thread(self, thread_id: str) -> tuple[DeliveryState, ...]:
        """Remove all messages of a thread, and return their deliveries."""
        return tuple(self._threads.pop(thread_id, _NONE).values())

    def abandon(self, delivery: DeliveryState, error: AntiphonError) -> None:
        """Remove a message without ending its call, which stays open for the next owner. The caller gets an error."""
        self.drop(delivery)
        delivery.fail(error)


_NONE: dict[str, DeliveryState] = {}


class Recent:
    """The latest messages by id, handled or answered. One that failed with a retryable error may be sent again."""

    def __init__(self, limit: int = 10_000) -> None:
        self._limit = limit
        self._kept: OrderedDict[str, DeliveryState] = OrderedDict()

    def knows(self, delivery: DeliveryState) -> bool:
        """Whether the same message came before; then it gets that outcome. Otherwise it is kept."""
        known = self._kept.get(delivery.id)
        if known is not None and not _may_pass(known):
            known.share_outcome(delivery)
            return True
        self._kept[delivery.id] = delivery
        if len(self._kept) > self._limit:
            self._kept.popitem(last=False)
        return False

    def message(self, id: str) -> Message | None:
        """Return a message by its id."""
        known = self._kept.get(id)
        return None if known is None else known.message


def _may_pass(delivery: DeliveryState) -> bool:
    error = None if delivery.outcome is None else delivery.outcome[1]
    return isinstance(error, AntiphonError) and error.retryable
