"""What every dialect promises, as a check that its tests can call with real samples of its format."""

from __future__ import annotations

import copy
from collections.abc import Iterable, Iterator
from typing import Any, cast

from antiphon.dialects import Dialect, meaning
from antiphon.messages import Conversation, Message, PartsPayload, TextPart
from antiphon.messages._json import canonical

__all__ = ["check_dialect"]

_UNKNOWN = "x-not-known"


def check_dialect(dialect: Dialect, samples: Iterable[Any]) -> None:
    """Check what a dialect promises, on samples (parsed JSON) of its format.

    The same data comes back, without a loss; after an edit, all but the edited unit does; an unknown key is kept at every
    depth; the meaning survives without the dialect's own namespace; a longer history begins like a shorter one.

    Raises:
        AssertionError: a promise is broken; it says which, and on what.
    """
    for sample in samples:
        _check_same_data(dialect, sample, "the same data")
        for changed in _with_unknown_keys(sample):
            _check_same_data(dialect, changed, "an unknown key")
        _check_edits(dialect, sample)
        _check_meaning(dialect, sample)
        _check_prefixes(dialect, sample)


def _check_same_data(dialect: Dialect, sample: Any, what: str) -> None:
    encoded = dialect.encode(dialect.decode(copy.deepcopy(sample)))
    if canonical(encoded.value) != canonical(sample):
        raise AssertionError(f"{dialect.name} does not give back {what}: {sample!r} became {encoded.value!r}")
    if encoded.losses:
        raise AssertionError(f"{dialect.name} loses its own words: {encoded.losses}")


def _with_unknown_keys(sample: Any) -> Iterator[Any]:
    """Yield the sample with an unknown key in one object, for each object at any depth; then in all."""
    count = sum(1 for _ in _objects(sample))
    for chosen in (*range(count), None):
        changed = copy.deepcopy(sample)
        for index, each in enumerate(list(_objects(changed))):
            if chosen in (index, None):
                each[_UNKNOWN] = {"kept": [None]}
        yield changed


def _objects(value: Any) -> Iterator[dict[str, Any]]:
    children: Iterable[Any] = ()
    if isinstance(value, dict):
        yield (found := cast("dict[str, Any]", value))
        children = found.values()
    elif isinstance(value, list):
        children = cast("list[Any]", value)
    for child in children:
        yield from _objects(child)


def _check_edits(dialect: Dialect, sample: Any) -> None:
    """Change the words of one message after the other: no other unit may change, and the edited one keeps its keys."""
    before = dialect.decode(sample)
    units = _units(dialect.encode(before).value)
    for place, message in enumerate(before):
        if (edited := _edited(message)) is None:
            continue
        after = Conversation([*before[:place], edited, *before[place + 1 :]], tools=before.tools, metadata=before.metadata)
        changed = [
            (old, new)
            for old, new in zip(units, _units(dialect.encode(after).value), strict=True)
            if canonical(old) != canonical(new)
        ]
        if len(changed) != 1 or not changed[0][0].keys() <= changed[0][1].keys():
            raise AssertionError(f"{dialect.name}: an edit of message {message.id!r} changed more than itself: {changed!r}")


def _edited(message: Message) -> Message | None:
    match message.payload:
        case PartsPayload(parts=(TextPart(text=text) as part,)):
            payload = PartsPayload(parts=(part.model_copy(update={"text": text + " (edited)"}),))
            return message.model_copy(update={"payload": payload})
        case _:
            return None


def _units(value: Any) -> list[dict[str, Any]]:
    return cast("list[dict[str, Any]]", value if isinstance(value, list) else [value])


def _check_meaning(dialect: Dialect, sample: Any) -> None:
    """Take the dialect's own notes away: what is written from the core alone must mean the same."""
    conversation = dialect.decode(sample)
    bare = Conversation((_without(dialect.name, message) for message in conversation), tools=conversation.tools)
    again = dialect.decode(dialect.encode(bare).value)
    if meaning(again) != meaning(conversation):
        raise AssertionError(f"{dialect.name} keeps meaning in its namespace: {meaning(conversation)} became {meaning(again)}")


def _without(namespace: str, message: Message) -> Message:
    rest = {name: inner for name, inner in message.metadata.items() if name != namespace}
    return message.model_copy(update={"metadata": rest})


def _check_prefixes(dialect: Dialect, sample: Any) -> None:
    """Where no call is open, what is written of a beginning is the beginning of what is written."""
    conversation = dialect.decode(sample)
    whole = _units(dialect.encode(conversation).value)
    for end in range(len(conversation)):
        begun = conversation[:end]
        is_cut = begun.open_calls() or any(turn[-1] not in begun for turn in conversation.turns() if turn[0] in begun)
        if not is_cut and end:
            units = _units(dialect.encode(begun).value)
            if canonical(units) != canonical(whole[: len(units)]):
                raise AssertionError(f"{dialect.name}: the first {end} messages are written differently when more follow")
