"""What an append asks for, made ready before it reaches a store: checked, stamped, redacted, and written down once."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime
from functools import lru_cache
from typing import NamedTuple

from antiphon.ledger._chain import to_micros
from antiphon.ledger._outside import from_outside
from antiphon.ledger._redaction import Redaction
from antiphon.ledger._values import Snapshot
from antiphon.messages import RESERVED_POLICIES, Message, current_port, dumps, is_name, thaw
from antiphon.messages._json import write
from antiphon.messages._message import stored_form
from antiphon.messages._model import house_bytes

__all__ = ["Entry", "Request", "check_limit", "check_name", "make_post", "make_request"]

_BEFORE_THREAD = frozenset({"antiphon", "id", "policy", "payload", "role_hint_for_llm", "step_num", "turn_id"})
"""The fields that stand before `thread_id` in the house form."""


class Entry(NamedTuple):
    """A message on its way in, and the bytes that will be stored."""

    message: Message
    """Without a thread, if it was given so; nothing here looks at that field."""
    body: bytes
    is_stamped: bool
    """Whether the bytes have a thread that the message has not."""
    row: Entry | None = None
    """Of foreign history, the row as it came: where the thread has it already, nothing is stored."""


class Request(NamedTuple):
    """One append, ready to be decided on."""

    thread_id: str
    entries: tuple[Entry, ...]
    now: datetime
    micros: int
    expected_version: int | None = None
    epoch: int | None = None
    outbox: tuple[bytes, ...] = ()
    snapshot: tuple[str, bytes] | None = None
    """The fold's name, and the state as JSON."""
    status: str | None = None
    pattern: str | None = None
    allow_foreign: bool = False
    is_post: bool = False
    is_outside: bool = False
    foreign: tuple[Entry, ...] = ()
    """Foreign history, which stands after the talk: between calls and results it would part them."""

    @property
    def weight(self) -> int:
        """About how many bytes it takes."""
        return sum([len(entry.body) for entry in (*self.entries, *self.foreign)], 1024) + sum(map(len, self.outbox))

    @property
    def is_empty(self) -> bool:
        """Whether it would change nothing."""
        return not (self.entries or self.foreign or self.outbox or self.snapshot or self.status or self.pattern)


def make_request(
    thread_id: str,
    messages: Iterable[Message],
    *,
    redaction: Redaction | None = None,
    expected_version: int | None = None,
    epoch: int | None = None,
    outbox: Iterable[Message] = (),
    snapshot: Snapshot | None = None,
    status: str | None = None,
    pattern: str | None = None,
    allow_foreign: bool = False,
    is_post: bool = False,
    outside: bool = False,
) -> Request:
    """Return an append as a store takes it.

    Raises:
        ValueError: a name is none, a message is of another thread, or `post` was given what only an owner may append.
        TypeError: something else than a message was given.
    """
    check_name(thread_id, "a thread's id")
    if status is not None:
        check_name(status, "a status")
    if pattern is not None:
        check_name(pattern, "a pattern")
    now = current_port().now()
    entries = [_entry(thread_id, message, redaction, is_post) for message in messages]
    foreign: list[Entry] = []
    if outside:
        entries, foreign = _from_outside(thread_id, entries)
    return Request(
        thread_id,
        tuple(entries),
        now,
        to_micros(now),
        expected_version,
        epoch,
        tuple([dumps(_checked(message, redaction)) for message in outbox]),
        None if snapshot is None else _written(snapshot, redaction),
        status,
        pattern,
        allow_foreign,
        is_post,
        outside,
        tuple(foreign),
    )


def make_post(thread_id: str, message: Message, *, redaction: Redaction | None = None, by: str | None = None) -> Request:
    """Return the append of a posted message; `by` is somebody outside whose message it is.

    Raises:
        ValueError: it is addressed to nobody, of the journal, or of another thread; or `by` is a name of the machine.
        TypeError: something else than a message was given.
    """
    if by in RESERVED_POLICIES:
        raise ValueError(f"{by!r} is a name of the machine; nobody outside has it")
    if by is not None:
        check_name(by, "the name of somebody outside")
        message = _checked(message, None).model_copy(update={"policy": by})
    return make_request(thread_id, (message,), redaction=redaction, is_post=True, outside=by is not None)


def check_limit(limit: int) -> None:
    """Refuse what cannot be a number of things.

    Raises:
        ValueError: it is less than nothing.
    """
    if limit < 0:
        raise ValueError(f"a limit is 0 or more, not {limit}")


@lru_cache(maxsize=4096)
def check_name(name: str, what: str) -> None:
    """Refuse what cannot be a name.

    Raises:
        ValueError: it is not one.
    """
    if not is_name(name):
        raise ValueError(f"{what} is a name of 1 to 512 visible characters, not {name!r}")


def _entry(thread_id: str, message: Message, redaction: Redaction | None, is_post: bool) -> Entry:
    message = _checked(message, redaction)
    if is_post:
        _refuse_unposted(message)
    if message.thread_id is None:
        return Entry(message, _stamped(message, thread_id), is_stamped=True)
    if message.thread_id != thread_id:
        raise ValueError(f"message {message.id!r} is of thread {message.thread_id!r}; append it there, or fork")
    return Entry(message, dumps(message), is_stamped=False)


def _from_outside(thread_id: str, entries: Iterable[Entry]) -> tuple[list[Entry], list[Entry]]:
    """Return what comes from outside as it is stored: the talk, and the foreign history."""
    talk: list[Entry] = []
    foreign: list[Entry] = []
    for entry in entries:
        message = from_outside(entry.message)
        if message is entry.message:
            talk.append(entry)
        elif entry.message.lane == "talk":
            talk.append(_entry(thread_id, message, None, is_post=False)._replace(row=entry))
        else:
            foreign.append(_entry(thread_id, message, None, is_post=False)._replace(row=entry))
    return talk, foreign


def _checked(message: Message, redaction: Redaction | None) -> Message:
    if not isinstance(message, Message):  # pyright: ignore[reportUnnecessaryIsInstance]
        raise TypeError(f"a ledger holds messages, not {type(message).__name__}")
    return message if redaction is None else redaction.message(message)


def _refuse_unposted(message: Message) -> None:
    if not message.to:
        raise ValueError(f"message {message.id!r} is addressed to nobody; post takes addressed messages, append the owner's")
    if message.lane == "effect":
        raise ValueError(f"message {message.id!r} is of the journal, which only the thread's owner writes; use append")


def _stamped(message: Message, thread_id: str) -> bytes:
    """Return a message's bytes with the thread in them, at its place among the fields.

    The same as writing a copy that has the thread, without making and checking one, which takes six times as long.
    """
    form = stored_form(message)
    before = {name: value for name, value in form.items() if name in _BEFORE_THREAD}
    return house_bytes({**before, "thread_id": thread_id, **form})


def _written(snapshot: Snapshot, redaction: Redaction | None) -> tuple[str, bytes]:
    check_name(snapshot.fold, "a fold's name")
    state = thaw(snapshot.state)
    return snapshot.fold, write(state if redaction is None else redaction.value(state))
