"""Pause, resume, terminate, status and settle, in a thread of every pattern (G12, G13)."""

import asyncio
import inspect
import os
import shlex
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from pydantic_ai.messages import ModelMessage, ModelResponse, TextPart, ToolCallPart
from pydantic_ai.models.function import AgentInfo, FunctionModel
from tests.patterns.chains import NotingLedger, Teller
from tests.patterns.teams.crews import agent, phase, plan, play
from tests.patterns.test_pause import check_nothing_begins_while_it_rests

from antiphon import service
from antiphon.agents.toolkit import Toolkit, answer, pending_approvals
from antiphon.errors import ParkedError, RefusedError, WithdrawnError
from antiphon.ledger import Ledger, open_ledger
from antiphon.messages import Message, current_port
from antiphon.patterns.cast import AgentSpec, Outcome, Patience, Pattern
from antiphon.patterns.options import Executor, Options
from antiphon.patterns.peers import Peers
from antiphon.patterns.postchain import ChainConfig, PostChain
from antiphon.patterns.teams import Team
from antiphon.patterns.workers import Workers

EVERY = {"": 3, "ci": 1, "nightly": 1}[os.environ.get("ANTIPHON_CHAOS", "")]
"""Of the places where a process can die, which share is tried."""
QUICK = Patience(attempts=1, backoff=0)


class World:
    """What models and tools do outside of the ledger. The first request waits for its release."""

    def __init__(self, *, is_free: bool = False) -> None:
        self.asked = 0
        self.looked = 0
        self.reached, self.released = asyncio.Event(), asyncio.Event()
        if is_free:
            self.released.set()

    def model(self, inner: FunctionModel) -> FunctionModel:
        """Return a model that answers as another does."""

        async def play_on(messages: list[ModelMessage], info: AgentInfo) -> ModelResponse:
            self.asked += 1
            self.reached.set()
            await self.released.wait()
            assert inner.function is not None
            found: Any = inner.function(messages, info)
            response: ModelResponse = await found if inspect.isawaitable(found) else found
            return response

        return FunctionModel(play_on)

    def toolkit(self, **more: Any) -> Toolkit:
        """Return a toolkit with one tool."""
        toolkit = Toolkit()

        async def look(place: str) -> str:
            """Look somewhere."""
            self.looked += 1
            return f"nothing {place}"

        toolkit.add(look, **{"effects": "none", **more})
        return toolkit


def _looks_once(messages: list[ModelMessage], info: AgentInfo) -> ModelResponse:
    if not any(isinstance(each, ModelResponse) for each in messages):
        return ModelResponse([ToolCallPart("look", {"place": "here"}, tool_call_id="call-1")])
    return ModelResponse([TextPart("nothing here")])


_ADA = AgentSpec(name="ada", instructions="You are ada.", tools=("look",))


def _team(ledger: Ledger, world: World, toolkit: Toolkit) -> Pattern:
    parts: Any = {
        "orchestrator": lambda prompt, spoken: plan(phase("ada", "Look.")) if "Plan in phases" in prompt else "nothing here",
        "ada": lambda prompt, spoken: [("look", {"place": "here"})] if spoken == 0 else "nothing here",
    }
    model = world.model(play(parts))
    return Team(
        ledger,
        orchestrator=agent("orchestrator"),
        workers=[agent("ada", "look")],
        model=model,
        toolkit=toolkit,
        patience=QUICK,
    )


def _workers(ledger: Ledger, world: World, toolkit: Toolkit) -> Pattern:
    async def policy(query: Any, assigner: Any) -> str:
        return str((await assigner.assign("ada", "look")).content)

    model = world.model(FunctionModel(_looks_once))
    return Workers(ledger, [_ADA], controller=policy, model=model, toolkit=toolkit, patience=QUICK)


def _options(ledger: Ledger, world: World, toolkit: Toolkit) -> Pattern:
    options = Options(toolkit)
    options.add_agent(_ADA)
    return Executor(ledger, options, policy="ada", model=world.model(FunctionModel(_looks_once)), patience=QUICK)


def _peers(ledger: Ledger, world: World, toolkit: Toolkit) -> Pattern:
    return Peers(ledger, [_ADA], model=world.model(FunctionModel(_looks_once)), toolkit=toolkit, patience=QUICK)


def _chain(ledger: Ledger, world: World, toolkit: Toolkit) -> Pattern:
    return PostChain(ledger, config=ChainConfig(backoff=0), model=world.model(Teller()), grace=0.05)


Made = Callable[[Ledger, World, Toolkit], Pattern]
ALL: dict[str, Made] = {"options": _options, "peers": _peers, "teams": _team, "workers": _workers, "postchain": _chain}
OTHERS = [name for name in ALL if name != "postchain"]
every_pattern = pytest.mark.parametrize("name", ALL)


def _open(name: str, ledger: Ledger, world: World, toolkit: Toolkit | None = None) -> Any:
    return ALL[name](ledger, world, world.toolkit() if toolkit is None else toolkit)


async def _quiet() -> None:
    """Let everything that can run do so."""
    for _ in range(300):
        await asyncio.sleep(0)


async def _rows(ledger: Ledger, thread_id: str) -> list[Message]:
    return [record.message async for record in ledger.read(thread_id)]


async def _left(ledger: Ledger, thread_id: str, upto: int = 10**9) -> NotingLedger:
    """Return the ledger of a process that dies when a thread has so many rows."""
    left, summary = NotingLedger(), await ledger.thread(thread_id)
    assert summary is not None
    rows = [record.message async for record in ledger.read(thread_id, before=upto + 1)]
    epoch = await left.claim(thread_id, kind=summary.kind)
    await left.append(thread_id, rows, epoch=epoch, pattern=summary.pattern, status=summary.status, allow_foreign=True)
    await left.release(thread_id, epoch=epoch, wake_at=current_port().now())
    return left


async def _begin(pattern: Pattern, world: World) -> tuple[asyncio.Task[Outcome], str]:
    """Have a task done, up to the first request to a model."""
    if isinstance(pattern, PostChain):
        thread_id = await pattern.create("Look.")
        await pattern.start(thread_id)
        task: asyncio.Task[Outcome] = asyncio.create_task(pattern.wait(thread_id))
    else:
        thread_id = "t"
        task = asyncio.create_task(pattern.run("Look.", thread_id=thread_id))
    await world.reached.wait()
    return task, thread_id


async def _ended(pattern: Pattern, thread_id: str) -> Outcome:
    return await (pattern.wait(thread_id) if isinstance(pattern, PostChain) else pattern.run("Look.", thread_id=thread_id))


async def _nothing_open(ledger: Ledger, thread_id: str) -> None:
    async with asyncio.timeout(10):
        while any(row.message.lane != "talk" for row in await ledger.open_calls(thread_id)):  # noqa: ASYNC110
            await asyncio.sleep(0)


@every_pattern
async def test_nothing_starts_between_a_pause_and_the_resume(name: str) -> None:
    """G12: what runs ends and is recorded, nothing starts; the resume goes on, and saying a thing twice changes nothing."""
    world, ledger = World(), NotingLedger()
    async with _open(name, ledger, world) as pattern:
        task, thread_id = await _begin(pattern, world)
        assert (await pattern.status(thread_id)).status == "processing"
        for _ in range(2):
            assert (await pattern.pause(thread_id)).status == "paused"
        asked = world.asked
        world.released.set()
        await _quiet()
        assert (world.asked, world.looked, task.done()) == (asked, 0, False)
        assert (await pattern.status(thread_id)).status == "paused"
        summary = await ledger.thread(thread_id)
        assert summary is not None
        assert summary.status == "paused"
        for _ in range(2):
            assert (await pattern.resume(thread_id)).status == "processing"
        outcome = await asyncio.wait_for(task, 30)
        assert outcome.status == "completed"
        assert (await pattern.status(thread_id)).status == "completed"
    check_nothing_begins_while_it_rests(await _rows(ledger, thread_id))


@every_pattern
async def test_a_thread_that_a_dead_process_paused_stays_paused(name: str) -> None:
    """G13: the next process finds the gate closed, in the ledger alone, and goes on when it is resumed."""
    world, ledger = World(), NotingLedger()
    async with _open(name, ledger, world) as pattern:
        task, thread_id = await _begin(pattern, world)
        await pattern.pause(thread_id)
        left = await _left(ledger, thread_id)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
    second = World(is_free=True)
    async with _open(name, left, second) as pattern:
        await _quiet()
        assert (second.asked, second.looked) == (0, 0)
        assert (await pattern.status(thread_id)).status == "paused"
        await pattern.resume(thread_id)
        assert (await asyncio.wait_for(_ended(pattern, thread_id), 30)).status == "completed"
    check_nothing_begins_while_it_rests(await _rows(left, thread_id))


@every_pattern
async def test_a_terminated_thread_is_over_for_good(name: str) -> None:
    """G12: what runs is cancelled, nothing is left open, nothing starts any more, and no other move is possible."""
    world, ledger = World(), NotingLedger()
    async with _open(name, ledger, world) as pattern:
        task, thread_id = await _begin(pattern, world)
        for _ in range(2):
            assert (await pattern.terminate(thread_id, "enough")).reason == "enough"
        (result,) = await asyncio.gather(task, return_exceptions=True)
        assert isinstance(result, WithdrawnError) or result.status in ("failed", "terminated"), result
        await _nothing_open(ledger, thread_id)
        assert (await pattern.status(thread_id)).status == "terminated"
        for move in (pattern.pause, pattern.resume):
            with pytest.raises(RefusedError, match="terminated"):
                await move(thread_id)
        asked = world.asked
        world.released.set()
        await _quiet()
        assert (world.asked, world.looked) == (asked, 0)
    again = World(is_free=True)
    async with _open(name, left := await _left(ledger, thread_id), again) as pattern:
        if name != "postchain":
            with suppress(WithdrawnError):
                assert (await pattern.run("Something else.", thread_id=thread_id)).error_code == WithdrawnError.code
        assert (again.asked, again.looked) == (0, 0)
        assert (await pattern.status(thread_id)).status == "terminated"
        summary = await left.thread(thread_id)
        assert summary is not None
        assert summary.status == "terminated"


@pytest.mark.parametrize("name", OTHERS)
async def test_a_thread_that_does_not_exist_is_refused_and_not_made(name: str) -> None:
    async with _open(name, NotingLedger(), World()) as pattern:
        for move in (pattern.pause, pattern.resume, pattern.terminate, pattern.status):
            with pytest.raises(RefusedError, match="there is no thread 'nobody'"):
                await move("nobody")
        with pytest.raises(ValueError, match="is not parked"):
            await pattern.settle("nobody", "x", result=1)
        assert await pattern.ledger.thread("nobody") is None


# ---------------------------------------------------------------- a kill between any two rows


async def _recorded(name: str, *moves: str) -> NotingLedger:
    """Return a thread that was paused or terminated during a model request, up to its end."""
    world, ledger = World(), NotingLedger()
    async with _open(name, ledger, world) as pattern:
        task, thread_id = await _begin(pattern, world)
        for move in moves:
            await getattr(pattern, move)(thread_id)
            world.released.set()
            await _quiet()
        await asyncio.gather(task, return_exceptions=True)
        await _nothing_open(ledger, thread_id)
    return ledger


async def _taken_up(name: str, left: Ledger) -> tuple[str, World]:
    """Continue a thread that a process has left behind, resume it if it is paused, and return its status at the end."""
    world = World(is_free=True)
    async with _open(name, left, world) as pattern:
        async with asyncio.timeout(10):
            while any((each.message.to or ("",))[0] == "system/life" for each in await left.open_calls("t")):  # noqa: ASYNC110
                await asyncio.sleep(0)
        if (await pattern.status("t")).status == "paused":
            asked = world.asked
            await _quiet()
            assert world.asked == asked
            await pattern.resume("t")
        if (await pattern.status("t")).status != "terminated":
            await asyncio.wait_for(pattern.run("Look.", thread_id="t"), 30)
        await _nothing_open(left, "t")
        return (await pattern.status("t")).status, world


@pytest.mark.slow
@pytest.mark.parametrize("name", ["options", "teams"])
@pytest.mark.parametrize("moves", [("pause", "resume"), ("terminate",), ("pause", "terminate")], ids="-".join)
async def test_every_move_survives_a_kill_between_any_two_rows(name: str, moves: tuple[str, ...]) -> None:
    """F32, G12, G13, G7: what was acknowledged holds, what was answered is not asked again, and nothing is left open."""
    ledger = await _recorded(name, *moves)
    rows = await _rows(ledger, "t")
    check_nothing_begins_while_it_rests(rows)
    for place in [*ledger.ends["t"][::EVERY], ledger.ends["t"][-1]]:
        left = await _left(ledger, "t", place)
        status, world = await _taken_up(name, left)
        after = await _rows(left, "t")
        check_nothing_begins_while_it_rests(after)
        is_terminated = any(getattr(row.payload, "option_name", "") == "TERMINATE_THREAD" for row in rows[:place])
        assert status == ("terminated" if is_terminated else "completed"), place
        assert not (is_terminated and world.looked), place


# ---------------------------------------------------------------- what waits for a person


@pytest.mark.parametrize("name", OTHERS)
async def test_the_status_says_what_a_thread_waits_for_and_what_to_type(name: str) -> None:
    world, ledger = World(is_free=True), NotingLedger()
    toolkit = world.toolkit(effects="once", approval=True)
    async with _open(name, ledger, world, toolkit) as pattern:
        with pytest.raises(ParkedError):
            await pattern.run("Look.", thread_id="t")
        status = await pattern.status("t")
        (question,) = await pending_approvals(ledger)
        assert status.status == "paused"
        waiting = status.model_extra["waiting_for"]
        assert "'look'" in waiting["reason"]
        assert waiting["commands"] == [f"antiphon approve {question.id} --as NAME", "antiphon resume t"]
        for _ in range(5):
            await pattern.resume("t")  # nobody has said anything: this does not count as an attempt
            await _quiet()
        await answer(ledger, question.id, principal="pia", approved=True)
        await pattern.resume("t")
        assert (await asyncio.wait_for(pattern.run("Look.", thread_id="t"), 30)).status == "completed"
        assert world.looked == 1
        assert "waiting_for" not in ((await pattern.status("t")).model_extra or {})


@every_pattern
async def test_g13_a_task_that_is_completed_is_not_paused(name: str) -> None:
    """G13: else it would be shown as paused from then on, and nothing would ever go on. A paused one may be paused again."""
    world, ledger = World(is_free=True), NotingLedger()
    async with _open(name, ledger, world) as pattern:
        thread_id = (await pattern.run("Look.", thread_id=None if name == "postchain" else "t")).thread_id
        with pytest.raises(RefusedError, match="PAUSE_THREAD is not possible while the thread is completed"):
            await pattern.pause(thread_id)
        assert (await pattern.status(thread_id)).status == "completed"
        assert (await service.thread_status(ledger, thread_id)).status == "completed"


@pytest.mark.slow
@pytest.mark.parametrize("name", OTHERS)
async def test_the_commands_of_the_status_are_those_of_its_ledger(name: str, tmp_path: Path) -> None:
    """As a person types them in another folder, also for an id that a shell takes apart; `antiphon status` prints the same."""
    thread_id = "how's $HOME; it?"
    world = World(is_free=True)
    toolkit = world.toolkit(effects="once", approval=True)
    async with open_ledger(f"sqlite:///{tmp_path}/ledger.db") as ledger:
        async with _open(name, ledger, world, toolkit) as pattern:
            with pytest.raises(ParkedError):
                await pattern.run("Look.", thread_id=thread_id)
            (waiting,) = [(await pattern.status(thread_id)).model_extra["waiting_for"]]
        (question,) = await pending_approvals(ledger)
        option = f"--ledger sqlite:///{tmp_path}/ledger.db"
        assert waiting["commands"] == [
            f"antiphon approve {question.id} --as NAME {option}",
            f"antiphon resume {shlex.quote(thread_id)} {option}",
        ]
        said = (await service.thread_status(ledger, thread_id)).waits_for or ""
        assert all(f"`{command}`" in said for command in waiting["commands"])


@pytest.mark.parametrize("name", OTHERS)
async def test_termination_withdraws_an_approval_and_parks_a_call_at_work(name: str) -> None:
    """A `once` effect may have been done: a person still has to check."""
    world, ledger = World(is_free=True), NotingLedger()
    async with _open(name, ledger, world, world.toolkit(effects="once", approval=True)) as pattern:
        with pytest.raises(ParkedError):
            await pattern.run("Look.", thread_id="t")
        await pattern.terminate("t")
        await _nothing_open(ledger, "t")
        assert not await pending_approvals(ledger)
        assert world.looked == 0

    toolkit, reached = Toolkit(), asyncio.Event()

    async def look(place: str) -> str:
        """Look somewhere."""
        reached.set()
        await asyncio.Event().wait()
        return ""

    toolkit.add(look, effects="once")
    ledger = NotingLedger()
    async with _open(name, ledger, World(is_free=True), toolkit) as pattern:
        task = asyncio.create_task(pattern.run("Look.", thread_id="t"))
        await reached.wait()
        await pattern.terminate("t")
        await asyncio.gather(task, return_exceptions=True)
        async with asyncio.timeout(10):
            while not (parked := await pattern.system.parked()) or len(await ledger.open_calls("t")) > 2:  # noqa: ASYNC110
                await asyncio.sleep(0)
        await pattern.settle("t", parked[0].invocation_id, result="done")
        await _nothing_open(ledger, "t")
        assert (await pattern.status("t")).status == "terminated"
