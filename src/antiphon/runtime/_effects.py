"""Effects: things that a handler does to the world, done once and recorded, or not done again.

The intent is appended, then the thing is done, then its outcome is appended. A handler that runs again after a crash
gets the outcome that is there. If there is only the intent, nobody knows whether the thing was done. What follows
depends on what it is:

| `effects` | it is | with an intent and no outcome |
|---|---|---|
| `none` | a look at the world | done again |
| `idempotent` | something that may be done twice under the same key | done again, under the same key |
| `once` | something that must not be done twice | parked: a person says what became of it |
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

from pydantic import ValidationError

from antiphon.errors import DeliveryError, EffectFailedError, HistoryMismatchError, ParkedError, WithdrawnError
from antiphon.messages import Json, Message, OptionResultPayload, current_port, thaw
from antiphon.runtime._results import error_of
from antiphon.runtime._rows import begun, ended
from antiphon.runtime._same import says_the_same

if TYPE_CHECKING:
    from antiphon.runtime._envelope import Envelope
    from antiphon.runtime._kernel import Kernel

__all__ = ["Effect", "Effects", "Run"]

Effects: TypeAlias = Literal["none", "idempotent", "once"]
Run: TypeAlias = Callable[[str], Awaitable[Json]]
"""Does the thing. It is given a key that is the same whenever it is tried, for whoever can tell a second try by it."""


class Effect:
    """One effect, in the course of one message."""

    def __init__(self, kernel: Kernel, envelope: Envelope, key: str, arguments: Mapping[str, Json], effects: Effects) -> None:
        self._kernel = kernel
        self._envelope = envelope
        self._option = key
        self._arguments = arguments
        self._effects = effects
        self._thread_id = envelope.thread_id or ""
        self._id = f"{envelope.invocation_id}/{envelope.next_key(key)}"

    async def perform(self, run: Run) -> Any:
        """Do it, or take the outcome that is recorded.

        Raises:
            EffectFailedError: it raised, now or then.
            ParkedError: nobody knows whether it was done, and it must not be done twice.
            HistoryMismatchError: the thread has another effect at this place.
        """
        if self._envelope.thread_id is None:
            return await run(current_port().new_id())
        intent, outcome = await self._recall() if self._envelope.attempt > 1 else (None, None)
        if outcome is not None:
            return _value(outcome, self._envelope.to)
        if intent is None:
            intent = self._intent()
            await self._kernel.journal.write(self._thread_id, [intent])
        elif self._effects == "once":
            await self._park()
        return await self._run(run, intent)

    async def _recall(self) -> tuple[Message | None, OptionResultPayload | None]:
        """Return the intent and the outcome that the ledger has."""
        count = 1
        base = self._id
        while True:
            records = await self._kernel.journal.ledger.by_invocation(self._id, thread_id=self._thread_id)
            rows = [record.message for record in records if record.message.lane == "effect"]
            if not rows:
                return None, None
            self._check_same(rows[0])
            outcome = rows[-1].payload if len(rows) > 1 else None
            if not isinstance(outcome, OptionResultPayload) or outcome.error_type != WithdrawnError.code:
                return rows[0], outcome if isinstance(outcome, OptionResultPayload) else None
            count += 1
            self._id = f"{base}~{count}"

    def _check_same(self, intent: Message) -> None:
        if not says_the_same(intent.payload, self._intent().payload):
            reason = f"the handler does {self._option!r} otherwise than thread {self._thread_id!r} says, in {self._id!r}"
            raise HistoryMismatchError(reason, self._envelope.to)

    def _intent(self) -> Message:
        return begun(
            self._option,
            self._id,
            thread_id=self._thread_id,
            parent_id=self._envelope.invocation_id,
            arguments={"effects": self._effects, "arguments": self._arguments},
            policy=self._envelope.to,
        )

    async def _run(self, run: Run, intent: Message) -> Any:
        envelope = self._envelope
        envelope.open_effects += (intent,)
        try:
            outcome = self._outcome(result=await run(self._id))
        except DeliveryError:
            raise  # of what it asked others for; the effect stays open, and whoever asked learns of it
        except ValidationError as exc:
            outcome = self._failure(TypeError(f"its result is no JSON: {exc.errors()[0]['msg']}"))
        except Exception as exc:  # noqa: BLE001 (whatever it raises is its outcome, and is raised again below)
            outcome = self._failure(exc)
        (record,) = await self._kernel.journal.write(self._thread_id, [outcome])
        envelope.open_effects = tuple(row for row in envelope.open_effects if row is not intent)
        payload = record.message.payload
        assert isinstance(payload, OptionResultPayload)  # noqa: S101 (it was made so)
        return _value(payload, envelope.to)

    def _outcome(self, **outcome: Any) -> Message:
        parent_id = self._envelope.invocation_id
        return ended(self._option, self._id, thread_id=self._thread_id, parent_id=parent_id, policy=self._option, **outcome)

    def _failure(self, error: Exception) -> Message:
        reason = f"{type(error).__qualname__}: {error}".encode(errors="replace").decode()
        retryable = bool(getattr(error, "retryable", False))
        return self._outcome(is_error=True, error_type=EffectFailedError.code, error_message=reason, retryable=retryable)

    async def _park(self) -> None:
        reason = f"nobody knows whether {self._option!r} was done, and it must not be done twice"
        await self._kernel.post.durable.again.park(self._envelope, reason, {"effect": self._id, "option": self._option})
        raise ParkedError(reason, self._envelope.to)


def _value(outcome: OptionResultPayload, address: str) -> Any:
    if outcome.is_error:
        raise error_of(outcome, address)
    return thaw(outcome.result)
