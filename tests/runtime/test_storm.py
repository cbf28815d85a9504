"""Restarts, deadlines, cancellations and a failing ledger, all at once: in the end nothing is open (G6-G9, G14, G16).

No append of a storm is refused: the rows of the runtime never take the name of a row that has ended, and no message ends what
belongs to another.
"""

import asyncio
from collections import Counter
from collections.abc import Iterable, Sequence
from random import Random
from typing import Any, ClassVar, cast

import pytest
from tests.runtime.actors import Note, Ping, Pong, rows, virtually
from tests.runtime.counts import count

from antiphon.errors import AntiphonError, AppendRefusedError, ParkedError
from antiphon.ledger import Ledger, Record, heads_of
from antiphon.ledger.memory import MemoryLedger
from antiphon.messages import Message, OptionCallPayload
from antiphon.protocol import Reply, Request, Restart
from antiphon.runtime import Actor, Context, Supervision, System, handles
from antiphon.testing import Faults
from antiphon.testing._simulate import FaultyLedger

ASKS = 10


class Gone(Reply, frozen=True, type="STORM_GONE"):
    pass


class Go(Request[Gone], frozen=True, type="STORM_GO"):
    depth: int
    seconds: float


class Link(Actor):
    """Does everything that a handler can: effects, asking others and itself, telling."""

    paid: Counter[str] = Counter()  # noqa: RUF012 (of all that are made)
    """How often each effect was begun that must not happen twice."""

    @handles
    async def go(self, go: Go, context: Context) -> Gone:
        async def look(key: str) -> None:
            await asyncio.sleep(go.seconds)

        async def pay(key: str) -> None:
            self.paid[key] += 1
            await asyncio.sleep(go.seconds)

        await context.effect("look", {}, look, effects="idempotent")
        if go.depth:
            await context.ask(f"link/{go.depth - 1}", Go(depth=go.depth - 1, seconds=go.seconds))
        if go.depth == 1:
            await context.ask(context.address, Go(depth=0, seconds=go.seconds / 2))
        await context.effect("pay", {}, pay)
        await context.tell("sink/1", Note(text="gone"))
        return Gone()


class Many(Link):
    concurrency = 4


class Sink(Actor):
    @handles
    async def note(self, note: Note, context: Context) -> None:
        await asyncio.sleep(0.05)


class Recording(MemoryLedger):
    """A ledger that records its refusals."""

    def __init__(self) -> None:
        super().__init__()
        self.refused: list[str] = []

    async def append(self, thread_id: str, messages: Iterable[Message], **more: Any) -> tuple[Record, ...]:
        try:
            return await super().append(thread_id, messages, **more)
        except AppendRefusedError as exc:
            self.refused.append(str(exc))
            raise


class Storm:
    """One storm, as its seed has it."""

    def __init__(self, seed: int, link: type[Link]) -> None:
        self._chance = Random(seed)
        self._link = link
        self.ledger = Recording()
        self._faulty = FaultyLedger(self.ledger, self._chance, Faults(ledger_failure=0.05, ledger_delay=0.2), Counter())
        self.outcomes: Counter[str] = Counter()

    async def run(self) -> None:
        """Let it blow, then be calm for long, and see what is left."""
        async with System(cast("Ledger", self._faulty)) as system:
            system.supervise("team/1", Supervision(intensity=1000))
            system.register("link", self._link, supervisor="team/1", grace=self._chance.choice([0.0, 0.3, 5.0]))
            system.register("sink", Sink)
            await asyncio.gather(*(self._ask(system, number) for number in range(ASKS)), self._restart(system))
            self._faulty.is_calm = True
            await asyncio.sleep(300)
        for head in await heads_of(self.ledger):
            left = _left(await self.ledger.open_calls(head.thread_id))
            assert not left, (head.thread_id, left)
        assert not self.ledger.refused, self.ledger.refused

    async def _ask(self, system: System, number: int) -> None:
        chance = self._chance
        await asyncio.sleep(chance.random() * 5)
        go = Go(depth=chance.randrange(3), seconds=chance.random())
        to, within = f"link/{chance.randrange(3)}", chance.choice([0.5, 2.0, 30.0])
        asking = asyncio.ensure_future(system.ask(to, go, thread_id=f"t{number % 3}", id=f"m{number}", within=within))
        if chance.random() < 0.3:
            await asyncio.sleep(chance.random() * 3)
            asking.cancel()
        try:
            await asking
            self.outcomes["answered"] += 1
        except AntiphonError as exc:
            self.outcomes[type(exc).__name__] += 1
        except asyncio.CancelledError:
            self.outcomes["cancelled"] += 1

    async def _restart(self, system: System) -> None:
        for _ in range(6):
            await asyncio.sleep(self._chance.random() * 2)
            try:
                await system.ask(f"link/{self._chance.randrange(3)}", Restart(reason="storm"))
            except AntiphonError as exc:
                self.outcomes[f"restart: {type(exc).__name__}"] += 1


def _left(rows: Sequence[Record]) -> list[Any]:
    """Return what is open and neither parked, nor waits for something parked, nor is part of it."""
    calls = [(row.message, row.message.payload) for row in rows if isinstance(row.message.payload, OptionCallPayload)]
    parked = {message.parent_id or "" for message, call in calls if call.option_name == "PARK"}
    names = [(call.option_name, call.invocation_id, message.parent_id or "") for message, call in calls]
    return [name for name in names if not any(_is_of(name, each) for each in parked)]


def _is_of(name: tuple[str, str, str], parked: str) -> bool:
    _, own, parent = name
    return own.startswith(parked) or parent.startswith(parked) or parked.startswith(f"{own}/")


@pytest.mark.slow
@pytest.mark.parametrize("link", [Link, Many])
def test_after_a_storm_nothing_is_open_and_nothing_happened_twice(link: type[Link]) -> None:
    outcomes: Counter[str] = Counter()
    for seed in range(count("storms")):
        link.paid = Counter()
        storm = Storm(seed, link)
        try:
            virtually(storm.run(), seed)
        except AssertionError as exc:
            raise AssertionError(f"seed {seed}: {exc}") from exc
        assert max(link.paid.values(), default=0) <= 1, seed
        outcomes += storm.outcomes
    assert min(outcomes[each] for each in ("answered", "cancelled", "ReplyTimeoutError", "ParkedError")) > 0, outcomes


# ---------------------------------------------------------------- what storms have found, one by one


class Slow(Actor):
    """Fails the first time, then looks at something for ten seconds."""

    @handles
    async def note(self, note: Note, context: Context) -> None:
        async def look(key: str) -> None:
            await asyncio.sleep(10)

        if context.attempt == 1:
            raise OSError("as it happens")
        await context.effect("look", {}, look, effects="idempotent")

    @handles
    async def ping(self, ping: Ping, context: Context) -> Pong:
        await self.note(Note(text=ping.text), context)
        return Pong(text=ping.text)


class Hasty(Actor):
    """Tells or asks another and does not wait; it fails the first time, so the ledger is asked what it has left open."""

    asking: ClassVar[set[asyncio.Future[Pong]]] = set()

    @handles
    async def ping(self, ping: Ping, context: Context) -> Pong:
        if ping.text == "ask":
            self.asking.add(asyncio.ensure_future(context.ask("slow/1", Ping(text="look"), within=60)))
        else:
            await context.tell("slow/1", Note(text="look"))
        await asyncio.sleep(1)
        if context.attempt == 1:
            raise OSError("as it happens")
        return Pong(text=ping.text)


@pytest.mark.parametrize("how", ["tell", "ask"])
def test_the_end_of_a_message_leaves_alone_what_belongs_to_those_that_it_has_sent(how: str) -> None:
    """G16: an effect, or a further delivery, belongs to its own message, and to no message before that one."""

    async def main() -> None:
        ledger = Recording()
        async with System(ledger) as system:
            system.register("slow", Slow)
            system.register("hasty", Hasty)
            await system.ask("hasty/1", Ping(text=how), thread_id="t", id="m")
            await asyncio.gather(*Hasty.asking)
            await asyncio.sleep(60)
            assert await ledger.open_calls("t") == ()
            found = await rows(ledger, "t")
        assert ledger.refused == []
        assert found[-3:] == ["=look", "=TEST_PING" if how == "ask" else "=DELIVER", "=AGAIN"]

    Hasty.asking.clear()
    virtually(main())


class Unlucky(Actor):
    """Its process dies in the middle of its first two payments."""

    keys: ClassVar[list[str]] = []

    @handles
    async def ping(self, ping: Ping, context: Context) -> Pong:
        async def pay(key: str) -> str:
            self.keys.append(key)
            if len(self.keys) < 3:
                raise SystemExit("killed")
            return key

        return Pong(text=await context.effect("pay", {}, pay))


@pytest.mark.virtual_time
async def test_a_message_that_a_person_has_tried_again_can_be_parked_again() -> None:
    """G14, G16: a row that parks a message, or says it was delivered again, has a name that no row before it has had."""
    ledger = Recording()
    Unlucky.keys.clear()
    async with System(ledger, supervision=Supervision(intensity=1000)) as system:
        system.register("unlucky", Unlucky)
        asking = asyncio.ensure_future(system.ask("unlucky/1", Ping(text="x"), thread_id="t", id="m", within=600))
        with pytest.raises(ParkedError):
            await asking
        for number in (1, 2):
            (parked,) = await system.parked()
            assert parked.evidence["effect"] == ("m/pay" if number == 1 else f"m/pay~{number}")
            await system.settle("t", "m", retry=True)
            await asyncio.sleep(60)
        assert await system.parked() == ()
        found = await rows(ledger, "t")
    assert ledger.refused == []
    assert found.count("PARK") == found.count("=PARK") == 2
    assert found[-1] == "=AGAIN"
    assert Unlucky.keys == ["m/pay"] * 3
