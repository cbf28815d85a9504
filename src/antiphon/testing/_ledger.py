"""The promises of the grades of a ledger, as checks for a store's tests. Their names are sentences; each has a new store."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from contextlib import AbstractAsyncContextManager
from dataclasses import replace
from datetime import datetime, timedelta
from decimal import Decimal
from functools import partial
from typing import Any, TypeAlias

from antiphon import errors
from antiphon.ledger import (
    Fold,
    Host,
    Ledger,
    Limit,
    LimitStatus,
    Log,
    MasterKey,
    Owners,
    PermitGrant,
    PermitWants,
    Record,
    Snapshot,
    TermEntry,
    TermIndex,
    ThreadFilter,
    ThreadOrder,
    Woken,
    diff,
    heads_of,
    journal_of,
    replay,
    transitions,
)
from antiphon.ledger._encryption import WITHHELD
from antiphon.ledger._listing import SYSTEM_PATTERN
from antiphon.ledger._permits import ALL_MODELS
from antiphon.ledger._redaction import LedgerRedaction
from antiphon.messages import (
    Conversation,
    MediaPart,
    Message,
    MessageBuilder,
    OptionResultBuilder,
    PartsPayload,
    TextPart,
    Usage,
    dumps,
)

_ORDERS: tuple[ThreadOrder, ...] = ("created_at", "-created_at", "updated_at", "-updated_at")

MakeLog: TypeAlias = Callable[[str], AbstractAsyncContextManager[Log]]
MakeOwners: TypeAlias = Callable[[str], AbstractAsyncContextManager[Owners]]
MakeLedger: TypeAlias = Callable[[str], AbstractAsyncContextManager[Ledger]]
"""Opens the store of a name; for a new name, an empty one."""


async def check_log(make: MakeLog, *, is_durable: bool = True, only: str | None = None) -> None:
    """Check the promises of a `Log`: see `check_ledger`."""
    await _check(_LOG_CHECKS, make, is_durable, only)


async def check_owners(make: MakeOwners, *, is_durable: bool = True, only: str | None = None) -> None:
    """Check the promises of `Owners`, and those of a `Log`: see `check_ledger`."""
    await _check(_LOG_CHECKS | _OWNERS_CHECKS, make, is_durable, only)


async def check_ledger(make: MakeLedger, *, is_durable: bool = True, only: str | None = None) -> None:
    """Check all promises of a store. `is_durable`: opening a name again opens the same store. `only` names one check.

    Raises:
        AssertionError: a promise is broken; the text names it.
    """
    await _check(LEDGER_CHECKS, make, is_durable, only)


async def _check(
    checks: Mapping[str, Check], make: Callable[[str], AbstractAsyncContextManager[Any]], is_durable: bool, only: str | None
) -> None:
    for name, check in checks.items():
        if only not in (None, name) or (name in _DURABLE and not is_durable):
            continue
        try:
            await check(partial(make, name))
        except Exception as exc:
            sentence = name.replace("_", " ")
            raise AssertionError(f"not so: {sentence}: {exc}") from exc


Check: TypeAlias = Callable[[Callable[[], AbstractAsyncContextManager[Any]]], Awaitable[None]]
"""A check opens its store any number of times."""
_OpenLog: TypeAlias = Callable[[], AbstractAsyncContextManager[Log]]
_OpenOwners: TypeAlias = Callable[[], AbstractAsyncContextManager[Owners]]
_OpenLedger: TypeAlias = Callable[[], AbstractAsyncContextManager[Ledger]]


# ---------------------------------------------------------------- messages and assertions


def _said(text: str = "hello", **fields: Any) -> Message:
    return Message(policy="user", payload=PartsPayload(parts=(TextPart(text=text),)), **fields)


def _call(option: str = "look", **fields: Any) -> Message:
    call = MessageBuilder(policy="agent").add_option_call(option, {"at": "it"}).last_option_call
    return call.model_copy(update=fields)


def _result(call: Message, value: Any = 1) -> Message:
    return OptionResultBuilder.response_to(call).success(value)


async def _all(ledger: Log, thread_id: str, **bounds: Any) -> list[Record]:
    return [record async for record in ledger.read(thread_id, **bounds)]


async def _some(ledger: Log, count: int, after: str | None = None, thread_id: str | None = None) -> list[tuple[Record, str]]:
    records: list[tuple[Record, str]] = []
    if count:
        async with asyncio.timeout(60):
            async for tailed in ledger.tail(after, thread_id=thread_id):
                records.append((tailed.record, tailed.cursor))
                if len(records) == count:
                    break
    return records


def _same(value: object, expected: object) -> None:
    if value != expected:
        raise AssertionError(f"found {value!r}, expected {expected!r}")


async def _whole(store: object) -> None:
    """Check that a store finds no damage in itself, if it can look for it."""
    if (verify := getattr(store, "verify", None)) is not None:
        _same((await verify()).damages, ())


async def _refused(error: type[Exception], doing: Awaitable[object]) -> Any:
    try:
        done = await doing
    except error as exc:
        return exc
    raise AssertionError(f"{error.__name__} was expected, and it was done: {done!r}")


async def _refused_host(code: str, doing: Awaitable[object]) -> Any:
    error = await _refused(errors.HostError, doing)
    if error.code != code:
        raise AssertionError(f"{code} was expected, and it was {error.code}")
    return error


# ---------------------------------------------------------------- appending


async def what_was_appended_comes_back_byte_for_byte(open_: _OpenLog) -> None:
    messages = [_said("one", thread_id="t"), _said("two \x00 ☃", metadata={"a": {"b": [1, 2.5, None, 10**30]}}), _call()]
    async with open_() as ledger:
        answered = await ledger.append("t", messages)
        _same([record.seq for record in answered], [1, 2, 3])
        _same(await _all(ledger, "t"), list(answered))
        for message, record in zip(messages, answered, strict=True):
            _same(record.message, message.model_copy(update={"thread_id": "t"}))
            _same(dumps(record.message), record.body)
            _same(record.recorded_at.utcoffset(), timedelta(0))


async def an_empty_thread_is_no_error(open_: _OpenLog) -> None:
    async with open_() as ledger:
        _same(await _all(ledger, "nobody"), [])
        head = await ledger.head("nobody")
        _same((head.seq, head.epoch), (0, 0))
        _same(await ledger.thread("nobody"), None)
        _same(await ledger.append("nobody", []), ())
        _same(await ledger.thread("nobody"), None)


async def a_message_of_another_thread_is_refused(open_: _OpenLog) -> None:
    async with open_() as ledger:
        await _refused(ValueError, ledger.append("t", [_said(thread_id="other")]))
        await _refused(ValueError, ledger.append("not\na name", [_said()]))
        not_a_message: Any = "hello"
        await _refused(TypeError, ledger.append("t", [not_a_message]))
        _same(await _all(ledger, "t"), [])


async def the_same_message_again_is_no_news(open_: _OpenLog) -> None:
    first, second = _said("one"), _said("two")
    async with open_() as ledger:
        (record,) = await ledger.append("t", [first])
        again = await ledger.append("t", [first], expected_version=0, status="x")
        _same(again, (record,))
        both = await ledger.append("t", [first, second, second])
        _same([record_again.seq for record_again in both], [1, 2, 2])
        _same(len(await _all(ledger, "t")), 2)
        summary = await ledger.thread("t")
        _same(summary and summary.status, None)


async def an_append_is_there_as_a_whole_or_not_at_all(open_: _OpenLog) -> None:
    taken = _said("taken")
    async with open_() as ledger:
        await ledger.append("t", [taken])
        other = taken.model_copy(update={"payload": PartsPayload(parts=(TextPart(text="other"),))})
        snapshot = Snapshot("letters/1", 1000)
        error = await _refused(
            errors.AppendRefusedError, ledger.append("t", [_said("new"), other], snapshot=snapshot, status="x")
        )
        _same((error.thread_id, error.message_id), ("t", taken.id))
        _same(len(await _all(ledger, "t")), 1)
        letters: int = await replay(ledger, "t", _counting([]))
        _same(letters, len("taken"))
        summary = await ledger.thread("t")
        _same(summary and summary.status, None)


async def two_threads_may_use_one_id(open_: _OpenLog) -> None:
    message = _said()
    async with open_() as ledger:
        await ledger.append("a", [message])
        (record,) = await ledger.append("b", [message])
        _same((record.seq, record.message.thread_id), (1, "b"))


async def an_expected_version_is_compared(open_: _OpenLog) -> None:
    async with open_() as ledger:
        await ledger.append("t", [_said()], expected_version=0)
        await ledger.append("t", [_said()], expected_version=1)
        error = await _refused(errors.AppendConflictError, ledger.append("t", [_said()], expected_version=1))
        head = await ledger.head("t")
        _same((error.expected, error.version, error.hash), (1, 2, head.hash))
        _same(head.seq, 2)


async def of_many_writers_that_expect_one_version_one_wins(open_: _OpenLog) -> None:
    async with open_() as ledger:
        tries = [ledger.append("t", [_said(str(number))], expected_version=0) for number in range(20)]
        outcomes = await asyncio.gather(*tries, return_exceptions=True)
        won = [outcome for outcome in outcomes if isinstance(outcome, tuple)]
        lost = [outcome for outcome in outcomes if isinstance(outcome, errors.AppendConflictError)]
        _same((len(won), len(lost)), (1, 19))


async def what_was_acknowledged_before_stands_before(open_: _OpenLog) -> None:
    async def writer(ledger: Log, name: str) -> None:
        last = 0
        for number in range(10):
            (record,) = await ledger.append("t", [_said(f"{name} {number}")])
            if record.seq <= last:
                raise AssertionError(f"{record.seq} after {last}")
            last = record.seq

    async with open_() as ledger:
        await asyncio.gather(*(writer(ledger, str(number)) for number in range(10)))
        _same([record.seq for record in await _all(ledger, "t")], list(range(1, 101)))


# ---------------------------------------------------------------- admission


async def a_result_without_its_call_is_refused(open_: _OpenLog) -> None:
    call = _call()
    async with open_() as ledger:
        error = await _refused(errors.AppendRefusedError, ledger.append("t", [_result(call)]))
        _same(bool(error.code), True)
        await ledger.append("elsewhere", [call])
        await _refused(errors.AppendRefusedError, ledger.append("t", [_result(call)]))
        await ledger.append("t", [call, _result(call)])
        _same(len(await _all(ledger, "t")), 2)


async def a_second_result_is_refused(open_: _OpenLog) -> None:
    call, other = _call(), _call()
    async with open_() as ledger:
        await ledger.append("t", [call])
        await ledger.append("t", [_result(call, 1)])
        second = await _refused(errors.AppendRefusedError, ledger.append("t", [_result(call, 2)]))
        both = await _refused(errors.AppendRefusedError, ledger.append("t", [other, _result(other, 1), _result(other, 2)]))
        _same(second.code, both.code)
        _same(len(await _all(ledger, "t")), 2)


async def a_result_of_another_option_is_refused(open_: _OpenLog) -> None:
    call = _call("look")
    wrong = _result(call)
    payload = wrong.payload.model_copy(update={"option_name": "listen"})
    async with open_() as ledger:
        await ledger.append("t", [call])
        await _refused(errors.AppendRefusedError, ledger.append("t", [wrong.model_copy(update={"payload": payload})]))
        await ledger.append("t", [_result(call)])


async def the_journal_has_invocations_of_its_own(open_: _OpenLog) -> None:
    call = _call()
    effect = call.model_copy(update={"id": "effect", "lane": "effect"})
    async with open_() as ledger:
        await ledger.append("t", [effect])
        await _refused(errors.AppendRefusedError, ledger.append("t", [_result(call)]))
        await ledger.append("t", [call, _result(call)])
        _same([record.message.id for record in await ledger.open_calls("t")], ["effect"])


async def an_imported_history_may_break_the_rules(open_: _OpenLog) -> None:
    call = _call()
    one, other = _said("one", id="same"), _said("other", id="same")
    history = [_result(_call()), call, _result(call, 1), _result(call, 2), one, other]
    async with open_() as ledger:
        await ledger.append("t", history, allow_foreign=True)
        await ledger.append("t", history, allow_foreign=True)
        records = await _all(ledger, "t")
        _same([record.message.id for record in records], [message.id for message in history])
        await _refused(errors.AppendRefusedError, ledger.append("t", [_said("third", id="same")]))


async def what_comes_from_outside_is_talk(open_: _OpenLog) -> None:
    call = _call(lane="control", to=("agent",))
    effect = _said("stop", lane="effect", metadata={"antiphon": {"principal": "ada"}})
    marked = _said("hello", metadata={"antiphon": {"unit": "x"}, "other": {"a": 1}})
    rows = [marked, call, _result(call).model_copy(update={"lane": "control"}), effect]
    async with open_() as ledger:
        for _ in range(2):  # twice is the same as once
            records = await ledger.append("t", rows, outside=True)
            _same([record.seq for record in records], [1, 2, 3, 4])
        stored = [record.message for record in await _all(ledger, "t")]
        _same([(message.lane, message.kind) for message in stored], [("talk", "parts")] * 4)
        _same((stored[0].text, list(stored[0].metadata)), ("hello", ["other"]))
        _same([len(message.metadata) for message in stored[1:]], [0] * 3)
        _same(await ledger.find(invocation_id=call.invocation_id or ""), ())
        moved = [message.model_copy(update={"thread_id": None}) for message in stored]
        again = await ledger.append("copy", moved, outside=True)  # foreign history is not wrapped once more
        _same([record.message.payload for record in again], [message.payload for message in stored])
        await ledger.append("own", rows)
        await ledger.append("own", rows, outside=True)
        _same(len(await _all(ledger, "own")), 4)
        await _whole(ledger)


async def an_open_call_from_outside_gets_an_error_result(open_: _OpenLog) -> None:
    first, second, addressed = _call(), _call(), _call(to=("agent",))
    rows = [first, _result(first), second]
    async with open_() as ledger:
        await ledger.append("t", [addressed])
        records = await ledger.append("t", rows, outside=True)
        _same([record.message.kind for record in records], ["option_call", "option_result", "option_call", "option_result"])
        _same(records[-1].message.in_reply_to, second.id)
        _same(await ledger.append("t", rows, outside=True), records)
        await ledger.append("t", [addressed], outside=True)  # it is there: it stays open, and has no second result
        for forged in (_result(addressed), addressed.model_copy(update={"id": "twin"})):
            await _refused(errors.AppendRefusedError, ledger.append("t", [forged], outside=True, allow_foreign=True))
        _same([record.message.id for record in await ledger.open_calls("t")], [addressed.id])
        await ledger.append("t", [_result(addressed)])


async def a_call_from_outside_cannot_hide_behind_its_result(open_: _OpenLedger) -> None:
    call = _call()
    async with open_() as ledger:
        closed = (await ledger.append("t", [call], outside=True))[-1].message
        await ledger.delete("t")
        forged: dict[str, Any] = {"outside": True, "allow_foreign": True}
        await _refused(errors.AppendRefusedError, ledger.append("t", [closed, call], **forged))
        await ledger.append("t", [closed], **forged)
        await _refused(errors.AppendRefusedError, ledger.append("t", [call], **forged))
        _same((await ledger.open_calls("t"), len(await _all(ledger, "t"))), ((), 1))


async def open_calls_are_known_without_reading(open_: _OpenLog) -> None:
    first, second = _call(), _call()
    async with open_() as ledger:
        await ledger.append("t", [first, second, _said()])
        await ledger.append("t", [_result(first)])
        _same([record.message.id for record in await ledger.open_calls("t")], [second.id])
        summary = await ledger.thread("t")
        _same(summary and summary.open_calls, 1)
        await ledger.append("t", [_result(second)])
        _same(await ledger.open_calls("t"), ())


# ---------------------------------------------------------------- owners


async def a_claimed_thread_takes_only_its_owners_appends(open_: _OpenOwners) -> None:
    async with open_() as ledger:
        await ledger.append("t", [_said()])
        first = await ledger.claim("t")
        error = await _refused(errors.FencedError, ledger.append("t", [_said()]))
        _same((error.used, error.epoch), (None, first))
        await ledger.append("t", [_said()], epoch=first)
        second = await ledger.claim("t")
        _same(second > first, True)
        _same((first.seq, second.seq), (1, 2))
        await _refused(errors.FencedError, ledger.append("t", [_said()], epoch=first))
        await _refused(errors.FencedError, ledger.append("t", [], epoch=first, status="mine"))
        await ledger.append("t", [_said()], epoch=second)
        _same((await ledger.head("t")).epoch, second)
        _same(len(await _all(ledger, "t")), 3)


async def an_append_that_changes_nothing_compares_the_epoch_all_the_same(open_: _OpenOwners) -> None:
    async with open_() as ledger:
        first = await ledger.claim("t")
        message = _said()
        await ledger.append("t", [message], epoch=first)
        _same(await ledger.append("t", [], epoch=first), ())
        second = await ledger.claim("t")
        for messages in ([], [message]):  # an empty append, and a repeated one
            await _refused(errors.FencedError, ledger.append("t", messages, epoch=first))
            await _refused(errors.FencedError, ledger.append("t", messages))
        _same(len(await ledger.append("t", [message], epoch=second)), 1)
        _same(len(await _all(ledger, "t")), 1)


async def an_epoch_that_nobody_was_given_is_refused(open_: _OpenOwners) -> None:
    async with open_() as ledger:
        await _refused(errors.FencedError, ledger.append("t", [_said()], epoch=1))
        epoch = await ledger.claim("new")
        _same(epoch.seq, 0)
        await _refused(errors.FencedError, ledger.append("new", [_said()], epoch=epoch + 1))
        await ledger.append("new", [_said()], epoch=epoch)


async def anyone_may_post_to_somebody(open_: _OpenOwners) -> None:
    message = _said(to=("agent",))
    async with open_() as ledger:
        await ledger.claim("t")
        record = await ledger.post("t", message)
        _same(await ledger.post("t", message), record)
        _same(record.message.to, ("agent",))
        await _refused(ValueError, ledger.post("t", _said()))
        await _refused(ValueError, ledger.post("t", _said(to=("agent",), lane="effect")))
        await _refused(errors.AppendRefusedError, ledger.post("t", _result(_call()).model_copy(update={"to": ("agent",)})))
        _same(len(await _all(ledger, "t")), 1)


async def what_somebody_outside_posts_is_talk_under_their_name(open_: _OpenLog) -> None:
    question = _call("APPROVE", lane="control")
    answer = _result(question, {"approved": True}).model_copy(update={"to": ("agent",), "lane": "talk"})
    async with open_() as ledger:
        await ledger.append("t", [question])
        posted = await ledger.post("t", _said("stop", to=("agent",), metadata={"antiphon": {"principal": "ada"}}), by="eve")
        _same((posted.message.policy, posted.message.lane, len(posted.message.metadata)), ("eve", "talk", 0))
        order = await ledger.post("t", _call("STOP", lane="control", to=("agent",)), by="eve")
        _same((order.message.lane, order.message.kind), ("talk", "parts"))
        await ledger.post("t", _call("PAY", to=("agent",)), by="eve")
        await _refused(errors.AppendRefusedError, ledger.post("t", answer, by="eve"))
        await _refused(ValueError, ledger.post("t", _said(to=("agent",)), by="runtime"))
        await _refused(ValueError, ledger.post("t", _said(to=("agent",), lane="effect"), by="eve"))
        _same([record.message.id for record in await ledger.open_calls("t")], [question.id])


# ---------------------------------------------------------------- hosts


def _host(name: str, build: str = "1", *kinds: str, lease: float = 600.0, instance: str = "first") -> Host:
    return Host(name, build, kinds or ("agent",), lease, f"{name}-{instance}")


async def _expired(ledger: Owners, name: str) -> Host:
    """Return a host whose lease has ended."""
    await ledger.beat(_host(name))
    await _let_expire(ledger, _host(name))
    return _host(name)


async def _let_expire(ledger: Owners, host: Host) -> None:
    """Let the lease of a host end, by a last beat with a short one."""
    await ledger.claim(f"of {host.name}", by=host)  # a host that owns nothing may be forgotten
    await ledger.beat(replace(host, lease=0.01))
    async with asyncio.timeout(60):
        while any(status.is_alive for status in await ledger.hosts() if status.host.name == host.name):  # noqa: ASYNC110
            await asyncio.sleep(0.01)


def _to(receiver: str = "agent/1", **fields: Any) -> Message:
    return _said(to=(receiver,), **fields)


async def a_host_lives_while_it_beats(open_: _OpenOwners) -> None:
    one, other = _host("one", "1.0", "agent", "run/report"), _host("other")
    async with open_() as ledger:
        _same(await ledger.hosts(), ())
        until = await ledger.beat(other)
        _same(await ledger.beat(one) > until, True)
        _same(await ledger.beat(other) > until, True)
        first, second = await ledger.hosts()
        _same((first.host, first.is_alive, first.threads, second.host), (one, True, 0, other))
        _same(first.since <= second.until, True)
        await ledger.claim("t", by=one)
        await ledger.claim("u", by=one)
        await ledger.claim("v", by=other)
        await ledger.leave(one)
        await ledger.leave(one)
        _same(
            [(status.host.name, status.is_alive, status.threads) for status in await ledger.hosts()],
            [("one", False, 2), ("other", True, 1)],
        )
        await ledger.release("v", epoch=1)
        await ledger.leave(other)
        _same([status.host.name for status in await ledger.hosts()], ["one"])
        await ledger.leave(_host("nobody"))


async def _lease_end(ledger: Owners) -> datetime:
    """Return when the lease of the only host ends. A read that waited between its two clocks says an earlier time."""
    return max([status.until for _ in range(10) for status in await ledger.hosts()])


async def a_lease_is_renewed_from_another_thread(open_: _OpenOwners) -> None:
    host = _host("one")
    async with open_() as ledger:
        _same(await asyncio.to_thread(ledger.renew, host), False)
        await ledger.beat(host)
        before = await _lease_end(ledger)
        await asyncio.sleep(0.05)
        if await asyncio.to_thread(ledger.renew, host):  # a store on the event loop itself does not
            _same(await _lease_end(ledger) - before > timedelta(seconds=0.005), True)
        await ledger.leave(host)
        _same(await asyncio.to_thread(ledger.renew, host), False)
        late = await _expired(ledger, "late")
        _same(await asyncio.to_thread(ledger.renew, late), False)
        _same([status.is_alive for status in await ledger.hosts()], [False])


async def a_host_that_slept_past_its_lease_keeps_what_nobody_claimed(open_: _OpenOwners) -> None:
    async with open_() as ledger:
        host, other = _host("sleeper"), _host("other")
        await ledger.beat(host)
        await ledger.beat(other)
        epochs = [await ledger.claim(name, by=host) for name in ("a", "b")]
        await _let_expire(ledger, host)
        await ledger.claim("a", by=other)
        await ledger.beat(host)
        await _refused(errors.FencedError, ledger.append("a", [_said()], epoch=epochs[0]))
        await _refused(errors.OwnedError, ledger.claim("a", by=host))
        await ledger.append("b", [_said()], epoch=epochs[1])
        await _refused(errors.OwnedError, ledger.claim("b", by=other))


async def two_processes_that_live_have_two_names(open_: _OpenOwners) -> None:
    one, twin = _host("one"), _host("one", instance="second")
    async with open_() as ledger:
        await ledger.beat(one)
        epoch = await ledger.claim("t", by=one)
        await ledger.append("t", [_call()], epoch=epoch)
        error = await _refused_host("HOST_NAME_TAKEN", ledger.beat(twin))
        _same((error.host, error.until > (await ledger.hosts())[0].since), ("one", True))
        await _refused_host("UNKNOWN_HOST", ledger.claim("u", by=twin))
        await ledger.leave(twin)  # it never registered, so no host is ended
        await _refused_host("HOST_NAME_TAKEN", ledger.beat(twin))
        await ledger.leave(one)
        await ledger.beat(twin)
        await _refused_host("HOST_NAME_TAKEN", ledger.beat(one))
        _same(await ledger.woken(twin), ())  # it is another host: the thread is not its own
        (taken,) = await ledger.take(twin, kinds=[None])
        _same((taken.thread_id, taken.epoch > epoch, taken.why), ("t", True, "abandoned"))
        await _refused(errors.FencedError, ledger.append("t", [_said()], epoch=epoch))


async def a_thread_of_a_living_host_is_nobody_elses(open_: _OpenOwners) -> None:
    one, other = _host("one"), _host("other")
    async with open_() as ledger:
        await ledger.beat(one)
        until = await ledger.beat(other)
        first = await ledger.claim("t", by=one, kind="agent")
        error = await _refused(errors.OwnedError, ledger.claim("t", by=other))
        _same((error.thread_id, error.owner, error.until <= until + timedelta(seconds=600)), ("t", "one", True))
        await ledger.append("t", [_said()], epoch=first)
        second = await ledger.claim("t", by=one, kind="other")  # its kind stays
        _same(second > first, True)  # also for the same host: its earlier appends are then fenced
        await _refused(errors.FencedError, ledger.append("t", [_said()], epoch=first))
        await _refused(errors.FencedError, ledger.release("t", epoch=first))
        summary = await ledger.thread("t")
        _same(summary and summary.owner, "one")
        await ledger.leave(one)
        third = await ledger.claim("t", by=other)
        await _refused(errors.FencedError, ledger.append("t", [_said()], epoch=second))
        await _refused(errors.FencedError, ledger.release("t", epoch=second))
        summary = await ledger.thread("t")
        _same(summary and summary.owner, "other")
        await _refused_host("UNKNOWN_HOST", ledger.claim("t", by=one))
        fourth = await ledger.claim("t")  # without a host, it is taken from its owner
        await _refused(errors.FencedError, ledger.append("t", [_said()], epoch=third))
        await ledger.append("t", [_said()], epoch=fourth)
        summary = await ledger.thread("t")
        _same(summary and (summary.owner, summary.kind, summary.messages), (None, "agent", 2))
        fifth = await ledger.claim("t", by=other)
        _same(fifth > fourth, True)
        owners = [epoch.taken_from for epoch in (first, second, third, fourth, fifth)]
        _same(owners, [None, None, None, "other", None])  # a host takes nothing from itself, or from one that has left


async def only_a_host_that_lives_may_claim(open_: _OpenOwners) -> None:
    async with open_() as ledger:
        unknown = _host("unknown")
        error = await _refused_host("UNKNOWN_HOST", ledger.claim("t", by=unknown))
        _same(error.host, "unknown")
        await _refused_host("UNKNOWN_HOST", ledger.take(unknown))
        _same(await ledger.woken(unknown), ())
        expired = await _expired(ledger, "expired")
        error = await _refused_host("HOST_EXPIRED", ledger.claim("t", by=expired))
        _same(error.host, "expired")
        await _refused_host("HOST_EXPIRED", ledger.take(expired))
        _same(await ledger.thread("t"), None)
        for lease in (0, -1.0, float("nan"), float("inf"), 1e9, True, None):
            wrong: Any = lease
            try:
                await ledger.beat(Host("h", "1", lease=wrong))
            except ValueError:
                continue
            raise AssertionError(f"a lease of {lease!r} seconds was taken")
        odd: Any = "no\nname"
        await ledger.beat(_host("h"))
        await _refused(ValueError, ledger.claim(odd, by=_host("h")))
        await _refused(ValueError, ledger.claim("t", by=_host("h"), kind=odd))


async def a_released_thread_needs_a_claim(open_: _OpenOwners) -> None:
    host = _host("one")
    async with open_() as ledger:
        await ledger.beat(host)
        epoch = await ledger.claim("t", by=host)
        await ledger.append("t", [_said()], epoch=epoch)
        for wrong in (epoch + 1, epoch - 1, -epoch):
            await _refused(errors.FencedError, ledger.release("t", epoch=wrong))
        await _refused(errors.UnknownThreadError, ledger.release("nobody", epoch=1))
        await _refused(ValueError, ledger.release("t", epoch=epoch, unfit="1"))
        await _refused(ValueError, ledger.release("t", epoch=epoch, reason="why"))
        await ledger.release("t", epoch=epoch)
        for stale in (epoch, epoch + 1, -epoch, 0, None):
            await _refused(errors.FencedError, ledger.append("t", [_said()], epoch=stale))
        await _refused(errors.FencedError, ledger.release("t", epoch=epoch))
        _same((await ledger.head("t")).epoch, epoch)
        await ledger.post("t", _to())
        summary = await ledger.thread("t")
        _same(summary and (summary.owner, summary.messages), (None, 2))
        later = await ledger.claim("t", by=host)
        _same(later > epoch, True)
        await ledger.append("t", [_said()], epoch=later)
        await _whole(ledger)


async def a_posted_message_makes_its_thread_due(open_: _OpenOwners) -> None:
    one, other = _host("one"), _host("other")
    async with open_() as ledger:
        await ledger.beat(one)
        await ledger.beat(other)
        _same(await ledger.take(one), ())
        await ledger.append("silent", [_to()])  # only a post marks a thread
        record = await ledger.post("t", _to())
        (taken,) = await ledger.take(one)
        _same((taken.thread_id, taken.kind, taken.why, taken.due_at), ("t", "agent", "posted", record.recorded_at))
        await ledger.append("t", [_said()], epoch=taken.epoch)
        await ledger.post("t", _to())
        for host in (one, other):  # its owner lives, and learns it from `woken`
            _same(await ledger.take(host), ())
        await ledger.leave(one)  # without reporting any message as seen
        (again,) = await ledger.take(other)
        _same((again.thread_id, again.why, again.due_at), ("t", "posted", record.recorded_at))
        await ledger.release("t", epoch=again.epoch, seen=1)  # of two posted messages
        (third,) = await ledger.take(other)
        await ledger.release("t", epoch=third.epoch, seen=(await ledger.head("t")).seq)
        _same(await ledger.take(other), ())
        await _whole(ledger)


async def of_many_takers_each_thread_has_one(open_: _OpenOwners) -> None:
    hosts = [_host(f"h{number}") for number in range(4)]
    async with open_() as ledger:
        for host in hosts:
            await ledger.beat(host)
        names = [f"t{number:02}" for number in range(30)]
        for name in names:
            await ledger.post(name, _to())
        first = await ledger.take(hosts[0], limit=3)
        _same([thread.thread_id for thread in first], names[:3])  # the longest due first
        _same(await ledger.take(hosts[0], limit=0), ())
        await _refused(ValueError, ledger.take(hosts[0], limit=-1))
        rounds = [ledger.take(host, limit=5) for host in hosts * 3]
        taken = [thread.thread_id for batch in await asyncio.gather(*rounds) for thread in batch]
        _same(sorted(taken), names[3:])
        _same(sum(status.threads for status in await ledger.hosts()), 30)


async def a_thread_is_due_when_its_time_comes(open_: _OpenOwners) -> None:
    host = _host("one")
    async with open_() as ledger:
        await ledger.beat(host)
        now = (await ledger.append("now", [_said()]))[0].recorded_at
        times = {"past": now - timedelta(seconds=5), "long ago": now - timedelta(days=1), "future": now + timedelta(days=1)}
        for name, time in times.items():
            await ledger.release(name, epoch=await ledger.claim(name, by=host, kind="agent"), wake_at=time)
        await ledger.release("never", epoch=await ledger.claim("never", by=host, kind="agent"))
        naive = now.replace(tzinfo=None)
        await _refused(ValueError, ledger.release("x", epoch=await ledger.claim("x", by=host), wake_at=naive))
        taken = await ledger.take(host)
        _same([(thread.thread_id, thread.why) for thread in taken], [("long ago", "due"), ("past", "due")])
        _same(await ledger.woken(host), ())  # nothing was posted, so the time stays until the owner releases the thread
        summary = await ledger.thread("past")
        _same(summary and summary.due_at, times["past"])
        summary = await ledger.thread("future")
        _same(summary and summary.due_at, times["future"])
        await ledger.post("future", _to())  # a post does not wait for it
        (early,) = await ledger.take(host)
        _same((early.thread_id, early.why), ("future", "posted"))
        await ledger.release("future", epoch=early.epoch, seen=1, wake_at=times["future"])
        _same(await ledger.take(host), ())


async def the_open_calls_of_a_dead_host_are_taken(open_: _OpenOwners) -> None:
    dead, host = _host("dead"), _host("one")
    async with open_() as ledger:
        await ledger.beat(dead)
        await ledger.beat(host)
        call = _call()
        for name, message in (("open", call), ("idle", _said())):
            await ledger.append(name, [message], epoch=await ledger.claim(name, by=dead, kind="agent"))
        await ledger.append("given up", [_call()], epoch=await ledger.claim("given up", by=dead, kind="agent"))
        await ledger.release("given up", epoch=1)  # it waits for a caller, not for a host
        _same(await ledger.take(host), ())
        await ledger.leave(dead)
        (taken,) = await ledger.take(host)
        _same((taken.thread_id, taken.why), ("open", "abandoned"))
        _same((taken.epoch, taken.epoch.seq, taken.epoch.taken_from), (2, 1, None))  # a host that leaves releases all threads
        epoch = await ledger.claim("given up", by=host)
        _same((epoch, epoch.taken_from), (2, None))  # it had been released
        await ledger.release("given up", epoch=epoch)
        await _refused(errors.FencedError, ledger.append("open", [_result(call)], epoch=1))
        await ledger.append("open", [_result(call)], epoch=2)
        _same(await ledger.take(host), ())
        _same([(status.host.name, status.threads) for status in await ledger.hosts()], [("dead", 1), ("one", 1)])


async def a_host_takes_only_what_it_can_run(open_: _OpenOwners) -> None:
    host = _host("one", "1", "agent", "run/report")
    async with open_() as ledger:
        await ledger.beat(host)
        for number, receiver in enumerate(("agent/1", "chain/7", "agent", "run/report")):
            await ledger.post(f"t{number}", _to(receiver))
        await ledger.release("r", epoch=await ledger.claim("r", by=host, kind="run/report"))
        await ledger.post("r", _to("agent/1"))  # a claim has said its kind
        await ledger.append("bare", [_call()], epoch=await ledger.claim("bare", by=host))
        await ledger.leave(host)
        await ledger.beat(host)
        _same(
            [(thread.thread_id, thread.kind) for thread in await ledger.take(host)],
            [("t0", "agent"), ("t2", "agent"), ("r", "run/report")],
        )
        _same([thread.thread_id for thread in await ledger.take(host, kinds=["chain", "chain"])], ["t1"])
        (bare,) = await ledger.take(host, kinds=[None])
        _same((bare.thread_id, bare.kind), ("bare", None))


async def a_kind_is_found_and_a_branch_keeps_it(open_: _OpenLedger) -> None:
    async with open_() as ledger:
        for name, receiver in (("chain", "chain/7"), ("run", "run/report")):
            await ledger.post(name, _to(receiver))
        _same([thread.thread_id for thread in (await ledger.threads(ThreadFilter(kind="run"))).threads], ["run"])
        branch = await ledger.fork("chain", into="b")
        _same((branch.kind, branch.owner, branch.due_at), ("chain", None, None))


async def threads_that_wait_for_a_host_are_listed(open_: _OpenLedger) -> None:
    async def waiting(before: datetime) -> list[str]:
        page = await ledger.threads(ThreadFilter(due_before=before), "created_at")
        return [thread.thread_id for thread in page.threads]

    async with open_() as ledger:
        await ledger.beat(host := _host("a"))
        for name in ("posted", "taken", "early", "late"):
            await ledger.post(name, _to())
        now = (await ledger.hosts())[0].since
        for name, wake_at in (("early", now), ("late", now + timedelta(days=1))):
            await ledger.release(name, epoch=await ledger.claim(name, by=host), seen=1, wake_at=wake_at)
        await ledger.claim("taken", by=host)
        await ledger.append("quiet", [_to()])
        _same(await waiting(now + timedelta(hours=1)), ["posted", "early"])
        _same(await waiting(now + timedelta(days=2)), ["posted", "early", "late"])
        _same(await waiting(now), [])


async def a_build_that_cannot_go_on_is_not_given_the_thread_again(open_: _OpenOwners) -> None:
    old, older, new = _host("old", "1"), _host("older", "1"), _host("new", "2")
    async with open_() as ledger:
        for host in (old, older, new):
            await ledger.beat(host)
        await ledger.post("t", _to())
        (taken,) = await ledger.take(old)
        await ledger.release("t", epoch=taken.epoch, seen=1, unfit="1", reason="the prompt has changed")
        for host in (old, older):
            _same(await ledger.take(host), ())
        summary = await ledger.thread("t")
        marks = [(mark.build, mark.reason) for mark in (() if summary is None else summary.unfit)]
        _same(marks in ([("1", "the prompt has changed")], [("1", WITHHELD)]), True)
        why = marks[0][1]
        (again,) = await ledger.take(new)
        _same((again.thread_id, again.why), ("t", "due"))
        await ledger.release("t", epoch=again.epoch, unfit="2", reason="x" * 10_000)
        for host in (old, older, new):
            _same(await ledger.take(host), ())  # no build is left that can continue it: it is listed, and not taken
        summary = await ledger.thread("t")
        lengths = [("1", len(why)), ("2", len(why) if why == WITHHELD else 2000)]
        _same(summary and [(mark.build, len(mark.reason)) for mark in summary.unfit], lengths)
        epoch = await ledger.claim("t", by=old)  # an explicit claim removes the mark
        await ledger.release("t", epoch=epoch, wake_at=(await ledger.hosts())[0].since)
        (third,) = await ledger.take(older)
        _same(third.why, "due")
        await ledger.release("t", epoch=third.epoch)


async def the_mark_of_an_unfit_build_is_listed_and_goes_with_its_thread(open_: _OpenLedger) -> None:
    host = _host("one", "1")
    async with open_() as ledger:
        await ledger.beat(host)
        await ledger.release("t", epoch=await ledger.claim("t", by=host, kind="agent"), unfit="1", reason="no")
        _same((await ledger.threads(ThreadFilter(unfit=False))).threads, ())
        (listed,) = (await ledger.threads(ThreadFilter(unfit=True))).threads
        is_encrypted = await ledger.keys.of("t") is not None
        _same([(mark.build, mark.reason) for mark in listed.unfit], [("1", WITHHELD if is_encrypted else "no")])
        await ledger.delete("t")
        await ledger.post("t", _to())
        _same(len(await ledger.take(host)), 1)  # another thread of that name


async def a_host_is_told_which_of_its_threads_were_posted_to(open_: _OpenOwners) -> None:
    one, other = _host("one"), _host("other")
    async with open_() as ledger:
        await ledger.beat(one)
        await ledger.beat(other)
        for name in ("a", "b"):
            await ledger.append(name, [_said()], epoch=await ledger.claim(name, by=one))
        await ledger.claim("c", by=other)
        _same(await ledger.woken(one), ())
        for name in ("a", "b", "a", "c"):
            await ledger.post(name, _to())
        for _ in range(2):  # until it reports that it has seen them
            _same(await ledger.woken(one), (Woken("a", 3), Woken("b", 2)))
        _same(await ledger.woken(one, seen={"a": 2, "b": 2, "c": 9, "nobody": 1}), (Woken("a", 3),))
        _same(await ledger.woken(other), (Woken("c", 1),))
        _same(await ledger.woken(one, seen={"a": 3}), ())
        await ledger.post("a", _to())
        _same(await ledger.woken(one), (Woken("a", 4),))
        await ledger.leave(one)
        _same(await ledger.woken(one), ())
        _same([thread.thread_id for thread in await ledger.take(other)], ["a"])


async def open_calls_of_one_option_are_found_in_all_threads(open_: _OpenOwners) -> None:
    calls = [_call("APPROVE", lane="control") for _ in range(5)]
    async with open_() as ledger:
        for number, call in enumerate(calls):
            await ledger.append(f"t{number % 2}", [_said(), _call("look"), call])
        await ledger.append("effect", [_call("APPROVE", lane="effect")])
        await ledger.append("t1", [_result(calls[1])])
        page = await ledger.open_calls(option="APPROVE", limit=3)
        expected = [calls[0].id, calls[2].id, calls[3].id]
        _same(
            [(open_call.message.thread_id, open_call.message.id) for open_call in page.calls],
            list(zip(("t0", "t0", "t1"), expected, strict=True)),
        )
        rest = await ledger.open_calls(option="APPROVE", limit=3, page=page.next)
        _same(([open_call.message.lane for open_call in rest.calls], rest.next), (["control", "effect"], None))
        newest = await ledger.open_calls(option="APPROVE", order="-recorded_at", limit=2)
        _same([open_call.message.lane for open_call in newest.calls], ["effect", "control"])
        older = await ledger.open_calls(option="APPROVE", order="-recorded_at", page=newest.next)
        _same([open_call.message.id for open_call in older.calls], expected[::-1])
        _same((await ledger.open_calls(option="nothing")).calls, ())
        wrong: Any = "id; DROP TABLE threads"
        for doing in (
            ledger.open_calls(option="APPROVE", order=wrong),
            ledger.open_calls(option="APPROVE", page=wrong),
            ledger.open_calls(option="APPROVE", limit=-1),
        ):
            await _refused(ValueError, doing)


async def threads_are_found_by_open_calls_owner_creation_and_cost(open_: _OpenLedger) -> None:
    host, call = _host("one"), _call()

    async def found(**asked: Any) -> list[str]:
        pages = [await ledger.threads(ThreadFilter(**asked), order) for order in _ORDERS]
        names = [sorted(thread.thread_id for thread in page.threads) for page in pages]
        _same(names, names[:1] * len(_ORDERS))  # whatever the order
        return names[0]

    async with open_() as ledger:
        await ledger.beat(host)
        cheap, dear = (Usage(input_tokens=40, output_tokens=10, cost=Decimal(cost)) for cost in ("0.1", "12.50"))
        await ledger.append("cheap", [_said(usage=cheap), call])
        await ledger.append("dear", [_said(usage=dear), _said(usage=cheap)], epoch=await ledger.claim("dear", by=host))
        await ledger.append("free", [_said()])
        _same(await found(open_calls=True), ["cheap"])
        _same(await found(open_calls=False), ["dear", "free"])
        _same(await found(owner="one"), ["dear"])
        _same(await found(owner="nobody"), [])
        _same(await found(owner="one", open_calls=True), [])
        _same(await found(min_cost=Decimal("0.1")), ["cheap", "dear"])
        _same(await found(min_cost=Decimal("12.6")), ["dear"])
        _same(await found(min_cost=Decimal("12.61")), [])
        _same((await found(min_tokens=50), await found(min_tokens=51)), (["cheap", "dear"], ["dear"]))
        summary = await ledger.thread("dear")
        created = (summary or (await ledger.threads()).threads[0]).created_at
        _same((await found(created_after=created), await found(created_before=created)), (["free"], ["cheap"]))
        await ledger.append("cheap", [_result(call)])
        _same(await found(open_calls=True), [])
        first = await ledger.threads(ThreadFilter(min_tokens=1), "-created_at", limit=1)
        then = await ledger.threads(ThreadFilter(min_tokens=1), "-created_at", first.next, 1)
        _same([thread.thread_id for thread in (*first.threads, *then.threads)], ["dear", "cheap"])


# ---------------------------------------------------------------- reading


async def a_stretch_can_be_read_from_both_ends(open_: _OpenLog) -> None:
    async with open_() as ledger:
        records = list(await ledger.append("t", [_said(str(number)) for number in range(600)]))
        _same(await _all(ledger, "t", after=598), records[598:])
        _same(await _all(ledger, "t", before=3), records[:2])
        _same(await _all(ledger, "t", after=10, before=12), records[10:11])
        _same(await _all(ledger, "t", after=10, before=11), [])
        _same(await _all(ledger, "t", reverse=True), records[::-1])
        _same(await _all(ledger, "t", after=590, before=599, reverse=True), records[590:598][::-1])
        _same(await _all(ledger, "t", after=10_000), [])


async def the_chain_is_over_everything(open_: _OpenLog) -> None:
    async with open_() as ledger:
        message = _said()
        (one,) = await ledger.append("a", [message])
        (other,) = await ledger.append("b", [message])
        _same(one.hash == other.hash, False)
        _same((await ledger.head("a")).hash, one.hash)
        (two,) = await ledger.append("a", [_said()])
        _same((await ledger.head("a")).hash, two.hash)


async def messages_are_found_by_invocation_and_correlation(open_: _OpenLog) -> None:
    call = _call(correlation_id="exchange")
    async with open_() as ledger:
        await ledger.append("a", [_said(), call])
        await ledger.append("b", [_said(correlation_id="exchange")])
        await ledger.append("a", [_result(call)])
        invocation = call.invocation_id or ""
        records = await ledger.find(invocation_id=invocation)
        _same([record.message.kind for record in records], ["option_call", "option_result"])
        _same(await ledger.find(invocation_id=invocation, thread_id="b"), ())
        records = await ledger.find(correlation_id="exchange")
        _same([record.message.thread_id for record in records], ["a", "b", "a"])
        _same(len(await ledger.find(correlation_id="exchange", thread_id="a")), 2)
        _same(await ledger.find(correlation_id="nothing"), ())


async def large_media_comes_back_identical(open_: _OpenLog) -> None:
    picture = MediaPart(modality="image", url="data:image/png;base64," + "iVBORw0K" * 20_000)
    payload = PartsPayload(parts=(picture, TextPart(text='"data:'), picture))
    async with open_() as ledger:
        message = Message(policy="user", payload=payload)
        (record,) = await ledger.append("t", [message])
        await ledger.append("t", [Message(policy="user", payload=PartsPayload(parts=(picture,)))])
        again = await _all(ledger, "t")
        _same(again[0].body, record.body)
        _same(again[0].message.payload, payload)
        _same(await ledger.append("t", [message]), (record,))
        await _whole(ledger)


# ---------------------------------------------------------------- summaries


async def a_summary_is_kept_beside_the_head(open_: _OpenLog) -> None:
    async with open_() as ledger:
        usage = Usage(input_tokens=10, output_tokens=3, cost=Decimal("0.1"))
        await ledger.append("t", [_said(usage=usage), _said(usage=usage)], status="running", pattern="peers")
        await ledger.append("t", [_said(), _said(usage=Usage(cost=Decimal("0.01")))])
        summary = await ledger.thread("t")
        if summary is None:
            raise AssertionError("there is none")
        _same((summary.status, summary.pattern, summary.messages), ("running", "peers", 4))
        _same((summary.input_tokens, summary.output_tokens, summary.cost), (20, 6, Decimal("0.21")))
        first, *_, last = await _all(ledger, "t")
        _same((summary.created_at, summary.updated_at), (first.recorded_at, last.recorded_at))
        await ledger.append("t", [], status="done")
        summary = await ledger.thread("t")
        _same(summary and (summary.status, summary.pattern, summary.messages), ("done", "peers", 4))


async def threads_are_listed_page_by_page(open_: _OpenLog) -> None:
    async with open_() as ledger:
        for name in ("a", "b", "c", "a"):
            await ledger.append(name, [_said()])
        first = await ledger.threads(limit=2)
        _same([thread.thread_id for thread in first.threads], ["a", "c"])
        last = await ledger.threads(page=first.next, limit=2)
        _same(([thread.thread_id for thread in last.threads], last.next), (["b"], None))
        _same(last.threads[0], await ledger.thread("b"))


async def threads_are_listed_by_page_order_and_filter(open_: _OpenLedger) -> None:
    async with open_() as ledger:
        for number in range(7):
            pattern = ("peers", "peers", "peers", SYSTEM_PATTERN, "peers", "peers", "peers")[number]
            await ledger.append(f"t{number}", [_said()], status="odd" if number % 2 else "even", pattern=pattern)
        thread_ids: list[str] = []
        page = await ledger.threads(order="created_at", limit=3)
        while True:
            thread_ids += [thread.thread_id for thread in page.threads]
            if page.next is None:
                break
            page = await ledger.threads(order="created_at", limit=3, page=page.next)
        _same(thread_ids, [f"t{number}" for number in range(7)])
        newest = await ledger.threads(limit=2)
        _same([thread.thread_id for thread in newest.threads], ["t6", "t5"])
        older = await ledger.threads(limit=100, page=newest.next)
        _same([thread.thread_id for thread in older.threads], ["t4", "t3", "t2", "t1", "t0"])
        odd = await ledger.threads(ThreadFilter(status="odd", system=False), order="updated_at")
        _same([thread.thread_id for thread in odd.threads], ["t1", "t5"])
        machinery = await ledger.threads(ThreadFilter(system=True))
        _same([thread.thread_id for thread in machinery.threads], ["t3"])
        late = await ledger.threads(ThreadFilter(updated_after=newest.threads[1].updated_at))
        _same([thread.thread_id for thread in late.threads], ["t6"])
        counted = [(row.status, row.pattern, row.threads) for row in await ledger.count_threads()]
        _same(counted, [("even", "peers", 4), ("odd", "peers", 2), ("odd", SYSTEM_PATTERN, 1)])
        _same([row.threads for row in await ledger.count_threads(system=True)], [1])
        await ledger.append("t7", [_said()])
        await ledger.append("t8", [_call()])
        visible = [(row.status, row.pattern, row.threads, row.open) for row in await ledger.count_threads(system=False)]
        _same(visible, [(None, None, 2, 1), ("even", "peers", 4, 0), ("odd", "peers", 2, 0)])
        wrong: Any = "id; DROP TABLE threads"
        await _refused(ValueError, ledger.threads(order=wrong))
        await _refused(ValueError, ledger.threads(page="' OR 1=1"))


# ---------------------------------------------------------------- tail


async def a_tail_has_everything_once_and_in_order(open_: _OpenLog) -> None:
    async with open_() as ledger:
        await ledger.append("a", [_said(), _said()])
        await ledger.append("b", [_said()])
        first = await _some(ledger, 2)
        await ledger.append("a", [_said()])
        rest = await _some(ledger, 2, after=first[-1][1])
        _same([(record.message.thread_id, record.seq) for record, _ in first + rest], [("a", 1), ("a", 2), ("b", 1), ("a", 3)])
        await _refused(ValueError, _some(ledger, 1, after="1 OR 1"))


async def a_tail_is_live(open_: _OpenLog) -> None:
    async with open_() as ledger:
        await ledger.append("t", [_said("before")])
        follower = asyncio.create_task(_some(ledger, 50, after=await ledger.horizon()))
        one = asyncio.create_task(_some(ledger, 26, thread_id="t"))
        await asyncio.sleep(0)
        await asyncio.gather(*(ledger.append("t" if number % 2 else "u", [_said(str(number))]) for number in range(50)))
        seen = await follower
        _same(len({(record.message.thread_id, record.seq) for record, _ in seen}), 50)
        _same([record.seq for record, _ in seen if record.message.thread_id == "t"], list(range(2, 27)))
        _same([record.seq for record, _ in await one], list(range(1, 27)))


async def a_tail_goes_on_after_a_deletion(open_: _OpenLedger) -> None:
    async with open_() as ledger:
        await ledger.append("a", [_said()])
        await ledger.append("b", [_said()])
        seen = await _some(ledger, 2)
        await ledger.delete("b")
        await ledger.append("c", [_said()])
        after = await _some(ledger, 1, after=seen[-1][1])
        _same([record.message.thread_id for record, _ in after], ["c"])


# ---------------------------------------------------------------- snapshots


def _counting(seen: list[int]) -> Fold[int]:
    def step(state: int, message: Message) -> int:
        seen.append(1)
        return state + len(message.text)

    def load(value: Any) -> int:
        return int(value)

    return Fold("letters/1", 0, step, lambda state: state, load)


async def a_replay_goes_on_from_a_snapshot(open_: _OpenLog) -> None:
    seen: list[int] = []
    fold = _counting(seen)
    async with open_() as ledger:
        await ledger.append("t", [_said("one"), _said("three")], snapshot=fold.snapshot(8))
        await ledger.append("t", [_said("four")])
        _same((await replay(ledger, "t", fold), len(seen)), (12, 1))
        early: int = await replay(ledger, "t", fold, upto=1)
        anew: int = await replay(ledger, "t", replace(fold, name="letters/2"))
        _same((early, anew), (3, 12))


async def a_branch_is_replayed_from_a_snapshot_of_its_origin(open_: _OpenLedger) -> None:
    seen: list[int] = []
    fold = _counting(seen)
    async with open_() as ledger:
        await ledger.append("t", [_said("one"), _said("three")], snapshot=fold.snapshot(8))
        await ledger.append("t", [_said("four")])
        branch = await ledger.fork("t", at=2)
        _same((await replay(ledger, branch.thread_id, fold), len(seen)), (8, 0))


# ---------------------------------------------------------------- replay, fork, diff, search


async def step_numbers_change_neither_order_nor_what_is_found(open_: _OpenLog) -> None:
    # Order is that of the appends: steps may fall, repeat, be missing, or differ within a pair (OP-021).
    # Mutant: a ledger whose `read` sorts by step_num -> this check is red.
    call = _call(correlation_id="c")
    talk = [_said("one", correlation_id="c"), call, _said("three"), _result(call), _said("five", correlation_id="c")]
    numbers: dict[str, list[int | None]] = {"falling": [9, 7, 5, 3, 1], "mixed": [2, 9, None, 0, 2], "none": [None] * 5}
    async with open_() as ledger:
        for thread, steps in numbers.items():
            numbered = [message.model_copy(update={"step_num": step}) for message, step in zip(talk, steps, strict=True)]
            await ledger.append(thread, numbered[:3])
            _same([record.message.id for record in await ledger.open_calls(thread)], [call.id])
            await ledger.append(thread, numbered[3:], expected_version=3)
            ids, records = [message.id for message in talk], await _all(ledger, thread)
            _same([(record.seq, record.message.id) for record in records], list(enumerate(ids, 1)))
            _same([record.message.step_num for record in records], steps)
            _same([record.message.id for record in await _all(ledger, thread, reverse=True)], ids[::-1])
            _same([record.message.id for record, _ in await _some(ledger, 5, thread_id=thread)], ids)
            _same([message.id for message in await replay(ledger, thread)], ids)
            exchange = await ledger.find(correlation_id="c", thread_id=thread)
            _same([record.message.id for record in exchange], [ids[0], ids[1], ids[3], ids[4]])
            pair = await ledger.find(invocation_id=call.invocation_id or "", thread_id=thread)
            _same([record.message.id for record in pair], [ids[1], ids[3]])
        await _whole(ledger)


async def a_step_ends_with_its_last_message(open_: _OpenLedger) -> None:
    async with open_() as ledger:
        await ledger.append("t", [_said(step_num=step) for step in (2, 9, None, 0, 2)])
        _same((await ledger.fork("t", at_step=2)).forked_at, 5)


async def a_replay_gives_the_same_bytes(open_: _OpenLog) -> None:
    call = _call()
    async with open_() as ledger:
        records = await ledger.append("t", [_said(), call, _result(call)])
        replayed = await replay(ledger, "t")
        _same(b"".join(map(dumps, replayed)), b"".join(record.body for record in records))
        _same(len(await replay(ledger, "t", upto=2)), 2)
        _same(await transitions(ledger, "t"), Conversation([record.message for record in records]).transitions())


async def a_branch_shares_what_was_before_and_closes_what_was_open(open_: _OpenLedger) -> None:
    call, effect = _call(), _call(lane="effect")
    async with open_() as ledger:
        await ledger.append("t", [_said("one"), call, effect, _said("four")])
        await ledger.append("t", [_result(call)])
        branch = await ledger.fork("t", at=4, into="b")
        shared, mine = await _all(ledger, "t"), await _all(ledger, "b")
        _same(mine[:4], shared[:4])
        closed = [record.message for record in mine[4:]]
        _same([message.invocation_id for message in closed], [call.invocation_id, effect.invocation_id])
        reasons = [getattr(message.payload, "error_type", None) for message in closed]
        _same(reasons, ["forked", "forked"])
        _same((branch.forked_from, branch.forked_at, branch.messages, branch.open_calls), ("t", 4, 6, 0))
        _same({message.thread_id for message in closed}, {"b"})
        _same([record.message.id for record in (await ledger.open_calls(option="look")).calls], [effect.id])  # none of "b"
        await _refused(errors.AppendRefusedError, ledger.append("b", [_result(call, "late")]))
        _same(len(await _all(ledger, "t")), 5)
        await _whole(ledger)


async def a_branch_is_a_thread_like_any_other(open_: _OpenLedger) -> None:
    first = _said("one")
    async with open_() as ledger:
        await ledger.append("t", [first, _said("two", step_num=1), _said("three", step_num=2)])
        await ledger.fork("t", at_step=1, into="b")
        await ledger.append("b", [_said("other")], expected_version=2)
        await ledger.fork("b", into="c")
        await ledger.fork("b", at=1, into="d")
        await ledger.append("c", [_said("deep", correlation_id="x")])
        _same([record.message.text for record in await _all(ledger, "c")], ["one", "two", "other", "deep"])
        _same([record.message.text for record in await _all(ledger, "c", reverse=True)], ["deep", "other", "two", "one"])
        _same([record.message.text for record in await _all(ledger, "d")], ["one"])
        await _refused(errors.AppendRefusedError, ledger.append("c", [first]))
        _same([record.message.text for record, _ in await _some(ledger, 4, thread_id="c")], ["one", "two", "other", "deep"])
        _same(len(await _some(ledger, 5)), 5)
        if await ledger.keys.of("c") is not None:
            await _refused(errors.NotSearchableError, ledger.search("two", thread_id="c"))
        else:
            _same([hit.record.seq for hit in await ledger.search("two", thread_id="c")], [2])
        difference = await diff(ledger, "t", "c")
        _same((difference.common, len(difference.left), len(difference.right)), (2, 1, 2))
        _same((await ledger.verify(heads=await heads_of(ledger))).damages, ())


async def a_fork_needs_a_place_and_a_free_name(open_: _OpenLedger) -> None:
    async with open_() as ledger:
        await ledger.append("t", [_said()])
        await _refused(errors.UnknownThreadError, ledger.fork("nobody"))
        await _refused(ValueError, ledger.fork("t", at=2))
        await _refused(ValueError, ledger.fork("t", at=-1))
        await _refused(ValueError, ledger.fork("t", at_step=1))
        await _refused(ValueError, ledger.fork("t", at=1, at_step=1))
        await _refused(ValueError, ledger.fork("t", into="t"))
        _same((await ledger.fork("t")).messages, 1)
        _same((await ledger.fork("t", at=0)).messages, 0)


async def search_finds_words_phrases_and_beginnings(open_: _OpenLedger) -> None:
    call = MessageBuilder(policy="a").add_option_call("weather", {"city": "Zürich", "days": ["monday"]}).last_option_call
    async with open_() as ledger:
        await ledger.append("t", [_said("the quick brown fox"), _said("a brown, quick bear"), call])
        await ledger.append("u", [_said("nothing brown here")])
        if await ledger.keys.of("t") is not None:  # an index would be readable
            _same([await ledger.search(query) for query in ("QUICK brown", "bro*", "zurich")], [(), (), ()])
            await _refused(errors.NotSearchableError, ledger.search("brown", thread_id="u"))
            return
        hits = await ledger.search("QUICK brown")
        _same({hit.record.seq for hit in hits}, {1, 2})
        _same(["«quick»" in hit.snippet for hit in hits], [True, True])
        _same([hit.record.seq for hit in await ledger.search('"quick brown"')], [1])
        _same({hit.record.message.thread_id for hit in await ledger.search("bro*")}, {"t", "u"})
        _same([hit.record.seq for hit in await ledger.search("zurich monday")], [3])
        _same([hit.record.seq for hit in await ledger.search("brown", thread_id="u")], [1])
        _same(len(await ledger.search("brown", limit=1)), 1)
        for odd in ("", '"', "*", "AND", "NEAR(", "a OR b", "x') OR '1'='1", "\x00", "col:fox", "-fox", "^", "(" * 500):
            await ledger.search(odd)


def _entry(message: Message) -> TermEntry | None:
    """An entry from `source version: heading | body`."""
    facts, _, text = message.text.partition(": ")
    heading, _, body = text.partition("| ")
    source, _, version = facts.partition(" ")
    return TermEntry(source, int(version), heading.strip(), body) if version.isdigit() else None


async def terms_find_messages_until_their_source_is_replaced_removed_or_deleted(open_: _OpenLedger) -> None:
    index = TermIndex("shelf", "1", _entry)

    async def found(*terms: str, limit: int = 10, source: str | None = None) -> list[str]:
        matches = await ledger.terms.find(index, terms, limit=limit, source=source)
        return [match.entry.body for match in matches.matches]

    async with open_() as ledger:
        _same(await found("fox"), [])
        old = [_said("a 1: animal | the quick fox"), _said("a 1: animal | slow bear"), _said("no entry: fox")]
        await ledger.append("shelf", old)
        if await ledger.keys.of("shelf") is not None:
            await _refused(errors.NotSearchableError, found("fox"))
            await _refused(errors.NotSearchableError, ledger.terms.rebuild(index))
            return
        await ledger.append("shelf/b", [_said("b 1: plant | a fox glove a fox")])
        await ledger.append("shelves", [_said("c 1: animal | fox")])
        _same(sorted(await found("fox")), ["a fox glove a fox", "the quick fox"])
        _same(await found("slow", "bear", "quick", limit=1), ["slow bear"])
        _same((await found("animal", "quick"))[0], "the quick fox")
        _same(await found("fox", source="[b-z]*"), ["a fox glove a fox"])
        matches = await ledger.terms.find(index, ["fox", "zebra"])
        _same((matches.entries, matches.length, dict(matches.frequency)), (3, 13, {"fox": 2, "zebra": 0}))
        await ledger.append("shelf", [_said("a 2: animal | a quick hare")])
        _same(sorted(await found("fox", "quick")), ["a fox glove a fox", "a quick hare"])
        await ledger.append("shelf", [_said("a 3: | ")])
        _same(await found("quick", "hare", "animal"), [])
        await ledger.append("shelf/c", [_said("c 1: plant | white rose")])
        _same(sorted(await found("plant")), ["a fox glove a fox", "white rose"])
        await ledger.delete("shelf/b")
        _same(await found("plant", "fox"), ["white rose"])
        index = TermIndex("shelf", "2", lambda message: _entry(message) and TermEntry("x", 1, "", "rebuilt"))
        _same(set(await found("rebuilt")), {"rebuilt"})
        index = TermIndex("shelf", "1", _entry)
        _same(await found("plant", "rebuilt"), ["white rose"])
        _same(await ledger.terms.rebuild(index), 1)
        _same(await found("plant"), ["white rose"])
        for terms in (["two words"], [""], ['"'], ["x"] + [str(number) for number in range(500)]):
            await _refused(ValueError, ledger.terms.find(index, terms))
        await _refused(ValueError, ledger.terms.find(index, ["x"], limit=-1))
        await _whole(ledger)


# ---------------------------------------------------------------- secrets


async def what_a_ledger_says_it_takes_out_is_what_it_takes_out(open_: _OpenOwners) -> None:
    odd = "sk-proj-Ab3dEf6hIj9kLm2nOp5q"
    async with open_() as ledger:
        rules = await ledger.redaction.of("t")
        message = _said(f"it is {odd}", thread_id="t")
        stored = message if rules is None else rules.message(message)
        _same([record.message for record in await ledger.append("t", [message])], [stored])
        _same([record.message for record in await _all(ledger, "t")], [stored])
        _same(len(await ledger.append("t", [message])), 1)
        _same(await ledger.redaction.of("t"), rules)
        if rules is not None and rules.is_secret(odd):
            for doing in (
                ledger.append(odd, [_said()]),
                ledger.append("t", [], status=odd),
                ledger.append("t", [], pattern=odd),
                ledger.append("t", [], snapshot=Snapshot(odd, 1)),
                ledger.post(odd, _said(to=("somebody",))),
                ledger.claim(odd),
            ):
                await _refused(errors.SecretNameError, doing)
        _same([thread.thread_id for thread in (await ledger.threads()).threads], ["t"])


async def a_branch_is_redacted_as_its_origin(open_: _OpenLedger) -> None:
    odd = "sk-proj-Ab3dEf6hIj9kLm2nOp5q"
    async with open_() as ledger:
        await ledger.append("t", [_said()])
        await ledger.fork("t", into="branch")
        rules = await ledger.redaction.of("t")
        _same(await ledger.redaction.of("branch"), rules)
        if rules is not None and rules.is_secret(odd):
            await _refused(errors.SecretNameError, ledger.fork("t", into=odd))
        _same({thread.thread_id for thread in (await ledger.threads()).threads}, {"t", "branch"})


# ---------------------------------------------------------------- maintenance


async def what_is_deleted_is_gone(open_: _OpenLedger) -> None:
    async with open_() as ledger:
        await ledger.append("t", [_said("secret"), _call()])
        await ledger.append("u", [_said("secret too")])
        is_found = await ledger.keys.of("t") is None
        _same(len(await ledger.search("secret")), 2 * is_found)
        await ledger.fork("t", into="b")
        await _refused(ValueError, ledger.delete("t"))
        removed = await ledger.delete("t", with_branches=True)
        _same(sorted(removed), ["b", "t"])
        _same(await _all(ledger, "t"), [])
        _same(await ledger.thread("t"), None)
        _same([hit.record.message.thread_id for hit in await ledger.search("secret")], ["u"] * is_found)
        await _refused(errors.UnknownThreadError, ledger.delete("t"))
        (record,) = await ledger.append("t", [_said()])
        _same(record.seq, 1)
        await _whole(ledger)


async def what_is_forgotten_cannot_be_read_and_is_whole(open_: _OpenLedger) -> None:
    picture = MediaPart(modality="image", url="data:image/png;base64," + "iVBORw0K" * 2_000)
    image = Message(policy="user", payload=PartsPayload(parts=(picture,)))
    async with open_() as ledger:
        await ledger.append("t", [_said("one"), image, _call()], snapshot=Snapshot("f", {"n": 3}))
        await ledger.append("u", [image])
        await _refused(errors.UnknownThreadError, ledger.keys.forget("nobody"))
        if await ledger.keys.of("t") is None:
            await _refused(errors.EncryptionError, ledger.keys.forget("t"))
            return
        heads = await heads_of(ledger)
        await ledger.fork("t", at=2, into="b")
        await ledger.append("b", [_said("another way")])
        await ledger.fork("b", into="c")
        await _refused(ValueError, ledger.keys.forget("t"))
        _same(await ledger.keys.forget("c"), ("c",))
        _same(len(await _all(ledger, "b")), 3)
        await _refused(errors.ForgottenError, _all(ledger, "c"))
        _same(sorted(await ledger.keys.forget("t", with_branches=True)), ["b", "t"])
        await _refused(errors.ForgottenError, ledger.keys.forget("t"))
        for name in ("t", "b", "c"):
            for doing in (
                _all(ledger, name),
                ledger.append(name, [_said()]),
                ledger.post(name, _said(to=("somebody",))),
                replay(ledger, name, Fold("f", 0, lambda state, _: state, dump=int, load=lambda value: int(str(value)))),
                ledger.open_calls(name),
                ledger.fork(name, at=1),
                journal_of(ledger, name),
                _some(ledger, 1, thread_id=name),
            ):
                await _refused(errors.ForgottenError, doing)
        _same([record.message.id for record, _ in await _some(ledger, 1)], [image.id])
        _same((await ledger.open_calls(option="look")).calls, ())
        _same([record.message.payload for record in await _all(ledger, "u")], [image.payload])
        _same((await ledger.verify(heads=heads)).damages, ())
        status = await ledger.keys.status()
        _same(None if status is None else (status.threads, status.forgotten), (4, 3))
        summary = await ledger.thread("t")
        _same(None if summary is None else (summary.messages, summary.open_calls, summary.owner), (3, 0, None))
        await ledger.delete("t", with_branches=True)
        await ledger.append("t", [_said("anew")])
        _same([record.message.text for record in await _all(ledger, "t")], ["anew"])
        await _whole(ledger)


async def another_master_key_opens_what_it_wraps_anew(open_: _OpenLedger) -> None:
    async with open_() as ledger:
        call = _call()
        await ledger.append("t", [_said("one"), call], snapshot=Snapshot("f", 1))
        status = await ledger.keys.status()
        if status is None:
            return
        await ledger.append("gone", [_said("two")])
        await ledger.keys.forget("gone")
        heads, before = await heads_of(ledger), await _all(ledger, "t")
        new = MasterKey.from_text(MasterKey.generate())
        _same(await ledger.keys.rotate(new), 1)
        changed = await ledger.keys.status()
        _same((None if changed is None else changed.master, await heads_of(ledger)), (new.id, heads))
        _same(await _all(ledger, "t"), before)
        _same([record.message.id for record in (await ledger.open_calls(option="look")).calls], [call.id])
        await ledger.append("t", [_result(call)])
        await ledger.append("new", [_said("three")])
        await _refused(errors.ForgottenError, _all(ledger, "gone"))
        _same((await ledger.verify(heads=heads)).damages, ())


async def what_is_old_expires_unless_a_branch_needs_it(open_: _OpenLedger) -> None:
    async with open_() as ledger:
        for name in ("old", "parent", "alone"):
            (record,) = await ledger.append(name, [_said()])
        await ledger.fork("old", into="old branch")
        await ledger.fork("parent", into="young branch")
        (young,) = await ledger.append("young branch", [_said()])
        _same(record.recorded_at < young.recorded_at, True)
        gone = await ledger.expire(before=young.recorded_at)
        _same(gone, ("alone", "old", "old branch"))
        _same(len(await _all(ledger, "young branch")), 2)


async def heads_from_before_prove_that_nothing_was_cut_off(open_: _OpenLedger) -> None:
    async with open_() as ledger:
        await ledger.append("t", [_said(), _said()])
        heads = await heads_of(ledger)
        await ledger.append("t", [_said()])
        _same((await ledger.verify(heads=heads)).damages, ())
        longer = [replace(head, seq=head.seq + 5) for head in heads]
        _same([damage.thread_id for damage in (await ledger.verify(heads=longer)).damages], ["t"])
        other = [replace(head, hash="00" * 32) for head in heads]
        _same([damage.seq is not None for damage in (await ledger.verify(heads=other)).damages], [True])
        gone = [replace(head, thread_id="gone") for head in heads]
        _same([damage.thread_id for damage in (await ledger.verify(heads=gone)).damages], ["gone"])
        steps: list[tuple[int, int]] = []

        def progress(done: int, total: int) -> None:
            steps.append((done, total))

        report = await ledger.verify(progress=progress)
        _same((report.threads, report.messages, report.is_whole, steps[-1]), (1, 3, True, (3, 3)))
        one = await ledger.verify("t", heads=longer)
        _same((one.threads, [damage.thread_id for damage in one.damages]), (1, ["t"]))
        await _refused(errors.UnknownThreadError, ledger.verify("nobody"))


async def what_heads_prove_can_be_restored(open_: _OpenLedger) -> None:
    call, picture = _call(lane="control", to=("agent",)), f"data:image/png;base64,{'A' * 20_000}"
    image = Message(policy="user", payload=PartsPayload(parts=(MediaPart(modality="image", url=picture),)))
    async with open_() as ledger:
        await ledger.append("t", [_said(usage=Usage(input_tokens=3, cost=Decimal("0.1"))), call, image], status="running")
        await ledger.append("t", [_said("one", id="same"), _said("other", id="same")], allow_foreign=True)
        await ledger.fork("t", at=2, into="b")
        await ledger.append("b", [_said("another way")])
        heads, before = await heads_of(ledger), [await _all(ledger, name) for name in ("t", "b")]
        journals = [await journal_of(ledger, name) for name in ("t", "b")]
        await _refused(errors.RestoreRefusedError, ledger.restore(journals, heads))  # they exist
        await ledger.delete("t", with_branches=True)
        restored = await ledger.restore(journals, heads)
        _same(
            [(summary.thread_id, summary.messages, summary.open_calls, summary.status) for summary in restored],
            [("t", 5, 1, None), ("b", 4, 0, None)],
        )
        _same((restored[0].created_at, restored[0].input_tokens), (before[0][0].recorded_at, 3))
        _same([await _all(ledger, name) for name in ("t", "b")], before)
        _same(await heads_of(ledger), heads)
        _same([record.message.id for record in await ledger.open_calls("t")], [call.id])
        _same((await ledger.verify(heads=heads)).damages, ())
        await ledger.append("t", [_result(call)])
        await _refused(errors.AppendRefusedError, ledger.append("t", [_said("third", id="same")]))


async def hosts_of_a_ledger_redact_by_the_same_rules(open_: _OpenOwners) -> None:
    host, late = Host("h", "1", ("agent",), 60.0), Host("late", "1", ("agent",), 60.0)
    async with open_() as ledger:
        before = await ledger.redaction.rules()
        _same((before.ledger, before.is_accepted), (None, True))
        await ledger.beat(host)
        _same(await ledger.redaction.rules(), replace(before, ledger=before.handle))
        store: Any = ledger
        rules = getattr(ledger, "rules", None)
        if rules is None:
            return  # another store, whose rules cannot be changed from here
        with_values = rules.rules.with_secrets({"token": "registered value"})
        store.rules = LedgerRedaction.of(with_values)  # as another process that has registered values opens it
        await ledger.beat(host)
        fewer, other_patterns = (
            replace(rules.rules, keys=frozenset({"salary"})),
            replace(rules.rules, patterns={"n": "N[0-9]+"}),
        )
        for other in ("off", fewer, other_patterns):
            store.rules = LedgerRedaction.of(other)
            await _refused(errors.OtherRedactionError, ledger.beat(host))
            await _refused(errors.OtherRedactionError, ledger.beat(late))
            await _refused(errors.OtherRedactionError, ledger.redaction.adopt())
            _same((await ledger.redaction.rules()).is_accepted, False)
        _same([status.host.name for status in await ledger.hosts()], ["h"])
        await ledger.leave(host)
        adopted = await ledger.redaction.adopt()
        _same(adopted.ledger, adopted.handle)
        await ledger.beat(late)
        store.rules = rules
        await _refused(errors.OtherRedactionError, ledger.beat(host))
        await _whole(ledger)


async def a_moved_thread_continues_in_no_way(open_: _OpenLedger) -> None:
    host, to = Host("h", "1", ("agent",), 60.0), "sqlite:////there.db"
    async with open_() as ledger:
        await _refused(errors.UnknownThreadError, ledger.move("t", to=to))
        await ledger.beat(host)
        await ledger.post("t", _said("wake up", to=("agent/1",)))
        (taken,) = await ledger.take(host)
        await _refused(errors.OwnedError, ledger.move("t", to=to))
        await ledger.append("t", [_call(lane="effect")], epoch=taken.epoch, status="running", pattern="chain")
        await ledger.release("t", epoch=taken.epoch)
        before = await ledger.head("t")
        standing = await ledger.move("t", to=to)
        _same((standing.status, standing.pattern, standing.kind, standing.posted), ("running", "chain", "agent", 1))
        _same(standing.due_at is not None, True)
        _same(await ledger.move("t", to=to), standing)
        await _refused(errors.ThreadMovedError, ledger.move("t", to="sqlite:////elsewhere.db"))
        await _refused(errors.ThreadMovedError, ledger.append("t", [_said()], epoch=taken.epoch))
        await _refused(errors.ThreadMovedError, ledger.append("t", [_said()]))
        await _refused(errors.ThreadMovedError, ledger.post("t", _said(to=("agent/1",))))
        await _refused(errors.ThreadMovedError, ledger.claim("t"))
        await _refused(errors.FencedError, ledger.release("t", epoch=taken.epoch))
        await _refused(errors.ThreadMovedError, ledger.claim("t", by=host))
        _same(await ledger.take(host), ())
        summary = await ledger.thread("t")
        _same(
            None if summary is None else (summary.moved_to, summary.owner, summary.due_at, summary.unfit), (to, None, None, ())
        )
        _same(await ledger.head("t"), before)
        _same(len(await _all(ledger, "t")), 2)
        branch = await ledger.fork("t", into="branch")
        _same(branch.moved_to, None)
        await ledger.append("branch", [_said("goes on")])
        await _whole(ledger)


async def what_no_head_proves_is_not_restored(open_: _OpenLedger) -> None:
    async with open_() as ledger:
        await ledger.append("t", [_said("one"), _call(), _said("three")])
        await ledger.append("u", [_said()])
        await ledger.fork("t", at=1, into="b")
        heads = {head.thread_id: head for head in await heads_of(ledger)}
        journal, other, branch = [await journal_of(ledger, name) for name in ("t", "u", "b")]
        await ledger.delete("u")
        await ledger.delete("t", with_branches=True)
        first, second, third = journal.records
        late = Record(2, second.body, second.hash, second.recorded_at + timedelta(seconds=1))
        forged = [(first, third), (first, second), (second, third), (first, late, third), (first, second, third, third), ()]
        for records in forged:
            await _refused(errors.RestoreRefusedError, ledger.restore([replace(journal, records=records)], heads.values()))
        cut = replace(heads["t"], seq=2, hash=second.hash)
        for journals, proofs in (
            ([journal], []),
            ([journal], [replace(heads["t"], hash="0" * 64)]),
            ([journal], [cut]),
            ([journal], [heads["u"]]),
            ([replace(journal, forked_at=0)], list(heads.values())),
            ([replace(journal, thread_id="u")], list(heads.values())),
            ([other, other], list(heads.values())),
            ([other, branch], list(heads.values())),
            ([journal, replace(branch, forked_at=2)], list(heads.values())),
            ([other, replace(journal, records=journal.records[:2])], list(heads.values())),
        ):
            await _refused(errors.RestoreRefusedError, ledger.restore(journals, proofs))
        _same(await heads_of(ledger), ())
        await ledger.restore([other, journal, branch], heads.values())
        _same((await ledger.verify(heads=heads.values())).damages, ())


async def what_was_said_is_there_when_opened_again(open_: _OpenLog) -> None:
    call, message = _call(), _said()
    async with open_() as ledger:
        await ledger.append("t", [message, call], status="running", snapshot=Snapshot("f", {"n": 3}))
        before = [*await _all(ledger, "t"), await ledger.thread("t"), await ledger.snapshot("t", "f")]
    async with open_() as ledger:
        _same([*await _all(ledger, "t"), await ledger.thread("t"), await ledger.snapshot("t", "f")], before)
        _same(len(await ledger.append("t", [message])), 1)
        await ledger.append("t", [_result(call)])
        _same(await ledger.open_calls("t"), ())
        _same([record.seq for record, _ in await _some(ledger, 3)], [1, 2, 3])


async def epochs_and_branches_are_there_when_opened_again(open_: _OpenLedger) -> None:
    call = _call()
    async with open_() as ledger:
        epoch = await ledger.claim("t")
        await ledger.append("t", [_said(), call], epoch=epoch, status="running")
        before = await _all(ledger, "t")
        await ledger.fork("t", into="b")
    async with open_() as ledger:
        _same(await _all(ledger, "t"), before)
        _same(len(await _all(ledger, "b")), 3)
        await _refused(errors.FencedError, ledger.append("t", [_result(call)], epoch=epoch + 1))
        await ledger.append("t", [_result(call)], epoch=epoch)
        await _whole(ledger)


async def hosts_and_owners_are_known_when_opened_again(open_: _OpenOwners) -> None:
    one, other = _host("one"), _host("other")
    async with open_() as ledger:
        await ledger.beat(one)
        await ledger.append("t", [_call()], epoch=await ledger.claim("t", by=one, kind="agent"))
        await ledger.claim("u", by=one)
        await ledger.release("u", epoch=1, unfit="1", reason="no")
        await ledger.post("v", _to())
        before = [await ledger.thread(name) for name in ("t", "u", "v")]
    async with open_() as ledger:
        await ledger.beat(other)
        _same([await ledger.thread(name) for name in ("t", "u", "v")], before)
        await _refused(errors.OwnedError, ledger.claim("t", by=other))
        await ledger.leave(one)
        _same({thread.thread_id for thread in await ledger.take(other)}, {"t", "v"})
        await _whole(ledger)


async def a_closed_ledger_says_so(open_: _OpenLog) -> None:
    async with open_() as ledger:
        await ledger.append("t", [_said()])
    await _refused(errors.LedgerError, ledger.append("t", [_said()]))
    await _refused(errors.LedgerError, ledger.head("t"))


# ---------------------------------------------------------------- limits for all hosts


async def _leased(ledger: Owners, host: Host, **wants: Any) -> PermitGrant:
    """Lease permits of the model `m`."""
    return (await ledger.limits.lease(host, {"m": PermitWants(**wants)}))["m"]


async def _in_use(ledger: Owners) -> LimitStatus:
    (status,) = await ledger.limits.status()
    return status


async def limits_are_set_changed_and_removed(open_: _OpenOwners) -> None:
    """A limit applies to one model, or to all; without a limit, nothing is refused."""
    async with open_() as ledger:
        _same(await ledger.limits.status(), ())
        await ledger.beat(_host("one"))
        _same(await _leased(ledger, _host("one"), waiting=10**6), PermitGrant())
        await ledger.limits.set(Limit("m", at_once=3))
        await ledger.limits.set(Limit(ALL_MODELS, per_minute=7, cost_per_day=Decimal("0.5")))
        _same([status.limit.model for status in await ledger.limits.status()], [ALL_MODELS, "m"])
        _same((await _leased(ledger, _host("one"), waiting=5)).at_once, 3)
        await ledger.limits.set(Limit("m", at_once=4))
        _same((await _leased(ledger, _host("one"), in_use=3, waiting=2)).at_once, 4)
        await ledger.limits.set(Limit("m", at_once=1))  # running requests continue, and count
        _same((await _leased(ledger, _host("one"), in_use=4, waiting=2)).at_once, 1)
        _same([status.permits for status in await ledger.limits.status()], [0, 4])
        await ledger.limits.set(Limit("m"))
        _same([status.limit.model for status in await ledger.limits.status()], [ALL_MODELS])
        await ledger.limits.set(Limit("never"))
        _same(await _leased(ledger, _host("one"), waiting=9), PermitGrant())
        await _refused(errors.SecretNameError, ledger.limits.set(Limit("sk-ant-api03-" + "a" * 80, at_once=1)))
        await _refused_host("UNKNOWN_HOST", _leased(ledger, _host("two"), waiting=1))


async def many_hosts_have_no_more_permits_than_there_are(open_: _OpenOwners) -> None:
    """However many hosts ask at the same time, they never have more permits than the limit, and all get some."""
    async with open_() as ledger:
        hosts = [_host(f"host {number}") for number in range(4)]
        for host in hosts:
            await ledger.beat(host)
        await ledger.limits.set(Limit("m", at_once=6))
        await asyncio.gather(*(_leased(ledger, host, waiting=50) for host in hosts for _ in range(3)))
        status = await _in_use(ledger)
        _same(status.permits <= 6, True)  # noqa: PLR2004
        permits = {holder.host: holder.permits for holder in status.holders}
        for host in (*hosts, *hosts):  # requests end, and each host asks again: an equal share for each
            grant = await _leased(ledger, host, in_use=min(1, permits[host.name]), waiting=50)
            permits[host.name] = grant.at_once or 0
            _same(sum(permits.values()) <= 6, True)  # noqa: PLR2004
        _same(min(permits.values()) >= 1, True)
        for host in hosts:
            await _leased(ledger, host)
        _same((await _in_use(ledger)).holders, ())
        _same((await _leased(ledger, hosts[0], waiting=50)).at_once, 6)  # the permits that nobody else needs


async def a_host_without_a_permit_goes_first(open_: _OpenOwners) -> None:
    """With more hosts than permits, a free permit goes to the host that has waited longest without any."""
    async with open_() as ledger:
        one, two, three = (_host(name) for name in ("one", "two", "three"))
        for host in (one, two, three):
            await ledger.beat(host)
        await ledger.limits.set(Limit("m", at_once=1))
        _same((await _leased(ledger, one, waiting=9)).at_once, 1)
        _same((await _leased(ledger, two, waiting=1)).at_once, 0)
        _same((await _leased(ledger, three, waiting=1)).at_once, 0)
        # It starts no other request when this one has ended.
        _same((await _leased(ledger, one, in_use=1, waiting=8)).at_once, 0)
        _same((await _leased(ledger, two, waiting=1)).at_once, 0)
        _same((await _leased(ledger, one, waiting=8)).at_once, 0)
        _same((await _leased(ledger, three, waiting=1)).at_once, 0)
        _same((await _leased(ledger, two, waiting=1)).at_once, 1)
        await _leased(ledger, two)
        _same((await _leased(ledger, one, waiting=8)).at_once, 0)
        _same((await _leased(ledger, three, waiting=1)).at_once, 1)
        await ledger.leave(three)
        _same((await _leased(ledger, one, waiting=8)).at_once, 1)


async def a_dead_host_gives_its_permits_back(open_: _OpenOwners) -> None:
    """Permits last as long as the lease of their host; a host that returns reports its running requests."""
    async with open_() as ledger:
        one, two = _host("one"), _host("two")
        await ledger.beat(one)
        await ledger.beat(two)
        await ledger.limits.set(Limit("m", at_once=2))
        _same((await _leased(ledger, one, waiting=2)).at_once, 2)
        _same((await _leased(ledger, two, waiting=2)).at_once, 0)
        await _let_expire(ledger, one)
        _same((await _leased(ledger, two, waiting=2)).at_once, 2)
        _same([holder.host for holder in (await _in_use(ledger)).holders], ["two"])
        await _refused_host("HOST_EXPIRED", _leased(ledger, one, in_use=2))
        await ledger.beat(one)
        _same((await _leased(ledger, one, in_use=1, waiting=3)).at_once, 0)  # it was suspended with a running request
        _same((await _leased(ledger, two, in_use=1, waiting=1)).at_once, 1)
        await ledger.leave(one)
        _same((await _leased(ledger, two, in_use=1, waiting=1)).at_once, 2)


async def in_no_minute_more_requests_begin(open_: _OpenOwners) -> None:
    """Permits to start requests are used up for a minute, whichever host used them, even if it died."""
    async with open_() as ledger:
        hosts = [_host(f"host {number}") for number in range(4)]
        for host in hosts:
            await ledger.beat(host)
        await ledger.limits.set(Limit("m", per_minute=10))
        grants = await asyncio.gather(*(_leased(ledger, host, waiting=4) for host in hosts for _ in range(4)))
        _same(sum(grant.starts or 0 for grant in grants), 10)
        _same({grant.at_once for grant in grants}, {None})
        await ledger.leave(hosts[0])
        _same([(await _leased(ledger, host, waiting=1)).starts for host in hosts[1:]], [0, 0, 0])
        status = await _in_use(ledger)
        _same((status.started, status.waiting), (10, 3))


async def money_is_reserved_before_it_is_spent(open_: _OpenOwners) -> None:
    """Reserved and spent amounts together stay within the daily limit; reservations of a dead host count as spent."""
    async with open_() as ledger:
        one, two = _host("one"), _host("two")
        await ledger.beat(one)
        await ledger.beat(two)
        await ledger.limits.set(Limit("m", cost_per_day=Decimal(1)))
        most, some = Decimal("0.4"), Decimal("0.1")
        grant = await _leased(ledger, one, waiting=3, reserve=(most, most, most))
        _same((grant.reserved, grant.budget_left), (Decimal("0.8"), Decimal(1)))
        grant = await _leased(ledger, two, waiting=1, reserve=(most,))
        _same((grant.reserved, grant.budget_left), (Decimal(0), Decimal(1)))
        for _ in range(2):  # one request has ended and cost less; reporting that twice changes nothing
            grant = await _leased(ledger, one, in_use=1, reserved=most, spent=some)
            _same((grant.reserved, grant.budget_left), (most, Decimal("0.9")))
        _same((await _leased(ledger, two, waiting=1, reserve=(most,))).reserved, most)
        status = await _in_use(ledger)
        _same((status.spent, status.reserved), (some, Decimal("0.8")))
        await _let_expire(ledger, one)
        grant = await _leased(ledger, two, in_use=1, waiting=1, reserved=most, reserve=(most,))
        _same((grant.reserved, grant.budget_left), (most, Decimal("0.5")))
        await ledger.beat(one)
        grant = await _leased(ledger, one, spent=Decimal("0.3"), reported=some)  # only the cost since its last report
        _same(grant.budget_left, Decimal("0.3"))
        await ledger.limits.set(Limit("m", cost_per_day=Decimal(5)))
        _same((await _leased(ledger, two, waiting=1, reserve=(most,))).budget_left, Decimal("4.3"))


async def limits_and_their_use_are_known_when_opened_again(open_: _OpenOwners) -> None:
    """Limits, permits and costs are stored."""
    async with open_() as ledger:
        await ledger.beat(_host("one"))
        await ledger.limits.set(Limit("m", at_once=2, per_minute=9, cost_per_day=Decimal("1.5")))
        await _leased(ledger, _host("one"), in_use=1, waiting=1, reserve=(Decimal("0.2"),), spent=Decimal("0.3"))
        before = await ledger.limits.status()
    async with open_() as ledger:
        _same(await ledger.limits.status(), before)
        await _whole(ledger)


_DURABLE = frozenset(
    {
        "what_was_said_is_there_when_opened_again",
        "epochs_and_branches_are_there_when_opened_again",
        "hosts_and_owners_are_known_when_opened_again",
        "limits_and_their_use_are_known_when_opened_again",
        "a_closed_ledger_says_so",
    }
)


def _checks(opener: str) -> dict[str, Check]:
    """Return the checks that open a store of a grade, in the order of this file: so none can be left off a list."""
    checks = {name: value for name, value in globals().items() if not name.startswith("_")}
    return {name: check for name, check in checks.items() if getattr(check, "__annotations__", {}).get("open_") == opener}


_LOG_CHECKS = _checks("_OpenLog")
_OWNERS_CHECKS = _checks("_OpenOwners")
LEDGER_CHECKS = _LOG_CHECKS | _OWNERS_CHECKS | _checks("_OpenLedger")
"""Every promise by the name of its check."""
