"""Ordering: an actor that handles several messages at once says which of them follow each other."""

import asyncio
from functools import partial

import pytest
from tests.runtime.actors import Note, Ping, Pong, virtually

from antiphon.messages import Message
from antiphon.protocol import Reply, Request
from antiphon.runtime import Actor, Context, System, handles


class Worked(Reply, frozen=True, type="TEST_WORKED"):
    pass


class Work(Request[Worked], frozen=True, type="TEST_WORK"):
    seconds: float
    name: str


class Foreman(Actor):
    """Works one after the other, and answers questions meanwhile."""

    concurrency = 10

    def __init__(self, log: list[str]) -> None:
        self.log = log

    @classmethod
    def ordering_key(cls, message: Message) -> str | None:
        return "work" if getattr(message.payload, "option_name", "") == Work.message_type else None

    @handles
    async def work(self, work: Work, context: Context) -> Worked:
        self.log.append(f"{work.name} begins")
        await asyncio.sleep(work.seconds)
        self.log.append(f"{work.name} ends")
        return Worked()

    @handles
    async def ping(self, ping: Ping, context: Context) -> Pong:
        self.log.append(ping.text)
        return Pong(text="!")


class Plain(Foreman):
    """The same without a key of its own."""

    @classmethod
    def ordering_key(cls, message: Message) -> str | None:
        return None


def _run(foreman: type[Foreman], threads: tuple[str, str, str]) -> list[str]:
    log: list[str] = []

    async def main() -> None:
        async with System() as system:
            system.spawn("foreman/1", partial(foreman, log))
            first, second, third = threads
            async with asyncio.TaskGroup() as group:
                group.create_task(system.ask("foreman/1", Work(seconds=2, name="a"), thread_id=first))
                await asyncio.sleep(1)
                group.create_task(system.ask("foreman/1", Work(seconds=2, name="b"), thread_id=second))
                group.create_task(system.ask("foreman/1", Ping(text="ping"), thread_id=third))

    virtually(main())
    return log


def test_messages_with_the_same_key_follow_each_other_and_others_do_not_wait() -> None:
    """Also of different threads; and a message with another key passes those of the same thread."""
    assert _run(Foreman, ("t", "t", "t")) == ["a begins", "ping", "a ends", "b begins", "b ends"]
    assert _run(Foreman, ("t", "u", "v")) == ["a begins", "ping", "a ends", "b begins", "b ends"]


def test_without_a_key_it_is_the_thread() -> None:
    assert _run(Plain, ("t", "t", "t")) == ["a begins", "a ends", "b begins", "b ends", "ping"]
    assert _run(Plain, ("t", "u", "v")) == ["a begins", "b begins", "ping", "a ends", "b ends"]


@pytest.mark.virtual_time
async def test_an_actor_without_a_key_of_its_own_has_no_message_made_for_it() -> None:
    """A typed request outside of a thread stays as it is: asking for its key must not cost what making a message costs."""

    class Many(Actor):
        concurrency = 10

        @handles
        async def note(self, note: Note, context: Context) -> None:
            made.append(context.course.delivery.message_if_made)  # type: ignore[attr-defined]

    made: list[Message | None] = []

    async with System() as system:
        system.spawn("many/1", Many)
        await system.tell("many/1", Note(text="x"))
        await asyncio.sleep(1)

    assert made == [None]
