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

__all__ = ["as_constructed", "work"]

_VOCABULARY = Vocabulary(
    message=Message,
    payloads={"parts": PartsPayload, "option_call": OptionCallPayload, "option_result": OptionResultPayload},
    parts={"text": TextPart, "media": MediaPart},
)


def work(case: Case) -> Work:
    """Dump what was loaded: its JSON values are parsed, which is the slow case."""
    return _stream(case) if case.is_stream else _singles(case)


def as_constructed(case: Case) -> Work:
    """Dump what was constructed: its JSON values are still text, because nobody has looked at them."""
    made = _construct(case)
    if case.is_stream:
        conversation = Conversation(made)
        return Work(_never, lambda: dumps(conversation), _never)
    return Work(_never, lambda: [dumps(each) for each in made], _never)


def _construct(case: Case) -> list[Message]:
    return [_VOCABULARY.build(said) for said in case.messages]


def _stream(case: Case) -> Work:
    data = dumps(Conversation(_construct(case)))
    loaded = loads(data, Conversation)
    return Work(lambda: Conversation(_construct(case)), lambda: dumps(loaded), lambda: loads(data, Conversation))


def _singles(case: Case) -> Work:
    lines = [dumps(each) for each in _construct(case)]
    loaded = [loads(line, Message) for line in lines]
    return Work(
        lambda: _construct(case),
        lambda: [dumps(each) for each in loaded],
        lambda: [loads(line, Message) for line in lines],
    )


def _never() -> None:
    raise NotImplementedError
