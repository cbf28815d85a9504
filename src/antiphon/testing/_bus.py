"""The promises of every bus, as checks for its tests. The name of a check is a sentence; each runs on a new bus."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import AbstractAsyncContextManager
from typing import TypeAlias

from antiphon.errors import UndeliverableError
from antiphon.messages import Message, PartsPayload, TextPart, dumps
from antiphon.runtime import Bus, Parcel

MakeBus: TypeAlias = Callable[[], AbstractAsyncContextManager[Bus]]
"""Opens a bus to which no name is attached."""

_LONG = 10.0
"""Seconds to wait for a parcel before the check fails."""


async def check_bus(make: MakeBus, *, only: str | None = None) -> None:
    """Check the promises of a bus.

    Raises:
        AssertionError: a promise is broken; the text names it.
    """
    chosen = BUS_CHECKS if only is None else {only: BUS_CHECKS[only]}
    for name, check in chosen.items():
        try:
            async with make() as bus:
                await check(bus)
        except (AssertionError, TimeoutError) as exc:
            raise AssertionError(f"not so: {name.replace('_', ' ')}: {exc!r}") from exc


class _Inbox:
    """Collects parcels, and waits for a number of them."""

    def __init__(self) -> None:
        self.taken: list[Parcel] = []
        self._came = asyncio.Event()

    async def take(self, parcel: Parcel) -> None:
        self.taken.append(parcel)
        self._came.set()

    async def wait(self, count: int) -> list[Parcel]:
        async with asyncio.timeout(_LONG):
            while len(self.taken) < count:
                self._came.clear()
                await self._came.wait()
        return self.taken


def _parcel(to: str, text: str) -> Parcel:
    payload = PartsPayload(parts=(TextPart(text=text),))
    return Parcel(to, Message(policy="sender", payload=payload, to=(to,), metadata={"x": {"n": [1, 2.5, None]}}), "@sender")


def _same(found: object, expected: object) -> None:
    if found != expected:
        raise AssertionError(f"found {found!r}, expected {expected!r}")


async def a_parcel_comes_unaltered_to_the_system_that_has_its_kind(bus: Bus) -> None:
    inbox, parcel = _Inbox(), _parcel("probe/1", "snow \u2603 \x00")
    await bus.attach("probe", inbox.take)
    await bus.send(parcel)
    (taken,) = await inbox.wait(1)
    _same(taken, parcel)
    _same(dumps(taken.message), dumps(parcel.message))


async def parcels_come_in_the_order_in_which_they_were_sent(bus: Bus) -> None:
    inbox = _Inbox()
    await bus.attach("probe", inbox.take)
    for number in range(200):
        await bus.send(_parcel(f"probe/{number % 3}", str(number)))
    taken = await inbox.wait(200)
    once = list(dict.fromkeys(parcel.message.text for parcel in taken))
    _same(once, [str(number) for number in range(200)])


async def each_gets_what_is_for_it_and_nothing_else(bus: Bus) -> None:
    one, other, system = _Inbox(), _Inbox(), _Inbox()
    for name, inbox in (("one", one), ("other", other), ("@system", system)):
        await bus.attach(name, inbox.take)
    for to in ("one/a", "other/a", "other/b", "@system"):
        await bus.send(_parcel(to, to))
    for inbox, expected in ((one, {"one/a"}), (other, {"other/a", "other/b"}), (system, {"@system"})):
        await inbox.wait(len(expected))
        _same({parcel.to for parcel in inbox.taken}, expected)


async def a_parcel_for_nobody_is_refused(bus: Bus) -> None:
    try:
        await bus.send(_parcel("nobody/1", "?"))
    except UndeliverableError as exc:
        _same(exc.address, "nobody/1")
    else:
        raise AssertionError("it was accepted")


async def a_name_has_one_owner_until_that_lets_go(bus: Bus) -> None:
    first, second = _Inbox(), _Inbox()
    await bus.attach("probe", first.take)
    try:
        await bus.attach("probe", second.take)
    except ValueError:
        pass
    else:
        raise AssertionError("a second one could attach")
    await bus.detach("probe")
    await bus.detach("probe")
    await bus.attach("probe", second.take)
    await bus.send(_parcel("probe/1", "hello"))
    await second.wait(1)
    _same(first.taken, [])


async def a_system_that_takes_a_parcel_may_send_another(bus: Bus) -> None:
    inbox = _Inbox()

    async def echo(parcel: Parcel) -> None:
        await bus.send(Parcel(parcel.reply_to, parcel.message, "@echo"))

    await bus.attach("echo", echo)
    await bus.attach("@sender", inbox.take)
    for number in range(20):
        await bus.send(_parcel("echo/1", str(number)))
    await inbox.wait(20)


BUS_CHECKS: dict[str, Callable[[Bus], Awaitable[None]]] = {
    check.__name__: check
    for check in (
        a_parcel_comes_unaltered_to_the_system_that_has_its_kind,
        parcels_come_in_the_order_in_which_they_were_sent,
        each_gets_what_is_for_it_and_nothing_else,
        a_parcel_for_nobody_is_refused,
        a_name_has_one_owner_until_that_lets_go,
        a_system_that_takes_a_parcel_may_send_another,
    )
}
"""By sentence, every check."""
