"""A thread as JSON Lines: messages of the house format, one value of a dialect, or decisions to learn from."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from antiphon.cli._output import report_losses
from antiphon.cli._screen import fail, note
from antiphon.dialects import Loss, encode
from antiphon.errors import DialectError
from antiphon.messages import Conversation, Message, dumps
from antiphon.messages.json_values import write

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
        if self._form.trajectories:
            async for value in self._decisions(thread):
                yield write(value) + b"\n"
        elif self._form.dialect == "house":
            async for line in self._house(thread):
                yield line
        else:
            conversation = await self._ledger.replay(thread.thread_id)
            yield write(self._encoded(thread, [_within(thread, message) for message in conversation])) + b"\n"

    async def _house(self, thread: ThreadSummary) -> AsyncIterator[bytes]:
        """Yield the bytes as they are stored; those that a branch shares, with the branch for their thread."""
        yield _HEADER
        async for record in self._ledger.read(thread.thread_id):
            message = record.message  # what is not one is not handed on
            is_own = message.thread_id == thread.thread_id
            yield (record.body if is_own else dumps(_within(thread, message))) + b"\n"

    async def _decisions(self, thread: ThreadSummary) -> AsyncIterator[dict[str, Any]]:
        """Yield what `export_transitions` gives; in a provider's words, if its dialect is asked for."""
        from antiphon.patterns.decisions import decisions_of, export_transitions  # noqa: PLC0415 (only where it is used)

        if self._form.dialect == "house":
            async for plain in export_transitions(self._ledger, thread.thread_id):
                yield plain
            return
        for each in await decisions_of(self._ledger, thread.thread_id):
            # Calls and results are one: no provider's format has a call without its result, or the other way round.
            decision = self._encoded(thread, [*each.actions, *each.results])
            observations = self._encoded(thread, each.observations)
            yield {**each.labels(), "observations": observations, "decision": decision, "reward": each.reward}

    def _encoded(self, thread: ThreadSummary, messages: Iterable[Message]) -> Any:
        try:
            encoded = encode(Conversation(messages), self._form.dialect, as_policy=self._form.as_policy)
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


def _within(thread: ThreadSummary, message: Message) -> Message:
    """Return a message as one of this thread; what a branch shares says that it is of another."""
    return message if message.thread_id == thread.thread_id else message.model_copy(update={"thread_id": thread.thread_id})
