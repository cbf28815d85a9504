"""States: the phases of a delivery, and the one table of what may follow what.

Two rules: every change of phase goes through `DeliveryState.turn`, which looks it up here, and nothing else in the runtime
says where a delivery is. A change that is not in the table is a fault of the runtime, and raises `TransitionError`.

**What is in the ledger.** A call is *open* from the append of its row until the append of its end; a notice is open while its
DELIVER row is. Outside of threads nothing is in the ledger, and a crash loses the message in every phase. In a thread:

| phase | in the ledger | a crash leaves |
|---|---|---|
| `NEW` | nothing of this delivery; of an earlier one, an open call | what was there |
| `APPENDING` | the row, or nothing: nobody knows before the append returns | the open call, or nothing |
| `REDELIVERING` | the open call; AGAIN, the row of this redelivery, or not | the open call; one attempt too many |
| `QUEUED` | the open call | the open call |
| `RUNNING` | the open call, and the rows of its handler | the open call, and effects with an intent and no outcome |
| `ENDING` | the end, or nothing of it | the open call, or the end: both are whole, with all leftovers |
| `ENDED` | the end | the end |
| `LEFT` | the open call; if it is parked, PARK | the open call |
| `EVICTED` | whatever the next owner writes | nothing of this host |
| `POSTED` | the open call, in a thread that another host has | the open call |
| `MERGED` | one call for several deliveries | what the delivery leaves that it was merged with |
| `UNDELIVERED` | the row, or nothing | the open call, or nothing: `recover_later` reads the thread again |

So an open call is the only thing that recovery looks for (ADR 0008), and no phase needs a row of its own.

**The order of append and change.** `APPENDING`, `REDELIVERING` and `ENDING` begin before the append and end after it: while
they last, another task finds the delivery in flight, and does not write the same row. A caller gets its outcome only from
`ENDED` on. Otherwise it could act on an answer that the next run of the handler does not give.

**The handler is not the message.** A handler may answer early and go on (`ENDED`), or wait for a person (`LEFT`). So whether
it still runs is no phase; `Work` has its task, and why it is stopped.

**Eviction** comes at any moment, also in the middle of an append. Then the steps that were under way end, one after the other,
and none of them changes anything: that is the long row of `EVICTED`. No step begins there: it has no `ACCEPT`, `START`, `END`.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from typing import Final


class Phase(StrEnum):
    """How far a delivery is."""

    NEW = "new"
    """Nothing was done about it."""
    APPENDING = "appending"
    """Its row is being appended, or its sender waits for room in the mailbox before that. It is in flight from here on."""
    REDELIVERING = "redelivering"
    """Its call is open, and it is being delivered again."""
    QUEUED = "queued"
    """It is in the mailbox."""
    RUNNING = "running"
    """It was taken out of the mailbox: its handler runs, or the runtime decides about it."""
    ENDING = "ending"
    """Its end is being appended."""
    ENDED = "ended"
    """It has an outcome."""
    LEFT = "left"
    """Its call stays open, and nothing is done about it here: it is parked, or for the next system."""
    EVICTED = "evicted"
    """Another host has its thread. Its caller gets the outcome from the ledger."""
    POSTED = "posted"
    """It is for a thread of another host. Its caller gets the outcome from the ledger."""
    MERGED = "merged"
    """Another delivery of the same message has its caller: it was forwarded, or is a duplicate."""
    UNDELIVERED = "undelivered"
    """Its append raised, and its sender has the error."""


class Event(StrEnum):
    """What changes the phase of a delivery."""

    APPEND = "append"
    """Its row is about to be appended."""
    REDELIVER = "redeliver"
    """It is about to be delivered again."""
    ACCEPT = "accept"
    """It is put into the mailbox."""
    START = "start"
    """Its handler starts, or the command that it is."""
    END = "end"
    """Its end is about to be appended."""
    STORED = "stored"
    """Its end is stored."""
    UNSTORED = "unstored"
    """The append of its end raised."""
    SETTLE = "settle"
    """Its callers get an outcome that nothing is appended for: outside of a thread, or from the ledger."""
    LEAVE = "leave"
    """Its call stays open."""
    MERGE = "merge"
    """Another delivery takes over its caller."""
    POST = "post"
    """It was posted, or is in the thread of another host already."""
    FENCED = "fenced"
    """The ledger has refused its row, because another host has the thread."""
    CLOSED = "closed"
    """Its call is not open any more: it ended after it was read."""
    REFUSE = "refuse"
    """Its sender gets an error, and it is unknown whether its row is stored."""
    EVICT = "evict"
    """This host has lost its thread."""


class TransitionError(RuntimeError):
    """A fault of the runtime: a delivery was to do what cannot follow."""

    def __init__(self, phase: Phase, event: Event, name: str) -> None:
        super().__init__(f"{name}: a delivery that is {phase.value} cannot take {event.value!r}")
        self.phase, self.event = phase, event


TRANSITIONS: Final[Mapping[Phase, Mapping[Event, Phase]]] = {
    Phase.NEW: {
        Event.APPEND: Phase.APPENDING,
        Event.REDELIVER: Phase.REDELIVERING,  # the call of a recovered message, or of one that was sent again
        Event.ACCEPT: Phase.QUEUED,  # outside of a thread, or forwarded
        Event.START: Phase.RUNNING,  # a recovered command; a question that an actor works out itself
        Event.END: Phase.ENDING,  # recovered too late; forwarded to nobody
        Event.SETTLE: Phase.ENDED,  # the ledger has its outcome
        Event.MERGE: Phase.MERGED,
        Event.POST: Phase.POSTED,
    },
    Phase.APPENDING: {
        Event.ACCEPT: Phase.QUEUED,
        Event.START: Phase.RUNNING,  # a command, and a question that an actor asks itself
        Event.END: Phase.ENDING,  # its actor has stopped meanwhile
        Event.LEAVE: Phase.LEFT,  # and the system closes
        Event.FENCED: Phase.NEW,  # surely not written
        Event.REFUSE: Phase.UNDELIVERED,
        Event.EVICT: Phase.EVICTED,
    },
    Phase.REDELIVERING: {
        Event.ACCEPT: Phase.QUEUED,
        Event.CLOSED: Phase.NEW,
        Event.END: Phase.ENDING,  # its actor has stopped meanwhile
        Event.LEAVE: Phase.LEFT,  # and the system closes; or it was delivered too often, and is parked
        Event.FENCED: Phase.NEW,
        Event.REFUSE: Phase.UNDELIVERED,
        Event.EVICT: Phase.EVICTED,
    },
    Phase.QUEUED: {
        Event.START: Phase.RUNNING,
        Event.END: Phase.ENDING,  # withdrawn, late, or its actor has stopped
        Event.SETTLE: Phase.ENDED,  # the same, outside of a thread
        Event.LEAVE: Phase.LEFT,
        Event.EVICT: Phase.EVICTED,
    },
    Phase.RUNNING: {
        Event.END: Phase.ENDING,
        Event.SETTLE: Phase.ENDED,
        Event.REDELIVER: Phase.REDELIVERING,  # its handler has failed, or was interrupted
        Event.ACCEPT: Phase.QUEUED,  # put back: the ledger is unavailable, or the actor could not be made
        Event.MERGE: Phase.MERGED,  # forwarded
        Event.LEAVE: Phase.LEFT,
        Event.REFUSE: Phase.UNDELIVERED,  # its actor has stopped, and its sender was cancelled while its end was appended
        Event.EVICT: Phase.EVICTED,
    },
    Phase.ENDING: {
        Event.STORED: Phase.ENDED,
        Event.UNSTORED: Phase.RUNNING,  # the caller that ends it gets the error, and decides
        Event.EVICT: Phase.EVICTED,
    },
    Phase.ENDED: {},
    Phase.LEFT: {},
    Phase.EVICTED: dict.fromkeys(
        (Event.STORED, Event.UNSTORED, Event.SETTLE, Event.LEAVE, Event.FENCED, Event.POST, Event.REFUSE),
        Phase.EVICTED,
    ),
    Phase.POSTED: {Event.SETTLE: Phase.ENDED},
    Phase.MERGED: {Event.SETTLE: Phase.ENDED},
    Phase.UNDELIVERED: {Event.END: Phase.ENDING},  # its sender was cancelled, and its row was written after all
}
