"""Append requests: the arguments of an append, checked, redacted and serialised before they reach a store.

**Redaction.** Only the store knows whether a thread is redacted, after it has looked the thread up. So a request from which
secrets were removed also holds its unredacted form, and `for_thread` chooses between them. Nearly always the two forms are the
same.

**Messages from outside**, that is, from a file, a person or another program, are stored as talk. Approvals, gates, budgets,
flows and recovery act on rows of the control and the effect lane, and on open calls. So a message from outside must never
become such a row, whatever lane it claims:

- A row of another lane is stored as *foreign history*: a message of the talk lane whose only part holds the row as data. Its
  id is derived from the row, so the same row is stored once and cannot take an id that the runtime needs.
- A message of the talk lane is stored unchanged, except that metadata which only the runtime may write is removed. The mark of
  untrusted content stays.
- A call from outside that is still open at the end of the append gets an error result in that append (see `_admission`).

Foreign history is talk, so it is stored unchanged if it comes from outside again.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from datetime import datetime
from functools import lru_cache
from hashlib import sha256
from typing import Any, NamedTuple, cast

from pydantic import ValidationError

from antiphon.errors import SecretNameError
from antiphon.ledger._records import to_micros
from antiphon.ledger._redaction import LedgerRedaction, Redaction
from antiphon.ledger._values import Snapshot
from antiphon.messages import (
    RUNTIME_POLICY,
    ForeignPart,
    Json,
    JsonObject,
    Message,
    OptionCallPayload,
    OptionResultPayload,
    PartsPayload,
    current_port,
    dumps,
    loads,
    thaw,
)
from antiphon.messages._arguments import check_type
from antiphon.messages._json_values import parse, write
from antiphon.messages._message import RESERVED_POLICIES
from antiphon.messages._names import is_name
from antiphon.messages._settings import NO_LIMITS
from antiphon.messages._unchecked import house_bytes, stored_form

# ---------------------------------------------------------------- messages from outside

FOREIGN = "antiphon"
"""The dialect of the part that holds a foreign row."""
OUTSIDE_POLICY = "outside"
"""The policy of foreign history."""
NOT_EXECUTED = "not_executed"
"""The error type of the result that an open call from outside gets."""

_RUNTIME_METADATA = "antiphon"
"""The metadata that only the runtime writes: marks, principals, letters."""
_UNTRUSTED = "untrusted"
"""The mark of untrusted content. It only restricts, so it is kept."""
_NOT_EXECUTED_MESSAGE = "The call came from outside and was open. Calls from outside are never executed."


def from_outside(message: Message) -> Message:
    """Return a message from outside as it is stored: talk as talk, a row of another lane as foreign history."""
    if message.lane != "talk":
        return _foreign(message)
    notes = message.metadata.get(_RUNTIME_METADATA)
    allowed = (
        {_UNTRUSTED: notes[_UNTRUSTED]} if isinstance(notes, JsonObject) and isinstance(notes.get(_UNTRUSTED), str) else {}
    )
    if notes is None or notes == allowed:
        return message
    metadata: dict[str, Any] = {name: thaw(value) for name, value in message.metadata.items() if name != _RUNTIME_METADATA}
    return message.model_copy(update={"metadata": {**metadata, _RUNTIME_METADATA: allowed} if allowed else metadata})


def is_foreign(message: Message) -> bool:
    """Whether a message is foreign history."""
    return any(isinstance(part, ForeignPart) and part.dialect == FOREIGN for part in message.parts)


def is_not_executed(message: Message) -> bool:
    """Whether a message is the result of a call from outside that was open."""
    return isinstance(message.payload, OptionResultPayload) and message.payload.error_type == NOT_EXECUTED


def not_executed(call: Message, body: bytes, thread_id: str) -> Message:
    """Return the result of a call from outside that is still open; for the same bytes, the same result."""
    assert isinstance(call.payload, OptionCallPayload)  # noqa: S101 (only calls are open)
    result = OptionResultPayload(
        invocation_id=call.payload.invocation_id,
        option_name=call.payload.option_name,
        is_error=True,
        error_type=NOT_EXECUTED,
        error_message=_NOT_EXECUTED_MESSAGE,
        retryable=False,
    )
    return Message(
        id=f"closed-{_digest(body)}",
        policy=RUNTIME_POLICY,
        payload=result,
        role_hint_for_llm="tool",
        step_num=call.step_num,
        thread_id=thread_id,
        in_reply_to=call.id,
    )


def _foreign(row: Message) -> Message:
    body = dumps(row.model_copy(update={"thread_id": None}))
    for value in _forms(row, body):
        try:
            return Message(
                id=f"foreign-{_digest(body)}",
                policy=OUTSIDE_POLICY,
                payload=PartsPayload(parts=(ForeignPart(dialect=FOREIGN, value=value),)),
                thread_id=row.thread_id,
                created_at=row.created_at,
            )
        except ValidationError:
            continue  # the value is larger, or nested deeper, than a message allows
    raise AssertionError("unreachable: the last form is small")  # pragma: no cover


def _forms(row: Message, body: bytes) -> Iterator[Json]:
    """Yield the row as data: as JSON; as text, which is not nested; and as its digest, which is small."""
    yield parse(body)
    yield body.decode()
    yield {"id": row.id, "lane": row.lane, "bytes": len(body), "sha256": sha256(body).hexdigest()}


def _digest(data: bytes) -> str:
    return sha256(data).hexdigest()[:32]


# ---------------------------------------------------------------- append requests

NO_REDACTION = LedgerRedaction()


class AppendEntry(NamedTuple):
    """A message to append, and the bytes that will be stored."""

    message: Message
    """As the caller passed it: it may have no thread."""
    body: bytes
    is_stamped: bool
    """Whether the bytes name a thread and the message does not."""
    row: AppendEntry | None = None
    """For foreign history, the row as it came from outside. If the thread has that row, nothing is stored."""


class AppendRequest(NamedTuple):
    """The arguments of one append, ready for the admission."""

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
    """Foreign history, which is stored after the talk: in between, it would separate calls from their results."""
    redaction: LedgerRedaction = NO_REDACTION
    """The rules of redaction, and the threads that they apply to."""
    unredacted: AppendRequest | None = None
    """The same request without redaction; None if there is no difference."""
    refusal: SecretNameError | None = None
    """The error if the thread is redacted."""

    def for_thread(self, is_redacted: bool) -> AppendRequest:
        """Return the request for a thread that is redacted, or is not."""
        if self.redaction.for_thread(is_redacted) is None:
            return self.unredacted or self
        if self.refusal is not None:
            raise self.refusal
        return self

    @property
    def weight(self) -> int:
        """Its approximate size in bytes."""
        return sum([len(entry.body) for entry in self.entries + self.foreign], 1024)

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
    """Check the arguments of an append, and return them in the form that a store takes.

    Raises:
        ValueError: a name is not valid, a message belongs to another thread, or a posted message is one that only the owner
            may append.
        TypeError: a value is not a message.
    """
    check_name(thread_id, "a thread's id")
    if status is not None:
        check_name(status, "a status")
    if pattern is not None:
        check_name(pattern, "a pattern")
    if isinstance(messages, Message) or not isinstance(cast("object", messages), Iterable):  # a message yields its fields
        raise TypeError(f"an append takes a list of messages, such as [message], not a {type(messages).__name__}")
    now = current_port().now()
    originals = [_entry(thread_id, message, is_post) for message in messages]
    entries, foreign = _from_outside(thread_id, originals) if outside else (originals, [])
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
    return request if redaction.rules is None else _redacted(request, redaction.rules, originals)


def _redacted(request: AppendRequest, rules: Redaction, originals: Sequence[AppendEntry]) -> AppendRequest:
    """Return the request without secrets; if a name looks like a secret, a request that a redacted thread refuses.

    Messages from outside are redacted before they become talk, because foreign history holds rows as data.
    """
    fold, state = request.snapshot or ("", b"")
    stored_names = f"{request.thread_id}\n{request.status}\n{request.pattern}\n{fold}\n"
    # One search in all that the request would store: it takes a fraction of the time of many.
    if rules.is_clean(stored_names + b"\n".join([*(entry.body for entry in originals), state]).decode()):
        return request
    names = (
        (request.thread_id, "the name of a thread"),
        (request.status, "the status of a thread"),
        (request.pattern, "the pattern of a thread"),
        (None if request.snapshot is None else request.snapshot[0], "the name of a fold"),
    )
    for name, what in names:
        if name is not None and rules.is_secret(name):
            return request._replace(unredacted=request, refusal=SecretNameError(what))
    clean: list[AppendEntry] = []
    for entry in originals:
        body = rules.body(entry.body)
        is_same = body is entry.body
        clean.append(entry if is_same else AppendEntry(loads(body, Message, limits=NO_LIMITS), body, is_stamped=False))
    snapshot = None if request.snapshot is None else (request.snapshot[0], rules.json(request.snapshot[1]))
    if (clean, snapshot) == (list(originals), request.snapshot):
        return request
    entries, foreign = _from_outside(request.thread_id, clean) if request.is_outside else (clean, [])
    changed = request._replace(entries=tuple(entries), foreign=tuple(foreign), snapshot=snapshot)
    return changed._replace(unredacted=request)


def make_post(thread_id: str, message: Message, *, redaction: LedgerRedaction, by: str | None = None) -> AppendRequest:
    """Return the request of a `post`; `by` is the name of an outside author.

    Raises:
        ValueError: the message has no receiver, is in the effect lane, or belongs to another thread; or `by` is reserved.
        TypeError: the value is not a message.
    """
    if by in RESERVED_POLICIES:
        raise ValueError(f"{by!r} is reserved for the runtime; give the author another name")
    if by is not None:
        check_name(by, "the name of an author")
        message = _checked(message).model_copy(update={"policy": by})
    return make_request(thread_id, (message,), redaction=redaction, is_post=True, outside=by is not None)


def check_limit(limit: int) -> None:
    """Refuse a negative limit."""
    check_type("a limit", limit, int, "50")
    if limit < 0:
        raise ValueError(f"a limit is 0 or more, not {limit}")


@lru_cache(maxsize=4096)
def check_name(name: str, what: str) -> None:
    """Refuse a text that is not a valid name."""
    if not is_name(name):
        raise ValueError(f"{what} is a name of 1 to 512 visible characters, not {name!r}")


def _entry(thread_id: str, message: Message, is_post: bool) -> AppendEntry:
    message = _checked(message)
    if is_post and not message.to:
        raise ValueError(f"message {message.id!r} has no receiver; set `to`, or use append as the owner of the thread")
    if is_post and message.lane == "effect":
        raise ValueError(f"message {message.id!r} is in the effect lane, which only the thread's owner writes; use append")
    if message.thread_id is None:
        # The same bytes as of a copy with the thread; making and checking a copy takes six times as long.
        return AppendEntry(message, house_bytes(stored_form(message, thread_id)), is_stamped=True)
    if message.thread_id != thread_id:
        raise ValueError(f"message {message.id!r} belongs to thread {message.thread_id!r}; append it there, or fork")
    return AppendEntry(message, dumps(message), is_stamped=False)


def _from_outside(thread_id: str, entries: Iterable[AppendEntry]) -> tuple[list[AppendEntry], list[AppendEntry]]:
    """Return messages from outside as they are stored: the talk, and the foreign history."""
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


def _written(snapshot: Snapshot) -> tuple[str, bytes]:
    check_name(snapshot.fold, "a fold's name")
    return snapshot.fold, write(thaw(snapshot.state))
