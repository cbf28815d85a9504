"""The runtime's hooks: what an observer is given, and that it can do no harm."""

import asyncio
import logging
from typing import Any

import pytest
from tests.runtime.actors import Do, Note, Ping, Pong, Probe, Via, virtually

from antiphon.errors import DeliveryError, UndeliverableError
from antiphon.runtime import Activity, DeadLetter, Delivery, Observer, Settings, System

HOOKS = ["opened", "closed", "origin", "accepted", "began", "ended", "restarted", "parked", "died"]


class Recorder(Observer):
    """Records its calls."""

    def __init__(self) -> None:
        self.heard: list[str] = []

    def opened(self, system: System) -> None:
        self.heard.append("opened")

    def closed(self, system: System) -> None:
        self.heard.append("closed")

    def accepted(self, delivery: Delivery) -> None:
        self.heard.append(f"accepted {delivery.type} {delivery.attempt}")

    def began(self, activity: Activity) -> None:
        self.heard.append(f"began {self._what(activity)}")

    def ended(self, activity: Activity) -> None:
        self.heard.append(f"ended {self._what(activity)} {activity.error_type or 'well'}")

    def restarted(self, address: str, incarnation: int) -> None:
        self.heard.append(f"restarted {address} {incarnation}")

    def parked(self, delivery: Delivery) -> None:
        self.heard.append(f"parked {delivery.type}")

    def died(self, letter: DeadLetter) -> None:
        self.heard.append(f"died {letter.to} {letter.code}")

    @staticmethod
    def _what(activity: Activity) -> str:
        assert activity.delivery is not None
        return activity.delivery.type if activity.effect is None else activity.effect.key


async def _live(observer: Observer | None) -> None:
    async with System(observer=observer, settings=Settings(attempts=2)) as system:
        system.register("probe", Probe)
        assert await system.ask("probe/1", Via(to="probe/2", text="hi"), thread_id="t") == Pong(text="hi!")
        with pytest.raises(DeliveryError):
            await system.ask("probe/1", Do(what="fail"), thread_id="t")
        with pytest.raises(UndeliverableError):
            await system.tell("nobody/1", Note(text="hi"))
        assert await system.ask("probe/2", Ping(text="hi")) == Pong(text="hi!")
        await asyncio.sleep(5)  # of virtual time: for the second restart


def test_an_observer_gets_the_events_in_their_order() -> None:
    recorder = Recorder()
    virtually(_live(recorder))

    ours = [line for line in recorder.heard if "ERROR_NOTIFICATION" not in line and "RESTART" not in line]
    assert ours == [
        "opened",
        "accepted TEST_VIA 1",
        "began TEST_VIA",
        "accepted TEST_PING 1",
        "began TEST_PING",
        "ended TEST_PING well",
        "ended TEST_VIA well",
        "accepted TEST_DO 1",
        "began TEST_DO",
        "ended TEST_DO ValueError",
        "accepted TEST_DO 2",
        "restarted probe/1 2",
        "began TEST_DO",
        "ended TEST_DO ValueError",
        "parked TEST_DO",
        "died nobody/1 ACTOR_NOT_FOUND",
        "accepted TEST_PING 1",
        "began TEST_PING",
        "ended TEST_PING well",
        "restarted probe/1 3",
        "closed",
    ]


@pytest.mark.parametrize("hook", HOOKS)
def test_an_observer_that_raises_is_switched_off_and_harms_nobody(hook: str, caplog: pytest.LogCaptureFixture) -> None:
    def raising(*args: Any) -> None:
        calls.append(args)
        raise RuntimeError("the walrus was Paul")

    calls: list[tuple[Any, ...]] = []
    recorder = Recorder()
    setattr(recorder, hook, raising)
    with caplog.at_level(logging.ERROR, "antiphon.listeners"):
        virtually(_live(recorder))

    assert len(calls) == 1
    (record,) = [record for record in caplog.records if "observer" in record.getMessage()]
    assert "the observer Recorder raised RuntimeError at test_observer.py:" in record.getMessage()
    assert "it is switched off" in record.getMessage()
    assert "walrus" not in caplog.text


def test_the_base_class_is_an_observer_that_does_nothing() -> None:
    virtually(_live(Observer()))
    virtually(_live(None))


@pytest.mark.virtual_time
async def test_a_delivery_shows_the_message_and_where_it_comes_from() -> None:
    class Looker(Observer):
        def began(self, activity: Activity) -> None:
            delivery = activity.delivery
            assert delivery is not None
            seen.append((delivery.to, delivery.sender, delivery.message.policy, delivery.thread_id, delivery.exchange))

    seen: list[tuple[Any, ...]] = []

    async with System(observer=Looker()) as system:
        system.register("probe", Probe)
        await system.ask("probe/1", Via(to="probe/2", text="hi"), thread_id="t", id="m1")

    assert seen == [("probe/1", "client", "client", "t", "m1"), ("probe/2", "probe/1", "probe/1", "t", "m1")]
