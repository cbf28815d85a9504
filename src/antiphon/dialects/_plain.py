"""Plain histories: all said elsewhere, and every breath followed at once by the results of its calls.

Most histories are plain. Then nothing has to be put in order, joined as it was or restored, and after one look at the whole
(`plain_contents`) a format may write message after message in a single loop (its `write_plain`). All others are written the
long way, unit by unit. That makes the same of a plain history, but goes over the messages more often than the writing does.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

from antiphon.checks import is_left_out
from antiphon.checks._speech import same_breath
from antiphon.dialects._writing import BodyWriting
from antiphon.messages import Message, OptionResultPayload, Part, PartsPayload, TextPart
from antiphon.messages._model import EMPTY

__all__ = ["Content", "NotPlainError", "follows_words", "is_whole", "last_group", "only_text", "plain_contents", "words"]

Content: TypeAlias = dict[str, Any]
"""The fields of a payload as the model keeps them, JSON as text or parsed: to be read only."""


class NotPlainError(Exception):
    """A history must be written the long way."""


def plain_contents(messages: Sequence[Message], writing: BodyWriting) -> list[Content]:
    """Return the contents of a plain history, in which results show no parts and all ids are accepted.

    Raises:
        NotPlainError: it is not so.
    """
    try:
        contents, called = _in_order(messages, writing)
    except KeyError:
        raise NotPlainError from None
    if len(set(called)) != len(called) or not writing.aliases.accept(called):
        raise NotPlainError
    return contents


def _in_order(messages: Sequence[Message], writing: BodyWriting) -> tuple[list[Content], list[str]]:
    """Return the contents, and the ids that were called.

    Raises:
        KeyError: a result answers no call that waits for it.
        NotPlainError: the history is not plain for another reason.
    """
    contents: list[Content] = []
    called: list[str] = []
    waiting: set[str] = set()
    turn = policy = last = None
    for message in messages:
        fields = message.__dict__
        if fields["lane"] != "talk" or (fields["metadata"] is not EMPTY and not writing.is_from_elsewhere(message)):
            raise NotPlainError
        content = fields["payload"].__dict__
        kind = content["kind"]
        if kind == "option_result":
            waiting.remove(content["invocation_id"])
            if content["parts"]:
                raise NotPlainError
        elif kind == "option_call":
            if not waiting:
                turn, policy = fields["turn_id"], fields["policy"]
            elif last != kind or fields["turn_id"] != turn or fields["policy"] != policy:
                raise NotPlainError
            waiting.add(content["invocation_id"])
            called.append(content["invocation_id"])
        elif waiting:
            raise NotPlainError
        contents.append(content)
        last = kind
    if waiting:
        raise NotPlainError
    return contents, called


def only_text(content: Content) -> str | None:
    """Return what most words are: one text, with nothing noted on it; None if they are more."""
    parts = content["parts"]
    if len(parts) != 1 or type(parts[0]) is not TextPart:
        return None
    fields = parts[0].__dict__
    return fields["text"] if fields["metadata"] is EMPTY and not fields["citations"] else None


def words(message: Message, write: Callable[[Sequence[Message], BodyWriting], list[Any]], writing: BodyWriting) -> Any:
    """Return the unit of any words.

    Raises:
        NotPlainError: they say nothing, or a repair left out some of them.
    """
    if is_whole(message.parts) and (units := write((message,), writing)):
        (unit,) = units
        return unit
    raise NotPlainError


def is_whole(parts: Sequence[Part]) -> bool:
    """Whether a repair left none of the parts out."""
    return not any(map(is_left_out, parts))


def follows_words(call: Message, last: Message | None) -> bool:
    """Whether the message before a call is words that were said in one breath with it."""
    return last is not None and type(last.payload) is PartsPayload and same_breath(last, call)


def last_group(messages: Sequence[Message]) -> Sequence[Message]:
    """Return the messages of the last unit of a plain history: results of a breath, or words."""
    start = len(messages) - 1
    while start > 0 and type(messages[start].payload) is type(messages[start - 1].payload) is OptionResultPayload:
        start -= 1
    return messages[start:]
