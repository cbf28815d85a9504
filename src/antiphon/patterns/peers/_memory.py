"""PeerMemory: what a peer remembers of a thread, as a view over the ledger: nothing is stored twice, nothing can be changed.

In it, in the order in which it came to the peer: what it was told and asked, what it said, the tools that it called and what
they gave; whom it asked and what came back, as letters (in the place of the tool call by which it did that); and the messages
that others passed to it, which are the very ones, under their ids. A longer thread only adds to the end.
"""

from __future__ import annotations

from collections.abc import AsyncIterable, Iterator
from dataclasses import dataclass
from typing import Any

from antiphon.dialects import Encoded, encode, marsys
from antiphon.ledger import Ledger, Record
from antiphon.messages import (
    Conversation,
    JsonArray,
    JsonObject,
    Message,
    OptionCallPayload,
    OptionResultPayload,
)
from antiphon.patterns.peers._letters import as_known, dated, letter_of, marsys_form
from antiphon.patterns.peers._processors import for_model
from antiphon.patterns.peers._protocol import InvokePeer, address_of
from antiphon.patterns.peers._spec import INVOKE_AGENT

__all__ = ["PeerMemory", "run_of", "speaker_of"]


@dataclass(frozen=True)
class PeerMemory:
    """What a peer remembers of a thread, as it was when it was read."""

    name: str
    thread_id: str
    conversation: Conversation
    _ledger: Ledger

    @classmethod
    async def read(cls, ledger: Ledger, thread_id: str, name: str, *, before: int | None = None) -> PeerMemory:
        """Read it; `before` is the place in the thread up to which it goes.

        Raises:
            LedgerError: it cannot be read.
        """
        found = await _Remembering(name).all(ledger.read(thread_id, before=before))
        return cls(name, thread_id, Conversation(found), ledger)

    # ------------------------------------------------------------ looking

    def __len__(self) -> int:
        return len(self.conversation)

    def __iter__(self) -> Iterator[Message]:
        return iter(self.conversation)

    def by_id(self, id: str) -> Message | None:
        """Return the message of an id; None: it is not remembered."""
        return self.conversation.get(id)

    def last(self, count: int) -> tuple[Message, ...]:
        """Return the latest messages, at most so many."""
        return tuple(self.conversation[max(0, len(self) - count) :])

    def by_role(self, role: str) -> tuple[Message, ...]:
        """Return the messages of a role of MARSYS."""
        return tuple(message for message in self.conversation if _role(message) == role)

    async def search(self, text: str, *, limit: int = 20) -> tuple[Message, ...]:
        """Find messages that have all the words, the best first, as `Ledger.search` does.

        Raises:
            LedgerError: it cannot be searched.
        """
        rows = (await self._ledger.head(self.thread_id)).seq
        hits = await self._ledger.search(text, thread_id=self.thread_id, limit=max(1, rows))
        found = (self.by_id(as_known(hit.record.message).id) for hit in hits)
        return tuple(message for message in found if message is not None)[:limit]

    def window(self, count: int | None = None, *, tokens: int | None = None) -> Conversation:
        """Return the latest messages that fit, by number or by an estimate of tokens, and what the system said.

        No call is cut from its result, so it may be less than asked for.

        Raises:
            ValueError: not exactly one limit is given.
        """
        return self.conversation.window(count, tokens=tokens, keep=lambda message: _role(message) == "system")

    # ------------------------------------------------------------ giving

    def to(self, dialect: str, **options: Any) -> Encoded:
        """Return it in any dialect, as the peer sees it: its own words are the assistant's.

        Raises:
            DialectError: there is no such dialect, or something cannot be said.
        """
        return encode(self.conversation, dialect, as_policy=self.name, **options)

    def messages(self) -> list[marsys.Message]:
        """Return it as MARSYS has it."""
        return marsys_form(self.conversation)

    def to_llm_format(self) -> list[dict[str, Any]]:
        """Return it in roles that every provider knows; the results of a turn stand directly after it."""
        return list(_with_results([for_model(self.name, message) for message in self.messages()]))


def _with_results(messages: list[dict[str, Any]]) -> Iterator[dict[str, Any]]:
    """Yield messages, each result behind the turn that called: what the peer asked another in that turn stands after it."""
    results = _results_of_turns(messages)
    moved = {place for places in results.values() for place in places}
    for place, message in enumerate(messages):
        if place in moved:
            continue
        if "tool_call_id" in message:  # a provider refuses a result whose call it is not told
            yield {"role": "user", "content": f"[Result of {message.get('name')}]: {message['content']}"}
            continue
        yield message
        yield from (messages[each] for each in results.get(place, ()))


def _results_of_turns(messages: list[dict[str, Any]]) -> dict[int, list[int]]:
    """Return, by the place of a turn that calls tools, the places of the results, in the order of the calls.

    A model may use an id again in a later turn: a result belongs to the latest turn before it that has no result of this id.
    """
    waiting: dict[str, list[tuple[int, int]]] = {}
    found: dict[int, dict[int, int]] = {}
    for place, message in enumerate(messages):
        for number, call in enumerate(message.get("tool_calls", ())):
            waiting.setdefault(call["id"], []).append((place, -number))
        if called := waiting.get(message.get("tool_call_id", "")):
            turn, number = max(called)
            called.remove((turn, number))
            found.setdefault(turn, {})[-number] = place
    return {turn: [places[number] for number in sorted(places)] for turn, places in found.items()}


class _Remembering:
    """Goes through a thread, and picks what came to one peer."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._address = address_of(name)
        self._seen: dict[str, Message] = {}
        """What may be passed to it: everything that was said before."""
        self._found: dict[str, Message] = {}
        self._instructed: Message | None = None

    async def all(self, records: AsyncIterable[Record]) -> list[Message]:
        async for record in records:
            self._take(dated(record))
        return list(self._found.values())

    def _take(self, message: Message) -> None:
        if message.lane == "talk":
            self._seen[message.id] = message
            if self._is_own(message) and not self._is_known(message):
                self._found[message.id] = message
        elif message.lane == "control" and self._address in message.to:
            for each in _passed(message):
                if (passed := self._seen.get(each)) is not None:
                    self._found.setdefault(each, passed)

    def _is_own(self, message: Message) -> bool:
        if (letter := letter_of(message)) is not None:
            return letter.caller == self._name
        return speaker_of(message) == self._name and _option(message) != INVOKE_AGENT

    def _is_known(self, message: Message) -> bool:
        """Whether these are the instructions that the peer has: where others speak in between, they are said again."""
        if message.policy != "system":
            return False
        before, self._instructed = self._instructed, message
        return before is not None and before.parts == message.parts


def _passed(message: Message) -> tuple[str, ...]:
    """Return the ids of what an invocation passes on."""
    payload = message.payload
    if not isinstance(payload, OptionCallPayload) or payload.option_name != InvokePeer.message_type:
        return ()
    given = payload.arguments.get("context_message_ids")
    return tuple(str(each) for each in given) if isinstance(given, JsonArray) else ()


def run_of(message: Message) -> str:
    """Return the run of an agent in which something was said: the exchange with a model names it, before its last step."""
    exchange = message.correlation_id or ""
    return exchange.removesuffix("@end") if exchange.endswith("@end") else exchange.rpartition("/")[0]


def speaker_of(message: Message) -> str:
    """Return the agent in whose run something was said."""
    return run_of(message).rpartition("/")[2].partition("=")[0]


def _option(message: Message) -> str | None:
    payload = message.payload
    return payload.option_name if isinstance(payload, OptionCallPayload | OptionResultPayload) else None


def _role(message: Message) -> str:
    notes = message.metadata.get("marsys")
    if isinstance(notes, JsonObject) and isinstance(role := notes.get("role"), str):
        return role
    match message.kind:
        case "option_call":
            return "assistant"
        case "option_result":
            return "tool"
        case _:
            return message.role_hint_for_llm or "user"
