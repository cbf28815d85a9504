"""antiphon: the public constructors, `dumps` and `loads`, with every check on."""

from __future__ import annotations

from antiphon import (
    Conversation,
    MediaPart,
    Message,
    OptionCallPayload,
    OptionResultPayload,
    PartsPayload,
    TextPart,
    dumps,
    loads,
)
from benchmarks._messages import Case
from benchmarks.peers._work import Vocabulary, Work

__all__ = ["construct", "looked_at", "work"]

_VOCABULARY = Vocabulary(
    message=Message,
    payloads={"parts": PartsPayload, "option_call": OptionCallPayload, "option_result": OptionResultPayload},
    parts={"text": TextPart, "media": MediaPart},
)


def work(case: Case) -> Work:
    """Dump what was loaded: its arguments and results are text still, because nobody has looked at them."""
    return _stream(case) if case.is_stream else _singles(case)


def looked_at(case: Case) -> Work:
    """Dump what somebody has looked at: its JSON values are parsed, which is the slow case."""
    made = construct(case)
    for message in made:
        repr(message)
    if case.is_stream:
        conversation = Conversation(made)
        return Work(_never, lambda: dumps(conversation), _never)
    return Work(_never, lambda: [dumps(each) for each in made], _never)


def construct(case: Case) -> list[Message]:
    """Make the case's messages."""
    return [_VOCABULARY.build(said) for said in case.messages]


def _stream(case: Case) -> Work:
    data = dumps(Conversation(construct(case)))
    loaded = loads(data, Conversation)
    return Work(lambda: Conversation(construct(case)), lambda: dumps(loaded), lambda: loads(data, Conversation))


def _singles(case: Case) -> Work:
    lines = [dumps(each) for each in construct(case)]
    loaded = [loads(line, Message) for line in lines]
    return Work(
        lambda: construct(case),
        lambda: [dumps(each) for each in loaded],
        lambda: [loads(line, Message) for line in lines],
    )


def _never() -> None:
    raise NotImplementedError
