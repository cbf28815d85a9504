"""What an append asks for, made ready before it reaches a store: checked, stamped, redacted, and written down once.

Whether a thread is redacted is known only where it is looked up. So an append from which something was taken out also has the
form without that, and `for_thread` chooses. Nearly always nothing was taken out, and both are the same.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from datetime import datetime
from functools import lru_cache
from typing import NamedTuple

from antiphon.errors import SecretNameError
from antiphon.ledger._chain import to_micros
from antiphon.ledger._outside import from_outside
from antiphon.ledger._redaction import LedgerRedaction, Redaction
from antiphon.ledger._values import Snapshot
from antiphon.messages import NO_LIMITS, RESERVED_POLICIES, Message, current_port, dumps, is_name, loads, thaw
from antiphon.messages.json_values import write
from antiphon.messages.trusted import house_bytes, stored_form

_BEFORE_THREAD = frozenset({"antiphon", "id", "policy", "payload", "role_hint_for_llm", "step_num", "turn_id"})
"""The fields that stand before `thread_id` in the house form."""


NO_REDACTION = LedgerRedaction()


class AppendEntry(NamedTuple):
    """A message on its way in, and the bytes that will be stored."""

    message: Message
    """Without a thread, if it was given so; nothing here looks at that field."""
    body: bytes
    is_stamped: bool
    """Whether the bytes have a thread that the message has not."""
    row: AppendEntry | None = None
    """Of foreign history, the row as it came: where the thread has it already, nothing is stored."""


class AppendRequest(NamedTuple):
    """One append, ready to be decided on."""

    thread_id: str
    entries: tuple[AppendEntry, ...]
    now: datetime
    micros: int
    expected_version: int | None = None
    epoch: int | None = None
    snapshot: tuple[str, bytes] | None = None
    """The fold's name, and the state as JSON."""
    status: str | None = None
    pattern: str | None = None
    allow_foreign: bool = False
    is_post: bool = False
    is_outside: bool = False
    foreign: tuple[AppendEntry, ...] = ()
    """Foreign history, which stands after the talk: between calls and results it would part them."""
    redaction: LedgerRedaction = NO_REDACTION
    """What is taken out, and of which threads."""
    unredacted: AppendRequest | None = None
    """The same with nothing taken out; None if that makes no difference."""
    refusal: SecretNameError | None = None
    """Why a thread that is redacted does not take it."""

    def for_thread(self, is_redacted: bool | None) -> AppendRequest:
        """Return the append for a thread that is redacted, or not, or (None) where that is not known.

        Raises:
            SecretNameError: a name in it looks like a secret, and the thread is redacted.
        """
        if self.redaction.for_thread(is_redacted) is None:
            return self.unredacted or self
        if self.refusal is not None:
            raise self.refusal
        return self

    @property
    def weight(self) -> int:
        """About how many bytes it takes."""
        return sum([len(entry.body) for entry in (*self.entries, *self.foreign)], 1024)

    @property
    def is_empty(self) -> bool:
        """Whether it would change nothing."""
        return not (self.entries or self.foreign or self.snapshot or self.status or self.pattern)


def make_request(
    thread_id: str,
    messages: Iterable[Message],
    *,
    redaction: LedgerRedaction = NO_REDACTION,
    expected_version: int | None = None,
    epoch: int | None = None,
    snapshot: Snapshot | None = None,
    status: str | None = None,
    pattern: str | None = None,
    allow_foreign: bool = False,
    is_post: bool = False,
    outside: bool = False,
) -> AppendRequest:
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
    given = [_entry(thread_id, message, is_post) for message in messages]
    entries, foreign = _from_outside(thread_id, given) if outside else (given, [])
    request = AppendRequest(
        thread_id,
        tuple(entries),
        now,
        to_micros(now),
        expected_version,
        epoch,
        None if snapshot is None else _written(snapshot),
        status,
        pattern,
        allow_foreign,
        is_post,
        outside,
        tuple(foreign),
        redaction,
    )
    return request if redaction.rules is None else _redacted(request, redaction.rules, given)


def _redacted(request: AppendRequest, rules: Redaction, given: Sequence[AppendEntry]) -> AppendRequest:
    """Return an append with what must not be stored taken out; with a name that must not be, one that is refused.

    What comes from outside is redacted as it was given, before it becomes talk: foreign history holds rows as data.
    """
    if rules.is_clean(_joined(request, given)):
        return request
    for name, what in _names_in(request):
        if name is not None and rules.is_secret(name):
            return request._replace(unredacted=request, refusal=SecretNameError(what))
    clean = [_clean(entry, rules) for entry in given]
    snapshot = None if request.snapshot is None else (request.snapshot[0], rules.json(request.snapshot[1]))
    if (clean, snapshot) == (list(given), request.snapshot):
        return request
    entries, foreign = _from_outside(request.thread_id, clean) if request.is_outside else (clean, [])
    changed = request._replace(entries=tuple(entries), foreign=tuple(foreign), snapshot=snapshot)
    return changed._replace(unredacted=request)


def _joined(request: AppendRequest, given: Sequence[AppendEntry]) -> str:
    """Return everything that an append would store, as one text: one search is quicker than many."""
    fold, state = request.snapshot or ("", b"")
    bodies = [entry.body for entry in given]
    names = f"{request.thread_id}\n{request.status}\n{request.pattern}\n{fold}\n"
    return names + b"\n".join([*bodies, state]).decode()


def _names_in(request: AppendRequest) -> Iterator[tuple[str | None, str]]:
    yield request.thread_id, "the name of a thread"
    yield request.status, "the status of a thread"
    yield request.pattern, "the pattern of a thread"
    yield None if request.snapshot is None else request.snapshot[0], "the name of a fold"


def _clean(entry: AppendEntry, rules: Redaction) -> AppendEntry:
    body = rules.body(entry.body)
    return entry if body is entry.body else AppendEntry(loads(body, Message, limits=NO_LIMITS), body, is_stamped=False)


def make_post(thread_id: str, message: Message, *, redaction: LedgerRedaction, by: str | None = None) -> AppendRequest:
    """Return the append of a posted message; `by` is the name of its author outside.

    Raises:
        ValueError: it is addressed to nobody, of the journal, or of another thread; or `by` is a name of the machine.
        TypeError: something else than a message was given.
    """
    if by in RESERVED_POLICIES:
        raise ValueError(f"{by!r} is a name of the machine; nobody outside has it")
    if by is not None:
        check_name(by, "the name of somebody outside")
        message = _checked(message).model_copy(update={"policy": by})
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


def _entry(thread_id: str, message: Message, is_post: bool) -> AppendEntry:
    message = _checked(message)
    if is_post:
        _refuse_unposted(message)
    if message.thread_id is None:
        return AppendEntry(message, _stamped(message, thread_id), is_stamped=True)
    if message.thread_id != thread_id:
        raise ValueError(f"message {message.id!r} is of thread {message.thread_id!r}; append it there, or fork")
    return AppendEntry(message, dumps(message), is_stamped=False)


def _from_outside(thread_id: str, entries: Iterable[AppendEntry]) -> tuple[list[AppendEntry], list[AppendEntry]]:
    """Return what comes from outside as it is stored: the talk, and the foreign history."""
    talk: list[AppendEntry] = []
    foreign: list[AppendEntry] = []
    for entry in entries:
        message = from_outside(entry.message)
        if message is entry.message:
            talk.append(entry)
        elif entry.message.lane == "talk":
            talk.append(_entry(thread_id, message, is_post=False)._replace(row=entry))
        else:
            foreign.append(_entry(thread_id, message, is_post=False)._replace(row=entry))
    return talk, foreign


def _checked(message: Message) -> Message:
    if not isinstance(message, Message):  # pyright: ignore[reportUnnecessaryIsInstance]
        raise TypeError(f"a ledger holds messages, not {type(message).__name__}")
    return message


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


def _written(snapshot: Snapshot) -> tuple[str, bytes]:
    check_name(snapshot.fold, "a fold's name")
    return snapshot.fold, write(thaw(snapshot.state))
