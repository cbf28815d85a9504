"""A thread as JSON Lines: messages of the house format, one value of a dialect, or decisions to learn from."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import orjson

from antiphon.cli._output import report_losses
from antiphon.cli._screen import fail, note
from antiphon.dialects import Loss, encode
from antiphon.errors import DialectError
from antiphon.messages import Conversation, Message, Transition, dumps
from antiphon.messages._json import write

if TYPE_CHECKING:
    from antiphon.ledger import Ledger, ThreadSummary

__all__ = ["Form", "Lines"]

_HEADER = dumps(Conversation())
"""The first line of a conversation in the house format; a ledger has no more to say about a thread."""


@dataclass(frozen=True, slots=True)
class Form:
    """How threads are written."""

    dialect: str
    as_policy: str | None
    trajectories: bool
    """A line a decision."""


class Lines:
    """Writes threads, and says what is lost of each."""

    def __init__(self, ledger: Ledger, form: Form, *, is_only_one: bool) -> None:
        self._ledger = ledger
        self._form = form
        self._is_only_one = is_only_one
        self._told: set[str] = set()

    @property
    def is_lossy(self) -> bool:
        """Whether anything could not be said so far."""
        return bool(self._told)

    async def of(self, thread: ThreadSummary) -> AsyncIterator[bytes]:
        """Yield the lines of a thread."""
        if self._form.dialect == "house" and not self._form.trajectories:
            async for line in self._house(thread):
                yield line
            return
        conversation = _within(thread, await self._ledger.replay(thread.thread_id))
        found = self._decisions(thread, conversation) if self._form.trajectories else [self._encoded(thread, conversation)]
        for value in found:
            yield write(value) + b"\n"

    async def _house(self, thread: ThreadSummary) -> AsyncIterator[bytes]:
        """Yield the bytes as they are stored; those that a branch shares, with the branch for their thread."""
        yield _HEADER
        async for record in self._ledger.read(thread.thread_id):
            message = record.message  # what is not one is not handed on
            is_own = message.thread_id == thread.thread_id
            yield (record.body if is_own else dumps(_message_within(thread, message))) + b"\n"

    def _decisions(self, thread: ThreadSummary, conversation: Conversation) -> Iterator[dict[str, Any]]:
        house = {id(message): orjson.Fragment(dumps(message)) for message in conversation}
        for each in conversation.transitions():
            about = {"thread_id": thread.thread_id, "step_num": each.step_num, "turn_id": each.turn_id}
            yield {**about, "is_complete": each.is_complete, **self._decision(thread, each, house)}

    def _decision(self, thread: ThreadSummary, each: Transition, house: dict[int, orjson.Fragment]) -> dict[str, Any]:
        if self._form.dialect != "house":
            # Calls and results are one: no provider's format has a call without its result, or the other way round.
            decision = Conversation([*each.actions, *each.results])
            return {"observation": self._encoded(thread, each.observation), "decision": self._encoded(thread, decision)}

        def written(messages: Iterable[Message]) -> list[orjson.Fragment]:
            return [house[id(message)] for message in messages]

        return {
            "observation": written(each.observation),
            "actions": written(each.actions),
            "results": written(each.results),
        }

    def _encoded(self, thread: ThreadSummary, conversation: Conversation) -> Any:
        try:
            encoded = encode(conversation, self._form.dialect, as_policy=self._form.as_policy)
        except DialectError as exc:
            fail(": ".join(filter(None, (thread.thread_id, exc.where, exc.reason))))
        # Hardly any format says which thread it is about; whoever exports one knows.
        losses = [loss for loss in encoded.losses if loss.what != "thread_id"]
        if losses:
            self._tell(thread.thread_id, losses)
        return encoded.value

    def _tell(self, name: str, losses: Sequence[Loss]) -> None:
        """Say what is lost: of one thread, all of it; of each of several, that there is something, and how to see it."""
        if name in self._told:
            return
        self._told.add(name)
        if self._is_only_one and not self._form.trajectories:
            report_losses(losses, self._form.dialect)
        else:
            note(f"{name}: {self._form.dialect} cannot say everything; export it alone with --to to see what is lost")


def _within(thread: ThreadSummary, conversation: Conversation) -> Conversation:
    return Conversation([_message_within(thread, message) for message in conversation])


def _message_within(thread: ThreadSummary, message: Message) -> Message:
    """Return a message as one of this thread; what a branch shares says that it is of another."""
    return message if message.thread_id == thread.thread_id else message.model_copy(update={"thread_id": thread.thread_id})
