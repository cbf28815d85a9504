"""Logs: structured, and without any content of messages (G23)."""

import logging

import pytest
from tests.runtime.actors import Do, Note, Ping, Pong, Via, virtually

from antiphon.errors import DeliveryError, EscalatedError
from antiphon.ledger.memory import MemoryLedger
from antiphon.runtime import Actor, Context, Settings, Supervision, System, handles

SECRET = "the walrus was Paul"


class Blabber(Actor):
    """Fails with the text of its message, in every way."""

    @handles
    async def ping(self, ping: Ping, context: Context) -> Pong:
        raise ValueError(f"cannot bear {ping.text!r}")

    @handles
    async def via(self, request: Via, context: Context) -> Pong:
        async def fail(key: str) -> str:
            raise OSError(request.text)

        return Pong(text=await context.effect("fail", {"text": request.text}, fail))

    async def stopped(self, reason: str) -> None:
        raise RuntimeError(f"{SECRET}: {reason}")


def _check(caplog: pytest.LogCaptureFixture) -> None:
    formatter = logging.Formatter("%(message)s")
    for record in caplog.records:
        everything = formatter.format(record) + repr(vars(record))
        assert SECRET not in everything, everything


def test_no_body_is_in_any_log_of_a_crash(caplog: pytest.LogCaptureFixture) -> None:
    """Handlers, effects and `stopped` raise with the text of the message; no logger writes it."""

    async def main() -> None:
        async with System(settings=Settings(attempts=2)) as system:
            team = system.supervise("team/1", Supervision(intensity=1, beyond="escalate"))
            system.spawn("blabber/1", Blabber, supervisor=team)
            for thread_id in (None, "t"):
                with pytest.raises(DeliveryError):
                    await system.ask("blabber/1", Ping(text=SECRET), thread_id=thread_id)
                with pytest.raises(DeliveryError):
                    await system.ask("blabber/1", Via(to="", text=SECRET), thread_id=thread_id)
            with pytest.raises(DeliveryError):
                await system.tell("nobody/1", Note(text=SECRET))

    with caplog.at_level(logging.DEBUG):
        virtually(main())

    failed = [
        record.getMessage() for record in caplog.records if record.getMessage().startswith("blabber/1 failed on message ")
    ]
    assert any(": ValueError at test_logs.py:" in each for each in failed)
    assert [record for record in caplog.records if "stopped() raised RuntimeError" in record.getMessage()]
    _check(caplog)


def test_no_body_is_logged_when_every_supervisor_gives_up(caplog: pytest.LogCaptureFixture) -> None:
    async def main() -> None:
        async with System(supervision=Supervision(intensity=0, beyond="escalate")) as system:
            system.spawn("blabber/1", Blabber)
            await system.ask("blabber/1", Ping(text=SECRET))

    with caplog.at_level(logging.DEBUG), pytest.raises((EscalatedError, DeliveryError)):
        virtually(main())

    _check(caplog)


def test_a_log_record_has_the_fields_that_traces_have(caplog: pytest.LogCaptureFixture) -> None:
    async def main() -> None:
        async with System(MemoryLedger()) as system:
            system.register("blabber", Blabber)
            with pytest.raises(DeliveryError):
                await system.ask("blabber/1", Ping(text=SECRET))
            with pytest.raises(DeliveryError):
                await system.ask("nobody/1", Do(what="nothing"), thread_id="t", id="m1")

    with caplog.at_level(logging.DEBUG, "antiphon"):
        virtually(main())

    failed = next(record for record in caplog.records if " failed on " in record.getMessage())
    assert vars(failed)["antiphon.actor.address"] == "blabber/1"
    assert vars(failed)["error.type"] == "ValueError"
    dead = next(record for record in caplog.records if "dead letter" in record.getMessage())
    assert {name: value for name, value in vars(dead).items() if "." in name} == {
        "antiphon.actor.address": "nobody/1",
        "antiphon.message.id": "m1",
        "antiphon.message.type": "TEST_DO",
        "antiphon.thread.id": "t",
        "error.type": "ACTOR_NOT_FOUND",
    }
