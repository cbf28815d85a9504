"""Actors with `receive`, as a program of the protocol writes them: their context, what they send, who supervises them.

CH-046 to CH-055, CH-114, CH-116, CH-119, CH-120, CH-128.
"""

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable

import pytest
from tests.runtime.actors import rows, virtually

from antiphon.ledger import Ledger
from antiphon.ledger.memory import MemoryLedger
from antiphon.messages import Message as CoreMessage
from antiphon.protocol import ErrorResponse, Message, ProcessPhase, Response
from antiphon.runtime import Activity, Actor, Context, Observer, Supervision, System, system_thread
from antiphon.testing import Faults, World, simulate

pytestmark = pytest.mark.virtual_time


Send = Callable[["Phase", Message], Awaitable[Response]]


async def _by_context(actor: "Phase", message: Message) -> Response:
    return await actor.context.send_message(message)


async def _by_system(actor: "Phase", message: Message) -> Response:
    return await actor.context.system.send_message(message)


async def _by_reference(actor: "Phase", message: Message) -> Response:
    target = await actor.context.system.get_actor(message.receiver or "")
    return await target.receive(message)


class Manager(Actor):
    """Answers PROCESS_WITH_AGENT; fails as often as `failures` says before."""

    answered = 0
    failures = 0

    async def receive(self, message: Message) -> Response:
        if type(self).failures:
            type(self).failures -= 1
            return message.reply_error("API rate limit exceeded", "AGENT_ERROR")
        type(self).answered += 1
        return message.reply(data={"result": {"response": str(message.data["input"]).upper()}, "processing_time": 0})


class Phase(Actor):
    """Asks the manager in the course of PROCESS_PHASE; breaks after that as often as `breaks` says."""

    send: Send = _by_context
    breaks = 0

    async def receive(self, message: Message) -> Response:
        ask = Message(type="PROCESS_WITH_AGENT", data={"input": message.data["input"]}, receiver="manager")
        answer = await type(self).send(self, ask)
        if isinstance(answer, ErrorResponse):
            answer = await self._again(ask, answer)
        if type(self).breaks:
            type(self).breaks -= 1
            raise OSError("the disk is gone")
        output = {"response": answer.data["result"]["response"]}
        return message.reply(data={**message.data, "output": output, "processing_time": 0})

    async def _again(self, asked: Message, error: ErrorResponse) -> Response:
        failed = {"actor_id": "manager", "error_message": error.error_message, "error_code": error.error_code, "details": None}
        await type(self).send(self, Message(type="ERROR_NOTIFICATION", data=failed, receiver="supervisor/manager"))
        retry = {"original_message_id": asked.id, "attempt": 2, "max_attempts": 3}
        return await type(self).send(self, Message(type="RETRY", data=retry, receiver="manager"))


@pytest.fixture(autouse=True)
def _fresh(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Manager, "answered", 0)
    monkeypatch.setattr(Manager, "failures", 0)
    monkeypatch.setattr(Phase, "breaks", 0)


def _process(**more: object) -> Message:
    data = {"thread_id": "t", "phase_type": "action", "input": "hello"}
    return Message(type="PROCESS_PHASE", data=data, receiver="phase", **more)


def _spawn(system: System) -> None:
    system.spawn("phase", Phase)
    system.spawn("manager", Manager, supervisor=Supervision(intensity=10))


async def _messages(ledger: Ledger, thread_id: str = "t") -> list[CoreMessage]:
    return [record.message async for record in ledger.read(thread_id)]


@pytest.mark.parametrize("send", [_by_context, _by_system, _by_reference])
async def test_messages_that_an_actor_sends_from_receive_are_in_the_thread(
    send: Send, monkeypatch: pytest.MonkeyPatch
) -> None:
    """CH-116, CH-119: recorded, correlated, with the actor as sender."""
    monkeypatch.setattr(Phase, "send", send)

    async with System() as system:
        _spawn(system)
        answer = await system.send_message(_process(sender="me", correlation_id="c"))
        said = await _messages(system.ledger)

        assert (answer.type, answer.data["output"]) == ("PHASE_PROCESSED", {"response": "HELLO"})
        assert await rows(system.ledger, "t") == [
            "PROCESS_PHASE",
            "PROCESS_WITH_AGENT",
            "=PROCESS_WITH_AGENT",
            "=PROCESS_PHASE",
        ]
        assert {message.correlation_id for message in said} == {"c"}
        assert [(message.policy, message.to) for message in said[1:3]] == [
            ("phase", ("manager",)),
            ("manager", ("phase",)),
        ]
        assert said[1].parent_id == said[0].invocation_id


@pytest.mark.parametrize("send", [_by_context, _by_system, _by_reference])
async def test_an_actor_that_fails_after_a_hop_takes_its_answer_from_the_thread(
    send: Send, monkeypatch: pytest.MonkeyPatch
) -> None:
    """G9, CH-120: each run makes a message with another id, and the manager is asked once all the same."""
    monkeypatch.setattr(Phase, "send", send)
    monkeypatch.setattr(Phase, "breaks", 2)

    async with System() as system:
        _spawn(system)
        answer = await system.send_message(_process())

        assert answer.data["output"] == {"response": "HELLO"}
        assert Manager.answered == 1
        assert (await rows(system.ledger, "t")).count("PROCESS_WITH_AGENT") == 1


async def test_a_hop_that_was_open_when_the_process_ended_is_finished_by_the_next() -> None:
    """G1, G9, G16."""
    ledger = MemoryLedger()

    class Slow(Manager):
        async def receive(self, message: Message) -> Response:
            await asyncio.sleep(1000)
            return await super().receive(message)

    async with System(ledger) as system:
        system.spawn("phase", Phase, grace=0)
        system.spawn("manager", Slow, grace=0)
        asking = asyncio.create_task(system.send_message(_process(id="p-1"), within=2000))
        await asyncio.sleep(1)
        asking.cancel()
    assert await rows(ledger, "t") == ["PROCESS_PHASE", "PROCESS_WITH_AGENT"]

    async with System(ledger) as system:
        _spawn(system)
        await system.recover()
        answer = await system.send_message(_process(id="p-1"))

        assert answer.data["output"] == {"response": "HELLO"}
        assert Manager.answered == 1


async def test_the_error_flow_runs_with_send_message_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """CH-114, CH-122, G9: ERROR, ERROR_NOTIFICATION, RESTART, RETRY; the retry is found by the id that its sender knows."""
    monkeypatch.setattr(Manager, "failures", 1)
    monkeypatch.setattr(Phase, "breaks", 1)

    async with System() as system:
        _spawn(system)
        answer = await system.send_message(_process())
        said = [word for word in await rows(system.ledger, "t") if word not in ("AGAIN", "=AGAIN")]

        assert answer.data["output"] == {"response": "HELLO"}
        assert said == [
            "PROCESS_PHASE",
            "PROCESS_WITH_AGENT",
            "!AGENT_ERROR",
            "ERROR_NOTIFICATION",
            "RESTART",
            "=RESTART",
            "=ERROR_NOTIFICATION",
            "RETRY",
            "=RETRY",
            "=PROCESS_PHASE",
        ]


async def test_a_retry_by_receive_is_answered_with_the_type_of_the_original(monkeypatch: pytest.MonkeyPatch) -> None:
    """CH-029."""
    monkeypatch.setattr(Manager, "failures", 1)

    async with System() as system:
        system.spawn("manager", Manager)
        asked = Message(type="PROCESS_WITH_AGENT", data={"input": "hi"}, receiver="manager")
        await system.send_message(asked)
        retry = {"original_message_id": asked.id, "attempt": 2, "max_attempts": 3}
        answer = await system.send_message(Message(type="RETRY", data=retry, receiver="manager"))

        assert (answer.type, answer.data["result"]) == ("AGENT_RESPONSE", {"response": "HI"})


@pytest.mark.parametrize("thread_id", [None, "t"])
async def test_a_response_keeps_the_type_that_receive_gives_it(thread_id: str | None) -> None:
    """CH-051."""

    class Greeter(Actor):
        async def receive(self, message: Message) -> Response:
            return Response(type="GREETED", data={"n": 1}, message_id=message.id)

    async with System() as system:
        system.spawn("greeter", Greeter)
        data = {} if thread_id is None else {"thread_id": thread_id}
        answer = await system.send_message(Message(type="RECEIVE_GREET", data=data, receiver="greeter"))

        assert (answer.type, answer.data) == ("GREETED", {"n": 1})


async def test_the_context_is_that_of_the_message_even_where_several_are_handled_at_once() -> None:
    class Many(Actor):
        concurrency = 3

        async def receive(self, message: Message) -> Response:
            await asyncio.sleep(float(str(message.data["seconds"])))
            return message.reply(data={"thread": self.context.thread_id, "id": self.context.message.id})

    async with System() as system:
        system.spawn("many", Many)
        asked = [
            Message(type="WAIT", data={"thread_id": f"t{n}", "seconds": 3 - n}, receiver="many", id=f"m{n}") for n in range(3)
        ]
        answers = await asyncio.gather(*map(system.send_message, asked))

        assert [answer.data for answer in answers] == [{"thread": f"t{n}", "id": f"m{n}"} for n in range(3)]


async def test_an_actor_that_handles_nothing_has_no_context_unless_it_is_beginning() -> None:
    class Early(Actor):
        began_at = ""

        async def started(self, context: Context) -> None:
            type(self).began_at = self.context.address

    async with System() as system:
        system.spawn("early", Early)
        await system.send_message(Message(type="HEARTBEAT", receiver="early"))

    assert Early.began_at == "early"
    with pytest.raises(RuntimeError, match="handles no message"):
        _ = Early().context


async def test_an_actor_may_have_an_attribute_of_its_own_that_is_called_context() -> None:
    """A program that saved the context when it began goes on to run."""

    class Saving(Actor):
        async def started(self, context: Context) -> None:
            self.context = context

        async def receive(self, message: Message) -> Response:
            return message.reply(data={"address": self.context.address})

    async with System() as system:
        system.spawn("saving", Saving)
        answer = await system.send_message(Message(type="WHERE", receiver="saving"))

        assert answer.data == {"address": "saving"}


async def test_actors_that_send_in_a_circle_are_refused_at_once() -> None:
    """S15: before, each waited for the other until its time was over."""

    class Round(Actor):
        async def receive(self, message: Message) -> Response:
            other = "b" if message.receiver == "a" else "a"
            answer = await self.context.send_message(Message(type="ROUND", receiver=other))
            return answer if isinstance(answer, ErrorResponse) else message.reply()

    async with System() as system:
        system.spawn("a", Round)
        system.spawn("b", Round)
        began = asyncio.get_running_loop().time()
        answer = await system.send_message(Message(type="ROUND", receiver="a"))

        assert isinstance(answer, ErrorResponse)
        assert answer.error_code == "HOP_LIMIT"
        assert asyncio.get_running_loop().time() - began < 1


async def test_an_actor_cannot_send_under_the_name_of_another() -> None:
    """G22: the runtime knows the sender, whatever the envelope says."""

    class Liar(Actor):
        async def receive(self, message: Message) -> Response:
            ask = Message(type="PROCESS_WITH_AGENT", data={"input": "x"}, sender="runtime", receiver="manager")
            await self.context.send_message(ask)
            return message.reply()

    async with System() as system:
        system.spawn("liar", Liar)
        system.spawn("manager", Manager)
        await system.send_message(Message(type="LIE", data={"thread_id": "t"}, receiver="liar"))

        assert [message.policy for message in await _messages(system.ledger)] == ["unknown", "liar", "manager", "liar"]


async def test_an_id_that_the_sender_chose_is_the_id_of_the_message() -> None:
    """CH-120: the same id again is the same message, also of another handler."""

    class Chooser(Actor):
        async def receive(self, message: Message) -> Response:
            ask = Message(id="once-1", type="PROCESS_WITH_AGENT", data={"input": "x"}, receiver="manager")
            await self.context.send_message(ask)
            return message.reply()

    async with System() as system:
        system.spawn("chooser", Chooser)
        system.spawn("manager", Manager)
        for _ in range(2):
            await system.send_message(Message(type="CHOOSE", data={"thread_id": "t"}, receiver="chooser"))

        assert [message.id for message in await _messages(system.ledger) if message.to == ("manager",)] == ["once-1"]
        assert Manager.answered == 1


async def test_an_actor_can_pass_its_message_on_to_another() -> None:
    """CH-047: the same envelope with another receiver is another message of the thread."""

    class Router(Actor):
        async def receive(self, message: Message) -> Response:
            answer = await self.context.send_message(message.model_copy(update={"receiver": "manager"}))
            return message.reply(data=answer.data)

    async with System() as system:
        system.spawn("router", Router)
        system.spawn("manager", Manager)
        data = {"input": "x", "thread_id": "t"}
        answer = await system.send_message(Message(type="PROCESS_WITH_AGENT", data=data, receiver="router"))

        assert answer.data["result"] == {"response": "X"}
        assert await rows(system.ledger, "t") == [*["PROCESS_WITH_AGENT"] * 2, *["=PROCESS_WITH_AGENT"] * 2]


async def test_a_message_to_another_thread_is_recorded_there_and_sent_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """CH-119: the thread that the data names, wherever it is sent from."""

    class Opener(Actor):
        failed = False

        async def receive(self, message: Message) -> Response:
            ask = Message(type="PROCESS_WITH_AGENT", data={"input": "x", "thread_id": "other"}, receiver="manager")
            await self.context.send_message(ask)
            if not type(self).failed:
                type(self).failed = True
                raise OSError("the disk is gone")
            return message.reply()

    async with System() as system:
        system.spawn("opener", Opener)
        system.spawn("manager", Manager)
        await system.send_message(Message(type="OPEN", data={"thread_id": "t"}, receiver="opener"))

        assert await rows(system.ledger, "other") == ["PROCESS_WITH_AGENT", "=PROCESS_WITH_AGENT"]
        assert Manager.answered == 1


async def test_a_message_that_a_task_sends_after_its_handler_is_no_part_of_the_handling() -> None:
    class Late(Actor):
        tasks: list[asyncio.Task[Response]] = []  # noqa: RUF012

        async def receive(self, message: Message) -> Response:
            self.tasks.append(asyncio.create_task(self._later(self.context.system)))
            return message.reply()

        async def _later(self, system: System) -> Response:
            await asyncio.sleep(10)
            return await system.send_message(Message(type="PROCESS_WITH_AGENT", data={"input": "x"}, receiver="manager"))

    async with System() as system:
        system.spawn("late", Late)
        system.spawn("manager", Manager)
        await system.send_message(Message(type="START", data={"thread_id": "t"}, receiver="late"))
        answer = await Late.tasks[0]

        assert answer.data["result"] == {"response": "X"}
        assert await rows(system.ledger, "t") == ["START", "=START"]


def test_a_hop_is_traced_as_part_of_the_message_that_it_follows_from() -> None:
    """CH-128."""

    class Watching(Observer):
        def began(self, activity: Activity) -> None:
            if activity.delivery is not None:
                seen.append((activity.delivery.type, activity.delivery.parent and activity.delivery.parent.type))

    async def main() -> None:
        async with System(observer=Watching()) as system:
            _spawn(system)
            await system.send_message(_process())

    seen: list[tuple[str, str | None]] = []
    virtually(main())
    assert seen == [("PROCESS_PHASE", None), ("PROCESS_WITH_AGENT", "PROCESS_PHASE")]


async def test_one_step_supervises_an_actor() -> None:
    """CH-085, G14: the rules stand where it is spawned, and its kind has a supervisor with them."""

    class Breaking(Actor):
        async def receive(self, message: Message) -> Response:
            raise OSError("broken")

    async with System() as system:
        for name in ("breaking/1", "breaking/2"):
            system.spawn(name, Breaking, supervisor=Supervision(on_failure="stop"))
        await system.send_message(Message(type="GO", receiver="breaking/1"))
        await asyncio.sleep(1)
        notified, *_ = await _messages(system.ledger, system_thread("breaking/1"))
        refused = await system.send_message(Message(type="GO", receiver="breaking/1"))

        assert notified.to == ("supervisor/breaking",)
        assert refused.data["error_code"] == "ACTOR_STOPPED"
        system.spawn("breaking/1", Breaking, supervisor=Supervision(on_failure="stop"))
        with pytest.raises(ValueError, match="supervisor/breaking.*other rules"):
            system.spawn("breaking/3", Breaking, supervisor=Supervision(intensity=9))


async def test_one_step_supervises_a_kind() -> None:
    """CH-085."""

    class Slow(Actor):
        concurrency = 1

    async with System() as system:
        system.register("slow", Slow, supervisor=Supervision(on_failure="stop"))
        supervised = {"actor_id": "slow/1"}
        alive = await system.send_message(Message(type="HEARTBEAT", receiver="slow/1"))
        started = await system.send_message(Message(type="SUPERVISE", data=supervised, receiver="supervisor/slow"))

        assert (alive.data["status"], started.data["status"]) == ("alive", "supervised")


# ---------------------------------------------------------------- with every fault


class SimulatedManager(Actor):
    """Asks a model; refuses what is not a RETRY."""

    async def receive(self, message: Message) -> Response:
        if getattr(self.context.message.payload, "option_name", "") != "RETRY":
            return message.reply_error("API rate limit exceeded", "AGENT_ERROR")

        async def model(key: str) -> str:
            return str(message.data["input"]).upper()

        response = await self.context.effect("model", {}, model, effects="idempotent")
        return message.reply(data={"result": {"response": response}, "processing_time": 0})


def _host(system: System) -> None:
    system.register("phase", Phase)
    system.register("manager", SimulatedManager, supervisor=Supervision(intensity=1000))


async def _drive(world: World) -> None:
    async def thread(name: str) -> None:
        request = ProcessPhase(thread_id=name, phase_type="action", input=name)
        processed = await world.ask("phase", request, thread_id=name)
        assert processed.output.response == name.upper()

    await asyncio.gather(*map(thread, ("t1", "t2")))


@pytest.mark.slow
@pytest.mark.parametrize("send", [_by_context, _by_reference])
def test_hops_by_send_message_survive_every_fault(send: Send, monkeypatch: pytest.MonkeyPatch) -> None:
    """G9, G13, G16: crashes, lost and doubled messages; each hop is in its thread once, however often its handler ran."""
    monkeypatch.setattr(Phase, "send", send)
    landed: Counter[str] = Counter()
    for seed in range(15):
        simulated = simulate(seed, host=_host, drive=_drive, faults=Faults(crashes=1 + seed % 4))
        landed += simulated.landed
        for name in ("t1", "t2"):
            said = Counter(virtually(rows(simulated.ledger, name)))
            hops = [said[kind] for kind in ("PROCESS_PHASE", "PROCESS_WITH_AGENT", "ERROR_NOTIFICATION", "RETRY", "RESTART")]
            assert hops == [1, 1, 1, 1, 1], (seed, name, said)
    assert min(landed[fault] for fault in ("crash", "loss", "duplication")) > 0  # R0: the faults were there
