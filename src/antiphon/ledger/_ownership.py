"""The owner of a thread and the time at which it is due: all changes to them, as pure functions over its state.

**Owner.** A host owns a thread, or a caller that has claimed it without a host, or nobody. Every change of owner changes the
epoch. A negative epoch says that the owner has released the thread. No append can pass a negative epoch, so the next append
needs a claim.

**Kind.** The kind of host that can run a thread. A claim sets it. If no claim has, the first posted message sets it to the
kind of its first receiver's address (`agent` of `agent/7`). Otherwise a thread has no kind. A kind never changes.

**Due.** `due_at` is the time at which the thread has work to do. `posted` is the place of the last posted message that no
owner has reported as seen (0: none).

- `post` sets `posted`. It sets `due_at` to the time of the post, unless `due_at` is earlier.
- `seen` clears both, if it covers the last posted message. Nothing else clears `posted`: if an owner dies between reading
  a message and handling it, the thread stays due.
- `release` keeps `due_at` while there are posted messages; `wake_at` can make it earlier. Without posted messages it sets
  `due_at` to `wake_at`, or clears it. A release with an unfit build makes the thread due at once.
- A claim changes neither. While the owner is alive, no other host takes the thread, due or not.

**Moved.** A thread that was moved to another ledger has no owner and is never due. It refuses claims, appends and posts. The
mark holds its destination and the work that waited for a host, so that an interrupted copy can be repeated.

A host may take a thread without an owner when `due_at` has passed. It may take a thread of a dead host when there are open
calls, or `due_at` has passed.
"""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime
from typing import Any, NamedTuple, TypeAlias

import orjson

from antiphon.errors import FencedError, LedgerCorruptError
from antiphon.ledger._admission import MOVED, State, check_here, move_of
from antiphon.ledger._encryption import WITHHELD
from antiphon.ledger._hosts import Host, Unfit, Why
from antiphon.ledger._records import from_micros, to_micros
from antiphon.ledger._redaction import LedgerRedaction
from antiphon.ledger._request import check_name
from antiphon.ledger._values import ThreadStanding
from antiphon.messages import current_port

OWNED = "stop it there, or wait, then move it"
"""The advice for a thread that cannot be moved."""
_LONGEST_REASON = 2000
"""Characters of a reason that are stored: enough for a message, too few for a traceback of megabytes."""


class Release(NamedTuple):
    """The arguments of a release."""

    epoch: int
    now: int
    seen: int | None = None
    wake_at: int | None = None
    unfit: str | None = None
    """The build that cannot continue it."""
    reason: str = ""


def check_owner(state: State, epoch: int) -> None:
    """Check that an epoch is the owner's."""
    if epoch <= 0 or epoch != state.epoch:
        raise FencedError(state.thread_id, epoch, abs(state.epoch))


def claimed(state: State, owner: int | None, kind: str | None = None, *, build: str | None = None) -> State:
    """Return the state of a thread with a new owner, without the mark that `build` is unfit for it."""
    check_here(state)
    unfit = state.unfit
    if unfit is not None and build is not None:
        unfit = _written({name: rest for name, rest in _read(state).items() if name != build})
    kind = state.kind or kind  # the first kind stays: a later claim may be for a message to another actor
    return state._replace(epoch=abs(state.epoch) + 1, owner=owner, kind=kind, unfit=unfit)


def released(state: State, release: Release) -> State:
    """Return the state of a thread after its owner has released it."""
    check_owner(state, release.epoch)
    # `seen` first: it clears `posted`, and only messages that are still posted keep the thread due.
    state = state if release.seen is None else seen(state, release.seen)
    due_at = _earliest(state.due_at if state.posted else None, release.wake_at)
    if release.unfit is not None:
        due_at = _earliest(due_at, release.now)
        state = state._replace(unfit=_written({**_read(state), release.unfit: (release.reason, release.now)}))
    return state._replace(epoch=-state.epoch, owner=None, due_at=due_at)


def moved(state: State, to: str, now: int) -> State:
    """Return the state of a thread that was moved: no host owns it or may take it, and earlier owners are fenced."""
    if (move := move_of(state)) is not None and move.to == to:
        return state
    check_here(state)
    mark = orjson.dumps({"to": to, "due_at": state.due_at, "posted": state.posted}).decode()
    unfit = _written({**_read(state), MOVED: (mark, now)})
    return state._replace(epoch=-(abs(state.epoch) + 1), owner=None, due_at=None, posted=0, unfit=unfit)


def standing_of(state: State) -> ThreadStanding:
    """Return the stored data of a thread other than its rows; for a moved thread, as of the move."""
    move = move_of(state)
    due_at, posted = (state.due_at, state.posted) if move is None else (move.due_at, move.posted)
    return ThreadStanding(
        from_micros(state.created_at),
        from_micros(state.updated_at),
        state.status,
        state.pattern,
        state.kind,
        None if due_at is None else from_micros(due_at),
        posted,
    )


_Unfit: TypeAlias = dict[str, tuple[str, int]]


def _read(state: State) -> _Unfit:
    """Return the builds that cannot continue a thread, each with the reason and the time."""
    try:
        builds: dict[str, Any] = {} if state.unfit is None else orjson.loads(state.unfit)
        return {build: (str(reason), int(at)) for build, (reason, at) in builds.items()}
    except (ValueError, TypeError, AttributeError) as exc:
        raise LedgerCorruptError("the list of unfit builds was altered", state.thread_id) from exc


def _written(unfit: _Unfit) -> str | None:
    return orjson.dumps(unfit, option=orjson.OPT_SORT_KEYS).decode() if unfit else None


def unfit_of(state: State) -> tuple[Unfit, ...]:
    """Return the builds that cannot continue a thread, by name."""
    builds = sorted((build, rest) for build, rest in _read(state).items() if build != MOVED)
    return tuple(Unfit(build, reason, from_micros(at)) for build, (reason, at) in builds)


def seen(state: State, upto: int) -> State:
    """Return the state of a thread whose owner has handled all posted messages up to a place."""
    return state if upto < state.posted else state._replace(posted=0, due_at=None)


def forgotten(state: State) -> State:
    """Return the state of a thread whose key was deleted: no host owns it or may take it, and earlier owners are fenced."""
    epoch = -(abs(state.epoch) + 1)
    return state._replace(epoch=epoch, owner=None, due_at=None, posted=0, unfit=None, open_from=None)


def withheld(release: Release) -> Release:
    """Return a release of an encrypted thread: the reason may quote its messages, so it is not stored."""
    return release if release.unfit is None else release._replace(reason=WITHHELD)


def _earliest(*times: int | None) -> int | None:
    return min((time for time in times if time is not None), default=None)


def due_since(state: State, has_open_calls: bool, now: int, abandoned_at: int | None) -> int | None:
    """Return since when a thread without a living owner has work to do; None if it has none yet.

    `abandoned_at` is when the lease of its dead owner ended; None if it has no owner.
    """
    due = state.due_at if state.due_at is not None and state.due_at <= now else None
    return _earliest(due, abandoned_at if has_open_calls else None)


def why_due(state: State, now: int) -> Why:
    """Return why a thread is taken."""
    if state.posted:
        return "posted"
    return "due" if state.due_at is not None and state.due_at <= now else "abandoned"


def kept_reason(reason: str) -> str:
    """Return a reason, cut to the longest length that is stored."""
    return reason if len(reason) <= _LONGEST_REASON else f"{reason[: _LONGEST_REASON - 1]}…"


def make_release(
    thread_id: str,
    *,
    redaction: LedgerRedaction,
    epoch: int,
    seen: int | None,
    wake_at: datetime | None,
    unfit: str | None,
    reason: str | None,
) -> Release:
    """Check the arguments of a release, and return them in the form that a store takes.

    Raises:
        SecretNameError: the build looks like a secret.
        ValueError: a name is not valid, a time has no time zone, or only one of `unfit` and `reason` is given.
    """
    check_name(thread_id, "a thread's id")
    if (unfit is None) != (reason is None):
        raise ValueError("give unfit and reason together: the build that cannot continue the thread, and why")
    if unfit is not None:
        check_name(unfit, "a build")
        redaction.check_name(unfit, "the build of a host")
    text = "" if reason is None else reason if redaction.rules is None else redaction.rules.text(reason)
    if wake_at is not None and wake_at.tzinfo is None:
        raise ValueError(f"{wake_at.isoformat()} has no time zone; add one, such as UTC")
    now, wake_micros = to_micros(current_port().now()), None if wake_at is None else to_micros(wake_at)
    return Release(epoch, now, seen, wake_micros, unfit, kept_reason(text))


def check_host(host: Host, redaction: LedgerRedaction) -> None:
    """Refuse a host with a name that looks like a secret."""
    redaction.check_name(host.name, "the name of a host")
    redaction.check_name(host.build, "the build of a host")
    for kind in host.kinds:
        check_kind(kind, redaction)


def check_kind(kind: str | None, redaction: LedgerRedaction) -> None:
    """Refuse a kind that is not a valid name, or looks like a secret."""
    if kind is not None:
        check_name(kind, "a kind of thread")
        redaction.check_name(kind, "the kind of a thread")


def kinds_wanted(by: Host, kinds: Iterable[str | None] | None) -> tuple[str | None, ...]:
    """Return the kinds that a host can run, each once."""
    return tuple(dict.fromkeys(by.kinds if kinds is None else kinds))
