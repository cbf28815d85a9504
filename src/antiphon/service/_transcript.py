"""A conversation as lines for people: text, and the kind of each piece, which a terminal or a page styles.

A result is placed under the call that it answers, wherever it stands in the conversation. A result that answers no call (an
orphan, or a second one) stays in its place and says so, and so does a call without a result.

Text of people, models and tools is quoted or follows a label, and never starts a line by itself. So no text can pass for a
speaker, a call or a result. Control and invisible characters are replaced by their numbers, `⟨U+202E⟩`.
"""

from __future__ import annotations

import json
import re
import unicodedata
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any, Final, Literal, TypeAlias, cast

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
from antiphon.messages._names import HIDDEN
from antiphon.protocol import PHASES, ProcessPhase, ThreadResult
from antiphon.runtime._rows import APPROVE, notice_in

Tone: TypeAlias = Literal["plain", "speaker", "aside", "odd", "bad", "heading", "media", "reasoning"]
"""The kind of a piece: the speaker, a remark of antiphon, something unusual, an error, a heading, media, reasoning."""

_SHORT: Final = 100
"""Characters of a value that is printed beside its label."""
_SENTENCE: Final = 160
"""Characters of a value that is one item of a list."""
_VERBS: Final[dict[Kind, str]] = {"parts": "said", "option_call": "called", "option_result": "answered"}
_DATA_URL = re.compile(r'data:([\w.+-]+/[^,"\s]+|;base64),[\w+/=%.~-]{100,}', re.IGNORECASE)
"""A long `data:` URL in a text or a value; its size is shown instead."""


@dataclass(frozen=True, slots=True)
class LinePiece:
    """A piece of text, and its kind."""

    text: str
    tone: Tone = "plain"


@dataclass(frozen=True, slots=True)
class TranscriptLine:
    """A line of a transcript; long text takes several lines of a terminal."""

    level: int
    """How far it is indented: headings at 0, messages at 1, results below their calls."""
    pieces: tuple[LinePiece, ...] = ()
    quoted: bool = False
    """Whether it is text of a message."""

    @property
    def text(self) -> str:
        return "".join(piece.text for piece in self.pieces)


def transcript(conversation: Conversation) -> Iterator[TranscriptLine]:
    """Yield a conversation as lines for people."""
    if conversation.tools:
        yield _line(0, f"tools: {', '.join(tool.name for tool in conversation.tools)}", "aside")
    if not conversation:
        yield _line(0, "(no messages)", "aside")
    yield from [TranscriptLine(0)] * (bool(conversation.tools) and bool(conversation))
    yield from _lines(conversation, range(len(conversation)), _answers(conversation))


def transcript_by_step(conversation: Conversation) -> Iterator[TranscriptLine]:
    """Yield a conversation as lines for people, step by step, in the order in which the steps began.

    Messages without a step stay in place. A result is under its call, even if it belongs to another step.
    """
    if not conversation:
        yield _line(0, "(no messages)", "aside")
    answers = _answers(conversation)
    for number, (step, positions) in enumerate(steps_in(conversation)):
        yield from [TranscriptLine(0)] * (number > 0)
        title = "no step" if step is None else f"step {step}"
        kinds = Counter(conversation[position].kind for position in positions)
        counts = ", ".join(f"{kinds[kind]} {verb}" for kind, verb in _VERBS.items() if kinds[kind])
        yield _line(0, f"── {title}: {counts}", "heading")
        yield from (replace(line, level=line.level + 1) for line in _lines(conversation, positions, answers))


def steps_in(conversation: Conversation) -> list[tuple[int | None, list[int]]]:
    """Return the steps in the order in which they began, each with the positions of its messages.

    Runs of messages without a step stand between them, with None as their step.
    """
    groups: list[tuple[int | None, list[int]]] = []
    steps: dict[int, list[int]] = {}
    for position, message in enumerate(conversation):
        step = message.step_num
        if step is None:
            if not groups or groups[-1][0] is not None:
                groups.append((None, []))
            groups[-1][1].append(position)
        elif step in steps:
            steps[step].append(position)
        else:
            steps[step] = [position]
            groups.append((step, steps[step]))
    return groups


def in_one_line(message: Message) -> tuple[LinePiece, ...]:
    """Return a message as one line. A bar precedes its text, so that no text looks like a call."""
    match message.payload:
        case PartsPayload(parts=parts):
            text = _joined(_parts(parts, 0))
            return (LinePiece(text),) if text else (LinePiece("(says nothing)", "aside"),)
        case OptionCallPayload() as call:
            return (LinePiece(" ".join(visible_lines(f"calls {call.option_name} {_written(_arguments(call))}").split())),)
        case OptionResultPayload() as outcome:  # pragma: no branch (there is no other)
            unlabelled = message.model_copy(update={"policy": outcome.option_name})  # the speaker is printed before the line
            name = f"{outcome.option_name} " if message.policy != outcome.option_name else ""
            return (
                LinePiece(
                    visible_lines(name) + _joined(_outcome(unlabelled, outcome, 0)), "bad" if outcome.is_error else "plain"
                ),
            )


def brief(value: Any, most: int = _SHORT) -> str:
    """Return a JSON value on one line: text as it is, anything else as JSON; a long one is cut."""
    text = " ".join(_written(value).split())
    return text if len(text) <= most else f"{text[:most]}…"


def outcome_text(value: Any, most: int = _SHORT) -> str:
    """Return the result of a tool on one line, for people: the first line of a text, the fields of an object by name."""
    plain = thaw(value)
    if isinstance(plain, str) and plain.lstrip()[:1] in ("{", "["):
        with suppress(ValueError):  # text that only looks like JSON
            plain = json.loads(plain)
    if isinstance(plain, dict):
        fields = cast("dict[str, Any]", plain).items()
        return brief("; ".join(f"{name}: {_summary(field)}" for name, field in fields) or "nothing", most)
    if isinstance(plain, list):
        return brief(_summary(cast("list[Any]", plain)) or "nothing", most)
    lines = plain.strip().splitlines() if isinstance(plain, str) else ()
    return brief(f"{lines[0].removeprefix('- ')} …" if len(lines) > 1 else plain, most)


def _summary(value: Any) -> str:
    """Return a nested value, shortened."""
    match value:
        case dict():
            return ", ".join(map(str, cast("dict[str, Any]", value)))
        case list() if any(isinstance(item, dict | list) for item in cast("list[Any]", value)):
            count = len(cast("list[Any]", value))
            return f"{count} result{'' if count == 1 else 's'}"
        case list():
            return ", ".join(map(str, cast("list[Any]", value)))
        case str():
            return value
        case _:
            return json.dumps(value)


def call_text(name: str, arguments: Mapping[str, Any]) -> str:
    """Return a call on one line, each argument as JSON; a long one is cut."""
    pairs = (f"{key}={brief(json.dumps(thaw(value), ensure_ascii=False))}" for key, value in arguments.items())
    return f"{name}({', '.join(pairs)})"


# ---------------------------------------------------------------- six phases

_OUTPUT_TOOL: Final = "final_result"
"""The call by which an agent gives a typed output."""


def has_phases(conversation: Conversation) -> bool:
    """Whether a thread goes through six phases."""
    return any(
        isinstance(message.payload, OptionCallPayload) and message.payload.option_name == ProcessPhase.message_type
        for message in conversation
        if message.lane == "control"
    )


def _is_phase_prompt(message: Message) -> bool:
    """Whether a message of talk in a thread of six phases is a prompt that only repeats earlier messages.

    The question in the prompt of the first phase is not a repetition.
    """
    if message.parent_id is None or message.role_hint_for_llm not in ("system", "user"):
        return False
    return message.role_hint_for_llm == "system" or f"/run/{PHASES[0]}/" not in message.parent_id


def phase_talk(messages: Iterable[Message]) -> list[Message]:
    """Return the readable messages of a thread of six phases: the questions, the text or output of each phase, the approvals.

    Prompts that repeat earlier messages are left out. An agent gives a typed output by a call: its text becomes text, and its
    other fields become data. A refused output stays a call. If an agent has only chosen a source, the result of its phase
    replaces the choice. The last phase writes its answer as another message of the thread, which replaces its text.
    """
    talk = [message for message in messages if not (message.lane == "talk" and _is_phase_prompt(message))]
    outputs = [message for message in talk if _is_output(message)]
    refused = {output.invocation_id for output in outputs if getattr(output.payload, "is_error", False)}
    asked: str | None = None
    choice: Message | None = None
    readable: list[Message] = []
    for message in talk:
        if is_approval(message):
            readable.append(message)
        elif message.lane != "talk":
            asked = _question(message) or asked
            if choice is not None and (result := _phase_result(message, choice.policy)) is not None:
                readable.append(_with_text(choice, result))
                choice = None
        elif _is_choice(message):
            choice = message
        elif message.policy == PHASES[-1] and message.id.endswith("/answer"):
            spoken = readable.pop() if readable and readable[-1].policy == PHASES[-1] else choice or message
            judged = tuple(part for part in spoken.parts if isinstance(part, DataPart))
            readable.append(spoken.model_copy(update={"payload": PartsPayload(parts=(*message.parts, *judged))}))
            choice = None
        elif message.role_hint_for_llm == "user" and message.parent_id is not None and asked is not None:
            readable.append(_with_text(message, asked))  # the prompt may repeat what was said before
        elif not _is_output(message) or message.invocation_id in refused:
            readable.append(message)
        elif isinstance(message.payload, OptionCallPayload):
            readable.append(message.model_copy(update={"payload": _as_said(message.payload)}))
    return readable


def _question(message: Message) -> str | None:
    """Return the question, if a message gives it to the first phase; else None."""
    call = message.payload
    if not isinstance(call, OptionCallPayload) or call.option_name != ProcessPhase.message_type:
        return None
    return str(call.arguments.get("input", "")) if call.arguments.get("phase_type") == PHASES[0] else None


def _phase_result(message: Message, phase: str) -> str | None:
    """Return the contribution of a phase, if a message is its result; else None."""
    outcome = message.payload
    if not isinstance(outcome, OptionResultPayload) or outcome.option_name != ProcessPhase.message_type or outcome.is_error:
        return None
    result: Any = thaw(outcome.result)
    return str(result["output"]["response"]) if result["phase_type"] == phase else None


def _with_text(message: Message, text: str) -> Message:
    return message.model_copy(update={"payload": PartsPayload(parts=(TextPart(text=text),))})


def _is_output(message: Message) -> bool:
    """Whether a message is the call that gives a typed output, or its result."""
    payload = message.payload
    return isinstance(payload, OptionCallPayload | OptionResultPayload) and payload.option_name == _OUTPUT_TOOL


def _is_choice(message: Message) -> bool:
    """Whether the agent of a phase has only chosen a source, by a call or as JSON text."""
    if message.policy not in PHASES:
        return False
    if isinstance(message.payload, OptionCallPayload):
        return message.payload.option_name == _OUTPUT_TOOL and set(message.payload.arguments) == {"source"}
    value = _structure(message.text or "")
    return isinstance(value, dict) and set(value) == {"source"}


def _as_said(call: OptionCallPayload) -> PartsPayload:
    """Return a typed output as parts: its first text field as text, the other fields as data."""
    arguments: Any = thaw(call.arguments)
    first = next((name for name, value in arguments.items() if isinstance(value, str)), "")
    judged = {name: value for name, value in arguments.items() if name != first}
    text = (TextPart(text=arguments[first]),) if first else ()
    return PartsPayload(parts=(*text, DataPart(data=judged)) if judged else text)


def cited_sources(conversation: Conversation) -> tuple[Mapping[str, Any], ...]:
    """Return the citations of the last answer of six phases, in the order of their numbers."""
    for message in reversed(conversation):
        kind, data = notice_in(message) or ("", {})
        if kind == ThreadResult.message_type:
            return tuple(thaw(data.get("citations")) or ())
    return ()


# ---------------------------------------------------------------- JSON as prose


def prose(text: str) -> str:
    """Return an answer as Markdown for people: JSON in it, as a whole or at the end of a line, becomes lists.

    Blocks of code stay as they are.
    """
    if (structure := _structure(text)) is not None:
        return "\n".join(_listed(structure))
    lines: list[str] = []
    is_code = False
    for line in text.split("\n"):
        is_code ^= line.lstrip().startswith("```")
        match = None if is_code else _AT_THE_END.search(line)
        value = None if match is None else _structure(match[0])
        if match is None or value is None:
            lines.append(line)
        else:
            lines += [*filter(None, (line[: match.start()].rstrip(),)), "", *_listed(value), ""]
    return "\n".join(lines).strip("\n")


_AT_THE_END: Final = re.compile(r"(?<!\S)[\[{].*[\]}]\s*$")
"""Text at the end of a line that may be JSON."""


def _structure(text: str) -> dict[str, Any] | list[Any] | None:
    """Return the JSON object or list of a text; None if the text is not JSON, or the value is empty."""
    try:
        value: Any = json.loads(text)
    except (ValueError, RecursionError):
        return None
    return cast("dict[str, Any] | list[Any]", value) if isinstance(value, dict | list) and value else None


def _listed(value: dict[str, Any] | list[Any], margin: str = "") -> Iterator[str]:
    """Yield a JSON value as a Markdown list. A value that fits on a line is one item."""
    for label, item in value.items() if isinstance(value, dict) else (("", entry) for entry in value):
        begin = f"{margin}- " + (f"{label.replace('_', ' ')}: " if label else "")
        if (short := _in_words(item)) is not None:
            yield f"{begin}{short}"
        elif label:
            yield begin.rstrip()
            yield from _listed(item, f"{margin}  ")
        else:  # an object or a list within a list: its first line is that of the item
            below = list(_listed(item, f"{margin}  "))
            yield f"{margin}- {below[0].lstrip(' -')}"
            yield from below[1:]


def _in_words(value: Any) -> str | None:
    """Return a value on one line; None if it needs several."""
    if isinstance(value, dict):
        items = cast("dict[str, Any]", value).items()
        short = ", ".join(f"{name.replace('_', ' ')}: {_scalar(item)}" for name, item in items)
        is_flat = not any(isinstance(item, dict | list) for _, item in items)
    elif isinstance(value, list):
        short = ", ".join(_scalar(item) for item in cast("list[Any]", value))
        is_flat = not any(isinstance(item, dict | list) for item in cast("list[Any]", value))
    else:
        return " ".join(_scalar(value).split())
    return (short or "none") if is_flat and len(short) <= _SENTENCE and "\n" not in short else None


def _scalar(value: Any) -> str:
    words = {None: "none", True: "yes", False: "no"}
    return words[value] if value is None or isinstance(value, bool) else str(value)


# ---------------------------------------------------------------- what cannot be seen


def visible(text: str, keep: str = "") -> str:
    """Return text with every control and invisible character as `⟨U+202E⟩`, except those to keep. Spaces of any width stay."""
    return HIDDEN.sub(lambda match: match[0] if _is_seen(match[0], keep) else f"⟨U+{ord(match[0]):04X}⟩", text)


def visible_lines(text: str) -> str:
    """Return lines of text that are safe to show: as `visible` does, with line ends and tabs kept."""
    return visible(text.replace("\r\n", "\n"), keep="\n\t")


def escaped(text: str) -> str:
    """Return equivalent JSON text, with every control and invisible character in it as a JSON escape."""
    return HIDDEN.sub(lambda match: match[0] if _is_seen(match[0], "\n") else _escape(match[0]), text)


def _is_seen(character: str, keep: str) -> bool:
    return character in keep or unicodedata.category(character) == "Zs"


def _escape(character: str) -> str:
    units = character.encode("utf-16-be").hex()
    return "".join(f"\\u{units[start : start + 4]}" for start in range(0, len(units), 4))


# ---------------------------------------------------------------- lines


def _line(level: int, text: str, tone: Tone = "plain", *, quoted: bool = False) -> TranscriptLine:
    return TranscriptLine(level, (LinePiece(visible_lines(text), tone),), quoted)


def _answers(conversation: Conversation) -> dict[int, Message | None]:
    """Return the result of each call, by the position of the call."""
    return {position: conversation.answer_at(position) for position in range(len(conversation))}


def _lines(
    conversation: Conversation, positions: Sequence[int], answers: Mapping[int, Message | None]
) -> Iterator[TranscriptLine]:
    """Yield the messages at some positions, each result under its call."""
    joined = {id(answer) for answer in answers.values()}
    last: Message | None = None
    for position in positions:
        message = conversation[position]
        if id(message) in joined:
            continue
        if last is None or not _goes_on(last, message):
            yield from [TranscriptLine(0)] * (last is not None)
            yield _heading(message)
        yield from _body(conversation, message, answers[position])
        last = message


def _joined(lines: Iterator[TranscriptLine]) -> str:
    return " ".join(word for line in lines for word in ("│ " * line.quoted + line.text).split())


def _goes_on(last: Message, message: Message) -> bool:
    """Whether a message continues the turn of the last one (see `Conversation.turns`), or both are calls of one agent."""
    if any(getattr(last, name) != getattr(message, name) for name in ("policy", "to", "lane", "turn_id", "step_num")):
        return False
    return message.turn_id is not None or message.step_num is not None or last.kind == message.kind == "option_call"


def _heading(message: Message) -> TranscriptLine:
    details = [
        f"to {', '.join(message.to)}" if message.to else "",
        f"step {message.step_num}" if message.step_num is not None else "",
        message.lane if message.lane != "talk" else "",
        f"{message.created_at:%Y-%m-%d %H:%M:%S} UTC" if message.created_at is not None else "",
    ]
    aside = ", ".join(filter(None, details))
    speaker = LinePiece(visible_lines(message.policy), "speaker")
    return TranscriptLine(0, (speaker, LinePiece(visible_lines(f" ({aside})"), "aside")) if aside else (speaker,))


def _body(conversation: Conversation, message: Message, answer: Message | None) -> Iterator[TranscriptLine]:
    match message.payload:
        case PartsPayload(parts=parts):
            yield from _parts(parts, 1)
            if not parts:
                yield _line(1, "(says nothing)", "aside")
        case OptionCallPayload() as call if is_approval(message):
            yield from _approval(call, answer)
        case OptionCallPayload() as call:
            yield from _call(call, answer)
        case OptionResultPayload() as outcome:  # pragma: no branch (there is no other)
            has_call = conversation.call_of(message) is not None
            oddity = "one more result of" if has_call else "no call is here for this result of"
            yield _line(1, f"{oddity} {outcome.option_name} (invocation {outcome.invocation_id})", "odd")
            yield from _outcome(message, outcome, 2)


def _call(call: OptionCallPayload, answer: Message | None) -> Iterator[TranscriptLine]:
    yield from _labelled((LinePiece("calls "), LinePiece(visible_lines(call.option_name), "heading")), _arguments(call), 1)
    if answer is not None and isinstance(answer.payload, OptionResultPayload):
        yield from _outcome(answer, answer.payload, 2)
    else:
        yield _line(2, "no result", "odd")


def is_approval(message: Message) -> bool:
    """Whether a message of a thread asks a person for an approval, or answers that question."""
    payload = message.payload
    return message.lane == "control" and not isinstance(payload, PartsPayload) and payload.option_name == APPROVE


def _approval(call: OptionCallPayload, answer: Message | None) -> Iterator[TranscriptLine]:
    asked: Mapping[str, Any] = thaw(call.arguments)
    question = LinePiece(visible_lines(f"may {asked.get('agent')} call {asked.get('tool')}?"))
    yield from _labelled((question,), asked.get("arguments"), 1)
    if answer is None or not isinstance(answer.payload, OptionResultPayload):
        yield _line(2, f"nobody has answered {call.invocation_id}", "odd")
    elif answer.payload.is_error:
        yield _line(2, f"{answer.payload.error_message}", "bad")
    else:
        result: Any = thaw(answer.payload.result)
        fields = cast("Mapping[str, Any]", result if isinstance(result, dict) else {})
        is_yes, reason = fields.get("approved") is True, fields.get("reason")
        why = f": {reason}" if reason else ""
        yield _line(2, f"{'approved' if is_yes else 'denied'} by {answer.policy}{why}", "plain" if is_yes else "bad")


def _arguments(call: OptionCallPayload) -> Any:
    """Return the arguments of a call as JSON; arguments that are not valid JSON, unchanged."""
    return call.arguments_text if call.arguments_text is not None and not call.arguments else call.arguments


def _outcome(message: Message, outcome: OptionResultPayload, level: int) -> Iterator[TranscriptLine]:
    by = f" (said by {message.policy})" if message.policy != outcome.option_name else ""
    if outcome.is_error:
        again = " (may be tried again)" if outcome.retryable else ""
        yield _line(level, f"fails{by}: {outcome.error_type}: {outcome.error_message}{again}", "bad")
        if outcome.result is not None:
            yield from _labelled((LinePiece("details", "bad"),), outcome.result, level)
    elif outcome.result is not None:
        yield from _labelled((LinePiece(visible_lines(f"gives{by}")),), outcome.result, level)
    else:
        yield _line(level, f"gives{by}" if outcome.parts else f"gives{by} nothing")
    yield from _parts(outcome.parts, level + 1)


def _parts(parts: tuple[Part, ...], level: int) -> Iterator[TranscriptLine]:
    for part in parts:
        match part:
            case TextPart():
                yield from _text(part, level)
            case MediaPart():
                hint = f": {part.prompt_hint}" if part.prompt_hint else ""
                yield _line(level, f"[{part.modality} {_short_url(part.url)}{hint}]", "media")
            case ReasoningPart():
                yield _line(level, f"[reasoning] {part.text or '(not shown by its provider)'}", "reasoning")
            case DataPart():
                yield from _labelled((LinePiece("[data]", "media"),), part.data, level)
            case ForeignPart():  # pragma: no branch (there is no other)
                yield from _labelled((LinePiece(visible_lines(f"[only in {part.dialect}]"), "media"),), part.value, level)


def _text(part: TextPart, level: int) -> Iterator[TranscriptLine]:
    yield _line(level, part.text, quoted=True)
    for citation in part.citations:
        named = (citation.title, citation.url, citation.source, citation.quote)
        yield _line(level, f"[source: {', '.join(filter(None, named))}]", "aside")


def _labelled(label: tuple[LinePiece, ...], value: Any, level: int) -> Iterator[TranscriptLine]:
    """Yield a value beside its label; a long value below the label."""
    short = _written(value)
    if len(short) <= _SHORT and "\n" not in short:
        yield TranscriptLine(level, (*label, LinePiece(" "), LinePiece(visible_lines(short))))
        return
    yield TranscriptLine(level, label)
    yield _line(level + 1, _written(value, indent=2), quoted=True)


def _written(value: Any, indent: int | None = None) -> str:
    """Return a JSON value as text; text is returned unchanged."""
    text = value if isinstance(value, str) else json.dumps(thaw(value), ensure_ascii=False, indent=indent)
    return _DATA_URL.sub(lambda match: _short_url(match[0]), text)


def _short_url(url: str) -> str:
    """Return a URL to show. For a `data:` URL, its size replaces its content."""
    if url[:5].lower() != "data:":
        return url
    kind, _, content = url.partition(",")
    is_base64 = kind.lower().endswith(";base64")
    return f"{kind},… {file_size(len(content.rstrip('=')) * 3 // 4 if is_base64 else len(content))}"


def file_size(size: int) -> str:
    """Return a number of bytes with a unit: `1.2 kB`."""
    if size < 1000:  # noqa: PLR2004 (decimal units)
        return "1 byte" if size == 1 else f"{size} bytes"
    power = min(len(str(size)) - 1, 14) // 3
    return f"{size / 1000**power:,.1f} {('kB', 'MB', 'GB', 'TB')[power - 1]}"
