"""AP6xx: media and limits. Which media are allowed where, in which form, and how much."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, cast

from antiphon.checks._findings import is_left_out, mentions, own_block, with_parts, without_keys
from antiphon.checks._rule import CheckRule, Edits, Trouble, rewrite
from antiphon.checks._targets import Accepted
from antiphon.checks._view import View
from antiphon.messages import MediaPart, OptionCallPayload, Part, TextPart, thaw
from antiphon.messages._content import Metadata
from antiphon.messages._log import payload_size

_CACHE_MARK = "cache_control"


_SOUND_ENDINGS = frozenset({"aac", "flac", "m4a", "mp3", "ogg", "opus", "wav"})


# ---------------------------------------------------------------- media


def _media(view: View) -> Iterator[tuple[int, MediaPart, Accepted | None]]:
    for position in view.shown:
        accepted = view.accepted.media.get(view.sides[position], {})
        for _, part in view.parts(position):
            if isinstance(part, MediaPart):
                yield position, part, accepted.get(part.modality)


def _misplaced_media(view: View) -> Iterator[Trouble]:
    for position, part, accepted in _media(view):
        if accepted is None:
            place = "a result" if view.sides[position] == "result" else f"what the {view.sides[position]} says"
            yield Trouble(position, f"{part.modality} is not accepted in {place}", view.severity(position))


def _unreadable_media(view: View) -> Iterator[Trouble]:
    for position, part, accepted in _media(view):
        reason = None if accepted is None else _why_not(part, accepted) or _why_no_file(view, part)
        if reason is not None:
            yield Trouble(position, reason, view.severity(position))


def _why_not(part: MediaPart, accepted: Accepted) -> str | None:
    scheme = part.url.partition(":")[0].lower()
    if scheme not in accepted.schemes:
        return f"{part.modality} is not accepted as a {scheme} URL"
    mime = (part.mime or part.url[5:].partition(",")[0].partition(";")[0]).lower()
    if scheme == "data" and accepted.mimes is not None and mime and mime not in accepted.mimes:
        return f"{part.modality} of type {mime!r} is not accepted"
    return None


def _why_no_file(view: View, part: MediaPart) -> str | None:
    """Return why a file without a type is refused: by its name it is audio, which must be given in another form."""
    name = part.file_name or part.prompt_hint or part.url.partition("?")[0].rpartition("/")[2]
    is_sound = name.rpartition(".")[2].lower() in _SOUND_ENDINGS
    is_file = view.accepted.name == "openai-responses" and part.modality == "document"
    return f"the file {name!r} is audio, which is not accepted as a file" if is_file and is_sound else None


def _strange_files(view: View) -> Iterator[Trouble]:
    for position, part, accepted in _media(view):
        scheme, _, rest = part.url.partition(":")
        owner = rest.partition(":")[0].lower()
        is_file = scheme.lower() == "urn" and accepted is not None and "urn" in accepted.schemes
        if is_file and not view.is_native(position) and not owner.startswith(view.accepted.files):
            yield Trouble(position, f"the file is held by {owner!r}, not by the target")


_release = rewrite("it is rewritten from the core, in an accepted form or position")


# ---------------------------------------------------------------- limits


def _too_many(view: View) -> Iterator[Trouble]:
    accepted = view.accepted
    counts = (
        ("messages", len(view.shown), accepted.most_messages),
        ("tools", len(view.conversation.tools), accepted.most_tools),
    )
    for what, count, most in counts:
        if most is not None and count > most:
            yield Trouble(None, f"{count} {what} are more than {most}")


def _long_texts(view: View) -> Iterator[Trouble]:
    longest = view.accepted.longest_text
    for position in view.shown if longest is not None else ():
        lengths = [len(part.text) for _, part in view.parts(position) if isinstance(part, TextPart)]
        if (length := max(lengths, default=0)) > cast("int", longest):
            yield Trouble(position, f"a text of {length} characters is longer than {longest}")


def _large_requests(view: View) -> Iterator[Trouble]:
    largest = view.accepted.largest_request
    size = sum(payload_size(message) for _, message in view)
    if largest is not None and size > largest:
        yield Trouble(None, f"the messages are about {size} bytes, more than {largest}")


# ---------------------------------------------------------------- cache marks


def _marks(view: View, metadata: Metadata) -> int:
    return mentions(metadata.get(view.accepted.name), _CACHE_MARK)


def _marks_of(view: View, position: int) -> int:
    parts = [part for _, part in view.parts(position)]
    noted = sum(_marks(view, holder.metadata) for holder in (view.messages[position], *parts))
    return noted + sum(mentions(own_block(part, view.accepted.name), _CACHE_MARK) for part in parts)


def _too_many_marks(view: View) -> Iterator[Trouble]:
    most = view.accepted.most_cache_marks
    count = _marks(view, view.conversation.metadata) + sum(_marks_of(view, position) for position in view.shown)
    if most is not None and count > most:
        yield Trouble(None, f"{count} cache breakpoints are more than {most}", related=(count - most,))


def _erase_marks(view: View, trouble: Trouble, edits: Edits) -> str:
    """Remove the first marks, so that the last, which cover most, stay; marks of tools and instructions are removed last."""
    surplus = remaining = trouble.related[0]
    for position in view.shown:
        if view.sides[position] != "system":
            remaining = _erase_marks_of(view, position, remaining, edits)
    edits.metadata, remaining = _without_marks(view, edits.metadata, remaining)
    for position in view.shown:
        if view.sides[position] == "system":
            remaining = _erase_marks_of(view, position, remaining, edits)
    return f"{surplus} cache breakpoints are not written, those of messages first"


def _erase_marks_of(view: View, position: int, remaining: int, edits: Edits) -> int:
    message = view.messages[position]
    if not remaining or not _marks_of(view, position):
        return remaining
    metadata, remaining = _without_marks(view, message.metadata, remaining)
    edits.update(position, metadata=metadata)
    parts: list[Any] = []
    for part in message.parts:
        unmarked, remaining = (part, remaining) if is_left_out(part) else _unmarked(view, part, remaining)
        parts.append(unmarked)
    if not isinstance(message.payload, OptionCallPayload):
        edits.update(position, payload=with_parts(message, tuple(parts)).payload)
    return remaining


def _unmarked(view: View, part: Part, remaining: int) -> tuple[Part, int]:
    """Return a part without its marks; a block that only the format can express contains them."""
    metadata, remaining = _without_marks(view, part.metadata, remaining)
    update: dict[str, Any] = {"metadata": metadata}
    if own_block(part, view.accepted.name):
        update["value"], remaining = without_keys(thaw(own_block(part, view.accepted.name)), _CACHE_MARK, remaining)
    return part.model_copy(update=update), remaining


def _without_marks(view: View, metadata: Metadata, remaining: int) -> tuple[dict[str, Any], int]:
    plain = thaw(metadata)
    if view.accepted.name in plain:
        plain[view.accepted.name], remaining = without_keys(plain[view.accepted.name], _CACHE_MARK, remaining)
    return plain, remaining


MEDIA = (
    CheckRule(
        code="AP601",
        title="a medium is in a position where it is not accepted",
        why="Formats differ in which messages may contain media. A dialect moves the medium, or replaces it by a description.",
        hint="Let the dialect rewrite it: it moves a medium of a result into a user message after all results.",
        find=_misplaced_media,
        mend=_release,
        targets=("openai-chat", "openai-responses", "anthropic-messages", "gemini", "pydantic-ai"),
        is_eased=True,
    ),
    CheckRule(
        code="AP602",
        title="a medium is given in a form that is not accepted",
        why="Formats differ in the media types that they accept, and in whether they accept URLs or bytes.",
        hint="Convert the medium, or let the dialect rewrite it as a description.",
        find=_unreadable_media,
        mend=_release,
        targets=("openai-chat", "openai-responses", "anthropic-messages", "gemini", "pydantic-ai"),
        is_eased=True,
    ),
    CheckRule(
        code="AP603",
        title="a file is held by another provider",
        why="The id of an uploaded file is only valid for the provider that stores it.",
        hint="Upload the file to the target, or send its URL or its bytes.",
        find=_strange_files,
        severity="warning",
        targets=("openai-chat", "openai-responses", "anthropic-messages", "gemini"),
    ),
    CheckRule(
        code="AP606",
        title="there are too many cache breakpoints",
        why="A request may have at most four, including those of tools and instructions.",
        hint="Keep four: those of tools and instructions, and the last of the others.",
        find=_too_many_marks,
        mend=_erase_marks,
        targets=("anthropic-messages",),
    ),
    CheckRule(
        code="AP604",
        title="there are too many messages or tools",
        why="Limits differ by model and account. `repair` cannot know which messages and tools to remove.",
        hint="Declare fewer tools, and send a window of the messages: it never separates a call from its result.",
        find=_too_many,
        severity="warning",
        targets=("openai-chat", "openai-responses", "anthropic-messages"),
    ),
    CheckRule(
        code="AP605",
        title="a text is too long",
        why="Limits differ by model and account.",
        hint="Send a shorter text, or the content as a file.",
        find=_long_texts,
        severity="warning",
        targets=("openai-chat", "openai-responses"),
    ),
    CheckRule(
        code="AP607",
        title="the request is too large",
        why="Media in `data:` URLs are sent again with every request.",
        hint="Upload large media, use URLs, or send a window of the messages.",
        find=_large_requests,
        severity="warning",
        targets=("anthropic-messages", "gemini"),
    ),
)
"""In the order of repair."""
