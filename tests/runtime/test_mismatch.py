"""Code that cannot continue a thread gives it back: the message stays open, and a host of another build answers it. G25."""

import asyncio
from collections.abc import AsyncGenerator, Callable
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from dataclasses import replace
from typing import Any

import pytest
from tests.runtime.actors import Ping, Pong

from antiphon.errors import HistoryMismatchError, LedgerCorruptError
from antiphon.ledger import Epoch, Host, Ledger, ThreadPage, ThreadSummary
from antiphon.ledger.memory import MemoryLedger
from antiphon.messages import Message, OptionCallPayload, OptionResultPayload, current_port
from antiphon.runtime import Actor, Context, Settings, System, handles


class Clerk(Actor):
    """Asks a model twice with the prompt of its build; after the first time it may wait."""

    def __init__(self, prompt: str, waits: asyncio.Event | None) -> None:
        self._prompt = prompt
        self._waits = waits

    @handles
    async def ping(self, request: Ping, context: Context) -> Pong:
        first = await context.effect("model", {"prompt": self._prompt}, self._model)
        if self._waits is not None:
            self._waits.set()
            await asyncio.Event().wait()
        second = await context.effect("model", {"prompt": f"{self._prompt} {first}"}, self._model)
        return Pong(text=f"{self._prompt}: {second}")

    async def _model(self, key: str) -> str:
        return "yes"


@asynccontextmanager
async def _system(
    ledger: Ledger, build: str, *, waits: asyncio.Event | None = None, patience: float = 30, hosts: bool = False
) -> AsyncGenerator[System]:
    settings = Settings(build=build, poll=0.02, heartbeat=0.5, mismatch_patience=patience, block_limit=None)
    async with System(ledger, settings=settings) as system:
        system.register("clerk", lambda: Clerk(build, waits), grace=0.01)
        task = asyncio.create_task(system.host()) if hosts else None
        try:
            yield system
        finally:
            if task is not None:
                task.cancel()
                with suppress(asyncio.CancelledError):
                    await task


async def _begun(ledger: Ledger, build: str, thread_id: str) -> None:
    """Leave a message open after the first request to the model, as a process that ends."""
    waits = asyncio.Event()
    async with _system(ledger, build, waits=waits) as system:
        asking = asyncio.create_task(_ask(system, thread_id))
        await waits.wait()
    await asyncio.gather(asking, return_exceptions=True)


async def _ask(system: System, thread_id: str) -> str:
    return (await system.ask(f"clerk/{thread_id}", Ping(text="x"), thread_id=thread_id, id=f"m {thread_id}", within=20)).text


async def _thread(ledger: Ledger, thread_id: str) -> ThreadSummary:
    found = await ledger.thread(thread_id)
    assert found is not None
    return found


@pytest.mark.slow
async def test_every_thread_ends_on_code_that_can_replay_it_and_none_fails() -> None:
    """A host of a new build with a changed prompt beside one of the old build, as during a deploy."""
    ledger, threads = MemoryLedger(), {f"{build} {number}": build for build in ("old", "new") for number in range(5)}
    for thread_id, build in threads.items():
        await _begun(ledger, build, thread_id)
    async with _system(ledger, "new", hosts=True) as new, _system(ledger, "old", hosts=True) as old:
        answers = [_ask(new if number % 2 else old, thread_id) for number, thread_id in enumerate(threads)]
        async with asyncio.timeout(20):
            assert await asyncio.gather(*answers) == [f"{build}: yes" for build in threads.values()]
        assert not await old.parked()
    assert [(await _thread(ledger, each)).status for each in threads] == [None] * len(threads)


async def test_alone_a_caller_gets_the_error_at_once_and_the_thread_is_stopped() -> None:
    """The message stays open. The old code, brought back, answers it, and takes the status back."""
    ledger = MemoryLedger()
    await _begun(ledger, "old", "t")
    async with _system(ledger, "new") as new:
        for _ in range(2):
            with pytest.raises(HistoryMismatchError, match="the handler does 'model' otherwise than thread 't' says"):
                async with asyncio.timeout(5):
                    await _ask(new, "t")
        summary = await _thread(ledger, "t")
        assert (summary.status, [unfit.build for unfit in summary.unfit]) == ("stopped", ["new"])
        assert (await new.recover()).threads == 0  # it is not given to this build again
        assert not await new.parked()
    async with _system(ledger, "old") as old:
        assert await _ask(old, "t") == "old: yes"
    assert (await _thread(ledger, "t")).status == "processing"


@pytest.mark.slow
async def test_if_no_other_host_continues_the_thread_in_time_it_is_stopped() -> None:
    """The other host lives and has the actor, but takes no threads."""
    ledger = MemoryLedger()
    await _begun(ledger, "old", "t")
    async with _system(ledger, "old") as old, _system(ledger, "new", patience=0.4) as new:
        await _ask(old, "u")  # so that it is a host
        began = asyncio.get_running_loop().time()
        with pytest.raises(HistoryMismatchError):
            await _ask(new, "t")
        assert asyncio.get_running_loop().time() - began >= 0.4
        assert (await _thread(ledger, "t")).status == "stopped"


async def test_on_evicted_is_called_when_a_thread_is_given_up() -> None:
    ledger, forgotten = MemoryLedger(), list[str]()
    await _begun(ledger, "old", "t")
    forget: Callable[[str], None] = forgotten.append
    async with _system(ledger, "new") as new:
        new.on_evicted(forget)
        with pytest.raises(HistoryMismatchError):
            await _ask(new, "t")
    assert forgotten == ["t"]


# ---------------------------------------------------------------- a host that is told to end


class Slow(Actor):
    """Takes a while, and says which build has answered."""

    def __init__(self, build: str) -> None:
        self._build = build

    @handles
    async def ping(self, request: Ping, context: Context) -> Pong:
        await context.effect("model", {"prompt": self._build}, self._model, effects="none")
        return Pong(text=self._build)

    async def _model(self, key: str) -> str:
        await asyncio.sleep(10)
        return "yes"


async def _told_to_end(builds: dict[str, str], drain: float) -> tuple[str | None, list[int]]:
    """Tell a host of the old build to end beside others; return which build answered its thread, and how many it drained."""
    ledger, drained, stop = MemoryLedger(), list[int](), asyncio.Event()
    hosting: list[asyncio.Task[None]] = []
    async with AsyncExitStack() as stack:
        for name, build in builds.items():
            settings = Settings(host=name, build=build, drain=drain, block_limit=None)
            system = await stack.enter_async_context(System(ledger, settings=settings))
            system.register("slow", lambda build=build: Slow(build), grace=0.01)
            if name == "first":
                data = Ping(text="x")
                payload = OptionCallPayload(invocation_id="m", option_name=data.message_type, arguments=data.to_data())
                await ledger.post("t", Message(policy="client", payload=payload, to=("slow/1",), lane="control"))
                hosting.append(asyncio.create_task(_host_and_close(system, stop, drained.append)))
                await asyncio.sleep(1)
            else:
                hosting.append(asyncio.create_task(system.host()))
        await asyncio.sleep(1)
        stop.set()
        await hosting[0]
        await asyncio.sleep(15)
        for each in hosting[1:]:
            each.cancel()
        await asyncio.gather(*hosting, return_exceptions=True)
    results = [each.message.payload for each in await ledger.find(invocation_id="m")]
    answers = [each.result["text"] for each in results if isinstance(each, OptionResultPayload)]
    return (answers[0] if answers else (await _thread(ledger, "t")).status), drained


async def _host_and_close(system: System, stop: asyncio.Event, draining: Callable[[int], None]) -> None:
    await system.host(stop=stop, draining=draining)
    await system.close()


@pytest.mark.virtual_time
@pytest.mark.parametrize(
    ("others", "drain", "expected"),
    [
        ({"second": "new"}, 30.0, ("old", [1])),
        ({"second": "new", "third": "old"}, 30.0, ("old", [1])),
        ({"second": "old"}, 30.0, ("old", [])),
        ({"second": "new"}, 2.0, ("stopped", [1])),
        ({"second": "new"}, 0.0, ("stopped", [])),
    ],
)
async def test_a_stopping_host_finishes_its_threads_while_a_host_of_another_build_lives(
    others: dict[str, str], drain: float, expected: tuple[str, list[int]]
) -> None:
    """Otherwise it hands them over at once. Work that takes longer than the drain is handed over too."""
    assert await _told_to_end({"first": "old", **others}, drain) == expected


@pytest.mark.virtual_time
async def test_a_host_that_drains_takes_back_what_hosts_of_another_build_give_up() -> None:
    """Nobody else can continue it. Otherwise it would be stopped, though a host of the old build still works."""
    ledger, stop, drained = MemoryLedger(), asyncio.Event(), list[int]()
    async with AsyncExitStack() as stack:
        hosting: list[asyncio.Task[None]] = []
        for build in ("old", "new"):
            system = await stack.enter_async_context(System(ledger, settings=Settings(build=build, block_limit=None)))
            system.register("slow", lambda build=build: Slow(build), grace=0.01)
            system.register("clerk", lambda build=build: Clerk(build, None), grace=0.01)
            if build == "old":
                hosting.append(asyncio.create_task(_host_and_close(system, stop, drained.append)))
                stack.push_async_callback(asyncio.wait, [asyncio.create_task(_ask_slow(system))])
                await asyncio.sleep(1)
            else:
                hosting.append(asyncio.create_task(system.host()))
        await asyncio.sleep(1)
        stop.set()
        await asyncio.sleep(1)
        await _begun(ledger, "old", "given up")
        await hosting[0]
        hosting[1].cancel()
        await asyncio.gather(*hosting, return_exceptions=True)
    results = [each.message.payload for each in await ledger.find(invocation_id="m given up")]
    assert [each.result["text"] for each in results if isinstance(each, OptionResultPayload)] == ["old: yes"]
    assert drained == [1]
    assert (await _thread(ledger, "given up")).status is None


class Damaged(MemoryLedger):
    """A ledger in which a thread cannot be claimed any more once a build has given it up."""

    damaged = "damaged"

    async def claim(self, thread_id: str, **given: Any) -> Epoch:
        if thread_id == self.damaged and (found := await self.thread(thread_id)) is not None and found.unfit:
            raise LedgerCorruptError("the row of the thread was altered", thread_id)
        return await super().claim(thread_id, **given)


@pytest.mark.virtual_time
async def test_a_damaged_thread_keeps_a_host_that_drains_from_no_other(caplog: pytest.LogCaptureFixture) -> None:
    """It comes first among the threads that hosts of the new build have given up; the next one is taken back all the same."""
    ledger, stop, drained = Damaged(), asyncio.Event(), list[int]()
    async with _system(ledger, "new", hosts=True), System(ledger, settings=Settings(build="old", block_limit=None)) as old:
        old.register("slow", lambda: Slow("old"), grace=0.01)
        old.register("clerk", lambda: Clerk("old", None), grace=0.01)
        hosting = asyncio.create_task(old.host(stop=stop, draining=drained.append))
        slow = asyncio.create_task(_ask_slow(old))
        await asyncio.sleep(1)
        stop.set()
        await asyncio.sleep(0.5)
        await _begun(ledger, "old", ledger.damaged)
        await _begun(ledger, "old", "given up")
        await hosting
        await slow
    results = [each.message.payload for each in await ledger.find(invocation_id="m given up")]
    assert [each.result["text"] for each in results if isinstance(each, OptionResultPayload)] == ["old: yes"]
    assert drained == [1]
    assert caplog.text.count("thread damaged cannot be continued here") == 1


class SlowlyListed(MemoryLedger):
    """A ledger that takes long to list the threads that a build has given up."""

    async def threads(self, *given: Any, **more: Any) -> ThreadPage:
        if given and given[0].unfit:
            await asyncio.sleep(20)
            given = (replace(given[0], due_before=current_port().now()), *given[1:])
        return await super().threads(*given, **more)


@pytest.mark.virtual_time
async def test_a_host_that_has_drained_takes_nothing_back() -> None:
    """It looked for given-up threads when it still had work. It would leave the thread at once, perhaps in the middle."""
    ledger, stop = SlowlyListed(), asyncio.Event()
    async with _system(ledger, "new", hosts=True), System(ledger, settings=Settings(build="old", block_limit=None)) as old:
        old.register("slow", lambda: Slow("old"), grace=0.01)
        old.register("clerk", lambda: Clerk("old", None), grace=0.01)
        hosting = asyncio.create_task(old.host(stop=stop))
        slow = asyncio.create_task(_ask_slow(old))
        await asyncio.sleep(1)
        stop.set()
        await _begun(ledger, "old", "given up")
        await hosting
        await slow
        await asyncio.sleep(20)
        assert [each.message.kind for each in await ledger.find(invocation_id="m given up")] == ["option_call"]


async def _ask_slow(system: System) -> None:
    with suppress(Exception):
        await system.ask("slow/1", Ping(text="x"), thread_id="slow", within=60)


class Claimed(MemoryLedger):
    """A ledger that counts claims."""

    claims = 0

    async def claim(self, *args: Any, **given: Any) -> Epoch:
        self.claims += 1
        return await super().claim(*args, **given)


@pytest.mark.virtual_time
async def test_with_little_patience_a_thread_that_another_host_has_is_looked_at_now_and_then() -> None:
    """It was claimed again and again, each time after the patience, for as long as the other host had it."""
    ledger = Claimed()
    await _begun(ledger, "old", "t")
    async with _system(ledger, "new", patience=0.05, hosts=True) as new:
        await ledger.beat(soon := Host("soon", "old", ("clerk",), 600.0))
        asking = asyncio.create_task(_ask(new, "t"))
        while not (await _thread(ledger, "t")).unfit:  # noqa: ASYNC110 (the ledger tells nobody)
            await asyncio.sleep(0.001)
        await ledger.claim("t", by=soon)
        await asyncio.sleep(1)
        before = ledger.claims
        await asyncio.sleep(10)
        assert ledger.claims - before <= 25
        asking.cancel()
        await asyncio.gather(asking, return_exceptions=True)
