"""Whatever is done in whatever order: both stores answer the same, and as a model of lists and numbers says they should."""

import asyncio
import shutil
import tempfile
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, consumes, initialize, invariant, rule
from tests.ledger.histories import everything, said

from antiphon import Conversation, Message, OptionCallPayload, OptionResultPayload, Usage
from antiphon.errors import AppendConflictError, AppendRefusedError, FencedError, LedgerError, UnknownThreadError
from antiphon.ledger import Fold, Ledger, Record, Snapshot
from antiphon.ledger.memory import MemoryLedger
from antiphon.ledger.sqlite import SqliteLedger
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


class Model:
    """What should be there: for each thread its messages and its epoch, and the entries of the outbox."""

    def __init__(self) -> None:
        self.threads: dict[str, list[Message]] = {}
        self.epochs: dict[str, int] = {}
        self.parents: dict[str, str] = {}
        self.outbox: list[str] = []

    def append(self, thread: str, messages: list[Message], expected: int | None, epoch: int | None, foreign: bool) -> None:
        if (epoch or 0) != self.epochs.get(thread, 0):
            raise FencedError(thread, epoch, 0)
        self._take(thread, messages, expected, foreign)

    def post(self, thread: str, message: Message) -> None:
        if not message.to or message.lane == "effect":
            raise ValueError
        self._take(thread, [message], None, foreign=False)

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
        self.ports = (CountingPort(), CountingPort())
        self.memory = MemoryLedger()
        self.stack = AsyncExitStack()
        self.sqlite = self.run(self._open)

    async def _open(self) -> SqliteLedger:
        return await self.stack.enter_async_context(SqliteLedger.open(self.folder / "ledger.db"))

    def run(self, work: Callable[[], Awaitable[Any]]) -> Any:
        async def awaited() -> Any:
            return await work()

        return self.runner.run(awaited())

    def both(self, work: Callable[[Ledger], Awaitable[Any]]) -> Any:
        """Do something with both, and return what came of it, which must be the same."""
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
        out=st.booleans(),
    )
    def append(
        self, thread: str, messages: list[Message], *, expected: int | None, epoch: int | None, foreign: bool, out: bool
    ) -> None:
        outbox = [said("out", id=f"out-{thread}")] if out and messages else []
        before = len(self.model.threads.get(thread, []))
        outcome = self.both(
            lambda ledger: ledger.append(
                thread, messages, expected_version=expected, epoch=epoch, allow_foreign=foreign, outbox=outbox
            )
        )
        if messages:
            self.expect(outcome, lambda: self.model.append(thread, messages, expected, epoch, foreign))
            if len(self.model.threads.get(thread, [])) > before:
                self.model.outbox += [each.id for each in outbox]

    @rule(thread=THREADS, message=UTTERANCES)
    def post(self, thread: str, message: Message) -> None:
        outcome = self.both(lambda ledger: ledger.post(thread, message))
        self.expect(outcome, lambda: self.model.post(thread, message))

    @rule(thread=THREADS)
    def claim(self, thread: str) -> None:
        self.model.epochs[thread] = self.model.epochs.get(thread, 0) + 1
        self.model.threads.setdefault(thread, [])
        assert self.both(lambda ledger: ledger.claim(thread)) == self.model.epochs[thread]

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
                for part in (self.model.threads, self.model.epochs, self.model.parents):
                    part.pop(name, None)
                self.model.outbox = [each for each in self.model.outbox if each != f"out-{name}"]

    @rule()
    def deliver(self) -> None:
        async def work(ledger: Ledger) -> list[str]:
            entries = await ledger.undelivered(limit=2)
            await ledger.delivered(entries)
            return [entry.message.id for entry in entries]

        delivered = self.both(work)
        assert delivered == self.model.outbox[:2]
        del self.model.outbox[:2]

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
            assert self.both(lambda ledger, thread=thread: ledger.replay(thread, COUNT)) == len(messages)
        self.both(lambda ledger: ledger.heads())
        self.both(lambda ledger: ledger.threads(order="created_at"))
        for invocation in ("i1", "i2"):
            self.both(lambda ledger, name=invocation: ledger.by_invocation(name))

    def teardown(self) -> None:
        heads = self.both(lambda ledger: ledger.heads())
        verification = self.both(lambda ledger: ledger.verify(heads=heads))
        assert verification.is_whole, verification
        self.run(self.stack.aclose)
        self.runner.close()
        shutil.rmtree(self.folder)


async def _last(ledger: Ledger) -> int:
    """Return the cursor of the last message that is there."""
    found = 0
    for head in await ledger.heads():
        if head.seq:
            async for tailed in ledger.tail(thread_id=head.thread_id):
                found = max(found, int(tailed.cursor))
                if tailed.record.seq == head.seq:
                    break
    return found


_MANY = settings().max_examples
Ledgers.TestCase.settings = settings(max_examples=min(_MANY // 5, 200), stateful_step_count=50 if _MANY > 1000 else 30)
TestLedgers = pytest.mark.slow(Ledgers.TestCase)
