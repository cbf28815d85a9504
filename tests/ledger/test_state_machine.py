"""Whatever is done in whatever order: both stores answer the same, and as a model of lists and numbers says they should.

Hosts beat, sleep, leave, claim, take and release in between (G8, G15): no two that live own one thread, nothing that a host
appends after it lost a thread is there, what was posted is found until it was seen, and a machine that is started again ends
every lease.
"""

import asyncio
import shutil
import tempfile
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, consumes, initialize, invariant, rule
from tests.ledger.histories import everything, said

from antiphon import Conversation, Message, OptionCallPayload, OptionResultPayload, Usage
from antiphon.errors import (
    AppendConflictError,
    AppendRefusedError,
    FencedError,
    HostError,
    LedgerError,
    OwnedError,
    UnknownThreadError,
)
from antiphon.ledger import Fold, Host, Ledger, Record, Snapshot, ThreadFilter, heads_of, replay
from antiphon.ledger.memory import MemoryLedger
from antiphon.ledger.sqlite._ledger import SqliteLedger
from antiphon.messages import use_port
from antiphon.testing import CountingPort

THREADS = st.sampled_from(["a", "b", "c"])
IDS = st.sampled_from([f"m{number}" for number in range(12)])
WORDS = st.sampled_from(["one", "two"])
INVOCATIONS = st.sampled_from(["i1", "i2", "i3"])
OPTIONS = st.sampled_from(["look", "listen"])
LANES = st.sampled_from(["talk", "effect"])


def call(id: str, invocation: str, option: str, lane: Any) -> Message:
    payload = OptionCallPayload(invocation_id=invocation, option_name=option, arguments={})
    return Message(id=id, policy="p", lane=lane, payload=payload)


def result(id: str, invocation: str, option: str, lane: Any) -> Message:
    return Message(id=id, policy="p", lane=lane, payload=OptionResultPayload(invocation_id=invocation, option_name=option))


UTTERANCES = st.one_of(
    st.builds(said, WORDS, id=IDS, usage=st.sampled_from([None, Usage(input_tokens=3)]), to=st.sampled_from([(), ("x",)])),
    st.builds(call, IDS, INVOCATIONS, OPTIONS, LANES),
    st.builds(result, IDS, INVOCATIONS, OPTIONS, LANES),
)
COUNT = Fold[int]("count", 0, lambda state, message: state + 1, lambda state: state, lambda value: int(str(value)))


START = datetime(2026, 1, 1, tzinfo=UTC)
HOSTS = st.sampled_from(
    [
        Host("one", "1", ("x",), 10.0, "first"),
        Host("one", "1", ("x",), 10.0, "second"),
        Host("two", "2", ("x", "y"), 5.0, "first"),
        Host("three", "1", ("y",), 30.0, "first"),
    ]
)


class Clock:
    """A clock for leases that the test moves, and a machine that it starts again."""

    def __init__(self) -> None:
        self.seconds = 1000.0
        self.boots = 0

    def has_ended(self, instance: str) -> bool:
        return False

    @property
    def boot(self) -> str:
        return str(self.boots)

    def now(self) -> float:
        return self.seconds


class Model:
    """What should be there: for each thread its messages, its epoch and its owner; and when the lease of each host ends."""

    def __init__(self) -> None:
        self.threads: dict[str, list[Message]] = {}
        self.epochs: dict[str, int] = {}
        self.parents: dict[str, str] = {}
        self.released: set[str] = set()
        self.owners: dict[str, Host] = {}
        self.ends: dict[Host, float] = {}
        self.posted: dict[str, int] = {}

    def living(self, now: float) -> set[Host]:
        return {host for host, end in self.ends.items() if now < end}

    def owns(self, thread: str, now: float) -> Host | None:
        """Return the host that lives and owns a thread."""
        owner = self.owners.get(thread)
        return owner if owner in self.living(now) else None

    def give(self, thread: str, host: Host | None) -> int:
        epoch = self.epochs[thread] = self.epochs.get(thread, 0) + 1
        self.threads.setdefault(thread, [])
        self.released.discard(thread)
        self.owners.pop(thread, None)
        if host is not None:
            self.owners[thread] = host
        return epoch

    def append(self, thread: str, messages: list[Message], expected: int | None, epoch: int | None, foreign: bool) -> None:
        if (epoch or 0) != self.epochs.get(thread, 0) or thread in self.released:
            raise FencedError(thread, epoch, 0)
        self._take(thread, messages, expected, foreign)

    def post(self, thread: str, message: Message) -> None:
        if not message.to or message.lane == "effect":
            raise ValueError
        before = len(self.threads.get(thread, []))
        self._take(thread, [message], None, foreign=False)
        if len(self.threads[thread]) > before:
            self.posted[thread] = before + 1

    def _take(self, thread: str, messages: list[Message], expected: int | None, foreign: bool) -> None:
        there = list(self.threads.get(thread, []))
        before = len(there)
        for message in messages:
            stamped = message.model_copy(update={"thread_id": thread})
            if stamped in there:
                continue
            if not foreign and any(each.id == message.id for each in there):
                raise AppendRefusedError("", thread, "", "")
            if len(there) == before and expected not in (None, before):
                raise AppendConflictError(thread, expected or 0, before, "")
            if not foreign and not self._keeps_rules(there, message):
                raise AppendRefusedError("", thread, "", "")
            there.append(stamped)
        if messages:
            self.threads[thread] = there

    @staticmethod
    def _keeps_rules(there: list[Message], message: Message) -> bool:
        """Whether a message is no result, or answers an open call of the same option."""
        if message.kind != "option_result":
            return True
        conversation = Conversation([*there, message])
        called = [there[call].payload for call in range(len(there)) if conversation.answer_at(call) == message]
        return [payload.option_name for payload in called] == [message.payload.option_name]


class Ledgers(RuleBasedStateMachine):
    """One ledger in memory and one in a file, and what they should hold."""

    cursors = Bundle("cursors")

    def __init__(self) -> None:
        super().__init__()
        self.folder = Path(tempfile.mkdtemp())
        self.runner = asyncio.Runner()
        self.model = Model()
        self.given: dict[tuple[str, Host], int] = {}
        """The last epoch of each thread that each host was given."""
        self.ports = (CountingPort(), CountingPort())
        self.clock = Clock()
        self.memory = MemoryLedger(clock=self.clock)
        self.stack = AsyncExitStack()
        self.sqlite = self.run(self._open)

    async def _open(self) -> SqliteLedger:
        return await self.stack.enter_async_context(SqliteLedger.open(self.folder / "ledger.db", clock=self.clock))

    def run(self, work: Callable[[], Awaitable[Any]]) -> Any:
        async def awaited() -> Any:
            return await work()

        return self.runner.run(awaited())

    def both(self, work: Callable[[Ledger], Awaitable[Any]]) -> Any:
        """Call both, and return the outcome, which must be the same."""
        outcomes = []
        for ledger, port in zip((self.memory, self.sqlite), self.ports, strict=True):

            async def attempt(ledger: Any = ledger, port: CountingPort = port) -> Any:
                with use_port(port):
                    try:
                        return await work(ledger)
                    except (LedgerError, ValueError) as exc:
                        return type(exc), str(exc), getattr(exc, "code", None)

            outcomes.append(self.runner.run(attempt()))
        assert outcomes[0] == outcomes[1]
        return outcomes[0]

    def expect(self, outcome: Any, model: Callable[[], Any]) -> None:
        """The model must take and refuse the same."""
        expected: type[Exception] | None = None
        try:
            model()
        except (LedgerError, ValueError) as exc:
            expected = type(exc)
        found = outcome[0] if isinstance(outcome, tuple) and outcome and isinstance(outcome[0], type) else None
        assert found is expected, outcome

    @initialize()
    def begin(self) -> None:
        assert self.both(lambda ledger: ledger.horizon()) == "0"

    @rule(
        thread=THREADS,
        messages=st.lists(UTTERANCES, max_size=4),
        expected=st.none() | st.integers(0, 6),
        epoch=st.none() | st.integers(0, 2),
        foreign=st.booleans(),
    )
    def append(self, thread: str, messages: list[Message], *, expected: int | None, epoch: int | None, foreign: bool) -> None:
        outcome = self.both(
            lambda ledger: ledger.append(thread, messages, expected_version=expected, epoch=epoch, allow_foreign=foreign)
        )
        if messages:
            self.expect(outcome, lambda: self.model.append(thread, messages, expected, epoch, foreign))

    @rule(thread=THREADS, host=HOSTS, message=UTTERANCES)
    def append_as_owner(self, thread: str, host: Host, message: Message) -> None:
        """With the epoch that a host was given last: it is taken as long as nobody was given a later one."""
        epoch = self.given.get((thread, host))
        if epoch is not None:
            outcome = self.both(lambda ledger: ledger.append(thread, [message], epoch=epoch, allow_foreign=True))
            self.expect(outcome, lambda: self.model.append(thread, [message], None, epoch, foreign=True))

    @rule(thread=THREADS, message=UTTERANCES)
    def post(self, thread: str, message: Message) -> None:
        outcome = self.both(lambda ledger: ledger.post(thread, message))
        self.expect(outcome, lambda: self.model.post(thread, message))

    @rule(thread=THREADS)
    def claim(self, thread: str) -> None:
        assert self.both(lambda ledger: ledger.claim(thread)) == self.model.give(thread, None)

    @rule(host=HOSTS)
    def beat(self, host: Host) -> None:
        outcome = self.both(lambda ledger: ledger.beat(host))
        twins = [each for each in self.model.living(self.clock.seconds) if each.name == host.name and each != host]
        assert isinstance(outcome, tuple) == bool(twins), outcome
        if not twins:
            self.model.ends[host] = self.clock.seconds + host.lease

    @rule(seconds=st.sampled_from([1.0, 4.0, 20.0]))
    def sleep(self, seconds: float) -> None:
        self.clock.seconds += seconds

    @rule()
    def start_the_machine_again(self) -> None:
        """Its clock begins anew, so no lease of before says anything."""
        self.clock.boots += 1
        self.clock.seconds = 5.0
        self.model.ends = dict.fromkeys(self.model.ends, 0.0)

    @rule(host=HOSTS)
    def leave(self, host: Host) -> None:
        self.both(lambda ledger: ledger.leave(host))
        if self.model.ends.pop(host, None) is not None:
            self.given = {key: epoch for key, epoch in self.given.items() if key[1] != host}
            self.model.owners = {name: owner for name, owner in self.model.owners.items() if owner != host}

    @rule(thread=THREADS, host=HOSTS, kind=st.sampled_from([None, "x", "y"]))
    def claim_by(self, thread: str, host: Host, kind: str | None) -> None:
        outcome = self.both(lambda ledger: ledger.claim(thread, by=host, kind=kind))
        owner = self.model.owns(thread, self.clock.seconds)
        if host not in self.model.living(self.clock.seconds):
            assert outcome[0] is HostError, outcome
        elif owner not in (None, host):
            assert outcome[0] is OwnedError, outcome
        else:
            assert outcome == self.model.give(thread, host)
            self.given[thread, host] = outcome

    @rule(
        thread=THREADS,
        host=HOSTS,
        is_seen=st.booleans(),
        wakes=st.sampled_from([None, -3600, 3600]),
        unfit=st.sampled_from([None, None, "1", "2"]),
    )
    def release(self, thread: str, host: Host, *, is_seen: bool, wakes: int | None, unfit: str | None) -> None:
        epoch = self.given.get((thread, host), 1)
        seen = len(self.model.threads.get(thread, [])) if is_seen else None
        wake_at = None if wakes is None else START + timedelta(seconds=wakes)
        reason = None if unfit is None else "it does something else"
        outcome = self.both(
            lambda ledger: ledger.release(thread, epoch=epoch, seen=seen, wake_at=wake_at, unfit=unfit, reason=reason)
        )
        if thread not in self.model.threads:
            assert outcome[0] is UnknownThreadError
        elif epoch != self.model.epochs.get(thread) or thread in self.model.released:
            assert outcome[0] is FencedError, outcome
        else:
            assert outcome is None
            self.model.released.add(thread)
            self.model.owners.pop(thread, None)
            if is_seen:
                self.model.posted.pop(thread, None)

    @rule(host=HOSTS, kinds=st.sampled_from([None, ("x", "y"), ("x", "y", None), (None,)]), limit=st.integers(0, 3))
    def take(self, host: Host, kinds: Any, limit: int) -> None:
        now = self.clock.seconds
        outcome = self.both(lambda ledger: ledger.take(host, kinds=kinds, limit=limit))
        if host not in self.model.living(now):
            assert outcome[0] is HostError, outcome
            return
        assert len(outcome) <= limit
        assert [each.due_at for each in outcome] == sorted(each.due_at for each in outcome)
        for taken in outcome:
            assert self.model.owns(taken.thread_id, now) is None, "two hosts that live own it"
            assert taken.kind in (host.kinds if kinds is None else kinds)
            assert (taken.why == "posted") == (taken.thread_id in self.model.posted)
            assert taken.epoch == self.model.give(taken.thread_id, host)
            self.given[taken.thread_id, host] = taken.epoch

    @rule(host=HOSTS, thread=st.none() | THREADS)
    def woken(self, host: Host, thread: str | None) -> None:
        seen = {} if thread is None else {thread: len(self.model.threads.get(thread, []))}
        outcome = self.both(lambda ledger: ledger.woken(host, seen=seen))
        if thread is not None and self.model.owners.get(thread) == host:
            self.model.posted.pop(thread, None)
        mine = {name for name, owner in self.model.owners.items() if owner == host}
        assert {each.thread_id: each.seq for each in outcome} == {
            name: seq for name, seq in self.model.posted.items() if name in mine
        }

    @rule(thread=THREADS, status=st.sampled_from(["running", "done"]))
    def snapshot(self, thread: str, status: str) -> None:
        epoch = self.model.epochs.get(thread)
        state = Snapshot("count", len(self.model.threads.get(thread, [])))
        self.both(lambda ledger: ledger.append(thread, [], epoch=epoch, snapshot=state, status=status))
        self.model.threads.setdefault(thread, [])

    @rule(thread=THREADS, into=st.sampled_from(["b", "c"]), place=st.integers(0, 8))
    def fork(self, thread: str, into: str, place: int) -> None:
        outcome = self.both(lambda ledger: ledger.fork(thread, at=place, into=into))
        there = self.model.threads.get(thread)
        if there is None:
            assert outcome[0] is UnknownThreadError
        elif place > len(there) or into in self.model.threads:
            assert outcome[0] is ValueError
        else:
            closing = self.run(lambda: everything(self.memory, into))[place:]
            self.model.threads[into] = [*there[:place], *(record.message for record in closing)]
            self.model.parents[into] = thread

    @rule(thread=THREADS, with_branches=st.booleans())
    def delete(self, thread: str, with_branches: bool) -> None:
        outcome = self.both(lambda ledger: ledger.delete(thread, with_branches=with_branches))
        if isinstance(outcome[0], str):
            for name in outcome:
                model = self.model
                for part in (model.threads, model.epochs, model.parents, model.owners, model.posted):
                    part.pop(name, None)
                model.released.discard(name)
                self.given = {key: epoch for key, epoch in self.given.items() if key[0] != name}

    @rule(target=cursors)
    def horizon(self) -> str:
        return str(self.both(lambda ledger: ledger.horizon()))

    @rule(cursor=consumes(cursors))
    def tail(self, cursor: str) -> None:
        """From any cursor on: in the order of commits, and exactly what is there and came after."""

        async def work(ledger: Ledger) -> list[tuple[Record, str]]:
            last = await _last(ledger)
            found: list[tuple[Record, str]] = []
            while int(cursor if not found else found[-1][1]) < last:
                found.append(
                    await anext((each.record, each.cursor) async for each in ledger.tail((found or [(0, cursor)])[-1][1]))
                )
            return found

        found = self.both(work)
        cursors = [int(each) for _, each in found]
        assert cursors == sorted(set(cursors))
        assert all(each > int(cursor) for each in cursors)

    @rule()
    def open_again(self) -> None:
        async def work() -> SqliteLedger:
            await self.stack.aclose()
            return await self._open()

        self.sqlite = self.run(work)

    @invariant()
    def the_threads_are_as_the_model_says(self) -> None:
        for thread, messages in self.model.threads.items():
            records = self.both(lambda ledger, thread=thread: everything(ledger, thread))
            assert [record.message for record in records] == messages
            assert [record.seq for record in records] == list(range(1, len(messages) + 1))
            self.both(lambda ledger, thread=thread: ledger.thread(thread))
            self.both(lambda ledger, thread=thread: ledger.open_calls(thread))
            assert self.both(lambda ledger, thread=thread: replay(ledger, thread, COUNT)) == len(messages)
        self.both(heads_of)
        listed = self.both(lambda ledger: ledger.threads(order="created_at"))
        owned = {each.thread_id: each.owner for each in listed.threads if each.thread_id in self.model.owners}
        assert owned == {name: owner.name for name, owner in self.model.owners.items()}
        hosts = self.both(lambda ledger: ledger.hosts())
        living = self.model.living(self.clock.seconds)
        assert {each.host for each in hosts if each.is_alive} == living
        assert len({host.name for host in living}) == len(living)
        self.both(lambda ledger: ledger.open_calls(option="look", order="-recorded_at", limit=2))
        for wanted in (
            ThreadFilter(open_calls=True),
            ThreadFilter(owner="one"),
            ThreadFilter(unfit=True),
            ThreadFilter(kind="x"),
        ):
            self.both(lambda ledger, wanted=wanted: ledger.threads(wanted))
        for invocation in ("i1", "i2"):
            self.both(lambda ledger, name=invocation: ledger.find(invocation_id=name))

    def teardown(self) -> None:
        heads = self.both(heads_of)
        verification = self.both(lambda ledger: ledger.verify(heads=heads))
        assert verification.is_whole, verification
        self.run(self.stack.aclose)
        self.runner.close()
        shutil.rmtree(self.folder)


async def _last(ledger: Ledger) -> int:
    """Return the cursor of the last message that is there."""
    found = 0
    for head in await heads_of(ledger):
        if head.seq:
            async for tailed in ledger.tail(thread_id=head.thread_id):
                found = max(found, int(tailed.cursor))
                if tailed.record.seq == head.seq:
                    break
    return found


_MANY = settings().max_examples
Ledgers.TestCase.settings = settings(max_examples=min(_MANY // 5, 200), stateful_step_count=50 if _MANY > 1000 else 30)
TestLedgers = pytest.mark.slow(Ledgers.TestCase)
