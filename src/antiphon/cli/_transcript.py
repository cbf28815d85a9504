"""A conversation as lines for people.

A result is shown under the call it answers, wherever it stands in the conversation. One that answers no call (an orphan, or
one too many) is shown where it stands, and says so; so does a call that has no result.

Words that people, models and tools said are quoted or stand after a label, and never begin a line of their own accord: so no
text can pass for a speaker, a call or a result.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from rich.filesize import decimal
from rich.text import Text

from antiphon.cli._screen import styled
from antiphon.messages import (
    Conversation,
    DataPart,
    ForeignPart,
    Kind,
    MediaPart,
    Message,
    OptionCallPayload,
    OptionResultPayload,
    Part,
    PartsPayload,
    ReasoningPart,
    TextPart,
    thaw,
)

__all__ = ["Line", "brief", "call_text", "gist", "steps_in", "transcript", "transcript_by_step"]

_SPEAKER, _ASIDE, _ODD, _BAD, _STEP = "bold cyan", "dim", "yellow", "bold red", "bold"
_SHORT = 100
"""Characters of a value that stands beside its label."""
_DATA_URL = re.compile(r'data:([\w.+-]+/[^,"\s]+|;base64),[\w+/=%.~-]{100,}', re.IGNORECASE)
"""One in a text or a value that is long enough to be in the way."""


@dataclass(frozen=True, slots=True)
class Line:
    """One thing to show; it may go on over several lines of the terminal."""

    level: int
    """How far it is indented: headings at 0, what is said at 1, results below their calls."""
    text: Text
    quoted: bool = False


def transcript(conversation: Conversation) -> Iterator[Line]:
    """Return a conversation as lines for people."""
    if conversation.tools:
        yield Line(0, styled(f"tools: {', '.join(tool.name for tool in conversation.tools)}", _ASIDE))
    if not conversation:
        yield Line(0, styled("(no messages)", _ASIDE))
    yield from [Line(0, Text())] * (bool(conversation.tools) and bool(conversation))
    yield from _lines(conversation, range(len(conversation)), _answers(conversation))


def transcript_by_step(conversation: Conversation) -> Iterator[Line]:
    """Return a conversation as lines for people, step by step, in the order in which the steps began.

    What is of no step stands where it was said. A call that is answered in another step has its result under it all the same.
    """
    if not conversation:
        yield Line(0, styled("(no messages)", _ASIDE))
    answers = _answers(conversation)
    for number, (step, positions) in enumerate(steps_in(conversation)):
        yield from [Line(0, Text())] * (number > 0)
        about = "no step" if step is None else f"step {step}"
        yield Line(0, styled(f"── {about}: {_counted(conversation, positions)}", _STEP))
        yield from (Line(line.level + 1, line.text, line.quoted) for line in _lines(conversation, positions, answers))


def steps_in(conversation: Conversation) -> list[tuple[int | None, list[int]]]:
    """Return the steps in the order in which they began, with the places of their messages; between them, what is of none."""
    found: list[tuple[int | None, list[int]]] = []
    steps: dict[int, list[int]] = {}
    for position, message in enumerate(conversation):
        step = message.step_num
        if step is None:
            if not found or found[-1][0] is not None:
                found.append((None, []))
            found[-1][1].append(position)
        elif step in steps:
            steps[step].append(position)
        else:
            steps[step] = [position]
            found.append((step, steps[step]))
    return found


def _counted(conversation: Conversation, positions: Sequence[int]) -> str:
    kinds = Counter(conversation[position].kind for position in positions)
    words: dict[Kind, str] = {"parts": "said", "option_call": "called", "option_result": "answered"}
    return ", ".join(f"{kinds[kind]} {word}" for kind, word in words.items() if kinds[kind])


def _answers(conversation: Conversation) -> dict[int, Message | None]:
    """Return the result of each call, by the place of the call."""
    return {position: conversation.answer_at(position) for position in range(len(conversation))}


def _lines(conversation: Conversation, positions: Sequence[int], answers: Mapping[int, Message | None]) -> Iterator[Line]:
    """Yield the messages at some places, each result under its call."""
    joined = {id(answer) for answer in answers.values()}
    last: Message | None = None
    for position in positions:
        message = conversation[position]
        if id(message) in joined:
            continue
        if last is None or not _goes_on(last, message):
            yield from [Line(0, Text())] * (last is not None)
            yield Line(0, _heading(message))
        yield from _body(conversation, message, answers[position])
        last = message


def gist(message: Message) -> Text:
    """Return a message as one line; here too, what was said stands behind a bar, so that it cannot pass for a call."""
    match message.payload:
        case PartsPayload(parts=parts):
            return _one_line(_parts(parts, 0)) or styled("(says nothing)", _ASIDE)
        case OptionCallPayload() as call:
            return styled(" ".join(f"calls {call.option_name} {_written(_given(call))}".split()))
        case OptionResultPayload() as outcome:  # pragma: no branch (there is no other)
            own = message.model_copy(update={"policy": outcome.option_name})  # who says it stands before the line
            name = f"{outcome.option_name} " if message.policy != outcome.option_name else ""
            shown = _one_line(_outcome(own, outcome, 0))
            return Text.assemble(styled(name), shown, style=_BAD if outcome.is_error else "")


def brief(value: Any, most: int = _SHORT) -> str:
    """Return a JSON value on one line: text as it is, anything else as JSON; of a long one, its beginning."""
    text = " ".join(_written(value).split())
    return text if len(text) <= most else f"{text[:most]}…"


def call_text(name: str, arguments: Mapping[str, Any]) -> str:
    """Return a call on one line, each argument as JSON, and of a long one its beginning."""
    given = (f"{key}={brief(json.dumps(thaw(value), ensure_ascii=False))}" for key, value in arguments.items())
    return f"{name}({', '.join(given)})"


def _one_line(lines: Iterator[Line]) -> Text:
    return styled(" ".join(word for line in lines for word in ("│ " * line.quoted + line.text.plain).split()))


def _goes_on(last: Message, message: Message) -> bool:
    """Whether two messages are one utterance, as `Conversation.turns` has it, or calls in a row."""
    if any(getattr(last, name) != getattr(message, name) for name in ("policy", "to", "lane", "turn_id", "step_num")):
        return False
    return message.turn_id is not None or message.step_num is not None or last.kind == message.kind == "option_call"


def _heading(message: Message) -> Text:
    about = [
        f"to {', '.join(message.to)}" if message.to else "",
        f"step {message.step_num}" if message.step_num is not None else "",
        message.lane if message.lane != "talk" else "",
        f"{message.created_at:%Y-%m-%d %H:%M:%S} UTC" if message.created_at is not None else "",
    ]
    aside = ", ".join(filter(None, about))
    return Text.assemble(styled(message.policy, _SPEAKER), styled(f" ({aside})" if aside else "", _ASIDE))


def _body(conversation: Conversation, message: Message, answer: Message | None) -> Iterator[Line]:
    match message.payload:
        case PartsPayload(parts=parts):
            yield from _parts(parts, 1)
            if not parts:
                yield Line(1, styled("(says nothing)", _ASIDE))
        case OptionCallPayload() as call:
            yield from _call(call, answer)
        case OptionResultPayload() as outcome:  # pragma: no branch (there is no other)
            known = conversation.call_of(message) is not None
            oddity = "one more result of" if known else "no call is here for this result of"
            yield Line(1, styled(f"{oddity} {outcome.option_name} (invocation {outcome.invocation_id})", _ODD))
            yield from _outcome(message, outcome, 2)


def _call(call: OptionCallPayload, answer: Message | None) -> Iterator[Line]:
    yield from _labelled(Text.assemble("calls ", styled(call.option_name, "bold")), _given(call), 1)
    if answer is not None and isinstance(answer.payload, OptionResultPayload):
        yield from _outcome(answer, answer.payload, 2)
    else:
        yield Line(2, styled("no result", _ODD))


def _given(call: OptionCallPayload) -> Any:
    """Return what an option was called with; where that is no JSON, as it was written."""
    return call.arguments_text if call.arguments_text is not None and not call.arguments else call.arguments


def _outcome(message: Message, outcome: OptionResultPayload, level: int) -> Iterator[Line]:
    by = f" (said by {message.policy})" if message.policy != outcome.option_name else ""
    if outcome.is_error:
        again = " (may be tried again)" if outcome.retryable else ""
        yield Line(level, styled(f"fails{by}: {outcome.error_type}: {outcome.error_message}{again}", _BAD))
        if outcome.result is not None:
            yield from _labelled(styled("details", _BAD), outcome.result, level)
    elif outcome.result is not None:
        yield from _labelled(styled(f"gives{by}"), outcome.result, level)
    else:
        yield Line(level, styled(f"gives{by}" if outcome.parts else f"gives{by} nothing"))
    yield from _parts(outcome.parts, level + 1)


def _parts(parts: tuple[Part, ...], level: int) -> Iterator[Line]:
    for part in parts:
        match part:
            case TextPart():
                yield from _text(part, level)
            case MediaPart():
                hint = f": {part.prompt_hint}" if part.prompt_hint else ""
                yield Line(level, styled(f"[{part.modality} {_short_url(part.url)}{hint}]", "magenta"))
            case ReasoningPart():
                yield Line(level, styled(f"[reasoning] {part.text or '(not shown by its provider)'}", "dim italic"))
            case DataPart():
                yield from _labelled(styled("[data]", "magenta"), part.data, level)
            case ForeignPart():  # pragma: no branch (there is no other)
                yield from _labelled(styled(f"[only in {part.dialect}]", "magenta"), part.value, level)


def _text(part: TextPart, level: int) -> Iterator[Line]:
    yield Line(level, styled(part.text), quoted=True)
    for citation in part.citations:
        named = (citation.title, citation.url, citation.source, citation.quote)
        yield Line(level, styled(f"[source: {', '.join(filter(None, named))}]", _ASIDE))


def _labelled(label: Text, value: Any, level: int) -> Iterator[Line]:
    """Say a value beside its label; a long one, below it."""
    short = _written(value)
    if len(short) <= _SHORT and "\n" not in short:
        yield Line(level, Text.assemble(label, " ", styled(short)))
        return
    yield Line(level, label)
    yield Line(level + 1, styled(_written(value, indent=2)), quoted=True)


def _written(value: Any, indent: int | None = None) -> str:
    """Return a JSON value as text, and text as it is."""
    text = value if isinstance(value, str) else json.dumps(thaw(value), ensure_ascii=False, indent=indent)
    return _DATA_URL.sub(lambda found: _short_url(found[0]), text)


def _short_url(url: str) -> str:
    """Return a URL as it is; of a `data:` URL, its size instead of its content."""
    if url[:5].lower() != "data:":
        return url
    kind, _, content = url.partition(",")
    is_base64 = kind.lower().endswith(";base64")
    return f"{kind},… {decimal(len(content.rstrip('=')) * 3 // 4 if is_base64 else len(content))}"
