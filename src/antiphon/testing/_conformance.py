"""The promises of every dialect, as a check that takes real samples of its format. `_ledger.py` has those of ledgers."""

from __future__ import annotations

import copy
from collections.abc import Iterable, Iterator
from itertools import zip_longest
from typing import Any, cast

from antiphon.dialects import Dialect, Encoded, get, meaning, names
from antiphon.messages import Conversation, Message, PartsPayload, TextPart
from antiphon.messages._json_values import canonical

_UNKNOWN = "x-not-known"
_EDIT = " (edited)"
_MARK = "known-to-nobody"


def check_dialect(dialect: Dialect, samples: Iterable[Any]) -> None:
    """Check the promises of a dialect on samples (parsed JSON) of its format.

    A round trip returns the same data without a loss. After an edit, only the edited unit differs. Unknown keys are kept at
    every depth. The meaning survives without the dialect's own namespace. A longer history begins like a shorter one. In every
    other dialect that antiphon has, an error stays an error or is reported, and so is a key that nobody knows.

    Raises:
        AssertionError: a promise is broken; the text names it, with the sample.
    """
    for sample in samples:
        _check_same_data(dialect, sample, "the same data")
        for changed in _with_unknown_keys(sample):
            _check_same_data(dialect, changed, "an unknown key")
        _check_edits(dialect, sample)
        _check_meaning(dialect, sample)
        _check_prefixes(dialect, sample)
        _check_others(dialect, sample)


def _check_same_data(dialect: Dialect, sample: object, what: str) -> None:
    encoded = dialect.encode(dialect.decode(copy.deepcopy(sample)))
    if canonical(encoded.value) != canonical(sample):
        raise AssertionError(f"{dialect.name} does not give back {what}: {sample!r} became {encoded.value!r}")
    if encoded.losses:
        raise AssertionError(f"{dialect.name} loses its own words: {encoded.losses}")


def _with_unknown_keys(sample: object) -> Iterator[Any]:
    """Yield the sample with an unknown key in one object, for each object at any depth; then in all."""
    count = sum(1 for _ in _objects(sample))
    for target in (*range(count), None):
        changed = copy.deepcopy(sample)
        for index, box in enumerate(list(_objects(changed))):
            if target in (index, None):
                box[_UNKNOWN] = {"kept": [None]}
        yield changed


def _check_others(dialect: Dialect, sample: object) -> None:
    """Write a sample in every other format: purposes, the user's metadata and unknown keys are there, or reported as lost."""
    changed = copy.deepcopy(sample)
    for unit in cast("list[Any]", changed) if isinstance(changed, list) else ():
        if isinstance(unit, dict):
            unit[_UNKNOWN] = _MARK
    conversation = dialect.decode(changed)
    bare = Conversation(message.model_copy(update={"metadata": {}}) for message in conversation)
    for target in map(get, names()):
        if target.name in ("house", dialect.name):
            continue
        encoded = target.encode(conversation)
        text = str(encoded.value)
        lost = {(loss.message_id, loss.what) for loss in encoded.losses}
        read = [facets for facets in meaning(_decoded(target, encoded)) if facets]
        shown = [message for message in conversation if message.lane != "effect"]
        for message, facets, plain in zip(shown, meaning(conversation), meaning(bare), strict=True):
            if (message.id, "message") in lost:
                continue
            for what in ("purpose", "metadata"):
                value = facets.get(what)
                is_there = value == plain.get(what) or any(facets_back.get(what) == value for facets_back in read)
                if not is_there and (message.id, what) not in lost:
                    raise AssertionError(f"{target.name} drops {what} of {message.id!r} of {dialect.name} without a loss")
            unknown = _MARK in str(message.metadata.get(dialect.name, "")) and _MARK not in text
            if unknown and (message.id, "extras") not in lost:
                raise AssertionError(f"{target.name} drops {_UNKNOWN!r} of {message.id!r} of {dialect.name} without a loss")


def _objects(value: object) -> Iterator[dict[str, Any]]:
    children: Iterable[Any] = ()
    if isinstance(value, dict):
        yield (box := cast("dict[str, Any]", value))
        children = box.values()
    elif isinstance(value, list):
        children = cast("list[Any]", value)
    for child in children:
        yield from _objects(child)


def _check_edits(dialect: Dialect, sample: object) -> None:
    """Change the text of one message after the other: nothing else may change."""
    before = dialect.decode(sample)
    value = dialect.encode(before).value
    for place, message in enumerate(before):
        if (edited := _edited(message)) is None:
            continue
        after = Conversation([*before[:place], edited, *before[place + 1 :]], tools=before.tools, metadata=before.metadata)
        changed = list(_changes(value, dialect.encode(after).value))
        if len(changed) != 1 or not str(changed[0][1]).endswith(_EDIT):
            raise AssertionError(f"{dialect.name}: an edit of message {message.id!r} changed more than itself: {changed!r}")


def _changes(one: Any, other: Any) -> Iterator[tuple[Any, Any]]:
    """Yield the innermost values in which two JSON values differ."""
    if isinstance(one, dict) and isinstance(other, dict):
        ours, theirs = cast("dict[str, Any]", one), cast("dict[str, Any]", other)
        for key in dict.fromkeys((*ours, *theirs)):
            yield from _changes(ours.get(key), theirs.get(key))
    elif isinstance(one, list) and isinstance(other, list):
        for mine, yours in zip_longest(cast("list[Any]", one), cast("list[Any]", other)):
            yield from _changes(mine, yours)
    elif canonical(one) != canonical(other):
        yield one, other


def _edited(message: Message) -> Message | None:
    """Return a message with one of its texts changed; None if it has none."""
    if not isinstance(message.payload, PartsPayload):
        return None
    parts = list(message.parts)
    for place, part in enumerate(parts):
        if isinstance(part, TextPart):
            parts[place] = part.model_copy(update={"text": part.text + _EDIT})
            return message.model_copy(update={"payload": PartsPayload(parts=tuple(parts))})
    return None


def _check_meaning(dialect: Dialect, sample: object) -> None:
    """Remove the dialect's own metadata: the output must mean the same without it, or a loss must be reported."""
    conversation = dialect.decode(sample)
    messages: list[Message] = []
    for message in conversation:
        namespaces = {name: notes for name, notes in message.metadata.items() if name != dialect.name}
        messages.append(message.model_copy(update={"metadata": namespaces}))
    bare = Conversation(messages, tools=conversation.tools)
    encoded = dialect.encode(bare)
    lost = {(loss.message_id, loss.what) for loss in encoded.losses}
    written = Conversation(message for message in bare if (message.id, "message") not in lost)
    before, after = meaning(written), meaning(_without_added(_decoded(dialect, encoded), written, lost))
    if len(before) != len(after):
        raise AssertionError(f"{dialect.name} keeps messages in its namespace: of {len(before)} came {len(after)} back")
    for message, ours, theirs in zip(written, before, after, strict=True):
        for facet in {*ours, *theirs}:
            if ours.get(facet) != theirs.get(facet) and (message.id, facet) not in lost:
                raise AssertionError(
                    f"{dialect.name} keeps {facet} of {message.id!r} in its namespace: {ours} became {theirs}"
                )


def _without_added(back: Conversation, written: Conversation, lost: set[tuple[str | None, str]]) -> Conversation:
    """Remove messages that were only added because the format requires another message before one."""
    messages = iter(back)
    for message in written:
        if (message.id, "added") in lost:
            added = next(messages, None)
            back = Conversation(message for message in back if message is not added)
        next(messages, None)
    return back


def _decoded(dialect: Dialect, encoded: Encoded) -> Conversation:
    """Decode the output; a dialect without aliases need not accept them."""
    return dialect.decode(encoded.value, aliases=encoded.aliases) if encoded.aliases else dialect.decode(encoded.value)


def _check_prefixes(dialect: Dialect, sample: object) -> None:
    """Check that the output of a shorter history is a prefix of the output of the longer one, if no call or unit is cut."""
    conversation = dialect.decode(sample)
    full = dialect.encode(conversation).value
    for end in range(1, len(conversation)):
        begun = conversation[:end]
        if not _is_cut(conversation, begun, dialect.name) and not _begins(full, dialect.encode(begun).value):
            raise AssertionError(f"{dialect.name}: the first {end} messages are written differently when more follow")


def _is_cut(conversation: Conversation, begun: Conversation, name: str) -> bool:
    """Whether the prefix cuts a call from its result, or splits a turn or a unit of the format."""
    if begun.open_calls() or conversation[len(begun)].metadata.get(name, {}).get("joined"):
        return True
    return any(turn[-1] not in begun for turn in conversation.turns() if turn[0] in begun)


def _begins(full: Any, begun: Any) -> bool:
    """Whether a list begins with another, or an object does in each of its keys."""
    if isinstance(full, dict) and isinstance(begun, dict):
        ours, theirs = cast("dict[str, Any]", full), cast("dict[str, Any]", begun)
        return theirs.keys() <= ours.keys() and all(_begins(ours[key], value) for key, value in theirs.items())
    if isinstance(full, list) and isinstance(begun, list):
        return canonical(cast("list[Any]", full)[: len(cast("list[Any]", begun))]) == canonical(begun)
    return canonical(full) == canonical(begun)
