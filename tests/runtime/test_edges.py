"""What happens at the edges: a ledger that cannot be used, handlers that are stopped half way, things that may not be said."""

import asyncio
from decimal import Decimal
from typing import Any

import pytest
from tests.runtime.actors import Do, Done, Note, Ping, Pong, Probe, Stubborn, rows, virtually

from antiphon.errors import (
    ActorFailedError,
    LedgerUnavailableError,
    MailboxFullError,
    ParkedError,
    RefusedError,
    ReplyTimeoutError,
    UndeliverableError,
    UnknownOutcomeError,
)
from antiphon.ledger import Record, Redaction
from antiphon.ledger.memory import MemoryLedger
from antiphon.messages import Message, OptionCallPayload, PartsPayload, TextPart, Usage
from antiphon.protocol import Restart
from antiphon.runtime import Actor, Budget, Context, Effects, Settings, System, handles, system_thread

pytestmark = pytest.mark.virtual_time


class Broken(MemoryLedger):
    """A ledger that can be out of order."""

    is_broken = False

    async def append(self, thread_id: str, messages: Any, **more: Any) -> tuple[Record, ...]:
        if self.is_broken:
            raise LedgerUnavailableError("out of order", thread_id)
        return await super().append(thread_id, messages, **more)


# ---------------------------------------------------------------- a ledger that cannot be used


async def test_an_action_that_cannot_be_recorded_is_not_done_and_works_again_later() -> None:
    """G19."""
    ledger = Broken()
    async with System(ledger) as system:
        system.spawn("probe/1", Probe)
        ledger.is_broken = True
        with pytest.raises(LedgerUnavailableError):
            await system.ask("probe/1", Ping(text="a"), thread_id="t", id="m")
        assert await system.ask("probe/1", Do(what="list")) == Done()
        ledger.is_broken = False
        assert await system.ask("probe/1", Ping(text="a"), thread_id="t", id="m") == Pong(text="a!")
        await asyncio.sleep(10)
        assert await rows(ledger, "t") == ["TEST_PING", "=TEST_PING"]


async def test_an_actor_that_fails_while_the_ledger_is_unavailable_is_restarted() -> None:
    ledger = Broken()
    async with System(ledger) as system:
        system.spawn("probe/1", Probe)
        ledger.is_broken = True
        with pytest.raises(ActorFailedError):
            await system.ask("probe/1", Do(what="fail"))
        assert await system.ask("probe/1", Ping(text="back"), within=60) == Pong(text="back!")


@pytest.mark.parametrize("is_effect", [False, True])
async def test_a_message_that_was_parked_twice_by_an_unconfirmed_append_is_settled_once(is_effect: bool) -> None:
    """G19: otherwise the second row could never be ended, and the thread would have an open call for ever."""
    unconfirmed = 0

    class Unsure(MemoryLedger):
        """A ledger that stores that a message is parked, and does not say so."""

        async def append(self, thread_id: str, messages: Any, **options: Any) -> tuple[Record, ...]:
            nonlocal unconfirmed
            records = await super().append(thread_id, messages, **options)
            if unconfirmed < 8 and any(_option(record.message) == "PARK" for record in records):
                unconfirmed += 1
                raise LedgerUnavailableError("the answer was lost", thread_id)
            return records

    class Fragile(Actor):
        @handles
        async def ping(self, ping: Ping, context: Context) -> Pong:
            async def send(key: str) -> str:
                raise UnknownOutcomeError("no answer")

            if not is_effect:
                raise OSError("broken")
            return Pong(text=await context.effect("send", {}, send))

    ledger = Unsure()
    async with System(ledger, settings=Settings(attempts=1)) as system:
        system.spawn("fragile/1", Fragile)
        with pytest.raises((ParkedError, LedgerUnavailableError)):
            await system.ask("fragile/1", Ping(text=""), thread_id="t", id="m")
        await asyncio.sleep(60)
        parked = [each.invocation_id for each in await system.parked() if each.thread_id == "t"]
        assert len(parked) > 1
        await system.settle("t", parked[0], **{"result": "sent"} if is_effect else {"error": "given up"})
        await asyncio.sleep(1)
        assert await ledger.open_calls("t") == ()


def test_an_answer_that_could_not_be_written_down_is_given_when_it_can() -> None:
    class Unlucky(Actor):
        @handles
        async def ping(self, ping: Ping, context: Context) -> Pong:
            if context.attempt == 1 and not broken:
                ledger.is_broken = True
                broken.append("once")
                asyncio.get_running_loop().call_later(20, setattr, ledger, "is_broken", False)
            return Pong(text=f"{ping.text}!")

    async def main() -> None:
        async with System(ledger) as system:
            system.spawn("unlucky/1", Unlucky)
            assert await system.ask("unlucky/1", Ping(text="a"), thread_id="t", within=600) == Pong(text="a!")
            await asyncio.sleep(60)
            assert await ledger.open_calls("t") == ()

    ledger = Broken()
    broken: list[str] = []
    virtually(main())


async def test_a_given_up_message_is_recorded_when_the_ledger_is_back() -> None:
    ledger = Broken()
    async with System(ledger) as system:
        system.spawn("probe/1", Probe)
        asking = asyncio.create_task(system.ask("probe/1", Do(what="wait", seconds=60), thread_id="t", within=2))
        await asyncio.sleep(1)
        ledger.is_broken = True
        with pytest.raises(ReplyTimeoutError):
            await asking
        await asyncio.sleep(10)
        ledger.is_broken = False
        await asyncio.sleep(10)
        assert (await rows(ledger, "t"))[-1] == "!TIMEOUT"
        assert await ledger.open_calls("t") == ()


async def test_actors_act_on_the_message_as_it_was_written_down() -> None:
    """Live and after a crash they see the same: what is redacted is redacted for them too."""
    async with System(MemoryLedger(redaction=Redaction(secrets={"key": "s3cret-value"}))) as system:
        system.spawn("probe/1", Probe)
        reply = await system.ask("probe/1", Ping(text="it is s3cret-value"), thread_id="t")
        assert "s3cret-value" not in reply.text

        class Agent(Actor):
            @handles
            async def ping(self, ping: Ping, context: Context) -> Pong:
                pong = await context.ask("probe/1", Ping(text=f"{ping.text} s3cret-value"))
                if context.attempt == 1:
                    raise ValueError("again, please")
                return pong

        system.spawn("agent/1", Agent)
        again = await system.ask("agent/1", Ping(text="a"), thread_id="t", id="m")
        assert again == await system.ask("agent/1", Ping(text="a"), thread_id="t", id="m")
        assert "s3cret-value" not in again.text


# ---------------------------------------------------------------- stopped half way


@pytest.mark.parametrize(("effects", "found"), [("once", ["PARK"]), ("none", []), ("idempotent", [])])
async def test_an_effect_whose_handler_ran_out_of_time_is_parked_if_it_must_not_happen_twice(
    effects: Effects, found: list[str]
) -> None:
    """G7: an outcome that is unknown after a timeout."""

    class Tool(Actor):
        @handles
        async def ping(self, ping: Ping, context: Context) -> Pong:
            async def run(key: str) -> str:
                await asyncio.sleep(100)
                return "done"

            return Pong(text=await context.effect("send", {}, run, effects=effects))

    async with System() as system:
        system.spawn("tool/1", Tool)
        with pytest.raises(ReplyTimeoutError):
            await system.ask("tool/1", Ping(text=""), thread_id="t", within=5, id="m")
        await asyncio.sleep(1)
        open_rows = [record.message for record in await system.ledger.open_calls("t")]
        parked = await system.parked()

        assert [_option(row) for row in open_rows if _option(row) != "send"] == found
        assert [each.invocation_id for each in parked] == (["m/send"] if found else [])
        if parked:
            await system.settle("t", "m/send", result="it had arrived")
        assert await system.ledger.open_calls("t") == ()


def test_a_handler_that_ignores_that_it_is_cancelled_does_not_hold_up_its_actor() -> None:
    class Deaf(Probe):
        @handles
        async def do(self, request: Do, context: Context) -> Done:
            while True:
                try:
                    await asyncio.sleep(50)
                    ended.append("the old one")
                    return Done()
                except asyncio.CancelledError:
                    pass

    async def main() -> None:
        async with System() as system:
            system.spawn("deaf/1", Deaf, grace=1.0)
            asking = asyncio.create_task(system.ask("deaf/1", Do(what="nothing"), within=1000, thread_id="t"))
            await asyncio.sleep(1)
            await system.ask("deaf/1", Restart(reason="enough"))
            with pytest.raises(ActorFailedError, match="its handler ignores that it is cancelled"):
                await asking
            assert await system.ask("deaf/1", Ping(text="new")) == Pong(text="new!")
            await asyncio.sleep(100)
            assert await rows(system.ledger, "t") == ["TEST_DO", "!ACTOR_FAILED"]

    ended: list[str] = []
    virtually(main())
    assert ended == ["the old one"]


def test_a_request_continues_while_its_asker_is_restarted() -> None:
    """A restart of the asker does not cancel the work of another in the same thread: the new actor waits for it."""

    class Worker(Actor):
        @handles
        async def ping(self, ping: Ping, context: Context) -> Pong:
            runs.append(context.attempt)
            await asyncio.sleep(10)
            return Pong(text="done")

    class Boss(Actor):
        @handles
        async def do(self, request: Do, context: Context) -> Done:
            pong = await context.ask("worker/1", Ping(text="work"))
            return Done(said=(pong.text, str(context.attempt)))

    async def main() -> None:
        async with System() as system:
            system.spawn("worker/1", Worker)
            system.spawn("boss/1", Boss, grace=0.5)
            asking = asyncio.create_task(system.ask("boss/1", Do(what="nothing"), thread_id="t", within=100))
            await asyncio.sleep(1)
            await system.ask("boss/1", Restart(reason="new version"))
            assert await asking == Done(said=("done", "2"))

    runs: list[int] = []
    virtually(main())
    assert runs == [1]


async def test_a_request_that_a_failing_handler_withdrew_is_sent_again_under_another_id() -> None:
    class Boss(Actor):
        @handles
        async def do(self, request: Do, context: Context) -> Done:
            async def fail() -> None:
                await asyncio.sleep(1)
                if context.attempt == 1:
                    raise ValueError("not this time")

            async with asyncio.TaskGroup() as group:
                waiting = group.create_task(context.ask("probe/1", Do(what="wait", seconds=5), key="wait"))
                group.create_task(fail())
            return Done(said=(str(len(waiting.result().said)),))

    async with System() as system:
        system.spawn("probe/1", Probe)
        system.spawn("boss/1", Boss)
        assert await system.ask("boss/1", Do(what="nothing"), thread_id="t", id="m") == Done(said=("1",))
        calls = [record.message.invocation_id async for record in system.ledger.read("t") if _is_call(record.message)]
        assert calls == ["m", "m/wait", "m/wait~2"]


# ---------------------------------------------------------------- what may not be said


async def test_a_message_of_the_journal_or_of_another_thread_is_refused() -> None:
    async with System() as system:
        system.spawn("any/1", Stubborn)
        with pytest.raises(ValueError, match="is of the journal, which only the runtime writes"):
            await system.ask("any/1", _call(lane="effect"))
        with pytest.raises(ValueError, match="is of thread 'u', not of 't'"):
            await system.ask("any/1", _call(thread_id="u"), thread_id="t")


async def test_metadata_that_only_the_runtime_may_write_is_stripped() -> None:
    """G22: content is data."""
    async with System() as system:
        system.spawn("any/1", Stubborn)
        own = {"antiphon": {"hops": -5}, "mine": {"a": 1}}
        await system.ask("any/1", _call(metadata=own), thread_id="t")
        call, _ = [record.message async for record in system.ledger.read("t")]
        assert call.metadata == {"mine": {"a": 1}}
        assert (call.to, call.thread_id) == (("any/1",), "t")


def test_talk_is_heard_by_an_actor_of_the_protocol_as_a_message() -> None:
    class Seed(Actor):
        async def receive(self, message: Any) -> Any:
            heard.append((message.type, message.data["content"]))
            return message.reply(data={})

    async def main() -> None:
        async with System() as system:
            system.spawn("seed/1", Seed)
            await system.tell("seed/1", Message(policy="user", payload=PartsPayload(parts=(TextPart(text="hello"),))))
            await asyncio.sleep(1)

    heard: list[tuple[str, str]] = []
    virtually(main())
    assert heard == [("MESSAGE", "hello")]


@pytest.mark.parametrize("key", ["1", "a/b", "a#b", "", "x" * 300])
async def test_a_key_that_could_be_taken_for_another_is_refused(key: str) -> None:
    class Boss(Actor):
        @handles
        async def ping(self, ping: Ping, context: Context) -> Pong:
            return await context.ask("probe/1", ping, key=key)

    async with System(settings=Settings(attempts=1)) as system:
        system.spawn("probe/1", Probe)
        system.spawn("boss/1", Boss)
        with pytest.raises(Exception, match="it was delivered 1 times"):
            await system.ask("boss/1", Ping(text="?"), thread_id="t")
        (parked,) = await system.parked()
        assert "a key is a name" in str(parked.evidence["last"])


# ---------------------------------------------------------------- small things


async def test_an_address_has_one_actor_and_a_supervisor_that_is_there() -> None:
    async with System() as system:
        system.spawn("probe/1", Probe)
        with pytest.raises(ValueError, match="'probe/1' is taken"):
            system.spawn("probe/1", Probe)
        with pytest.raises(ValueError, match="there is no supervisor 'team/9'"):
            system.spawn("probe/2", Probe, supervisor="team/9")


async def test_forwarding_to_an_unknown_actor_is_an_error_for_the_caller() -> None:
    class Door(Actor):
        @handles
        async def ping(self, ping: Ping, context: Context) -> None:
            await context.forward("nobody/1")

    async with System() as system:
        system.spawn("door/1", Door)
        with pytest.raises(UndeliverableError, match="nobody/1"):
            await system.ask("door/1", Ping(text="?"), thread_id="t")
        assert await rows(system.ledger, "t") == ["TEST_PING", "!ACTOR_NOT_FOUND"]


def test_an_actor_that_is_beginning_can_ask_but_has_no_message() -> None:
    class Curious(Actor):
        async def started(self, context: Context) -> None:
            answers.append((await context.ask("probe/1", Ping(text="first"))).text)
            with pytest.raises(RuntimeError, match="just beginning has no message"):
                _ = context.message
            assert (context.thread_id, context.remaining) == (None, None)

        @handles
        async def ping(self, ping: Ping, context: Context) -> Pong:
            return Pong(text=answers[-1])

    async def main() -> None:
        async with System() as system:
            system.spawn("probe/1", Probe)
            system.spawn("curious/1", Curious)
            assert await system.ask("curious/1", Ping(text="?")) == Pong(text="first!")

    answers: list[str] = []
    virtually(main())


def test_an_actor_whose_own_mailbox_is_full_does_not_wait_for_itself() -> None:
    class Eager(Probe):
        capacity = 1

        @handles
        async def via(self, note: Note, context: Context) -> None:
            await context.tell(context.address, Note(text="a"))
            with pytest.raises(MailboxFullError):
                await context.tell(context.address, Note(text="b"))
            full.append(note.text)

    async def main() -> None:
        async with System() as system:
            system.spawn("eager/1", Eager)
            await system.tell("eager/1", Note(text="go"))
            await asyncio.sleep(0.1)

    full: list[str] = []
    virtually(main())
    assert full[0] == "go"


@pytest.mark.parametrize(
    ("budget", "spent"), [(Budget(tokens=10), "10 tokens"), (Budget(cost=Decimal("0.5")), "0.5 US dollars")]
)
async def test_a_budget_counts_what_models_cost(budget: Budget, spent: str) -> None:
    ledger = MemoryLedger()
    usage = Usage(input_tokens=6, output_tokens=4, cost=Decimal("0.5"))
    said = Message(policy="assistant", payload=PartsPayload(parts=()), usage=usage)
    await ledger.append("t", [said])
    async with System(ledger, settings=Settings(budget=budget)) as system:
        system.spawn("probe/1", Probe)
        with pytest.raises(Exception, match=f"thread 't' has used up its {spent}"):
            await system.ask("probe/1", Ping(text="a"), thread_id="t")


async def test_an_answer_of_the_wrong_type_is_refused() -> None:
    class Odd(Actor):
        async def hear(self, message: Message, context: Context) -> Any:
            return {"something": "else"}

    async with System() as system:
        system.spawn("odd/1", Odd)
        with pytest.raises(RefusedError, match="its answer is no Pong"):
            await system.ask("odd/1", Ping(text="?"))


async def test_a_failure_that_cannot_be_put_into_words_is_a_failure_all_the_same() -> None:
    class NamelessError(Exception):
        def __str__(self) -> str:
            raise ValueError("no text")

    class Fragile(Actor):
        @handles
        async def ping(self, ping: Ping, context: Context) -> Pong:
            raise NamelessError

    async with System() as system:
        system.spawn("fragile/1", Fragile)
        with pytest.raises(ActorFailedError, match="its text cannot be read"):
            await system.ask("fragile/1", Ping(text="?"))
        await asyncio.sleep(1)
        assert (await rows(system.ledger, system_thread("fragile/1")))[-1] == "=ERROR_NOTIFICATION"


def _option(message: Message) -> str:
    return message.payload.option_name if isinstance(message.payload, OptionCallPayload) else ""


def _is_call(message: Message) -> bool:
    return message.kind == "option_call" and message.lane != "effect"


def _call(**fields: Any) -> Message:
    payload = OptionCallPayload(invocation_id="i-1", option_name="DANCE", arguments={})
    return Message(policy="user", payload=payload, **fields)
