"""Execution of a tool: the effect in the journal, the time limit and retries, and its result as an outcome.

A tool with effects `once` that exceeds its time limit has an unknown outcome. The model must not be told that it failed, so
the call is parked for a person.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, Final, cast

from pydantic import ValidationError
from pydantic_ai import AudioUrl, BinaryContent, DocumentUrl, ImageUrl, ModelRetry, RunContext, ToolReturn, VideoUrl
from pydantic_ai.exceptions import ApprovalRequired, CallDeferred, ToolFailed
from pydantic_ai.messages import FileUrl, ModelRequest, TextContent, ToolReturnPart, UserPromptPart
from pydantic_core import PydanticSerializationError, to_jsonable_python
from typing_extensions import override

from antiphon.agents._deeds import note_deed
from antiphon.agents._observers import is_observed
from antiphon.agents.durability._talk import ThreadTalk
from antiphon.agents.toolkit._taint import untrusted_in
from antiphon.agents.toolkit._tool import (
    RESULT_INVALID,
    RESULT_TOO_LARGE,
    TIMEOUT,
    TOOL_FAILED,
    ToolkitTool,
    ToolOutcome,
    ToolRefusal,
)
from antiphon.durable._budget import Bounds
from antiphon.durable._run import CurrentEffect, LedgerRun, effect_scope
from antiphon.durable._steps import RunEffect
from antiphon.errors import BudgetExceededError, HistoryMismatchError, LedgerError, ParkedError, UnknownOutcomeError
from antiphon.messages import Json, MediaPart, Message, Modality, TextPart
from antiphon.messages._long_values import cut
from antiphon.messages._settings import current_limits
from antiphon.runtime import ToolOperation, describe
from antiphon.runtime._effects import Run
from antiphon.runtime._rows import text_of

# ---------------------------------------------------------------- the effect


class ToolkitCallEffect(RunEffect):
    """One call of a toolkit's tool in a run. It counts for the budgets of the agents in the run."""

    def __init__(
        self,
        run: LedgerRun,
        tool: ToolkitTool,
        arguments: dict[str, Json],
        *,
        key: str,
        parent_id: str | None,
        ctx: RunContext[object],
    ) -> None:
        super().__init__(run.opened, key, arguments, effects=tool.effects, option=tool.name, parent_id=parent_id)
        self._run_of = run
        self._tool = tool
        name, _, number = self.id.rpartition("=")  # `=` in a key only precedes the number of a further one
        first = name if number.isdigit() else self.id
        self._is_repeated = self.id != first
        self.key = self.id = first  # a call that the model repeats under one id is one call
        if is_observed(run, ctx):
            shown = arguments["arguments"]
            self.operation = ToolOperation(tool.name, parent_id, description=tool.description or None, arguments=shown)

    @override
    async def begin(self) -> Message:
        run = self._run_of
        await run.opened.share(ThreadTalk).spend(run, run.opened.share(Bounds).limits, "tool", self.id)
        return await super().begin()

    async def call(self, start: Run) -> Any:
        """Start the tool, or return the recorded outcome, as `LedgerRun.effect` does."""

        async def inside(key: str) -> Json:
            with effect_scope(CurrentEffect(key, self._tool.name, self._tool.effects)):
                returned = await start(key)
                if isinstance(self.operation, ToolOperation):
                    describe(replace(self.operation, result=ToolOutcome.from_json(returned).result))
                return returned

        if self._tool.effects != "none":
            note_deed(self.id)
        return await self.perform(inside)

    @override
    def _may_be_recorded(self) -> bool:
        return self._is_repeated or super()._may_be_recorded()


# ---------------------------------------------------------------- starting

_MOST_WORDS: Final = 500
"""Characters of an error message that are kept."""
_MOST_READ: Final = 64 * 1024
"""Characters of it that are searched for secrets."""
_NOT_OF_THE_TOOL: Final = (
    LedgerError,
    ParkedError,
    HistoryMismatchError,
    BudgetExceededError,
    ToolRefusal,
    UnknownOutcomeError,
)
"""Errors that pass through a tool and are not its failure: the run cannot continue."""


async def execute(
    tool: ToolkitTool, arguments: dict[str, object], ctx: RunContext[object], clean: Callable[[str], str]
) -> ToolOutcome:
    """Start a tool, and return its outcome. `clean` removes secrets from its error message.

    Raises:
        ToolRefusal: it failed.
        UnknownOutcomeError: it was cancelled, and has effects `once`.
    """
    async with tool.slots.take():
        retries = tool.retries
        while True:
            try:
                return _recordable(tool, await _within_time(tool, arguments, ctx), clean)
            except ToolRefusal as refusal:
                if retries == 0 or not refusal.retryable:
                    refusal.reason = _shortened(clean(refusal.reason[:_MOST_READ]))
                    raise
            retries -= 1


def _recordable(tool: ToolkitTool, value: Any, clean: Callable[[str], str]) -> ToolOutcome:
    """Return the result of a tool in its stored form."""
    try:
        return as_outcome(tool, value)
    except ToolRefusal as refusal:
        try:
            text = repr(value)
        except Exception:  # noqa: BLE001 (a class of the program, and the value is only shown)
            text = "(its text cannot be read)"
        refusal.returned = {"type": type(value).__qualname__, "value": _shortened(clean(text[:_MOST_READ]))}
        raise


async def _within_time(tool: ToolkitTool, arguments: dict[str, object], ctx: RunContext[object]) -> Any:
    """Start it once."""
    deadline = asyncio.timeout(tool.timeout)
    try:
        async with deadline:
            return await tool.start(arguments, ctx)
    except (ToolFailed, ModelRetry) as exc:  # the tool's own message for the model
        raise ToolRefusal(TOOL_FAILED, exc.message, retryable=isinstance(exc, ModelRetry)) from None
    except (ApprovalRequired, CallDeferred):
        raise ToolRefusal(TOOL_FAILED, "a tool of a toolkit cannot defer itself; use approval=True, or a rule") from None
    except _NOT_OF_THE_TOOL:
        raise
    except TimeoutError as exc:
        if not deadline.expired():
            raise _failure(exc) from None
        reason = f"it took more than {tool.timeout:g} s, and was given up"
        if tool.effects == "once":
            raise UnknownOutcomeError(reason) from None
        raise ToolRefusal(TIMEOUT, reason, retryable=True) from None
    except Exception as exc:  # noqa: BLE001 (whatever it raises is its outcome)
        raise _failure(exc) from None


def _shortened(words: str) -> str:
    return words if len(words) <= _MOST_WORDS else f"{words[:_MOST_WORDS]}… [cut]"


def _failure(error: Exception) -> ToolRefusal:
    """Return an exception as an outcome: its class, which is the type of the error, and its first line.

    Never its traceback, which contains values.
    """
    lines = text_of(error)[:_MOST_READ].strip().splitlines()
    message = f": {lines[0]}" if lines else ""
    return ToolRefusal(type(error).__name__, f"it failed with {type(error).__qualname__}{message}", retryable=True)


# ---------------------------------------------------------------- results

_MODALITIES: Final[dict[type[FileUrl], Modality]] = {
    ImageUrl: "image",
    AudioUrl: "audio",
    VideoUrl: "video",
    DocumentUrl: "document",
}
_URLS: Final = {modality: cls for cls, modality in _MODALITIES.items()}


def as_outcome(tool: ToolkitTool, value: Any) -> ToolOutcome:
    """Return the result of a tool in its stored form.

    Raises:
        ToolRefusal: it is not JSON, or too large.
    """
    contents: Sequence[Any] = ()
    source: str | None = None
    if isinstance(value, ToolReturn):
        content = value.content
        contents = [content] if isinstance(content, str) else content or ()
        quotes = [item for item in contents if isinstance(item, TextContent)]
        returned = ToolReturnPart(tool.name, None, tool_call_id="-", metadata=value.metadata)
        source = untrusted_in([ModelRequest([returned, UserPromptPart(quotes)])], ())
        value = value.return_value
    values, media = _sorted(value)
    texts = [item if isinstance(item, str) else item.content for item in contents if isinstance(item, str | TextContent)]
    media += [part for item in contents if (part := _medium(item)) is not None]
    _check_size(sum(len(part.url) for part in media), current_limits().data_url_bytes)
    result, size = _json(tool, values)
    room = _most_bytes(tool) - size
    texts = cast("list[str]", cut(texts, room))
    outcome = ToolOutcome(result=result, parts=(*media, *(TextPart(text=text) for text in texts)), untrusted=source)
    try:
        outcome.payload("-", tool.name)
    except ValidationError as exc:
        raise ToolRefusal(RESULT_INVALID, f"it returned what cannot be written down: {exc.errors()[0]['msg']}") from None
    return outcome


def _sorted(value: Any) -> tuple[Any, list[MediaPart]]:
    """Return the JSON and the media of a value: a medium alone, or in a list with other values."""
    if (part := _medium(value)) is not None:
        return None, [part]
    if not isinstance(value, list | tuple):
        return value, []
    items = cast("Sequence[Any]", value)
    media = [part for item in items if (part := _medium(item)) is not None]
    if not media:
        return items, []
    rest = [item for item in items if _medium(item) is None]
    return rest[0] if len(rest) == 1 else rest or None, media


def _medium(value: object) -> MediaPart | None:
    if isinstance(value, MediaPart):
        return value
    if isinstance(value, BinaryContent):
        modality: Modality = (
            "image" if value.is_image else "audio" if value.is_audio else "video" if value.is_video else "document"
        )
        return MediaPart(modality=modality, url=value.data_uri, mime=value.media_type)
    if isinstance(value, FileUrl):
        return MediaPart(modality=_MODALITIES.get(type(value), "document"), url=value.url)
    return None


def _json(tool: ToolkitTool, value: Any) -> tuple[Json, int]:
    """Return a value as JSON, cut if it is too large, and its size in bytes."""
    try:
        plain: Json = to_jsonable_python(value, bytes_mode="base64")
        size = len(json.dumps(plain, ensure_ascii=False, allow_nan=False).encode())
    except (PydanticSerializationError, TypeError, ValueError, RecursionError):
        reason = f"it returned a {type(value).__qualname__}, which is no JSON"
        raise ToolRefusal(RESULT_INVALID, reason) from None
    most = _most_bytes(tool)
    return (plain, size) if size <= most else (cut(plain, most), most)


def _most_bytes(tool: ToolkitTool) -> int:
    """Return how many bytes of a result are kept: the limit of the tool, but at most what fits into a row."""
    return min(tool.max_result_bytes, current_limits().message_bytes * 11 // 16)


def check_row(outcome: ToolOutcome) -> None:
    """Check that an outcome with media fits into one row: media cannot be cut."""
    if any(isinstance(part, MediaPart) for part in outcome.parts):
        _check_size(len(json.dumps(outcome.to_json())), current_limits().message_bytes * 3 // 4)


def _check_size(size: int, most: int) -> None:
    if size > most:
        raise ToolRefusal(RESULT_TOO_LARGE, f"it returned {size} bytes, and at most {most} are taken; ask for less")


def as_tool_return(outcome: ToolOutcome) -> Any:
    """Return an outcome in Pydantic AI's form. Its taint is in the metadata, which no model sees."""
    media = [_content(part) for part in outcome.parts if isinstance(part, MediaPart)]
    texts = [part.text for part in outcome.parts if isinstance(part, TextPart)]
    value: Any = outcome.result
    if media:
        value = media[0] if value is None and len(media) == 1 else [*([] if value is None else [value]), *media]
    metadata = None if outcome.untrusted is None else {"antiphon": {"untrusted": outcome.untrusted}}
    if metadata is None and not texts:
        return value
    return ToolReturn(value, content=texts or None, metadata=metadata)


def _content(part: MediaPart) -> BinaryContent | FileUrl:
    if part.url[:5].lower() == "data:":
        return BinaryContent.from_data_uri(part.url)
    return _URLS[part.modality](url=part.url)
