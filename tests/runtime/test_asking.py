"""Telling and asking outside of threads: deliveries, answers, and failures."""

import asyncio

import pytest
from tests.runtime.actors import Do, Done, Note, Ping, Pong, Probe, Stubborn, Via, virtually

from antiphon.errors import (
    ActorFailedError,
    HopLimitError,
    MailboxFullError,
    RefusedError,
    ReplyTimeoutError,
    UndeliverableError,
)
from antiphon.messages import Message, OptionCallPayload, OptionResultPayload, PartsPayload, TextPart
from antiphon.protocol import Heartbeat
from antiphon.runtime import Actor, Address, Context, Settings, System, handles

pytestmark = pytest.mark.virtual_time


def test_an_address_is_text_of_kind_and_key() -> None:
    address = Address("agent", "7/b")

    assert address == "agent/7/b" == Address.parse("agent/7/b")
    assert (address.kind, address.key) == ("agent", "7/b")
    assert (Address("action_phase_actor_123").kind, Address("root").key) == ("action_phase_actor_123", "")


@pytest.mark.parametrize("text", ["", "/", "a/", "a b/c", "ä/1", "a/ ", "a/\u200b", "a/" + "x" * 600])
def test_an_invalid_address_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="an address"):
        Address.parse(text)


async def test_a_request_is_answered_by_the_handler_of_its_class() -> None:
    async with System() as system:
        probe = system.spawn("probe/1", Probe)

        assert await system.ask(probe, Ping(text="hi")) == Pong(text="hi!")
        await system.tell(probe, Note(text="psst"))
        assert await system.ask("probe/1", Do(what="list")) == Done(said=("hi", "psst"))


def test_a_core_message_is_validated_and_answered_with_a_core_message() -> None:
    """CH-050, CH-115: data is validated before the handler sees it; a mistake is answered, and restarts nobody."""

    async def main() -> None:
        async with System() as system:
            system.spawn("probe/1", Probe)
            call = _call("TEST_PING", {"text": "hi"})
            result = await system.ask("probe/1", call)

            assert isinstance(result.payload, OptionResultPayload)
            assert (result.policy, result.payload.result, result.in_reply_to) == ("probe/1", {"text": "hi!"}, call.id)
            with pytest.raises(RefusedError, match="TEST_PING message must contain 'text' field") as refused:
                await system.ask("probe/1", _call("TEST_PING", {}))
            assert refused.value.code == "VALIDATION_ERROR"
            with pytest.raises(RefusedError, match="Unknown message type: DANCE") as refused:
                await system.ask("probe/1", _call("DANCE", {}))
            assert refused.value.code == "UNKNOWN_MESSAGE_TYPE"
            assert Probe.made - made == 1

    made = Probe.made
    virtually(main())


async def test_a_message_without_a_handler_reaches_hear_unchanged() -> None:
    async with System() as system:
        system.spawn("any/1", Stubborn)
        result = await system.ask("any/1", _call("DANCE", {"how": "well"}))
        await system.tell("any/1", _talk("hello"))

        assert isinstance(result.payload, OptionResultPayload)
        assert result.payload.result == {"heard": "DANCE"}


async def test_an_actor_of_a_registered_kind_is_made_by_its_first_message() -> None:
    async with System() as system:
        system.register("probe", Probe)

        assert await system.ask("probe/7", Ping(text="a")) == Pong(text="a!")
        assert await system.ask("probe/8", Do(what="list")) == Done()


async def test_a_message_to_nobody_is_refused_and_kept_with_the_dead_letters() -> None:
    """CH-128."""
    async with System() as system:
        with pytest.raises(UndeliverableError, match="nobody/1: there is no actor; spawn it, or register its kind"):
            await system.ask("nobody/1", Ping(text="hi"))
        with pytest.raises(UndeliverableError):
            await system.tell("nobody/1", Note(text="hi"))

        assert [(letter.to, letter.code) for letter in system.dead_letters] == [("nobody/1", "ACTOR_NOT_FOUND")] * 2
        assert system.dead_letters[0].message.thread_id is None


def test_a_refusal_is_an_answer_with_its_code_and_details() -> None:
    """CH-117."""

    async def main() -> None:
        async with System() as system:
            system.spawn("probe/1", Probe)
            with pytest.raises(RefusedError, match="not today") as refused:
                await system.ask("probe/1", Do(what="refuse"))

            assert (refused.value.code, refused.value.details, refused.value.retryable) == (
                "NOT_TODAY",
                {"day": "monday"},
                True,
            )
            assert await system.ask("probe/1", Ping(text="still the same")) == Pong(text="still the same!")

    made = Probe.made
    virtually(main())
    assert Probe.made == made + 1


async def test_a_failure_is_an_answer_too_and_the_actor_is_made_anew() -> None:
    """CH-055; the mailbox goes on."""
    async with System() as system:
        system.spawn("probe/1", Probe)
        async with asyncio.TaskGroup() as group:
            failing = group.create_task(_error_of(system.ask("probe/1", Do(what="fail"))))
            after = group.create_task(system.ask("probe/1", Do(what="list")))

        error = failing.result()
        assert isinstance(error, ActorFailedError)
        assert str(error) == "probe/1: ValueError: as told"
        assert isinstance(error.__cause__, ValueError)
        assert after.result() == Done()


# ---------------------------------------------------------------- deadlines


def test_an_answer_that_does_not_come_in_time_is_given_up_and_its_handler_cancelled() -> None:
    """CH-121, C33."""

    async def main() -> None:
        async with System() as system:
            system.spawn("probe/1", Probe)
            began = asyncio.get_running_loop().time()
            with pytest.raises(ReplyTimeoutError, match="no answer to TEST_DO in time"):
                await system.ask("probe/1", Do(what="wait", seconds=60), within=2.0)

            assert 2.0 <= asyncio.get_running_loop().time() - began < 2.1
            assert await system.ask("probe/1", Do(what="list")) == Done(said=("cancelled",))

    made = Probe.made
    virtually(main())
    assert Probe.made == made + 1


def test_a_reply_timeout_is_a_timeout_error() -> None:
    assert issubclass(ReplyTimeoutError, TimeoutError)


def test_a_deadline_passes_down_and_shrinks() -> None:
    """What a handler asks has at most the time that it has itself."""

    class Chain(Actor):
        @handles
        async def do(self, request: Do, context: Context) -> Done:
            assert context.remaining is not None
            remaining.append(round(context.remaining))
            if context.address != "chain/3":
                await asyncio.sleep(1)
                following = f"chain/{int(context.address[-1]) + 1}"
                await context.ask(following, request, within=100 if context.address == "chain/1" else 4)
            return Done()

    async def main() -> None:
        async with System() as system:
            system.register("chain", Chain)
            await system.ask("chain/1", Do(what="nothing"), within=10)

    remaining: list[int] = []
    virtually(main())
    assert remaining == [10, 9, 4]


def test_cancelling_the_caller_cancels_the_handler_and_what_it_awaits() -> None:
    async def main() -> None:
        async with System() as system:
            system.register("probe", Probe)
            system.spawn("relay/1", Relay)
            asking = asyncio.create_task(system.ask("relay/1", Do(what="wait", seconds=60)))
            await asyncio.sleep(1)
            asking.cancel()
            with pytest.raises(asyncio.CancelledError):
                await asking

            assert await system.ask("probe/deep", Do(what="list")) == Done(said=("cancelled",))
            assert await system.ask("relay/1", Do(what="list")) == Done(said=("cancelled",))

    class Relay(Actor):
        @handles
        async def do(self, request: Do, context: Context) -> Done:
            return await context.ask("probe/deep", request)

    virtually(main())


async def test_a_message_in_the_mailbox_whose_caller_has_given_up_is_not_handled() -> None:
    async with System() as system:
        system.spawn("probe/1", Probe)
        busy = asyncio.create_task(system.ask("probe/1", Do(what="wait", seconds=5)))
        await asyncio.sleep(0)
        with pytest.raises(ReplyTimeoutError):
            await system.ask("probe/1", Ping(text="late"), within=1)

        assert await busy == Done()
        assert await system.ask("probe/1", Do(what="list")) == Done()


# ---------------------------------------------------------------- order, room, hops


def test_messages_of_one_sender_are_handled_in_order() -> None:
    async def main() -> None:
        async with System() as system:
            system.spawn("probe/1", Probe)
            for number in range(200):
                await system.tell("probe/1", Note(text=str(number)))

            assert await system.ask("probe/1", Do(what="list")) == Done(said=tuple(map(str, range(200))))

    virtually(main(), seed=7)


async def test_a_full_mailbox_makes_senders_wait_and_then_refuses() -> None:
    """G18: never silent loss."""
    async with System() as system:
        system.spawn("probe/1", Probe, capacity=2)
        busy = asyncio.create_task(system.ask("probe/1", Do(what="wait", seconds=5)))
        await asyncio.sleep(0.1)
        for text in ("a", "b"):
            await system.tell("probe/1", Note(text=text))
        with pytest.raises(MailboxFullError, match="2 messages wait") as full:
            await system.tell("probe/1", Note(text="too late"), within=1)
        await system.tell("probe/1", Note(text="c"), within=10)

        assert full.value.retryable
        assert asyncio.get_running_loop().time() >= 5
        assert await busy == Done()
        assert await system.ask("probe/1", Do(what="list")) == Done(said=("a", "b", "c"))


async def test_a_heartbeat_gets_in_before_all_others_and_says_how_full_it_is() -> None:
    """CH-083, CH-084, C31."""
    async with System() as system:
        system.spawn("probe/1", Probe, capacity=4)
        await system.ask("probe/1", Ping(text="begin"))
        busy = asyncio.create_task(system.ask("probe/1", Do(what="wait", seconds=5)))
        await asyncio.sleep(1)
        for text in "abcd":
            await system.tell("probe/1", Note(text=text))
        alive = await system.ask("probe/1", Heartbeat())
        await busy

        assert (alive.status, alive.load) == ("alive", 1.0)
        assert round(alive.uptime) == 5


async def test_a_heartbeat_says_how_many_handlers_are_at_work() -> None:
    """CH-084: the load is measured; the handler of the heartbeat itself does not count."""
    async with System() as system:
        system.spawn("probe/1", Probe, concurrency=4)
        busy = [asyncio.create_task(system.ask("probe/1", Do(what="wait", seconds=5), sender=f"client/{n}")) for n in range(3)]
        await asyncio.sleep(1)
        assert (await system.ask("probe/1", Heartbeat())).load == 0.75
        await asyncio.gather(*busy)
        assert (await system.ask("probe/1", Heartbeat())).load == 0.0


def test_actors_that_ask_in_a_circle_get_an_error_at_once() -> None:
    async def main() -> None:
        async with System() as system:
            system.register("probe", Probe)
            system.spawn("round/1", Round)
            with pytest.raises(HopLimitError, match="round/1: it waits for the actor that asks it"):
                await system.ask("round/1", Ping(text="go"))

    class Round(Actor):
        @handles
        async def ping(self, ping: Ping, context: Context) -> Pong:
            return await context.ask("probe/1", Via(to="round/1", text="back"))

    virtually(main())


def test_messages_that_follow_from_each_other_without_end_are_stopped() -> None:
    """S15: two agents that answer each other for ever."""

    class Parrot(Actor):
        @handles
        async def note(self, note: Note, context: Context) -> None:
            count.append(note.text)
            await context.tell("parrot/2" if context.address == "parrot/1" else "parrot/1", note)

    async def main() -> None:
        async with System(settings=Settings(hop_limit=10)) as system:
            system.register("parrot", Parrot)
            await system.tell("parrot/1", Note(text="hello"))
            await asyncio.sleep(1)

            assert [letter.code for letter in system.dead_letters] == ["HOP_LIMIT"] * 2

    count: list[str] = []
    virtually(main())
    assert len(count) == 11


def test_a_message_that_is_passed_on_is_answered_by_the_other() -> None:
    async def main() -> None:
        async with System() as system:
            system.register("probe", Probe)
            system.spawn("door/1", Door)

            assert await system.ask("door/1", Ping(text="in")) == Pong(text="in!")
            assert await system.ask("probe/inside", Do(what="list")) == Done(said=("in",))
            with pytest.raises(ReplyTimeoutError):
                await system.ask("door/1", Do(what="wait", seconds=60), within=1)
            assert await system.ask("probe/inside", Do(what="list")) == Done(said=("in", "cancelled"))

    class Door(Actor):
        @handles
        async def ping(self, ping: Ping, context: Context) -> None:
            await context.forward("probe/inside")

        @handles
        async def do(self, request: Do, context: Context) -> None:
            await context.forward("probe/inside")

    virtually(main())


def test_an_actor_can_answer_and_go_on() -> None:
    async def main() -> None:
        async with System() as system:
            system.register("probe", Probe)
            system.spawn("early/1", Early)

            assert await system.ask("early/1", Ping(text="go")) == Pong(text="begun")
            await asyncio.sleep(2)
            assert await system.ask("probe/1", Do(what="list")) == Done(said=("later",))

    class Early(Actor):
        @handles
        async def ping(self, ping: Ping, context: Context) -> None:
            await context.reply(Pong(text="begun"))
            await asyncio.sleep(1)
            await context.tell("probe/1", Note(text="later"))

    virtually(main())


# ---------------------------------------------------------------- at once


@pytest.mark.slow
def test_an_actor_without_state_handles_many_messages_at_once_but_those_of_a_sender_in_order() -> None:
    class Model(Actor):
        concurrency = 1000

        @handles
        async def ping(self, ping: Ping, context: Context) -> Pong:
            running.append(ping.text)
            most.append(len(running))
            await asyncio.sleep(10)
            running.remove(ping.text)
            done.append((context.message.policy, ping.text))
            return Pong(text=ping.text)

    async def main() -> None:
        async with System() as system:
            system.spawn("model/1", Model)
            asks = [
                system.ask("model/1", Ping(text=f"{sender} {number}"), sender=f"agent/{sender}", within=100)
                for number in range(3)
                for sender in range(500)
            ]
            await asyncio.gather(*asks)

    running: list[str] = []
    most: list[int] = []
    done: list[tuple[str, str]] = []
    virtually(main())
    assert max(most) == 500
    for sender in range(500):
        assert [text for policy, text in done if policy == f"agent/{sender}"] == [f"{sender} {n}" for n in range(3)]


# ---------------------------------------------------------------- handlers


def test_a_handler_that_is_typed_wrong_is_refused_where_it_is_written() -> None:
    with pytest.raises(TypeError, match=r"Wrong.ping: it is annotated to return .*Done.*, not Pong"):

        class Wrong(Actor):
            @handles
            async def ping(self, ping: Ping, context: Context) -> Done:
                return Done()

    with pytest.raises(TypeError, match=r"Strange.ping: a handler is \(self, request: SomeRequest, context: Context\)"):

        class Strange(Actor):
            @handles
            async def ping(self, ping: str, context: Context) -> Pong:
                return Pong(text=ping)

    with pytest.raises(TypeError, match="annotations must be known where the class is defined"):

        class Unknown(Actor):
            @handles
            async def ping(self, ping: "Nothing", context: Context) -> Pong:  # type: ignore[name-defined]  # noqa: F821
                return Pong(text="")


async def test_a_handler_that_returns_something_else_has_failed() -> None:
    class Liar(Actor):
        @handles
        async def ping(self, ping: Ping, context: Context) -> Pong:
            return Done()  # type: ignore[return-value]

    async with System() as system:
        system.spawn("liar/1", Liar)
        with pytest.raises(ActorFailedError, match="TypeError: .*Liar.ping returned Done, not Pong"):
            await system.ask("liar/1", Ping(text="?"))


def _call(option: str, arguments: dict[str, str]) -> Message:
    payload = OptionCallPayload(invocation_id=f"i-{option}-{len(arguments)}", option_name=option, arguments=arguments)
    return Message(policy="user", payload=payload)


def _talk(text: str) -> Message:
    return Message(policy="user", payload=PartsPayload(parts=(TextPart(text=text),)))


async def _error_of(asking: object) -> BaseException | None:
    try:
        await asking  # type: ignore[misc]
    except Exception as exc:  # noqa: BLE001 (to be looked at)
        return exc
    return None
